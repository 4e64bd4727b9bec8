"""`evolve`: what is true after each event, and what it does with events that contradict each other."""

from typing import get_args

import msgspec
import pytest

from refold.events import AgentConfig, Message, SessionState, TextBlock, ToolResultBlock, fold
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.messages import RequestReference
from refold.events.session import events as ev
from refold.events.session.admit import ADMITTERS
from refold.events.session.commands import RecordModelFailure, SessionCommand
from refold.events.session.evolve import FOLDERS, evolve
from tests.events.conftest import CODE, Session, configuration, decoded, encoded, say, use


def test_there_is_a_folder_for_every_event_and_an_admitter_for_every_command_and_for_nothing_else() -> None:
    assert set(FOLDERS) == set(get_args(ev.SessionEvent))
    assert set(get_args(ev.TerminalEvent)) < set(FOLDERS)
    assert set(ADMITTERS) == set(get_args(SessionCommand))


def test_folding_the_log_gives_the_live_state_and_so_does_a_part_on_top_of_the_part_before(session: Session) -> None:
    session.send(key="k")
    session.answer(say("Looking."), use("look"), use("pay"), use("write"))
    session.send("second")
    session.result(session.calls[0])
    for cut in range(len(session.log) + 1):
        earlier = fold(session.log[:cut])
        assert (earlier.version, earlier.at) == (cut, session.log[cut - 1].at if cut else 0)
        assert encoded(fold(session.log[cut:], earlier)) == encoded(session.state)
    restored = msgspec.json.decode(encoded(session.state), type=SessionState)
    assert restored == session.state
    assert encoded(restored) == encoded(session.state)


def test_messages_are_the_blocks_of_the_events_in_a_list_that_only_grows(session: Session) -> None:
    session.send()
    event, shared = session.log[2], session.state.messages
    assert isinstance(event, ev.InputQueued)
    assert fold(session.log).messages[0].content is event.content
    session.answer(say("Hi"))
    assert session.state.messages is shared
    assert shared[:1] == [Message("user", (say("Hello"),))]


def test_a_whole_number_of_seconds_is_the_same_before_and_after_the_log(session: Session) -> None:
    session.send()
    session.tell(
        RecordModelFailure(run=session.run, turn=1, kind="overloaded", message="busy", retryable=True, retry_after_s=3)
    )
    (failed,) = [event for event in session.log if type(event) is ev.ModelFailed]
    assert type(failed.retry_after_s) is float
    session.replay()


def test_open_calls_are_shown_with_a_result_that_says_so_and_keeps_what_is_there(session: Session) -> None:
    session.send()
    session.answer(use("look"), use("look"))
    session.result(session.calls[1], "seen")
    shown = session.history[-1]
    assert shown.role == "user"
    assert [block.is_error for block in shown.content if isinstance(block, ToolResultBlock)] == [True, False]
    assert len(session.state.messages) == 2


def test_a_timer_of_another_run_or_of_none_ends_nothing() -> None:
    session = Session(configuration(AgentConfig(model="test-model", run_timeout_s=1)))
    assert fold(decoded([ev.TimerFired(timer="deadline:run_2")], 3), fold(session.log)).run is None
    session.send()
    state = fold(decoded([ev.TimerFired(timer="deadline:run_2")], 6), session.state)
    assert state.run is not None
    assert state.run.phase == "model"


RUN, CALL = RunId("run_3"), ToolCallId("call_6_0")
ANSWERED = ev.ToolCallCompleted(call=CALL, content=(TextBlock(text="again"),))


@pytest.mark.parametrize(
    ("after", "event"),
    [
        ("opened", ev.RunStarted(run=RUN, input=3, code=CODE, fingerprint="")),
        ("opened", ev.RunCompleted(run=RUN)),
        ("opened", ev.ModelRequested(run=RUN, turn=1)),
        ("opened", ev.ModelFailed(run=RUN, turn=1, kind="server", message="")),
        ("opened", ev.ToolApprovalDecided(call=CALL, allowed=True)),
        ("opened", ANSWERED),
        ("opened", ev.ToolCallStarted(run=RUN, call=CALL)),
        ("calls", ev.ToolCallStarted(run=RUN, call=ToolCallId("call_6_9"))),
        ("calls", ev.ToolApprovalRequested(run=RUN, call=ToolCallId("call_6_9"), tool="look", input={})),
        ("answered", ANSWERED),
        (
            "model",
            ev.ModelResponded(
                run=RUN,
                turn=1,
                content=(use("look"),),
                stop_reason="tool_use",
                request=RequestReference(configured=2, messages=1),
            ),
        ),
    ],
)
def test_events_that_contradict_each_other_are_an_error_that_names_the_version(
    after: str, event: ev.SessionEvent
) -> None:
    session = Session(configuration())
    if after != "opened":
        session.send()
    if after in ("calls", "answered"):
        session.answer(use("look"), use("look"))
    if after == "answered":
        session.result(CALL)
    version = session.state.version + 1
    with pytest.raises(LogFormatError, match=f"version {version} contradicts the events before it"):
        fold(decoded([event], version), session.state)


def test_evolve_gives_back_the_state_that_it_changed() -> None:
    state = SessionState()
    assert evolve(state, ev.TimerSet(timer="t", due_at=1)) is state
