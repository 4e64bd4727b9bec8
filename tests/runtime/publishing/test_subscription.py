"""Subscriptions: every event once and in order, at any pace of the reader; never more than the capacity held."""

import asyncio
import gc
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import ConfigError, PersistenceError, RunId, SessionId, TextDelta
from refold.actors import ActorStopped
from refold.events.core.codec import RecordedEvent
from refold.events.core.ids import ToolCallId
from refold.events.session.events import InputQueued, RunCancelled
from refold.publishing import event_bus, readers
from refold.publishing.event_bus import EventBus
from refold.publishing.notifications import Missed, Progressed, RecordedSessionEvent, Streamed
from refold.publishing.readers import READERS_AT_ONCE
from refold.publishing.subscription import CAPACITY, Subscription
from tests.runtime.talking import recorded_event

ALICE, BOB = SessionId("alice"), SessionId("bob")


class Log:
    """A hub, and a log that is read slowly."""

    def __init__(self) -> None:
        self.hub = EventBus()
        self.events: dict[SessionId, list[RecordedSessionEvent]] = {}
        self.limits: list[int] = []
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None

    def write(self, session: SessionId = ALICE, *, published: bool = True) -> None:
        written = self.events.setdefault(session, [])
        written.append(recorded_event(InputQueued(content=()), session, len(written) + 1))
        if published:
            self.hub.recorded(session, [written[-1]])

    def stream(self, text: str, session: SessionId = ALICE, *, begins: bool = False) -> None:
        self.hub.streamed(session, RunId("run_1"), 1, TextDelta(text), asked=1, begins=begins)

    async def read(self, session: SessionId, after: int, limit: int) -> list[RecordedSessionEvent]:
        self.limits.append(limit)
        page = self.events.get(session, [])[after : after + limit]
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return page

    def follow(self, session: SessionId | None = ALICE, **options: Any) -> Subscription:
        return Subscription(self.hub, self.read, session, **options)


def shown(item: object) -> Any:
    """A short form: the version of an event, the text of a piece, a report, how many were missed."""
    match item:
        case RecordedEvent(version=version):
            return version
        case Streamed(delta=TextDelta(text=text)):
            return text
        case _:
            return item


async def taken(subscription: Subscription, count: int) -> list[Any]:
    return [shown(await anext(subscription)) for _ in range(count)]


async def all_of(subscription: Subscription) -> list[Any]:
    return [shown(item) async for item in subscription]


REPORT = Progressed(session=ALICE, call=ToolCallId("call_1_0"), report={"done": 0.5})

SCENARIOS: dict[str, tuple[str, dict[str, int], str, list[Any]]] = {
    "events and pieces come in the order in which they happened": ("", {}, "+ a report + end", [1, "a", REPORT, 2]),
    "pieces that find no room are counted where they are missing": (
        *("", {"capacity": 2}, "a b c d take-2 e end"),
        ["a", "b", Missed(2), "e"],
    ),
    "events that find no room are read from the log, and then all is live again": (
        *("", {"capacity": 3}, "+ + + + + + + + + + lost take-11 + live end"),
        [1, 2, 3, Missed(1), 4, 5, 6, 7, 8, 9, 10, 11, "live"],
    ),
    "events that found no room are read after the end too": ("", {"capacity": 2}, "+ + + + + end", [1, 2, 3, 4, 5]),
    "what becomes durable while the log is read comes once": (
        *("", {"capacity": 1}, "+ + + take-1 hold begin-4 + free + join"),
        [1, 2, 3, 4, 5],
    ),
    "a session can be followed from any version into the present": (
        *("+ + + + +", {"capacity": 2, "after_version": 2}, "behind + + take-6 + live end"),
        [3, 4, 5, 6, 7, "behind", 8, "live"],
    ),
    "an event that was read before it was published comes once": (
        *("+ -", {"after_version": 0}, "begin-3 late + join"),
        [1, 2, 3],
    ),
    "an event published while an empty log is read is not lost": (
        *("", {"after_version": 0}, "hold begin-1 + free join"),
        [1],
    ),
    "pieces of an answer that is over before its reader has come so far are counted, those of the next one come": (
        *("+ +", {"after_version": 0}, "hold begin-2 a b again-c d free join take-2 end"),
        [1, 2, Missed(2), "cd"],
    ),
    "an answer that had begun before its reader came is counted too": (
        *("+ a b", {"after_version": 0}, "hold begin-1 c over free join + end"),
        [1, 2, Missed(3)],
    ),
    "what was held back of an answer when all ends is counted": (
        *("+ a", {"after_version": 0}, "b end"),
        [Missed(2), 1],
    ),
    "an event that was not published is read before the next one": ("", {}, "+ - + take-3", [1, 2, 3]),
}
"""What happens before and after a subscription is made, and what it yields.

An event is written and published (`+`), only written (`-`), or published later (`late`); other words are pieces of
text, of another attempt at the answer behind `again-`; `over` says that the answer failed. So many items are taken, or
begun to be taken until `join`; reads of the log wait from `hold` to `free`.
"""


