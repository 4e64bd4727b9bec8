// Two sessions beside each other, and reports of a replay or a scenario with both sides of what differs.
import { compact, counted, empty, fill, h, jsonText, money, number, pill, plain, tokens } from "./dom.js";
import { entryView } from "./conversation.js";
import { Frames } from "./frames.js";
import { lineDifference } from "./request.js";

const ENTRIES = 200;

// Words with [-what was-] and {+what is+} in them.
export function marked(words) {
  const parts = [];
  let from = 0;
  for (const found of words.matchAll(/\[-([\s\S]*?)-\]|\{\+([\s\S]*?)\+\}/g)) {
    parts.push(words.slice(from, found.index), found[1] !== undefined ? h("del", {}, found[1]) : h("ins", {}, found[2]));
    from = found.index + found[0].length;
  }
  parts.push(words.slice(from));
  return parts;
}

export class Comparison {
  constructor(app, left, right) {
    this.app = app;
    this.names = [left, right];
    this.page = h("div", { class: "page wide" });
    app.show(app.source.live ? [["sessions", "#/"], ["compare", null]] : [["report", null]], this.page);
    this.read();
  }

  goes = () => false;

  leave() {
    this.left = true;
  }

  async read() {
    try {
      if (!this.app.source.live) fill(this.page, ...this.ofFile());
      else fill(this.page, ...(await this.ofSessions()));
    } catch (error) {
      if (!this.left) this.app.fail(error);
    }
  }

  ofFile() {
    const { sessions, reports = [] } = this.app.source.data;
    return [
      ...reports.map((report) => this.report(report)),
      sessions.length > 0 && h("h2", {}, "Sessions in this file"),
      h("ul", { class: "items" }, sessions.map(({ head }) => h("li", {}, h("a", { href: `#/session/${encodeURIComponent(head.session)}` }, head.session), h("span", { class: "hint" }, `${number(head.last_version)} events`)))),
    ];
  }

  report(report) {
    const side = (value) => (typeof value === "string" ? value : jsonText(value));
    const { name, version } = report.place || {};
    return h(
      "section",
      { class: "report" },
      h("h1", {}, report.title, " ", pill(report.verdict)),
      (report.words || []).map((words) => h("p", {}, words)),
      name && this.app.source.data?.sessions.some((one) => one.head.session === name) && h("p", {}, h("a", { href: `#/session/${encodeURIComponent(name)}?v=${version}` }, `Show ${name} at version ${version}`)),
      report.sides &&
        h(
          "div",
          { class: "sides" },
          h("div", {}, h("h3", {}, report.sides[0].name), h("pre", { class: "json" }, side(report.sides[0].value))),
          h("div", {}, h("h3", {}, report.sides[1].name), h("pre", { class: "json" }, side(report.sides[1].value))),
        ),
      report.sides && h("h3", {}, "What differs"),
      report.sides && lineDifference(side(report.sides[0].value), side(report.sides[1].value)),
      report.commands && [h("h3", {}, "Look further"), h("pre", { class: "json" }, report.commands.join("\n"))],
    );
  }

  async ofSessions() {
    const found = await this.app.source.diff(...this.names);
    const sides = await Promise.all(this.names.map((name, place) => this.side(name, found, place ? "right" : "left")));
    document.title = plain(`${this.names.join(" | ")} – Refold`);
    return [
      h("h1", {}, "Two sessions"),
      h("p", { class: "hint" }, found.shared ? `They share their first ${counted(found.shared, "event")}.` : "They share no event.", ` ${counted(found.found, "difference")}.`),
      found.parts.length
        ? h(
            "table",
            { class: "parts" },
            h("thead", {}, h("tr", {}, ["What", "Left", "Right", "Difference"].map((words) => h("th", {}, words)))),
            h(
              "tbody",
              {},
              found.parts.slice(0, 100).map((part) =>
                h(
                  "tr",
                  {},
                  h("td", {}, part.what, part.path ? h("code", {}, ` ${part.path}`) : ""),
                  [part.left, part.right].map((version, place) => h("td", {}, version ? h("a", { href: `#/session/${encodeURIComponent(this.names[place])}?v=${version}` }, `v${version}`) : "–")),
                  h("td", { class: "diff-words" }, marked(part.words.slice(0, 4000))),
                ),
              ),
            ),
          )
        : empty("Nothing differs", "What was said, called, returned and paid is the same."),
      h("div", { class: "sides" }, sides),
    ];
  }

  async side(name, found, which) {
    const told = found[which];
    const differs = new Set(found.parts.map((part) => part[which]).filter(Boolean));
    const frames = new Frames(this.app.source, name);
    const head = await this.app.source.session(name);
    const { entries } = await frames.entriesUntil(Math.min(head.version, told.version), ENTRIES);
    const view = { app: this.app, name, go: (version) => (location.hash = `#/session/${encodeURIComponent(name)}?v=${version}`) };
    return h(
      "div",
      { class: "conversation" },
      h("h2", {}, h("a", { href: `#/session/${encodeURIComponent(name)}` }, name), " ", pill(told.status)),
      h("p", { class: "hint" }, `${counted(told.turns, "turn")}, ${counted(told.calls, "call")}, ${compact(tokens(told.usage))} tokens, cost ${money(told.cost)}`),
      entries
        .filter((entry) => entry.version > found.shared)
        .map((entry) => {
          const node = entryView(view, entry);
          if (differs.has(entry.version)) node.classList.add("differs");
          return node;
        }),
    );
  }

  key(event) {
    if (event.key !== "Escape") return false;
    history.back();
    return true;
  }
}
