// A session on a time line, to scale: a lane for runs, for the model, for each tool, for what people and retries took,
// for children, and standstills across all of them.
import { duration, fill, h, number, time } from "./dom.js";

const ROW = 24;
const GAP = 6;
const TOP = 34;
const NAMES = { run: "Runs", model: "Model", person: "People", retry: "Retries", child: "Children" };
const ROWS_MAX = 4;

export class Timeline {
  constructor(view) {
    this.view = view;
    this.canvas = h("canvas", { role: "img", "aria-label": "Time line; the events tab lists the same", tabindex: "0" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.idle = h("input", { type: "checkbox", onchange: () => (this.axis = null, this.window = null, this.paint()) });
    const zoom = (words, title, by) => h("button", { class: "icon", title, "aria-label": title, onclick: () => this.zoom(by) }, words);
    this.range = h("span", { class: "hint" });
    this.node = h(
      "div",
      { class: "timeline" },
      h("div", { class: "tools" }, zoom("−", "Zoom out (-)", 1.6), zoom("+", "Zoom in (+)", 1 / 1.6), h("button", { onclick: () => ((this.window = null), this.paint()) }, "All"), h("label", {}, this.idle, " idle time to scale"), h("span", { class: "grow" }), this.range),
      h("div", { class: "chart" }, this.canvas, this.tip),
      h("p", { class: "legend" }, h("span", {}, "▾ an input, or another moment"), h("span", {}, h("i", { class: "hatched" }), "no runtime had the run"), h("span", {}, h("i", { class: "pale" }), "after this version")),
    );
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("keydown", (event) => {
      if (event.key !== "+" && event.key !== "-") return;
      this.zoom(event.key === "+" ? 1 / 1.6 : 1.6);
      event.stopPropagation();
    });
    this.resized = new ResizeObserver(() => this.paint());
    this.resized.observe(this.node);
  }

  leave = () => this.resized.disconnect();

  async draw() {
    this.paint();
  }

  // Lanes, with spans that overlap in rows below each other.
  lanes() {
    const { spans, head } = this.view;
    const key = `${spans.length}/${head.open_spans.length}/${head.children.length}/${head.version}`;
    if (this.key === key) return this.cached;
    const last = Math.max(...[0, ...spans.slice(-200).map((span) => span.ended_at), ...head.open_spans.map((span) => span.begun_at)]);
    const now = Math.max(last, this.view.frames.frame(head.version)?.at || 0);
    const all = [...spans, ...head.open_spans.map((span) => ({ ...span, open: true, ended_at: Math.max(now, span.begun_at) }))];
    const children = head.children.map((child) => ({ lane: "child", name: child.session, begun: 0, begun_at: child.began_at, ended: 0, ended_at: child.at, outcome: child.status, child: true }));
    const groups = new Map([["run", []], ["model", []]]);
    const marks = [];
    const downs = [];
    for (const span of [...all, ...children].sort((a, b) => a.begun_at - b.begun_at)) {
      if (span.lane === "mark") marks.push(span);
      else if (span.lane === "down") downs.push(span);
      else {
        const name = span.lane === "tool" ? `tool ${span.name}` : span.lane;
        if (!groups.has(name)) groups.set(name, []);
        groups.get(name).push(span);
      }
    }
    const order = (name) => (name === "run" ? 0 : name === "model" ? 1 : name.startsWith("tool ") ? 2 : name === "person" ? 3 : name === "retry" ? 4 : 5);
    const lanes = [...groups].sort((a, b) => order(a[0]) - order(b[0])).map(([name, list]) => packed(name, list));
    let top = TOP;
    for (const lane of lanes) {
      lane.top = top;
      top += lane.rows * ROW + GAP;
    }
    this.key = key;
    this.axis = null;
    return (this.cached = { lanes, marks, downs, height: top + 8, now });
  }

  // Where nothing goes on for long, the axis is cut, unless all is to scale.
  scale() {
    if (this.axis) return this.axis;
    const { lanes, marks, downs, now } = this.lanes();
    const busy = [];
    for (const { begun_at: begin, ended_at: end } of [...lanes[0].spans, ...lanes.slice(1).flatMap((lane) => (lanes[0].spans.length ? [] : lane.spans)), ...marks]) busy.push([begin, end || now]);
    busy.sort((a, b) => a[0] - b[0]);
    const joined = [];
    for (const [begin, end] of busy) {
      const before = joined[joined.length - 1];
      if (before && begin <= before[1]) before[1] = Math.max(before[1], end);
      else joined.push([begin, end]);
    }
    if (!joined.length) joined.push([now - 1e6, now]);
    const total = joined.reduce((sum, [begin, end]) => sum + end - begin, 0) || 1000;
    const most = this.idle.checked ? Infinity : Math.max(total * 0.05, 1000);
    const points = [];
    const cuts = [];
    let at = 0;
    joined.forEach(([begin, end], place) => {
      if (place) {
        const gap = begin - joined[place - 1][1];
        const width = gap > most ? total * 0.01 : gap;
        if (gap > most) cuts.push([at + width / 2, gap]);
        at += width;
      }
      points.push([begin, at]);
      at += end - begin;
      points.push([end, at]);
    });
    this.axis = { points, cuts, total: Math.max(at, 1) };
    for (const { spans } of [...lanes, { spans: marks }, { spans: downs }])
      for (const span of spans) [span.from, span.to] = [this.place(span.begun_at), this.place(span.ended_at)];
    return this.axis;
  }

  place(moment) {
    const { points } = this.scale();
    let low = 0;
    let high = points.length - 1;
    if (moment <= points[0][0]) return points[0][1];
    if (moment >= points[high][0]) return points[high][1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] <= moment) low = middle;
      else high = middle;
    }
    const [[t0, x0], [t1, x1]] = [points[low], points[high]];
    return t1 === t0 ? x1 : x0 + ((moment - t0) / (t1 - t0)) * (x1 - x0);
  }

