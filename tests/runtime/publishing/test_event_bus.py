"""The fan-out of events, and how callers learn that a run has ended."""

import asyncio
from typing import Any

import pytest

from refold.events.core.ids import RunId, SessionId
from refold.events.model.messages import Usage
from refold.events.session import events as ev
from refold.events.session.state import FinishedRun, SessionState
from refold.publishing.event_bus import EventBus
from refold.publishing.subscription import Subscription
from tests.runtime.talking import recorded_event

ALICE, BOB = SessionId("alice"), SessionId("bob")


def finished(run: str, version: int) -> FinishedRun:
    return FinishedRun(
        run=RunId(run), outcome="completed", final=(), stop_reason="end_turn", usage=Usage(), turns=1, version=version
    )


def test_a_keyboard_interrupt_in_a_subscriber_passes() -> None:
    bus = EventBus()

    def interrupted(event: Any) -> None:
        raise KeyboardInterrupt

    bus.subscribe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        bus.recorded(ALICE, [recorded_event(ev.InputQueued(content=()))])


def test_who_follows_first_is_told_first() -> None:
    bus, told = EventBus(), list[int]()

    async def read(*_: object) -> Any:
        raise AssertionError("never read")

    def follows(number: int) -> Subscription:
        subscription = Subscription(bus, read, ALICE)
        subscription.wants = lambda item: not told.append(number)  # type: ignore[func-returns-value]
        return subscription

    following = [follows(number) for number in range(40)]
    del following[30]
    following.pop(7).close()
    bus.progressed(ALICE, "call_1_0", "half")
    assert told == [number for number in range(40) if number not in (7, 30)]


async def test_a_follower_is_told_of_an_end_only_when_the_session_has_settled() -> None:
    bus, run = EventBus(), RunId("run_1")
    with bus.follow(ALICE) as follower, bus.follow(BOB) as other:
        waiting = asyncio.create_task(follower.ended(run))
        bus.recorded(ALICE, [recorded_event(ev.RunCompleted(run=run), version=7)])
        await asyncio.sleep(0)
        assert not waiting.done()
        bus.settled(ALICE, SessionState(last_run=finished("run_1", 7)))
        ended = await waiting
        assert (ended.version, ended.finished) == (7, finished("run_1", 7))
        assert await follower.ended(run) is ended
        elsewhere = asyncio.create_task(other.ended(run))
        await asyncio.sleep(0)
        assert not elsewhere.done()
        elsewhere.cancel()


async def test_two_runs_that_ended_before_the_session_settled_are_both_told() -> None:
    bus = EventBus()
    with bus.follow(ALICE) as follower:
        bus.recorded(
            ALICE,
            [
                recorded_event(ev.RunCancelled(run=RunId("run_1")), version=5),
                recorded_event(ev.RunCompleted(run=RunId("run_2")), version=9),
            ],
        )
        bus.settled(ALICE, SessionState(last_run=finished("run_2", 9)))
        first, second = await follower.ended(RunId("run_1")), await follower.ended(RunId("run_2"))
    assert (first.version, first.finished) == (5, None)
    assert (second.version, second.finished) == (9, finished("run_2", 9))


def test_the_sessions_with_an_open_run_are_known() -> None:
    bus = EventBus()
    configured: Any = {"code": None, "fingerprint": ""}
    bus.recorded(ALICE, [recorded_event(ev.RunStarted(run=RunId("run_1"), input=1, **configured))])
    bus.recorded(BOB, [recorded_event(ev.RunStarted(run=RunId("run_1"), input=1, **configured))])
    bus.recorded(ALICE, [recorded_event(ev.RunCompleted(run=RunId("run_1")))])
    assert bus.open_sessions() == [BOB]
