"""Work of a real store, drawn from a seed: what is rehearsed while power fails and disks fail.

Several streams; appends of several batches at once, as the journal makes them of what waits; payloads, some larger than
a page; snapshots; reads in between; openings anew. Checkpoints come far more often than in production, so that few
appends meet many of them.
"""

import hashlib
import random
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from refold.events.core.ids import EventRef, PayloadHash, StreamName
from refold.events.core.records import EncodedBatch
from refold.stores.append_rules import FaultPoint, no_fault
from refold.stores.sqlite.file import Durability
from refold.stores.sqlite.store import SQLiteStore
from tests.selfcheck.storage.expected_log import ExpectedLog

EPOCH_US = 1_750_000_000_000_000
"""Time of the first batch, microseconds since the epoch, UTC."""

STREAMS = ("order/1", "order/2", "invoice/1", "parcel/7")


class Marks(Protocol):
    """Told what the store was asked for and what it acknowledged, on both sides of each call."""

    def asked(self, step: int) -> None:
        """The store is about to be asked for a step."""
        ...

    def acknowledged(self, step: int) -> None:
        """The store has acknowledged a step and with it all before."""
        ...


class StorageWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with one log."""

    seed: int
    steps: int = 24
    """How many appends, snapshots and openings."""
    durability: Durability = "full"


class WorkOnLog:
    """Plays a workload on a log, and keeps account of what the log must hold."""

    def __init__(self, log: Path, workload: StorageWorkload, marks: Marks, fault: FaultPoint = no_fault) -> None:
        self.expected = ExpectedLog()
        self._log = log
        self._workload = workload
        self._marks = marks
        self._fault = fault
        self._chance = random.Random(f"storage workload {workload.seed}")
        self._checkpoint_pages = self._chance.choice((6, 10, 20, 40))

    async def play(self) -> ExpectedLog:
        """Do everything, close the log, and return what it must hold."""
        self._marks.asked(self.expected.opened())
        opening = SQLiteStore.open(self._log, durability=self._workload.durability, wait_for_log_s=0, fault=self._fault)
        async with await opening as store:
            self._marks.acknowledged(self.expected.last)
            await checkpoint_every(store, self._checkpoint_pages)
            while self.expected.last < self._workload.steps:
                await self._step(store)
        return self.expected

    async def _step(self, store: SQLiteStore) -> None:
        drawn = self._chance.random()
        known = [stream for stream in STREAMS if self.expected.version(stream)]
        if drawn < 0.08:
            self._marks.asked(self.expected.opened())
            await store.reopen()
            self._marks.acknowledged(self.expected.last)
            await checkpoint_every(store, self._checkpoint_pages)
        elif drawn < 0.2 and known:
            snapshot = self.expected.snapshot_now(self._chance.choice(known), self._chance.randbytes(40))
            self._marks.asked(self.expected.snapshotted(snapshot))
            await store.save_snapshot(snapshot)
        else:
            batches, payloads = drawn_append(self._chance, self.expected)
            self._marks.asked(self.expected.appended(batches, payloads))
            await store.append(batches, payloads)
            self._marks.acknowledged(self.expected.last)
            if drawn > 0.8:
                await store.read_stream(batches[0].stream)


async def checkpoint_every(store: SQLiteStore, pages: int) -> None:
    """Have the WAL of an open store checked in whenever it has so many pages; until the log is opened anew."""

    def change(connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA wal_autocheckpoint = {pages}")

    await store.change_beside(change, "checkpoints cannot be made to come often")


def drawn_append(
    chance: random.Random, expected: ExpectedLog
) -> tuple[list[EncodedBatch], Mapping[PayloadHash, bytes]]:
    """Return an append to some of the streams: one to four batches, and now and then payloads."""
    batches: list[EncodedBatch] = []
    for stream in chance.sample(STREAMS, chance.choice((1, 1, 2, 3, 4))):
        version = expected.version(stream)
        events = tuple(
            b'{"type":"test.v1","n":%d,"text":"%s"}' % (version + 1 + index, b"x" * chance.choice((0, 20, 300, 1500)))
            for index in range(chance.choice((1, 1, 2, 3)))
        )
        batches.append(
            EncodedBatch(
                stream=StreamName(stream),
                expected_version=version,
                at=EPOCH_US + expected.last,
                events=events,
                pending=("call:1", "timer:2")[: chance.randrange(3)],
                correlation=chance.choice((None, EventRef(f"{stream}@1"), EventRef("other/1@3"))),
                causation=chance.choice((None, EventRef(f"{stream}@{version or 1}"))),
            )
        )
    payloads: dict[PayloadHash, bytes] = {}
    if chance.random() < 0.25:
        content = chance.randbytes(chance.choice((50, 900, 6000)))
        payloads[PayloadHash(hashlib.sha256(content).hexdigest())] = content
    return batches, payloads
