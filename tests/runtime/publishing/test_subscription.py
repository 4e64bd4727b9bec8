"""Subscriptions: every event once and in order, whatever the reader's pace; never more than the capacity held."""

import asyncio
import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import ConfigError, PersistenceError, RunId, SessionId, TextDelta
from refold.actors import ActorStopped
from refold.events.core.codec import RecordedEvent
from refold.events.core.ids import EventRef, ToolCallId, stream_name
from refold.events.session.events import InputQueued
from refold.publishing.event_bus import EventBus
from refold.publishing.notifications import Missed, Progressed, Recorded, Streamed
from refold.publishing.subscription import Subscription

ALICE, BOB = SessionId("alice"), SessionId("bob")


def event(session: SessionId, version: int) -> Recorded:
    return RecordedEvent(
        stream=stream_name("session", session),
        version=version,
        position=version,
        time=0,
        event=InputQueued(content=()),
        batch=version,
        correlation=EventRef(""),
        causation=None,
    )


def piece(text: str, session: SessionId = ALICE, run: str = "run_1") -> Streamed:
    return Streamed(session=session, run=RunId(run), turn=1, delta=TextDelta(text))


class Log:
    """A bus, and a log that is read slowly."""

    def __init__(self) -> None:
        self.event_bus = EventBus()
        self.events: dict[SessionId, list[Recorded]] = {}
        self.limits: list[int] = []
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None

    def write(self, session: SessionId = ALICE, *, published: bool = True) -> None:
        written = self.events.setdefault(session, [])
        written.append(event(session, len(written) + 1))
        if published:
            self.event_bus.recorded(session, [written[-1]])

    def stream(self, text: str, session: SessionId = ALICE) -> None:
        self.event_bus.streamed(session, RunId("run_1"), 1, TextDelta(text))

    async def read(self, session: SessionId, after: int, limit: int) -> list[Recorded]:
        self.limits.append(limit)
        page = self.events.get(session, [])[after : after + limit]
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return page

    def follow(self, session: SessionId | None = ALICE, **options: Any) -> Subscription:
        return Subscription(self.event_bus, self.read, session, **options)


async def taken(subscription: Subscription, count: int) -> list[Any]:
    return [shown(await anext(subscription)) for _ in range(count)]


async def taken_as_it_is(subscription: Subscription) -> Any:
    return await anext(subscription)


def shown(item: object) -> object:
    """A short form: the version of an event, the text of a piece, how many were missed."""
    match item:
        case RecordedEvent(version=version):
            return version
        case Streamed(delta=TextDelta(text=text)):
            return text
        case Missed():
            return item
        case _:
            return item


async def all_of(subscription: Subscription) -> list[Any]:
    return [shown(item) async for item in subscription]


async def test_events_and_pieces_come_in_the_order_in_which_they_happened() -> None:
    log = Log()
    follower = log.follow()
    log.write()
    log.stream("a")
    log.event_bus.progressed(ALICE, "call_1_0", {"done": 0.5})
    log.write()
    log.event_bus.end()
    assert await all_of(follower) == [
        1,
        "a",
        Progressed(session=ALICE, call=ToolCallId("call_1_0"), report={"done": 0.5}),
        2,
    ]
    assert log.limits == []


async def test_each_subscription_sees_its_session_or_all() -> None:
    log = Log()
    alice, bob, everything = log.follow(), log.follow(BOB), log.follow(None)
    log.write(ALICE)
    log.stream("a", ALICE)
    log.write(BOB)
    log.stream("b", BOB)
    log.event_bus.end()
    assert [await all_of(follower) for follower in (alice, bob, everything)] == [[1, "a"], [1, "b"], [1, "a", 1, "b"]]


async def test_pieces_that_find_no_room_are_counted_where_they_are_missing() -> None:
    log = Log()
    follower = log.follow(capacity=2)
    for text in "abcd":
        log.stream(text)
    assert await taken(follower, 2) == ["a", "b"]
    log.stream("e")
    log.event_bus.end()
    assert await all_of(follower) == [Missed(2), "e"]


