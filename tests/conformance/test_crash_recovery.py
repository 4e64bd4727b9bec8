"""What a new runtime makes of a run that an earlier one left: rows A14, A22, A24, B10, B11, B15, B20 and B21.

Some processes here are killed with SIGKILL for real. Elsewhere a crash is a log that takes nothing more from one moment
on, so that a run can be cut at every one of its commits.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    Allow,
    Cancelled,
    CommandRejected,
    Completed,
    Message,
    ModelRequest,
    PersistenceError,
    ScriptedProvider,
    Session,
    TextBlock,
    ToolContext,
    ToolUseBlock,
    say,
    tool,
    use,
)
from refold.events import SESSION_CODEC
from refold.events.core.content import CANCELLED_TEXT, CRASHED_IMPORT_TEXT, CRASHED_TEXT, ToolResultBlock
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.core.records import Appended, EncodedBatch
from refold.events.session.events import (
    RunCompleted,
    RunParked,
    RunResumed,
    ToolApprovalRequested,
)
from refold.stores import EventStore, SQLiteStore
from tests.conformance.failing_store import FailingStore, When
from tests.conformance.sessions import (
    HeldAnswer,
    Parked,
    Seen,
    assert_accepted,
    assert_sound,
    crash,
    events_of,
    requests_of,
    results_of,
    runtime_of,
    shown,
    types_of,
)

# A14: a run that is cut at every commit


class CutStore(FailingStore):
    """A log that is gone from one append on, which takes effect or not."""

    def __init__(self, store: EventStore, *, at: int, when: When) -> None:
        super().__init__(store)
        self.off = asyncio.Event()
        self._at = at
        self._when = when

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        if len(self.appends) + 1 >= self._at:
            if len(self.appends) + 1 == self._at and self._when == "after":
                await super().append(batches, payloads)
            self.appends.append(())
            self.off.set()
            raise PersistenceError("the machine is off")
        return await super().append(batches, payloads)


class Errands:
    """An agent whose run has all tiers and effect classes, and what of it was done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.asked: list[str] = []

        @tool(tier="observe", effect="pure")
        async def look(at: str) -> str:
            """Look."""
            self.done.append(f"look {at}")
            return f"saw {at}"

        @tool(tier="observe", effect="once")
        async def peek() -> str:
            """Look, once."""
            self.done.append("peek")
            return "peeked"

        @tool(tier="act", effect="idempotent")
        async def order(context: ToolContext[Any]) -> str:
            """Order."""
            self.done.append(f"order {context.idempotency_key}")
            return "ordered"

        @tool(tier="act", effect="once")
        def note() -> str:
            """Note, in a thread."""
            self.done.append("note")
            return "noted"

        @tool(tier="confirm", effect="once")
        async def pay() -> str:
            """Pay."""
            self.done.append("pay")
            return "paid"

        self.tools = [look, peek, order, note, pay]

    def approve(self, session: Any, request: Any) -> Allow:
        self.asked.append(request.tool)
        return Allow()

    def answer(self, request: ModelRequest) -> Any:
        """Return what the model says next; it needs nothing but the request."""
        turns = sum(message.role == "assistant" for message in request.messages)
        return [
            [use("look", {"at": "a"}), use("peek"), use("look", {"at": "b"})],
            [use("order"), use("note")],
            use("pay"),
            say("all done"),
        ][turns]

    def runtime(self, log: EventStore, **options: Any) -> AgentRuntime:
        script = [self.answer] * 20
        return runtime_of(log, *script, tools=self.tools, approval=self.approve, close_grace_s=0, **options)

    RESULTS = ("saw a", "peeked", "saw b", "ordered", "noted", "paid")

    async def assert_done(self, session: Session) -> None:
        """Check how the run has ended, and that nothing was done oftener than its effect class allows."""
        results = [block.text for block in await results_of(session)]
        assert len(results) == len(self.RESULTS)
        for text, whole in zip(results, self.RESULTS, strict=True):
            assert text == whole or (whole in ("peeked", "noted") and text == CRASHED_TEXT)
        assert self.done.count("peek") <= 1
        assert self.done.count("note") <= 1
        assert 1 <= self.done.count("pay") <= len(self.asked), "a person allows each attempt"
        assert len({entry for entry in self.done if entry.startswith("order")}) == 1, "always the same key"
        assert_accepted(await session.history())
        types = await types_of(session)
        assert types[-1] == "RunCompleted"
        assert types.count("RunStarted") == types.count("RunCompleted") == types.count("InputQueued") == 1


