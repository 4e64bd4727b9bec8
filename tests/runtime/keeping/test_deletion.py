"""Deleting a session: nothing of what was said in it is in any file afterwards, and all else is as it was."""

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Awaitable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    AskCycle,
    Cancelled,
    CommandRejected,
    ConfigError,
    LogInUse,
    PersistenceError,
    RecordedEvent,
    RunResult,
    ToolContext,
    say,
    tool,
    use,
)
from refold.actors import ActorStopped, SystemClock
from refold.events.core.errors import StreamDeleted
from refold.events.core.ids import RunId, SessionId
from refold.events.session.events import ToolCallStarted
from refold.keeping import delete_session, deletion
from refold.keeping.deletion import Deletion
from refold.remote.mirror import Stuck, follow_run, joined_mirror
from refold.remote.protocol import Done, Inbox, InboxOutcome, Refused, UserDeleted
from refold.remote.rows import WHOLE_LOG, InboxDelete, InboxDeleteUser, InboxSend
from refold.remote.watching import outcome_within
from refold.stores import FileBackend, InMemoryStore
from refold.stores.sqlite import file
from refold.stores.sqlite.inbox import InboxFile
from tests.conformance import processes
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import results_of
from tests.runtime.command_line import run
from tests.runtime.keeping.talks import Waiting, assert_sound, found, mark, talk, talked, talking
from tests.runtime.talking import scripted


