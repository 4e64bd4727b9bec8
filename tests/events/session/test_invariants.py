"""The checkers find what is wrong, say where, and find nothing in what is right."""

from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.content import (
    Block,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.model.messages import RequestReference
from refold.events.session.commands import AllowTurn, ClearHistory
from refold.events.session.events import (
    CancelRequested,
    ContextPrepared,
    HistoryCleared,
    HistoryImported,
    InputQueued,
    ModelRequested,
    ModelResponded,
    RunCompleted,
    RunStarted,
    SessionEvent,
    SessionOpened,
    TimerFired,
    TimerSet,
    ToolApprovalDecided,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallWaiting,
    ToolResultLate,
    TurnAllowed,
)
from refold.events.session.invariants import SessionChecker, Violation, check_events, check_history, check_state
from tests.events.conftest import CODE, STREAM, Session, configuration, decoded, names, say, use

RUN, CALL = RunId("run_3"), ToolCallId("call_6_0")


def call(identifier: str) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(identifier), name="look", input={})


def result(identifier: str, text: str = "done") -> ToolResultBlock:
    return ToolResultBlock(tool_use_id=ToolCallId(identifier), content=(say(text),))


def user(*content: TextBlock | ToolResultBlock | ToolUseBlock | ThinkingBlock) -> Message:
    return Message("user", content)


def assistant(*content: TextBlock | ToolResultBlock | ToolUseBlock | ThinkingBlock) -> Message:
    return Message("assistant", content)


HI = user(say("Hi"))


def found(violations: Sequence[Violation]) -> list[tuple[str, int]]:
    return [(violation.invariant, violation.version) for violation in violations]


# Histories


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [HI],
        [HI, assistant(say("Hello"))],
        [HI, HI],
        [HI, assistant(say("Searching")), assistant(say("Found"))],
        [HI, assistant(ThinkingBlock(thinking=""), say("x"), call("a"), call("b")), user(result("b"), result("a"))],
        [HI, assistant(call("a")), user(result("a"), say("and this"))],
        [HI, assistant(call("a")), user(ToolResultBlock(tool_use_id=ToolCallId("a"), content=()))],
    ],
)
def test_a_history_that_providers_accept_has_no_violation(messages: list[Message]) -> None:
    assert check_history(messages) == []


@pytest.mark.parametrize(
    ("invariant", "words", "messages"),
    [
        ("INV0", "message 0 is the first one and not a user's", [assistant(say("Hi"))]),
        ("INV0", "message 1 is empty", [HI, assistant()]),
        ("INV0", "message 0 is empty", [user()]),
        ("INV0", "message 0 holds a blank text", [user(say(""))]),
        ("INV0", "message 1 holds a blank text", [HI, assistant(say(" \n"), say("x"))]),
        ("INV0", "message 0 is a user's and holds a tool call", [user(call("a"))]),
        ("INV0", "message 0 is a user's and holds a thinking block", [user(ThinkingBlock(thinking="x"))]),
        ("INV0", "message 1 is the assistant's and holds a tool result", [HI, assistant(result("a"))]),
        (
            "INV0",
            "message 2 has the result of a behind other content",
            [HI, assistant(call("a")), user(say("x"), result("a"))],
        ),
        ("INV0", "message 2, a, holds a blank text", [HI, assistant(call("a")), user(result("a", " "))]),
        (
            "INV0",
            "an error result of a that says nothing",
            [
                HI,
                assistant(call("a")),
                user(ToolResultBlock(tool_use_id=ToolCallId("a"), content=(), is_error=True, kind="timeout")),
            ],
        ),
        ("INV1", "a (message 1) has no result in the next message", [HI, assistant(call("a"))]),
        ("INV1", "a (message 1) has no result in the next message", [HI, assistant(call("a")), HI]),
        (
            "INV1",
            "a (message 1) has no result in the next message",
            [HI, assistant(call("a")), assistant(say("x"))],
        ),
        ("INV1", "message 2 answers a twice", [HI, assistant(call("a")), user(result("a"), result("a"))]),
        ("INV1", "message 0 answers a, which the message before did not call", [user(result("a"))]),
        (
            "INV1",
            "message 3 answers a, which the message before did not call",
            [HI, assistant(call("a")), user(result("a")), user(result("a"))],
        ),
        (
            "INV1",
            "message 3 uses the call id a again",
            [HI, assistant(call("a")), user(result("a")), assistant(call("a")), user(result("a"))],
        ),
    ],
)
def test_what_providers_refuse_is_found(invariant: str, words: str, messages: list[Message]) -> None:
    violations = check_history(messages, stream=STREAM, version=7)
    assert invariant in [violation.invariant for violation in violations]
    assert any(words in violation.message for violation in violations)
    assert {(violation.stream, violation.version) for violation in violations} == {(STREAM, 7)}


