"""The file of a log: which files are logs, what is refused and left alone, and what a new one looks like."""

# The loop of a test waits for nothing else.
# ruff: noqa: ASYNC240

import asyncio
import contextlib
import errno
import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from refold.events.core.errors import ConfigError, LogFormatError, LogInUse, PersistenceError, RefoldError
from refold.events.core.records import Snapshot
from refold.stores import SQLiteStore, log_owner
from refold.stores.sample_batches import batch, expected_events, payload
from refold.stores.sqlite.file import APPLICATION_ID, FORMAT_VERSION, PAGE_BYTES, known_fault, prepare_for_writing
from tests.stores.conftest import unprivileged


async def make_log(log: Path, events: int = 3) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0, events)])
    log.with_name(log.name + ".lock").unlink()


def change(log: Path, *statements: str) -> None:
    connection = sqlite3.connect(log)
    try:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    finally:
        connection.close()


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        path.name: path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(folder.iterdir())
    }


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


NO_LOGS: dict[str, Callable[[Path], object]] = {
    "a text file": lambda log: log.write_text("Dear diary,\n" * 1000),
    "a short text file": lambda log: log.write_text("x"),
    "a database of another application": lambda log: change(log, "CREATE TABLE t (x)", "PRAGMA application_id = 7"),
    "a database with a WAL": lambda log: change(log, "PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"),
    "an empty database with our mark": lambda log: change(
        log, f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {FORMAT_VERSION}"
    ),
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
}

