"""Checkpoints of sessions: what is in them, and that another session takes them over."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    Checkpoint,
    ConfigError,
    PersistenceError,
    ScriptedProvider,
    Tool,
    ToolContext,
    ToolUseBlock,
    Usage,
    load_checkpoint,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.core.content import STILL_OPEN_TEXT, ToolResultBlock
from refold.inspection.check import check_log
from refold.sessions.turn_checkpoints import step_key, step_versions
from refold.stores import FileBackend, MemoryBackend, PersistenceBackend, SQLiteBackend


@tool(tier="observe", effect="pure")
async def look(place: str) -> str:
    return f"{place} is fine"


@tool(tier="confirm")
async def mail(to: str) -> str:
    return f"sent to {to}"


@tool
async def read() -> str:
    return "x" * 200_000


def runtime_of(*script: Any, log: Any = ":memory:", **options: Any) -> AgentRuntime:
    tools: list[Tool[..., object]] = [look, mail, read]
    return AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider(script), tools=tools, log=log, **options)


async def test_a_checkpoint_is_the_session_at_its_version_and_another_goes_on_from_it(tmp_path: Path) -> None:
    backend = FileBackend(tmp_path / "exports")
    async with runtime_of(use("look", {"place": "ü"}), say("Fine."), say("Bye."), log=tmp_path / "a.db") as runtime:
        session = await runtime.session("Alice/1")
        await session.send("How is it?")
        written = await session.checkpoint(backend)
        assert await backend.list_keys() == ["session/Alice/1"]
        data = await backend.load("session/Alice/1")
        assert load_checkpoint(data) == written
        head = await runtime.store.head("session/Alice/1")
        assert head is not None
        assert (written.version, written.chain) == (head.version, head.chain.hex())
        assert list(written.history) == await session.history()
        assert (written.session, written.agent, written.run, written.last_run) == ("Alice/1", "agent", None, "run_3")
        assert (written.outcome, written.usage) == ("completed", (await session.spent()).usage)
        commits = runtime.commits
        again = await session.checkpoint(backend, "other key")
        assert await backend.load("other key") == data
        assert (again, runtime.commits) == (written, commits)  # It records nothing.
        await session.send("Thanks.")
        later = await session.checkpoint(backend)
        assert later.version > written.version
        assert await backend.load("session/Alice/1") != data
    async with runtime_of(use("look", {"place": "there"}), say("Good."), log=tmp_path / "b.db") as runtime:
        session = await runtime.session("Bob")
        await session.import_history(load_checkpoint(data).history)
        result = await session.send("And there?")
        assert result.text == "Good."
        assert [message.text for message in await session.history()][:4] == ["How is it?", "", "", "Fine."]
        assert (await check_log(runtime.store)).sound
    await backend.close()


async def test_the_document_is_plain_json_with_its_format_first() -> None:
    backend = MemoryBackend()
    async with runtime_of(say("Hi."), clock=ManualClock()) as runtime:
        session = await runtime.session("alice")
        await session.send("Hello")
        await session.checkpoint(backend)
    data = await backend.load("session/alice")
    assert data is not None
    assert data.startswith(b'{"format":"refold.sessions.checkpoint.v1","session":"alice","agent":"agent","version":')
    document = msgspec.json.decode(data)
    assert document["history"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
    ]
    assert set(document) == {"format", *Checkpoint.__struct_fields__}
    document["field of a later time"] = 1
    assert load_checkpoint(msgspec.json.encode(document)).session == "alice"


async def test_a_session_in_the_middle_of_a_call_has_a_balanced_checkpoint() -> None:
    backend = MemoryBackend()
    async with runtime_of(use("mail", {"to": "bob"}), say("Sent."), say("Hi.")) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.ensure_future(session.send("Write to Bob."))
        while not await session.approvals():  # noqa: ASYNC110 - Asked for as a user would.
            await asyncio.sleep(0)
        checkpoint = await session.checkpoint(backend)
        assert (checkpoint.run, checkpoint.last_run, checkpoint.outcome) == ("run_3", None, None)
        (use_block,), (result,) = (message.content for message in checkpoint.history[1:])
        assert isinstance(use_block, ToolUseBlock)
        assert isinstance(result, ToolResultBlock)
        assert (result.tool_use_id, result.text) == (use_block.id, STILL_OPEN_TEXT)
        other = await runtime.session("other")
        await other.import_history(checkpoint.history)
        (call,) = await session.approvals()
        await session.decide(call.call, allow=True)
        assert (await sending).text == "Sent."
        assert (await other.send("Hello")).text == "Hi."


async def test_a_session_without_events_has_an_empty_checkpoint() -> None:
    backend = MemoryBackend()
    async with runtime_of() as runtime:
        checkpoint = await (await runtime.session("new")).checkpoint(backend)
        assert (checkpoint.version, checkpoint.chain, checkpoint.history) == (0, "", ())
        assert checkpoint.usage == Usage()
        assert await runtime.sessions() == []


async def test_a_checkpoint_holds_content_that_the_log_keeps_elsewhere() -> None:
    backend = MemoryBackend()
    async with runtime_of(use("read"), say("y" * 200_000)) as runtime:
        session = await runtime.session("alice")
        await session.send("z" * 200_000)
        checkpoint = await session.checkpoint(backend)
        assert list(checkpoint.history) == await session.history()
        assert len(checkpoint.history[0].text) == 200_000


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "no checkpoint under this key"),
        (b"", "truncated"),
        (b"\xff\xfe", "."),
        (b"{}", "session"),
        (b'{"format":"refold.sessions.checkpoint.v2"}', "refold.sessions.checkpoint.v2"),
        (b'{"format":"refold.sessions.checkpoint.v1","session":"a"}', "agent"),
    ],
)
def test_what_is_no_checkpoint_is_refused(data: bytes | None, said: str) -> None:
    with pytest.raises(PersistenceError, match=said):
        load_checkpoint(data)


async def test_what_a_backend_refuses_is_raised_and_costs_the_session_nothing() -> None:
    async with runtime_of(say("Hi.")) as runtime:
        session = await runtime.session("alice")
        with pytest.raises(PersistenceError, match="must not be empty"):
            await session.checkpoint(MemoryBackend(), "")
        failing = Failing(OSError(28, "No space left on device"), PersistenceError("no room"))
        with pytest.raises(
            PersistenceError, match=r"'session/alice' could not be saved in Failing: OSError: .*No space"
        ):
            await session.checkpoint(failing)
        with pytest.raises(PersistenceError, match=r"^no room$"):
            await session.checkpoint(failing)
        assert (await session.checkpoint(failing)).version == 0
        with pytest.raises(ConfigError, match="a checkpoint goes to a PersistenceBackend, not <class"):
            await session.checkpoint(FileBackend)  # type: ignore[arg-type]
        assert (await session.send("Hello")).text == "Hi."


def test_threads_write_checkpoints_too(tmp_path: Path) -> None:
    with runtime_of(use("look", {"place": "it"}), say("Hi."), step_snapshots=MemoryBackend()) as runtime:
        session = runtime.session("alice")
        session.send("Hello")
        backend = FileBackend(tmp_path)
        assert list(session.checkpoint(backend).history) == session.history()
        asyncio.run(backend.close())
        snapshots = runtime.step_snapshots
    assert snapshots is not None
    assert (snapshots.written, snapshots.failed, snapshots.missed) == (2, 0, 0)


# After each turn.


async def commits_without_snapshots(calls: list[Any]) -> int:
    async with runtime_of(calls[0], calls, say("Fine."), say("Bye.")) as runtime:
        await (await runtime.session("a")).send("How is it?")
        await (await runtime.session("a@7")).send("Thanks.")
        return runtime.commits


async def test_each_turn_leaves_a_snapshot_of_the_session_as_it_was_then(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    backend = FileBackend(tmp_path / "steps")
    calls = [use("look", {"place": str(number)}) for number in range(3)]
    async with runtime_of(calls[0], calls, say("Fine."), say("Bye."), log=log, step_snapshots=backend) as runtime:
        session, other = await runtime.session("a"), await runtime.session("a@7")
        await session.send("How is it?")
        await other.send("Thanks.")
        commits = runtime.commits
    assert commits == await commits_without_snapshots(calls)
    versions = await step_versions(backend, "a")
    assert len(versions) == 3
    assert len(await step_versions(backend, "a@7")) == 1
    async with runtime_of(log=log) as runtime:
        session = await runtime.session("a")
        for version in versions:
            snapshot = load_checkpoint(await backend.load(step_key(session.id, version)))
            state = await session.state_at(version)
            assert (snapshot.version, state.turn) == (version, None)
            assert snapshot.history == tuple(state.messages)
        lengths = [
            len(load_checkpoint(await backend.load(step_key(session.id, version))).history) for version in versions
        ]
        assert lengths == [3, 5, 6]
    await backend.close()


async def test_a_snapshot_is_what_a_checkpoint_is_also_after_the_history_was_cleared() -> None:
    steps, checkpoints = MemoryBackend(), MemoryBackend()
    long = use("read")
    script = [long, say("x" * 100_000), say("Again."), say("Third.")]
    async with runtime_of(*script, step_snapshots=steps) as runtime:
        session, other = await runtime.session("a"), await runtime.session("b")
        for place in range(3):
            await session.send(f"input {place}")
            await session.checkpoint(checkpoints, str(place))
            if place == 1:
                await session.clear()
        snapshots = runtime.step_snapshots
    assert snapshots is not None
    assert (snapshots.written, snapshots.failed) == (4, 0)
    assert other.id == "b"
    written = [await steps.load(step_key(session.id, version)) for version in await step_versions(steps, "a")]
    assert written[1:] == await checkpoints.batch_load("012")
    assert [len(load_checkpoint(data).history) for data in written] == [3, 4, 6, 2]


async def test_a_cancelled_run_and_one_that_fails_leave_a_snapshot() -> None:
    backend = MemoryBackend()
    async with runtime_of(use("mail", {"to": "bob"}), RuntimeError("lost"), step_snapshots=backend) as runtime:
        session = await runtime.session("a")
        sending = asyncio.ensure_future(session.send("Write to Bob."))
        while not await session.approvals():  # noqa: ASYNC110 - Asked for as a user would.
            await asyncio.sleep(0)
        await session.cancel()
        await sending
        await session.send("Again.")
    outcomes = [
        load_checkpoint(await backend.load(step_key(session.id, version))).outcome
        for version in await step_versions(backend, "a")
    ]
    assert outcomes == ["cancelled", "failed"]


class Failing(MemoryBackend):
    """Keeps only what comes after some errors."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    async def save(self, key: str, value: bytes) -> None:
        if self.errors:
            raise self.errors.pop(0)
        await super().save(key, value)