  moment(place) {
    const { points } = this.scale();
    let at = points.findIndex(([, x]) => x >= place);
    if (at < 0) at = points.length - 1;
    if (at === 0) return points[0][0];
    const [[t0, x0], [t1, x1]] = [points[at - 1], points[at]];
    return x1 === x0 ? t0 : t0 + ((place - x0) / (x1 - x0)) * (t1 - t0);
  }

  paint() {
    if (!this.canvas.isConnected || !this.view.head) return;
    const { lanes, marks, downs, height } = this.lanes();
    const scale = this.scale();
    const width = this.node.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    this.gutter = width < 560 ? 84 : 150;
    const [from, to] = (this.window ||= [-scale.total * 0.01, scale.total * 1.01]);
    const style = getComputedStyle(this.node);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    const g = this.canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.clearRect(0, 0, width, height);
    g.font = `12px ${style.fontFamily}`;
    g.textBaseline = "middle";
    const plot = width - this.gutter - 8;
    const x = (place) => this.gutter + ((place - from) / (to - from)) * plot;
    this.x = x;
    this.inverse = (pixel) => from + ((pixel - this.gutter) / plot) * (to - from);
    const frame = this.view.frames.frame(this.view.version);
    this.grid(g, x, from, to, width, height, color);
    g.save();
    g.beginPath();
    g.rect(this.gutter, 0, plot + 8, height);
    g.clip();
    let told = -Infinity;
    let drawn = -Infinity;
    for (const [place, gap] of scale.cuts) {
      const at = x(place);
      if (at < this.gutter || at > width || at - drawn < 3) continue;
      drawn = at;
      g.strokeStyle = color("line");
      g.setLineDash([2, 3]);
      line(g, at, TOP - 4, at, height);
      g.setLineDash([]);
      if (at - told > 70) {
        told = at;
        g.fillStyle = color("muted");
        g.textAlign = "center";
        g.fillText(`⋯ ${duration(gap)}`, at, TOP - 10);
        g.textAlign = "left";
      }
    }
    for (const span of downs) {
      const [left, right] = [x(span.from), x(span.to)];
      if (right < this.gutter || left > width) continue;
      hatch(g, left, TOP, Math.max(right - left, 3), height - TOP - 8, color("bad"));
      if (right - left < 120) continue;
      g.fillStyle = color("surface");
      g.fillRect(left + 4, height - 26, g.measureText("stopped, resumed").width + 8, 16);
      g.fillStyle = color("bad");
      g.fillText("stopped, resumed", left + 8, height - 14);
    }
    for (const lane of lanes) this.bars(g, lane, x, width, color);
    let marked = -Infinity;
    for (const mark of marks) {
      const at = x(mark.from);
      if (at < this.gutter || at > width || at - marked < 0.75) continue;
      marked = at;
      g.globalAlpha = mark.begun > this.view.version ? 0.3 : 1;
      g.fillStyle = mark.name === "input" ? color("accent") : color("warn");
      g.beginPath();
      g.moveTo(at - 4, TOP - 6);
      g.lineTo(at + 4, TOP - 6);
      g.lineTo(at, TOP);
      g.fill();
      g.globalAlpha = 1;
    }
    if (frame) {
      const at = x(this.place(frame.at));
      g.strokeStyle = color("text");
      g.lineWidth = 1.5;
      line(g, at, 16, at, height);
      g.fillStyle = color("text");
      g.beginPath();
      g.arc(at, 16, 4, 0, 7);
      g.fill();
    }
    g.restore();
    g.fillStyle = color("muted");
    for (const lane of lanes) {
      const words = lane.name.startsWith("tool ") ? lane.name.slice(5) : NAMES[lane.name] || lane.name;
      g.fillText(cut(g, words, this.gutter - 14), 4, lane.top + ROW / 2);
    }
    this.range.textContent = `${duration(Math.max(this.moment(Math.min(to, scale.total)) - this.moment(Math.max(from, 0)), 0))} in view`;
  }

