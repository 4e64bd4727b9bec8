"""What an owner does when its files are deleted, renamed or replaced while it writes."""

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.events.core.errors import PersistenceError
from refold.stores import SQLiteStore, batch


def wal(log: Path) -> Path:
    return log.with_name(log.name + "-wal")


def content(log: Path) -> bytes | None:
    return log.read_bytes() if log.exists() else None


def deleted(log: Path) -> None:
    log.unlink()


def renamed(log: Path) -> None:
    log.rename(log.with_name("moved.db"))


def replaced_by_a_copy(log: Path) -> None:
    shutil.copy(log, log.with_name("copy.db"))
    log.with_name("copy.db").rename(log)


def replaced_by_an_empty_file(log: Path) -> None:
    log.with_name("empty.db").touch()
    log.with_name("empty.db").rename(log)


@pytest.mark.parametrize("happens", [deleted, renamed, replaced_by_a_copy, replaced_by_an_empty_file])
async def test_an_append_to_a_log_that_is_not_in_its_place_is_not_acknowledged(
    log: Path, happens: Callable[[Path], None]
) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        happens(log)
        before = content(log)
        with pytest.raises(PersistenceError, match=r"the log .*events\.db was") as refusal:
            await store.append([batch("session/a", 1)])
        assert refusal.value.outcome_unknown
        for _ in range(2):
            with pytest.raises(PersistenceError, match=r"the log .*events\.db was") as refusal:
                await store.append([batch("session/a", 1)])
            assert not refusal.value.outcome_unknown
        with pytest.raises(PersistenceError, match=r"the log .*events\.db was"):
            await store.reopen()
        with pytest.raises(PersistenceError, match=r"the log .*events\.db was"):
            await store.read_all()
    assert content(log) == before, "nothing is made or written in its place"


async def test_a_log_that_is_put_back_is_written_again(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        renamed(log)
        with pytest.raises(PersistenceError):
            await store.append([batch("session/a", 1)])
        log.with_name("moved.db").rename(log)
        version = len(await store.read_all())
        await store.append([batch("session/a", version)])
    async with await SQLiteStore.open(log, read_only=True) as store:
        assert len(await store.read_all()) == version + 1


async def test_a_new_log_in_the_place_of_a_live_one_keeps_what_is_appended_to_it(log: Path) -> None:
    stale = await SQLiteStore.open(log)
    await stale.append([batch("session/a", 0)])
    for suffix in ("", "-wal", "-shm", ".lock"):
        log.with_name(log.name + suffix).unlink()
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/b", 0)])
        with pytest.raises(PersistenceError, match="replaced"):
            await stale.append([batch("session/a", 1)])
        await stale.close()
        await store.append([batch("session/b", 1)])
    async with await SQLiteStore.open(log, read_only=True) as store:
        assert [event.stream for event in await store.read_all()] == ["session/b", "session/b"]


def wal_deleted(log: Path) -> None:
    wal(log).unlink()


def wal_replaced(log: Path) -> None:
    log.with_name("other").write_bytes(wal(log).read_bytes()[:100])
    log.with_name("other").rename(wal(log))


@pytest.mark.parametrize("happens", [wal_deleted, wal_replaced])
async def test_an_append_whose_wal_is_not_in_its_place_is_in_doubt_and_reopening_saves_it(
    log: Path, happens: Callable[[Path], None]
) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        happens(log)
        with pytest.raises(PersistenceError, match=r"the WAL .*events\.db-wal was") as refusal:
            await store.append([batch("session/a", 1)])
        assert refusal.value.outcome_unknown
        await store.append([batch("session/a", 2)])
        assert len(await store.read_all()) == 3
        assert await store.find_damage() == []
    async with await SQLiteStore.open(log, read_only=True) as store:
        assert len(await store.read_all()) == 3


@pytest.mark.parametrize("in_doubt", [False, True])
async def test_closing_saves_what_only_a_deleted_wal_holds(log: Path, in_doubt: bool) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        wal(log).unlink()
        if in_doubt:
            with pytest.raises(PersistenceError):
                await store.append([batch("session/a", 1)])
    async with await SQLiteStore.open(log, read_only=True) as store:
        assert len(await store.read_all()) == 1 + in_doubt


async def test_a_deleted_wal_is_not_given_up_while_a_reader_keeps_it_from_being_saved(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        with contextlib.closing(sqlite3.connect(log, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM events").fetchall()
            await store.append([batch("session/a", 1)])
            wal(log).unlink()
            with pytest.raises(PersistenceError, match="WAL"):
                await store.append([batch("session/a", 2)])
            with pytest.raises(PersistenceError, match="while others read"):
                await store.append([batch("session/a", 3)])
        await store.append([batch("session/a", 3)])
        assert len(await store.read_all()) == 4


async def test_checkpoints_and_readers_that_come_and_go_do_not_look_like_a_loss(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        for version in range(5):
            await store.append([batch("session/a", version)])
            with contextlib.closing(sqlite3.connect(log)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            async with await SQLiteStore.open(log, read_only=True) as reader:
                assert len(await reader.read_all()) == version + 1
        await store.reopen()
        await store.append([batch("session/a", 5)])


@pytest.mark.parametrize("living", [False, True])
async def test_a_log_with_two_names_is_read_and_not_written(log: Path, living: bool) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        await store.reopen()
        if living:
            os.link(log, log.with_name("other.db"))
            with pytest.raises(PersistenceError, match=r"other\.db has 2 names \(hard links\)"):
                await SQLiteStore.open(log.with_name("other.db"))
            await store.append([batch("session/a", 1)])
    if not living:
        os.link(log, log.with_name("other.db"))
    for name in ("events.db", "other.db"):
        with pytest.raises(PersistenceError, match=r"has 2 names \(hard links\)"):
            await SQLiteStore.open(log.with_name(name))
        async with await SQLiteStore.open(log.with_name(name), read_only=True) as store:
            assert len(await store.read_all()) == 1 + living
    log.with_name("other.db").unlink()
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 1 + living)])


async def test_a_deleted_log_is_not_made_again_by_reopening(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        deleted(log)
        with pytest.raises(PersistenceError, match="deleted or renamed"):
            await store.reopen()
    assert content(log) is None
