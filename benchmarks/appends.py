"""Durable appends per second with 64 concurrent sessions, against two bare sqlite3 loops on the same schema idea.

Run: python -P benchmarks/appends.py [events]

`refold` goes through the journal and the SQLite store, chain, versions and read-back check included, one event a batch.
`each_committed` is a bare sqlite3 loop that commits each event; `batched` a bare executemany of 64 events a
transaction, both with the same unique index on (stream, version). Ratios to `batched` and to `each_committed`.
"""

import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

from refold.actors import Journal
from refold.events import SESSION_CODEC, TextBlock
from refold.events.core.ids import stream_name
from refold.events.core.records import EncodedBatch
from refold.events.session.events import InputQueued
from refold.stores import SQLiteStore

SESSIONS = 64
EVENT = InputQueued(
    content=(TextBlock(text="a question of some eighty characters, as people type them into a chat box"),)
)
INSERT = "INSERT INTO events (stream, version, batch, time, data) VALUES (?, ?, ?, ?, ?)"


async def through_refold(log: Path, events: int, durability: Literal["full", "normal"]) -> tuple[float, float]:
    """Return events per second and events per commit."""
    async with await SQLiteStore.open(log, durability=durability) as store:
        journal = Journal(store)

        async def session(number: int) -> None:
            stream = stream_name("session", str(number))
            for version in range(events // SESSIONS):
                data = SESSION_CODEC.encode(EVENT)
                batch = EncodedBatch(stream=stream, expected_version=version, at=version, events=(data,))
                await journal.append([batch])

        start = time.perf_counter()
        await asyncio.gather(*(session(number) for number in range(SESSIONS)))
        seconds = time.perf_counter() - start
        written = events // SESSIONS * SESSIONS
        await journal.close()
        return written / seconds, written / journal.commits


def bare(path: Path, events: int, size: int, synchronous: str) -> float:
    """Return events per second of a plain loop that commits `size` events at a time."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(
        "CREATE TABLE events (position INTEGER PRIMARY KEY, stream INTEGER NOT NULL, version INTEGER NOT NULL, "
        "batch INTEGER NOT NULL, time INTEGER NOT NULL, data TEXT NOT NULL, UNIQUE (stream, version))"
    )
    data = SESSION_CODEC.encode(EVENT).decode()
    start = time.perf_counter()
    for first in range(0, events, size):
        rows = [
            (number % SESSIONS, number // SESSIONS + 1, number // SESSIONS + 1, number, data)
            for number in range(first, min(first + size, events))
        ]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT, rows)
        connection.execute("COMMIT")
    seconds = time.perf_counter() - start
    connection.close()
    return events / seconds


def main() -> None:
    """Measure with synchronous FULL and NORMAL, best of three, and print."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 12_800
    report = {}
    for durability, synchronous in (("full", "FULL"), ("normal", "NORMAL")):
        ours, each, batched, grouped = [], [], [], []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                rate, per_commit = asyncio.run(through_refold(Path(folder, "refold.db"), events, durability))  # type: ignore[arg-type]
                ours.append(rate)
                grouped.append(per_commit)
                each.append(bare(Path(folder, "each.db"), events // 4, 1, synchronous))
                batched.append(bare(Path(folder, "batched.db"), events, SESSIONS, synchronous))
        report[durability] = {
            "refold_per_s": round(max(ours)),
            "events_per_commit": round(max(grouped), 1),
            "each_committed_per_s": round(max(each)),
            "batched_per_s": round(max(batched)),
            "ratio_to_batched": round(max(ours) / max(batched), 2),
            "ratio_to_each_committed": round(max(ours) / max(each), 2),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