SPOILED: dict[str, tuple[str, Callable[[Path], object]]] = {
    "cut short": ("cut short", lambda log: os.truncate(log, log.stat().st_size // 2)),
    "cut to less than a header": ("not a Refold log", lambda log: os.truncate(log, 50)),
    "from a newer Refold": ("newer", lambda log: change(log, f"PRAGMA user_version = {FORMAT_VERSION + 1}")),
    "of format 0": (
        r"events\.db is damaged: it has format 0",
        lambda log: change(log, "PRAGMA user_version = 0"),
    ),
    "of format -1": (
        r"events\.db is damaged: it has format -1",
        lambda log: change(log, "PRAGMA user_version = -1"),
    ),
    "without an index": ("streams_with_pending", lambda log: change(log, "DROP INDEX streams_with_pending")),
    "with another form of a table": (
        "snapshots",
        lambda log: change(log, "ALTER TABLE snapshots ADD COLUMN extra TEXT"),
    ),
    "with a trigger": (
        "evil",
        lambda log: change(log, "CREATE TRIGGER evil AFTER INSERT ON events BEGIN DELETE FROM events; END"),
    ),
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("what", [*NO_LOGS, *SPOILED])
async def test_what_is_no_log_or_damaged_or_newer_is_refused_and_left_as_it_was(
    log: Path, what: str, read_only: bool
) -> None:
    if what in NO_LOGS:
        reason, spoil = r"events\.db", NO_LOGS[what]
    else:
        reason, spoil = SPOILED[what]
        await make_log(log, events=1000)
    spoil(log)
    before = contents(log.parent)
    with pytest.raises(LogFormatError, match=reason):
        await SQLiteStore.open(log, read_only=read_only)
    assert contents(log.parent) == before


async def test_tables_and_indexes_of_the_user_do_no_harm(log: Path) -> None:
    await make_log(log)
    change(log, "CREATE TABLE notes (x)", "CREATE INDEX by_time ON events (at)", "ANALYZE")
    async with await SQLiteStore.open(log) as store:
        assert len(await store.read_all()) == 3


async def test_a_damaged_page_is_an_error_that_names_the_stream(log: Path) -> None:
    await make_log(log, events=5000)
    with log.open("r+b") as file:
        file.seek(log.stat().st_size // 2)
        file.write(b"\xab" * 2 * PAGE_BYTES)
    async with await SQLiteStore.open(log, read_only=True) as store:
        with pytest.raises(LogFormatError, match="session/a"):
            await store.read_stream("session/a")
        assert await store.find_damage()


@pytest.mark.parametrize("column", ["correlation", "causation", "pending"])
async def test_text_that_is_not_unicode_is_an_error_that_names_the_stream(log: Path, column: str) -> None:
    await make_log(log)
    change(log, f"UPDATE events SET {column} = CAST(x'FF' AS TEXT)")
    async with await SQLiteStore.open(log) as store:
        with pytest.raises(LogFormatError, match="session/a"):
            await store.read_stream("session/a")


def change_past_the_checks(log: Path, statement: str) -> None:
    """Change the file as who edits its pages can: no column has a type, and none must have a value."""
    with contextlib.closing(sqlite3.connect(log)) as connection:
        schema = connection.execute("SELECT sql, name FROM sqlite_schema WHERE sql LIKE '%STRICT%'").fetchall()
    loose = [(re.sub(r" STRICT| NOT NULL| TEXT", "", sql), name) for sql, name in schema]
    for forms, then in ((loose, None), (schema, statement)):
        if then is not None:
            change(log, then)
        with contextlib.closing(sqlite3.connect(log)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.executemany("UPDATE sqlite_schema SET sql = ? WHERE name = ?", forms)
            connection.commit()


READS: dict[str, tuple[str, tuple[Callable[[SQLiteStore], Awaitable[object]], ...]]] = {
    "event": (
        r"the event at position \d",
        (lambda store: store.read_stream("session/a"), lambda store: store.read_all()),
    ),
    "end": (
        "the end of stream 'session/a'",
        (
            lambda store: store.head("session/a"),
            lambda store: store.list_streams(),
        ),
    ),
    "name": (".*stream.* name", (lambda store: store.read_all(),)),
    "payload": ("the payload", (lambda store: store.read_payloads(payload(b"prompt")),)),
    "snapshot": ("the snapshot of stream 'session/a'", (lambda store: store.load_snapshot("session/a"),)),
}
"""What must be refused where rows of a sort are damaged, and what is said."""


@pytest.mark.parametrize(
    ("what", "change_of_row"),
    [
        ("event", "correlation = ''"),
        ("event", "causation = ''"),
        ("event", "correlation = 7"),
        ("event", "version = 'x' WHERE version = 2"),
        ("event", "version = 2.5 WHERE version = 2"),
        ("event", "batch = NULL"),
        ("event", "batch = 'x'"),
        ("event", "at = NULL"),
        ("event", "at = 'yesterday'"),
        ("event", "data = NULL"),
        ("event", "data = 7"),
        ("event", "chain = NULL"),
        ("event", "chain = 7"),
        ("event", "pending = NULL"),
        ("event", "pending = 0"),
        ("end", "version = NULL"),
        ("end", "version = 'x'"),
        ("end", "chain = NULL"),
        ("end", "pending = NULL"),
        ("end", "pending = 7"),
        ("name", "name = NULL"),
        ("name", "name = 7"),
        ("payload", "data = NULL"),
        ("snapshot", "fold_version = 'x'"),
    ],
)
async def test_a_row_that_refold_did_not_write_is_an_error_that_names_the_log_and_the_place(
    log: Path, what: str, change_of_row: str
) -> None:
    async with await SQLiteStore.open(log) as store:
        (place,) = await store.append([batch("session/a", 0, 3)], payload(b"prompt"))
        await store.save_snapshot(
            Snapshot(stream=place.stream, version=1, chain=place.chain, fold_version=1, state=b"")
        )
    table = {"end": "streams", "name": "streams"}.get(what, f"{what}s")
    change_past_the_checks(log, f"UPDATE {table} SET {change_of_row}")
    said, calls = READS[what]
    async with await SQLiteStore.open(log, read_only=True) as store:
        for call in calls:
            with pytest.raises(LogFormatError, match=rf"events\.db is damaged: {said}"):
                await call(store)
    if what == "end":
        with pytest.raises(LogFormatError, match=r"streams\.(version|chain|pending); `refold check .*`refold repair"):
            await SQLiteStore.open(log)


@pytest.mark.parametrize("damage", ["data = zeroblob(20000)", "data = x''", "data = data", None])
async def test_a_payload_whose_bytes_are_damaged_is_whole_once_it_is_given_again(
    log: Path, damage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    kept, other = payload(b"x" * 20_000), payload(b"prompt")
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)], kept | other)
    where = f"WHERE hash = '{next(iter(kept))}'"
    change(log, f"UPDATE payloads SET {damage} {where}" if damage else f"DELETE FROM payloads {where}")
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 1)], kept | other | payload(b"new"))
        assert await store.read_payloads([*kept, *other]) == kept | other
    assert caplog.messages.count(f"{log}: 1 damaged payloads were given again and are written anew") == (
        damage not in ("data = data", None)
    )


