"""The checkers find what is wrong, say where, and find nothing in what is right."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.content import Block, Message, ThinkingBlock, ToolResultBlock
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.model.messages import RequestReference
from refold.events.session import events as ev
from refold.events.session.invariants import SessionChecker, Violation, check_events, check_history, check_state
from tests.events.conftest import CODE, decoded, say
from tests.events.histories import answered, called, said
from tests.events.life import Life
from tests.events.story import after as after_lines
from tests.selfcheck.exhaustive.scope import STREAM

RUN, CALL = RunId("run_3"), ToolCallId("call_6_0")


def result(identifier: str, text: str = "done") -> ToolResultBlock:
    return ToolResultBlock(tool_use_id=ToolCallId(identifier), content=(say(text),))


user, assistant = partial(said, "user"), partial(said, "assistant")
ASKED, ANSWERED = called("a"), answered("a")
HI = user("Hi")


def found(violations: Sequence[Violation]) -> list[tuple[str, int]]:
    return [(violation.invariant, violation.version) for violation in violations]


# Histories


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [HI],
        [HI, assistant("Hello")],
        [HI, HI],
        [HI, assistant("Searching"), assistant("Found")],
        [HI, assistant(ThinkingBlock(thinking=""), "x", *called("a", "b").content), user(result("b"), result("a"))],
        [HI, ASKED, user(result("a"), say("and this"))],
        [HI, ASKED, user(ToolResultBlock(tool_use_id=ToolCallId("a"), content=()))],
    ],
)
def test_a_history_that_providers_accept_has_no_violation(messages: list[Message]) -> None:
    assert check_history(messages) == []


@pytest.mark.parametrize(
    ("invariant", "words", "messages"),
    [
        ("INV0", "message 0 is the first one and not a user's", [assistant("Hi")]),
        ("INV0", "message 1 is empty", [HI, assistant()]),
        ("INV0", "message 0 is empty", [user()]),
        ("INV0", "message 0 holds a blank text", [user("")]),
        ("INV0", "message 1 holds a blank text", [HI, assistant(say(" \n"), say("x"))]),
        ("INV0", "message 0 is a user's and holds a tool call", [user(*ASKED.content)]),
        ("INV0", "message 0 is a user's and holds a thinking block", [user(ThinkingBlock(thinking="x"))]),
        ("INV0", "message 1 is the assistant's and holds a tool result", [HI, assistant(result("a"))]),
        ("INV0", "message 2 has the result of a behind other content", [HI, ASKED, user(say("x"), result("a"))]),
        ("INV0", "message 2, a, holds a blank text", [HI, ASKED, user(result("a", " "))]),
        (
            "INV0",
            "an error result of a that says nothing",
            [HI, ASKED, user(ToolResultBlock(tool_use_id=ToolCallId("a"), content=(), is_error=True, kind="timeout"))],
        ),
        ("INV1", "a (message 1) has no result in the next message", [HI, ASKED]),
        ("INV1", "a (message 1) has no result in the next message", [HI, ASKED, HI]),
        ("INV1", "a (message 1) has no result in the next message", [HI, ASKED, assistant("x")]),
        ("INV1", "message 2 answers a twice", [HI, ASKED, user(result("a"), result("a"))]),
        ("INV1", "message 0 answers a, which the message before did not call", [ANSWERED]),
        ("INV1", "message 3 answers a, which the message before did not call", [HI, ASKED, ANSWERED, ANSWERED]),
        ("INV1", "message 3 uses the call id a again", [HI, ASKED, ANSWERED, ASKED, ANSWERED]),
    ],
)
def test_what_providers_refuse_is_found(invariant: str, words: str, messages: list[Message]) -> None:
    violations = check_history(messages, stream=STREAM, version=7)
    assert invariant in [violation.invariant for violation in violations]
    assert any(words in violation.message for violation in violations)
    assert {(violation.stream, violation.version) for violation in violations} == {(STREAM, 7)}


# Event lists


@cache
def sound_log() -> tuple[ev.SessionEvent, ...]:
    """Return a log with nearly everything that can happen in it."""
    life = Life(27)
    life.go(150)
    return tuple(life.log)


def test_a_sound_log_has_no_violation_and_a_checker_finds_the_same_step_by_step() -> None:
    assert check_events(sound_log(), STREAM) == []
    checker = SessionChecker(STREAM)
    log = [*sound_log()[:9], *sound_log()[8:]]
    stepwise = [violation for event in log for violation in checker.observe(event)]
    assert stepwise == check_events(log, STREAM) != []
    assert checker.version == len(log)


def test_a_violation_reads_as_one_line() -> None:
    assert str(Violation("INV1", "session/alice", 4, "a call is open")) == "INV1 session/alice@4: a call is open"


ONE_TOOL = "send; calls write; result 0; says Done."
"""From version 3 on: InputQueued, RunStarted, ModelRequested, ModelResponded, ToolCallStarted, ToolCallCompleted,
ModelRequested, ModelResponded, RunCompleted."""


def log_of(told: str) -> list[ev.SessionEvent]:
    """Return the log of a session that was told what stories tell."""
    return after_lines(told.split("; ")).log


Change: TypeAlias = Callable[[list[ev.SessionEvent]], list[ev.SessionEvent]]


def without(version: int) -> Change:
    return lambda log: log[: version - 1] + log[version:]


def after(version: int, *events: ev.SessionEvent) -> Change:
    return lambda log: [*log[:version], *events, *log[version:]]


def instead(version: int, *events: ev.SessionEvent) -> Change:
    return lambda log: [*log[: version - 1], *events, *log[version:]]


def twice(version: int) -> Change:
    return lambda log: [*log[:version], log[version - 1], *log[version:]]


ANSWER_WITH_CALL = ev.ModelResponded(
    run=RUN,
    turn=1,
    content=called("call_6_0").content,  # type: ignore[arg-type]
    stop_reason="tool_use",
    request=RequestReference(configured=2, messages=1),
)
FAILED = ev.ToolCallFailed(call=CALL, kind="cancelled", content=(say("Cancelled by user"),))


STARTED_AGAIN = ev.RunStarted(run=RunId("run_6"), input=6, code=CODE, fingerprint="")
OPENED_AS_BOB = ev.SessionOpened(session=SessionId("bob"), agent=AgentId("agent"))


@pytest.mark.parametrize(
    ("invariant", "version", "words", "change"),
    [
        ("INV4", 1, "does not begin by saying whose it is", without(1)),
        ("INV4", 2, "opened again", twice(1)),
        ("INV4", 1, "says that it is 'bob'", instead(1, OPENED_AS_BOB)),
        ("INV4", 3, "begins from version 3, which is no input", without(3)),
        ("INV4", 6, "run_9 is no run of this session", instead(6, ev.ModelRequested(run=RunId("run_9"), turn=1))),
        ("INV4", 6, "run_9 is no run of this session", after(5, ev.CancelRequested(run=RunId("run_9")))),
        (
            "INV4",
            8,
            "call_9_0 is no call of this session",
            after(7, ev.ToolCallCompleted(call=ToolCallId("call_9_0"), content=())),
        ),
        (
            "INV4",
            8,
            "call_9_0 is no call of this session",
            after(7, ev.ToolResultLate(call=ToolCallId("call_9_0"), content=())),
        ),
        ("INV3", 5, "the input at version 3 becomes a run again", twice(4)),
        ("INV2", 12, "run_3 goes on after its terminal event", twice(11)),
        ("INV2", 12, "run_3 goes on after its terminal event", after(11, ev.ModelRequested(run=RUN, turn=3))),
        ("INV2", 12, "is to be cancelled after its terminal event", after(11, ev.CancelRequested(run=RUN))),
        ("INV2", 4, "run_3 has an event before its RunStarted", after(3, ev.ModelRequested(run=RUN, turn=1))),
        ("INV2", 12, "run_3 was cancelled and ends with RunCompleted", after(10, ev.CancelRequested(run=RUN))),
        ("INV2", 6, "a model call begins in run_3 after it was cancelled", after(4, ev.CancelRequested(run=RUN))),
        ("INV2", 8, "call_6_0 begins in run_3 after it was cancelled", after(6, ev.CancelRequested(run=RUN))),
        ("INV1", 7, "call_6_0 has a result and was never started", without(7)),
        ("INV1", 8, "call_6_0 starts again", twice(7)),
        (
            "INV4",
            8,
            "the session of user 'anna' becomes that of 'bob'",
            lambda log: [*log[:6], *(ev.SessionDescribed(user=user) for user in ("anna", "bob")), *log[6:]],
        ),
        ("INV1", 8, "a model call is made while 1 calls are unanswered, call_6_0 first", without(8)),
        ("INV1", 9, "something happens to call_6_0 after it was answered", twice(8)),
        ("INV1", 9, "something happens to call_6_0 after it was answered", after(8, FAILED)),
        (
            "INV1",
            7,
            "the work of call_6_0 waits and has not begun",
            after(6, ev.ToolCallWaiting(call=CALL, waits=True)),
        ),
        ("INV1", 9, "something happens to call_6_0 after it was", after(8, ev.ToolCallWaiting(call=CALL, waits=False))),
        ("INV1", 8, "recorded as late while the call is open", after(7, ev.ToolResultLate(call=CALL, content=()))),
        ("INV1", 8, "run_3 ends while 1 calls are unanswered", after(7, ev.RunCompleted(run=RUN))),
        ("INV1", 9, "the call id call_6_0 is used again", after(8, ANSWER_WITH_CALL)),
        ("INV1", 8, "decided about and did not wait", after(7, ev.ToolApprovalDecided(call=CALL, allowed=True))),
        ("INV0", 8, "holds a blank text", instead(8, ev.ToolCallCompleted(call=CALL, content=(say(" "),)))),
        ("INV0", 8, "says nothing", instead(8, ev.ToolCallFailed(call=CALL, kind="timeout", content=(), started=True))),
        ("INV0", 11, "follows another assistant message that was no pause", twice(10)),
        ("INV0", 3, "the first one and not a user's", after(2, ev.HistoryImported(messages=(assistant("x"),)))),
        ("INV0", 12, "no history can be shown from here on", twice(11)),
        (
            "INV1",
            10,
            "answers call_6_0, which the message before did not call",
            after(9, ev.ContextPrepared(run=RUN, replaced=2, summary=())),
        ),
    ],
)
def test_a_changed_log_is_found_at_the_version_where_it_goes_wrong(
    invariant: str, version: int, words: str, change: Change
) -> None:
    violations = check_events(change(log_of(ONE_TOOL)), STREAM)
    assert (invariant, version) in found(violations)
    matching = [violation for violation in violations if words in violation.message]
    assert matching
    assert matching[0].version == version


QUEUED = ev.InputQueued(content=(say("Hello"),), scheduled=3)
ATTEMPT_FAILED = ev.ToolAttemptFailed(call=CALL, attempt=1, kind="transient", content=(say("reset"),))
NEXT_ATTEMPT = ev.RetryScheduled(run=RUN, turn=1, attempt=1, due_at=9, call=CALL)
SECOND_ATTEMPT = ev.ToolCallStarted(run=RUN, call=CALL, attempt=2)
NOT_SCHEDULED = "the input of run_3 is queued and was not scheduled, or not any more"


@pytest.mark.parametrize(
    ("told", "events", "message"),
    [
        ("send; send", [STARTED_AGAIN], "run_6 begins while run_3 is under way"),
        ("send due_at=5", [ev.TimerFired(timer="input:3"), QUEUED, QUEUED], NOT_SCHEDULED),
        ("send due_at=5; cancel run_3", [QUEUED], NOT_SCHEDULED),
        (
            "send due_at=5; cancel run_3",
            [ev.CancelRequested(run=RUN)],
            "run_3 is to be cancelled after its terminal event",
        ),
        ("says Hi", [ev.InputQueued(content=(), joins=RUN)], "run_3 goes on after its terminal event"),
        ("says Hi", [ev.InputQueued(content=(), joins=RunId("run_9"))], "run_9 is no run of this session"),
        ("says Hi", [ev.RunCompleted(run=RunId("run_9"))], "run_9 is no run of this session"),
        ("send", [ev.HistoryCleared()], "the history is cleared while run_3 is under way"),
        ("calls look", [ev.HistoryCleared()], "the history is cleared while 1 calls are unanswered, call_6_0 first"),
        ("send stepwise; says Hi", [ev.TurnAllowed(run=RUN, turn=2)], "run_3 goes on after its terminal event"),
        ("calls pay", [ev.ToolCallStarted(run=RUN, call=CALL)], "call_6_0 starts while it waits for approval"),
        ("calls pay", [ATTEMPT_FAILED], "attempt 1 at call_6_0 fails, which was not under way"),
        ("calls look", [ATTEMPT_FAILED] * 2, "attempt 1 at call_6_0 fails, which was not under way"),
        ("calls look", [NEXT_ATTEMPT], "call_6_0 is tried again, of which attempt 1 has not just failed"),
        ("calls look", [ATTEMPT_FAILED, SECOND_ATTEMPT], "attempt 2 at call_6_0 starts after 1 failed ones"),
        (
            "calls look",
            [ATTEMPT_FAILED, NEXT_ATTEMPT, ev.ToolCallStarted(run=RUN, call=CALL)],
            "attempt 1 at call_6_0 starts after 1 failed ones",
        ),
        ("calls look; result 0", [ATTEMPT_FAILED], "something happens to call_6_0 after it was answered"),
    ],
)
def test_what_cannot_follow_is_found(told: str, events: list[ev.SessionEvent], message: str) -> None:
    assert message in [violation.message for violation in check_events([*log_of(told), *events], STREAM)]


def test_an_attempt_that_failed_may_be_followed_by_another() -> None:
    events: list[ev.SessionEvent] = [ATTEMPT_FAILED, NEXT_ATTEMPT, SECOND_ATTEMPT]
    assert check_events([*log_of("calls look"), *events], STREAM) == []


def test_a_scheduled_input_whose_time_has_come_may_follow() -> None:
    assert check_events([*log_of("send due_at=5"), ev.TimerFired(timer="input:3"), QUEUED], STREAM) == []


def test_inputs_that_ran_out_of_order_are_found() -> None:
    queued = log_of("send first; send second")
    started = ev.RunStarted(run=RunId("run_4"), input=4, code=CODE, fingerprint="")
    violations = check_events([*queued[:3], queued[5], started, queued[4]], STREAM)
    assert violations[0].invariant == "INV3"
    assert violations[0].message == "run_4 begins before run_3, whose input was accepted earlier"


def test_a_contradiction_is_reported_once_and_the_order_is_checked_on() -> None:
    log = log_of(ONE_TOOL)
    bad = [*log[:3], ev.RunCompleted(run=RUN), *log[3:], ev.RunCompleted(run=RUN)]
    violations = check_events(bad, STREAM)
    assert sum("no history can be shown" in violation.message for violation in violations) == 1
    assert violations[-1].version == len(bad)


def test_no_two_sessions_may_be_one_stream() -> None:
    log = log_of(ONE_TOOL) * 2
    assert "INV4" in {violation.invariant for violation in check_events(log, STREAM)}


runs = st.sampled_from([RunId("run_3"), RunId("run_4"), RunId("run_9")])
calls = st.sampled_from([ToolCallId("call_6_0"), ToolCallId("call_6_1"), ToolCallId("call_7_0")])
strange_blocks: st.SearchStrategy[list[Block]] = st.lists(
    st.sampled_from([say("x"), say(""), *called("call_6_0").content, result("call_6_0"), result("b")]), max_size=3
)
strange_messages = st.builds(Message, st.sampled_from(["user", "assistant"]), strange_blocks.map(tuple))
strange_imports = st.builds(ev.HistoryImported, messages=st.lists(strange_messages, max_size=3).map(tuple))


@st.composite
def strange_events(draw: st.DrawFn) -> ev.SessionEvent:
    """Draw an event that can be decoded, about any run, any call and any input."""
    event = draw(
        st.sampled_from([*sound_log(), ev.TimerSet(timer="tea", due_at=1), ev.TimerFired(timer="deadline:run_3")])
    )
    changes: dict[str, object] = {}
    if "run" in event.__struct_fields__:
        changes["run"] = draw(runs)
    if "call" in event.__struct_fields__:
        changes["call"] = draw(calls)
    if type(event) is ev.RunStarted:
        changes["input"] = draw(st.integers(-1, 9))
    return msgspec.structs.replace(event, **changes)


@pytest.mark.in_full
@given(st.lists(strange_events() | strange_imports, max_size=25))
def test_any_list_of_events_is_checked_without_an_error(events: list[ev.SessionEvent]) -> None:
    mixed = decoded(events)
    for violation in check_events(mixed, STREAM):
        assert 1 <= violation.version <= len(mixed)
    checked = check_events([*log_of(ONE_TOOL)[:5], *mixed], STREAM)
    assert checked == check_events([*log_of(ONE_TOOL)[:5], *mixed], STREAM)


@pytest.mark.in_full
@given(data=st.data())
def test_a_log_that_lost_doubled_or_moved_one_event_is_checked_without_an_error(data: st.DataObject) -> None:
    log = list(sound_log())
    place = data.draw(st.integers(0, len(log) - 1))
    target = data.draw(st.integers(0, len(log) - 1))
    event = log.pop(place) if data.draw(st.booleans()) else log[place]
    log.insert(target, event)
    checked = check_events(decoded(log), STREAM)
    assert all(violation.stream == STREAM for violation in checked)


@pytest.mark.parametrize("stream", ["alice", "", "/", "session/", "session/a/b"])
def test_a_strange_stream_name_is_a_violation_and_no_error(stream: str) -> None:
    violations = check_events(log_of(ONE_TOOL), stream)
    assert [violation.invariant for violation in violations] == ["INV4"]


# States


def test_a_sound_state_has_no_violation_and_checking_changes_neither_state_nor_events() -> None:
    session = after_lines(["send", "send", "calls look write"])
    log, state = msgspec.json.encode(session.log), msgspec.json.encode(session.state)
    assert check_events(session.log, STREAM) == check_state(session.state) == check_state(session.state, STREAM) == []
    assert (msgspec.json.encode(session.log), msgspec.json.encode(session.state)) == (log, state)
    assert found(check_state(session.state, "session/bob")) == [("INV4", session.state.version)]


def test_a_state_whose_parts_disagree_is_found() -> None:
    state = after_lines(["send", "send", "send", "calls look look"]).state
    assert state.turn is not None
    assert state.run is not None
    state.turn.open = 1
    state.queue.reverse()
    assert sorted(found(check_state(state))) == [("INV1", state.version), ("INV3", state.version)]
    state.turn.calls.pop()
    assert "INV1" in {violation.invariant for violation in check_state(state)}
    state.run.id = RunId("run_9")
    assert "run_9 does not belong to the input at 3" in {violation.message for violation in check_state(state)}
