"""The fan-out of events, and how callers learn that a run has ended."""

import asyncio
from typing import Any

import pytest

from refold.actors import ActorStopped
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import TextBlock, ToolUseBlock
from refold.events.core.ids import EventRef, RunId, SessionId, StreamName, ToolCallId
from refold.events.model.messages import RequestReference, TextDelta, Usage
from refold.events.session.events import (
    InputQueued,
    ModelResponded,
    RunCancelled,
    RunCompleted,
    RunStarted,
    SessionEvent,
)
from refold.events.session.state import FinishedRun, SessionState
from refold.sessions.event_bus import SessionHub
from refold.sessions.notifications import Progressed, Streamed
from refold.sessions.subscription import Subscription

ALICE, BOB = SessionId("alice"), SessionId("bob")


def recorded(event: SessionEvent, version: int = 1) -> RecordedEvent[SessionEvent]:
    return RecordedEvent(
        stream=StreamName("session/alice"),
        version=version,
        position=version,
        time=0,
        event=event,
        batch=version,
        correlation=EventRef("session/alice@1"),
        causation=None,
    )


def finished(run: str, version: int) -> FinishedRun:
    return FinishedRun(
        run=RunId(run), outcome="completed", final=(), stop_reason="end_turn", usage=Usage(), turns=1, version=version
    )


def test_subscribers_see_the_events_of_their_session_or_of_all_in_order() -> None:
    hub, mine, all_of_them = SessionHub(), list[Any](), list[Any]()
    hub.subscribe(mine.append, ALICE)
    forget = hub.subscribe(all_of_them.append)
    first, second = recorded(InputQueued(content=()), 1), recorded(RunCompleted(run=RunId("run_1")), 2)
    hub.recorded(ALICE, [first, second])
    hub.recorded(BOB, [first])
    forget()
    forget()
    hub.recorded(BOB, [second])
    assert mine == [first, second]
    assert all_of_them == [first, second, first]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), asyncio.CancelledError(), GeneratorExit()])
def test_a_subscriber_that_raises_is_counted_and_the_others_are_told(error: BaseException) -> None:
    hub, seen = SessionHub(), list[Any]()

    def fails(event: Any) -> None:
        raise error

    hub.subscribe(fails)
    hub.subscribe(seen.append)
    hub.recorded(ALICE, [recorded(InputQueued(content=()))])
    assert (hub.failures, len(seen)) == (1, 1)


def test_an_async_subscriber_is_counted_as_a_failure_and_leaves_no_coroutine_behind() -> None:
    hub = SessionHub()

    async def waits(event: Any) -> None:
        raise AssertionError("never awaited")

    hub.subscribe(waits)
    hub.recorded(ALICE, [recorded(InputQueued(content=()))])
    assert hub.failures == 1


def test_a_keyboard_interrupt_in_a_subscriber_passes() -> None:
    hub = SessionHub()

    def interrupted(event: Any) -> None:
        raise KeyboardInterrupt

    hub.subscribe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        hub.recorded(ALICE, [recorded(InputQueued(content=()))])


def test_a_subscriber_may_end_subscriptions_and_begin_others_while_it_is_told() -> None:
    hub, seen = SessionHub(), list[Any]()

    def once(event: Any) -> None:
        forget()
        hub.subscribe(seen.append)

    forget = hub.subscribe(once)
    hub.recorded(ALICE, [recorded(InputQueued(content=()), 1), recorded(InputQueued(content=()), 2)])
    hub.recorded(ALICE, [recorded(InputQueued(content=()), 3)])
    assert [event.version for event in seen][-1:] == [3]


def test_what_a_subscriber_does_to_arguments_changes_no_event_of_the_session() -> None:
    hub = SessionHub()
    call = ToolUseBlock(id=ToolCallId("call_1_0"), name="pay", input={"amount": 5})
    event = ModelResponded(
        run=RunId("run_1"),
        turn=1,
        content=(TextBlock(text="t"), call),
        stop_reason="tool_use",
        request=RequestReference(configured=1, messages=1),
    )
    seen: list[Any] = []

    def meddle(item: Any) -> None:
        seen.append(item)
        item.event.content[1].input["amount"] = 6

    hub.subscribe(meddle)
    hub.recorded(ALICE, [recorded(event)])
    assert seen[0].version == 1
    assert call.input == {"amount": 5}