async def test_events_that_find_no_room_are_read_from_the_log_in_pages_no_larger_than_the_capacity() -> None:
    log = Log()
    follower = log.follow(capacity=3)
    for _ in range(10):
        log.write()
    log.stream("lost")
    assert await taken(follower, 11) == [1, 2, 3, Missed(1), 4, 5, 6, 7, 8, 9, 10]
    assert max(log.limits) == 3
    log.write()
    log.stream("live again")
    log.event_bus.end()
    assert await all_of(follower) == [11, "live again"]


async def test_events_that_found_no_room_are_read_after_the_end_too() -> None:
    log = Log()
    follower = log.follow(capacity=2)
    for _ in range(5):
        log.write()
    log.event_bus.end()
    assert await all_of(follower) == [1, 2, 3, 4, 5]


async def test_what_becomes_durable_while_the_log_is_read_comes_once() -> None:
    log = Log()
    follower = log.follow(capacity=1)
    for _ in range(3):
        log.write()
    assert await taken(follower, 1) == [1]
    log.gate = asyncio.Event()
    waiting = asyncio.create_task(taken(follower, 4))
    await asyncio.sleep(0)
    log.write()
    log.gate.set()
    log.write()
    assert await waiting == [2, 3, 4, 5]


async def test_a_session_can_be_followed_from_any_version_into_the_present() -> None:
    log = Log()
    for _ in range(5):
        log.write()
    follower = log.follow(after_version=2, capacity=2)
    log.stream("while it is behind")
    log.write()
    log.write()
    assert await taken(follower, 6) == [Missed(1), 3, 4, 5, 6, 7]
    log.write()
    log.stream("live")
    log.event_bus.end()
    assert await all_of(follower) == [8, "live"]


async def test_an_event_that_was_read_before_it_was_published_comes_once() -> None:
    log = Log()
    log.write()
    log.write(published=False)
    follower = log.follow(after_version=0)
    waiting = asyncio.create_task(taken(follower, 3))
    for _ in range(5):
        await asyncio.sleep(0)
    log.event_bus.recorded(ALICE, [log.events[ALICE][1]])
    log.write()
    assert await waiting == [1, 2, 3]


