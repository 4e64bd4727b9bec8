"""Durable appends per second, 64 streams at once, against two bare sqlite3 loops on the same schema idea.

Run: python -P benchmarks/appends.py [events]

`refold` goes through the journal and the SQLite store, chain, versions and read-back check included, one event a batch;
`hosted` through an event-sourced actor for each stream, which is asked again and again, until its reply.
`each_committed` is a bare sqlite3 loop that commits each event; `batched` a bare executemany of 64 events a
transaction, both with the same unique index on (stream, version). Ratios to `batched` and to `each_committed`.
Each is told for a second of CPU time, which other programs disturb less, and for a second that passes, disk included.
"""

import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal, NamedTuple

from refold.actors import EventSourcedSystem, Journal
from refold.events import SESSION_CODEC, Event, PureCore, State, TextBlock
from refold.events.core.ids import stream_name
from refold.events.core.records import EncodedBatch
from refold.events.session.events import InputQueued
from refold.stores import SQLiteStore

SESSIONS = 64
CONTENT = (TextBlock(text="a question of some eighty characters, as people type them into a chat box"),)
EVENT = InputQueued(content=CONTENT)
INSERT = "INSERT INTO events (stream, version, batch, time, data) VALUES (?, ?, ?, ?, ?)"


class Rate(NamedTuple):
    """Events per second."""

    of_cpu: float = 0.0
    passed: float = 0.0


class Clock:
    """Measures from when it is made."""

    def __init__(self) -> None:
        self._cpu, self._passed = time.process_time(), time.perf_counter()

    def rate(self, events: int) -> Rate:
        return Rate(events / (time.process_time() - self._cpu), events / (time.perf_counter() - self._passed))


async def through_refold(log: Path, events: int, durability: Literal["full", "normal"]) -> tuple[Rate, float]:
    """Return events per second and events per commit."""
    async with await SQLiteStore.open(log, durability=durability) as store:
        journal = Journal(store)

        async def session(number: int) -> None:
            stream = stream_name("session", str(number))
            for version in range(events // SESSIONS):
                data = SESSION_CODEC.encode(EVENT)
                batch = EncodedBatch(stream=stream, expected_version=version, at=version, events=(data,))
                await journal.append([batch])

        clock = Clock()
        await asyncio.gather(*(session(number) for number in range(SESSIONS)))
        written = events // SESSIONS * SESSIONS
        rate = clock.rate(written)
        await journal.close()
        return rate, written / journal.commits


class Said(Event, frozen=True, kw_only=True, tag="benchmark.said.v1"):
    """As long as the event of a session."""

    content: tuple[TextBlock, ...]


class Sayings(PureCore[State, Said, Said]):
    """Keeps each text."""

    def admit(self, state: State, command: Said) -> Said:
        return command

    def evolve(self, state: State, event: Said) -> State:
        return state


async def through_hosted(log: Path, events: int, durability: Literal["full", "normal"]) -> Rate:
    """Return events per second."""
    async with EventSourcedSystem(log, durability=durability) as system:
        sayings = await system.host("sayings", Sayings)

        async def one(number: int) -> None:
            for _ in range(events // SESSIONS):
                await sayings.ask(str(number), Said(content=CONTENT))

        clock = Clock()
        await asyncio.gather(*(one(number) for number in range(SESSIONS)))
        return clock.rate(events // SESSIONS * SESSIONS)


def bare(path: Path, events: int, size: int, synchronous: str) -> Rate:
    """Return events per second of a plain loop that commits `size` events at a time."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute(
        "CREATE TABLE events (position INTEGER PRIMARY KEY, stream INTEGER NOT NULL, version INTEGER NOT NULL, "
        "batch INTEGER NOT NULL, time INTEGER NOT NULL, data TEXT NOT NULL, UNIQUE (stream, version))"
    )
    data = SESSION_CODEC.encode(EVENT).decode()
    clock = Clock()
    for first in range(0, events, size):
        rows = [
            (number % SESSIONS, number // SESSIONS + 1, number // SESSIONS + 1, number, data)
            for number in range(first, min(first + size, events))
        ]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT, rows)
        connection.execute("COMMIT")
    rate = clock.rate(events)
    connection.close()
    return rate


def measured(events: int, durability: Literal["full", "normal"], rounds: int = 3) -> dict[str, float]:
    """Return the rates, the best of some rounds, and their ratios."""
    names = ("refold", "hosted", "each_committed", "batched")
    best: dict[str, list[Rate]] = {name: [] for name in names}
    grouped = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            rate, per_commit = asyncio.run(through_refold(Path(folder, "refold.db"), events, durability))
            grouped.append(per_commit)
            hosted = asyncio.run(through_hosted(Path(folder, "hosted.db"), events, durability))
            each = bare(Path(folder, "each.db"), events // 4, 1, durability)
            batched = bare(Path(folder, "batched.db"), events, SESSIONS, durability)
            for name, found in zip(names, (rate, hosted, each, batched), strict=True):
                best[name].append(found)
    figures = {"events_per_commit": round(max(grouped), 1)}
    for name, rates in best.items():
        figures[f"{name}_per_s"] = round(max(rate.of_cpu for rate in rates))
        figures[f"{name}_per_s_passed"] = round(max(rate.passed for rate in rates))
    for name in ("refold", "hosted"):
        for per in ("per_s", "per_s_passed"):
            figures[f"{name}_to_batched_{per}"] = round(figures[f"{name}_{per}"] / figures[f"batched_{per}"], 2)
    figures["refold_to_each_committed_per_s"] = round(figures["refold_per_s"] / figures["each_committed_per_s"], 2)
    return figures


def main() -> None:
    """Measure with synchronous FULL and NORMAL, best of three, and print."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 12_800
    print(json.dumps({"full": measured(events, "full"), "normal": measured(events, "normal")}, indent=2))


if __name__ == "__main__":
    main()
