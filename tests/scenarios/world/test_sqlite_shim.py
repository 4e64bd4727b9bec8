"""The shim between SQLite and its files: what it sees, what it prevents, and that it leaves others alone."""

import asyncio
import hashlib
import os
import random
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from refold.events.core.errors import ConfigError, PersistenceError
from refold.scenarios.world import sqlite_shim
from refold.scenarios.world.sqlite_shim import FileOperation, ShimUnavailable
from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch
from tests.scenarios.world.reached_sqlite import SHIM


class Recorder:
    def __init__(self) -> None:
        self.operations: list[FileOperation] = []

    def __call__(self, operation: FileOperation) -> int:
        self.operations.append(operation)
        return 0

    def kinds(self) -> Counter[str]:
        return Counter(operation.kind for operation in self.operations)


class FailingAt:
    """Fails the nth operation of a kind, and all of that kind after it if told so."""

    def __init__(self, kind: str, nth: int, code: int, *, ever_after: bool = False) -> None:
        self.kind = kind
        self.nth = nth
        self.code = code
        self.ever_after = ever_after
        self.seen = 0

    def __call__(self, operation: FileOperation) -> int:
        if operation.kind != self.kind or not operation.path.endswith("-wal"):
            return 0
        self.seen += 1
        return self.code if self.seen == self.nth or (self.ever_after and self.seen > self.nth) else 0


def files_of(log: Path) -> dict[str, bytes]:
    return {suffix: log.with_name(log.name + suffix).read_bytes() for suffix in ("", "-wal")}


async def append_one_at_a_time(log: Path, count: int) -> None:
    async with await SQLiteStore.open(log) as store:
        for version in range(count):
            await store.append([batch("session/a", version)])


async def test_an_unchanged_store_goes_through_the_shim_with_a_real_wal(tmp_path: Path) -> None:
    recorder = Recorder()
    with SHIM.attached(tmp_path, recorder) as disk:
        await append_one_at_a_time(tmp_path / "events.db", 5)
        assert disk.open_files == 0
    written = {os.path.basename(operation.path) for operation in recorder.operations if operation.kind == "write"}
    assert written == {"events.db.new-journal", "events.db.new", "events.db-wal", "events.db"}
    kinds = recorder.kinds()
    assert kinds["open"] == kinds["close"]
    assert kinds["sync"] >= 5, "each append waits for the disk"
    async with await SQLiteStore.open(tmp_path / "events.db") as store:
        assert len(await store.read_stream("session/a")) == 5


async def test_files_elsewhere_and_files_opened_afterwards_are_left_alone(tmp_path: Path) -> None:
    watched, other = tmp_path / "watched", tmp_path / "other"
    watched.mkdir()
    other.mkdir()
    recorder = Recorder()
    with SHIM.attached(watched, recorder):
        await append_one_at_a_time(other / "events.db", 1)
    await append_one_at_a_time(watched / "events.db", 1)
    assert recorder.operations == []


async def test_a_folder_is_watched_by_one_at_a_time(tmp_path: Path) -> None:
    recorder = Recorder()
    with (
        SHIM.attached(tmp_path, recorder),
        pytest.raises(ConfigError, match="watched already"),
        SHIM.attached(tmp_path, recorder),
    ):
        raise AssertionError("the second one may not begin")


@pytest.mark.parametrize(
    ("kind", "code", "name"),
    [
        ("write", sqlite_shim.IOERR_WRITE, "SQLITE_IOERR_WRITE"),
        ("write", sqlite_shim.FULL, "SQLITE_FULL"),
        ("sync", sqlite_shim.IOERR_FSYNC, "SQLITE_IOERR_FSYNC"),
    ],
)
async def test_an_operation_that_fails_once_fails_an_append_of_the_store(
    tmp_path: Path, kind: str, code: int, name: str
) -> None:
    log = tmp_path / "events.db"
    await append_one_at_a_time(log, 1)
    with SHIM.attached(tmp_path, FailingAt(kind, 4, code)):
        async with await SQLiteStore.open(log) as store:
            version, said = 1, ""
            while not said:
                try:
                    await store.append([batch("session/a", version)])
                    version += 1
                except PersistenceError as error:
                    said = str(error)
            assert name in said
            head = await store.head("session/a")
            assert head is not None
            assert head.version in (version, version + 1)
            await store.append([batch("session/a", head.version)])