# Event lists


def sound_log() -> list[SessionEvent]:
    """Return a log with most of what can happen in it."""
    session = Session(configuration())
    session.send("first")
    session.send("second")
    session.answer(say("I look."), use("look"), use("pay"), use("write"))
    look, pay, _ = session.calls
    session.result(look)
    session.decide(pay, True)
    session.crash()
    session.decide(pay, False)
    session.send("third", cancelled=True)
    session.cancel()
    session.result(look, "late")
    session.answer(say("…"), stop_reason="pause_turn")
    session.answer()
    session.answer(say("Done."))
    session.send(stepwise=True)
    session.send("joins", now=True)
    session.fail_model()
    session.send("later", due_at=1, key="later")
    scheduled = session.state.version
    session.send("never", due_at=2)
    session.cancel(RunId(f"run_{session.state.version}"))
    session.fire(f"input:{scheduled}")
    session.answer(use("look"))
    session.result(session.calls[0], ends_run=True)
    session.tell(ClearHistory(key="clear"))
    session.send("anew", stepwise=True)
    session.answer(say("…"), stop_reason="pause_turn")
    session.tell(AllowTurn())
    session.answer(say("Done."))
    return session.log


def test_a_sound_log_has_no_violation() -> None:
    assert check_events(sound_log(), STREAM) == []


def test_a_checker_finds_the_same_step_by_step() -> None:
    checker = SessionChecker(STREAM)
    log = sound_log()
    log.insert(9, log[8])
    stepwise = [violation for event in log for violation in checker.observe(event)]
    assert stepwise == check_events(log, STREAM) != []
    assert checker.version == len(log)


def test_a_violation_reads_as_one_line() -> None:
    assert str(Violation("INV1", "session/alice", 4, "a call is open")) == "INV1 session/alice@4: a call is open"


def one_tool() -> list[SessionEvent]:
    """Return the log of one run with one call; the names are below, from version 3 on."""
    session = Session(configuration())
    session.send()
    session.answer(use("write"))
    session.result(CALL)
    session.answer(say("Done."))
    log = session.log
    assert names(log)[2:] == [
        "InputQueued",
        "RunStarted",
        "ModelRequested",
        "ModelResponded",
        "ToolCallStarted",
        "ToolCallCompleted",
        "ModelRequested",
        "ModelResponded",
        "RunCompleted",
    ]
    return log


def without(version: int) -> Callable[[list[SessionEvent]], list[SessionEvent]]:
    return lambda log: log[: version - 1] + log[version:]


def after(version: int, *events: SessionEvent) -> Callable[[list[SessionEvent]], list[SessionEvent]]:
    return lambda log: [*log[:version], *events, *log[version:]]


def instead(version: int, *events: SessionEvent) -> Callable[[list[SessionEvent]], list[SessionEvent]]:
    return lambda log: [*log[: version - 1], *events, *log[version:]]


def twice(version: int) -> Callable[[list[SessionEvent]], list[SessionEvent]]:
    return lambda log: [*log[:version], log[version - 1], *log[version:]]


ANSWER_WITH_CALL = ModelResponded(
    run=RUN,
    turn=1,
    content=(call("call_6_0"),),
    stop_reason="tool_use",
    request=RequestReference(configured=2, messages=1),
)
FAILED = ToolCallFailed(call=CALL, kind="cancelled", content=(say("Cancelled by user"),))