async def test_a_payload_that_cannot_be_compared_with_what_is_there_is_refused_and_nothing_else(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = payload(b"x" * 3 * PAGE_BYTES)
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)], kept)
    content = log.read_bytes()
    page = content.find(b"x" * (PAGE_BYTES - 4)) // PAGE_BYTES
    log.write_bytes(b"".join([content[: page * PAGE_BYTES], bytes(PAGE_BYTES), content[(page + 1) * PAGE_BYTES :]]))
    monkeypatch.setattr("refold.stores.sqlite.file.LOOK_PAGES_MAX", 0)  # As of a large log.
    async with await SQLiteStore.open(log) as store:
        with pytest.raises(LogFormatError, match=r"the append .* failed: the file is damaged"):
            await store.append([batch("session/a", 1)], kept)
        await store.append([batch("session/a", 1)], payload(b"other"))


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM log",
        f"UPDATE log SET incarnation = {2**63 - 1}",
        "UPDATE log SET incarnation = -1",
        "UPDATE log SET incarnation = NULL",
        "UPDATE log SET incarnation = 'x'",
        "UPDATE log SET removed_position = 'x'",
    ],
)
async def test_a_log_without_a_usable_incarnation_is_not_opened_for_writing(log: Path, statement: str) -> None:
    await make_log(log)
    change_past_the_checks(log, statement)
    with pytest.raises(LogFormatError, match=r"events\.db is damaged: (its table `log`|.* log\.)"):
        await SQLiteStore.open(log)
    async with await SQLiteStore.open(log, read_only=True) as store:
        assert len(await store.read_all()) == 3


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM log",
        f"UPDATE log SET removed_position = {2**63 - 1}",
        f"UPDATE events SET position = {2**63 - 1} WHERE version = 3",
    ],
)
async def test_an_append_after_a_last_position_that_cannot_be_writes_nothing(log: Path, statement: str) -> None:
    await make_log(log)
    change_past_the_checks(log, "SELECT 1" if statement.startswith("DELETE") else statement)
    async with await SQLiteStore.open(log) as store:
        if statement.startswith("DELETE"):
            change(log, statement)
        with pytest.raises(LogFormatError, match=r"events\.db is damaged"):
            await store.append([batch("session/a", 3)])
        assert len(await store.read_all()) == 3


@pytest.mark.parametrize("length", [243, 244, 250, 251, 255, 256, 5000])
async def test_a_name_that_is_too_long_is_an_error_of_ours_or_none(tmp_path: Path, length: int) -> None:
    await make_log(tmp_path / "events.db")
    log = tmp_path / ("x" * length)
    for read_only in (False, True):
        with contextlib.suppress(PersistenceError):
            await (await SQLiteStore.open(log, read_only=read_only)).close()
    with contextlib.suppress(PersistenceError):
        assert log_owner(log) is None
    if length <= 251:
        (tmp_path / "events.db").rename(log)
        async with await SQLiteStore.open(log, read_only=True) as store:
            assert len(await store.read_all()) == 3


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        ("events\0.db", ConfigError, "names no file"),
        ("\ud800.db", ConfigError, "names no file"),
        ("", ConfigError, "InMemoryStore"),
        (":memory:", ConfigError, "InMemoryStore"),
        ("missing/events.db", PersistenceError, r"folder .*missing"),
        ("file/events.db", PersistenceError, "file"),
    ],
)
async def test_a_path_where_no_log_can_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, error: type[RefoldError], said: str, read_only: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(error, match=said):
        await SQLiteStore.open(path, read_only=read_only)