async def test_a_follower_is_told_of_an_end_only_when_the_session_has_settled() -> None:
    hub, run = SessionHub(), RunId("run_1")
    with hub.follow(ALICE) as follower, hub.follow(BOB) as other:
        waiting = asyncio.create_task(follower.ended(run))
        hub.recorded(ALICE, [recorded(RunCompleted(run=run), 7)])
        await asyncio.sleep(0)
        assert not waiting.done()
        hub.settled(ALICE, SessionState(last_run=finished("run_1", 7)))
        ended = await waiting
        assert (ended.version, ended.finished) == (7, finished("run_1", 7))
        assert await follower.ended(run) is ended
        elsewhere = asyncio.create_task(other.ended(run))
        await asyncio.sleep(0)
        assert not elsewhere.done()
        elsewhere.cancel()


async def test_two_runs_that_ended_before_the_session_settled_are_both_told() -> None:
    hub = SessionHub()
    with hub.follow(ALICE) as follower:
        hub.recorded(
            ALICE, [recorded(RunCancelled(run=RunId("run_1")), 5), recorded(RunCompleted(run=RunId("run_2")), 9)]
        )
        hub.settled(ALICE, SessionState(last_run=finished("run_2", 9)))
        first, second = await follower.ended(RunId("run_1")), await follower.ended(RunId("run_2"))
    assert (first.version, first.finished) == (5, None)
    assert (second.version, second.finished) == (9, finished("run_2", 9))


async def test_an_end_that_nobody_published_is_told_when_the_session_settles() -> None:
    hub = SessionHub()
    with hub.follow(ALICE) as follower:
        hub.settled(ALICE, SessionState(last_run=finished("run_1", 7)))
        assert (await follower.ended(RunId("run_1"))).version == 7


async def test_closing_tells_everybody_who_waits() -> None:
    hub = SessionHub()
    with hub.follow(ALICE) as one, hub.follow(BOB) as two:
        waiting = [asyncio.create_task(follower.ended(RunId("run_1"))) for follower in (one, two)]
        await asyncio.sleep(0)
        hub.close()
        for task in waiting:
            with pytest.raises(ActorStopped, match="the runtime closed"):
                await task


def test_the_sessions_with_an_open_run_are_known() -> None:
    hub = SessionHub()
    configured: Any = {"code": None, "fingerprint": ""}
    hub.recorded(ALICE, [recorded(RunStarted(run=RunId("run_1"), input=1, **configured))])
    hub.recorded(BOB, [recorded(RunStarted(run=RunId("run_1"), input=1, **configured))])
    hub.recorded(ALICE, [recorded(RunCompleted(run=RunId("run_1")))])
    assert hub.open_sessions() == [BOB]


async def test_pieces_and_reports_reach_subscriptions_and_their_events_are_copies() -> None:
    hub, read = SessionHub(), list[Any]()

    async def nothing(session: SessionId, after: int, limit: int) -> list[Any]:
        read.append(after)
        return []

    call = ToolUseBlock(id=ToolCallId("call_1_0"), name="pay", input={"amount": 5})
    reference = RequestReference(configured=1, messages=1)
    event = ModelResponded(run=RunId("run_1"), turn=1, content=(call,), stop_reason="tool_use", request=reference)
    with_two = [Subscription(hub, nothing, ALICE), Subscription(hub, nothing, None)]
    hub.streamed(ALICE, RunId("run_1"), 2, TextDelta("a"))
    hub.recorded(ALICE, [recorded(event)])
    hub.progressed(ALICE, "call_1_0", 0.5)
    hub.streamed(BOB, RunId("run_9"), 1, TextDelta("b"))
    hub.end()
    alice: list[Any] = [item async for item in with_two[0]]
    everything: list[Any] = [item async for item in with_two[1]]
    assert alice == everything[:3]
    assert alice[0] == Streamed(session=ALICE, run=RunId("run_1"), turn=2, delta=TextDelta("a"))
    assert alice[2] == Progressed(session=ALICE, call=ToolCallId("call_1_0"), report=0.5)
    assert everything[3:] == [Streamed(session=BOB, run=RunId("run_9"), turn=1, delta=TextDelta("b"))]
    alice[1].event.content[0].input["amount"] = 6
    assert (call.input, read) == ({"amount": 5}, [])
