"""Values in the file of a log: beside the events, and never in their way."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say
from refold.events.core.errors import ConfigError, LogFormatError, LogInUse, PersistenceError
from refold.inspection.check import check_log
from refold.stores import InMemoryStore, SQLiteBackend, SQLiteStore, batch
from refold.stores.jsonl.export import exported_lines


async def open_store(folder: Path) -> SQLiteStore:
    return await SQLiteStore.open(folder / "events.db")


def tables_of(log: Path) -> set[str]:
    connection = sqlite3.connect(log)
    try:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    finally:
        connection.close()


async def test_a_runtime_keeps_values_in_its_own_log(log: Path) -> None:
    async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([say("Hi.")]), log=log) as runtime:
        values = SQLiteBackend(runtime.store)
        assert values.name == str(log)
        assert await values.load("key") is None
        await (await runtime.session("alice")).send("Hello")
        await values.save("key", b"value")
    async with await SQLiteStore.open(log, read_only=True) as store:
        assert await SQLiteBackend(store).load("key") == b"value"
        with pytest.raises(PersistenceError, match="reading only"):
            await SQLiteBackend(store).save("key", b"other")
        assert (await check_log(store)).sound


async def test_a_log_gets_the_table_with_its_first_value_only(tmp_path: Path) -> None:
    async with await open_store(tmp_path) as store:
        values = SQLiteBackend(store)
        await values.delete("key")
        assert (await values.list_keys(), await values.key_count(), await values.exists("key")) == ([], 0, False)
    assert "kept_values" not in tables_of(tmp_path / "events.db")
    async with await open_store(tmp_path) as store:
        await SQLiteBackend(store).save("key", b"1")
    assert "kept_values" in tables_of(tmp_path / "events.db")


async def test_events_go_on_as_if_there_were_no_values(tmp_path: Path) -> None:
    plain = InMemoryStore()
    async with await open_store(tmp_path) as store:
        values = SQLiteBackend(store)
        for version in range(20):
            saving = asyncio.ensure_future(values.save(str(version % 3), b"%d" % version))
            (place,) = await store.append([batch("session/a", version)])
            assert [place] == await plain.append([batch("session/a", version)])
            await saving
        assert await store.read_all() == await plain.read_all()
        assert await values.batch_load("012") == [b"18", b"19", b"17"]


async def test_an_export_carries_the_events_and_leaves_values_behind(tmp_path: Path) -> None:
    lines = []
    for folder, with_values in ((tmp_path / "a", True), (tmp_path / "b", False)):
        folder.mkdir()
        async with await open_store(folder) as store:
            await store.append([batch("session/a", 0, 3)])
            if with_values:
                await SQLiteBackend(store).save("key", b"value")
            lines.append([line async for line in exported_lines(store)])
    assert lines[0] == lines[1]


async def test_a_stale_owner_saves_nothing(tmp_path: Path) -> None:
    async with await open_store(tmp_path) as store:
        values = SQLiteBackend(store)
        await values.save("key", b"mine")
        connection = sqlite3.connect(tmp_path / "events.db")
        connection.execute("UPDATE log SET incarnation = incarnation + 1")
        connection.commit()
        connection.close()
        with pytest.raises(LogInUse):
            await values.save("key", b"stale")
        with pytest.raises(LogInUse):
            await values.delete("key")
        assert await values.load("key") == b"mine"


async def test_a_table_that_somebody_else_made_is_refused_and_left_alone(tmp_path: Path) -> None:
    async with await open_store(tmp_path) as store:
        await store.append([batch("session/a", 0)])
    connection = sqlite3.connect(tmp_path / "events.db")
    connection.execute("CREATE VIEW kept_values AS SELECT x'6b' AS key, x'76' AS value")
    connection.commit()
    connection.close()
    async with await open_store(tmp_path) as store:
        values = SQLiteBackend(store)
        for call in (
            values.load("k"),
            values.save("k", b""),
            values.list_keys(),
            values.key_count(),
            values.delete("k"),
        ):
            with pytest.raises(LogFormatError, match="kept_values"):
                await call
        await store.append([batch("session/a", 1)])


async def test_a_damaged_file_is_told_with_the_key(tmp_path: Path, log: Path) -> None:
    async with await open_store(tmp_path) as store:
        await SQLiteBackend(store).save("key", b"x" * 200_000)
    with log.open("r+b") as file:  # The last pages are those of the value.
        file.seek(-100_000, 2)
        file.write(b"\xff" * 100_000)
    async with await SQLiteStore.open(log, read_only=True) as store:
        loaded: bytes | PersistenceError | None
        try:
            loaded = await SQLiteBackend(store).load("key")
        except PersistenceError as error:
            loaded = error
        assert isinstance(loaded, LogFormatError)
        assert "'key'" in str(loaded)


@pytest.mark.parametrize("point", ["locked", "full"])
async def test_a_save_that_fails_names_the_key_and_the_log_and_changes_nothing(tmp_path: Path, point: str) -> None:
    async with await open_store(tmp_path) as store:
        values = SQLiteBackend(store)
        await values.save("key", b"old")
        other = sqlite3.connect(tmp_path / "events.db", isolation_level=None)
        if point == "locked":
            await store.change_beside(_wait_for_nobody, "x")
            other.execute("BEGIN IMMEDIATE")
        else:
            await store.change_beside(_no_more_pages, "x")
        with pytest.raises(PersistenceError, match=r"'key' could not be saved in .*events\.db") as caught:
            await values.save("key", b"x" * 1_000_000)
        assert caught.value.outcome_unknown is False
        other.close()
        assert await values.load("key") == b"old"
        await store.append([batch("session/a", 0)])


def _wait_for_nobody(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA busy_timeout = 0")


def _no_more_pages(connection: sqlite3.Connection) -> None:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 20}")


async def test_a_store_that_is_no_sqlite_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="InMemoryStore"):
        SQLiteBackend(InMemoryStore())
