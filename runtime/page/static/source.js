// Where the page has its data from: the server that it came from, or the file that it stands in.
import { jsonText, number, parsed } from "./dom.js";

export class Refused extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

const KEPT = "refold-token";

// The token stands in the fragment of the address, which is sent to no server, and is taken out of it at once.
export function takenToken() {
  const found = /(?:^#|&)token=([A-Za-z0-9_-]+)/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEPT, found[1]);
    history.replaceState(null, "", location.pathname + (found.input.replace(found[0], "") || "#/"));
  }
  return found ? found[1] : sessionStorage.getItem(KEPT) || "";
}

export class ServerSource {
  live = true;

  constructor(token) {
    this.token = token;
  }

  has = () => true;

  async ask(name, parameters = {}, options = {}) {
    const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== undefined && value !== ""));
    const answer = await fetch(`/api/${name}?${query}`, {
      ...options,
      headers: { "X-Refold-Token": this.token, ...(options.body ? { "Content-Type": "application/json" } : {}) },
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
    const text = await answer.text();
    const said = text.startsWith("{") || text.startsWith("[") ? parsed(text) : {};
    if (!answer.ok) throw new Refused(answer.status, said.error || `the server answers ${answer.status}`);
    return said;
  }

  tell = (name, said) => this.ask(name, {}, { method: "POST", body: jsonText(said) });
  sessions = (wanted) => this.ask("sessions", wanted);
  session = (session) => this.ask("session", { session });
  chunk = (session, chunk) => this.ask("frames", { session, chunk });
  spans = (session, after) => this.ask("spans", { session, after });
  search = (session, text) => this.ask("search", { session, text });
  beside = (session) => this.ask("beside", { session });
  event = (session, version) => this.ask("event", { session, version });
  why = (event) => this.ask("why", { event });
  request = (session, version) => this.ask("request", { session, version });
  diff = (left, right) => this.ask("diff", { left, right });
  payload = (session, hash) => this.ask("payload", { session, hash });
  waiting = (session) => this.ask("waiting", { session });
  changes = (after, signal) => this.ask("changes", { after }, { signal });
  decide = (said) => this.tell("decide", said);
  answer = (said) => this.tell("answer", said);
  fork = (said) => this.tell("fork", said);
}

// Everything of a session, written into the file; a part is parsed when it is looked at first.
export class EmbeddedSource {
  live = false;

  constructor(data) {
    this.data = data;
    this.parts = new Map();
  }

  part(name) {
    if (!this.parts.has(name)) {
      if (this.parts.size > 20) this.parts.clear();
      const block = document.getElementById(name);
      this.parts.set(name, block && parsed(block.textContent));
    }
    return this.parts.get(name);
  }

  of(session) {
    const found = this.data.sessions.find((one) => one.head.session === session);
    if (!found) throw new Refused(404, `the file has no session ${session}`);
    return found;
  }

  has = (session) => this.data.sessions.some(({ head }) => head.session === session);
  session = async (session) => this.of(session).head;
  chunk = async (session, chunk) => this.part(`${this.of(session).name}-${chunk}`);
  spans = async (session, after) => this.of(session).spans.slice(after);
  beside = async (session) => this.of(session).beside;
  waiting = async () => [];

  async request(session, version) {
    const found = this.of(session).requests[version];
    if (!found || found.missing) throw new Refused(404, found?.missing || "The file does not have it; it has the last requests only.");
    return found;
  }

  async event(session, version) {
    const one = this.of(session);
    const found = this.part(`${one.name}-${Math.floor((version - 1) / this.data.chunk)}-recorded`)?.[version];
    if (found) return found;
    const which = one.recorded_from > one.head.version ? "no event" : `events from version ${number(one.recorded_from)} on`;
    throw new Refused(404, `The file has ${which} as recorded, since the session is large; refold inspect has all. This is what the event did:`);
  }

  // From event to event, within the sessions of the file and along what it tells of other streams.
  async why(event) {
    const found = [];
    for (let next = event; next && found.length < 10000; ) {
      const own = /^session\/(.*)@(\d+)$/s.exec(next);
      const one = own && this.data.sessions.find(({ head }) => head.session === own[1] && Number(own[2]) <= head.version);
      if (!one) {
        const told = this.data.causes[next] || { reference: next, type: "", words: "The file does not have it." };
        found.push(told);
        next = told.cause;
        continue;
      }
      const place = Number(own[2]) - 1;
      const frame = (await this.chunk(own[1], Math.floor(place / this.data.chunk))).frames[place % this.data.chunk];
      found.push({ reference: next, type: frame.type, words: frame.words });
      const cause = frame.version === frame.batch ? frame.cause : frame.batch;
      next = typeof cause === "number" ? `session/${own[1]}@${cause}` : cause;
    }
    return found;
  }

  async search(session, text) {
    const one = this.of(session);
    const needle = text.toLowerCase();
    const found = [];
    for (let chunk = 0; chunk * this.data.chunk < one.head.last_version; chunk += 1)
      for (const frame of (await this.chunk(session, chunk)).frames)
        if (JSON.stringify(frame, (_, v) => (typeof v === "bigint" ? String(v) : v)).toLowerCase().includes(needle)) found.push(frame.version);
    return found.slice(0, 500);
  }
}