async def test_a_snapshot_that_fails_is_logged_and_counted_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Failing(PersistenceError("no room"), ZeroDivisionError("a mistake in it"))
    call = use("look", {"place": "it"})
    async with runtime_of(call, call, say("Fine."), step_snapshots=backend) as runtime:
        assert (await (await runtime.session("a")).send("How is it?")).text == "Fine."
        snapshots = runtime.step_snapshots
    assert snapshots is not None
    assert (snapshots.written, snapshots.failed, snapshots.missed) == (1, 2, 0)
    messages = [record.getMessage() for record in caplog.records if record.name == "refold.snapshots"]
    assert len(messages) == 2
    assert "session/a" in messages[0]
    assert "no room" in messages[0]
    assert "a mistake in it" in messages[1]
    (key,) = await backend.list_keys()
    assert load_checkpoint(await backend.load(key)).outcome == "completed"


class Hanging(MemoryBackend):
    """Never ends, or only at the second cancellation."""

    def __init__(self, *, stubborn: bool) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.stubborn = stubborn

    async def save(self, key: str, value: bytes) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            if self.stubborn:
                await asyncio.Event().wait()


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_backend_that_hangs_slows_no_run_and_no_end_beyond_the_grace(
    caplog: pytest.LogCaptureFixture, stubborn: bool
) -> None:
    backend, clock = Hanging(stubborn=stubborn), ManualClock()
    call = use("look", {"place": "it"})
    runtime = await runtime_of(call, call, say("Fine."), step_snapshots=backend, clock=clock, close_grace_s=7).open()
    assert (await (await runtime.session("a")).send("How is it?")).text == "Fine."
    await backend.begun.wait()
    closing = asyncio.ensure_future(runtime.close())
    while not closing.done():
        await clock.advance(1)
    await closing
    snapshots = runtime.step_snapshots
    assert snapshots is not None
    assert (snapshots.written, snapshots.failed, snapshots.missed) == (0, 0, 3)
    assert "3 snapshots of turns are not written" in caplog.text


