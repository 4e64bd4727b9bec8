// Elements, texts and numbers. What stands in a log was written by models, tools and strangers: it becomes text nodes
// only, and characters that cannot be seen, or turn the direction of writing, are shown as what they are.

const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e01ef}]|[\u{1d173}-\u{1d17a}]|\p{Surrogate}/gu;
// Joiners belong to emoji and to several scripts; beside such characters they stay.
const JOINED = /[\p{Extended_Pictographic}\p{Script=Arabic}\p{Script=Devanagari}\p{Script=Bengali}\p{Script=Malayalam}\ufe0f]/u;

export function shown(text) {
  const all = String(text);
  UNSEEN.lastIndex = 0;
  if (!UNSEEN.test(all)) return document.createTextNode(all);
  const parts = document.createDocumentFragment();
  let from = 0;
  UNSEEN.lastIndex = 0;
  for (const found of all.matchAll(UNSEEN)) {
    const code = found[0].codePointAt(0);
    if ((code === 0x200d || code === 0x200c) && JOINED.test(all.slice(Math.max(found.index - 2, 0), found.index))) continue;
    if (code === 0x0d && all[found.index + 1] === "\n") {
      parts.append(all.slice(from, found.index));
      from = found.index + 1;
      continue;
    }
    parts.append(all.slice(from, found.index));
    const mark = document.createElement("span");
    mark.className = "unseen";
    mark.textContent = `\\u${code.toString(16).padStart(4, "0")}`;
    parts.append(mark);
    from = found.index + found[0].length;
  }
  parts.append(all.slice(from));
  return parts;
}

export function plain(text) {
  return String(text).replace(UNSEEN, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);
}

// JSON whose strings show as escapes what cannot be seen, for a field in which it is edited.
export const editable = (value) =>
  jsonText(value).replace(UNSEEN, (one) => [...Array(one.length)].map((_, n) => `\\u${one.charCodeAt(n).toString(16).padStart(4, "0")}`).join(""));

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : plain(value));
  }
  for (const child of children.flat(4)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : shown(child));
  }
  return element;
}

// Puts what is given into an element, in place of all that is there.
export function fill(element, ...children) {
  element.textContent = "";
  return filled(element, {}, children);
}

export const h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// Numbers that a double cannot hold stay exact: they are arguments of calls.
export function parsed(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source !== undefined
      ? BigInt(/^-?\d+$/.test(context.source) ? context.source : value)
      : value,
  );
}

const SIMPLE = new Set(["string", "number", "boolean", "bigint"]);

export function jsonText(value, indent = "") {
  if (value === null || value === undefined) return "null";
  if (typeof value === "bigint") return value.toString();
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}  `;
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    const short = value.every((one) => one === null || SIMPLE.has(typeof one));
    const items = value.map((one) => jsonText(one, inner));
    if (short && items.join(", ").length < 80) return `[${items.join(", ")}]`;
    return `[\n${items.map((one) => inner + one).join(",\n")}\n${indent}]`;
  }
  const names = Object.keys(value);
  if (!names.length) return "{}";
  return `{\n${names.map((name) => `${inner}${JSON.stringify(name)}: ${jsonText(value[name], inner)}`).join(",\n")}\n${indent}}`;
}

const two = (n) => String(n).padStart(2, "0");

export function time(at, withDate = true) {
  if (!at) return "";
  const moment = new Date(at / 1000);
  if (Number.isNaN(moment.getTime())) return `${at} µs`;
  const clock = `${two(moment.getUTCHours())}:${two(moment.getUTCMinutes())}:${two(moment.getUTCSeconds())}.${String(
    moment.getUTCMilliseconds(),
  ).padStart(3, "0")}Z`;
  if (!withDate) return clock;
  return `${moment.getUTCFullYear()}-${two(moment.getUTCMonth() + 1)}-${two(moment.getUTCDate())} ${clock}`;
}

export function ago(at, now = Date.now()) {
  const seconds = Math.max((now - at / 1000) / 1000, 0);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  if (seconds < 86400 * 30) return `${Math.floor(seconds / 86400)} d ago`;
  return time(at).slice(0, 10);
}

export function duration(us) {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${us < 1e4 ? (us / 1000).toFixed(1) : Math.round(us / 1000)} ms`;
  if (us < 60e6) return `${(us / 1e6).toFixed(1)} s`;
  if (us < 3600e6) return `${Math.floor(us / 60e6)} min ${Math.floor((us / 1e6) % 60)} s`;
  if (us < 86400e6) return `${Math.floor(us / 3600e6)} h ${Math.floor((us / 60e6) % 60)} min`;
  return `${Math.floor(us / 86400e6)} d ${Math.floor((us / 3600e6) % 24)} h`;
}

export const number = (n) => Number(n).toLocaleString("en-US");

export const counted = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;

export const money = (n) => (n ? (n >= 1 ? n.toFixed(2) : n >= 0.01 ? n.toFixed(4) : n.toPrecision(2)) : "–");

export const tokens = (usage) => (usage ? (usage.input_tokens || 0) + (usage.output_tokens || 0) : 0);

export const compact = (n) =>
  n < 1000 ? String(n) : n < 1e6 ? `${(n / 1000).toFixed(n < 1e4 ? 1 : 0)}k` : `${(n / 1e6).toFixed(1)}M`;

export const pill = (status) => h("span", { class: `pill ${/^[a-z_]+$/.test(status) ? status : ""}` }, status);

export const empty = (title, words, ...more) =>
  h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), words && h("p", {}, words), ...more);

export const debounced = (milliseconds, work) => {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
};