async def test_without_power_nothing_reaches_the_files_however_late_it_is_closed(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with SHIM.attached(tmp_path, Recorder()) as disk:
        store = await SQLiteStore.open(log)
        await store.append([batch("session/a", 0)])
        disk.power_off()
        before = files_of(log)
        with pytest.raises(PersistenceError):
            await store.append([batch("session/a", 1)])
        with pytest.raises(PersistenceError):
            await store.append([batch("session/a", 1)])
        await store.close()
        assert disk.open_files == 0
    assert files_of(log) == before
    assert log.with_name("events.db-shm").exists(), "the next life's shared memory is not deleted either"
    async with await SQLiteStore.open(log) as store:
        assert len(await store.read_stream("session/a")) == 1


async def test_reads_are_seen_where_that_is_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    await append_one_at_a_time(log, 3)
    quiet, thorough = Recorder(), Recorder()
    with SHIM.attached(tmp_path, quiet):
        await append_one_at_a_time(tmp_path / "first.db", 1)
    with SHIM.attached(tmp_path, thorough, reads=True):
        await append_one_at_a_time(tmp_path / "second.db", 1)
    assert quiet.kinds()["read"] == 0
    assert thorough.kinds()["read"] > 0


async def test_what_the_watcher_raises_comes_out_at_the_end_and_cuts_the_power(tmp_path: Path) -> None:
    def watcher(operation: FileOperation) -> int:
        raise LookupError(operation.kind)

    async def open_a_log() -> None:
        with SHIM.attached(tmp_path, watcher) as disk:
            with pytest.raises(PersistenceError):
                await SQLiteStore.open(tmp_path / "events.db")
            assert disk.is_off

    with pytest.raises(LookupError, match="open"):
        await open_a_log()


def digests(folder: Path, seed: str) -> list[str]:
    """Return what is asked of the system, the WAL and the log of a run whose random numbers are drawn."""
    folder.mkdir()
    recorder, log = Recorder(), folder / "events.db"

    async def write() -> bytes:
        async with await SQLiteStore.open(log) as store:
            for version in range(20):
                await store.append([batch("session/a", version)])
            await store.reopen()
            await store.append([batch("session/a", 20)])
            return files_of(log)["-wal"]

    with SHIM.attached(folder, recorder, chance=random.Random(seed), now_us=lambda: 1_750_000_000_000_000):
        wal = asyncio.run(write())
    told = [(operation.kind, Path(operation.path).name, *operation[2:]) for operation in recorder.operations]
    return [hashlib.sha256(what).hexdigest() for what in (repr(told).encode(), wal, log.read_bytes())]


def test_operations_and_files_are_the_same_for_a_seed(tmp_path: Path) -> None:
    first, second, other = (digests(tmp_path / name, name[0]) for name in ("7 first", "7 second", "8"))
    assert first == second
    assert other[0] != first[0]
    assert other[1] != first[1], "the salts of the WAL are drawn"
    assert other[2] == first[2], "in the log itself nothing is random"


async def test_clock_and_sleep_of_sqlite_can_be_given(tmp_path: Path) -> None:
    slept: list[int] = []

    def one_statement_after_another() -> tuple[str, str]:
        first = sqlite3.connect(tmp_path / "any.db", isolation_level=None)
        second = sqlite3.connect(tmp_path / "any.db", isolation_level=None, timeout=0.05)
        try:
            first.execute("CREATE TABLE t (x)")
            first.execute("BEGIN EXCLUSIVE")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                second.execute("INSERT INTO t VALUES (1)")
            first.execute("ROLLBACK")
            row: tuple[str, str] = first.execute("SELECT datetime('now'), hex(randomblob(4))").fetchone()
            return row
        finally:
            first.close()
            second.close()

    with SHIM.attached(
        tmp_path,
        Recorder(),
        chance=random.Random(1),
        now_us=lambda: 1_750_000_000_000_000,
        sleep=slept.append,
    ):
        time, first_drawn = await asyncio.to_thread(one_statement_after_another)
    assert time == "2025-06-15 15:06:40"
    assert slept != []
    (tmp_path / "any.db").unlink()
    with SHIM.attached(tmp_path, Recorder(), chance=random.Random(1), sleep=slept.append):
        _, drawn = await asyncio.to_thread(one_statement_after_another)
    assert drawn == first_drawn


def test_a_sqlite_that_cannot_be_reached_is_an_error_that_says_so() -> None:
    with pytest.raises(ShimUnavailable, match="shared libsqlite3"):
        sqlite_shim.library_of("_json")


async def test_what_the_shim_is_told_of_a_file_that_is_opened_over_an_existing_wal(tmp_path: Path) -> None:
    """SQLite syncs the folder at the first sync of such a handle, so a model has to be told of each opening."""
    log = tmp_path / "events.db"
    with SHIM.attached(tmp_path, Recorder()) as disk:
        store = await SQLiteStore.open(log)
        await store.append([batch("session/a", 0)])
        disk.power_off()
        await store.close()
    recorder = Recorder()
    with SHIM.attached(tmp_path, recorder):
        async with await SQLiteStore.open(log) as store:
            await store.append([batch("session/a", 1)])
    openings = [each for each in recorder.operations if each.kind == "open" and each.path.endswith("-wal")]
    assert openings != []
    assert all(each.flags & sqlite_shim.OPEN_WAL and each.flags & sqlite_shim.OPEN_CREATE for each in openings)
    assert [each.path for each in recorder.operations if each.kind == "create" and each.path.endswith("-wal")] == []
