// One session: its conversation, time line, events, requests and figures at any of its versions.
import { compact, counted, debounced, fill, h, jsonText, money, number, pill, plain, time, tokens } from "./dom.js";
import { Conversation } from "./conversation.js";
import { EventList } from "./events.js";
import { Figures } from "./figures.js";
import { Frames } from "./frames.js";
import { RequestTab } from "./request.js";
import { StatePanel } from "./state.js";
import { Timeline } from "./timeline.js";

const TABS = [
  ["conversation", "Conversation"],
  ["timeline", "Time line"],
  ["events", "Events"],
  ["request", "Request"],
  ["figures", "Figures"],
];

const CAUSES_SHOWN = 100;

export class SessionView {
  constructor(app, name, parameters) {
    this.app = app;
    this.name = name;
    this.frames = new Frames(app.source, name);
    this.spans = [];
    this.head = null;
    this.version = 0;
    this.wantedVersion = Number(parameters.get("v")) || 0;
    this.tab = TABS.some(([tab]) => tab === parameters.get("tab")) ? parameters.get("tab") : "conversation";
    this.following = !this.wantedVersion;
    this.found = [];
    this.build();
    this.begin();
  }

  build() {
    this.about = h("div", { class: "about" });
    this.slider = h("input", {
      type: "range",
      min: 1,
      max: 1,
      value: 1,
      step: 1,
      "aria-label": "Version",
      oninput: () => this.go(Number(this.slider.value)),
    });
    this.where = h("output", { class: "where" });
    this.words = h("span", { class: "words" });
    this.search = h("input", { type: "search", placeholder: "Search this session", "aria-label": "Search this session", oninput: debounced(200, () => this.find()) });
    this.hits = h("span", { class: "hint" });
    this.search.addEventListener("keydown", (event) => event.key === "Enter" && this.nextFound(event.shiftKey ? -1 : 1));
    const step = (words, title, by) => h("button", { class: "icon", title, "aria-label": title, onclick: () => this.go(this.version + by) }, words);
    this.ends = h("button", { class: "follow", title: "To the last version, and follow (End)", onclick: () => this.go(this.head.last_version) }, "Latest");
    this.bar = h(
      "div",
      { class: "bar" },
      step("‹", "One version back (←)", -1),
      this.slider,
      step("›", "One version on (→)", 1),
      this.where,
      this.ends,
      h("button", { class: "words-button", title: "Show this event whole", onclick: () => this.showEvent(this.version) }, this.words),
    );
    this.tabs = h(
      "div",
      { class: "tabs", role: "tablist" },
      TABS.map(([tab, words], place) =>
        h("button", { role: "tab", id: `tab-${tab}`, "aria-selected": "false", title: `${words} (${place + 1})`, onclick: () => this.choose(tab) }, words),
      ),
      h("span", { class: "grow" }),
      this.search,
      this.hits,
    );
    this.progress = h("p", { class: "progress", role: "status", hidden: true });
    this.content = h("div", { class: "content", role: "tabpanel" });
    this.panel = new StatePanel(this);
    this.drawer = h("div", { class: "drawer", hidden: true });
    this.parts = {
      conversation: new Conversation(this),
      timeline: new Timeline(this),
      events: new EventList(this),
      request: new RequestTab(this),
      figures: new Figures(this),
    };
    const crumbs = this.app.source.live ? [["sessions", "#/"], [this.name, null]] : [[this.name, null]];
    this.app.show(
      crumbs,
      h("div", { class: "session" }, this.about, this.bar, this.progress, this.tabs, h("div", { class: "columns" }, this.content, this.panel.node), this.drawer),
    );
    document.title = plain(`${this.name} – Refold`);
  }

  async begin() {
    try {
      await this.readHead();
      await this.go(Math.min(this.wantedVersion || this.head.version, this.head.version), false);
      this.choose(this.tab);
      this.panel.readBeside().catch((error) => this.say(error.message));
      this.panel.readWaiting().catch(() => {});
      await this.readAll();
    } catch (error) {
      if (!this.left) this.app.fail(error);
    }
  }

  // Reading a long session takes the server a while; what it has read is shown meanwhile.
  async readAll() {
    while (!this.left) {
      this.spans.push(...(await this.app.source.spans(this.name, this.spans.length)));
      this.writeHead();
      if (this.spans.length < this.head.spans) continue;
      if (this.head.complete && this.head.related) break;
      this.say(this.head.complete ? "Looking for children and forks" : `Read ${number(this.head.version)} of ${number(this.head.last_version)} events`);
      await this.readHead();
      this.redrawPart();
    }
    this.say(this.head.damage ? `What follows version ${this.head.version} cannot be read: ${this.head.damage}` : "");
    if (this.following) await this.go(this.head.version, false);
    await this.frames.load(this.head.version);
    this.writeHead();
    this.redrawPart();
  }

  async readHead() {
    this.head = await this.app.source.session(this.name);
    this.app.setLog(this.head);
    this.slider.max = String(Math.max(this.head.version, 1));
  }