  bars(g, lane, x, width, color) {
    const until = new Array(lane.rows).fill(-Infinity);
    const now = this.view.frames.frame(this.view.version)?.at ?? Infinity;
    for (const span of lane.spans) {
      const left = x(span.from);
      const right = Math.max(x(span.to), left + 1.5);
      if (right < this.gutter) continue;
      if (left > width) break;
      if (right - left < 2 && left < until[span.row] + 0.75) continue;
      until[span.row] = right;
      const top = lane.top + span.row * ROW + 2;
      const future = span.child ? span.begun_at > now : span.begun > this.view.version;
      const goesOn = span.open || span.ended > this.view.version;
      g.globalAlpha = future ? 0.25 : 1;
      g.fillStyle = color(tone(span));
      rounded(g, left, top, right - left, ROW - 6);
      if (goesOn && !future) {
        g.globalAlpha = 0.35;
        hatch(g, left, top, right - left, ROW - 6, color("surface"));
      }
      g.globalAlpha = 1;
      if (right - left > 44 && !future) {
        g.fillStyle = color("on-bar");
        const seen = Math.max(left, this.gutter);
        const took = duration(span.ended_at - span.begun_at);
        const named = ["run", "model", "child"].includes(span.lane) ? `${span.name} ` : "";
        const words = goesOn ? `${named}open` : span.lane === "run" || (span.outcome && span.outcome !== "ok") ? named + span.outcome : `${named}${named && "· "}${took}`;
        g.fillText(cut(g, words, right - seen - 10), seen + 5, top + (ROW - 6) / 2 + 0.5);
      }
      g.globalAlpha = 1;
    }
  }

  grid(g, x, from, to, width, height, color) {
    const plot = width - this.gutter;
    const count = Math.max(Math.floor(plot / 130), 2);
    g.fillStyle = color("muted");
    g.strokeStyle = color("line");
    g.lineWidth = 1;
    const spread = this.moment(to) - this.moment(from);
    let before = "";
    for (let n = 0; n <= count; n += 1) {
      const place = from + ((to - from) * (n + 0.15)) / count;
      const at = Math.round(x(place)) + 0.5;
      if (at > width - 40) break;
      line(g, at, 20, at, height);
      const words = time(Math.round(this.moment(place)));
      const date = words.slice(0, 10);
      g.fillText(`${date !== before && spread > 3600e6 * 12 ? `${date} ` : ""}${words.slice(11, spread < 5e6 ? 23 : 19)}`, at + 4, 8);
      before = date;
    }
  }

  zoom(by, around) {
    const [from, to] = this.window || [0, this.scale().total];
    const middle = around ?? (from + to) / 2;
    const total = this.scale().total;
    const next = [middle - (middle - from) * by, middle + (to - middle) * by];
    if (next[1] - next[0] > total * 1.1) this.window = [-total * 0.01, total * 1.01];
    else if (next[1] - next[0] > 20) this.window = next;
    this.paint();
  }

