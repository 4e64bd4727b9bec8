// A session at any version, put together from the frames that were loaded; see refold/page/frames.py.

export const CHUNK = 500;
const CHUNKS_KEPT = 80;

export class Frames {
  constructor(source, session) {
    this.source = source;
    this.session = session;
    this.chunks = new Map();
    this.loading = new Map();
  }

  has = (version) => version < 1 || this.chunks.has(Math.floor((version - 1) / CHUNK));

  // Loads the chunk of a version, unless it is there and holds it.
  async load(version) {
    const number = Math.floor((Math.max(version, 1) - 1) / CHUNK);
    const there = this.chunks.get(number);
    if (there && there.first + there.frames.length > version) return there;
    if (!this.loading.has(number)) {
      const loading = this.source
        .chunk(this.session, number)
        .then((chunk) => {
          const whole = { ...chunk, first: number * CHUNK + 1 };
          this.chunks.delete(number);
          this.chunks.set(number, whole);
          if (this.chunks.size > CHUNKS_KEPT) this.chunks.delete(this.chunks.keys().next().value);
          return whole;
        })
        .finally(() => this.loading.delete(number));
      this.loading.set(number, loading);
    }
    return this.loading.get(number);
  }

  frame(version) {
    const chunk = this.chunks.get(Math.floor((version - 1) / CHUNK));
    return chunk && chunk.frames[version - chunk.first];
  }

  stateAt(version) {
    const chunk = this.chunks.get(Math.floor((version - 1) / CHUNK));
    const state = { ...(chunk ? chunk.base : {}) };
    if (chunk) for (const frame of chunk.frames.slice(0, version - chunk.first + 1)) Object.assign(state, frame.state);
    return state;
  }

  // The last entries up to a version, with their calls as they were then, and whether there are earlier ones.
  async entriesUntil(version, count) {
    const entries = [];
    const calls = new Map();
    let from = version;
    while (from >= 1) {
      await this.load(from);
      const frame = this.frame(from);
      if (!frame) break;
      for (const [call, said] of Object.entries(frame.calls || {})) if (!calls.has(call)) calls.set(call, said);
      const said = frame.entries || [];
      // An imported history is one event with any number of messages.
      const first = Math.max(said.length - (count - entries.length), 0);
      for (let place = said.length - 1; place >= first; place -= 1) {
        const entry = said[place];
        entries.push({ ...entry, place, calls: entry.calls?.map((call) => calls.get(call.call) || call) });
      }
      if (entries.length >= count) return { entries: entries.reverse(), more: first > 0 || from > 1 };
      from -= 1;
    }
    return { entries: entries.reverse(), more: false };
  }
}