  grown = debounced(150, async () => {
    if (this.left || this.growing || !this.head) return;
    this.growing = true;
    try {
      const before = this.head.last_version;
      await this.readHead();
      if (this.head.last_version !== before || !this.head.complete) await this.readAll();
      await this.panel.readBeside();
      await this.panel.readWaiting();
    } catch (error) {
      this.say(error.message);
    } finally {
      this.growing = false;
    }
  });

  say(words) {
    fill(this.progress, words);
    this.progress.hidden = !words;
  }

  goes(kind, name, parameters) {
    if (kind !== "session" || name !== this.name) return false;
    const version = Number(parameters.get("v"));
    if (version && version !== this.version) this.go(version);
    const tab = parameters.get("tab");
    if (tab && tab !== this.tab) this.choose(tab);
    return true;
  }

  leave() {
    this.left = true;
    this.parts.timeline.leave();
  }

  // Shows the session as it was at a version: all parts at once, drawn once per frame of the screen.
  async go(version, byHand = true) {
    if (!this.head) return;
    const wanted = Math.min(Math.max(version, 1), Math.max(this.head.version, 1));
    if (byHand) this.following = wanted === this.head.last_version;
    this.version = wanted;
    this.slider.value = String(wanted);
    this.writeWhere();
    if (this.drawing) return this.drawing;
    this.drawing = new Promise((resolve) => requestAnimationFrame(resolve))
      .then(async () => {
        this.drawing = null;
        const asked = this.version;
        await this.frames.load(asked);
        if (asked === this.version && !this.left) await this.draw();
      })
      .catch((error) => this.say(error.message));
    return this.drawing;
  }

  async draw() {
    this.writeWhere();
    this.panel.draw(this.version);
    await this.parts[this.tab].draw(this.version);
    this.remember();
  }

  remember = debounced(300, () => {
    if (this.left) return;
    const said = new URLSearchParams({ ...(this.following ? {} : { v: this.version }), ...(this.tab === "conversation" ? {} : { tab: this.tab }) });
    this.app.place(`#/session/${encodeURIComponent(this.name)}${said.size ? `?${said}` : ""}`);
  });

  redraw() {
    this.parts[this.tab].draw(this.version);
  }

  redrawPart() {
    if (["timeline", "figures", "events"].includes(this.tab)) this.redraw();
  }

  writeWhere() {
    const frame = this.frames.frame(this.version);
    fill(this.where, h("b", {}, number(this.version)), ` / ${number(this.head.last_version)}`);
    fill(this.words, 
      ...(frame ? [h("time", {}, time(frame.at)), h("code", {}, frame.type), h("span", {}, frame.words)] : [h("span", { class: "hint" }, "…")]),
    );
    this.ends.hidden = this.version === this.head.last_version;
    const share = this.head.version > 1 ? ((this.version - 1) / (this.head.version - 1)) * 100 : 100;
    this.slider.style.setProperty("--share", `${share}%`);
  }

  writeHead() {
    const { head } = this;
    const last = this.frames.frame(head.version) ? this.frames.stateAt(head.version) : null;
    const to = (session, words) => h("a", { class: "tag", href: `#/session/${encodeURIComponent(session)}` }, words, session);
    const origin = head.forked_from && /^session\/(.*)@(\d+)$/s.exec(head.forked_from);
    fill(this.about, 
      h("h1", { title: this.name }, this.name),
      last ? pill(last.status) : "",
      ...(last
        ? [
            h("span", { class: "fact" }, counted(head.last_version, "event")),
            tokens(last.usage) ? h("span", { class: "fact" }, compact(tokens(last.usage)), " tokens") : "",
            last.cost ? h("span", { class: "fact" }, "cost ", money(last.cost)) : "",
            last.user ? h("span", { class: "fact" }, "user ", last.user) : "",
          ]
        : []),
      h("span", { class: "grow" }),
      ...(head.parent ? [to(head.parent, "parent ")] : []),
      ...(origin ? [h("a", { class: "tag", href: `#/session/${encodeURIComponent(origin[1])}?v=${origin[2]}` }, `fork of ${origin[1]} at ${origin[2]}`)] : []),
      ...head.children.slice(0, 8).map((child) => to(child.session, "child ")),
      ...head.forks.slice(0, 8).map((fork) => to(fork.session, "fork ")),
      ...(origin ? [h("a", { class: "tag", href: `#/compare?${new URLSearchParams({ left: origin[1], right: this.name })}` }, "compare with origin")] : []),
      this.app.source.live ? h("button", { onclick: () => this.fork() }, "Fork here") : "",
    );
  }

  choose(tab) {
    this.tab = tab;
    for (const [name] of TABS) {
      const on = name === tab;
      const button = this.tabs.querySelector(`#tab-${name}`);
      button.setAttribute("aria-selected", String(on));
      button.tabIndex = on ? 0 : -1;
    }
    fill(this.content, this.parts[tab].node);
    this.content.dataset.tab = tab;
    this.parts[tab].draw(this.version);
    this.remember();
  }

