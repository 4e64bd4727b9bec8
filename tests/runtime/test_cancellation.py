"""Cancellation in every state of a run, by every way there is to ask for it.

A run that is cancelled ends as cancelled, once; each of its calls has one result; the log is durable before the caller
is told; and the next input on the session runs. Every test runs on the log in memory and on a file; the `log` fixture
checks and replays the log afterwards.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    CancellationToken,
    Cancelled,
    CommandRejected,
    Completed,
    ModelRequest,
    ScriptedProvider,
    Session,
    ToolContext,
    ToolResultBlock,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.content import CANCELLED_TEXT, CRASHED_TEXT
from refold.events.session_events import (
    RunCancelled,
    RunCompleted,
    ToolApprovalRequested,
    ToolCallStarted,
    ToolResultLate,
)
from refold.events.tool_core import TOOL_CODEC
from refold.events.tool_events import ToolCallAbandoned
from refold.log_check import check_log
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore, SQLiteStore

CONFIG = AgentConfig(model="test-model")

EVIDENCE = ("ToolResultLate", "ModelInterrupted")
"""Events that belong to no run."""


@pytest.fixture(params=["memory", "file"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A log that is checked and replayed when the test is over."""
    store: EventStore = InMemoryStore() if request.param == "memory" else await SQLiteStore.open(tmp_path / "events.db")
    yield store
    assert (await check_log(store)).problems == ()
    (await replay(store, level="core")).raise_for_divergence()
    await store.close()


class Seen:
    """Waits for events of a session; also for those that came before anybody waited."""

    def __init__(self, runtime: AgentRuntime, session: Session) -> None:
        self._events: list[Any] = []
        self._wake = asyncio.Event()
        runtime.subscribe(self._see, session=session.id)

    def _see(self, recorded: Any) -> None:
        self._events.append(recorded.event)
        self._wake.set()

    async def first(self, kind: type, count: int = 1) -> list[Any]:
        """Return the first `count` events of a kind, once they are durable."""
        while len(found := [event for event in self._events if isinstance(event, kind)]) < count:
            self._wake.clear()
            await self._wake.wait()
        return found


class Parked:
    """Tools that begin, say so, and wait until they are let go or cancelled."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gate = asyncio.Event()
        self._wake = asyncio.Event()

        @tool(tier="observe")
        async def park(name: str) -> str:
            """Wait."""
            self._begin(name)
            await self.gate.wait()
            return f"{name} returned"

        @tool(tier="observe")
        async def ignore(name: str) -> str:
            """Wait, whatever anybody says."""
            self._begin(name)
            while not self.gate.is_set():
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    continue
            return f"{name} returned"

        self.park, self.ignore = park, ignore

    def _begin(self, name: str) -> None:
        self.begun.append(name)
        self._wake.set()

    async def until(self, count: int) -> None:
        """Return once so many bodies have begun."""
        while len(self.begun) < count:
            self._wake.clear()
            await self._wake.wait()


def runtime_of(log: EventStore, *script: Any, tools: Any = (), **options: Any) -> AgentRuntime:
    config = options.pop("config", CONFIG)
    return AgentRuntime(config, provider=ScriptedProvider(script), tools=tools, log=log, **options)


async def results_of(session: Session) -> list[ToolResultBlock]:
    return [
        block for message in await session.history() for block in message.content if isinstance(block, ToolResultBlock)
    ]


async def types_of(session: Session) -> list[str]:
    return [type(recorded.event).__name__ async for recorded in session.events()]


async def abandoned_in(log: EventStore, name: str) -> int:
    events = TOOL_CODEC.decode_all(await log.read_stream(f"tool/{name}"))
    return sum(isinstance(event, ToolCallAbandoned) for event in events)


@pytest.fixture(params=["session.cancel", "token", "token from a thread", "task", "timeout"])
def cancel_by(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A way to send an input and cancel its run once `ready` returns; gives None where the caller is cancelled too."""
    return {
        "session.cancel": _by_session,
        "token": _by_token,
        "token from a thread": _by_token_from_a_thread,
        "task": _by_task,
        "timeout": _by_timeout,
    }[request.param]


