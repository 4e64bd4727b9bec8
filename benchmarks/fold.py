"""Folding a session from SQLite, against reading its rows and against decoding them.

Run: python -P benchmarks/fold.py [events]

Best of five, in CPU time: `rows` reads the stream from the store, `decode` also decodes every event, `fold` also folds
the state. `bare_rows` is a plain sqlite3 select of the same columns. `opened` is what the opening of a session does
without a snapshot; its limit, `by_hand`, takes the time and the JSON of each row, and folds by the same functions.
"""

import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use
from refold.events import SESSION_CODEC, SessionState, fold
from refold.events.session.core import SESSION_CORE
from refold.events.session.events import SessionEvent
from refold.events.session.evolve import FOLDERS
from refold.stores import SQLiteStore
from refold.stores.folding import Fold

ROUNDS = 5
EVENTS_PER_TURN = 9


@tool(tier="observe", effect="pure")
async def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


async def write(log: Path, events: int) -> None:
    """Write a session of about `events` events by running it."""
    runs = events // EVENTS_PER_TURN
    provider = ScriptedProvider([use("weather", {"city": "Lisbon"}), say("Sunny.")] * runs)
    config = AgentConfig(model="m")
    async with AgentRuntime(config, provider=provider, tools=[weather], log=log, durability="normal") as runtime:
        session = await runtime.session("s")
        for _ in range(runs):
            await session.send("Weather in Lisbon?")


def best_s(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def by_hand(connection: sqlite3.Connection) -> SessionState:
    """Return the state of the session, folded with as little around the functions of its events as can be."""
    state, decode = SessionState(), msgspec.json.Decoder(SessionEvent).decode
    for at, data in connection.execute(
        "SELECT at, data FROM events WHERE stream = (SELECT id FROM streams WHERE name = 'session/s') ORDER BY version"
    ):
        event = decode(data)
        msgspec.structs.force_setattr(event, "at", at)
        state.version, state.at = state.version + 1, at
        FOLDERS[type(event)](state, event)
    return state


async def measure(log: Path) -> dict[str, float]:
    """Return events per second of each step."""
    connection = sqlite3.connect(log)
    connection.text_factory = bytes
    select = (
        "SELECT position, version, batch, at, data FROM events "
        "WHERE stream = (SELECT id FROM streams WHERE name = 'session/s')"
    )
    bare = best_s(lambda: connection.execute(select).fetchall())
    limit = best_s(lambda: by_hand(connection))
    connection.close()
    async with await SQLiteStore.open(log, read_only=True) as store:
        rows = opened = float("inf")
        for _ in range(ROUNDS):
            start = time.process_time()
            stored = await store.read_stream("session/s")
            rows = min(rows, time.process_time() - start)
            opening, start = Fold("session/s", SESSION_CORE, SESSION_CODEC), time.process_time()
            await opening.read(store, snapshots_from=None)
            opened = min(opened, time.process_time() - start)
        events = SESSION_CODEC.decode_all(stored)
        decode = rows + best_s(lambda: SESSION_CODEC.decode_all(stored))
        folded = decode + best_s(lambda: fold(events))
    count = len(stored)
    return {
        "events": count,
        "bare_rows_per_s": round(count / bare),
        "rows_per_s": round(count / rows),
        "decode_per_s": round(count / decode),
        "fold_per_s": round(count / folded),
        "fold_ms": round(folded * 1000, 2),
        "ratio_fold_to_bare_rows": round(bare / folded, 2),
        "opened_ms": round(opened * 1000, 2),
        "by_hand_ms": round(limit * 1000, 2),
        "times_by_hand": round(opened / limit, 2),
    }


def main() -> None:
    """Write a log, measure it, and print."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "events.db")
        asyncio.run(write(log, events))
        print(json.dumps(asyncio.run(measure(log)), indent=2))


if __name__ == "__main__":
    main()