async def test_snapshots_may_lie_in_the_log_itself(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    seen: list[PersistenceBackend] = []

    class InTheLog(MemoryBackend):
        """Goes to the log of a runtime that is open only later."""

        async def save(self, key: str, value: bytes) -> None:
            seen.append(SQLiteBackend(runtime.store))
            await seen[-1].save(key, value)

    async with runtime_of(use("look", {"place": "it"}), say("Hi."), log=log, step_snapshots=InTheLog()) as runtime:
        await (await runtime.session("a")).send("Hello")
    async with runtime_of(log=log) as runtime:
        assert len(await step_versions(SQLiteBackend(runtime.store), "a")) == 2
        assert (await check_log(runtime.store)).sound


class OnlySaves:
    async def save(self, key: str, value: bytes) -> None: ...


@pytest.mark.parametrize("wrong", ["folder", FileBackend, OnlySaves(), False])
def test_what_is_no_backend_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="step_snapshots must be a PersistenceBackend"):
        runtime_of(step_snapshots=wrong)


async def test_a_context_of_a_tool_may_write_a_checkpoint_of_its_own_session() -> None:
    backend = MemoryBackend()

    @tool
    async def keep(context: ToolContext[None]) -> str:
        checkpoint = await (await runtime.session(context.session)).checkpoint(backend)
        return str(checkpoint.version)

    runtime = AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([use("keep"), say("Hi.")]), tools=[keep])
    async with runtime:
        assert (await (await runtime.session("a")).send("Hello")).text == "Hi."
    assert load_checkpoint(await backend.load("session/a")).run == "run_3"