async def test_reading_makes_no_log(tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="does not exist"):
        await SQLiteStore.open(tmp_path / "events.db", read_only=True)
    (tmp_path / "empty.db").touch()
    with pytest.raises(LogFormatError, match="empty"):
        await SQLiteStore.open(tmp_path / "empty.db", read_only=True)
    assert contents(tmp_path) == {"empty.db": b""}


async def test_an_empty_file_becomes_a_log(tmp_path: Path) -> None:
    (tmp_path / "events.db").touch()
    await make_log(tmp_path / "events.db")
    assert stat.S_IMODE((tmp_path / "events.db").stat().st_mode) == 0o600


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
async def test_a_wal_left_without_its_log_is_not_mixed_into_a_new_one(tmp_path: Path, suffix: str, empty: bool) -> None:
    if empty:
        (tmp_path / "events.db").touch()
    (tmp_path / f"events.db{suffix}").write_bytes(b"pages of a log that is gone")
    with pytest.raises(LogFormatError, match=suffix):
        await SQLiteStore.open(tmp_path / "events.db")
    assert (tmp_path / f"events.db{suffix}").read_bytes() == b"pages of a log that is gone"


async def test_a_symbolic_link_is_not_written_through(tmp_path: Path) -> None:
    await make_log(tmp_path / "events.db")
    (tmp_path / "link.db").symlink_to("events.db")
    (tmp_path / "dangling.db").symlink_to("nowhere.db")
    before = contents(tmp_path)
    for name in ("link.db", "dangling.db"):
        with pytest.raises(PersistenceError, match="symbolic link"):
            await SQLiteStore.open(tmp_path / name)
    assert contents(tmp_path) == before
    async with await SQLiteStore.open(tmp_path / "link.db", read_only=True) as store:
        assert len(await store.read_all()) == 3


async def test_new_files_are_for_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with await SQLiteStore.open(tmp_path / "events.db") as store:
            await store.append([batch("session/a", 0)])
            found = modes(tmp_path)
    finally:
        os.umask(before)
    assert found == dict.fromkeys(
        ["events.db", "events.db-wal", "events.db-shm", "events.db.head", "events.db.lock"], 0o600
    )


async def test_closing_leaves_one_file_and_its_lock(tmp_path: Path) -> None:
    async with await SQLiteStore.open(tmp_path / "events.db") as store:
        await store.append([batch("session/a", 0)])
    assert sorted(contents(tmp_path)) == ["events.db", "events.db.lock"]


async def test_what_a_creation_that_died_left_behind_is_cleared_away(tmp_path: Path) -> None:
    for suffix in (".new", ".new-journal", ".new-wal"):
        (tmp_path / f"events.db{suffix}").write_bytes(b"half a log")
    await make_log(tmp_path / "events.db")
    assert sorted(contents(tmp_path)) == ["events.db"]


@pytest.mark.parametrize("name", ["a?b#c%20d.db", "ü 𝄞.db", "it's.db", "-wal"])
async def test_file_names_may_hold_any_characters(tmp_path: Path, name: str) -> None:
    await make_log(tmp_path / name)
    async with await SQLiteStore.open(tmp_path / name, read_only=True) as store:
        assert len(await store.read_all()) == 3
        assert store.name == str(tmp_path / name)
    assert sorted(contents(tmp_path)) == [name]