async def _by_session(session: Session, ready: Callable[[], Any]) -> Any:
    sending = asyncio.create_task(session.send("go"))
    await ready()
    await session.cancel()
    return (await sending).outcome


async def _by_token(session: Session, ready: Callable[[], Any]) -> Any:
    token = CancellationToken()
    sending = asyncio.create_task(session.send("go", cancel=token))
    await ready()
    token.cancel()
    token.cancel()
    return (await sending).outcome


async def _by_token_from_a_thread(session: Session, ready: Callable[[], Any]) -> Any:
    token = CancellationToken()
    sending = asyncio.create_task(session.send("go", cancel=token))
    await ready()

    def cancel_twice() -> None:
        token.cancel("enough")
        token.cancel()

    thread = threading.Thread(target=cancel_twice)
    thread.start()
    outcome = (await sending).outcome
    thread.join()
    return outcome


async def _by_task(session: Session, ready: Callable[[], Any]) -> Any:
    sending = asyncio.create_task(session.send("go"))
    await ready()
    sending.cancel()
    await asyncio.sleep(0)
    sending.cancel()  # Somebody insists: it waits for the same end.
    with pytest.raises(asyncio.CancelledError):
        await sending
    return None


async def _by_timeout(session: Session, ready: Callable[[], Any]) -> Any:
    limits: list[asyncio.Timeout] = []

    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await session.send("go")

    sending = asyncio.create_task(limited())
    await ready()
    limits[0].reschedule(asyncio.get_running_loop().time())  # It is over now.
    with pytest.raises(TimeoutError):
        await sending
    return None


async def assert_cancelled_and_usable(
    session: Session, provider: ScriptedProvider, outcome: Any, results: list[str]
) -> None:
    """Check what holds after every cancellation; the script's next answer must be "after"."""
    assert outcome in (Cancelled(), None)
    types = [kind for kind in await types_of(session) if kind not in EVIDENCE]
    assert types[-1] == "RunCancelled"
    assert not {"RunCompleted", "RunFailed"}.intersection(types)
    assert types.count("RunCancelled") == types.count("CancelRequested") == 1
    assert [block.text for block in await results_of(session)] == results
    history = await session.history()
    assert history[0].text == "go"
    assert (await session.send("more")).text == "after"
    assert list(provider.requests[-1].messages)[: len(history)] == history


# Where a run can be


