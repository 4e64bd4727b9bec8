"""Reading a log that another store owns, has just left, or is about to take."""

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from refold.events.core.errors import PersistenceError
from refold.stores import SQLiteStore, batch
from refold.stores.sqlite.connection import SQLiteConnection


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def remove(log: Path) -> None:
    log.unlink()


async def test_a_reader_leaves_no_trace_beside_a_log_that_nobody_owns(log: Path) -> None:
    async with await SQLiteStore.open(log) as owner:
        await owner.append([batch("session/a", 0, 3)])
    before = contents(log.parent)
    async with await SQLiteStore.open(log, read_only=True) as reader:
        assert len(await reader.read_all()) == 3
        assert contents(log.parent) == before
    assert contents(log.parent) == before
    assert sorted(before) == ["events.db", "events.db.lock"]


async def test_a_reader_follows_owners_that_come_and_go(log: Path) -> None:
    async with await SQLiteStore.open(log) as owner:
        await owner.append([batch("session/a", 0)])
        reader = await SQLiteStore.open(log, read_only=True)
        for version in range(1, 4):
            await owner.append([batch("session/a", version)])
            assert len(await reader.read_all()) == version + 1
    assert len(await reader.read_all()) == 4
    for version in range(4, 8):
        async with await SQLiteStore.open(log) as owner:
            assert len(await reader.read_all()) == version
            await owner.append([batch("session/a", version)])
            assert len(await reader.read_all()) == version + 1
        assert len(await reader.read_all()) == version + 1
    await reader.close()
    async with await SQLiteStore.open(log):
        pass
    assert sorted(contents(log.parent)) == ["events.db", "events.db.lock"]


async def test_a_reader_that_was_idle_sees_what_an_owner_wrote_and_checked_in_meanwhile(log: Path) -> None:
    async with await SQLiteStore.open(log) as owner:
        await owner.append([batch("session/a", 0)])
    async with await SQLiteStore.open(log, read_only=True) as reader:
        assert len(await reader.read_all()) == 1
        async with await SQLiteStore.open(log) as owner:
            await owner.append([batch("session/a", 1, 900)])
        assert [event.version for event in await reader.read_stream("session/a")] == list(range(1, 902))


async def test_a_log_whose_owner_died_is_read_with_what_is_in_its_wal(log: Path) -> None:
    copy = log.with_name("copy.db")
    async with await SQLiteStore.open(log) as owner:
        await owner.append([batch("session/a", 0, 3)])
        for suffix in ("", "-wal"):
            shutil.copy(log.with_name(log.name + suffix), copy.with_name(copy.name + suffix))
    async with await SQLiteStore.open(copy, read_only=True) as reader:
        assert len(await reader.read_all()) == 3


async def test_several_reads_at_once_share_one_connection(log: Path) -> None:
    async with await SQLiteStore.open(log) as owner:
        await owner.append([batch("session/a", 0, 3)])
    async with await SQLiteStore.open(log, read_only=True) as reader, await SQLiteStore.open(log):
        pages = await asyncio.gather(*(reader.read_all() for _ in range(20)))
    assert [len(page) for page in pages] == [3] * 20


async def test_a_log_that_was_removed_is_an_error_that_names_it(log: Path) -> None:
    async with await SQLiteStore.open(log):
        pass
    async with await SQLiteStore.open(log, read_only=True) as reader:
        remove(log)
        with pytest.raises(PersistenceError, match=r"events\.db"):
            await reader.read_all()


async def test_reads_do_not_wait_for_a_writer_in_the_middle_of_a_transaction(log: Path) -> None:
    async with await SQLiteStore.open(log) as owner:
        await owner.append([batch("session/a", 0)])
        with contextlib.closing(sqlite3.connect(log, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("DELETE FROM events")
            assert len(await owner.read_all()) == 1
            async with await SQLiteStore.open(log, read_only=True) as reader:
                assert len(await reader.read_all()) == 1
            writer.execute("ROLLBACK")


async def test_a_cancelled_read_does_not_disturb_the_next(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0, 1000)])
        for steps in range(6):
            reading = asyncio.ensure_future(store.read_stream("session/a"))
            for _ in range(steps):
                await asyncio.sleep(0)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            assert len(await store.read_stream("session/a")) == 1000


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "reopened"])
async def test_a_connection_that_opens_while_its_store_lets_go_of_the_file_is_closed(log: Path, closed: bool) -> None:
    opened: list[SQLiteConnection] = []
    opening, go_on = asyncio.Event(), asyncio.Event()
    go_on.set()

    async def connect(uri: str) -> SQLiteConnection:
        connection = await SQLiteConnection.open(uri)
        opened.append(connection)
        opening.set()
        await go_on.wait()
        return connection

    store = await SQLiteStore.open(log, connect=connect)
    await store.append([batch("session/a", 0)])
    await store.reopen()
    go_on.clear()
    opening.clear()
    reading = asyncio.ensure_future(store.read_all())
    await opening.wait()
    letting_go = asyncio.ensure_future(store.close() if closed else store.reopen())
    await asyncio.sleep(0.01)
    go_on.set()
    await letting_go
    if closed:
        with pytest.raises(PersistenceError, match="closed"):
            await reading
    else:
        assert len(await reading) == 1
        await store.close()
    for connection in opened:
        with pytest.raises(PersistenceError, match="closed"):
            connection.submit(lambda _: None)