async def test_a_relative_path_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with await SQLiteStore.open("events.db") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        await store.append([batch("session/a", 0)])
        await store.reopen()
        assert len(await store.read_all()) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_case_f04_two_openings_at_once_make_one_log(tmp_path: Path) -> None:
    opened = await asyncio.gather(
        *(SQLiteStore.open(tmp_path / "events.db", wait_for_log_s=0) for _ in range(5)), return_exceptions=True
    )
    stores = [store for store in opened if isinstance(store, SQLiteStore)]
    refusals = [error for error in opened if isinstance(error, LogInUse)]
    assert (len(stores), len(refusals)) == (1, 4)
    await stores[0].append([batch("session/a", 0)])
    await stores[0].close()


async def test_case_f17_a_fresh_path_is_made_into_a_log_with_our_marks(tmp_path: Path) -> None:
    await make_log(tmp_path / "events.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "events.db")) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT_VERSION,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_any_sqlite_tool_can_read_a_log(log: Path) -> None:
    given = batch("session/a", 0, 2, pending=("model", "tool:1"), correlation="session/a@1", causation="timer/t@4")
    async with await SQLiteStore.open(log) as store:
        await store.append([given])
    with contextlib.closing(sqlite3.connect(log)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        rows = connection.execute(
            "SELECT stream, version, type, json_extract(data, '$.n'), time, correlation, causation, pending "
            "FROM event_list ORDER BY position"
        ).fetchall()
    time = "2023-11-14T22:13:20.000000Z"
    assert rows == [
        ("session/a", 1, "test.v1", 1, time, "session/a@1", "timer/t@4", "model tool:1"),
        ("session/a", 2, "test.v1", 2, time, None, None, None),
    ]


async def test_positions_of_removed_events_are_not_used_again(log: Path) -> None:
    await make_log(log)
    change(log, "DELETE FROM events", "DELETE FROM streams", "UPDATE log SET removed_position = 3")
    async with await SQLiteStore.open(log) as store:
        (place,) = await store.append([batch("session/a", 0)])
    assert place.position == 4


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1)])
async def test_the_connection_that_writes_says_how_in_every_pragma(
    log: Path, durability: str, synchronous: int
) -> None:
    await make_log(log)
    with contextlib.closing(sqlite3.connect(log, isolation_level=None)) as connection:
        assert prepare_for_writing(connection, log, durability) == 2  # type: ignore[arg-type]
        expected = {
            "synchronous": synchronous,
            "journal_mode": "wal",
            "trusted_schema": 0,
            "cell_size_check": 1,
            "mmap_size": 0,
            "secure_delete": 1,
            "foreign_keys": 0,
            "busy_timeout": 5000,
            "wal_autocheckpoint": 4 * 1024 * 1024 // PAGE_BYTES,
            "page_size": PAGE_BYTES,
            "journal_size_limit": 64 * 1024 * 1024,
        }
        found = {pragma: connection.execute(f"PRAGMA {pragma}").fetchone()[0] for pragma in expected}
    assert found == expected


async def test_deleted_content_is_not_left_in_the_file(log: Path) -> None:
    await make_log(log)
    with contextlib.closing(sqlite3.connect(log, isolation_level=None)) as connection:
        prepare_for_writing(connection, log, "full")
        connection.execute("INSERT INTO payloads VALUES ('h', CAST('canary' AS BLOB))")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert b"canary" in log.read_bytes()
        connection.execute("DELETE FROM payloads")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert b"canary" not in log.read_bytes()


@pytest.mark.parametrize("what", ["the log", "the folder"])
async def test_what_is_read_only_is_read_and_not_written(tmp_path: Path, what: str) -> None:
    await make_log(tmp_path / "warm-up.db")
    with unprivileged() as folder:
        log = folder / "events.db"
        await make_log(log)
        (log if what == "the log" else folder).chmod(0o444 if what == "the log" else 0o555)
        before = contents(folder)
        try:
            with pytest.raises(PersistenceError, match=f"{what}.* is read-only"):
                await SQLiteStore.open(log)
            async with await SQLiteStore.open(log, read_only=True) as store:
                assert len(await store.read_all()) == 3
            assert contents(folder) == before
        finally:
            folder.chmod(0o700)