async def test_a_session_that_is_deleted_beside_others_is_in_no_file(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with talking(log, step_snapshots=FileBackend(tmp_path / "steps")) as runtime:
        await talk(runtime, "alice", "bob")
        deleted = await runtime.delete("alice")
        assert deleted.streams[0] == "session/alice"
        assert len(deleted.streams) == 2, "its child goes with it"
        assert (deleted.payloads, deleted.deleted_before, deleted.wiped) == (1, False, True)
        assert deleted.shared_payloads >= 3, "the manual, the prompt, the schemas"
        assert deleted.checkpoints > 0
        assert [(named.stream, named.events) for named in deleted.named_in] == [("memory/main", 1)]
        assert found(tmp_path, "alice") == {}, "already while the runtime goes on"
        assert await runtime.sessions() == ["bob", deleted.streams[1].replace("session/alice", "bob")]
        with pytest.raises(StreamDeleted, match="alice was deleted"):
            await (await runtime.session("alice")).send("Hello again")
        with pytest.raises(ConfigError, match="session/alice was deleted"):
            await runtime.session("alice", restore=True)
        again = await runtime.delete("alice")
        assert (again.deleted_before, again.streams, again.events) == (True, deleted.streams, deleted.events)
        await talk(runtime, "bob", "carol")
    assert found(tmp_path, "alice") == {}
    assert set(found(tmp_path, "bob")) >= {"events.db"}
    await assert_sound(log)


async def test_nobody_waits_for_a_run_of_a_session_that_was_deleted(tmp_path: Path) -> None:
    async with talking(tmp_path / "events.db") as runtime:
        session = await runtime.session("alice")
        await session.remind("Later", at=datetime.now(UTC) + timedelta(days=1), key="k")
        run = await session.run(key="k")
        async with run.stream() as reader, session.follow(after_version=0) as following:
            assert isinstance(await anext(reader), RecordedEvent)
            assert [isinstance(await anext(following), RecordedEvent) for _ in range(3)] == [True] * 3
            ends = [asyncio.ensure_future(anext(reader, None)), asyncio.ensure_future(anext(following, None))]
            await runtime.delete("alice", cancel=True)
            assert await asyncio.gather(*ends) == [None, None]
        with pytest.raises(StreamDeleted):
            await run.result()
        with pytest.raises(StreamDeleted):
            await anext(run.stream())


async def test_what_a_session_remembers_goes_with_it_and_what_its_user_does_stays(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with talking(log, scope="user") as runtime:
        for name, user in (("alice", None), ("bob", "carol")):
            await (await runtime.session(name, user=user)).send(mark(name, "input"))
        deleted = [await runtime.delete(name) for name in ("alice", "bob")]
        assert [len(each.streams) for each in deleted] == [3, 2]
        assert [[named.stream for named in each.named_in] for each in deleted] == [[], ["memory/main/user/carol"]]
        assert deleted[0].streams[2] == "memory/main/session/alice"
        again = await runtime.delete("alice")
        assert (again.deleted_before, set(again.streams)) == (True, set(deleted[0].streams))
    assert found(tmp_path, "alice") == {}
    assert b"alice was here" not in log.read_bytes()
    await assert_sound(log)


async def test_a_user_is_deleted_with_all_sessions_and_memories(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with talking(log, scope="user") as runtime:
        for name, user in (("alice", "ann"), ("again", "ann"), ("bob", "bert")):
            await (await runtime.session(name, user=user)).send(mark(name, "input"))
        deleted = await runtime.delete_user("ann")
        assert [each.session for each in deleted.sessions] == ["again", "alice"]
        assert (deleted.streams, deleted.wiped) == (("memory/main/user/ann",), True)
        assert await runtime.sessions(user="ann") == []
        assert found(tmp_path, "alice") == found(tmp_path, "again") == {}
        assert b"alice was here" not in log.read_bytes()
        assert len(await runtime.sessions(user="bert")) == 2
        nothing = await runtime.delete_user("ann")
        assert (nothing.sessions, nothing.streams, nothing.events) == ((), (), 0)
        late = await runtime.session("late", user="ann")
        await late.send(mark("late", "input"))
    await assert_sound(log)


async def machine_off(*_: object, **__: object) -> int:
    raise PersistenceError("the machine is off")


async def test_a_deletion_of_a_user_that_was_cut_short_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "events.db"
    async with talking(log, inbox_poll_s=0) as runtime:
        await (await runtime.session("alice", user="ann")).send(mark("alice", "input"))
        await Inbox(log, SystemClock()).put("alice", InboxSend(text=mark("alice", "waiting")), "key")
        with monkeypatch.context() as killed:
            killed.setattr(InboxFile, "forget", machine_off)
            with pytest.raises(PersistenceError, match="off"):
                await runtime.delete_user("ann")
        assert await runtime.sessions(user="ann") == []
        assert "events.db.inbox" in found(tmp_path, "alice")
        await runtime.delete_user("ann")
        assert found(tmp_path, "alice") == {}


def test_no_copy_of_a_log_has_what_was_deleted_from_it(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    talked(log, "alice", "bob")
    asyncio.run(delete_session(log, "alice"))
    text, copy, restored = tmp_path / "log.jsonl", tmp_path / "copy.db", tmp_path / "restored.db"
    for command in (("export", log, "-o", text), ("backup", log, copy), ("import", text, restored)):
        assert run(*command).exit_code == 0
    assert found(tmp_path, "alice") == {}
    for path in (log, text, copy, restored):
        told = run("check", path).stdout
        assert "deleted: 2 streams (session/alice, session/alice/call_" in told
        assert "sound" in told
    talked(restored, "dave")


async def test_what_is_open_or_a_child_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with talking(log) as runtime:
        await talk(runtime, "bob")
        child = (await runtime.sessions())[1]
        with pytest.raises(CommandRejected, match="goes with that one"):
            await runtime.delete(child)
        for unknown in ("nobody", "bo"):
            with pytest.raises(ConfigError, match="no session"):
                await runtime.delete(unknown)
    async with talking(log, provider=(model := Waiting()), close_grace_s=0) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send(mark("alice", "input")))
        await model.asked.wait()
        await session.remind(mark("alice", "later"), at=datetime.now(UTC) + timedelta(days=1))
        with pytest.raises(CommandRejected, match="has not ended"):
            await runtime.delete("alice")
        await runtime.delete("alice", cancel=True)
        assert isinstance((await sending).outcome, Cancelled)
        assert found(tmp_path, "alice") == {}
        model.asked.clear()
        again = asyncio.create_task((await runtime.session("carol")).send(mark("carol", "input")))
        await model.asked.wait()
    await asyncio.gather(again, return_exceptions=True)
    with pytest.raises(CommandRejected, match="has not ended"):
        await delete_session(log, "carol")
    assert found(tmp_path, "carol").keys() == {"events.db"}
    await delete_session(log, "carol", cancel=True)
    assert found(tmp_path, "carol") == {}
    await assert_sound(log)


@pytest.mark.parametrize("whole_user", [False, True])
async def test_a_tool_that_its_deletion_would_cancel_is_told_and_may_have_it_done_later(
    whole_user: bool,
) -> None:
    later: list[asyncio.Task[object]] = []

    def delete() -> Awaitable[object]:
        return runtime.delete_user("ann", cancel=True) if whole_user else runtime.delete("s", cancel=True)

    @tool
    async def forget_me(context: ToolContext[None]) -> str:
        with pytest.raises(AskCycle, match=r"session/s -> its tool -> session/s\. Delete it when the run has ended"):
            await delete()
        run = await (await runtime.session("s")).run(key="forget")

        async def after_the_run() -> object:
            await run.result()
            return await delete()

        later.append(asyncio.create_task(after_the_run()))
        return "soon"

    script = [say("hello"), use("forget_me"), say("You will be forgotten.")]
    async with scripted(*script, tools=[forget_me]) as runtime:
        await (await runtime.session("other", user="ann")).send("hi")
        session = await runtime.session("s", user="ann")
        assert (await session.send("Forget me.", key="forget")).text == "You will be forgotten."
        await later[0]
        assert await runtime.sessions() == ([] if whole_user else ["other"])


@pytest.mark.parametrize("way", ["send", "stream"])
async def test_a_tool_may_have_a_session_deleted_that_reads_its_run_and_not_one_that_would_end_its_run(
    way: str,
) -> None:
    begun = asyncio.Event()

    @tool
    async def ask() -> str:
        asked = await runtime.session("asked")
        if way == "send":
            begun.set()
            return (await asked.send("And you?", key="asked")).text
        async for item in (await asked.submit("And you?", key="asked")).stream():
            if isinstance(item, RecordedEvent) and isinstance(item.event, ToolCallStarted):
                begun.set()
        return "read"

    @tool
    async def delete_asker() -> str:
        await begun.wait()
        try:
            return str((await runtime.delete("asker", cancel=True)).session)
        except AskCycle as error:
            return str(error).partition(". ")[2]

    script = [use("ask"), use("delete_asker"), say("That was it."), say("Bye.")]
    async with scripted(*script, tools=[ask, delete_asker]) as runtime:
        run = await (await runtime.session("asker")).submit("Ask the other.")
        result = await run.result()
        asked = await runtime.session("asked")
        await (await asked.run(key="asked")).result()
        (said,) = await results_of(asked)
        if way == "send":
            assert (result.text, await runtime.sessions()) == ("Bye.", ["asked", "asker"])
            assert said.text.startswith("Delete it when the run has ended")
        else:
            assert (result.outcome, await runtime.sessions()) == (Cancelled(), ["asked"])
            assert said.text == "asker"


async def test_the_runtime_that_owns_the_log_deletes_for_other_processes(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with talking(log, inbox_poll_s=0.02) as runtime:
        await talk(runtime, "alice", "bob")
        with pytest.raises(LogInUse):
            await delete_session(log, "alice")
        give = partial(processes.run, processes.refold_line("delete", log, "alice", "--json"))
        told = json.loads((await asyncio.to_thread(give)).stdout)
        assert (told["session"], told["deleted_before"], len(told["streams"])) == ("alice", False, 2)
        assert json.loads((await asyncio.to_thread(give)).stdout)["deleted_before"]
        assert found(tmp_path, "alice") == {}
        refused = await asyncio.to_thread(processes.run, processes.refold_line("delete", log, "nobody"))
        assert (refused.returncode, "no session 'nobody'" in refused.stderr) == (2, True)
    await assert_sound(log)


async def followed(log: Path, session: SessionId, run: RunId) -> RunResult | Stuck:
    async with joined_mirror(log, SystemClock()) as mirror:
        return await follow_run(mirror, session, run)


async def test_another_process_does_not_wait_for_a_run_of_a_deleted_session(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with talking(log, provider=(model := Waiting()), inbox_poll_s=0.02) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send(mark("alice", "input")))
        await model.asked.wait()
        under_way = (await session.state_at()).run
        assert under_way is not None
        following = asyncio.create_task(followed(log, session.id, under_way.id))
        await runtime.delete("alice", cancel=True)
        assert isinstance((await sending).outcome, Cancelled)
        ended = await following
        assert isinstance(ended, RunResult) or "was deleted" in ended.why
        late = await followed(log, session.id, under_way.id)
        assert isinstance(late, Stuck)
        assert late.why == "session 'alice' was deleted"
    assert found(tmp_path, "alice") == {}


def test_the_command_deletes_where_no_runtime_owns_the_log(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    talked(log, "alice", "bob")
    for name in ("alice", "bob"):
        asyncio.run(Inbox(log, SystemClock()).put(name, InboxSend(text=mark(name, "waiting")), "key"))
    assert "events.db.inbox" in found(tmp_path, "bob")
    told = run("delete", log, "alice").stdout
    assert "deleted session alice with 1 session that went with it: " in told
    assert "memory/main stays, and names it in 1 event" in told
    assert found(tmp_path, "alice") == {}
    assert "events.db.inbox" in found(tmp_path, "bob"), "those of others are left alone"
    assert "session alice was deleted earlier with 1 session that went with it" in run("delete", log, "alice").stdout
    assert run("delete", log, "nobody").exit_code == 2
    asyncio.run(assert_sound(log))


async def outcome_of(inbox: Inbox, session: str, row: Any) -> InboxOutcome:
    entry = await inbox.put(session, row, uuid.uuid4().hex)
    outcome = await outcome_within(inbox, entry, 600, SystemClock())
    assert outcome is not None
    return outcome


async def test_no_outcome_that_stays_in_the_inbox_names_a_user_who_was_deleted(tmp_path: Path) -> None:
    log, user = tmp_path / "events.db", mark("alice", "user")
    inbox = Inbox(log, SystemClock())
    said: dict[str, str | None] = {"name": mark("alice", "name")}
    async with talking(log, inbox_poll_s=0.02) as runtime:
        await (await runtime.session("bob", user="bert")).send(mark("bob", "input"))
        refused = await outcome_of(inbox, "bob", InboxSend(text=mark("alice", "refused"), user=user, metadata=said))
        assert isinstance(refused, Refused)
        sent = await outcome_of(inbox, "alice", InboxSend(text=mark("alice", "input"), user=user, metadata=said))
        assert isinstance(sent, Done)
        await (await (await runtime.session("alice", user=user)).run(sent.run)).result()
        assert isinstance(await outcome_of(inbox, "alice", InboxDelete(cancel=False)), Deletion)
        assert isinstance(await outcome_of(inbox, "alice", InboxDelete(cancel=False)), Deletion)
        again = await runtime.session("again", user=user)
        await again.send(mark("alice", "input"))
        deleted = await outcome_of(inbox, WHOLE_LOG, InboxDeleteUser(user=user, cancel=False))
        assert isinstance(deleted, UserDeleted)
        assert [each.session for each in deleted.deletion.sessions] == ["again"]
        assert (await inbox.file.sessions_waiting(performed=True)) == ["bob", "alice", WHOLE_LOG]
        assert found(tmp_path, "alice") == {}
    assert found(tmp_path, "alice") == {}


async def test_a_reader_of_an_earlier_moment_is_told_of_and_wiped_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "events.db"
    monkeypatch.setattr(deletion, "WIPE_PAUSE_S", 0)
    async with talking(log) as runtime:
        await talk(runtime, "alice")
        with closing(sqlite3.connect(log, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchone()
            assert not (await runtime.delete("alice")).wiped
            assert found(tmp_path, "alice") != {}
        assert (await runtime.delete("alice")).wiped
        assert found(tmp_path, "alice") == {}


async def test_a_log_in_memory_and_the_face_without_a_loop(tmp_path: Path) -> None:
    store = InMemoryStore()
    async with talking(store) as runtime:
        await talk(runtime, "alice", "bob")
        assert (await runtime.delete("alice")).payloads == 1
        with pytest.raises(StreamDeleted):
            await (await runtime.session("alice")).send("Hello")
        await talk(runtime, "carol")
    await assert_sound(store)
    async with talking(FailingStore(InMemoryStore())) as runtime:
        with pytest.raises(ConfigError, match="ErasableLog"):
            await runtime.delete("alice")

    def without_loop() -> None:
        with AgentRuntime(AgentConfig(model="m"), provider=lambda prompt: "Hi.", log=tmp_path / "sync.db") as runtime:
            runtime.session("alice").send(mark("alice", "input"))
            assert runtime.delete("alice").events > 0

    await asyncio.to_thread(without_loop)
    assert found(tmp_path, "alice") == {}


@pytest.mark.parametrize("cancel", [False, True])
async def test_an_input_that_comes_while_a_session_is_deleted_is_refused_or_keeps_it(
    tmp_path: Path, cancel: bool
) -> None:
    log = tmp_path / "events.db"
    async with talking(log) as runtime:
        for steps in (0, 1, 5, 20, 60):
            name = f"alice{steps}"
            await talk(runtime, name)
            deleting = asyncio.create_task(runtime.delete(name, cancel=cancel))
            for _ in range(steps):
                await asyncio.sleep(0)
            sending = asyncio.create_task((await runtime.session(name)).send(mark(name, "more")))
            deleted, sent = await asyncio.gather(deleting, sending, return_exceptions=True)
            if isinstance(deleted, CommandRejected):
                assert not isinstance(sent, BaseException)
                assert name in await runtime.sessions()
            else:
                assert not isinstance(deleted, BaseException), deleted
                assert isinstance(sent, StreamDeleted | ActorStopped | RunResult), sent
                assert found(tmp_path, name) == {}
    await assert_sound(log)


def test_traces_that_sqlite_did_not_overwrite_are_found_and_go_when_the_file_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "events.db"
    talked(log, "alice", "bob", "carol")
    assert asyncio.run(delete_session(log, "carol")).remains == ()
    lazy = tuple(line.replace("secure_delete = ON", "secure_delete = OFF") for line in file._PRAGMAS_WRITING)
    monkeypatch.setattr(file, "_PRAGMAS_WRITING", lazy)
    told = run("delete", log, "alice")
    assert (told.exit_code, "traces of it stand in" in told.stdout) == (1, True)
    assert asyncio.run(delete_session(log, "bob")).remains == (str(log),)
    assert run("compact", log).exit_code == 0
    assert found(tmp_path, "alice") == found(tmp_path, "bob") == {}


@pytest.mark.parametrize("name", ['o"h\\no 🦊', "a/b", "x" * 512])
def test_any_name_is_deleted_and_its_neighbours_stay(tmp_path: Path, name: str) -> None:
    log = tmp_path / "events.db"

    async def fill() -> None:
        async with talking(log) as runtime:
            for each in (name, "a", "a/b/c"):
                assert (await (await runtime.session(each)).send("canary-neighbour-input")).text

    asyncio.run(fill())
    told = json.loads(run("delete", log, "--json", "--", name).stdout)
    assert (told["session"], len(told["streams"])) == (name, 2)
    assert [each["stream"] for each in told["named_in"]] == ["memory/main"]
    left = {each["session"] for each in json.loads(run("sessions", log, "--json").stdout)["sessions"]}
    assert {"a", "a/b/c"} <= left
    assert name not in left
    asyncio.run(assert_sound(log))


def test_a_damaged_session_can_be_deleted(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    talked(log, "alice", "bob")
    with closing(sqlite3.connect(log, isolation_level=None)) as connection:
        connection.execute(
            "UPDATE events SET data = replace(data, 'session.input_queued', 'session.never_was') WHERE stream ="
            " (SELECT id FROM streams WHERE name = 'session/alice')"
        )
    assert run("check", log).exit_code == 1
    assert run("retain", log, "--older-than", "0s", "--status", "idle").stdout.endswith("`refold check` says why\n")
    assert run("delete", log, "alice").exit_code == 0
    assert found(tmp_path, "alice") == {}
    asyncio.run(assert_sound(log))
