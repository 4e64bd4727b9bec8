// Tokens, cost and latency of a session up to a version, by model and tool.
import { compact, counted, duration, empty, fill, h, money, number, svg } from "./dom.js";

const CALLS_SHOWN = 160;
const MANY = 4000;

const middle = (sorted, share) => (sorted.length ? sorted[Math.ceil(sorted.length * share) - 1] : 0);

export class Figures {
  constructor(view) {
    this.view = view;
    this.node = h("div", { class: "scroll figures" });
  }

  // Of many spans the figures are drawn when the slider rests.
  async draw(version) {
    clearTimeout(this.timer);
    if (this.view.spans.length < MANY) this.drawNow(version);
    else this.timer = setTimeout(() => this.drawNow(version), 120);
  }

  drawNow(version) {
    const spans = this.view.spans.filter((span) => span.ended <= version);
    const calls = spans.filter((span) => span.lane === "model");
    if (!calls.length) {
      fill(this.node, empty("No figures yet", "No model call had ended at this version."));
      return;
    }
    fill(this.node, 
      h("div", { class: "charts" }, this.tokens(calls.filter((span) => span.usage)), this.cost(calls)),
      this.table("Models", ["Model", "Calls", "Failed", "Tokens in", "Tokens out", "Cost"], groups(calls), (name, list) => [
        name,
        number(list.length),
        number(list.filter((span) => span.outcome !== "ok").length),
        compact(sum(list, (span) => span.usage?.input_tokens)),
        compact(sum(list, (span) => span.usage?.output_tokens)),
        money(sum(list, (span) => span.cost)),
      ]),
      this.bars("Latency by model", "Model", groups(calls)),
      this.bars("Latency by tool", "Tool", groups(spans.filter((span) => span.lane === "tool"))),
    );
  }

  tokens(calls) {
    const seen = calls.slice(-CALLS_SHOWN);
    const most = Math.max(1, ...seen.map((span) => (span.usage.input_tokens || 0) + (span.usage.output_tokens || 0)));
    const wide = 560 / Math.max(seen.length, 8);
    const width = wide * 0.8;
    const bars = seen.map((span, place) => {
      const [into, out] = [((span.usage.input_tokens || 0) / most) * 120, ((span.usage.output_tokens || 0) / most) * 120];
      const x = place * wide;
      return svg(
        "g",
        { class: "bar-group", onclick: () => this.view.go(span.ended) },
        svg("title", {}, `version ${span.ended}: ${number(span.usage.input_tokens || 0)} in, ${number(span.usage.output_tokens || 0)} out`),
        svg("rect", { x, y: 130 - into, width, height: into, class: "in" }),
        svg("rect", { x, y: 130 - into - out, width, height: out, class: "out" }),
      );
    });
    return h(
      "figure",
      {},
      h("figcaption", {}, "Tokens of each model call", h("span", { class: "hint" }, ` at most ${compact(most)}`, calls.length > seen.length ? `, the last ${seen.length} of ${number(calls.length)}` : "")),
      svg("svg", { viewBox: "0 0 560 136", role: "img", "aria-label": "Tokens of each model call" }, svg("line", { x1: 0, x2: 560, y1: 130, y2: 130, class: "axis" }), bars),
      h("p", { class: "legend" }, h("i", { class: "in" }), "in ", h("i", { class: "out" }), "out"),
    );
  }

  cost(calls) {
    const step = Math.ceil(calls.length / 300);
    let spent = 0;
    const points = [[0, 0]];
    calls.forEach((span, place) => {
      spent += span.cost || 0;
      if (place % step === 0 || place === calls.length - 1) points.push([place + 1, spent]);
    });
    const priced = spent > 0;
    const value = (point) => (priced ? point : 0);
    const line = points.map(([n, point], place) => `${place ? "L" : "M"}${(n / calls.length) * 555},${130 - (value(point) / (spent || 1)) * 118}`).join("");
    return h(
      "figure",
      {},
      h("figcaption", {}, "Cost so far", h("span", { class: "hint" }, priced ? ` ${money(spent)}` : " the agent has no prices")),
      svg("svg", { viewBox: "0 0 560 136", role: "img", "aria-label": "Cost so far" }, svg("line", { x1: 0, x2: 560, y1: 130, y2: 130, class: "axis" }), priced ? svg("path", { d: line, class: "line" }) : ""),
      h("p", { class: "legend" }, counted(calls.length, "model call")),
    );
  }

  bars(title, what, groups) {
    if (!groups.length) return h("section", {}, h("h2", {}, title), h("p", { class: "hint" }, "No call of a tool had ended at this version."));
    const rows = groups.map(([name, list]) => {
      const fine = list.filter((span) => span.outcome === "ok");
      const sorted = (fine.length ? fine : list).map((span) => span.ended_at - span.begun_at).sort((a, b) => a - b);
      return { name, count: list.length, failed: list.filter((span) => span.outcome !== "ok").length, half: middle(sorted, 0.5), most: middle(sorted, 0.95) };
    });
    const longest = Math.max(1, ...rows.map((row) => row.most));
    return h(
      "section",
      {},
      h("h2", {}, title),
      h(
        "table",
        { class: "figures-table" },
        h("thead", {}, h("tr", {}, [what, "Calls", "Failed", "Median", "95 %", ""].map((words, place) => h("th", { class: place && place < 5 ? "num" : "" }, words)))),
        h(
          "tbody",
          {},
          rows.map((row) =>
            h(
              "tr",
              {},
              h("td", {}, row.name),
              [number(row.count), number(row.failed), duration(row.half), duration(row.most)].map((words) => h("td", { class: "num" }, words)),
              h(
                "td",
                { class: "bar-cell" },
                svg(
                  "svg",
                  { viewBox: "0 0 200 14", preserveAspectRatio: "none" },
                  svg("rect", { x: 0, y: 3, height: 8, width: Math.max((row.most / longest) * 200, 1), class: "most" }),
                  svg("rect", { x: 0, y: 3, height: 8, width: Math.max((row.half / longest) * 200, 1), class: "half" }),
                ),
              ),
            ),
          ),
        ),
      ),
    );
  }

  table(title, heads, rows, cells) {
    return h(
      "section",
      {},
      h("h2", {}, title),
      h(
        "table",
        { class: "figures-table" },
        h("thead", {}, h("tr", {}, heads.map((words, place) => h("th", { class: place ? "num" : "" }, words)))),
        h("tbody", {}, rows.map(([name, list]) => h("tr", {}, cells(name, list).map((words, place) => h("td", { class: place ? "num" : "" }, words))))),
      ),
    );
  }
}

const sum = (list, of) => list.reduce((total, one) => total + (of(one) || 0), 0);

function groups(spans) {
  const found = new Map();
  for (const span of spans) {
    if (!found.has(span.name)) found.set(span.name, []);
    found.get(span.name).push(span);
  }
  return [...found].sort((a, b) => b[1].length - a[1].length);
}
