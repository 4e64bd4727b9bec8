// The list of sessions: filter, search, order, and pages.
import { ago, compact, debounced, empty, fill, h, money, number, pill, time, tokens } from "./dom.js";

const PER_PAGE = 50;
const ORDERS = { recent: "Most recent", name: "Name", cost: "Cost", events: "Most events" };

export class SessionList {
  constructor(app, parameters) {
    this.app = app;
    this.wanted = {
      text: parameters.get("text") || "",
      user: parameters.get("user") || "",
      status: parameters.get("status") || "",
      order: parameters.get("order") in ORDERS ? parameters.get("order") : "recent",
      first: Number(parameters.get("first")) || 0,
    };
    this.chosen = -1;
    this.search = h("input", {
      type: "search",
      placeholder: "Search name, user, metadata, first input",
      "aria-label": "Search sessions",
      value: this.wanted.text,
      oninput: debounced(120, () => this.want({ text: this.search.value, first: 0 })),
    });
    this.order = h(
      "select",
      { "aria-label": "Order", onchange: () => this.want({ order: this.order.value, first: 0 }) },
      Object.entries(ORDERS).map(([name, words]) => h("option", { value: name, selected: name === this.wanted.order }, words)),
    );
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Status" });
    this.list = h("div", { class: "list" });
    this.foot = h("div", { class: "foot" });
    app.show([["sessions", null]], h("div", { class: "page" }, h("div", { class: "tools" }, this.search, this.order), this.chips, this.list, this.foot));
    this.read();
  }

  want(more) {
    Object.assign(this.wanted, more);
    const said = new URLSearchParams(Object.entries(this.wanted).filter(([name, value]) => value && !(name === "order" && value === "recent")));
    this.app.place(`#/${said.size ? `?${said}` : ""}`);
    this.chosen = -1;
    this.read();
  }

  goes = (kind, _, parameters) => {
    if (kind !== "") return false;
    const given = Object.fromEntries(parameters);
    const same = Object.entries(this.wanted).every(([name, value]) => String(given[name] ?? (name === "order" ? "recent" : name === "first" ? 0 : "")) === String(value));
    return same;
  };

  grown = debounced(300, () => this.read());

  leave() {
    this.left = true;
    clearTimeout(this.again);
  }

  async read() {
    const asked = (this.asked = (this.asked || 0) + 1);
    let found;
    try {
      found = await this.app.source.sessions({ ...this.wanted, limit: PER_PAGE });
    } catch (error) {
      if (!this.left && asked === this.asked) this.app.fail(error);
      return;
    }
    if (this.left || asked !== this.asked) return;
    this.app.setLog(found);
    this.write(found);
    clearTimeout(this.again);
    if (!found.complete) this.again = setTimeout(() => this.read(), found.sessions.length ? 250 : 50);
  }

  write(found) {
    document.title = `${found.log.split("/").pop()} – Refold`;
    const on = new Set(this.wanted.status.split(",").filter(Boolean));
    const names = [...new Set([...Object.keys(found.statuses), ...on])];
    fill(this.chips, 
      ...names.map((name) =>
        h(
          "button",
          {
            class: `chip ${on.has(name) ? "on" : ""}`,
            "aria-pressed": on.has(name) ? "true" : "false",
            onclick: () => {
              on.has(name) ? on.delete(name) : on.add(name);
              this.want({ status: [...on].join(","), first: 0 });
            },
          },
          h("i", { class: `dot ${name}` }),
          name,
          h("b", {}, number(found.statuses[name] || 0)),
        ),
      ),
      this.wanted.user && h("button", { class: "chip on", onclick: () => this.want({ user: "", first: 0 }) }, `user ${this.wanted.user} ✕`),
    );
    if (!found.sessions.length) {
      fill(this.list, 
        found.total
          ? empty("No session fits", "Take a filter away, or search for something else.")
          : found.complete
            ? empty("No sessions yet", "A session appears here as soon as a runtime records its first input in this log.")
            : empty("Reading the log …", ""),
      );
    } else fill(this.list, this.table(found.sessions));
    const first = this.wanted.first;
    const last = first + found.sessions.length;
    fill(this.foot, 
      h("span", {}, found.found ? `${number(first + 1)}–${number(last)} of ${number(found.found)}` : "", found.complete ? "" : "  · reading …", found.uncounted ? `  · ${number(found.uncounted)} ended runs cannot be read; refold check says where` : ""),
      h("span", { class: "grow" }),
      found.found > PER_PAGE && h("button", { disabled: first === 0, onclick: () => this.want({ first: Math.max(first - PER_PAGE, 0) }) }, "Previous"),
      found.found > PER_PAGE && h("button", { disabled: last >= found.found, onclick: () => this.want({ first: first + PER_PAGE }) }, "Next"),
    );
    this.mark();
  }

  table(sessions) {
    const rows = sessions.map(({ listed, cost, usage }) => {
      const address = `#/session/${encodeURIComponent(listed.session)}`;
      return h(
        "tr",
        { onclick: (event) => event.target.closest("a,button") || (location.hash = address) },
        h(
          "td",
          { class: "what" },
          h("a", { href: address, class: "name", title: listed.session }, listed.session),
          listed.parent && h("span", { class: "tag" }, "child of ", listed.parent),
          listed.forked_from && h("span", { class: "tag" }, "fork of ", listed.forked_from.replace(/^session\//, "")),
          h("p", {}, listed.first_input.slice(0, 240)),
        ),
        h("td", {}, pill(listed.status)),
        h("td", { class: "user" }, listed.user && h("button", { class: "link", title: "Only this user's", onclick: () => this.want({ user: listed.user, first: 0 }) }, listed.user)),
        h("td", { class: "num" }, number(listed.version)),
        h("td", { class: "num" }, tokens(usage) ? compact(tokens(usage)) : "–"),
        h("td", { class: cost ? "num cost" : "num" }, money(cost)),
        h("td", { class: "when", title: time(listed.at) }, listed.at ? ago(listed.at) : ""),
      );
    });
    const heads = [["Session"], ["Status"], ["User", "user"], ["Events", "num"], ["Tokens", "num"], ["Cost", "num"], ["Last event", "when"]];
    return h("table", { class: "sessions" }, h("thead", {}, h("tr", {}, heads.map(([words, kind]) => h("th", { class: kind }, words)))), h("tbody", {}, rows));
  }

  mark() {
    const rows = [...this.list.querySelectorAll("tbody tr")];
    rows.forEach((row, place) => row.classList.toggle("chosen", place === this.chosen));
    rows[this.chosen]?.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const rows = this.list.querySelectorAll("tbody tr");
    if (event.key === "j" || event.key === "ArrowDown") this.chosen = Math.min(this.chosen + 1, rows.length - 1);
    else if (event.key === "k" || event.key === "ArrowUp") this.chosen = Math.max(this.chosen - 1, 0);
    else if (event.key === "Enter" && rows[this.chosen]) rows[this.chosen].querySelector("a").click();
    else return false;
    this.mark();
    return true;
  }
}
