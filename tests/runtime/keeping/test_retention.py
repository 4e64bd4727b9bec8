"""Sessions that ended long ago are archived and deleted, and the file of a log is made smaller."""

import asyncio
import json
import os
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import refold
from refold import ConfigError, LogInUse, PersistenceError
from refold.actors import ManualClock, SystemClock
from refold.inspection.export import export_to_file
from refold.keeping import compact, delete_session, retain
from refold.remote.protocol import Inbox
from refold.remote.rows import InboxSend
from refold.stores import SQLiteStore
from refold.stores.keeping.erasing import erase
from tests.runtime.command_line import error_of, run
from tests.runtime.keeping.talks import Waiting, assert_sound, found, mark, talk, talked, talking

DAY = timedelta(days=1)


async def aged(log: Path) -> ManualClock:
    """Have `old` and `older` in a log, and `new` 100 days later; return the clock."""
    clock = ManualClock()
    async with talking(log, clock=clock) as runtime:
        await talk(runtime, "old", "older")
        clock.jump(100 * 86_400.0)
        await talk(runtime, "new")
    return clock


async def test_what_is_old_is_archived_read_again_and_deleted(tmp_path: Path) -> None:
    log, archives = tmp_path / "events.db", tmp_path / "archives"
    archives.mkdir()
    clock = await aged(log)
    async with await SQLiteStore.open(log, read_only=True) as before:
        kept = {name: await before.read_stream(name) for name in ("session/old", "session/new")}
    tried = await retain(log, 90 * DAY, dry_run=True, archive=archives, clock=clock)
    assert (tried.sessions, tried.streams, os.listdir(archives)) == (("old", "older"), 4, [])
    done = await retain(log, 90 * DAY, archive=archives, clock=clock)
    assert (done.sessions, done.streams, done.events, done.dry_run) == (tried.sessions, 4, tried.events, False)
    [archive] = archives.iterdir()
    assert str(archive) == done.archive
    assert found(log.parent, "old").keys() <= {archive.name}
    assert found(log.parent, "new") != {}
    assert (await retain(log, 90 * DAY, archive=archives, clock=clock)).sessions == ()
    assert len(os.listdir(archives)) == 1, "where nothing is deleted nothing is archived"
    restored = tmp_path / "restored.db"
    assert (await asyncio.to_thread(run, "import", archive, restored)).exit_code == 0
    async with await SQLiteStore.open(restored, read_only=True) as after:
        assert await after.read_stream("session/old") == kept["session/old"]
        assert {head.stream.split("/")[1] for head in await after.list_streams()} == {"old", "older"}
    async with await SQLiteStore.open(log, read_only=True) as after:
        assert await after.read_stream("session/new") == kept["session/new"]
    for path in (log, restored):
        await assert_sound(path)
    shown = await asyncio.to_thread(run, "show", archive, "old")
    assert mark("old", "answer") in shown.stdout


class Choice(NamedTuple):
    """What is asked of a log in which `old` and `older` are 100 days old, and what is deleted."""

    days: float
    statuses: tuple[Any, ...]
    deleted: tuple[str, ...]


CHOICES = {
    "all that has ended": Choice(0, ("completed", "failed", "cancelled", "idle"), ("new", "old", "older")),
    "what is old": Choice(99, ("completed",), ("old", "older")),
    "nothing is that old": Choice(101, ("completed",), ()),
    "no run has ended so": Choice(0, ("failed", "idle"), ()),
}


@pytest.mark.parametrize("case", CHOICES.values(), ids=CHOICES)
async def test_only_what_is_asked_for_is_deleted_also_under_a_runtime(tmp_path: Path, case: Choice) -> None:
    log = tmp_path / "events.db"
    clock = await aged(log)
    async with talking(log, clock=clock) as runtime:
        open_before = set(await runtime.sessions())
        done = await runtime.retain(case.days * DAY, statuses=case.statuses)
        assert done.sessions == case.deleted
        left = set(await runtime.sessions())
        assert {name.split("/")[0] for name in open_before - left} == set(case.deleted)
        assert all(found(tmp_path, name) == {} for name in case.deleted)
        await talk(runtime, "later")
    await assert_sound(log)


