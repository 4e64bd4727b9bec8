"""The plans that keep reads from growing with the log."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from refold.stores import SQLiteStore, batch
from refold.stores.sqlite import read as sqlite_read
from refold.stores.sqlite import store as sqlite_store


async def plan(log: Path, statement: str, *values: object) -> str:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch(f"session/{number}", 0, pending=("model",) * (number % 2)) for number in range(20)])
    with contextlib.closing(sqlite3.connect(log)) as connection:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
    return "\n".join(detail for *_, detail in rows)


async def test_streams_with_pending_effects_are_found_in_their_own_index(tmp_path: Path) -> None:
    found = await plan(tmp_path / "events.db", sqlite_read.LIST_STREAMS_WITH_PENDING, b"", b"", b"\xff", -1)
    assert "USING INDEX streams_with_pending (name>? AND name<?)" in found
    assert "TEMP B-TREE" not in found


async def test_a_page_of_streams_is_found_in_the_index_of_names(tmp_path: Path) -> None:
    found = await plan(tmp_path / "events.db", sqlite_read.LIST_STREAMS, b"", b"", b"\xff", -1)
    assert "USING INDEX sqlite_autoindex_streams_1 (name>? AND name<?)" in found
    assert "TEMP B-TREE" not in found


async def test_the_events_of_a_stream_are_found_in_the_index_of_versions(tmp_path: Path) -> None:
    found = await plan(tmp_path / "events.db", sqlite_read.READ_STREAM, b"session/1", 0, -1)
    assert "USING INDEX sqlite_autoindex_events_1 (stream=? AND version>?)" in found
    assert "TEMP B-TREE" not in found


async def test_a_page_of_the_log_is_found_by_position(tmp_path: Path) -> None:
    found = await plan(tmp_path / "events.db", sqlite_read.READ_ALL, 0, 10)
    assert "SEARCH events USING INTEGER PRIMARY KEY (rowid>?)" in found
    assert "TEMP B-TREE" not in found


async def test_a_search_reads_a_part_of_the_log_at_a_time_and_finds_what_the_whole_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "POSITIONS_PER_READ", 2)
    async with await SQLiteStore.open(tmp_path / "events.db") as store:
        for number in range(5):
            await store.append([batch(f"session/{number}", 0, events=3)])
        assert await store.streams_with(b'{"type":"test.v1","n":3') == [f"session/{number}" for number in range(5)]
        assert await store.streams_with(b'{"type":"test.v2"') == []
        assert await store.streams_with(b'{"type":"test.v1"') == [f"session/{number}" for number in range(5)]
    found = await plan(tmp_path / "other.db", sqlite_read.STREAMS_WITH, 0, 0, 10, b"x", b"x")
    assert "SEARCH events USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)" in found
