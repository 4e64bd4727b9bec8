// What was true at a version: the run, what waits, what was held in memories, and how breakers stood.
import { compact, duration, fill, h, jsonText, money, number, pill, time } from "./dom.js";
import { cards } from "./people.js";

const row = (name, value) => value !== null && value !== undefined && value !== "" && [h("dt", {}, name), h("dd", {}, value)];

const section = (title, count, ...content) =>
  h("section", { class: "panel" }, h("h2", {}, title, count !== null && count !== undefined && h("span", { class: "count" }, number(count))), ...content);

const words = (content) => (content || []).map((block) => block.text || `[${block.type}]`).join(" ");

export function heldAt(stream, position) {
  const items = new Map();
  let version = 0;
  for (const change of stream.changes) {
    if (change.position > position) break;
    version = change.version;
    for (const name of change.gone || []) items.delete(name);
    for (const [name, said] of Object.entries(change.now || {})) items.set(name, said);
  }
  return { items, version };
}

// On a phone the other cards would stand between the first one and the conversation.
const NARROW = matchMedia("(max-width: 900px)");

export class StatePanel {
  constructor(view) {
    this.view = view;
    this.beside = null;
    this.open = new Map();
    this.asks = h("section", { class: "asks", "aria-label": "Waiting for a person" });
    this.body = h("div", { class: "state" });
    this.node = h("aside", { class: "side", "aria-label": "State at this version" }, this.asks, this.body);
  }

  async readBeside() {
    this.beside = await this.view.app.source.beside(this.view.name);
    this.draw(this.view.version);
  }

  async readWaiting() {
    if (!this.view.app.source.live || this.asks.contains(document.activeElement)) return;
    const found = await this.view.app.source.waiting(this.view.name);
    const again = () => setTimeout(() => this.readWaiting(), 600);
    fill(this.asks, ...cards(this.view.app, found, NARROW.matches ? 1 : 3, (item) => ({ withSession: item.session !== this.view.name, done: again })));
  }

  draw(version) {
    const { frames, head } = this.view;
    const frame = frames.frame(version);
    if (!frame) return;
    const state = frames.stateAt(version);
    const now = version === head.last_version;
    const run = state.run;
    const usage = state.usage || {};
    const metadata = Object.entries(state.metadata || {});
    this.asks.hidden = !now;
    fill(this.body, 
      section(
        "State",
        null,
        h(
          "dl",
          { class: "facts" },
          row("Status", pill(state.status || "idle")),
          run && row("Run", h("span", {}, h("code", {}, run.run), ` ${run.parked ? "parked" : run.phase}`)),
          run && row("Turn", `${number(run.turns)}, ${duration(Math.max(frame.at - run.started_at, 0))} since it began`),
          row("Tokens", `${compact(usage.input_tokens || 0)} in${usage.cache_read_tokens ? ` (${compact(usage.cache_read_tokens)} cached)` : ""}, ${compact(usage.output_tokens || 0)} out`),
          row("Cost", state.cost ? money(state.cost) : ""),
          row("Agent", state.agent),
          row("Model", state.model),
          row("User", state.user),
          metadata.map(([name, value]) => row(name, value)),
        ),
      ),
      section(
        "In flight",
        (state.pending || []).length,
        (state.pending || []).length
          ? h("ul", { class: "items" }, state.pending.map((one) => h("li", {}, h("span", {}, one.what), h("code", { class: "hint" }, one.key))))
          : h("p", { class: "hint" }, "No work should be going on."),
      ),
      (state.queue || []).length > 0 &&
        section(
          "Queue",
          state.queue.length,
          h("ul", { class: "items" }, state.queue.map((one) => h("li", {}, h("span", {}, words(one.content).slice(0, 300)), one.due_at && h("span", { class: "hint" }, `due ${time(one.due_at)}`)))),
        ),
      (state.waiting_calls || []).length > 0 &&
        (!now || !this.view.app.source.live) &&
        section(
          "Waiting for a person",
          state.waiting_calls.length,
          h("ul", { class: "items" }, state.waiting_calls.map((one) => h("li", {}, one.question && h("p", {}, one.question), h("pre", { class: "exact" }, one.what)))),
        ),
      ...this.drawBeside(frame.position),
    );
  }

  drawBeside(position) {
    if (this.beside === null) return [section("Memory and breakers", null, h("p", { class: "hint" }, "Reading …"))];
    if (!this.beside.length) return [section("Memory and breakers", 0, h("p", { class: "hint" }, "The session has no memory, and the log no breaker."))];
    return this.beside.map((stream) => {
      const { items, version } = heldAt(stream, position);
      const breaker = stream.kind === "breaker";
      const list = [...items].slice(0, 200).map(([name, said]) => [h("dt", {}, name), h("dd", {}, breaker ? jsonValue(said) : said)]);
      const box = h(
        "details",
        { open: this.open.get(stream.stream) ?? items.size <= 12 },
        h("summary", {}, h("code", {}, stream.stream), h("span", { class: "hint" }, version ? ` v${version}` : " not yet")),
        items.size ? h("dl", { class: "facts held" }, list) : h("p", { class: "hint" }, "Empty."),
        items.size > 200 && h("p", { class: "hint" }, `and ${number(items.size - 200)} more`),
        !stream.complete && h("p", { class: "hint" }, "It is large; only some of its versions are told."),
        stream.damage && h("p", { class: "hint" }, stream.damage),
      );
      box.addEventListener("toggle", () => this.open.set(stream.stream, box.open));
      return section(breaker ? "Breaker" : "Memory", breaker ? null : items.size, box);
    });
  }
}

function jsonValue(said) {
  try {
    const value = JSON.parse(said);
    return value === null ? "–" : typeof value === "object" ? jsonText(value) : String(value);
  } catch {
    return said;
  }
}