  wheel(event) {
    if (!this.inverse) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
      const by = ((event.deltaX || event.deltaY) / this.node.clientWidth) * (this.window[1] - this.window[0]);
      this.window = [this.window[0] + by, this.window[1] + by];
      this.paint();
    } else this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.inverse(event.offsetX));
  }

  press(event) {
    const [from, to] = this.window;
    const begin = event.clientX;
    let moved = false;
    const move = (next) => {
      const by = ((next.clientX - begin) / (this.node.clientWidth - this.gutter)) * (to - from);
      if (Math.abs(next.clientX - begin) > 3) moved = true;
      if (moved) {
        this.window = [from - by, to - by];
        this.paint();
      }
    };
    const end = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", end);
      if (!moved) this.click(event);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", end);
  }

  at(event) {
    const { lanes, marks, downs } = this.lanes();
    const { offsetX: px, offsetY: py } = event;
    if (!this.x || px < this.gutter) return null;
    const within = (span, slack) => px >= this.x(span.from) - slack && px <= Math.max(this.x(span.to), this.x(span.from) + 2) + slack;
    for (const lane of lanes) {
      if (py < lane.top || py > lane.top + lane.rows * ROW) continue;
      const row = Math.floor((py - lane.top) / ROW);
      const found = lane.spans.filter((span) => span.row === row && within(span, 1));
      if (found.length) return found[found.length - 1];
    }
    if (py < TOP + 4) return marks.find((mark) => within(mark, 5)) || null;
    return downs.find((span) => within(span, 0)) || null;
  }

  click(event) {
    const span = this.at(event);
    if (span?.child) location.hash = `#/session/${encodeURIComponent(span.name)}`;
    else if (span) this.view.go(span.ended && span.ended <= this.view.head.version ? span.ended : span.begun);
    else if (event.offsetX > this.gutter) this.view.go(this.versionAt(this.moment(this.inverse(event.offsetX))));
  }

  // The last version whose event is not behind a moment, as far as spans tell.
  versionAt(moment) {
    let version = 1;
    for (const span of this.view.spans) {
      if (span.begun_at <= moment) version = Math.max(version, span.begun);
      if (span.ended_at <= moment) version = Math.max(version, span.ended);
    }
    return version;
  }

  hover(event) {
    const span = this.at(event);
    this.canvas.style.cursor = span ? "pointer" : "default";
    this.tip.hidden = !span;
    if (!span) return;
    const lane = span.lane === "tool" ? `tool ${span.name}` : span.lane === "down" ? "nothing was recorded until a runtime resumed the run" : span.lane === "mark" ? span.name : `${NAMES[span.lane] || span.lane} ${span.name}`;
    fill(this.tip, 
      h("b", {}, lane),
      h("p", {}, `${span.open ? "not ended" : span.outcome || ""} ${span.lane === "mark" ? "" : duration(span.ended_at - span.begun_at)}`),
      h("p", { class: "hint" }, time(span.begun_at)),
      span.usage ? h("p", { class: "hint" }, `${number(span.usage.input_tokens || 0)} tokens in, ${number(span.usage.output_tokens || 0)} out`) : "",
      span.begun ? h("p", { class: "hint" }, span.ended ? `versions ${span.begun} to ${span.ended}` : `since version ${span.begun}`) : "",
    );
    this.tip.style.left = `${Math.min(event.offsetX + 12, this.node.clientWidth - 220)}px`;
    this.tip.style.top = `${event.offsetY + 16}px`;
  }
}

function packed(name, spans) {
  const until = [];
  for (const span of spans) {
    let row = until.findIndex((end) => end <= span.begun_at);
    if (row < 0) row = until.length < ROWS_MAX ? until.push(0) - 1 : until.indexOf(Math.min(...until));
    until[row] = Math.max(until[row], span.ended_at);
    span.row = row;
  }
  return { name, spans, rows: Math.max(until.length, 1) };
}

const FINE = new Set(["ok", "completed", "allowed", "answered"]);

function tone(span) {
  if (span.outcome === "cancelled") return "cancelled";
  if (span.outcome && !FINE.has(span.outcome) && !span.child) return "bad";
  return { run: "run", model: "model", tool: "tool", person: "person", retry: "warn", child: "accent" }[span.lane] || "tool";
}

function line(g, x0, y0, x1, y1) {
  g.beginPath();
  g.moveTo(x0, y0);
  g.lineTo(x1, y1);
  g.stroke();
}

function rounded(g, x, y, width, height) {
  g.beginPath();
  if (width < 6) g.rect(x, y, width, height);
  else g.roundRect(x, y, width, height, 3);
  g.fill();
}

function hatch(g, x, y, width, height, color) {
  g.save();
  g.beginPath();
  g.rect(x, y, width, height);
  g.clip();
  g.strokeStyle = color;
  g.globalAlpha *= 0.5;
  g.lineWidth = 1;
  const begin = Math.max(x - height, -height);
  for (let at = begin; at < Math.min(x + width, 6000); at += 7) line(g, at, y + height, at + height, y);
  g.restore();
}

function cut(g, words, width) {
  if (width < 12) return "";
  if (g.measureText(words).width <= width) return words;
  let length = Math.max(Math.floor((words.length * width) / g.measureText(words).width) - 1, 0);
  while (length > 0 && g.measureText(`${words.slice(0, length)}…`).width > width) length -= 1;
  return length ? `${words.slice(0, length)}…` : "";
}
