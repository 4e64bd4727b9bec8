"""Given a session, when something has arrived, then exactly these events follow from it."""

import sys
from types import FrameType
from typing import Any

from refold.events import SESSION_CORE, Message, fold
from refold.events.core.ids import RunId, ToolCallId
from refold.events.core.pure_core import plan
from refold.events.session.commands import ImportHistory, RecordToolResult, SendInput, SessionCommand
from refold.events.session.react import CALLS_RUNNING_MAX, pending, react
from tests.events.conftest import ALLOW, DENY, Session, configuration, encoded, names, response, say, use

# Import


def test_open_calls_of_an_imported_history_are_answered_and_never_run_and_the_next_run_is_balanced(
    session: Session,
) -> None:
    calls = Message("assistant", (use("look", "t1"), use("write", "t2")))
    events = session.tell(ImportHistory(messages=(Message("user", (say("Hi"),)), calls)))
    assert names(events) == ["HistoryImported", "ToolCallFailed", "ToolCallFailed"]
    text = "Tool execution was interrupted by a crash. Please retry."
    assert [(getattr(block, "kind", None), getattr(block, "text", None)) for block in session.history[-1].content] == [
        ("crashed", text)
    ] * 2
    assert session.pending == []
    assert names(session.send("go on")) == ["InputQueued", "RunStarted", "ModelRequested"]
    session.answer(say("Fine."))
    assert [message.role for message in session.history] == ["user", "assistant", "user", "user", "assistant"]


# What react is


def test_react_changes_no_state_gives_the_same_twice_and_nothing_more_after_a_batch(session: Session) -> None:
    session.send()
    session.answer(use("look"), use("pay"), use("write"), verdicts=[DENY, ALLOW, ALLOW])
    for event in session.log:
        before = encoded(session.state)
        assert react(session.state, event) == react(session.state, event)
        assert encoded(session.state) == before
    for batch in session.batches:
        assert react(session.state, batch.events[-1]) == []


def instructions(calls: int) -> int:
    """Return how many bytecode instructions it takes to decide about an answer with so many calls, and its results."""
    count = 0

    def trace(frame: FrameType, what: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += what == "opcode"
        return trace

    state = fold(Session(configuration()).log)
    plan(SESSION_CORE, state, SendInput(content=(say("Hello"),)), 1)
    answer = response(RunId("run_3"), 1, [use("look") for _ in range(calls)], "tool_use", (ALLOW,) * calls)
    results = [RecordToolResult(call=ToolCallId(f"call_6_{place}"), content=()) for place in range(calls)]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        commands: list[SessionCommand] = [answer, *results]
        for command in commands:
            plan(SESSION_CORE, state, command, 1)
            pending(state)
    finally:
        sys.settrace(before)
    assert state.turn is None
    return count


def test_deciding_about_calls_costs_a_number_of_instructions_that_grows_only_as_their_number() -> None:
    few = CALLS_RUNNING_MAX * 2
    assert instructions(few * 2) < instructions(few) * 2.5