async def test_a_log_and_its_wal_on_read_only_media_are_read_through_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_log(tmp_path / "warm-up.db")
    await asyncio.to_thread(tempfile.gettempdir)  # The user below may not read the modules that this imports.
    with unprivileged() as folder:
        log, media, temporary = folder / "events.db", folder / "media", folder / "temporary"
        media.mkdir()
        temporary.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))  # Other processes have folders in the system's.
        store = await SQLiteStore.open(log)
        await store.append([batch("session/a", 0, 3)])
        for name in ("events.db", "events.db-wal"):  # As after a crash, or a copy of both files.
            shutil.copyfile(folder / name, media / name)
        await store.close()
        media.chmod(0o555)
        before = contents(media)
        try:
            async with await SQLiteStore.open(media / "events.db", read_only=True) as copy:
                assert len(await copy.read_all()) == 3
                assert copy.name == str(media / "events.db")
                assert len(list(temporary.iterdir())) == 1
            assert contents(media) == before
            assert list(temporary.iterdir()) == []
            with (
                patch.object(shutil, "copyfile", side_effect=OSError(errno.ENOSPC, "No space left on device")),
                pytest.raises(PersistenceError, match=r"copy events\.db and events\.db-wal to such a folder"),
            ):
                await SQLiteStore.open(media / "events.db", read_only=True)
        finally:
            media.chmod(0o700)


async def test_a_log_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    await make_log(tmp_path / "warm-up.db")
    with unprivileged() as folder:
        await make_log(folder / "events.db")
        (folder / "events.db").chmod(0)
        for read_only in (False, True):
            with pytest.raises(PersistenceError, match=r"cannot be (read|opened)"):
                await SQLiteStore.open(folder / "events.db", read_only=read_only)
        assert sorted(path.name for path in folder.iterdir()) == ["events.db"]


def first_page_lost(log: Path) -> None:
    with log.open("r+b") as file:
        file.write(bytes(PAGE_BYTES))


@pytest.mark.parametrize(
    "damage", [lambda log: os.truncate(log, 16 * PAGE_BYTES), first_page_lost], ids=["cut", "first page"]
)
async def test_a_log_whose_owner_died_in_a_checkpoint_is_ours_all_the_same(
    tmp_path: Path, log: Path, damage: Callable[[Path], None]
) -> None:
    """The file alone makes no sense; with its WAL it is whole."""
    copy = tmp_path / "copy.db"
    store = await SQLiteStore.open(log)
    given = [batch("session/a", 0, 500)]
    appended = await store.append(given)
    with contextlib.closing(sqlite3.connect(log)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    for suffix in ("", "-wal"):
        copy.with_name(copy.name + suffix).write_bytes(log.with_name(log.name + suffix).read_bytes())
    await store.close()
    damage(copy)
    async with await SQLiteStore.open(copy) as again:
        assert await again.read_all() == expected_events(given, appended)


@pytest.mark.parametrize(
    ("version", "has_a_fault"),
    [
        *(((3, 37, 0), True), ((3, 44, 5), True), ((3, 44, 6), False), ((3, 45, 0), True), ((3, 50, 6), True)),
        *(((3, 50, 7), False), ((3, 51, 2), True), ((3, 51, 3), False), ((3, 52, 0), False), ((4, 0, 0), False)),
    ],
)
def test_versions_of_sqlite_that_can_damage_a_log_are_known(version: tuple[int, int, int], has_a_fault: bool) -> None:
    fault = known_fault(version)
    assert (fault is not None) is has_a_fault
    assert fault is None or fault.startswith(f"SQLite {'.'.join(map(str, version))} can damage a file")


async def test_a_log_that_is_opened_with_such_a_version_says_so(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("refold.stores.sqlite.file.known_fault", lambda: known_fault((3, 50, 4)))
    with caplog.at_level("INFO", "refold.stores"):
        await make_log(log)
    assert [record.message for record in caplog.records if "SQLite 3.50.4" in record.message] != []
