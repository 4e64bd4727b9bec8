// A session as a conversation: who said what, calls with their results, and what happened between.
import { compact, counted, duration, empty, fill, h, jsonText, number, pill, time, tokens } from "./dom.js";

const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const LONG = 1500;

export function long(text, kind = "text") {
  if (text.length <= LONG) return h("div", { class: kind }, text);
  const box = h("div", { class: kind }, text.slice(0, LONG), "…");
  const more = h(
    "button",
    { class: "link", onclick: () => (fill(box, h("span", {}, text)), more.remove()) },
    `Show ${number(text.length - LONG)} more characters`,
  );
  return [box, more];
}

export function blockView(view, block) {
  switch (block.type) {
    case "text":
      return long(block.text || "");
    case "thinking":
      return h("details", { class: "thinking" }, h("summary", {}, "Thinking"), long(block.thinking || ""));
    case "image":
    case "document":
      // Nothing is fetched from elsewhere: an address stands as text.
      if (block.url) return h("div", { class: "inert" }, `${block.type} at ${block.url}`);
      if (IMAGES.has(block.media_type) && block.data) {
        const picture = h("img", { alt: `image, ${block.media_type}`, loading: "lazy" });
        picture.src = `data:${block.media_type};base64,${block.data.replace(/[^A-Za-z0-9+/=]/g, "")}`;
        return picture;
      }
      return h("div", { class: "inert" }, `${block.media_type || block.type} of ${number(((block.data || "").length * 3) / 4)} bytes`);
    case "stored":
      return stored(view, block);
    case "tool_use":
      return h("section", { class: "call" }, h("header", {}, h("b", {}, block.name), h("code", { class: "hint" }, block.id)), h("pre", { class: "json" }, block.malformed_input ?? jsonText(block.input)));
    case "tool_result":
      return h(
        "section",
        { class: `call ${block.is_error || block.kind ? "bad" : ""}` },
        h("header", {}, h("b", {}, "Result"), block.kind && pill(block.kind), h("code", { class: "hint" }, block.tool_use_id)),
        typeof block.content === "string" ? long(block.content) : (block.content || []).map((one) => blockView(view, one)),
      );
    default:
      return h("pre", { class: "json" }, jsonText(block));
  }
}

function stored(view, block) {
  const box = h("div", {}, long(block.shown || `${block.holds} of ${number(block.bytes)} bytes`));
  if (!view.app.source.live) return box;
  const more = h(
    "button",
    {
      class: "link",
      onclick: async () => {
        try {
          const found = await view.app.source.payload(view.name, block.hash);
          fill(box, h("div", { class: "text" }, found.text));
          more.remove();
        } catch (error) {
          fill(more, error.message);
        }
      },
    },
    `Show all ${number(block.bytes)} bytes`,
  );
  return [box, more];
}

function callView(view, call) {
  const status = call.ended_at
    ? call.kind || "ok"
    : call.approval === "requested"
      ? "waiting"
      : call.started_at
        ? "running"
        : "not started";
  const took = call.ended_at && call.started_at ? duration(call.ended_at - call.started_at) : "";
  const input = call.malformed_input ?? jsonText(call.changed_input ?? call.input);
  return h(
    "section",
    { class: `call ${call.kind ? "bad" : ""}` },
    h(
      "header",
      {},
      h("b", {}, call.tool),
      pill(status),
      call.approval && h("span", { class: "tag" }, `approval ${call.approval}`),
      call.attempts > 1 && h("span", { class: "tag" }, `attempt ${call.attempts}`),
      h("span", { class: "grow" }),
      took && h("span", { class: "hint" }, took),
      h("code", { class: "hint" }, call.call),
    ),
    h("pre", { class: "json" }, input === "{}" ? "no arguments" : input.slice(0, 20000)),
    call.approval_reason && call.approval_reason !== call.result?.[0]?.text && h("p", { class: "hint" }, call.approval_reason),
    call.ended_at ? h("div", { class: "result" }, (call.result || []).map((block) => blockView(view, block))) : null,
  );
}

export function entryView(view, entry) {
  const place = h(
    "button",
    { class: "version", title: `To version ${entry.version}, ${time(entry.at)}`, onclick: () => view.go(entry.version) },
    `v${entry.version}`,
  );
  if (entry.type === "noted") return h("article", { class: "note" }, place, long(entry.what, "text"));
  if (entry.type === "ended")
    return h(
      "article",
      { class: `end ${entry.outcome}` },
      place,
      pill(entry.outcome),
      h(
        "span",
        {},
        entry.kind ? `${entry.kind}: ${entry.message}` : "",
        ` ${counted(entry.turns, "turn")}, ${duration(entry.at - entry.started_at)}, ${compact(tokens(entry.usage))} tokens`,
      ),
    );
  const who = entry.role === "user" ? "User" : "Model";
  const usage = entry.usage && tokens(entry.usage) ? `${compact(entry.usage.input_tokens || 0)} in, ${compact(entry.usage.output_tokens || 0)} out` : "";
  return h(
    "article",
    { class: `message ${entry.role}` },
    h(
      "header",
      {},
      h("b", {}, who),
      entry.imported && h("span", { class: "tag" }, "imported"),
      h("span", { class: "grow" }),
      usage && h("span", { class: "hint" }, usage),
      h("time", { class: "hint", title: time(entry.at) }, time(entry.at, false)),
      place,
    ),
    (entry.content || []).map((block) => blockView(view, block)),
    (entry.calls || []).map((call) => callView(view, call)),
    entry.stop_reason && !["end_turn", "tool_use"].includes(entry.stop_reason) && h("p", { class: "hint" }, `stopped: ${entry.stop_reason}`),
  );
}

const AT_ONCE = 30;
const MORE = 60;

export class Conversation {
  constructor(view) {
    this.view = view;
    this.count = AT_ONCE;
    this.earlier = h("button", { class: "earlier", onclick: () => this.showEarlier() }, "Earlier");
    this.list = h("div", { class: "conversation" });
    this.later = h("p", { class: "later" });
    this.node = h("div", { class: "scroll" }, this.earlier, this.list, this.later);
    this.drawn = new Map();
  }

  async showEarlier() {
    this.count += MORE;
    const before = this.node.scrollHeight - this.node.scrollTop;
    await this.draw(this.view.version);
    this.node.scrollTop = this.node.scrollHeight - before;
  }

  async draw(version) {
    const asked = (this.asked = (this.asked || 0) + 1);
    const { entries, more } = await this.view.frames.entriesUntil(version, this.count);
    if (asked !== this.asked) return;
    const drawn = new Map();
    const nodes = entries.map((entry) => {
      // An entry that did not change keeps its node, so that what was opened in it stays open.
      const calls = (entry.calls || []).map((call) => `${call.call}${call.started_at}${call.ended_at}${call.approval}${call.attempts}`);
      const key = `${entry.version}.${entry.place} ${entry.type}${calls}${(entry.what || "").length}`;
      const node = this.drawn.get(key) || entryView(this.view, entry);
      drawn.set(key, node);
      return node;
    });
    this.drawn = drawn;
    if (!nodes.length) nodes.push(empty("Nothing was said yet", "The first input comes in a later version."));
    fill(this.list, ...nodes);
    this.earlier.hidden = !more;
    const left = this.view.head.last_version - version;
    fill(this.later, left > 0 ? counted(left, "later event") : "");
    this.node.scrollTop = this.node.scrollHeight;
  }

  reset() {
    this.count = AT_ONCE;
  }
}
