"""Given a session, when something has arrived, then exactly these events follow from it."""

import sys
from types import FrameType
from typing import Any

from refold.events import SESSION_CORE, Message, fold
from refold.events.core.ids import RunId, ToolCallId
from refold.events.core.pure_core import Wait, WaitUntil, plan
from refold.events.session.commands import (
    AnswerQuestion,
    ImportHistory,
    RecordQuestion,
    RecordToolResult,
    SendInput,
    SessionCommand,
)
from refold.events.session.events import QuestionAnswered, TimerFired
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


def lines_run(calls: int) -> int:
    """Return how many lines are run to decide about so many calls of an answer, each of which asks a question."""
    count = 0

    def trace(_: FrameType, what: str, __: object) -> Any:
        nonlocal count
        count += what == "line"
        return trace

    state = fold(Session(configuration()).log)
    plan(SESSION_CORE, state, SendInput(content=(say("Hello"),)), 1)
    answer = response(RunId("run_3"), 1, [use("look") for _ in range(calls)], "tool_use", (ALLOW,) * calls)
    ids = [ToolCallId(f"call_6_{place}") for place in range(calls)]
    commands: list[SessionCommand] = [
        answer,
        *(RecordQuestion(call=call, number=1, question="?", answer_schema={}, expires_at=2) for call in ids),
        *(AnswerQuestion(call=call, answer="yes") for call in ids),
        *(RecordToolResult(call=call, content=()) for call in ids),
    ]
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for command in commands:
            plan(SESSION_CORE, state, command, 1)
            pending(state)
    finally:
        sys.settrace(before)
    assert state.turn is None
    return count


def test_deciding_about_calls_runs_a_number_of_lines_that_grows_only_as_their_number() -> None:
    few = CALLS_RUNNING_MAX * 2
    assert lines_run(few * 2) < lines_run(few) * 2.5


def test_of_many_calls_that_ask_the_first_are_waited_for_and_the_one_whose_time_is_over_next(session: Session) -> None:
    session.send()
    count = CALLS_RUNNING_MAX + 3
    session.answer(*(use("look") for _ in range(count)))
    calls, now = session.calls, session.now
    for place, call in enumerate(calls):
        due_at = now + count - place
        session.tell(RecordQuestion(call=call, number=1, question="?", answer_schema={}, expires_at=due_at))
    for place in reversed(range(count)):
        kinds = [type(effect) for effect in session.pending if isinstance(effect, Wait)]
        assert kinds == [Wait, WaitUntil] * min(place + 1, CALLS_RUNNING_MAX) + [WaitUntil] * (
            place >= CALLS_RUNNING_MAX
        )
        first = min((effect for effect in session.pending if type(effect) is WaitUntil), key=lambda wait: wait.due_at)
        assert first.due_at == now + count - place
        answered = session.tell(TimerFired(timer=first.key))[1]
        assert isinstance(answered, QuestionAnswered)
        assert (answered.call, answered.expired) == (calls[place], True)
    assert session.pending_keys == [f"tool:{call}.1" for call in reversed(calls)][:CALLS_RUNNING_MAX]
