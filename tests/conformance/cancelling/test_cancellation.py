"""Cancellation in every state of a run, by every way there is to ask for it: rows B1 to B5, B7 to B9, B12 to B17, B19.

A run that is cancelled ends as cancelled, once; each of its calls has one result; the log is durable before the caller
is told; and the next input on the session runs. Every test runs on the log in memory and on a file; the `log` fixture
checks and replays the log afterwards. Row B6 and the half-streamed answers of row B19 are with the tests of streaming,
Ctrl-C, B18, with those of the command `run`.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from refold import (
    ActorStopped,
    AgentConfig,
    AgentRuntime,
    CancellationToken,
    Cancelled,
    CommandRejected,
    ModelRequest,
    ProviderError,
    RetryPolicy,
    ScriptedProvider,
    Session,
    Streamed,
    TextBlock,
    ToolContext,
    say,
    stall,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.events.core.content import CANCELLED_TEXT, CRASHED_TEXT
from refold.events.core.pure_core import keys_of
from refold.events.session import events as ev
from refold.events.session.invariants import check_events
from refold.stores import EventStore
from tests.conformance.cases import Case, Play, after, as_tests
from tests.conformance.sessions import (
    CONFIG,
    EVIDENCE,
    TERMINAL,
    WAYS_TO_CANCEL,
    HeldAnswer,
    Parked,
    Seen,
    abandoned_in,
    assert_accepted,
    events_of,
    look,
    opened,
    requests_of,
    results_of,
    runtime_of,
    shown,
    types_of,
)
from tests.conformance.steps import (
    advance,
    begin,
    begun,
    cancel,
    cancel_caller,
    cancel_token,
    check,
    crash_and_restart,
    does,
    ends,
    join,
    last,
    let_go,
    recorded,
    restart,
    send,
    told,
    turn,
    until,
    waits,
)

STREAMING = AgentConfig(model="test-model", streaming=True)


@tool(tier="confirm")
async def pay() -> str:
    return "paid"


def park(*names: str) -> list[Any]:
    return [use("park", {"name": name}) for name in names]


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
    assert results or len(history) == 1
    assert CRASHED_TEXT not in str(history)
    assert (await session.send("more")).text == "after"
    assert list(provider.requests[-1].messages)[: len(history)] == history
    assert_accepted(provider.requests[-1].messages)


# B16: where a run can be


@dataclass
class Place:
    """Where a run is when it is cancelled."""

    script: list[Any]
    ready: Callable[[Seen], Awaitable[Any]]
    """Returns when the run is there."""
    results: list[str] = field(default_factory=list)
    """Of its calls, once it is cancelled."""
    tools: list[Any] = field(default_factory=list)
    config: AgentConfig = CONFIG
    asks: int = 1
    """How many requests have reached the model."""


def model_asked() -> Place:
    held = HeldAnswer(say("never"))
    return Place([held], lambda _: held.asked.wait())


def stream_not_begun() -> Place:
    held = HeldAnswer(say("never"))
    return Place([held], lambda _: held.asked.wait(), config=STREAMING)


def streaming(answer: Any, after: int) -> Place:
    """A place inside a stream, once so many pieces of an answer have come."""

    async def ready(seen: Seen) -> None:
        pieces = 0
        async for item in seen.session.follow():
            pieces += isinstance(item, Streamed)
            if pieces == after:
                return

    return Place([stall(answer, after=after)], ready, tools=[Parked().park], config=STREAMING)


def calls_side_by_side() -> Place:
    parked = Parked()
    return Place([park("a", "b", "c")], lambda _: parked.until(3), [CANCELLED_TEXT] * 3, [parked.park])


def calls_in_order() -> Place:
    parked = Parked()
    calls = [use("look"), use("act", {"name": "a"}), use("act", {"name": "b"})]
    return Place([calls], lambda _: parked.until(1), ["saw it", *[CANCELLED_TEXT] * 2], [parked.act, look])


def second_turn() -> Place:
    parked = Parked()
    return Place(
        [use("look"), park("a")], lambda _: parked.until(1), ["saw it", CANCELLED_TEXT], [parked.park, look], asks=2
    )


def thread() -> Place:
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    @tool
    def wait(context: ToolContext[Any]) -> str:
        stopped = threading.Event()
        context.cancel.on_cancel(stopped.set)
        loop.call_soon_threadsafe(begun.set)
        stopped.wait()
        return "stopped"

    return Place([use("wait")], lambda _: begun.wait(), [CANCELLED_TEXT], [wait])


def approval_awaited() -> Place:
    return Place([use("pay")], lambda seen: seen.first(ev.ToolApprovalRequested), [CANCELLED_TEXT], [pay])


def approval_awaited_beside_a_call() -> Place:
    parked = Parked()

    async def ready(seen: Seen) -> None:
        await seen.first(ev.ToolApprovalRequested)
        await parked.until(1)

    return Place([[*park("a"), use("pay")]], ready, [CANCELLED_TEXT] * 2, [pay, parked.park])


def retry_awaited() -> Place:
    overloaded = ProviderError("overloaded", kind="overloaded", retryable=True)
    config = AgentConfig(model="m", retry=RetryPolicy(base_s=50))
    return Place([overloaded], lambda seen: seen.first(ev.RetryScheduled), config=config)


PLACES: dict[str, Callable[[], Place]] = {
    "the model is asked": model_asked,
    "the stream has not begun": stream_not_begun,
    "in the middle of streamed text": lambda: streaming(say("a long answer"), 1),
    "in the middle of a streamed call": lambda: streaming(use("park", {"name": "a long name"}), 2),
    "calls run side by side": calls_side_by_side,
    "calls run in order": calls_in_order,
    "in the second turn": second_turn,
    "a tool runs in a thread": thread,
    "a person is asked": approval_awaited,
    "a person is asked beside a call": approval_awaited_beside_a_call,
    "a retry is awaited": retry_awaited,
}


@pytest.fixture(params=list(PLACES))
async def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param]()


@pytest.mark.parametrize("way", WAYS_TO_CANCEL)
async def test_b1_b5_b6_b8_b9_b16_g07_m04_a_run_is_cancelled_wherever_it_is_and_goes_on_with_the_next_input(
    log: EventStore, place: Place, way: str
) -> None:
    provider = ScriptedProvider([*place.script, say("after")])
    async with AgentRuntime(place.config, provider=provider, tools=place.tools, log=log) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        outcome = await WAYS_TO_CANCEL[way](session, lambda: place.ready(seen))
        recorded = SESSION_CODEC.recorded(await log.read_stream("session/s"))
        events = [item.event for item in recorded]
        assert check_events(events, "session/s") == [], "the balanced history is in the store when the caller is told"
        assert [item.event for item in seen.recorded] == events, "what is published is durable, and all of it is"
        batch = next(item.batch for item in recorded if isinstance(item.event, ev.RunCancelled))
        assert [type(item.event).__name__ for item in recorded if item.batch == batch] == [
            "CancelRequested",
            *["ToolCallFailed"] * place.results.count(CANCELLED_TEXT),
            "RunCancelled",
        ]
        state = await session.state_at()
        assert (state.run, state.turn) == (None, None)
        assert len(provider.requests) == place.asks
        for asked in await events_of(session, ev.ToolApprovalRequested):
            with pytest.raises(CommandRejected, match="does not wait"):
                await session.decide(asked.call, allow=True)
        await assert_cancelled_and_usable(session, provider, outcome, place.results)
    assert CRASHED_TEXT not in str([event.data for event in await log.read_all()]), "b15"


async def test_b16_a_run_that_an_input_has_joined_is_cancelled_wherever_it_is(log: EventStore, place: Place) -> None:
    async with opened(log, *place.script, say("after"), tools=place.tools, config=place.config) as (runtime, session):
        seen = Seen(runtime, session)
        callers = [asyncio.create_task(session.send("go"))]
        await place.ready(seen)
        callers.append(asyncio.create_task(session.send("also this", now=True)))
        await seen.first(ev.InputQueued, 2)
        await session.cancel()
        assert [(await caller).outcome for caller in callers] == [Cancelled()] * 2
        assert [block.text for block in await results_of(session)] == place.results
        assert shown(await session.history())[-1] == "user: also this"
        assert (await types_of(session)).count("RunCancelled") == 1
        assert (await session.send("more")).text == "after"
        assert shown(requests_of(runtime)[-1].messages)[-2:] == ["user: also this", "user: more"]
        assert_accepted(requests_of(runtime)[-1].messages)


# Runs that wait: queued, for a later time, parked, for their next turn; and who cancels whom


async def cancel_two(play: Play) -> None:
    """Cancel the run of the input "two" by its name."""
    version = [getattr(event, "content", None) == (TextBlock(text="two"),) for event in await play.events()].index(True)
    await play.session.cancel(run=f"run_{version + 1}")


async def cancel_often(play: Play) -> None:
    cancels = [play.session.cancel() for _ in range(3)]
    await asyncio.gather(*cancels, play.session.cancel(key="k"), play.session.cancel(key="k"))


CASES = {
    **{
        f"B16: a queued run is cancelled at once by {way}, keeps its message and asks no model": Case(
            [*park("a"), say("first"), say("third")],
            [
                [begin("one"), begun(1), begin("two", token=True), begin("three")],
                [*cancels, waits(), let_go(), ends("first", "third")],
            ],
            history=[
                *["user: one", "use park", "result: a returned", "assistant: first"],
                *["user: two", "user: three", "assistant: third"],
            ],
            asked=3,
        )
        for way, cancels in {
            "token": [cancel_token(), told(1, Cancelled())],
            "task": [cancel_caller(1)],
            "session.cancel": [does(cancel_two), told(1, Cancelled())],
        }.items()
    },
    **{
        f"B16: an input for a later time is cancelled before its time by {way}": Case(
            [say("after")],
            [
                [begin("two", at=after(60), token=True), *cancels, advance(100), last("CancelRequested")],
                send("more", "after"),
            ],
            clock=True,
            history=["user: more", "assistant: after"],
            asked=1,
        )
        for way, cancels in {
            "token": [cancel_token(), ends(Cancelled())],
            "task": [cancel_caller()],
            "session.cancel, and not as the run under way": [cancel(), waits(), does(cancel_two), ends(Cancelled())],
        }.items()
    },
    **{
        f"B16: a parked run is cancelled by {way}": Case(
            [*park("a"), say("after")],
            [
                [begin("go", key="k"), begun(1), crash_and_restart(), until("RunParked")],
                [*cancels, last("RunCancelled"), send("more", "after")],
            ],
            config={"resumes_max": 0},
            results=[CANCELLED_TEXT],
        )
        for way, cancels in {
            "session.cancel": [cancel()],
            "its name": [cancel(run=lambda _: "run_3")],
            "token of its key": [begin("go", key="k", token=True), cancel_token(), ends(Cancelled())],
            "task of its key": [begin("go", key="k"), cancel_caller()],
        }.items()
    },
    "B16: a run that waits for its next turn is cancelled by a joined input's token": Case(
        [use("look"), say("after")],
        [
            [turn("go"), join(token=True), cancel_token(), ends(Cancelled()), last("RunCancelled")],
            send("more", "after"),
        ],
    ),
    "B2, B12: cancelling twice and by several equals cancelling once": Case(
        [park("a", "b")],
        [
            [begin(token=True), begun(2), cancel_token("enough"), does(cancel_often), cancel_token("too late")],
            [ends(Cancelled()), cancel(), recorded(ev.CancelRequested, "reason", "enough")],
        ],
        events=["...", "CancelRequested", "ToolCallFailed", "ToolCallFailed", "RunCancelled"],
        count={"CancelRequested": 1},
    ),
    "B5: a cancelled session goes on in another runtime with another provider and no tools": Case(
        [park("a", "b"), say("second answer")],
        [
            [begin("first"), begun(2), cancel(), ends(Cancelled())],
            [restart(config={"model": "other"}, tools=[]), send("second", "second answer")],
        ],
        requests={
            1: ["user: first", *["use park"] * 2, *[f"result: {CANCELLED_TEXT}"] * 2, "user: second"],
        },
    ),
    "case G07: all who follow a run see its one terminal event, and none waits on": Case(
        park("a"),
        [
            [
                *[begin(key="go")] * 3,
                begun(1),
                does(cancel_often),
                ends(*[Cancelled()] * 3),
                send(ends=Cancelled(), key="go"),
            ],
            check(lambda play: [kind for kind in play.heard if kind in TERMINAL], ["RunCancelled"] * 3),
            check(lambda play: set(play.heard[-3:]), {"RunCancelled"}),
        ],
    ),
    "of two callers with one key of whom one is cancelled the other keeps the run": Case(
        [*park("a"), say("done")], [begin(key="k"), begun(1), begin(key="k"), cancel_caller(), let_go(), ends("done")]
    ),
}


test_cancellation, test_cancellation_with_a_crash_after_each_commit = as_tests(CASES)


# B1, B2, B7, B19: what becomes of the calls


@pytest.mark.parametrize("names", ["abc", "a"], ids=["async", "thread"])
@pytest.mark.parametrize("way", WAYS_TO_CANCEL)
async def test_b1_b19_a04_tools_that_ignore_cancellation_are_abandoned_counted_and_their_late_results_are_evidence(
    log: EventStore, way: str, names: str
) -> None:
    parked, clock, begun = Parked(), ManualClock(), asyncio.Event()
    loop, gate = asyncio.get_running_loop(), threading.Event()

    @tool(name="ignore", tier="observe")
    def block(name: str) -> str:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()
        return f"{name} returned"

    in_thread = len(names) == 1
    provider = ScriptedProvider([[use("ignore", {"name": name}) for name in names], say("after")])
    tools = [block if in_thread else parked.ignore]
    async with AgentRuntime(CONFIG, provider=provider, tools=tools, log=log, clock=clock, cancel_grace_s=5) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        ready = begun.wait if in_thread else lambda: parked.until(3)
        cancelling = asyncio.create_task(WAYS_TO_CANCEL[way](session, ready))
        await seen.first(ev.RunCancelled)
        stored = SESSION_CODEC.decode_all(await log.read_stream("session/s"))
        assert check_events(stored, "session/s") == [], "the bodies still run, and the log is balanced already"
        await clock.advance(4.9)
        assert not cancelling.done()
        assert await abandoned_in(log, "ignore") == 0
        await clock.advance(0.2)
        outcome = await cancelling
        await assert_cancelled_and_usable(session, provider, outcome, [CANCELLED_TEXT] * len(names))
        failed = await events_of(session, ev.ToolCallFailed)
        assert [(event.kind, event.started) for event in failed] == [("cancelled", True)] * len(names)
        assert len({event.call for event in failed}) == len(names)
        while await abandoned_in(log, "ignore") < len(names):  # noqa: ASYNC110 - What a reader of the log would do.
            await asyncio.sleep(0)
        gate.set()
        parked.gate.set()
        late = await seen.first(ev.ToolResultLate, len(names))
        assert sorted(event.content[0].text for event in late) == [f"{name} returned" for name in names]
        assert [block.text for block in await results_of(session)] == [CANCELLED_TEXT] * len(names)
    assert await abandoned_in(log, "ignore") == len(names)
    assert CRASHED_TEXT not in str([event.data for event in await log.read_all()])


@pytest.mark.parametrize("late", [False, True], ids=["returned before", "returned after"])
async def test_b7_a_tool_sees_its_token_once_and_of_its_own_result_and_the_cancel_result_one_is_in_the_history(
    log: EventStore, late: bool
) -> None:
    parked, token, saw = Parked(), CancellationToken(), list[str]()

    @tool(tier="observe")
    async def watch(context: ToolContext[Any]) -> str:
        if late:
            try:
                await context.cancel.wait()
            except asyncio.CancelledError:
                saw.append("cancelled")
                raise
            saw.append("token")
        return "my own"

    async with opened(log, [use("watch"), *park("a")], say("after"), tools=[watch, parked.park]) as (runtime, session):
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go", cancel=token))
        await parked.until(1)
        if not late:
            await seen.first(ev.ToolCallCompleted)
        token.cancel()
        assert (await sending).outcome == Cancelled()
        assert saw == ["token"] * late
        texts = [block.text for block in await results_of(session)]
        assert texts == [CANCELLED_TEXT if late else "my own", CANCELLED_TEXT]
        assert len(await events_of(session, ev.ToolResultLate)) == late
        assert (await session.send("more")).text == "after"


async def test_a_cancelled_tool_that_is_silent_past_its_timeout_is_not_said_to_have_timed_out(log: EventStore) -> None:
    parked, clock = Parked(), ManualClock()

    @tool(name="ignore", timeout_s=2)
    async def short(name: str) -> str:
        return await parked.ignore(name)

    async with opened(log, use("ignore", {"name": "a"}), say("after"), tools=[short], clock=clock) as (
        runtime,
        session,
    ):
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        await clock.settle()
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(ev.RunCancelled)
        await clock.advance(4)
        assert not sending.done()
        await clock.advance(1.1)
        await cancelling
        assert (await sending).outcome == Cancelled()
        assert "ToolResultLate" not in await types_of(session)
        parked.gate.set()
        await seen.first(ev.ToolResultLate)
        assert await abandoned_in(log, "ignore") == 1


# B3, B4: which wins


async def test_b3_a_token_cancelled_before_the_run_always_cancels_it(log: EventStore) -> None:
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
async def test_b4_a_cancel_that_races_a_whole_run_leaves_it_ended_once(log: EventStore, rounds: int) -> None:
    @tool(tier="observe")
    async def quick(name: str) -> str:
        return name

    token = CancellationToken()
    script = [[use("quick", {"name": "a"}), use("quick", {"name": "b"})], say("done"), say("after"), say("after")]
    async with opened(log, *script, tools=[quick]) as (_, session):
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


async def test_who_sends_again_what_was_just_cancelled_is_told_no_earlier_than_others(log: EventStore) -> None:
    parked, script = Parked(), [use("ignore", {"name": "a"}), say("never said")]
    async with opened(log, *script, tools=[parked.ignore], clock=ManualClock()) as (runtime, session):
        seen = Seen(runtime, session)
        first = asyncio.create_task(session.send("go", key="k"))
        await parked.until(1)
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(ev.RunCancelled)
        again = asyncio.create_task(session.send("go", key="k"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert [first.done(), again.done()] == [False, False]
        parked.gate.set()
        await cancelling
        assert (await first).outcome == (await again).outcome == Cancelled()


# B12 to B14: what is left behind


async def test_b12_the_terminal_event_is_the_last_of_its_run_and_there_is_exactly_one(log: EventStore) -> None:
    config = AgentConfig(model="m", max_turns=2)
    parked, cancelled = Parked(), CancellationToken()
    cancelled.cancel()
    script = [say("done"), use("look"), use("look"), park("a"), ProviderError("no", kind="invalid_request")]
    async with opened(log, *script, tools=[look, parked.park], config=config) as (_, session):
        await session.send("completes")
        await session.send("fails at max_turns")
        third = asyncio.create_task(session.send("is cancelled"))
        await parked.until(1)
        queued = asyncio.create_task(session.send("is cancelled before", cancel=cancelled))
        last = asyncio.create_task(session.send("fails by its provider"))
        await session.history()
        await session.cancel()
        await asyncio.gather(third, queued, last)
        runs: dict[str, list[str]] = {}
        current = ""
        async for item in session.events():
            named, kind = getattr(item.event, "run", None), type(item.event).__name__
            if kind == "RunStarted":
                current = str(named)
            if kind not in (*EVIDENCE, "InputQueued", "SessionOpened", "AgentConfigured"):
                runs.setdefault(str(named or current), []).append(kind)
        ends = [[kind for kind in kinds if kind in TERMINAL] for kinds in runs.values()]
        assert ends == [["RunCompleted"], ["RunFailed"], ["RunCancelled"], ["RunCancelled"], ["RunFailed"]]
        assert [kinds[-1:] for kinds in runs.values()] == ends


async def test_b13_two_sessions_at_once_share_no_message_no_event_and_no_approval(log: EventStore) -> None:
    parked = Parked()

    def answer(request: ModelRequest) -> Any:
        name = request.messages[0].text
        if len(request.messages) == 1:
            return [use("park", {"name": name}), use("pay")]
        if len(request.messages) == 3:
            return use("pay")
        return f"{name} is done"

    async with runtime_of(log, *[answer] * 6, tools=[parked.park, pay]) as runtime:
        one, other = await runtime.session("first"), await runtime.session("other")
        seen = {session.id: Seen(runtime, session) for session in (one, other)}
        runs = [asyncio.create_task(session.send(session.id)) for session in (one, other)]
        await parked.until(2)
        (asked,) = await seen[one.id].first(ev.ToolApprovalRequested)
        await seen[other.id].first(ev.ToolApprovalRequested)
        assert [waiting.call for waiting in await one.approvals()] == [asked.call]
        await one.decide(asked.call, allow=True, always=True, key="the same key")
        assert len(await other.approvals()) == 1, "what one session allows, and always, is not allowed in another"
        (theirs,) = await other.approvals()
        await other.decide(theirs.call, allow=False, reason="not here", key="the same key")
        parked.gate.set()
        assert (await runs[0]).text == "first is done"
        (again,) = (await seen[other.id].first(ev.ToolApprovalRequested, 2))[1:]
        await other.decide(again.call, allow=True)
        assert (await runs[1]).text == "other is done"
        for session, foreign in ((one, "other"), (other, "first")):
            assert [line for line in shown(await session.history()) if foreign in line] == []
            assert {item.stream for item in seen[session.id].recorded} == {f"session/{session.id}"}
            versions = [item.version for item in seen[session.id].recorded]
            assert versions == list(range(1, len(versions) + 1))
        assert [block.text for block in await results_of(one)] == ["first returned", "paid", "paid"]
        assert [block.text for block in await results_of(other)] == ["other returned", "not here", "paid"]


async def test_b14_cancelling_one_session_in_a_tool_leaves_another_and_its_queue_alone(log: EventStore) -> None:
    parked = Parked()
    said = [say("done"), say("heard what was queued"), say("heard again")]
    async with runtime_of(log, *park("x"), *park("x"), *said, tools=[parked.park]) as runtime:
        one, other = await runtime.session("one"), await runtime.session("other")
        first = asyncio.create_task(one.send("go"))
        second = asyncio.create_task(other.send("go"))
        queued = asyncio.create_task(other.send("queued"))
        await parked.until(2)
        await one.cancel()
        assert (await first).outcome == Cancelled()
        parked.gate.set()
        assert (await second).text == "done"
        assert (await queued).text == "heard what was queued"
        assert (await one.send("again")).text == "heard again"
        assert [message.text for message in await one.history() if message.role == "user"] == ["go", "", "again"]
        assert [block.text for block in await results_of(other)] == ["x returned"]


# B15, B17: the ends of a process


async def test_b15_neither_cancelling_nor_closing_ever_uses_the_words_of_a_crash(log: EventStore, place: Place) -> None:
    async with opened(log, *place.script, tools=place.tools, config=place.config) as (runtime, session):
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await place.ready(seen)
        await runtime.close(cancel=True)
        assert (await sending).outcome == Cancelled(), "b17: closing with cancel ends the run wherever it is"
    written = str([event.data for event in await log.read_all()])
    assert CRASHED_TEXT[:40] not in written
    assert written.count(CANCELLED_TEXT) == place.results.count(CANCELLED_TEXT)


async def test_b17_closing_leaves_a_run_open_wherever_it_is_and_the_next_runtime_has_it(
    log: EventStore, place: Place
) -> None:
    before = asyncio.all_tasks()
    async with opened(log, *place.script, tools=place.tools, config=place.config, close_grace_s=0) as (
        runtime,
        session,
    ):
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go", key="k"))
        await place.ready(seen)
    with pytest.raises(ActorStopped, match="the runtime closed"):
        await sending
    assert asyncio.all_tasks() <= before, "no task is left"
    held = HeldAnswer(say("never"))
    async with opened(log, held, say("after"), tools=place.tools, config=place.config) as (runtime, session):
        run = (await session.state_at()).run
        assert run is not None
        await session.cancel(run=run.id)
        assert (await session.send("go", key="k")).outcome == Cancelled()
        held.gate.set()
    assert (await types_of_log(log)).count("RunCancelled") == 1


async def types_of_log(log: EventStore) -> list[str]:
    return [type(event).__name__ for event in SESSION_CODEC.decode_all(await log.read_stream("session/s"))]


async def pending_in(log: EventStore, stream: str = "session/s") -> tuple[str, ...]:
    head = await log.head(stream)
    assert head is not None
    return keys_of(head.pending)


async def test_b17_closing_waits_for_a_tool_to_reach_the_log_and_leaves_its_run_open(log: EventStore) -> None:
    parked, clock = Parked(), ManualClock()
    async with opened(log, use("act", {"name": "a"}), tools=[parked.act], clock=clock) as (runtime, session):
        sending = asyncio.create_task(session.send("go", key="k"))
        await parked.until(1)
        closing = asyncio.create_task(runtime.close())
        await clock.advance(4)
        assert not closing.done()
        parked.gate.set()
        await closing
        with pytest.raises(ActorStopped, match="the runtime closed"):
            await sending
    assert await pending_in(log) == ("model:9",)
    async with opened(log, say("done"), tools=[parked.act]) as (_, session):
        assert (await session.send("go", key="k")).text == "done"
        assert [block.text for block in await results_of(session)] == ["a returned"]
    assert parked.begun == ["a"]


async def test_b17_closing_with_cancel_ends_every_open_run_and_those_that_wait(log: EventStore) -> None:
    parked = Parked()

    def answer(request: ModelRequest) -> Any:
        return park("a") if request.messages[-1].text == "work" else use("pay")

    async with runtime_of(log, *[answer] * 4, tools=[parked.park, pay]) as runtime:
        one, two = await runtime.session("one"), await runtime.session("two")
        waiting = Seen(runtime, two)
        sending = [asyncio.create_task(one.send("work")), asyncio.create_task(one.send("work"))]
        sending.append(asyncio.create_task(two.send("pay")))
        await parked.until(1)
        await waiting.first(ev.ToolApprovalRequested)
        await runtime.close(cancel=True)
        assert [(await task).outcome for task in sending] == [Cancelled()] * 3
    assert [await pending_in(log, f"session/{name}") for name in ("one", "two")] == [(), ()]


@pytest.mark.parametrize("reminder", [True, False], ids=["with a reminder", "without"])
async def test_b17_closing_with_cancel_ends_a_run_of_before_that_waits_for_an_approval_and_keeps_reminders(
    log: EventStore, reminder: bool
) -> None:
    async with opened(log, use("pay"), tools=[pay]) as (runtime, session):
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await seen.first(ev.ToolApprovalRequested)
        if reminder:
            await session.remind("much later", at=datetime(2100, 1, 1, tzinfo=UTC))
    await asyncio.gather(sending, return_exceptions=True)
    async with runtime_of(log, tools=[pay]) as runtime:
        await runtime.close(cancel=True)
    assert (await types_of_log(log))[-1] == "RunCancelled"
    assert [key.partition(":")[0] for key in await pending_in(log)] == ["input"] * reminder


async def test_b17_a_stuck_tool_thread_is_named_and_does_not_keep_the_runtime(
    log: EventStore, caplog: pytest.LogCaptureFixture
) -> None:
    gate, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @tool
    def stuck() -> str:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()
        return "late"

    async with runtime_of(log, use("stuck"), tools=[stuck], close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await begun.wait()
        with caplog.at_level(logging.WARNING):
            await runtime.close()
    with pytest.raises(ActorStopped):
        await sending
    assert "stuck still runs in its thread" in caplog.text
    gate.set()