async def test_what_goes_on_stays(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with talking(log, provider=(model := Waiting()), close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("alice")).send(mark("alice", "input")))
        await model.asked.wait()
        assert (await runtime.retain(timedelta(0))).sessions == ()
    await asyncio.gather(sending, return_exceptions=True)
    async with talking(log, auto_resume=False) as runtime:
        await talk(runtime, "bob")
    await Inbox(log, SystemClock()).put("bob", InboxSend(text="And now?"), "key")
    assert (await retain(log, timedelta(0))).sessions == ()
    await delete_session(log, "alice", cancel=True)
    await delete_session(log, "bob")


async def test_a_session_that_is_appended_to_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "events.db"
    async with talking(log) as runtime:
        await talk(runtime, "alice", "bob", "carol")

        async def erase_late(*given: Any, **named: Any) -> Any:
            await (await runtime.session("bob")).clear()
            return await erase(*given, **named)

        monkeypatch.setattr("refold.keeping.retention.erase", erase_late)
        done = await runtime.retain(timedelta(0))
        assert (done.sessions, done.went_on) == (("alice", "carol"), ("bob",))
        assert found(tmp_path, "bob") != {}
        await talk(runtime, "dave")
    await assert_sound(log)


async def test_nothing_is_deleted_where_the_archive_is_not_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, archives = tmp_path / "events.db", tmp_path / "archives"
    archives.mkdir()
    clock = await aged(log)
    (archives / "events.db-1.jsonl.gz.exporting").write_bytes(b"left by a process that died")
    export, patched = export_to_file, "refold.inspection.export.export_to_file"

    async def cut(store: Any, path: Path, **named: Any) -> None:
        await export(store, path, **named)
        os.truncate(path, 1_000)

    async def other(store: Any, path: Path, *, streams: Any, **named: Any) -> None:
        await export(store, path, streams=streams[1:], **named)

    async def full(store: Any, path: Path, **named: Any) -> None:
        raise PersistenceError(f"{path} cannot be written: No space left on device")

    for spoilt, words in ((cut, "compressed and damaged"), (other, "it lacks session/old"), (full, "No space")):
        monkeypatch.setattr(patched, spoilt)
        with pytest.raises(PersistenceError, match=words):
            await retain(log, 90 * DAY, archive=archives, clock=clock)
    monkeypatch.setattr(patched, export)
    assert (await retain(log, 90 * DAY, archive=archives, clock=clock)).sessions == ("old", "older")
    assert not [name for name in os.listdir(archives) if name.endswith(".exporting")]


def test_a_log_of_which_much_was_deleted_is_made_smaller(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    talked(log, "alice", "bob")
    told = json.loads(run("retain", log, "--older-than", "0s", "--json").stdout)
    assert (told["sessions"], told["archive"], told["wiped"]) == (["alice", "bob"], None, True)
    smaller = json.loads(run("compact", log, "--json").stdout)
    assert smaller["bytes_after"] < smaller["bytes_before"] / 2
    assert smaller["bytes_after"] == log.stat().st_size
    assert "bytes before" in run("compact", log).stdout


async def test_a_log_that_a_runtime_owns_is_left_to_it(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with talking(log) as runtime:
        await talk(runtime, "alice")
        for refused in (retain(log, timedelta(0)), compact(log), delete_session(log, "alice")):
            with pytest.raises(LogInUse):
                await refused
        told = await asyncio.to_thread(run, "retain", log, "--older-than", "0s")
        assert (told.exit_code, "call `retain` of that runtime" in error_of(told)) == (3, True)
        with pytest.raises(ConfigError, match="older than a time to come"):
            await runtime.retain(timedelta(days=-1))


async def test_a_log_is_not_made_smaller_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "events.db"
    async with talking(log) as runtime:
        await talk(runtime, "alice", "bob")
    before = log.read_bytes()
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PersistenceError, match="10,000 are free"):
        await compact(log)
    assert len(log.read_bytes()) == len(before)
    await assert_sound(log)


async def test_what_is_appended_meanwhile_is_searched_for_forks_once_however_many_sessions_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*given: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*given, **named)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    provider = refold.ScriptedProvider([refold.say("Hello.")] * 9)
    async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider, log=tmp_path / "a.db") as runtime:
        for number in range(9):
            await (await runtime.session(f"s{number}")).send("Hi")
        assert len((await runtime.retain(timedelta(0))).sessions) == 9
    assert sum("causation = correlation" in statement for statement in statements) == 1
