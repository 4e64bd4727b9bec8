"""Repair of damaged logs: what is whole goes on in a new log, what is lost is named, the damaged log stays as it is."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say
from refold.events.core.errors import ConfigError, LogFormatError, LogInUse
from refold.inspection.check import check_log
from refold.inspection.export import export_to_file
from refold.keeping import CutStream, RepairReport, repair_log
from refold.stores import SQLiteBackend, SQLiteStore, batch
from refold.stores.guarding.log_place import HEAD_SUFFIX
from refold.stores.sample_batches import payload
from refold.stores.sqlite.file import PAGE_BYTES
from refold.stores.sqlite.inbox import InboxFile

FIND_BOB = "SELECT id FROM streams WHERE name = 'session/bob'"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


def agent_runtime(log: Path, *answers: str) -> AgentRuntime:
    config = AgentConfig(model="m", system_prompt="Be brief. " * 500)
    return AgentRuntime(config, provider=ScriptedProvider([say(answer) for answer in answers]), log=log)


async def made(log: Path) -> Path:
    """Make a log with sessions of one and of many pages, payloads, and values."""
    async with agent_runtime(log, *["Hello. " * 300] * 12) as runtime:
        for session in ("alice", "bob"):
            for number in range(6):
                await (await runtime.session(session)).send(f"{number}: hello")
        store = runtime.store
        await SQLiteBackend(store).save("note", b"kept")
    return log


def files(log: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.parent.glob(f"{log.name}*") if path.is_file()}


def edit(log: Path, *statements: str) -> None:
    with closing(sqlite3.connect(log)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def root_of(log: Path, name: str) -> int:
    """Return the offset of the first page of a table or an index."""
    with closing(sqlite3.connect(log)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    return (int(page) - 1) * PAGE_BYTES


def overwrite(log: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(log, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)


def with_pages(size: int, log: Path) -> Path:
    """Give a log pages of another size, as older logs have."""
    with closing(sqlite3.connect(log)) as connection:
        for statement in ("journal_mode = DELETE", f"page_size = {size}"):
            connection.execute(f"PRAGMA {statement}").fetchall()
        connection.execute("VACUUM")
        assert connection.execute("PRAGMA page_size").fetchone() == (size,)
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
    return log


def root_destroyed(name: str) -> Callable[[Path], None]:
    return lambda log: overwrite(log, root_of(log, name), os.urandom(PAGE_BYTES))


async def repaired(log: Path) -> RepairReport:
    before, new = files(log), log.with_name("new.db")
    report = await repair_log(log, new)
    assert files(log) == before, "the damaged log was changed"
    assert (await check_log(new)).sound
    assert sorted(path.name for path in log.parent.glob("*repair*")) == []
    return report


async def text_of(log: Path) -> bytes:
    text = log.with_name(f"{log.name}.jsonl")
    await export_to_file(log, text)
    return text.read_bytes()


WITHOUT_LOSS: dict[str, Callable[[Path], None]] = {
    "nothing": lambda log: None,
    "the first page": lambda log: overwrite(log, 0, bytes(PAGE_BYTES)),
    "the first page, of small pages": lambda log: overwrite(with_pages(4096, log), 0, bytes(4096)),
    "the header": lambda log: overwrite(log, 16, b"\xff\xff\xff\xff"),
    "the root of the events": root_destroyed("events"),
    "the index of the events": root_destroyed("sqlite_autoindex_events_1"),
    "the list of streams": root_destroyed("streams"),
    "the index of the streams": root_destroyed("sqlite_autoindex_streams_1"),
    "the index of open runs": root_destroyed("streams_with_pending"),
    "rows of the list": lambda log: edit(log, "UPDATE streams SET version = 1, pending = 'x'"),
}


@pytest.mark.parametrize("what", WITHOUT_LOSS)
async def test_damage_that_no_content_is_in_loses_nothing_and_sessions_go_on(log: Path, what: str) -> None:
    original = await text_of(await made(log))
    WITHOUT_LOSS[what](log)
    report = await repaired(log)
    assert report.complete, report
    assert await text_of(log.with_name("new.db")) == original
    async with agent_runtime(log.with_name("new.db"), "Still here.") as runtime:
        assert (await (await runtime.session("alice")).send("Are you?")).text == "Still here."
        assert await SQLiteBackend(runtime.store).load("note") == b"kept"


async def test_a_stream_is_saved_up_to_its_first_damage_and_the_others_whole(log: Path) -> None:
    async with await SQLiteStore.open(await made(log), read_only=True) as store:
        heads = {str(head.stream): head.version for head in await store.list_streams()}
        (first,) = [event.batch for event in await store.read_stream("session/bob") if b"3: hello" in event.data][:1]
        (stream,) = await store.read_beside(lambda opened: opened.execute(FIND_BOB).fetchone(), "bob is not found")
    edit(log, f"UPDATE events SET data = replace(data, '3: hello', '4: hello') WHERE stream = {stream}")
    report = await repaired(log)
    reason = f"the batch of version {first} is not what was appended"
    assert report.cut == (CutStream(stream="session/bob", kept=first - 1, lost_to=heads["session/bob"], reason=reason),)
    async with await SQLiteStore.open(log.with_name("new.db"), read_only=True) as store:
        saved = {str(head.stream): head.version for head in await store.list_streams()}
    assert saved == {**heads, "session/bob": first - 1}


async def test_an_event_whose_payload_is_lost_is_where_its_stream_ends(log: Path) -> None:
    await made(log)
    edit(log, "DELETE FROM payloads")
    report = await repaired(log)
    assert report.lost_payloads
    assert {cut.stream for cut in report.cut} == {"session/alice", "session/bob"}
    assert all("payload" in cut.reason for cut in report.cut)


async def test_the_tail_of_a_wal_behind_a_damaged_frame_is_saved_where_sqlite_would_lose_it(
    log: Path, tmp_path: Path
) -> None:
    crashed = tmp_path / "crashed" / log.name
    crashed.parent.mkdir()
    async with await SQLiteStore.open(log) as store:
        for version in range(10):
            await store.append([batch("book/a", version)])
        for name, content in files(log).items():
            crashed.with_name(name).write_bytes(content)
    overwrite(Path(f"{crashed}-wal"), 32 + 24 + 10, b"damaged")  # The first frame: SQLite reads none.
    with pytest.raises(LogFormatError, match="up to position 10 had been acknowledged"):
        await SQLiteStore.open(crashed)
    assert (await repair_log(crashed, tmp_path / "new.db")).complete
    async with await SQLiteStore.open(tmp_path / "new.db", read_only=True) as store:
        assert len(await store.read_stream("book/a")) == 10
    os.truncate(f"{crashed}-wal", 0)
    report = await repair_log(crashed, tmp_path / "less.db")
    assert (report.complete, report.lost_to, report.events) == (False, 10, 0)
    assert crashed.with_name(crashed.name + HEAD_SUFFIX).exists()


async def test_what_was_deleted_stays_deleted(log: Path) -> None:
    await made(log)
    async with agent_runtime(log) as runtime:
        await runtime.delete("bob")
    report = await repaired(log)
    assert (report.complete, report.tombstones) == (True, 1)
    assert b"session/bob" in await text_of(log.with_name("new.db"))
    overwrite(log, root_of(log, "log"), bytes(PAGE_BYTES))
    await repair_log(log, log.with_name("again.db"))
    async with agent_runtime(log.with_name("again.db")) as runtime:
        assert [head.stream for head in await runtime.store.list_streams(prefix="session/")] == ["session/alice"]


async def test_a_stream_without_a_name_and_one_without_events_are_told(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("book/a", 0, 3), batch("book/b", 0, 2)])
    edit(log, "DELETE FROM streams WHERE name = 'book/a'", "DELETE FROM events WHERE stream = 2")
    report = await repaired(log)
    assert report.cut == (
        CutStream(stream="?/1", kept=0, lost_to=3, reason="its name is lost"),
        CutStream(stream="book/b", kept=0, lost_to=2, reason="its events are lost"),
    )


async def test_what_cannot_be_repaired_is_refused_and_nothing_is_made(log: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    async with agent_runtime(log):
        with pytest.raises(LogInUse):
            await repair_log(log, new)
    with pytest.raises(ConfigError, match="is there already"):
        await repair_log(log, log)
    os.truncate(log, 0)
    with pytest.raises(LogFormatError, match="is empty"):
        await repair_log(log, new)
    assert not files(new)
    overwrite(log, 0, os.urandom(100_000))
    assert (await repair_log(log, new)).streams == 0


async def test_a_cut_file_is_told_by_its_missing_pages(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("book/a", 0)], payload(b"named by no event" * 10_000))
    os.truncate(log, len(files(log)[log.name]) - 15 * PAGE_BYTES)
    report = await repaired(log)
    assert (report.complete, report.lost_pages) == (False, 15)


async def test_commands_that_wait_are_counted_and_stay(log: Path) -> None:
    await made(log)
    await InboxFile(log).add("alice", "key", b"{}", 1)
    assert (await repaired(log)).inbox_waiting == 1
    overwrite(Path(f"{log}.inbox"), 0, bytes(100))
    report = await repair_log(log, log.with_name("other.db"))
    assert (report.inbox_waiting, report.complete) == (None, False)
