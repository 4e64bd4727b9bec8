"""What a store tells of itself beyond the contract, so that its whole log can be copied."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.stores import InMemoryStore, SQLiteStore
from refold.stores.event_store import ListedPayload, WholeLog
from refold.stores.sample_batches import batch, payload

KINDS = ["memory", "events.db"]


async def made(folder: Path, kind: str) -> WholeLog:
    return InMemoryStore() if kind == "memory" else await SQLiteStore.open(folder / kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_payloads_are_listed_in_pages_in_order_of_their_hashes(tmp_path: Path, kind: str) -> None:
    store = await made(tmp_path, kind)
    assert await store.list_payloads(limit=5) == []
    kept = {name: data for number in range(9) for name, data in payload(b"%d" % number * 300).items()}
    for name, data in kept.items():
        await store.append([], {name: data})
    listed: list[ListedPayload] = []
    while page := await store.list_payloads(after=listed[-1].hash if listed else "", limit=2):
        assert len(page) <= 2
        listed += page
    assert [item.hash for item in listed] == sorted(kept)
    assert all(300 <= item.size < 1000 for item in listed)
    assert await store.list_payloads(limit=0) == []
    with pytest.raises(ValueError, match="limit"):
        await store.list_payloads(limit=-1)
    await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_was_removed_from_a_new_log(tmp_path: Path, kind: str) -> None:
    store = await made(tmp_path, kind)
    await store.append([batch("session/a", 0)])
    assert await store.removed_position() == 0
    assert await store.list_tombstones(limit=10) == []
    await store.close()
    for refused in (store.removed_position(), store.list_tombstones(limit=1), store.list_payloads(limit=1)):
        with pytest.raises(PersistenceError, match="closed"):
            await refused


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM log",
        "UPDATE log SET removed_position = 'one'",
        "INSERT INTO tombstones VALUES (1, 'a', 'one', X'00', 0)",
        "INSERT INTO tombstones VALUES (1, 'a', 1, 'text', 'now')",
    ],
)
async def test_rows_that_make_no_sense_are_damage(log: Path, damage: str) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([], payload(b"prompt"))
    damaged_by(log, damage)
    async with await SQLiteStore.open(log, read_only=True) as store:
        with pytest.raises(LogFormatError, match="damaged"):
            await all_removed(store)


async def all_removed(store: WholeLog) -> None:
    await store.removed_position()
    await store.list_tombstones(limit=5)


def damaged_by(log: Path, statement: str) -> None:
    """Change rows as somebody does who edits the file: the types that tables demand do not bind there."""
    with closing(sqlite3.connect(log, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, ' STRICT', '') WHERE type = 'table'")
    with closing(sqlite3.connect(log, isolation_level=None)) as connection:
        connection.execute(statement)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = sql || ' STRICT' WHERE type = 'table' AND sql NOT LIKE '% STRICT'"
        )
