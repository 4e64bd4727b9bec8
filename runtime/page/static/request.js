// The exact request of a model call, and what differs between it and the one of the turn before.
import { debounced, empty, fill, h, jsonText, number } from "./dom.js";
import { blockView, long } from "./conversation.js";

const SHOWN = 20;
const TURNS_MAX = 200;

export class RequestTab {
  constructor(view) {
    this.view = view;
    this.known = new Map();
    this.mode = "whole";
    this.node = h("div", { class: "scroll request" });
    this.read = debounced(80, () => this.readNow());
  }

  async draw() {
    const { now, before } = this.calls();
    if (this.key !== `${now}/${before}/${this.mode}`) this.read();
  }

  // The call that is under way, or was the last, at the version; and the one that it is compared with: the one before
  // it, unless another earlier one was chosen.
  calls() {
    const { spans, head, version } = this.view;
    const asked = [...spans, ...head.open_spans].filter((span) => span.lane === "model" && span.begun <= version);
    const place = (span) => span && (span.ended && span.ended <= head.version ? span.ended : span.begun);
    const earlier = asked.slice(-TURNS_MAX - 1, -1).map(place);
    return { now: place(asked[asked.length - 1]), before: earlier.includes(this.other) ? this.other : earlier[earlier.length - 1], earlier };
  }

  async request(version) {
    if (!this.known.has(version)) {
      if (this.known.size > 20) this.known.clear();
      this.known.set(version, await this.view.app.source.request(this.view.name, version));
    }
    return this.known.get(version);
  }

  async readNow() {
    const { now, before, earlier } = this.calls();
    const key = (this.key = `${now}/${before}/${this.mode}`);
    if (!now) {
      fill(this.node, empty("No request yet", "The model is asked in a later version."));
      return;
    }
    try {
      const found = await this.request(now);
      const other = this.mode === "changes" && before ? await this.request(before) : null;
      if (key !== this.key) return;
      this.write(found, other, before, earlier);
    } catch (error) {
      if (key === this.key) fill(this.node, empty("There is no request to show", error.message));
    }
  }

  write(found, other, before, earlier) {
    const turns = h(
      "select",
      { "aria-label": "Beside which request", onchange: () => ((this.other = Number(turns.value)), this.draw()) },
      earlier.toReversed().map((version, place) => h("option", { value: version, selected: version === before }, `Version ${version}${place ? "" : ", the turn before"}`)),
    );
    const mode = (name, words) =>
      h("button", { class: `chip ${this.mode === name ? "on" : ""}`, "aria-pressed": String(this.mode === name), onclick: () => ((this.mode = name), this.draw()) }, words);
    fill(this.node, 
      h(
        "header",
        {},
        h("h2", {}, `Request of version ${found.version}`),
        found.open && h("span", { class: "tag" }, "not answered"),
        found.as_sent === false && h("span", { class: "tag bad" }, "today's code makes another one"),
        found.as_sent === true && h("span", { class: "tag" }, "exactly as sent"),
        h("span", { class: "grow" }),
        before && mode("whole", "Whole"),
        before && mode("changes", "Changes since"),
        before && other && turns,
      ),
      ...(other ? this.changes(other, found) : this.whole(found)),
    );
  }

  whole(found) {
    const { request } = found;
    const { system_prompt: prompt, tools = [], messages = [], ...rest } = request;
    const list = h("div", { class: "messages" });
    const more = h("button", { class: "earlier", onclick: () => write(0) });
    const write = (from) => {
      more.hidden = from === 0;
      fill(more, `${number(from)} messages before`);
      fill(list, ...messages.slice(from).map((message) => this.message(message)));
    };
    write(Math.max(messages.length - SHOWN, 0));
    return [
      h("dl", { class: "facts" }, Object.entries(rest).filter(([, value]) => value !== null && value !== undefined && value.length !== 0).map(([name, value]) => [h("dt", {}, name), h("dd", {}, typeof value === "object" ? h("pre", { class: "json" }, jsonText(value)) : value)])),
      h("details", { open: (prompt || "").length < 2000 }, h("summary", {}, "System prompt"), prompt ? long(prompt) : h("p", { class: "hint" }, "None.")),
      h("details", {}, h("summary", {}, `Tools (${number(tools.length)})`), tools.map((tool) => h("section", { class: "tool" }, h("b", {}, tool.name), h("p", {}, tool.description || ""), h("pre", { class: "json" }, jsonText(tool.input_schema ?? tool))))),
      found.recalled?.length ? h("p", { class: "hint" }, `Recalled: ${found.recalled.join(", ")}`) : "",
      h("h3", {}, `Messages (${number(messages.length)})`),
      more,
      list,
    ];
  }

  message(message, kind = "") {
    const content = typeof message.content === "string" ? [{ type: "text", text: message.content }] : message.content || [];
    return h("article", { class: `message ${message.role} ${kind}` }, h("header", {}, h("b", {}, message.role)), content.map((block) => blockView(this.view, block)));
  }

  changes(left, right) {
    const fields = Object.keys({ ...left.request, ...right.request }).filter((name) => name !== "messages" && jsonText(left.request[name]) !== jsonText(right.request[name]));
    const [mine, other] = [left.request.messages || [], right.request.messages || []];
    const texts = [mine.map((one) => jsonText(one)), other.map((one) => jsonText(one))];
    let same = 0;
    while (same < mine.length && same < other.length && texts[0][same] === texts[1][same]) same += 1;
    const words = (value) => (typeof value === "string" ? value : jsonText(value ?? null));
    return [
      fields.length ? "" : h("p", { class: "hint" }, "Model, prompt, tools and settings are the same."),
      ...fields.map((name) => h("section", { class: "change" }, h("h3", {}, name), lineDifference(words(left.request[name]), words(right.request[name])))),
      h("h3", {}, `Messages: the first ${number(same)} are the same`),
      ...mine.slice(same).map((one) => this.message(one, "gone")),
      ...other.slice(same).map((one) => this.message(one, "new")),
    ];
  }
}

// Two texts line by line: what only the left has, what only the right has, and what both do around it.
export function lineDifference(left, right) {
  const [a, b] = [left.split("\n"), right.split("\n")];
  let begin = 0;
  while (begin < a.length && begin < b.length && a[begin] === b[begin]) begin += 1;
  let end = 0;
  while (end < a.length - begin && end < b.length - begin && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const [mine, other] = [a.slice(begin, a.length - end), b.slice(begin, b.length - end)];
  const kept = common(mine, other);
  const rows = [];
  const add = (kind, text) => rows.push(h("div", { class: kind }, text || " "));
  for (const text of a.slice(Math.max(begin - 2, 0), begin)) add("same", text);
  let [m, o] = [0, 0];
  for (const [x, y] of [...kept, [mine.length, other.length]]) {
    while (m < x) add("gone", mine[m++]);
    while (o < y) add("new", other[o++]);
    if (x < mine.length) add("same", mine[x]);
    [m, o] = [x + 1, y + 1];
  }
  for (const text of a.slice(a.length - end, a.length - end + 2)) add("same", text);
  return h("div", { class: "lines" }, rows);
}

// The longest common subsequence of lines; long texts are not compared so exactly.
function common(a, b) {
  if (!a.length || !b.length || a.length * b.length > 1e6) return [];
  const width = b.length + 1;
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1)
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
  const pairs = [];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) pairs.push([i++, j++]);
    else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return pairs;
}