@pytest.mark.parametrize(("before", "options", "steps", "expected"), SCENARIOS.values(), ids=SCENARIOS)
async def test_a_scenario(before: str, options: dict[str, int], steps: str, expected: list[Any]) -> None:
    for others in (0, READERS_AT_ONCE):
        await play(before, options, steps, expected, others)


async def play(before: str, options: dict[str, int], steps: str, expected: list[Any], others: int) -> None:
    log, seen = Log(), list[Any]()
    crowd = [log.follow() for _ in range(others)]
    for word in before.split():
        if word in "+-":
            log.write(published=word == "+")
        else:
            log.stream(word)
    follower = log.follow(ALICE, **options)
    for word in steps.split():
        name, _, count = word.partition("-")
        match name:
            case "+" | "":
                log.write(published=word == "+")
            case "late":
                log.hub.recorded(ALICE, [log.events[ALICE][-1]])
            case "report":
                log.hub.progressed(ALICE, "call_1_0", {"done": 0.5})
            case "again":
                log.stream(count, begins=True)
            case "over":
                log.hub.session_failed(ALICE, "over")
            case "take":
                seen += await taken(follower, int(count))
            case "begin":
                reading = asyncio.create_task(taken(follower, int(count)))
                for _ in range(5):
                    await asyncio.sleep(0)
            case "join":
                seen += await reading
            case "hold":
                log.gate = asyncio.Event()
            case "free":
                assert log.gate is not None
                log.gate.set()
            case "end":
                log.hub.end()
                seen += await all_of(follower)
            case _:
                log.stream(word)
    assert seen == expected
    assert all(limit <= options.get("capacity", CAPACITY) for limit in log.limits)
    assert options or "-" in steps or log.limits == [], "what is live is not read"
    assert len(crowd) == others, "they follow until here"


async def test_each_subscription_sees_its_session_or_all() -> None:
    log = Log()
    alice, bob, everything = log.follow(), log.follow(BOB), log.follow(None)
    log.write(ALICE)
    log.stream("a", ALICE)
    log.write(BOB)
    log.stream("b", BOB)
    log.hub.end()
    assert [await all_of(follower) for follower in (alice, bob, everything)] == [[1, "a"], [1, "b"], [1, "a", 1, "b"]]


