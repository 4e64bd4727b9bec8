// The events of a session as a list of any length, of which only the rows in sight are there.
import { fill, h, time } from "./dom.js";

const ROW = 28;

export class EventList {
  constructor(view) {
    this.view = view;
    this.space = h("div", { class: "space" });
    this.rows = h("div", { class: "rows" });
    this.space.append(this.rows);
    this.node = h("div", { class: "scroll events", onscroll: () => this.window() }, this.space);
  }

  async draw(version) {
    this.space.style.height = `${this.view.head.version * ROW}px`;
    const place = (version - 1) * ROW;
    const { scrollTop, clientHeight } = this.node;
    if (place < scrollTop || place + ROW > scrollTop + clientHeight) this.node.scrollTop = place - clientHeight / 2;
    await this.window();
  }

  async window() {
    const first = Math.max(Math.floor(this.node.scrollTop / ROW) - 10, 0) + 1;
    const last = Math.min(first + Math.ceil((this.node.clientHeight || 600) / ROW) + 20, this.view.head.version);
    const asked = (this.asked = (this.asked || 0) + 1);
    for (let version = first; version <= last + 499; version += 500) await this.view.frames.load(Math.min(version, last));
    if (asked !== this.asked) return;
    const rows = [];
    for (let version = first; version <= last; version += 1) {
      const frame = this.view.frames.frame(version);
      if (!frame) continue;
      rows.push(
        h(
          "button",
          {
            class: `row ${version === this.view.version ? "here" : ""} ${frame.version === frame.batch ? "first" : ""}`,
            onclick: () => (this.view.go(version), this.view.showEvent(version)),
          },
          h("span", { class: "num" }, version),
          h("time", {}, time(frame.at, false)),
          h("code", { class: `type ${kindOf(frame.type)}` }, frame.type),
          h("span", { class: "words" }, frame.words),
        ),
      );
    }
    this.rows.style.transform = `translateY(${(first - 1) * ROW}px)`;
    fill(this.rows, ...rows);
  }
}

export function kindOf(type) {
  if (/failed|tripped|parked/.test(type)) return "bad";
  if (/^model|^request|^context/.test(type)) return "model";
  if (/^tool|^question|approval/.test(type)) return "tool";
  if (/^run/.test(type)) return "run";
  return "";
}