async def test_an_event_published_while_an_empty_log_is_read_is_not_lost() -> None:
    log = Log()
    log.gate = asyncio.Event()
    follower = log.follow(after_version=0)
    waiting = asyncio.create_task(taken(follower, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    log.write()
    log.gate.set()
    assert await waiting == [1]


async def test_an_event_that_nobody_published_is_read_before_the_next_one() -> None:
    log = Log()
    follower = log.follow()
    log.write()
    log.write(published=False)
    log.write()
    assert await taken(follower, 3) == [1, 2, 3]


@given(
    st.lists(st.sampled_from(["alice", "bob", "piece", "read", "turn"]), max_size=60),
    st.integers(1, 4),
    st.sampled_from([ALICE, None]),
    st.booleans(),
)
def test_whatever_the_pace_no_event_is_lost_or_comes_twice_and_no_more_than_the_capacity_is_held(
    steps: list[str], capacity: int, session: SessionId | None, from_the_beginning: bool
) -> None:
    async def follow() -> None:
        log = Log()
        log.write(ALICE)
        start = 0 if from_the_beginning and session is not None else None
        follower = log.follow(session, capacity=capacity, after_version=start)
        reads: list[asyncio.Task[Any]] = []
        pieces = 0
        for step in steps:
            match step:
                case "alice" | "bob":
                    log.write(SessionId(step))
                case "piece":
                    log.stream("x")
                    pieces += 1
                case "read":
                    if all(read.done() for read in reads):
                        reads.append(asyncio.create_task(taken_as_it_is(follower)))
                case _:
                    await asyncio.sleep(0)
            assert len(follower._items) <= capacity
        log.write(ALICE)  # So that nobody waits for ever.
        seen = [await read for read in reads]
        log.event_bus.end()
        seen += [item async for item in follower]
        first = 0 if start == 0 else 1
        versions = [item.version for item in seen if isinstance(item, RecordedEvent) and item.stream.endswith("alice")]
        assert versions == [item.version for item in log.events[ALICE]][first:]
        if session is None:
            others = [item.version for item in seen if isinstance(item, RecordedEvent) and item.stream.endswith("bob")]
            assert others == [item.version for item in log.events.get(BOB, [])]
        told = sum(isinstance(item, Streamed) for item in seen)
        assert told + sum(item.count for item in seen if isinstance(item, Missed)) == pieces

    asyncio.run(follow())


async def test_a_reader_who_is_cancelled_loses_nothing() -> None:
    log = Log()
    follower = log.follow(capacity=1)
    waiting = asyncio.create_task(taken(follower, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for _ in range(3):
        log.write()
    assert await taken(follower, 1) == [1]
    catching_up = asyncio.create_task(taken(follower, 1))
    await asyncio.sleep(0)
    catching_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await catching_up
    log.event_bus.end()
    assert await all_of(follower) == [2, 3]


async def test_a_log_that_cannot_be_read_is_the_readers_error_and_it_may_ask_again() -> None:
    log = Log()
    follower = log.follow(capacity=1)
    log.write()
    log.write()
    assert await taken(follower, 1) == [1]
    log.failure = PersistenceError("the disk is gone")
    with pytest.raises(PersistenceError, match="the disk is gone"):
        await anext(follower)
    log.failure = None
    assert await taken(follower, 1) == [2]
    log.write()
    log.write()
    assert await taken(follower, 1) == [3]
    log.event_bus.end()
    log.failure = PersistenceError("closed")
    with pytest.raises(ActorStopped, match="the log has what comes after version 3"):
        await anext(follower)
    assert await all_of(follower) == []


async def test_a_second_reader_is_refused() -> None:
    log = Log()
    follower = log.follow()
    waiting = asyncio.create_task(taken(follower, 1))
    await asyncio.sleep(0)
    with pytest.raises(ConfigError, match="one for each reader"):
        await anext(follower)
    log.write()
    assert await waiting == [1]


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5, None, "10"])
def test_a_capacity_that_is_no_number_above_0_is_refused(capacity: Any) -> None:
    with pytest.raises(ConfigError, match="capacity"):
        Log().follow(capacity=capacity)


@pytest.mark.parametrize(("session", "after"), [(ALICE, -1), (ALICE, True), (ALICE, "1"), (None, 0)])
def test_a_version_that_is_none_is_refused(session: SessionId | None, after: Any) -> None:
    with pytest.raises(ConfigError, match="version"):
        Log().follow(session, after_version=after)


async def test_leaving_ends_it_for_a_waiting_reader_too_and_leaves_nothing_behind() -> None:
    log = Log()
    async with log.follow() as follower:
        log.write()
        waiting = asyncio.create_task(all_of(follower))
        await asyncio.sleep(0)
    assert await waiting == [1]
    assert await all_of(follower) == []
    log.write()
    assert await all_of(follower) == []
    await follower.aclose()
    assert log.event_bus._subscriptions == {}


def test_case_l05_a_subscription_that_nobody_holds_is_gone() -> None:
    log = Log()
    for _ in range(100):
        log.follow()
        log.follow(None)
    gc.collect()
    assert log.event_bus._subscriptions == {}
    log.write()
    log.stream("a")


async def test_what_is_of_no_interest_is_neither_given_nor_counted() -> None:
    log = Log()
    follower = log.follow(capacity=1)
    follower.wants = lambda item: isinstance(item, Streamed) and item.run == "run_2"
    for _ in range(3):
        log.stream("of run_1")
    log.event_bus.streamed(ALICE, RunId("run_2"), 1, TextDelta("mine"))
    log.event_bus.end()
    assert await all_of(follower) == ["mine"]