async def test_a_run_is_cancelled_while_the_model_is_asked(log: EventStore, cancel_by: Callable[..., Any]) -> None:
    asked = asyncio.Event()

    async def never(request: ModelRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "unreachable"

    provider = ScriptedProvider([never, say("after")])
    async with AgentRuntime(CONFIG, provider=provider, log=log) as runtime:
        session = await runtime.session("s")
        outcome = await cancel_by(session, asked.wait)
        await assert_cancelled_and_usable(session, provider, outcome, [])


async def test_case_b6_a_run_is_cancelled_in_the_middle_of_a_streamed_call(
    log: EventStore, cancel_by: Callable[..., Any]
) -> None:
    half = asyncio.Event()

    class Halting(ScriptedProvider):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            async for item in super().stream(request):
                if len(self.requests) == 1 and item is not None:
                    yield item
                    half.set()
                    await asyncio.Event().wait()
                yield item

    provider = Halting([use("park", {"name": "long enough to be streamed"}), say("after")])
    config = AgentConfig(model="m", streaming=True)
    async with AgentRuntime(config, provider=provider, log=log) as runtime:
        session = await runtime.session("s")
        outcome = await cancel_by(session, half.wait)
        assert [message.role for message in await session.history()] == ["user"]
        await assert_cancelled_and_usable(session, provider, outcome, [])


async def test_case_b1_b9_a_run_is_cancelled_while_three_calls_run(
    log: EventStore, cancel_by: Callable[..., Any]
) -> None:
    parked = Parked()
    provider = ScriptedProvider([[use("park", {"name": name}) for name in "abc"], say("after")])
    async with AgentRuntime(CONFIG, provider=provider, tools=[parked.park], log=log) as runtime:
        session = await runtime.session("s")
        outcome = await cancel_by(session, lambda: parked.until(3))
        await assert_cancelled_and_usable(session, provider, outcome, [CANCELLED_TEXT] * 3)
        assert CRASHED_TEXT not in str(await session.history())


async def test_a_run_is_cancelled_while_a_call_waits_for_approval(
    log: EventStore, cancel_by: Callable[..., Any]
) -> None:
    @tool(tier="confirm")
    async def pay() -> str:
        """Pay."""
        raise AssertionError("never approved")

    provider = ScriptedProvider([use("pay"), say("after")])
    async with AgentRuntime(CONFIG, provider=provider, tools=[pay], log=log) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        outcome = await cancel_by(session, lambda: seen.first(ToolApprovalRequested))
        (asked,) = await seen.first(ToolApprovalRequested)
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide(asked.call, allow=True)
        await assert_cancelled_and_usable(session, provider, outcome, [CANCELLED_TEXT])


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "thread"])
async def test_case_b1_b19_a_tool_that_ignores_its_cancellation_is_abandoned_counted_and_its_late_result_is_evidence(
    log: EventStore, cancel_by: Callable[..., Any], blocking: bool
) -> None:
    parked, clock = Parked(), ManualClock()
    in_thread, gate = threading.Event(), threading.Event()
    arrived = asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool(name="ignore", tier="observe")
    def block(name: str) -> str:
        """Wait in a thread."""
        in_thread.set()
        loop.call_soon_threadsafe(arrived.set)
        gate.wait()
        return f"{name} returned"

    async def begun() -> None:
        if blocking:
            await arrived.wait()
        else:
            await parked.until(1)
        pass_time.set()

    pass_time = asyncio.Event()
    provider = ScriptedProvider([use("ignore", {"name": "a"}), say("after")])
    tools = [block if blocking else parked.ignore]
    async with AgentRuntime(CONFIG, provider=provider, tools=tools, log=log, clock=clock, cancel_grace_s=5) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        cancelling = asyncio.create_task(cancel_by(session, begun))
        await pass_time.wait()
        await seen.first(RunCancelled)
        await clock.advance(4.9)
        assert not cancelling.done()
        assert await abandoned_in(log, "ignore") == 0
        await clock.advance(0.2)
        outcome = await cancelling
        await assert_cancelled_and_usable(session, provider, outcome, [CANCELLED_TEXT])
        assert await abandoned_in(log, "ignore") == 1
        gate.set()
        parked.gate.set()
        (late,) = await seen.first(ToolResultLate)
        assert late.content[0].text == "a returned"
        assert [block.text for block in await results_of(session)] == [CANCELLED_TEXT]
    assert CRASHED_TEXT not in str([event.data for event in await log.read_all()])


async def test_a_queued_run_is_cancelled_by_its_token_keeps_its_message_and_asks_no_model(log: EventStore) -> None:
    parked = Parked()
    provider = ScriptedProvider([use("park", {"name": "a"}), say("first"), say("third")])
    token = CancellationToken()
    async with AgentRuntime(CONFIG, provider=provider, tools=[parked.park], log=log) as runtime:
        session = await runtime.session("s")
        first = asyncio.create_task(session.send("one"))
        await parked.until(1)
        second = asyncio.create_task(session.send("two", cancel=token))
        third = asyncio.create_task(session.send("three"))
        await session.history()
        token.cancel()
        parked.gate.set()
        assert [(await sending).outcome for sending in (first, second, third)] == [
            Completed(),
            Cancelled(),
            Completed(),
        ]
        assert [message.text for message in await session.history() if message.role == "user"] == [
            "one",
            "",
            "two",
            "three",
        ]
        assert len(provider.requests) == 3


# Which cancellation wins