OPENING = 2
"""Appends before the first input."""

APPENDS = 20
"""More than the run takes."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(OPENING + 1, APPENDS))
async def test_a14_a_run_that_a_crash_cuts_at_any_commit_gets_done_in_the_next_runtime(
    log: EventStore, at: int, when: Literal["before", "after"]
) -> None:
    errands, store = Errands(), CutStore(log, at=at, when=when)
    async with errands.runtime(store) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
        off = asyncio.create_task(store.off.wait())
        await asyncio.wait([sending, off], return_when=asyncio.FIRST_COMPLETED)
        off.cancel()
        done = sending.done() and sending.exception() is None
    await asyncio.gather(sending, off, return_exceptions=True)
    async with errands.runtime(log) as runtime:
        session = await runtime.session("s")
        result = await session.send("go", key="k")
        assert (result.outcome, result.text) == (Completed(), "all done")
        await errands.assert_done(session)
        assert not done or result == sending.result(), "what the caller was told stays true"


def committed_by(committed: asyncio.Event) -> Callable[[Any], None]:
    """Return a subscriber that says when a batch is durable that is more than the resumption of a run."""

    def see(recorded: Any) -> None:
        if recorded.version == recorded.batch and not isinstance(recorded.event, RunResumed):
            committed.set()

    return see


async def test_a14_a_run_that_is_stopped_after_each_of_its_commits_gets_done_in_the_end(log: EventStore) -> None:
    errands, lives = Errands(), 0
    config = AgentConfig(model="m", resumes_max=0)
    types: list[str] = []
    while "RunCompleted" not in types:
        lives += 1
        assert lives < 40
        committed = asyncio.Event()
        async with errands.runtime(log, config=config) as runtime:
            runtime.subscribe(committed_by(committed))
            session = await runtime.session("s")
            sending = asyncio.create_task(session.send("go", key="k"))
            await committed.wait()
            await runtime.close()
        await asyncio.gather(sending, return_exceptions=True)
        types = [type(item.event).__name__ for item in SESSION_CODEC.recorded(await log.read_stream("session/s"))]
    async with errands.runtime(log, config=config) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "all done"
        await errands.assert_done(session)
    assert lives > 5
    assert "RunParked" not in types, "a deploy is no crash"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a14_a_run_whose_machine_fails_again_and_again_gets_done_in_the_end(log: EventStore, when: When) -> None:
    errands, told = Errands(), False
    config = AgentConfig(model="m", resumes_max=100)
    for life in range(40):
        store = CutStore(log, at=OPENING + 2 + life % 4, when=when)
        async with errands.runtime(store, config=config) as runtime:
            sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
            off = asyncio.create_task(store.off.wait())
            await asyncio.wait([sending, off], return_when=asyncio.FIRST_COMPLETED)
            off.cancel()
        await asyncio.gather(sending, off, return_exceptions=True)
        told = sending.exception() is None
        if told:
            break
    assert told
    async with errands.runtime(log, config=config) as runtime:
        session = await runtime.session("s")
        assert await session.send("go", key="k") == sending.result()
        await errands.assert_done(session)


# A22: keys


async def test_a22_a_key_of_send_is_the_same_run_after_a_restart_and_a_crash(log: EventStore) -> None:
    store, held = FailingStore(log), HeldAnswer(say("never"))
    async with runtime_of(store, held, close_grace_s=0) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go", key="k"))
        await held.asked.wait()
        await crash(runtime, store)
    await asyncio.gather(sending, return_exceptions=True)
    async with runtime_of(store, say("done")) as runtime:
        first = await (await runtime.session("s")).send("go", key="k")
        assert first.text == "done"
    async with runtime_of(store, say("other")) as runtime:
        session = await runtime.session("s")
        assert await session.send("go", key="k") == first
        with pytest.raises(CommandRejected, match="key 'k'"):
            await session.send("something else", key="k")
        assert (await (await runtime.session("another")).send("go", key="k")).text == "other", "keys are a session's"
        assert (await types_of(session)).count("InputQueued") == 1


async def test_a22_an_input_whose_fate_is_unknown_is_sent_again_under_its_key_and_runs_once(log: EventStore) -> None:
    store = CutStore(log, at=OPENING + 1, when="after")
    async with runtime_of(store, close_grace_s=0) as runtime:
        with pytest.raises(PersistenceError):
            await (await runtime.session("s")).send("go", key="k")
    async with runtime_of(log, say("done")) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        assert (await types_of(session)).count("RunStarted") == 1


@tool(tier="confirm")
async def pay() -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("how", ["in order", "crash"])
async def test_a22_a_key_of_decide_is_the_same_decision_after_a_restart(log: EventStore, how: str, allow: bool) -> None:
    store = FailingStore(log)
    held = HeldAnswer(say("never"))
    async with runtime_of(store, use("pay"), held, tools=[pay], close_grace_s=0) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go", key="k"))
        (asked,) = await seen.first(ToolApprovalRequested)
        await session.decide(asked.call, allow=allow, reason="too dear", key="d")
        if how == "crash":
            await crash(runtime, store)
    await asyncio.gather(sending, return_exceptions=True)
    async with runtime_of(store, say("done"), tools=[pay], approval=lambda *_: Allow()) as runtime:
        session = await runtime.session("s")
        await session.decide(asked.call, allow=allow, reason="too dear", key="d")
        with pytest.raises(CommandRejected, match="key 'd'"):
            await session.decide(asked.call, allow=not allow, key="d")
        assert (await session.send("go", key="k")).text == "done"
        await session.decide(asked.call, allow=allow, reason="too dear", key="d")
        assert [block.text for block in await results_of(session)] == ["paid" if allow else "too dear"]


async def test_a22_a_key_of_cancel_means_its_first_run_after_a_restart_too(log: EventStore) -> None:
    held, again = HeldAnswer(say("never")), HeldAnswer(say("done"))
    async with runtime_of(log, held) as runtime:
        session = await runtime.session("s")
        first = asyncio.create_task(session.send("one"))
        await held.asked.wait()
        await session.cancel(key="c")
        assert (await first).outcome == Cancelled()
    async with runtime_of(log, again) as runtime:
        session = await runtime.session("s")
        second = asyncio.create_task(session.send("two"))
        await again.asked.wait()
        await session.cancel(key="c")
        again.gate.set()
        assert (await second).text == "done"
        assert (await types_of(session)).count("CancelRequested") == 1


# A24, B21: parking


async def test_a24_a_run_that_crashes_the_process_three_times_is_parked_until_somebody_resumes_it(
    log: EventStore,
) -> None:
    store, parked = FailingStore(log), Parked()

    script: list[Any] = [use("repeat", {"name": "a"})]
    sending: list[asyncio.Task[Any]] = []
    for life in range(4):
        async with runtime_of(store, *script, tools=[parked.repeat], close_grace_s=0) as runtime:
            if script:
                sending.append(asyncio.create_task((await runtime.session("s")).send("go", key="k")))
            await parked.until(life + 1)
            await crash(runtime, store)
        script = []
    await asyncio.gather(*sending, return_exceptions=True)
    async with runtime_of(store, say("done"), say("next"), say("beside"), tools=[parked.repeat]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        if (await types_of(session))[-1] != "RunParked":
            await seen.first(RunParked)
        (event,) = await events_of(session, RunParked)
        assert "3 times without progress" in event.reason
        assert len(parked.begun) == 4, "once, and again after three crashes"
        queued = asyncio.create_task(session.send("another"))
        assert (await (await runtime.session("other")).send("go")).text == "done", "other sessions run"
        assert not queued.done()
    await asyncio.gather(queued, return_exceptions=True)
    async with runtime_of(store, say("done"), say("next"), tools=[parked.repeat]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        await session.history()
        assert len(parked.begun) == 4, "a restart does not unpark it"
        parked.gate.set()
        await session.resume()
        assert (await session.send("go", key="k")).text == "done"
        await seen.first(RunCompleted, 2)
        assert shown(await session.history())[-2:] == ["user: another", "assistant: next"]
        assert [block.text for block in await results_of(session)] == ["a returned"]


async def test_a24_progress_between_two_crashes_starts_the_count_anew(log: EventStore) -> None:
    store, parked = FailingStore(log), Parked()
    script = [[use("repeat", {"name": name}) for name in "abcd"]]
    sending: list[asyncio.Task[Any]] = []
    for life in range(9):
        async with runtime_of(store, *script, tools=[parked.repeat], close_grace_s=0) as runtime:
            begun = len(parked.begun)
            sending.append(asyncio.create_task((await runtime.session("s")).send("go", key="k")))
            await parked.until(begun + 1)
            if life % 3 == 2:
                parked.gate.set()
                parked.gate.clear()
                await parked.until(begun + 2)
            await crash(runtime, store)
    await asyncio.gather(*sending, return_exceptions=True)
    types = [type(item.event).__name__ for item in SESSION_CODEC.recorded(await log.read_stream("session/s"))]
    assert types.count("RunResumed") == 8
    assert types.count("ToolCallCompleted") == 3
    assert "RunParked" not in types


DEADLY = """
import asyncio, os, sys
from refold import AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use

