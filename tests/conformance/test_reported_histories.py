"""Cases A and B of the reported faults: calls without results, results without calls, calls that are not what was said.

Each history that a model is shown here is checked as a provider would check it. A crash is a copy of the files of a
runtime that is still alive: what a process leaves that is killed at that moment.
"""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold import (
    ActorStopped,
    AgentConfig,
    AgentRuntime,
    CancellationToken,
    Cancelled,
    Completed,
    ImageBlock,
    Message,
    ModelRequest,
    ModelResponse,
    ScriptedProvider,
    Session,
    TextBlock,
    ToolCallId,
    ToolContext,
    ToolResultBlock,
    ToolUse,
    ToolUseBlock,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.events.core.content import CANCELLED_TEXT, CRASHED_IMPORT_TEXT, CRASHED_TEXT
from refold.events.model.messages import TextDelta, ToolInputDelta
from refold.events.session.events import (
    RunCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolResultLate,
)
from refold.events.session.invariants import check_events, check_history
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore, SQLiteStore

CONFIG = AgentConfig(model="test-model")


class Asked(ScriptedProvider):
    """Plays a script, and refuses a history as a provider would."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        assert check_history(request.messages) == []
        return await super().complete(request)


async def assert_sound(log: EventStore) -> None:
    assert (await check_log(log)).problems == ()
    (await replay(log, level="core")).raise_for_divergence()
    for head in await log.list_streams(prefix="session/"):
        assert check_events(SESSION_CODEC.decode_all(await log.read_stream(head.stream)), head.stream) == []


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.slow)])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A log that is found sound when the test is over."""
    store: EventStore = InMemoryStore() if request.param == "memory" else await SQLiteStore.open(tmp_path / "events.db")
    yield store
    await assert_sound(store)
    await store.close()


class Parked:
    """A tool whose calls begin, say so, and wait until they are let go or cancelled."""

    def __init__(self, *, tier: Any = "observe", effect: Any = "once") -> None:
        self.begun: list[str] = []
        self.gate = asyncio.Event()
        self._wake = asyncio.Event()

        @tool(tier=tier, effect=effect)
        async def park(name: str) -> str:
            """Wait."""
            self.begun.append(name)
            self._wake.set()
            await self.gate.wait()
            return f"{name} returned"

        self.park = park

    async def until(self, count: int) -> None:
        while len(self.begun) < count:
            self._wake.clear()
            await self._wake.wait()


class Seen:
    """Waits for events of a session."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self.events: list[Any] = []
        self._wake = asyncio.Event()
        runtime.subscribe(self._see)

    def _see(self, recorded: Any) -> None:
        self.events.append(recorded.event)
        self._wake.set()

    async def first(self, kind: type) -> Any:
        while not (found := [event for event in self.events if isinstance(event, kind)]):
            self._wake.clear()
            await self._wake.wait()
        return found[0]


def runtime_of(log: Any, *script: Any, tools: Any = (), **options: Any) -> AgentRuntime:
    config = options.pop("config", CONFIG)
    return AgentRuntime(config, provider=Asked(script), tools=tools, log=log, **options)


def requests_of(runtime: AgentRuntime) -> list[ModelRequest]:
    provider = runtime.agent.provider
    assert isinstance(provider, ScriptedProvider)
    return provider.requests


def calls_in(messages: Sequence[Message]) -> list[ToolUseBlock]:
    return [block for message in messages for block in message.content if isinstance(block, ToolUseBlock)]


def results_in(messages: Sequence[Message]) -> list[ToolResultBlock]:
    return [block for message in messages for block in message.content if isinstance(block, ToolResultBlock)]


def shape(messages: Sequence[Message]) -> list[str]:
    """Return the history in words: what stands where."""
    words = []
    for message in messages:
        for block in message.content:
            match block:
                case TextBlock(text=text):
                    words.append(f"{message.role} says {text}")
                case ToolUseBlock(name=name):
                    words.append(f"calls {name}")
                case ToolResultBlock():
                    words.append(f"result {block.kind or block.text}")
                case _:
                    words.append(type(block).__name__)
    return words


async def types_of(session: Session) -> list[str]:
    return [type(recorded.event).__name__ async for recorded in session.events()]


def crash_image(path: Path, into: Path) -> Path:
    """Copy what a process would leave that is killed now."""
    into.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        if file.name != f"{path.name}.lock":
            shutil.copy(file, into / file.name)
    return into / path.name


# A01, A04: an interrupted call has its result before the next input


@pytest.mark.parametrize("calls", [1, 3])
async def test_case_a01_the_input_after_an_interrupt_comes_behind_one_result_for_each_call(
    log: EventStore, calls: int
) -> None:
    parked = Parked()
    script = ([use("park", {"name": str(number)}) for number in range(calls)], say("fine"), say("still fine"))
    async with runtime_of(log, *script, tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await parked.until(calls)
        await session.cancel()
        assert (await sending).outcome == Cancelled()
        assert (await session.send("new text")).text == "fine"
        assert (await session.send("more")).text == "still fine"
        expected = ["user says go", *["calls park"] * calls, *["result cancelled"] * calls, "user says new text"]
        assert shape(requests_of(runtime)[1].messages) == expected
        assert shape(requests_of(runtime)[2].messages)[: len(expected)] == expected
        assert [result.tool_use_id for result in results_in(requests_of(runtime)[1].messages)] == [
            call.id for call in calls_in(requests_of(runtime)[1].messages)
        ]


async def test_case_a01_interrupts_in_a_row_each_leave_a_balanced_history(log: EventStore) -> None:
    parked = Parked()
    script = [use("park", {"name": str(number)}) for number in range(4)]
    async with runtime_of(log, *script, say("fine"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        for number in range(4):
            sending = asyncio.create_task(session.send(f"input {number}"))
            await parked.until(number + 1)
            await session.cancel()
            assert (await sending).outcome == Cancelled()
        assert (await session.send("last")).text == "fine"
        assert shape(requests_of(runtime)[4].messages) == [
            *(word for n in range(4) for word in (f"user says input {n}", "calls park", "result cancelled")),
            "user says last",
        ]


async def test_case_a01_an_input_that_waits_while_a_call_is_interrupted_comes_behind_its_result(
    log: EventStore,
) -> None:
    parked = Parked()
    async with runtime_of(log, use("park", {"name": "a"}), say("fine"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        first = asyncio.create_task(session.send("go"))
        await parked.until(1)
        second = asyncio.create_task(session.send("new text"))
        await session.history()
        await session.cancel()
        assert ((await first).outcome, (await second).text) == (Cancelled(), "fine")
        assert shape(requests_of(runtime)[1].messages) == [
            "user says go",
            "calls park",
            "result cancelled",
            "user says new text",
        ]


async def test_case_a01_a_call_that_ended_keeps_its_result_beside_those_that_were_interrupted(log: EventStore) -> None:
    parked = Parked()

    @tool(tier="observe")
    async def quick() -> str:
        """Return."""
        return "was quick"

    async with runtime_of(
        log, [use("park", {"name": "a"}), use("quick")], say("fine"), tools=[parked.park, quick]
    ) as runtime:
        session, seen = await runtime.session("s"), Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        await seen.first(ToolCallCompleted)
        await session.cancel()
        assert (await sending).outcome == Cancelled()
        await session.send("new text")
        assert shape(requests_of(runtime)[1].messages)[3:] == [
            "result cancelled",
            "result was quick",
            "user says new text",
        ]


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "thread"])
async def test_case_a04_a_tool_that_never_looks_at_its_token_has_its_result_from_the_boundary(
    log: EventStore, blocking: bool
) -> None:
    gate, in_thread, begun = asyncio.Event(), threading.Event(), asyncio.Event()
    loop, clock = asyncio.get_running_loop(), ManualClock()

    @tool(name="stubborn")
    async def stubborn() -> str:
        """Never look."""
        begun.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return "did it all the same"

    @tool(name="stubborn")
    def in_a_thread() -> str:
        """Never look."""
        loop.call_soon_threadsafe(begun.set)
        in_thread.wait()
        return "did it all the same"

    tools = [in_a_thread if blocking else stubborn]
    async with runtime_of(log, use("stubborn"), say("fine"), tools=tools, clock=clock) as runtime:
        session, seen = await runtime.session("s"), Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        await begun.wait()
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(RunCancelled)
        # The body still runs, and the log is balanced already: here the host may abort.
        stored = SESSION_CODEC.decode_all(await log.read_stream("session/s"))
        assert check_events(stored, "session/s") == []
        (result,) = [event for event in stored if isinstance(event, ToolCallFailed)]
        assert (result.kind, result.content, result.started) == ("cancelled", (TextBlock(text=CANCELLED_TEXT),), True)
        await clock.advance(6)
        await cancelling
        assert (await sending).outcome == Cancelled()
        assert (await session.send("new text")).text == "fine"
        gate.set()
        in_thread.set()
        late = await seen.first(ToolResultLate)
        assert late.content == (TextBlock(text="did it all the same"),)
        assert [result.kind for result in results_in(await session.history())] == ["cancelled"]


async def test_case_a04_a_host_that_aborts_in_the_middle_of_a_cancel_leaves_no_open_call(log: EventStore) -> None:
    gate, begun, clock = asyncio.Event(), asyncio.Event(), ManualClock()

    @tool
    async def stubborn() -> str:
        """Never look."""
        begun.set()
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return "done"

    runtime = runtime_of(log, use("stubborn"), tools=[stubborn], clock=clock, close_grace_s=0)
    async with runtime:
        session, seen = await runtime.session("s"), Seen(runtime)
        sending = asyncio.create_task(session.send("go"))
        await begun.wait()
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(RunCancelled)
        closing = asyncio.create_task(runtime.close())
        await clock.settle()
        gate.set()
        while not closing.done():
            await clock.advance(1)
        await asyncio.wait([sending, cancelling])
    async with runtime_of(log, say("fine")) as again:
        assert (await (await again.session("s")).send("new text")).text == "fine"
        assert shape(requests_of(again)[0].messages) == [
            "user says go",
            "calls stubborn",
            "result cancelled",
            "user says new text",
        ]


# A14, A16: what a crash leaves is folded once, and repaired each time it needs to be


def confirmed(ran: list[str], gate: asyncio.Event | None = None) -> Any:
    @tool(tier="confirm", effect="once")
    async def pay(context: ToolContext[Any]) -> str:
        """Pay."""
        ran.append(context.idempotency_key)
        if gate is not None:
            await gate.wait()
        return "paid"

    return pay


async def approval(session: Session) -> ToolCallId:
    while not (waiting := await session.approvals()):
        await session.history()
    assert len(waiting) == 1, "a suspended call is there once"
    return waiting[0].call


@pytest.mark.parametrize("crashes", [1, 3])
async def test_case_a14_a_call_that_waits_for_a_person_is_there_once_after_every_crash(
    tmp_path: Path, crashes: int
) -> None:
    path, ran = tmp_path / "events.db", list[str]()
    pay = confirmed(ran)
    async with runtime_of(path, use("pay"), tools=[pay]) as first:
        session = await first.session("s")
        sending = asyncio.create_task(session.send("go", key="k"))
        call = await approval(session)
        image = crash_image(path, tmp_path / "crash 0")
        sending.cancel()
        await asyncio.wait([sending])
    for number in range(1, crashes):
        async with runtime_of(image, tools=[pay]) as between:
            assert await approval(await between.session("s")) == call
            image = crash_image(image, tmp_path / f"crash {number}")
    async with runtime_of(image, say("done"), tools=[pay]) as last:
        session = await last.session("s")
        assert await approval(session) == call
        await session.decide(call, allow=True, key="yes")
        assert (await session.send("go", key="k")).text == "done"
        await session.decide(call, allow=True, key="yes")
        assert shape(requests_of(last)[0].messages) == ["user says go", "calls pay", "result paid"]
        types = await types_of(session)
        assert [types.count(kind) for kind in ("InputQueued", "ModelResponded", "ToolApprovalRequested")] == [1, 2, 1]
        await assert_sound(last.store)
    assert len(ran) == 1


async def test_case_a14_a_call_that_was_approved_and_crashed_goes_back_to_the_person_and_runs_once_more(
    tmp_path: Path,
) -> None:
    path, ran, gate = tmp_path / "events.db", list[str](), asyncio.Event()
    pay = confirmed(ran, gate)
    async with runtime_of(path, use("pay"), tools=[pay], close_grace_s=0) as first:
        session = await first.session("s")
        sending = asyncio.create_task(session.send("go", key="k"))
        call = await approval(session)
        await session.decide(call, allow=True, key="yes")
        while not ran:
            await session.history()
        image = crash_image(path, tmp_path / "crash")
    with pytest.raises(ActorStopped):
        await sending
    gate.set()
    async with runtime_of(image, say("done"), tools=[pay]) as again:
        session = await again.session("s")
        assert await approval(session) == call
        await session.decide(call, allow=True, key="yes")
        assert [asked.call for asked in await session.approvals()] == [call], "an old answer is no new one"
        await session.decide(call, allow=True, key="yes again")
        assert (await session.send("go", key="k")).text == "done"
        assert shape(requests_of(again)[0].messages) == ["user says go", "calls pay", "result paid"]
        await assert_sound(again.store)
    assert ran == [ran[0]] * 2, "the same key, since it is the same call"


def orphaned(name: str) -> list[Message]:
    """Return messages of another system that end in a call without a result."""
    call = ToolUseBlock(id=ToolCallId("toolu_1"), name=name, input={})
    return [Message("user", (TextBlock(text=f"do {name}"),)), Message("assistant", (call,))]


async def test_case_a16_a_history_that_is_broken_again_is_repaired_again(log: EventStore) -> None:
    async with runtime_of(log, say("one")) as runtime:
        session = await runtime.session("s")
        await session.import_history(orphaned("first"))
        assert (await session.send("go on")).text == "one"
    async with runtime_of(log, say("two"), say("three")) as runtime:
        session = await runtime.session("s")
        await session.import_history(orphaned("second"))
        assert (await session.send("go on")).text == "two"
        await session.import_history(orphaned("third"))
        assert (await session.send("go on")).text == "three"
        messages = requests_of(runtime)[1].messages
    assert [call.name for call in calls_in(messages)] == ["first", "second", "third"]
    assert [result.text for result in results_in(messages)] == [CRASHED_IMPORT_TEXT] * 3
    assert len({call.id for call in calls_in(messages)}) == 3


async def test_case_a16_every_crash_in_a_tool_is_repaired_whatever_was_repaired_before(tmp_path: Path) -> None:
    parked = Parked()
    image, script = tmp_path / "events.db", [use("park", {"name": "0"})]
    for number in range(3):
        async with runtime_of(image, *script, tools=[parked.park], close_grace_s=0) as runtime:
            session = await runtime.session("s")
            sending = asyncio.create_task(session.send("go", key="k"))
            await parked.until(number + 1)
            image = crash_image(image, tmp_path / f"crash {number}")
            script = [use("park", {"name": str(number + 1)})]
        with pytest.raises(ActorStopped):
            await sending
    async with runtime_of(image, say("done"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        assert shape(await session.history()) == [
            "user says go",
            *["calls park", "result crashed"] * 3,
            "assistant says done",
        ]
        await assert_sound(runtime.store)
    assert parked.begun == ["0", "1", "2"]


# A19: how a call ended is told as it was


async def test_case_a19_denied_interrupted_timed_out_and_crashed_are_different_outcomes(tmp_path: Path) -> None:
    path, clock, ran, parked = tmp_path / "events.db", ManualClock(), list[str](), Parked()
    pay = confirmed(ran)

    @tool(timeout_s=5)
    async def slow() -> str:
        """Be silent."""
        ran.append("slow")
        await asyncio.Event().wait()
        return "unreachable"

    script = [use("pay"), say("denied"), use("park", {"name": "interrupted"}), use("slow"), say("timed out")]
    script.append(use("park", {"name": "crashed"}))
    tools = [pay, parked.park, slow]
    runtime = runtime_of(path, *script, tools=tools, clock=clock, close_grace_s=0)
    async with runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("pay"))
        await session.decide(await approval(session), allow=False, reason="too dear")
        assert (await sending).text == "denied"
        sending = asyncio.create_task(session.send("interrupt"))
        await parked.until(1)
        await session.cancel()
        assert (await sending).outcome == Cancelled()
        sending = asyncio.create_task(session.send("be slow"))
        while not sending.done():
            await clock.advance(1)
        assert (await sending).text == "timed out"
        sending = asyncio.create_task(session.send("crash", key="k"))
        await parked.until(2)
        image = crash_image(path, tmp_path / "crash")
        closing = asyncio.create_task(runtime.close())
        while not closing.done():
            await clock.advance(1)
    with pytest.raises(ActorStopped):
        await sending
    async with runtime_of(image, say("done"), tools=tools) as again:
        session = await again.session("s")
        assert (await session.send("crash", key="k")).text == "done"
        results = results_in(requests_of(again)[0].messages)
        events = [recorded.event async for recorded in session.events()]
        await assert_sound(again.store)
    ends = [(event.kind, event.started) for event in events if isinstance(event, ToolCallFailed)]
    assert ends == [("denied", False), ("cancelled", True), ("timeout", True), ("crashed", True)]
    assert [result.kind for result in results] == ["denied", "cancelled", "timeout", "crashed"]
    denied, cancelled, timeout, crashed = [result.text for result in results]
    assert "too dear" in denied
    assert cancelled == CANCELLED_TEXT
    assert "may have taken full, partial or no effect" in timeout
    assert crashed == CRASHED_TEXT
    for text in (cancelled, timeout, crashed):
        assert "not run" not in text
        assert "enied" not in text
    assert "slow" in ran
    assert not any(key.startswith("s/") for key in ran), "what was denied did not run"


async def test_case_a19_a_call_that_was_interrupted_before_it_began_says_so_in_its_event(log: EventStore) -> None:
    parked = Parked(tier="act")
    async with runtime_of(log, [use("park", {"name": n}) for n in "ab"], tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        await session.cancel()
        assert (await sending).outcome == Cancelled()
        events = [recorded.event async for recorded in session.events()]
    ends = [(event.kind, event.started) for event in events if isinstance(event, ToolCallFailed)]
    assert ends == [("cancelled", True), ("cancelled", False)]
    assert sum(isinstance(event, ToolCallStarted) for event in events) == 1
    assert parked.begun == ["a"]


# A20: recovery comes before the next prompt


@pytest.mark.parametrize("effect", ["once", "pure"])
async def test_case_a20_a_prompt_to_a_new_process_comes_behind_the_result_of_the_call_that_was_killed(
    tmp_path: Path, effect: str
) -> None:
    path, parked = tmp_path / "events.db", Parked(effect=effect)
    async with runtime_of(path, use("park", {"name": "a"}), tools=[parked.park], close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await parked.until(1)
        image = crash_image(path, tmp_path / "crash")
    with pytest.raises(ActorStopped):
        await sending
    parked.gate.set()
    async with runtime_of(image, say("recovered"), say("answered"), tools=[parked.park]) as again:
        session = await again.session("s")
        assert (await session.send("new prompt")).text == "answered"
        result = "result crashed" if effect == "once" else "result a returned"
        assert shape(requests_of(again)[0].messages) == ["user says go", "calls park", result]
        assert shape(requests_of(again)[1].messages) == [
            "user says go",
            "calls park",
            result,
            "assistant says recovered",
            "user says new prompt",
        ]
        await assert_sound(again.store)


@pytest.mark.parametrize("way", ["cancel", "resume"])
async def test_case_a20_a_prompt_waits_for_the_call_that_was_killed_also_where_nothing_resumes_by_itself(
    tmp_path: Path, way: str
) -> None:
    path, parked = tmp_path / "events.db", Parked()
    async with runtime_of(path, use("park", {"name": "a"}), tools=[parked.park], close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await parked.until(1)
        image = crash_image(path, tmp_path / "crash")
    with pytest.raises(ActorStopped):
        await sending
    script = [say("recovered"), say("answered")] if way == "resume" else [say("answered")]
    async with runtime_of(image, *script, tools=[parked.park], auto_resume=False) as again:
        session = await again.session("s")
        prompt = asyncio.create_task(session.send("new prompt"))
        assert check_history(await session.history()) == []
        assert requests_of(again) == []
        await (session.resume() if way == "resume" else session.cancel())
        assert (await prompt).text == "answered"
        words = shape(requests_of(again)[-1].messages)
        assert words[:2] == ["user says go", "calls park"]
        assert words[2] == ("result crashed" if way == "resume" else "result cancelled")
        assert words[-1] == "user says new prompt"
        await assert_sound(again.store)


# A24: completed work stays


@pytest.mark.parametrize("beside", [False, True], ids=["one by one", "beside each other"])
async def test_case_a24_twenty_completed_calls_survive_a_cancel(log: EventStore, beside: bool) -> None:
    parked, token, ran = Parked(), CancellationToken(), list[str]()

    @tool(tier="observe")
    async def work(name: str) -> str:
        """Work."""
        ran.append(name)
        return f"{name} is done"

    calls = [use("work", {"name": str(number)}) for number in range(20)]
    script: list[Any] = [calls] if beside else list(calls)
    script += [use("park", {"name": "the last"}), say("fine")]
    async with runtime_of(log, *script, tools=[work, parked.park]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go", cancel=token))
        await parked.until(1)
        token.cancel()
        assert (await sending).outcome == Cancelled()
    async with runtime_of(log, say("fine"), tools=[work]) as again:
        session = await again.session("s", restore=True)
        texts = [f"{number} is done" for number in range(20)]
        assert [result.text for result in results_in(await session.history())] == [*texts, CANCELLED_TEXT]
        assert (await session.send("what came of it?")).text == "fine"
        assert [result.text for result in results_in(requests_of(again)[0].messages)] == [*texts, CANCELLED_TEXT]
    assert len(ran) == 20


# B01: what a stream yields


class Streams(Asked):
    """Yields given items instead of the pieces of its script's first answer."""

    def __init__(self, items: Callable[[ModelResponse], list[Any]], script: list[Any]) -> None:
        super().__init__(script)
        self._items = items

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        response = await self.complete(request)
        for item in self._items(response) if len(self.requests) == 1 else [response]:
            yield item


def _cumulative_pieces(response: ModelResponse) -> list[Any]:
    """Return pieces that begin at the first call again and again, and then the answer."""
    return [ToolInputDelta(n, "work", f'{{"name":"{n}"}}') for last in range(3) for n in range(last + 1)] + [response]


def _more_behind_the_answer(response: ModelResponse) -> list[Any]:
    """Return the answer, which ends a stream, and the whole of it again behind that."""
    return [*_cumulative_pieces(response), *_cumulative_pieces(response)]


def _text_between(response: ModelResponse) -> list[Any]:
    return [TextDelta("I "), *_cumulative_pieces(response)[:-1], TextDelta("will"), response]


@pytest.mark.parametrize("items", [_cumulative_pieces, _more_behind_the_answer, _text_between])
@pytest.mark.parametrize("ids", [("t1", "t2", "t3"), ("t1", "t1", "t1"), (None, None, None)])
async def test_case_b01_what_a_stream_repeats_makes_no_call_of_its_own(
    log: EventStore, items: Any, ids: tuple[str | None, ...]
) -> None:
    ran: list[str] = []

    @tool(tier="observe")
    async def work(name: str) -> str:
        """Work."""
        ran.append(name)
        return f"{name} is done"

    answer = [ToolUse(name="work", input={"name": str(n)}, id=ids[n]) for n in range(3)]
    provider = Streams(items, [answer, say("ok")])
    config = AgentConfig(model="m", streaming=True)
    async with AgentRuntime(config, provider=provider, tools=[work], log=log) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "ok"
        history = await session.history()
    assert sorted(ran) == ["0", "1", "2"]
    calls = calls_in(history)
    assert [call.provider_id for call in calls] == list(ids)
    assert len({call.id for call in calls}) == 3
    assert [result.text for result in results_in(history)] == ["0 is done", "1 is done", "2 is done"]


async def test_case_b01_pieces_without_an_answer_make_no_call_at_all(log: EventStore) -> None:
    @tool
    async def work(name: str) -> str:
        """Work."""
        raise AssertionError("half an answer calls nothing")

    provider = Streams(lambda response: _cumulative_pieces(response)[:-1], [use("work", {"name": "0"}), say("ok")])
    config = AgentConfig(model="m", streaming=True)
    async with AgentRuntime(config, provider=provider, tools=[work], log=log) as runtime:
        session = await runtime.session("s")
        result = await session.send("go")
        assert type(result.outcome).__name__ in ("Failed", "Completed")
        assert calls_in(await session.history()) == []


# B04 to B11 beside the tests of arguments, of schemas and of the registry


@pytest.mark.parametrize("arguments", ["", " \n", "null", None, {}])
async def test_case_b04_a_history_with_a_call_without_arguments_is_shown_again_turn_after_turn(
    log: EventStore, arguments: Any
) -> None:
    @tool
    async def now() -> str:
        """Tell the time."""
        return "noon"

    script = [ToolUse(name="now", input=arguments), say("one"), ToolUse(name="now", input=arguments), say("two")]
    async with runtime_of(log, *script, tools=[now]) as runtime:
        session = await runtime.session("s")
        assert [(await session.send("go")).text for _ in range(2)] == ["one", "two"]
        calls = calls_in(requests_of(runtime)[3].messages)
        assert [(call.input, call.malformed_input) for call in calls] == [({}, None)] * 2


@pytest.mark.parametrize("cut", ["{", '{"name', '{"name": "/a', '{"name": "a"', '{"name": "a"}}', '{"name": "a"} x'])
async def test_case_b06_a_turn_with_arguments_that_were_cut_goes_on_and_calls_the_others(
    log: EventStore, cut: str
) -> None:
    parked = Parked()
    parked.gate.set()
    script = [[ToolUse(name="park", input=cut), use("park", {"name": "whole"})], say("ok"), say("next")]
    async with runtime_of(log, *script, tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).outcome == Completed()
        assert (await session.send("more")).text == "next"
        results = results_in(requests_of(runtime)[2].messages)
    assert [result.kind for result in results] == ["invalid_arguments", None]
    assert parked.begun == ["whole"]


async def test_case_b10_calls_of_one_tick_keep_their_arguments_though_their_times_are_equal(log: EventStore) -> None:
    clock = ManualClock()

    @tool(tier="observe")
    async def echo(context: ToolContext[Any], name: str) -> str:
        """Echo."""
        return f"{context.call} {name}"

    names = [f"{number * 7919 % 101}" for number in range(50)]
    async with runtime_of(
        log, [use("echo", {"name": name}) for name in names], say("ok"), tools=[echo], clock=clock
    ) as runtime:
        session = await runtime.session("s")
        await session.send("go")
        history = await session.history()
        started = {r.time async for r in session.events() if isinstance(r.event, ToolCallStarted)}
    assert len(started) == 1
    calls = calls_in(history)
    assert [call.input["name"] for call in calls] == names
    assert [result.text for result in results_in(history)] == [f"{call.id} {call.input['name']}" for call in calls]


async def test_case_a01_an_image_or_several_blocks_after_an_interrupt_come_behind_the_result_too(
    log: EventStore,
) -> None:
    parked = Parked()
    async with runtime_of(log, use("park", {"name": "a"}), say("fine"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        await session.cancel()
        await sending
        await session.send([ImageBlock(media_type="image/png", data=b"\x89PNG"), TextBlock(text="look"), "again"])
        assert shape(requests_of(runtime)[1].messages)[2:] == [
            "result cancelled",
            "ImageBlock",
            "user says look",
            "user says again",
        ]