OPENED_AS_BOB = SessionOpened(session=SessionId("bob"), agent=AgentId("agent"))


@pytest.mark.parametrize(
    ("invariant", "version", "words", "change"),
    [
        ("INV4", 1, "does not begin by saying whose it is", without(1)),
        ("INV4", 2, "opened again", twice(1)),
        (
            "INV4",
            1,
            "says that it is 'bob'",
            instead(1, OPENED_AS_BOB),
        ),
        ("INV4", 3, "begins from version 3, which is no input", without(3)),
        ("INV4", 6, "run_9 is no run of this session", instead(6, ModelRequested(run=RunId("run_9"), turn=1))),
        ("INV4", 6, "run_9 is no run of this session", after(5, CancelRequested(run=RunId("run_9")))),
        (
            "INV4",
            8,
            "call_9_0 is no call of this session",
            after(7, ToolCallCompleted(call=ToolCallId("call_9_0"), content=())),
        ),
        (
            "INV4",
            8,
            "call_9_0 is no call of this session",
            after(7, ToolResultLate(call=ToolCallId("call_9_0"), content=())),
        ),
        ("INV3", 5, "the input at version 3 becomes a run again", twice(4)),
        ("INV2", 12, "run_3 goes on after its terminal event", twice(11)),
        ("INV2", 12, "run_3 goes on after its terminal event", after(11, ModelRequested(run=RUN, turn=3))),
        ("INV2", 12, "is to be cancelled after its terminal event", after(11, CancelRequested(run=RUN))),
        ("INV2", 4, "run_3 has an event before its RunStarted", after(3, ModelRequested(run=RUN, turn=1))),
        ("INV2", 12, "run_3 was cancelled and ends with RunCompleted", after(10, CancelRequested(run=RUN))),
        ("INV2", 6, "a model call begins in run_3 after it was cancelled", after(4, CancelRequested(run=RUN))),
        ("INV2", 8, "call_6_0 begins in run_3 after it was cancelled", after(6, CancelRequested(run=RUN))),
        ("INV1", 7, "call_6_0 has a result and was never started", without(7)),
        ("INV1", 8, "call_6_0 starts again", twice(7)),
        ("INV1", 8, "a model call is made while 1 calls are unanswered, call_6_0 first", without(8)),
        ("INV1", 9, "something happens to call_6_0 after it was answered", twice(8)),
        ("INV1", 9, "something happens to call_6_0 after it was answered", after(8, FAILED)),
        ("INV1", 7, "the work of call_6_0 waits and has not begun", after(6, ToolCallWaiting(call=CALL, waits=True))),
        ("INV1", 9, "something happens to call_6_0 after it was", after(8, ToolCallWaiting(call=CALL, waits=False))),
        ("INV1", 8, "recorded as late while the call is open", after(7, ToolResultLate(call=CALL, content=()))),
        ("INV1", 8, "run_3 ends while 1 calls are unanswered", after(7, RunCompleted(run=RUN))),
        ("INV1", 9, "the call id call_6_0 is used again", after(8, ANSWER_WITH_CALL)),
        ("INV1", 8, "decided about and did not wait", after(7, ToolApprovalDecided(call=CALL, allowed=True))),
        ("INV0", 8, "holds a blank text", instead(8, ToolCallCompleted(call=CALL, content=(say(" "),)))),
        (
            "INV0",
            8,
            "says nothing",
            instead(8, ToolCallFailed(call=CALL, kind="timeout", content=(), started=True)),
        ),
        ("INV0", 11, "follows another assistant message that was no pause", twice(10)),
        ("INV0", 3, "the first one and not a user's", after(2, HistoryImported(messages=(assistant(say("x")),)))),
        ("INV0", 12, "no history can be shown from here on", twice(11)),
        (
            "INV1",
            10,
            "answers call_6_0, which the message before did not call",
            after(9, ContextPrepared(run=RUN, replaced=2, summary=())),
        ),
    ],
)
def test_a_changed_log_is_found_at_the_version_where_it_goes_wrong(
    invariant: str, version: int, words: str, change: Callable[[list[SessionEvent]], list[SessionEvent]]
) -> None:
    violations = check_events(change(one_tool()), STREAM)
    assert (invariant, version) in found(violations)
    matching = [violation for violation in violations if words in violation.message]
    assert matching
    assert matching[0].version == version


