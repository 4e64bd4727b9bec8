"""What a file's schema could make SQLite compute is refused before anything is written."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from refold.events.core.errors import LogFormatError
from refold.stores import SQLiteStore


async def log_with(tmp_path: Path, statement: str) -> Path:
    log = tmp_path / "events.db"
    async with await SQLiteStore.open(log):
        pass
    with closing(sqlite3.connect(log)) as connection, connection:
        connection.execute(statement)
    return log


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX dear ON events (hex(zeroblob(version)))",
        "CREATE INDEX dear ON streams (name, printf('%.*c', 200000000, 'x'))",
        "CREATE INDEX dear ON log (incarnation) WHERE hex(zeroblob(incarnation)) LIKE '%1%'",
        "CREATE UNIQUE INDEX dear ON payloads (length(data))",
    ],
)
async def test_an_index_that_computes_something_at_each_write_is_refused(
    tmp_path: Path, statement: str, read_only: bool
) -> None:
    log = await log_with(tmp_path, statement)
    with pytest.raises(LogFormatError, match="dear; drop them"):
        await SQLiteStore.open(log, read_only=read_only)


async def test_an_index_of_columns_is_the_users_own(tmp_path: Path) -> None:
    log = await log_with(tmp_path, "CREATE UNIQUE INDEX mine ON events (at DESC, position)")
    async with await SQLiteStore.open(log) as store:
        assert await store.read_all() == []