async def test_case_b3_a_token_cancelled_before_the_run_always_cancels_it(log: EventStore) -> None:
    provider = ScriptedProvider([])
    async with AgentRuntime(CONFIG, provider=provider, log=log) as runtime:
        sessions = [await runtime.session(f"s{number}") for number in range(10)]
        tokens = [CancellationToken() for _ in range(50)]
        for token in tokens:
            token.cancel()
        results = await asyncio.gather(
            *(sessions[place % 10].send("never", cancel=token) for place, token in enumerate(tokens))
        )
        assert {type(result.outcome) for result in results} == {Cancelled}
        assert provider.requests == []
        for session in sessions:
            assert [message.text for message in await session.history()] == ["never"] * 5


@pytest.mark.parametrize("rounds", range(0, 40, 3))
async def test_case_b4_a_cancel_that_races_a_whole_run_leaves_it_ended_once(log: EventStore, rounds: int) -> None:
    @tool(tier="observe")
    async def quick(name: str) -> str:
        """Return at once."""
        return name

    token = CancellationToken()
    script = [[use("quick", {"name": "a"}), use("quick", {"name": "b"})], say("done"), say("after"), say("after")]
    async with runtime_of(log, *script, tools=[quick]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go", cancel=token))
        for _ in range(rounds):
            await asyncio.sleep(0)
        token.cancel()
        result = await sending
        types = [kind for kind in await types_of(session) if kind not in EVIDENCE]
        assert types.count("RunCompleted") + types.count("RunCancelled") == 1
        assert types[-1] == ("RunCancelled" if result.outcome == Cancelled() else "RunCompleted")
        started = types.count("ToolCallStarted")
        assert types.count("ToolCallCompleted") + types.count("ToolCallFailed") == started
        assert len(await results_of(session)) == started
        assert (await session.send("more")).text in ("done", "after")


@pytest.mark.parametrize("winner", ["result", "cancel"])
async def test_case_b4_a_call_has_one_result_whichever_of_result_and_cancel_comes_first(
    log: EventStore, winner: str
) -> None:
    parked, token = Parked(), CancellationToken()
    async with runtime_of(log, use("park", {"name": "a"}), say("after"), say("after"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")

        def when_recorded(recorded: Any) -> None:
            if type(recorded.event).__name__ == "ToolCallCompleted":
                token.cancel()

        if winner == "result":
            runtime.subscribe(when_recorded)
        sending = asyncio.create_task(session.send("go", cancel=token))
        await parked.until(1)
        if winner == "cancel":
            token.cancel()
        parked.gate.set()
        assert (await sending).outcome == Cancelled()
        texts = [block.text for block in await results_of(session)]
        assert texts == (["a returned"] if winner == "result" else [CANCELLED_TEXT])


async def test_case_b2_b12_cancelling_twice_and_by_several_equals_cancelling_once(log: EventStore) -> None:
    parked, token = Parked(), CancellationToken()
    async with runtime_of(log, [use("park", {"name": name}) for name in "ab"], tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go", cancel=token))
        await parked.until(2)
        token.cancel()
        await asyncio.gather(*(session.cancel() for _ in range(3)), session.cancel(key="k"), session.cancel(key="k"))
        token.cancel()
        assert (await sending).outcome == Cancelled()
        await session.cancel()
        types = await types_of(session)
        assert types[-4:] == ["CancelRequested", "ToolCallFailed", "ToolCallFailed", "RunCancelled"]
        assert types.count("CancelRequested") == 1


async def test_a_cancel_with_a_key_means_its_first_run_for_ever(log: EventStore) -> None:
    parked = Parked()
    async with runtime_of(
        log, use("park", {"name": "a"}), use("park", {"name": "b"}), say("ok"), tools=[parked.park]
    ) as runtime:
        session = await runtime.session("s")
        first = asyncio.create_task(session.send("one"))
        await parked.until(1)
        await session.cancel(key="stop")
        assert (await first).outcome == Cancelled()
        second = asyncio.create_task(session.send("two"))
        await parked.until(2)
        await session.cancel(key="stop")
        parked.gate.set()
        assert (await second).text == "ok"


async def test_case_b7_a_tool_that_awaits_its_token_sees_it_once_and_ends_by_itself(log: EventStore) -> None:
    saw: list[str] = []
    waiting = asyncio.Event()

    @tool
    async def watch(context: ToolContext[Any]) -> str:
        """Watch."""
        waiting.set()
        try:
            await context.cancel.wait()
        except asyncio.CancelledError:
            saw.append("cancelled")
            raise
        saw.append("token")
        return "stopped in order"

    async with runtime_of(log, use("watch"), say("after"), tools=[watch]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await waiting.wait()
        await session.cancel()
        assert (await sending).outcome == Cancelled()
        assert saw == ["token"]
        assert [block.text for block in await results_of(session)] == [CANCELLED_TEXT]
        assert (await types_of(session)).count("ToolResultLate") == 1
        assert (await session.send("more")).text == "after"


async def test_a_tool_that_watches_its_token_for_too_long_is_cancelled_after_half_the_grace(log: EventStore) -> None:
    clock, waiting, cleaned = ManualClock(), asyncio.Event(), asyncio.Event()

    @tool
    async def watch(context: ToolContext[Any]) -> str:
        """Look once and go on."""
        assert not context.cancel.cancelled
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        return "unreachable"

    async with runtime_of(log, use("watch"), tools=[watch], clock=clock, cancel_grace_s=4) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await waiting.wait()
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(RunCancelled)
        await clock.advance(1.9)
        assert not cleaned.is_set()
        await clock.advance(0.2)
        assert cleaned.is_set()
        await cancelling
        assert (await sending).outcome == Cancelled()
        assert await abandoned_in(log, "watch") == 0


async def test_a_cancelled_tool_that_is_silent_past_its_timeout_is_not_said_to_have_timed_out(log: EventStore) -> None:
    parked, clock = Parked(), ManualClock()

    @tool(name="ignore", timeout_s=2)
    async def short(name: str) -> str:
        """Ignore."""
        return await parked.ignore(name)

    async with runtime_of(log, use("ignore", {"name": "a"}), say("after"), tools=[short], clock=clock) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        await clock.settle()
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(RunCancelled)
        await clock.advance(4)
        assert not sending.done()
        await clock.advance(1.1)
        await cancelling
        assert (await sending).outcome == Cancelled()
        assert "ToolResultLate" not in await types_of(session)
        parked.gate.set()
        await seen.first(ToolResultLate)
        assert await abandoned_in(log, "ignore") == 1


async def test_two_calls_cancelled_before_their_bodies_begin_end_at_once(log: EventStore) -> None:
    parked, token = Parked(), CancellationToken()
    async with runtime_of(log, [use("park", {"name": name}) for name in "ab"], tools=[parked.park]) as runtime:
        session = await runtime.session("s")

        def when_started(recorded: Any) -> None:
            if isinstance(recorded.event, ToolCallStarted):
                token.cancel()

        runtime.subscribe(when_started)
        assert (await session.send("go", cancel=token)).outcome == Cancelled()
        assert [block.text for block in await results_of(session)] == [CANCELLED_TEXT] * 2


# Others are not touched


async def test_case_b14_cancelling_one_session_in_a_tool_leaves_another_and_its_queue_alone(log: EventStore) -> None:
    parked = Parked()

    def answer(request: ModelRequest) -> Any:
        texts = [message.text for message in request.messages if message.role == "user" and message.text]
        if texts[-1] == "park" and len(request.messages) % 2:
            results = [block for block in request.messages[-1].content if isinstance(block, ToolResultBlock)]
            return "done" if results else use("park", {"name": "x"})
        return f"heard {texts[-1]}"

    async with runtime_of(log, *[answer] * 8, tools=[parked.park]) as runtime:
        one, other = await runtime.session("one"), await runtime.session("other")
        first = asyncio.create_task(one.send("park"))
        second = asyncio.create_task(other.send("park"))
        queued = asyncio.create_task(other.send("queued"))
        await parked.until(2)
        await one.cancel()
        assert (await first).outcome == Cancelled()
        parked.gate.set()
        assert (await second).text == "done"
        assert (await queued).text == "heard queued"
        assert (await one.send("again")).text == "heard again"
        assert [message.text for message in await one.history() if message.role == "user"] == ["park", "", "again"]
        assert [block.text for block in await results_of(other)] == ["x returned"]


async def test_case_b5_a_cancelled_session_goes_on_in_another_runtime_with_another_provider_and_no_tools(
    log: EventStore,
) -> None:
    parked = Parked()
    async with runtime_of(log, [use("park", {"name": name}) for name in "ab"], tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("first"))
        await parked.until(2)
        await session.cancel()
        await sending
    other = ScriptedProvider([say("second answer")])
    async with AgentRuntime(AgentConfig(model="other"), provider=other, log=log) as runtime:
        session = await runtime.session("s", restore=True)
        assert (await session.send("second")).text == "second answer"
    request = other.requests[0]
    assert [message.text for message in request.messages if message.role == "user"] == ["first", "", "second"]
    assert [type(block).__name__ for message in request.messages for block in message.content] == [
        "TextBlock",
        "ToolUseBlock",
        "ToolUseBlock",
        "ToolResultBlock",
        "ToolResultBlock",
        "TextBlock",
    ]


async def test_case_b8_the_balanced_history_is_durable_when_the_caller_is_told(log: EventStore) -> None:
    parked = Parked()
    token = CancellationToken()
    async with runtime_of(log, [use("park", {"name": name}) for name in "abc"], tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go", cancel=token))
        await parked.until(3)
        token.cancel()
        await sending
        state = await session.state_at()
    assert state.run is None
    assert state.turn is None
    assert [block.text for block in state.messages[-1].content if isinstance(block, ToolResultBlock)] == [
        CANCELLED_TEXT
    ] * 3


async def test_two_callers_with_one_key_of_whom_one_is_cancelled_keep_the_run(log: EventStore) -> None:
    parked = Parked()
    async with runtime_of(log, use("park", {"name": "a"}), say("done"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        first = asyncio.create_task(session.send("go", key="k"))
        await parked.until(1)
        second = asyncio.create_task(session.send("go", key="k"))
        await session.history()
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        parked.gate.set()
        assert (await first).text == "done"


@pytest.mark.parametrize("rounds", range(8))
async def test_a_caller_cancelled_at_any_moment_leaves_no_run_that_nobody_cancels(log: EventStore, rounds: int) -> None:
    async def never(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return "unreachable"

    async with runtime_of(log, never, say("after"), say("after")) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert (await session.state_at()).run is None


# Approvals


@pytest.mark.parametrize("allow", [True, False])
async def test_a_call_that_needs_approval_runs_exactly_if_it_is_allowed(log: EventStore, allow: bool) -> None:
    ran: list[int] = []

    @tool(tier="confirm")
    async def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    async with runtime_of(log, use("pay", {"amount": 5}), say("ok"), tools=[pay]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        (asked,) = await seen.first(ToolApprovalRequested)
        assert (asked.tool, asked.input, ran) == ("pay", {"amount": 5}, [])
        await session.decide(asked.call, allow=allow, reason="too much", key="d")
        await session.decide(asked.call, allow=allow, reason="too much", key="d")
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide(asked.call, allow=not allow)
        with pytest.raises(CommandRejected, match="key 'd'"):
            await session.decide(asked.call, allow=not allow, key="d")
        assert (await sending).text == "ok"
        (result,) = await results_of(session)
    assert ran == ([5] if allow else [])
    assert (result.text, result.kind) == (("paid", None) if allow else ("too much", "denied"))


async def test_an_approval_waits_over_a_restart_without_asking_twice(log: EventStore) -> None:
    ran: list[str] = []

    @tool(tier="confirm")
    async def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    async with runtime_of(log, use("pay"), tools=[pay]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        (asked,) = await seen.first(ToolApprovalRequested)
    with pytest.raises(Exception, match="the runtime closed"):
        await sending
    async with runtime_of(log, say("ok"), tools=[pay]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        await session.decide(asked.call, allow=True)
        await seen.first(RunCompleted)
        assert (await types_of(session)).count("ToolApprovalRequested") == 1
    assert ran == ["paid"]
