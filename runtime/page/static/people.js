// What waits for a person: calls that need a decision, and questions.
import { debounced, editable, empty, fill, h, jsonText, number, parsed, shown } from "./dom.js";

const CARDS_MAX = 200;

// One call, as `refold approve` shows it: what stands here is exactly what runs.
export function waitingCard(app, item, { withSession = false, done = () => {} } = {}) {
  const said = h("p", { class: "said", role: "status" });
  const card = h("section", { class: "ask" });
  const tell = async (what, words) => {
    card.querySelectorAll("button").forEach((button) => (button.disabled = true));
    try {
      const found = await what();
      fill(said, shown(found.done ? words : `${words}: it waits in the inbox for a runtime`));
      card.classList.add("done");
      done();
    } catch (error) {
      fill(said, shown(error.message));
      card.querySelectorAll("button").forEach((button) => (button.disabled = false));
      card.dispatchEvent(new Event("input"));
    }
  };
  const session = withSession && h("a", { href: `#/session/${encodeURIComponent(item.session)}` }, item.session);
  const what = h("pre", { class: "exact" }, item.what);
  if (item.decided) {
    card.append(h("h3", {}, "Decided ", session), what, h("p", { class: "hint" }, "It waits in the inbox for a runtime that owns the log."));
    return card;
  }
  if (item.question !== undefined && item.question !== null) {
    const value = h("textarea", { rows: 2, "aria-label": "Answer", placeholder: "Answer, as text or as JSON" });
    const isText = item.answer_schema?.type === "string";
    card.append(
      h("h3", {}, "Question ", session),
      h("p", { class: "question" }, item.question),
      what,
      item.answer_schema && h("details", {}, h("summary", {}, "What an answer must fit"), h("pre", {}, jsonText(item.answer_schema))),
      value,
      h(
        "div",
        { class: "buttons" },
        h(
          "button",
          {
            class: "primary",
            onclick: () => tell(() => app.source.answer({ session: item.session, question: item.id, text: value.value, is_text: isText }), "Answered"),
          },
          "Answer",
        ),
      ),
      said,
    );
    return card;
  }
  const reason = h("input", { type: "text", "aria-label": "Reason", placeholder: "Reason, told to the model if you deny" });
  const given = item.arguments ? editable(item.arguments) : "";
  const changed = h("textarea", { rows: Math.min(given.split("\n").length + 1, 12), spellcheck: "false", "aria-label": "Arguments, as JSON", value: given });
  const allow = h("button", { class: "primary", onclick: () => decide(true, false) }, "Allow");
  const always = h("button", { onclick: () => decide(true, true), title: "Also every later call of the same action in this session" }, "Always allow");
  card.addEventListener("input", () => {
    always.disabled = changed.value !== given;
    fill(allow, always.disabled ? "Allow with these arguments" : "Allow");
  });
  const decide = (allowed, forever) =>
    tell(() => {
      const put = { session: item.session, call: item.call, allow: allowed, always: forever, reason: reason.value };
      if (allowed && changed.value !== given) put.arguments = argumentsIn(changed.value);
      return app.source.decide(put);
    }, allowed ? "Allowed" : "Denied");
  card.append(
    h("h3", {}, "Approval ", session),
    what,
    item.reason && h("p", { class: "hint" }, item.reason),
    item.arguments && h("details", {}, h("summary", {}, "Change the arguments"), changed),
    reason,
    h(
      "div",
      { class: "buttons" },
      allow,
      always,
      h("button", { class: "danger", onclick: () => decide(false, false) }, "Deny"),
    ),
    said,
  );
  return card;
}

// All arguments of a call, in place of those that the model gave.
function argumentsIn(text) {
  let value;
  try {
    value = parsed(text);
  } catch (error) {
    throw new Error(`The arguments are no JSON: ${error.message}`);
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("The arguments of a call are a JSON object.");
  return value;
}

// Cards, of which those behind the first ones are one click away.
export function cards(app, found, first, options) {
  const card = (item) => waitingCard(app, item, options(item));
  const more = found.slice(first, CARDS_MAX);
  return [
    found.slice(0, first).map(card),
    more.length > 0 && h("details", {}, h("summary", {}, `${number(found.length - first)} more`), h("div", { class: "asks" }, more.map(card))),
    found.length > CARDS_MAX && h("p", { class: "hint" }, `${number(found.length - CARDS_MAX)} of them are shown when some of these are decided.`),
  ];
}

export class WaitingView {
  constructor(app) {
    this.app = app;
    this.list = h("div", { class: "asks" });
    app.show([["sessions", "#/"], ["waiting", null]], h("div", { class: "page narrow" }, h("h1", {}, "Waiting for a person"), this.list));
    this.read();
  }

  goes = (kind) => kind === "waiting";
  grown = debounced(300, () => this.read());

  leave() {
    this.left = true;
  }

  async read() {
    let found;
    try {
      found = await this.app.source.waiting();
    } catch (error) {
      if (!this.left) this.app.fail(error);
      return;
    }
    if (this.left || this.list.contains(document.activeElement)) return;
    fill(this.list, 
      ...(found.length
        ? cards(this.app, found, 20, () => ({ withSession: true, done: () => setTimeout(() => this.read(), 600) }))
        : [empty("Nothing waits", "Calls that need an approval, and questions of tools, appear here.")]),
    );
  }

  key(event) {
    if (event.key !== "Escape") return false;
    location.hash = "#/";
    return true;
  }
}
