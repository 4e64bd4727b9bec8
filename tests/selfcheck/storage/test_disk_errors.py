"""A disk that fails under the real store: what callers are told is so, and a store that tells otherwise is found."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch
from refold.scenarios.world.sqlite_shim import IOERR_WRITE
from refold.stores import SQLiteStore
from refold.stores.append_rules import FaultPoint
from tests.scenarios.world.reached_sqlite import SHIM as SHIM  # Skipped without it.
from tests.selfcheck.storage.disk_errors import FAILURES, DiskError, DiskErrorRun, ErrorTally, disk_errors, empty


async def test_each_kind_of_fault_once_and_for_ever_breaks_no_promise(tmp_path: Path) -> None:
    faults = await disk_errors(tmp_path, 2, appends=3)
    tally = ErrorTally()
    for fault in faults[: 2 * len(FAILURES)]:
        tally.add(await DiskErrorRun(empty(tmp_path), seed=2, error=fault, appends=3).run())
    assert (tally.broken, tally.problems) == ({}, [])
    assert tally.met == tally.runs == 2 * len(FAILURES) == 2 * len(tally.by_kind)
    assert tally.told > 0
    assert tally.acknowledged > 0


def test_faults_are_the_same_for_a_seed_and_each_comes_once(tmp_path: Path) -> None:
    first = asyncio.run(disk_errors(empty(tmp_path), 1, appends=2))
    assert first == asyncio.run(disk_errors(empty(tmp_path), 1, appends=2))
    assert len(set(first)) == len(first) > 100


class UntruthfulStore(SQLiteStore):
    """Says of the third append that it is out; it is in."""

    appends = 0

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        appended = await super().append(batches, payloads)
        self.appends += 1
        if self.appends == 3:
            raise PersistenceError("it is out")
        return appended


class ForgetfulStore(SQLiteStore):
    """Acknowledges the last appends and makes none of them."""

    appends = 0

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        self.appends += 1
        return await super().append(batches, payloads) if self.appends <= 6 else []


class SulkingStore(SQLiteStore):
    """Takes no append any more after the third, and says that the log is damaged."""

    appends = 0

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        self.appends += 1
        if self.appends > 3:
            raise LogFormatError("it is damaged")
        return await super().append(batches, payloads)


@pytest.mark.parametrize(
    ("store", "broken"),
    [(UntruthfulStore, {"outcome"}), (ForgetfulStore, {"kept"}), (SulkingStore, {"typed", "goes-on"})],
)
async def test_a_store_that_breaks_a_promise_is_found(
    tmp_path: Path, store: type[SQLiteStore], broken: set[str]
) -> None:
    async def opens(log: Path, fault: FaultPoint) -> SQLiteStore:
        return await store.open(log, wait_for_log_s=0)

    never = DiskError("write", "EIO", IOERR_WRITE, 1_000_000)
    tally = await DiskErrorRun(tmp_path, seed=1, error=never, opens=opens).run()
    assert set(tally.broken) == broken
    assert tally.problems[0].startswith("seed 1, EIO at write 1000000: ")


@pytest.mark.slow
def test_many_faults_break_no_promise(tmp_path: Path) -> None:
    tally = ErrorTally()
    for fault in asyncio.run(disk_errors(tmp_path, 3))[:150]:
        tally.add(asyncio.run(DiskErrorRun(empty(tmp_path), seed=3, error=fault).run()))
    assert (tally.broken, tally.problems) == ({}, [])
    assert tally.unknown > 0
