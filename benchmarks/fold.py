"""Folding a session from SQLite, against reading its rows and against decoding them.

Run: python -P benchmarks/fold.py [events]

Best of five: `rows` reads the stream from the store, `decode` also decodes every event, `fold` also folds the state.
The limit, `bare_rows`, is a plain sqlite3 select of the same columns.
"""

import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use
from refold.events import SESSION_CODEC, fold
from refold.stores import SQLiteStore

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
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


async def measure(log: Path) -> dict[str, float]:
    """Return events per second of each step."""
    connection = sqlite3.connect(log)
    connection.text_factory = bytes
    select = (
        "SELECT position, version, batch, at, data FROM events "
        "WHERE stream = (SELECT id FROM streams WHERE name = 'session/s')"
    )
    bare = best_s(lambda: connection.execute(select).fetchall())
    connection.close()
    async with await SQLiteStore.open(log, read_only=True) as store:
        rows = float("inf")
        for _ in range(ROUNDS):
            start = time.perf_counter()
            stored = await store.read_stream("session/s")
            rows = min(rows, time.perf_counter() - start)
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