def test_inputs_that_ran_out_of_order_are_found() -> None:
    session = Session(configuration())
    session.send("first")
    session.send("second")
    log = [*session.log[:3], session.log[5], *session.log[3:5]]
    log[4] = RunStarted(run=RunId("run_4"), input=4, code=CODE, fingerprint="")
    violations = check_events(log, STREAM)
    assert violations[0].invariant == "INV3"
    assert violations[0].message == "run_4 begins before run_3, whose input was accepted earlier"


def test_a_run_that_begins_inside_another_is_found() -> None:
    session = Session(configuration())
    session.send("first")
    session.send("second")
    started = RunStarted(run=RunId("run_6"), input=6, code=CODE, fingerprint="")
    violations = check_events([*session.log, started], STREAM)
    assert violations[0].message == "run_6 begins while run_3 is under way"


def found_after(session: Session, *events: SessionEvent) -> list[str]:
    return [violation.message for violation in check_events([*session.log, *events], STREAM)]


def test_a_scheduled_input_that_is_queued_twice_or_was_never_scheduled_or_was_cancelled_is_found() -> None:
    session = Session(configuration())
    session.send(due_at=5)
    queued = InputQueued(content=(say("Hello"),), scheduled=3)
    message = "the input of run_3 is queued and was not scheduled, or not any more"
    assert found_after(session, TimerFired(timer="input:3"), queued) == []
    assert message in found_after(session, TimerFired(timer="input:3"), queued, queued)
    assert found_after(session, InputQueued(content=(say("Hello"),), scheduled=2)) == [message.replace("3", "2")]
    session.cancel(RunId("run_3"))
    assert message in found_after(session, queued)
    assert "run_3 is to be cancelled after its terminal event" in found_after(session, CancelRequested(run=RUN))


def test_an_input_that_joins_a_run_that_is_not_under_way_is_found() -> None:
    session = Session(configuration())
    session.send("first")
    session.answer(say("Hi"))
    joins = InputQueued(content=(say("Hello"),), joins=RUN)
    assert found_after(session, joins)[0] == "run_3 goes on after its terminal event"
    joins_none = InputQueued(content=(say("Hello"),), joins=RunId("run_9"))
    assert found_after(session, joins_none)[0] == "run_9 is no run of this session"


def test_a_history_that_is_cleared_during_a_run_or_with_open_calls_is_found() -> None:
    session = Session(configuration())
    session.send()
    assert found_after(session, HistoryCleared())[0] == "the history is cleared while run_3 is under way"
    session.answer(use("look"))
    assert "the history is cleared while 1 calls are unanswered, call_6_0 first" in found_after(
        session, HistoryCleared()
    )


def test_a_turn_that_is_allowed_after_the_run_has_ended_is_found() -> None:
    session = Session(configuration())
    session.send(stepwise=True)
    session.answer(say("Hi"))
    assert found_after(session, TurnAllowed(run=RUN, turn=2))[0] == "run_3 goes on after its terminal event"


def test_a_call_that_starts_while_a_person_thinks_is_found() -> None:
    session = Session(configuration())
    session.send()
    session.answer(use("pay"))
    violations = check_events([*session.log, ToolCallStarted(run=RUN, call=CALL)], STREAM)
    assert [violation.message for violation in violations] == ["call_6_0 starts while it waits for approval"]


def test_a_contradiction_is_reported_once_and_the_order_is_checked_on() -> None:
    log = one_tool()
    bad = [*log[:3], RunCompleted(run=RUN), *log[3:], RunCompleted(run=RUN)]
    violations = check_events(bad, STREAM)
    assert sum("no history can be shown" in violation.message for violation in violations) == 1
    assert violations[-1].version == len(bad)


def test_no_two_sessions_may_be_one_stream() -> None:
    log = [*one_tool(), *one_tool()]
    assert "INV4" in {violation.invariant for violation in check_events(log, STREAM)}