@given(
    st.lists(st.sampled_from(["alice", "bob", "piece", "attempt", "read", "turn"]), max_size=60),
    st.integers(1, 4),
    st.sampled_from([ALICE, None]),
    st.booleans(),
    st.integers(0, 2),
)
def test_whatever_the_pace_no_event_is_lost_or_comes_twice_and_no_more_than_the_capacity_is_held(
    steps: list[str], capacity: int, session: SessionId | None, from_the_beginning: bool, others: int
) -> None:
    async def follow() -> None:
        log = Log()
        crowd = [log.follow(session) for _ in range(others)]
        log.write(ALICE)
        start = 0 if from_the_beginning and session is not None else None
        follower = log.follow(session, capacity=capacity, after_version=start)
        reads: list[asyncio.Task[Any]] = []
        pieces = 0
        for step in steps:
            match step:
                case "alice" | "bob":
                    log.write(SessionId(step))
                case "piece" | "attempt":
                    log.stream("x", begins=step == "attempt")
                    pieces += 1
                case "read":
                    if all(read.done() for read in reads):
                        reads.append(asyncio.create_task(follower.take(lambda: False)))
                case _:
                    await asyncio.sleep(0)
            assert len(follower._items) <= capacity
        log.write(ALICE)  # So that nobody waits for ever.
        seen = [await read for read in reads]
        log.hub.end()
        seen += [item async for item in follower]
        first = 0 if start == 0 else 1
        versions = [item.version for item in seen if isinstance(item, RecordedEvent) and item.stream.endswith("alice")]
        assert versions == [item.version for item in log.events[ALICE]][first:]
        if session is None:
            of_bob = [item.version for item in seen if isinstance(item, RecordedEvent) and item.stream.endswith("bob")]
            assert of_bob == [item.version for item in log.events.get(BOB, [])]
        told = sum(len(shown(item)) for item in seen if isinstance(item, Streamed))
        assert told + sum(item.count for item in seen if isinstance(item, Missed)) == pieces
        assert len(crowd) == others

    with patch.object(readers, "READERS_AT_ONCE", 1):
        asyncio.run(follow())


@pytest.mark.parametrize("others", [0, READERS_AT_ONCE])
async def test_pieces_that_came_while_the_event_that_ends_their_answer_was_read_are_counted(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    crowd = [log.follow() for _ in range(others)]
    log.write()
    read = log.read

    async def read_late(session: SessionId, after: int, limit: int) -> list[RecordedSessionEvent]:
        if not after:
            log.stream("a")
            log.stream("b")
            log.write(published=False)
            log.events[ALICE][-1] = recorded_event(RunCancelled(run=RunId("run_1")), ALICE, 2)
            log.hub.recorded(ALICE, log.events[ALICE][-1:])
        return await read(session, after, limit)

    monkeypatch.setattr(log, "read", read_late)
    follower = log.follow(after_version=0)
    seen = await taken(follower, 2)
    log.hub.end()
    assert seen + await all_of(follower) == [1, 2, Missed(2)]
    assert len(crowd) == others


async def test_what_no_reader_follows_is_copied_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    log, copied = Log(), list[str]()

    def copy_of(recorded: RecordedSessionEvent) -> RecordedSessionEvent:
        copied.append(recorded.stream)
        return recorded

    monkeypatch.setattr(event_bus, "_own_copy", copy_of)
    follower = log.follow(BOB)
    log.write(ALICE)
    log.write(BOB)
    assert (await taken(follower, 1), copied) == ([1], ["session/bob"])


async def test_a_crowd_is_told_in_parts_and_reads_what_came_meanwhile_at_once() -> None:
    log = Log()
    crowd = [log.follow() for _ in range(3 * READERS_AT_ONCE)]
    log.write()
    late = log.follow()
    for told in range(3):
        assert [len(reader._items) for reader in crowd[::READERS_AT_ONCE]] == [1, 2, 3][:told] + [0] * (3 - told)
        await asyncio.sleep(0)
        log.write()
    assert await taken(crowd[0], 4) == [1, 2, 3, 4]
    log.hub.end()
    assert [await all_of(reader) for reader in (*crowd[1:], late)] == [[1, 2, 3, 4]] * (len(crowd) - 1) + [[2, 3, 4]]


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
    log.hub.end()
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
    log.hub.end()
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
    assert log.hub._readers == {}


def test_case_l05_a_subscription_that_nobody_holds_is_gone() -> None:
    log = Log()
    for _ in range(100):
        log.follow()
        log.follow(None)
    gc.collect()
    assert log.hub._readers == {}
    log.write()
    log.stream("a")


async def test_what_is_of_no_interest_is_neither_given_nor_counted() -> None:
    log = Log()
    follower = log.follow(capacity=1)
    follower.wants = lambda item: isinstance(item, Streamed) and item.run == "run_2"
    for _ in range(3):
        log.stream("of run_1")
    log.hub.streamed(ALICE, RunId("run_2"), 1, TextDelta("mine"), asked=2)
    log.hub.end()
    assert await all_of(follower) == ["mine"]
