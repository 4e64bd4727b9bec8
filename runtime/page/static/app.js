// The page: which of its views is shown, what all of them have in common, and the keys that work everywhere.
import { empty, fill, h, number, parsed } from "./dom.js";
import { EmbeddedSource, ServerSource, takenToken } from "./source.js";
import { SessionList } from "./sessions.js";
import { SessionView } from "./session.js";
import { Comparison } from "./compare.js";
import { WaitingView } from "./people.js";

const KEYS = [
  ["← →", "one version back, or on"],
  ["Shift ← →", "one turn back, or on"],
  ["Home End", "the first version, the last one"],
  ["1 … 5", "conversation, time line, events, request, figures"],
  ["/", "search"],
  ["j k Enter", "next and previous in a list, open"],
  ["Esc", "close, or back to the list"],
  ["t", "light or dark"],
  ["?", "these keys"],
];

class App {
  constructor(root) {
    this.root = root;
    this.view = null;
    const embedded = document.getElementById("refold-data");
    this.source = embedded ? new EmbeddedSource(parsed(embedded.textContent)) : new ServerSource(takenToken());
    this.crumbs = h("nav", { class: "crumbs", "aria-label": "Where you are" });
    this.state = h("span", { class: "live", title: "" });
    this.waiting = h("a", { class: "quiet", href: "#/waiting" }, "Waiting");
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.top = h(
      "header",
      { class: "top" },
      h("a", { class: "brand", href: "#/" }, "refold"),
      this.crumbs,
      h("span", { class: "grow" }),
      this.state,
      this.source.live && this.waiting,
      h("button", { class: "icon", title: "Light or dark (t)", "aria-label": "Light or dark", onclick: () => this.turnTheme() }, "◐"),
      h("button", { class: "icon", title: "Keys (?)", "aria-label": "Keys", onclick: () => this.showKeys() }, "?"),
    );
    fill(this.root, this.top, this.main);
    const theme = this.kept("refold-theme");
    if (theme) document.documentElement.dataset.theme = theme;
    window.addEventListener("hashchange", () => this.route());
    // Within a frame of a notebook a link would lead to a place in the notebook.
    if (location.protocol === "about:")
      document.addEventListener("click", (event) => {
        const link = event.target.closest("a[href^='#']");
        if (!link) return;
        event.preventDefault();
        location.hash = link.getAttribute("href");
      });
    document.addEventListener("keydown", (event) => this.key(event));
    this.route();
    if (this.source.live) this.follow();
    else this.setLog({ owned: false, waiting: 0 });
  }

  // A file that is opened from disk may have no storage.
  kept(name, value) {
    try {
      if (value !== undefined) localStorage.setItem(name, value);
      return localStorage.getItem(name);
    } catch {
      return null;
    }
  }

  // What is shown stands in the address, so that it can be sent to others; a frame of a notebook has none.
  place(address) {
    if (location.protocol !== "about:") history.replaceState(null, "", address);
  }

  turnTheme() {
    const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark");
    const now = document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    this.kept("refold-theme", document.documentElement.dataset.theme);
    this.view?.redraw?.();
    return dark;
  }

  showKeys() {
    const box = h(
      "dialog",
      { class: "keys" },
      h("h2", {}, "Keys"),
      h("dl", {}, KEYS.map(([keys, what]) => [h("dt", {}, keys.split(" ").map((one) => h("kbd", {}, one))), h("dd", {}, what)])),
      h("button", { onclick: () => box.close() }, "Close"),
    );
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
  }

  route() {
    const address = location.hash.replace(/^#/, "") || "/";
    const [path, query = ""] = address.split("?");
    const parameters = new URLSearchParams(query);
    const [, kind = "", ...rest] = path.split("/");
    const name = rest.map(decodeURIComponent).join("/");
    if (this.view?.goes?.(kind, name, parameters)) return;
    this.view?.leave?.();
    try {
      if (!this.source.live && (kind === "" || kind === "waiting")) this.view = this.beginOfFile();
      else if (kind === "session") this.view = new SessionView(this, name, parameters);
      else if (kind === "compare") this.view = new Comparison(this, parameters.get("left") || "", parameters.get("right") || "");
      else if (kind === "waiting") this.view = new WaitingView(this);
      else this.view = new SessionList(this, parameters);
    } catch (error) {
      this.fail(error);
    }
  }

  beginOfFile() {
    const { sessions, reports } = this.source.data;
    if (sessions.length === 1 && !reports?.length) return new SessionView(this, sessions[0].head.session, new URLSearchParams());
    return new Comparison(this, "", "");
  }

  show(crumbs, ...content) {
    fill(this.crumbs, 
      ...crumbs.flatMap(([words, address]) => [h("span", { class: "slash" }, "/"), address ? h("a", { href: address }, words) : h("span", {}, words)]),
    );
    fill(this.main, ...content);
  }

  fail(error) {
    if (error?.name === "AbortError") return;
    if (error?.status === 401) {
      this.show([], empty("This page needs its token", "Open the address that refold inspect wrote to the terminal; it is valid until that ends."));
      return;
    }
    this.show([["not shown", null]], empty("This cannot be shown", error?.message || String(error), h("p", {}, h("a", { href: "#/" }, "All sessions"))));
  }

  // Whether a runtime owns the log, and how many of its calls need a decision or an answer.
  setLog({ owned, waiting }) {
    fill(this.waiting, "Waiting", waiting > 0 && h("b", { class: "waits" }, number(waiting)));
    this.state.className = owned ? "live on" : "live";
    fill(this.state, owned ? "live" : this.source.live ? "no runtime" : "file");
    this.state.title = owned ? "A runtime owns the log; the page follows it." : this.source.live ? "No runtime owns the log at this moment." : "";
  }

  // Waits for events behind those that are known, and has the view look at them.
  async follow() {
    let position = -1;
    let pause = 500;
    for (;;) {
      try {
        const found = await this.source.changes(Math.max(position, 0));
        this.setLog(found);
        if (position >= 0 && found.position > position) this.view?.grown?.();
        position = found.position;
        pause = 500;
      } catch (error) {
        if (error.status === 401) return;
        this.state.className = "live lost";
        fill(this.state, "server gone");
        await new Promise((resolve) => setTimeout(resolve, pause));
        pause = Math.min(pause * 2, 10000);
      }
    }
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const writes = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "range";
    if (writes) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "?") this.showKeys();
    else if (event.key === "t") this.turnTheme();
    else if (event.key === "/") this.main.querySelector("input[type=search]")?.focus();
    else if (!this.view?.key?.(event)) return;
    event.preventDefault();
  }
}

window.refold = new App(document.getElementById("app"));