@tool(tier="observe", effect="pure")
async def die() -> str:
    "End the process."
    print("dying", flush=True)
    os.kill(os.getpid(), 9)

def answer(request):
    return use("die") if request.messages[0].text == "die" else say("well")

async def main():
    config = AgentConfig(model="m")
    async with AgentRuntime(config, provider=ScriptedProvider([answer] * 9), tools=[die], log=sys.argv[1]) as runtime:
        if sys.argv[2] == "first":
            await (await runtime.session("deadly")).send("die")
        well = await (await runtime.session("well")).send("hello")
        print(well.text, flush=True)
        deadly = await runtime.session("deadly")
        while "RunParked" not in [type(item.event).__name__ async for item in deadly.events()]:
            await asyncio.sleep(0.01)
        print("parked", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
def test_b21_a_tool_that_kills_the_process_on_every_attempt_is_parked_after_three_resumes(tmp_path: Path) -> None:
    log = str(tmp_path / "events.db")
    said: list[list[str]] = []
    for life in ["first", *["again"] * 4]:
        child = subprocess.run(
            [sys.executable, "-P", "-c", DEADLY, log, life], stdout=subprocess.PIPE, text=True, check=False
        )
        said.append(child.stdout.split())
        assert child.returncode == (0 if len(said) == 5 else -signal.SIGKILL)
    assert sum(line.count("dying") for line in said) == 4
    assert said[-1] == ["well", "parked"]
    asyncio.run(assert_file_sound(Path(log)))


# B10, B11: what is left in a history, and who reads while it grows


@pytest.mark.parametrize("orphans", [1, 3])
async def test_b10_an_imported_orphan_gets_one_crash_result_and_the_next_request_is_balanced(
    log: EventStore, orphans: int
) -> None:
    calls = tuple(ToolUseBlock(id=ToolCallId(f"theirs-{place}"), name="gone", input={}) for place in range(orphans))
    messages = [Message("user", (TextBlock(text="before"),)), Message("assistant", (TextBlock(text="I"), *calls))]
    async with runtime_of(log, say("done"), say("more")) as runtime:
        session = await runtime.session("s")
        await session.import_history(messages)
        await session.send("go")
        await session.send("on")
        for request in requests_of(runtime):
            assert_accepted(request.messages)
            assert str(shown(request.messages)).count(CRASHED_IMPORT_TEXT) == orphans
        assert [block.kind for block in await results_of(session)] == ["crashed"] * orphans


async def test_b10_an_orphan_of_a_crash_gets_one_crash_result_and_the_next_runs_request_is_balanced(
    log: EventStore,
) -> None:
    store, parked = FailingStore(log), Parked()
    calls = [use("park", {"name": name}) for name in "ab"]
    async with runtime_of(store, calls, tools=[parked.park], close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("first"))
        await parked.until(2)
        await crash(runtime, store)
    await asyncio.gather(sending, return_exceptions=True)
    async with runtime_of(store, say("recovered"), say("second answer"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("second")).text == "second answer"
        request = requests_of(runtime)[-1]
        assert_accepted(request.messages)
        assert shown(request.messages) == [
            "user: first",
            "use park",
            "use park",
            f"result: {CRASHED_TEXT}",
            f"result: {CRASHED_TEXT}",
            "assistant: recovered",
            "user: second",
        ]
    assert parked.begun == ["a", "b"]
    assert CANCELLED_TEXT not in str([event.data for event in await log.read_all()]), "b15"


@pytest.mark.parametrize("reader", ["events", "follow"])
async def test_b11_a_reader_beside_a_run_sees_everything_once_and_started_before_completed(
    log: EventStore, reader: str
) -> None:
    @tool
    async def work() -> str:
        """Work."""
        return "worked"

    seen: list[tuple[int, str]] = []
    over = asyncio.Event()

    def see(item: Any) -> None:
        seen.append((item.version, type(item.event).__name__))

    async def read(session: Session) -> None:
        version = 0
        while not over.is_set() or version < (await session.state_at()).version:
            async for recorded in session.events(after_version=version):
                version = recorded.version
                see(recorded)
            await asyncio.sleep(0)

    async def follow(session: Session) -> None:
        async for item in session.follow(after_version=0):
            see(item)
            if isinstance(getattr(item, "event", None), RunCompleted):
                return

    async with runtime_of(log, *[use("work")] * 5, say("done"), tools=[work]) as runtime:
        session = await runtime.session("s")
        following = asyncio.create_task(read(session) if reader == "events" else follow(session))
        await session.send("go")
        over.set()
        await following
    assert [version for version, _ in seen] == list(range(1, len(seen) + 1))
    order = [kind for _, kind in seen if kind.startswith("ToolCall")]
    assert order == ["ToolCallStarted", "ToolCallCompleted"] * 5


# B20: kill -9


CHILD = """
import asyncio, sys
from refold import AgentConfig, AgentRuntime, Allow, ScriptedProvider, ToolContext, say, tool, use

log, effect, calls, tier = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

@tool(tier=tier, effect=effect)
async def work(context: ToolContext[object], n: int) -> str:
    if n == 0:
        return "done early"
    print("working", n, context.idempotency_key, flush=True)
    await asyncio.Event().wait()
    return "unreachable"

async def model(request):
    print("asked", flush=True)
    await asyncio.Event().wait()

script = [[use("work", {"n": n}) for n in range(calls)]] if calls else [model]

async def main():
    config = AgentConfig(model="m")
    async with AgentRuntime(
        config, provider=ScriptedProvider(script), tools=[work], log=log, approval=lambda *_: Allow()
    ) as runtime:
        runtime.subscribe(lambda recorded: print("recorded", type(recorded.event).__name__, flush=True))
        session = await runtime.session("alice")
        print("open", flush=True)
        await session.send("go", key="the input")

asyncio.run(main())
"""


def killed(log: Path, effect: str, calls: int, until: list[str], tier: str = "observe") -> None:
    """Run the child until it has printed lines that begin with `until`, in any order, and kill it."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD, str(log), effect, str(calls), tier], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    waiting = [*until, "recorded ToolCallCompleted"] if calls else list(until)
    while waiting:
        line = child.stdout.readline()
        assert line, f"the child ended early; still expected {waiting}"
        waiting = [start for start in waiting if not line.startswith(start)]
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert child.returncode == -signal.SIGKILL


def runtime_after(log: Path, script: list[Any], ran: list[str], **options: Any) -> AgentRuntime:
    @tool(tier=options.pop("tier", "observe"), effect=options.pop("effect", "once"))
    async def work(context: ToolContext[object], n: int) -> str:
        """Work again."""
        ran.append(context.idempotency_key)
        return f"again {n}"

    tools = [work] if options.pop("registered", True) else []
    config = AgentConfig(model="m")
    return AgentRuntime(config, provider=ScriptedProvider(script), tools=tools, log=log, **options)


async def ended(runtime: AgentRuntime, session_id: str = "alice") -> Any:
    """Return the session once its open run has ended by itself."""
    session = await runtime.session(session_id, restore=True)
    done = asyncio.Event()
    forget = runtime.subscribe(
        lambda recorded: done.set() if type(recorded.event).__name__.startswith(("RunC", "RunF", "RunP")) else None
    )
    if (await session.state_at()).run is not None:
        await done.wait()
    forget()
    return session


async def assert_file_sound(log: Path) -> None:
    async with await SQLiteStore.open(log, read_only=True) as store:
        await assert_sound(store)


async def test_b20_a_run_killed_in_a_once_tool_resumes_by_itself_and_says_that_the_outcome_is_unknown(
    tmp_path: Path,
) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", 3, ["working 1", "working 2"])
    ran: list[str] = []
    seen: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        seen.append(request)
        return "checked"

    async with runtime_after(log, [answer], ran) as runtime:
        session = await ended(runtime)
        result = await session.send("go", key="the input")
        results = [block for block in (await session.history())[2].content if isinstance(block, ToolResultBlock)]

    assert ran == []
    assert [block.text for block in results] == ["done early", CRASHED_TEXT, CRASHED_TEXT]
    assert [block.kind for block in results] == [None, "crashed", "crashed"]
    assert (result.outcome, result.text) == (Completed(), "checked")
    assert len(seen) == 1
    await assert_file_sound(log)


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["pure", "idempotent"])
async def test_b20_a_run_killed_in_a_repeatable_tool_runs_it_again_under_the_same_key(
    effect: str, tmp_path: Path
) -> None:
    log = tmp_path / "events.db"
    killed(log, effect, 2, ["working 1"])
    ran: list[str] = []
    async with runtime_after(log, [say("fine")], ran, effect=effect) as runtime:
        session = await ended(runtime)
        texts = [block.text for block in (await session.history())[2].content if isinstance(block, ToolResultBlock)]
        events = [recorded async for recorded in session.events()]

    responded = next(item for item in events if type(item.event).__name__ == "ModelResponded")
    assert ran == [f"alice/call_{responded.version}_1"]
    assert texts == ["done early", "again 1"]
    assert [type(item.event).__name__ for item in events][-5:] == [
        "RunResumed",
        "ToolCallCompleted",
        "ModelRequested",
        "ModelResponded",
        "RunCompleted",
    ]
    await assert_file_sound(log)


async def test_b20_a_repeatable_tool_that_no_longer_exists_is_answered_and_not_run(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "pure", 2, ["working 1"])
    async with runtime_after(log, [say("fine")], [], registered=False) as runtime:
        session = await ended(runtime)
        results = [block for block in (await session.history())[2].content if isinstance(block, ToolResultBlock)]

    assert results[1].text == CRASHED_TEXT
    await assert_file_sound(log)


async def test_a14_a_run_killed_while_the_model_was_asked_asks_again(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", 0, ["asked"])
    async with runtime_after(log, [say("second try")], []) as runtime:
        session = await ended(runtime)
        assert [message.text for message in await session.history()] == ["go", "second try"]
    await assert_file_sound(log)


async def test_b15_crash_recovery_never_uses_the_cancel_text_and_cancellation_never_the_crash_text(
    tmp_path: Path,
) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", 2, ["working 1"])
    parked = asyncio.Event()

    @tool(tier="observe", effect="once")
    async def work(n: int) -> str:
        """Wait for ever."""
        parked.set()
        await asyncio.Event().wait()
        return "unreachable"

    provider = ScriptedProvider([say("recovered"), [use("work", {"n": 1})], say("after")])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[work], log=log) as runtime:
        session = await ended(runtime)
        sending = asyncio.create_task(session.send("more"))
        await parked.wait()
        await session.cancel()
        await sending
        texts = [
            block.text
            for message in await session.history()
            for block in message.content
            if isinstance(block, ToolResultBlock)
        ]

    assert texts == ["done early", CRASHED_TEXT, CANCELLED_TEXT]


async def test_without_auto_resume_a_run_waits_for_resume(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "pure", 2, ["working 1"])
    ran: list[str] = []
    async with runtime_after(log, [say("fine")], ran, effect="pure", auto_resume=False) as runtime:
        session = await runtime.session("alice", restore=True)
        assert (await session.history())[2].content[1].is_error  # type: ignore[union-attr]
        assert ran == []
        await session.resume()
        await ended(runtime)
        assert len(ran) == 1
    await assert_file_sound(log)


async def test_every_run_that_was_open_resumes_and_every_acknowledged_event_is_there(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "pure", 3, ["working 1", "working 2"])
    async with await SQLiteStore.open(log, read_only=True) as store:
        before = SESSION_CODEC.recorded(await store.read_stream("session/alice"))
    async with runtime_after(log, [say("fine")], [], effect="pure") as runtime:
        session = await ended(runtime)
        after = [recorded async for recorded in session.events()]
    assert after[: len(before)] == before
    await assert_file_sound(log)


async def test_b20_a_call_that_a_person_approved_and_a_kill_interrupted_goes_back_to_the_person(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", 2, ["working 1"], tier="confirm")
    ran: list[str] = []
    async with runtime_after(log, [say("fine")], ran, tier="confirm") as runtime:
        session = await runtime.session("alice", restore=True)
        seen = Seen(runtime, session)
        if not await session.approvals():
            await seen.first(ToolApprovalRequested)
        (waiting,) = await session.approvals()
        assert (waiting.tool, waiting.input, waiting.reason) == ("work", {"n": 1}, CRASHED_TEXT)
        assert ran == []
        await session.decide(waiting.call, allow=True)
        await ended(runtime)
        results = [block.text for block in await results_of(session)]
    assert results == ["done early", "again 1"]
    assert ran == [f"alice/{waiting.call}"], "the same key as before"
    await assert_file_sound(log)


async def test_b20_a_person_who_denies_it_another_run_leaves_its_outcome_unknown(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "once", 2, ["working 1"], tier="confirm")
    ran: list[str] = []
    async with runtime_after(log, [say("fine")], ran, tier="confirm") as runtime:
        session = await runtime.session("alice", restore=True)
        seen = Seen(runtime, session)
        if not await session.approvals():
            await seen.first(ToolApprovalRequested)
        (waiting,) = await session.approvals()
        await session.decide(waiting.call, allow=False)
        await ended(runtime)
        results = await results_of(session)
    assert [block.text for block in results] == ["done early", CRASHED_TEXT]
    assert ran == []
    await assert_file_sound(log)
