"""What a store tells of itself beyond the contract, so that its whole log can be copied."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from refold.events.core.errors import LogFormatError, PersistenceError, StreamDeleted, WrongExpectedVersion
from refold.events.core.ids import PayloadHash, StreamName
from refold.events.core.records import EncodedBatch, Snapshot, StreamHead
from refold.stores import InMemoryStore, SQLiteStore
from refold.stores.event_store import ErasableLog, ListedPayload, WholeLog
from refold.stores.keeping.erasing import erase
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


@pytest.mark.parametrize("kind", KINDS)
async def test_streams_are_deleted_whole_and_leave_a_tombstone(tmp_path: Path, kind: str) -> None:
    store = cast("ErasableLog", await made(tmp_path, kind))
    own, shared, late = (payload(name * 300) for name in (b"own", b"shared", b"late"))
    names = [name for kept in (own, shared, late) for name in kept]

    def naming(stream: str, version: int, *payloads: str) -> EncodedBatch:
        return EncodedBatch(
            stream=StreamName(stream), expected_version=version, at=version, events=(repr([*payloads]).encode(),)
        )

    await store.append([naming("session/a", 0, *names), batch("session/b", 0, 3)], {**own, **shared, **late})
    await store.append([naming("session/c", 0, names[1]), naming("session/a", 1)])
    await store.save_snapshot(
        Snapshot(stream=StreamName("session/a"), version=1, chain=b"c" * 32, fold_version=1, state=b"words")
    )
    stale, others = await store.head("session/b"), await store.read_stream("session/c")
    await store.append([batch("session/b", 3)])
    [a, b, _] = await store.list_streams()
    assert stale is not None
    for wrong in (stale, StreamHead(stream=StreamName("session/x"), version=1, chain=b"", pending=())):
        with pytest.raises(WrongExpectedVersion):
            await store.delete_streams([a, wrong], names, after_position=0, at=1)
    assert [each.stream for each in await store.list_streams()] == ["session/a", "session/b", "session/c"]
    # What the caller has looked at reaches to this position; behind it, an event names a payload.
    await store.append([naming("session/c", 1, names[2])])
    erased = await erase(store, [[a], [b]], at=9, kept=[PayloadHash("no such payload")])
    assert (erased.events, erased.payloads, erased.shared_payloads, erased.went_on) == (6, 1, 2, [])
    assert await store.read_payloads(names) == {**shared, **late}
    assert (await store.read_stream("session/c"))[:1] == others
    assert await store.read_stream("session/a") == []
    assert await store.load_snapshot("session/a") is None
    tombstones = await store.list_tombstones(limit=9)
    assert [(each.stream, each.version, each.chain, each.at) for each in tombstones] == [
        ("session/a", 2, a.chain, 9),
        ("session/b", 4, b.chain, 9),
    ]
    assert await store.list_tombstones(after_position=tombstones[0].position, limit=9) == tombstones[1:]
    assert await store.find_tombstone("session/b") == tombstones[1]
    assert await store.find_tombstone("session/c") is None
    assert await store.removed_position() == tombstones[1].position
    for version in (0, 2):
        with pytest.raises(StreamDeleted, match="session/a was deleted"):
            await store.append([batch("session/d", 0), batch("session/a", version)])
    [place] = await store.append([batch("session/d", 0)])
    assert place.position > tombstones[1].position
    assert await store.empty_wal()
    await store.close()


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
    """Change rows as a person does who edits the file: the types that tables demand do not bind there."""
    with closing(sqlite3.connect(log, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = replace(sql, ' STRICT', '') WHERE type = 'table'")
    with closing(sqlite3.connect(log, isolation_level=None)) as connection:
        connection.execute(statement)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = sql || ' STRICT' WHERE type = 'table' AND sql NOT LIKE '% STRICT'"
        )