  async find() {
    const text = this.search.value.trim();
    this.found = text ? await this.app.source.search(this.name, text) : [];
    fill(this.hits, text ? (this.found.length ? `${number(this.found.length)} found` : "nothing found") : "");
    if (this.found.length) this.nextFound(1, true);
  }

  nextFound(by, stay = false) {
    if (!this.found.length) return;
    const place = this.found.findIndex((version) => version >= this.version + (stay ? 0 : by > 0 ? 1 : 0));
    const next = by > 0 ? (place < 0 ? 0 : place) : (place <= 0 ? this.found.length : place) - 1;
    fill(this.hits, `${number(next + 1)} of ${number(this.found.length)}`);
    this.go(this.found[next]);
  }

  async showEvent(version) {
    const close = h("button", { class: "icon", title: "Close (Esc)", "aria-label": "Close", onclick: () => (this.drawer.hidden = true) }, "✕");
    const body = h("div", { class: "scroll" }, h("p", { class: "hint" }, "Reading …"));
    fill(this.drawer, h("header", {}, h("b", {}, `Event ${version}`), h("span", { class: "grow" }), close), body);
    this.drawer.hidden = false;
    const { source } = this.app;
    try {
      let missing = "";
      const [event, causes] = await Promise.all([
        source.event(this.name, version).catch((error) => {
          if (source.live) throw error;
          missing = error.message;
          return this.frames.frame(version);
        }),
        source.why(`session/${this.name}@${version}`),
      ]);
      const text = jsonText(event);
      fill(body, 
        h("h3", {}, "Why"),
        h(
          "ol",
          { class: "causes" },
          causes.slice(0, CAUSES_SHOWN).map((cause) => {
            const own = /^session\/(.*)@(\d+)$/s.exec(cause.reference);
            const name = own && source.has(own[1]) ? h("a", { href: `#/session/${encodeURIComponent(own[1])}?v=${own[2]}` }, cause.reference) : h("code", {}, cause.reference);
            return h("li", {}, name, " ", h("code", {}, cause.type), h("span", {}, ` ${cause.words.slice(0, 300)}`));
          }),
        ),
        causes.length > CAUSES_SHOWN && h("p", { class: "hint" }, `and ${number(causes.length - CAUSES_SHOWN)} more, back to ${causes[causes.length - 1].reference}`),
        h("h3", {}, "Event"),
        missing && h("p", { class: "hint" }, missing),
        h("pre", { class: "json" }, text.slice(0, 200000), text.length > 200000 ? `… ${number(text.length - 200000)} more characters` : ""),
      );
    } catch (error) {
      fill(body, h("p", {}, error.message));
    }
  }

  fork() {
    // What was recorded together stays together: the place is the end of its batch.
    let at = this.version;
    while (this.frames.frame(at + 1)?.batch === this.frames.frame(at)?.batch && this.frames.frame(at + 1)) at += 1;
    const name = h("input", { type: "text", value: `${this.name}~${at}`, "aria-label": "Name of the fork" });
    const said = h("p", { class: "said", role: "status" });
    const make = async () => {
      try {
        const found = await this.app.source.fork({ session: this.name, at, name: name.value });
        if (found.done) {
          box.close();
          location.hash = `#/session/${encodeURIComponent(name.value)}`;
        } else fill(said, "It waits in the inbox for a runtime.");
      } catch (error) {
        fill(said, error.message);
      }
    };
    const box = h(
      "dialog",
      {},
      h("h2", {}, `Fork at version ${at}`),
      h("p", { class: "hint" }, "A new session that goes on from here. What tools did before is not done again."),
      name,
      h("div", { class: "buttons" }, h("button", { class: "primary", onclick: make }, "Fork"), h("button", { onclick: () => box.close() }, "Cancel")),
      said,
    );
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
  }

  // The version at which the turn before this one ended, or the one after it.
  async turn(by) {
    const asked = this.spans.filter((span) => span.lane === "model").map((span) => span.ended);
    const next = by > 0 ? asked.find((version) => version > this.version) : asked.filter((version) => version < this.version).pop();
    await this.go(next ?? (by > 0 ? this.head.version : 1));
  }

  key(event) {
    if (!this.head) return false;
    const tab = TABS[Number(event.key) - 1];
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (tab) this.choose(tab[0]);
    else if (by && event.target.role === "tab") {
      const place = TABS.findIndex(([name]) => name === this.tab) + by;
      this.choose(TABS[(place + TABS.length) % TABS.length][0]);
      this.tabs.querySelector("[aria-selected=true]").focus();
    }
    else if (by) event.shiftKey ? this.turn(by) : this.go(this.version + by);
    else if (event.key === "Home") this.go(1);
    else if (event.key === "End") this.go(this.head.version);
    else if (event.key === "j") this.go(this.version + 1);
    else if (event.key === "k") this.go(this.version - 1);
    else if (event.key === "Enter" && event.target === document.body) this.showEvent(this.version);
    else if (event.key === "Escape") {
      if (!this.drawer.hidden) this.drawer.hidden = true;
      else if (this.app.source.live) location.hash = "#/";
    } else return false;
    return true;
  }
}