runs = st.sampled_from([RunId("run_3"), RunId("run_4"), RunId("run_9")])
calls = st.sampled_from([ToolCallId("call_6_0"), ToolCallId("call_6_1"), ToolCallId("call_7_0")])
strange_blocks: st.SearchStrategy[list[Block]] = st.lists(
    st.sampled_from([say("x"), say(""), call("call_6_0"), result("call_6_0"), result("b")]), max_size=3
)
strange_messages = st.builds(Message, st.sampled_from(["user", "assistant"]), strange_blocks.map(tuple))
strange_imports = st.builds(HistoryImported, messages=st.lists(strange_messages, max_size=3).map(tuple))


@st.composite
def strange_events(draw: st.DrawFn) -> SessionEvent:
    """Draw an event that can be decoded, about any run, any call and any input."""
    event = draw(st.sampled_from([*sound_log(), TimerSet(timer="tea", due_at=1), TimerFired(timer="deadline:run_3")]))
    changes: dict[str, object] = {}
    if "run" in event.__struct_fields__:
        changes["run"] = draw(runs)
    if "call" in event.__struct_fields__:
        changes["call"] = draw(calls)
    if type(event) is RunStarted:
        changes["input"] = draw(st.integers(-1, 9))
    return msgspec.structs.replace(event, **changes)


@given(st.lists(strange_events() | strange_imports, max_size=25))
def test_any_list_of_events_is_checked_without_an_error(events: list[SessionEvent]) -> None:
    mixed = decoded(events)
    for violation in check_events(mixed, STREAM):
        assert 1 <= violation.version <= len(mixed)
    checked = check_events([*one_tool()[:5], *mixed], STREAM)
    assert checked == check_events([*one_tool()[:5], *mixed], STREAM)


@given(data=st.data())
def test_a_log_that_lost_doubled_or_moved_one_event_is_checked_without_an_error(data: st.DataObject) -> None:
    log = sound_log()
    place = data.draw(st.integers(0, len(log) - 1))
    target = data.draw(st.integers(0, len(log) - 1))
    event = log.pop(place) if data.draw(st.booleans()) else log[place]
    log.insert(target, event)
    checked = check_events(decoded(log), STREAM)
    assert all(violation.stream == STREAM for violation in checked)


@pytest.mark.parametrize("stream", ["alice", "", "/", "session/", "session/a/b"])
def test_a_strange_stream_name_is_a_violation_and_no_error(stream: str) -> None:
    violations = check_events(one_tool(), stream)
    assert [violation.invariant for violation in violations] == ["INV4"]


# States


def test_a_sound_state_has_no_violation() -> None:
    session = Session(configuration())
    session.send()
    session.send()
    session.answer(use("look"), use("write"))
    assert check_state(session.state) == []
    assert check_state(session.state, STREAM) == []


def test_a_state_of_another_session_is_found() -> None:
    session = Session(configuration())
    assert found(check_state(session.state, "session/bob")) == [("INV4", 2)]


def test_a_state_whose_parts_disagree_is_found() -> None:
    session = Session(configuration())
    session.send()
    session.send()
    session.send()
    session.answer(use("look"), use("look"))
    state = session.state
    assert state.turn is not None
    state.turn.open = 1
    state.queue.reverse()
    assert sorted(found(check_state(state))) == [("INV1", state.version), ("INV3", state.version)]
    state.turn.calls.pop()
    assert "INV1" in {violation.invariant for violation in check_state(state)}


def test_a_state_with_a_run_of_another_input_is_found() -> None:
    session = Session(configuration())
    session.send()
    assert session.state.run is not None
    session.state.run.id = RunId("run_9")
    assert [violation.message for violation in check_state(session.state)] == [
        "run_9 does not belong to the input at 3"
    ]


def test_checking_changes_neither_state_nor_events() -> None:
    session = Session(configuration())
    session.send()
    session.answer(use("look"))
    log, state = msgspec.json.encode(session.log), msgspec.json.encode(session.state)
    check_events(session.log, STREAM)
    check_state(session.state)
    assert (msgspec.json.encode(session.log), msgspec.json.encode(session.state)) == (log, state)
