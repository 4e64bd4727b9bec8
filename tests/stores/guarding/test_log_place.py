"""Files of a log that are cut or overwritten while it is open, or hold less than was acknowledged when it opens."""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.records import Snapshot
from refold.stores import SQLiteStore, batch
from refold.stores.guarding.log_place import HEAD_SUFFIX, committed_frames
from refold.stores.sample_batches import payload
from refold.stores.sqlite.file import PAGE_BYTES


def wal(log: Path) -> Path:
    return log.with_name(log.name + "-wal")


def content(path: Path) -> bytes:
    return path.read_bytes()


def copied(log: Path, folder: Path) -> Path:
    """Copy the files of a log as they are, as a crash leaves them."""
    folder.mkdir()
    for file in log.parent.glob(f"{log.name}*"):
        if not file.name.endswith(("-shm", ".lock", ".bell")):
            shutil.copy(file, folder)
    return folder / log.name


def overwritten(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.write(bytes(size))


def replaced_in_place(path: Path) -> None:
    """Write another WAL over this one, as `cp` does; it is longer."""
    other = path.with_name("other.db")
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE t (x)")
        for _ in range(50):
            with connection:
                connection.execute("INSERT INTO t VALUES (randomblob(9000))")
        shutil.copyfile(f"{other}-wal", path)


CUTS: dict[str, Callable[[Path], None]] = {
    "to nothing": lambda path: os.truncate(path, 0),
    "in the header": lambda path: os.truncate(path, 20),
    "in the middle": lambda path: os.truncate(path, path.stat().st_size // 2),
    "by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "overwritten": lambda path: overwritten(path, path.stat().st_size),
    "another one": replaced_in_place,
}


@pytest.mark.parametrize("how", CUTS)
async def test_nothing_is_acknowledged_once_the_wal_was_cut_and_what_was_there_stays_there(
    log: Path, tmp_path: Path, how: str
) -> None:
    async with await SQLiteStore.open(log) as store:
        for version in range(20):
            await store.append([batch("session/a", version)])
        CUTS[how](wal(log))
        for _ in range(3):
            with pytest.raises(PersistenceError, match=r"-wal: it.* while the log was open.*`refold repair"):
                await store.append([batch("session/a", 20)])
        with pytest.raises(PersistenceError, match="-wal"):
            await store.reopen()
        main = content(log)
    assert content(log) == main, "a WAL with a hole never comes into the log"
    with pytest.raises(LogFormatError, match=r"events\.db is (not what it was|damaged|not a Refold log)"):
        await SQLiteStore.open(log)


async def test_a_log_that_is_cut_while_it_is_open_is_written_no_more(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        for version in range(300):
            await store.append([batch("session/a", 100 * version, 100)])
        CUTS["in the middle"](log)
        for _ in range(2):
            with pytest.raises(PersistenceError, match=r"events\.db: it was cut while the log was open"):
                await store.append([batch("session/b", 0)])


async def test_others_may_empty_a_wal_by_checkpoints_at_any_time(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        for version in range(12):
            await store.append([batch("session/a", version)])
            with contextlib.closing(sqlite3.connect(log)) as connection:
                connection.execute(f"PRAGMA wal_checkpoint({('TRUNCATE', 'RESTART', 'PASSIVE')[version % 3]})")
        with contextlib.closing(sqlite3.connect(log)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await store.append([batch("session/a", 12)])
        assert len(await store.read_all()) == 13


LOSSES: dict[str, Callable[[Path], None]] = {
    "the WAL is removed": lambda log: wal(log).unlink(),
    "the WAL is cut by one byte": lambda log: os.truncate(wal(log), wal(log).stat().st_size - 1),
    "the WAL is cut to nothing": lambda log: os.truncate(wal(log), 0),
    "a bit of the WAL is wrong": lambda log: overwritten(wal(log), 40),
}


@pytest.mark.parametrize("how", LOSSES)
async def test_what_was_acknowledged_and_is_not_there_is_missed_at_the_opening_and_by_a_look(
    log: Path, tmp_path: Path, how: str
) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        await store.append([batch("session/b", 0, 3)])
        crashed = copied(log, tmp_path / "crashed")
    LOSSES[how](crashed)
    for _ in range(2):
        with pytest.raises(LogFormatError, match=r"up to position 4 had been acknowledged.*`refold repair"):
            await SQLiteStore.open(crashed)
    async with await SQLiteStore.open(crashed, read_only=True) as store:
        assert any("up to position 4 had been acknowledged" in line for line in await store.find_damage())
    crashed.with_name(crashed.name + HEAD_SUFFIX).unlink()
    async with await SQLiteStore.open(crashed) as store:  # The user's word.
        version = len(await store.read_stream("session/a"))
        await store.append([batch("session/a", version)])


async def test_a_crash_loses_nothing_and_an_older_copy_is_seen(log: Path, tmp_path: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        older = copied(log, tmp_path / "older")
        await store.append([batch("session/a", 1)])
        crashed = copied(log, tmp_path / "crashed")
    assert not log.with_name(log.name + HEAD_SUFFIX).exists()
    for copy, versions in ((older, 1), (crashed, 2)):
        async with await SQLiteStore.open(copy) as store:
            assert len(await store.read_stream("session/a")) == versions
    crashed = copied(log, tmp_path / "again")
    async with await SQLiteStore.open(crashed) as store:
        await store.append([batch("session/a", 2)])
        head = crashed.with_name(crashed.name + HEAD_SUFFIX).read_bytes()
    shutil.copy(older, crashed)
    crashed.with_name(crashed.name + HEAD_SUFFIX).write_bytes(head)
    with pytest.raises(LogFormatError, match="or an older copy is in its place"):
        await SQLiteStore.open(crashed)


@pytest.mark.parametrize("damage", [b"", b"RFLH", bytes(60), b"x" * 60])
async def test_what_says_how_far_was_acknowledged_may_be_damaged_itself(log: Path, damage: bytes) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
    log.with_name(log.name + HEAD_SUFFIX).write_bytes(damage)
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 1)])


async def test_a_log_that_may_lose_its_end_with_the_power_does_not_say_how_far_it_is(log: Path) -> None:
    async with await SQLiteStore.open(log, durability="normal") as store:
        await store.append([batch("session/a", 0)])
        assert not log.with_name(log.name + HEAD_SUFFIX).exists()


async def test_a_new_log_in_the_place_of_one_that_was_deleted_owes_nothing(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        head = content(log.with_name(log.name + HEAD_SUFFIX))
    os.unlink(log)
    log.with_name(log.name + HEAD_SUFFIX).write_bytes(head)
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/b", 0)])


async def test_frames_are_those_that_sqlite_takes(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        for version in range(5):
            await store.append([batch("session/a", version)])
        data = wal(log).read_bytes()
    frames = list(committed_frames(data))
    assert frames[-1].ends_transaction
    pages = {frame.page: frame.content for frame in frames}
    main = content(log)
    assert all(main[(page - 1) * PAGE_BYTES : page * PAGE_BYTES] == written for page, written in pages.items())
    assert list(committed_frames(data[:-1])) == frames[: len(list(committed_frames(data[:-1])))]
    assert not list(committed_frames(b"x" + data[1:]))


async def test_snapshots_between_appends_are_no_other_wal(tmp_path: Path) -> None:
    async with await SQLiteStore.open(tmp_path / "events.db") as store:
        for number in range(80):  # Twice as much as SQLite keeps in a WAL before it begins it anew.
            data = payload(f"{number}".encode() * 50_000)
            (place,) = await store.append([batch("session/s", number)], data)
            snapshot = Snapshot(
                stream=place.stream, version=place.version, chain=place.chain, fold_version=1, state=b"s" * 100_000
            )
            await store.save_snapshot(snapshot)
        assert len(await store.read_stream("session/s")) == 80
