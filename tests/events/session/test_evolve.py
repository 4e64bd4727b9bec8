"""`evolve`: what is true after each event, and what it does with events that contradict each other."""

from typing import get_args

import msgspec
import pytest

from refold.events.core.content import Message, TextBlock, ToolResultBlock
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.configuration import AgentConfig
from refold.events.model.messages import RequestReference, Usage
from refold.events.session.commands import RecordModelFailure
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, fold
from refold.events.session.events import (
    ContextPrepared,
    InputQueued,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    RetryScheduled,
    RunCompleted,
    RunParked,
    RunResumed,
    RunStarted,
    SessionEvent,
    TerminalEvent,
    TimerFired,
    TimerSet,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallStarted,
)
from refold.events.session.evolve import FOLDERS, evolve
from refold.events.session.state import SessionState, history, needs_verdict
from tests.events.conftest import CODE, Session, configuration, decoded, encoded, say, use


def test_there_is_a_folder_for_every_event_and_for_nothing_else() -> None:
    assert set(FOLDERS) == set(get_args(SessionEvent))
    assert set(get_args(TerminalEvent)) < set(FOLDERS)


def test_every_event_counts_a_version_and_brings_its_time() -> None:
    session = Session(configuration())
    session.send()
    state = SessionState()
    for version, event in enumerate(session.log, 1):
        state = fold((event,), state)
        assert (state.version, state.at) == (version, event.at)


def test_folding_the_log_gives_the_live_state_and_so_does_a_part_on_top_of_the_part_before(session: Session) -> None:
    session.send()
    session.answer(use("look"), use("write"))
    session.result(session.calls[0])
    for cut in range(len(session.log) + 1):
        assert encoded(fold(session.log[cut:], fold(session.log[:cut]))) == encoded(session.state)


def test_a_state_survives_being_written_and_read(session: Session) -> None:
    session.send(key="k")
    session.answer(say("Looking."), use("look"), use("pay"))
    session.send("second")
    restored = msgspec.json.decode(encoded(session.state), type=SessionState)
    assert restored == session.state
    assert encoded(restored) == encoded(session.state)


def test_a_whole_number_of_seconds_is_the_same_before_and_after_the_log(session: Session) -> None:
    session.send()
    session.tell(
        RecordModelFailure(run=session.run, turn=1, kind="overloaded", message="busy", retryable=True, retry_after_s=3)
    )
    (failed,) = [event for event in session.log if type(event) is ModelFailed]
    assert type(failed.retry_after_s) is float
    session.replay()


def test_two_sessions_share_nothing() -> None:
    alice, bob = Session(configuration()), Session(configuration())
    before = encoded(bob.state)
    alice.send(key="k")
    alice.answer(use("look"))
    assert encoded(bob.state) == before
    assert SessionState().messages == []
    assert SessionState().keys == {}


def test_messages_are_the_blocks_of_the_events_and_not_copies(session: Session) -> None:
    session.send()
    event = session.log[2]
    assert isinstance(event, InputQueued)
    assert fold(session.log).messages[0].content is event.content


def test_a_request_that_shares_the_messages_sees_no_later_ones(session: Session) -> None:
    session.send()
    shared = session.state.messages
    length = len(shared)
    session.answer(say("Hi"))
    assert session.state.messages is shared
    assert shared[:length] == [Message("user", (say("Hello"),))]


def test_usage_adds_up_by_run_and_by_session(session: Session) -> None:
    for _ in range(2):
        session.send()
        session.answer(use("look"))
        session.result(session.calls[0])
        session.answer(say("Done."))
    assert session.state.usage == Usage(input_tokens=40, output_tokens=4)
    assert session.state.last_run is not None
    assert session.state.last_run.usage == Usage(input_tokens=20, output_tokens=2)


def test_the_last_run_tells_how_it_ended(session: Session) -> None:
    session.send()
    session.answer(say("Hi "), say("there."))
    last = session.state.last_run
    assert last is not None
    assert (last.outcome, last.final, last.turns) == ("completed", (say("Hi "), say("there.")), 1)
    session.send()
    session.fail_model(message="down")
    last = session.state.last_run
    assert last is not None
    assert (last.outcome, last.kind, last.message, last.final) == ("failed", "provider", "down", ())
    session.send()
    session.cancel()
    last = session.state.last_run
    assert last is not None
    assert (last.outcome, last.version) == ("cancelled", session.state.version)


def test_open_calls_are_shown_with_a_result_that_says_so_and_keeps_what_is_there(session: Session) -> None:
    session.send()
    session.answer(use("look"), use("look"))
    session.result(session.calls[1], "seen")
    shown = session.history[-1]
    assert shown.role == "user"
    assert [block.is_error for block in shown.content if isinstance(block, ToolResultBlock)] == [True, False]
    assert len(session.state.messages) == 2


def test_a_prepared_context_stands_for_the_beginning_of_the_history(session: Session) -> None:
    session.send()
    session.answer(say("Hi"))
    session.send("More")
    summary = (Message("user", (say("They greeted."),)),)
    shared = session.state.messages
    event = ContextPrepared(run=session.run, replaced=2, summary=summary, usage=Usage(input_tokens=5))
    state = fold(decoded([event], session.state.version + 1), session.state)
    assert history(state) == [*summary, Message("user", (say("More"),))]
    assert len(shared) == 3
    assert state.usage.input_tokens == 15


def test_a_scheduled_retry_waits_and_its_timer_asks_the_model_again(session: Session) -> None:
    session.send()
    run = session.run
    failed = ModelFailed(run=run, turn=1, kind="overloaded", message="busy", retryable=True)
    scheduled = RetryScheduled(run=run, turn=1, attempt=1, due_at=99)
    state = fold(decoded([failed, scheduled], 6), session.state)
    (wait,) = SESSION_CORE.pending(state)
    assert getattr(wait, "due_at", None) == 99
    (first_key,) = [wait.key]
    state = fold(decoded([TimerFired(timer=wait.key)], 8), state)
    (call,) = SESSION_CORE.pending(state)
    assert call.key == "model:8"
    state = fold(decoded([failed, scheduled], 9), state)
    assert [effect.key for effect in SESSION_CORE.pending(state)] != [first_key]


def test_a_scheduled_input_is_remembered_until_its_time_comes_and_the_event_after_it_queues_it() -> None:
    session = Session(configuration())
    state = fold(decoded([TimerSet(timer="input:3", due_at=5, content=(say("Tea"),), key="k")], 3), session.state)
    assert [(entry.version, entry.due_at, entry.key) for entry in state.scheduled] == [(3, 5, "k")]
    state = fold(decoded([TimerFired(timer="input:3")], 4), state)
    assert state.scheduled == []
    assert state.due is not None
    assert state.due.content == (say("Tea"),)
    state = fold(decoded([InputQueued(content=(say("Tea"),), key="k", scheduled=3)], 5), state)
    assert state.due is None
    assert [(queued.version, queued.run) for queued in state.queue] == [(5, "run_3")]
    assert state.keys["k"].version == 3


def test_a_timer_of_another_run_ends_nothing() -> None:
    session = Session(configuration(AgentConfig(model="test-model", run_timeout_s=1)))
    session.send()
    state = fold(decoded([TimerFired(timer="deadline:run_2")], 6), session.state)
    assert state.run is not None
    assert state.run.phase == "model"


def test_a_parked_run_keeps_what_it_was_doing(session: Session) -> None:
    session.send()
    session.answer(use("look"))
    state = fold(decoded([RunParked(run=session.run, reason="enough")], 8), session.state)
    assert state.run is not None
    assert (state.run.parked, state.run.phase) == (True, "tools")
    resumed = RunResumed(run=state.run.id, code=CODE, fingerprint="", tools=("look",), asked=True)
    state = fold(decoded([resumed], 9), state)
    assert state.run is not None
    assert (state.run.parked, state.run.resumes) == (False, 0)


def test_a_call_is_settled_only_once_by_its_verdict(session: Session) -> None:
    session.send()
    session.answer(use("pay"))
    turn = session.state.turn
    assert turn is not None
    assert not needs_verdict(turn.calls[0], turn)
    assert turn.checked == 1


RUN, CALL = RunId("run_3"), ToolCallId("call_6_0")
ANSWERED = ToolCallCompleted(call=CALL, content=(TextBlock(text="again"),))


@pytest.mark.parametrize(
    ("after", "event"),
    [
        ("opened", RunStarted(run=RUN, input=3, code=CODE, fingerprint="")),
        ("opened", RunCompleted(run=RUN)),
        ("opened", ModelRequested(run=RUN, turn=1)),
        ("opened", ANSWERED),
        ("opened", ToolCallStarted(run=RUN, call=CALL)),
        ("calls", ToolCallStarted(run=RUN, call=ToolCallId("call_6_9"))),
        ("calls", ToolApprovalRequested(run=RUN, call=ToolCallId("call_6_9"), tool="look", input={})),
        ("answered", ANSWERED),
        (
            "model",
            ModelResponded(
                run=RUN,
                turn=1,
                content=(use("look"),),
                stop_reason="tool_use",
                request=RequestReference(configured=2, messages=1),
            ),
        ),
    ],
)
def test_events_that_contradict_each_other_are_an_error_that_names_the_version(after: str, event: SessionEvent) -> None:
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
    assert evolve(state, TimerSet(timer="t", due_at=1)) is state


def test_every_event_class_is_an_event_that_the_codec_knows() -> None:
    assert SESSION_CODEC.tags == tuple(sorted(str(cls.__struct_config__.tag) for cls in get_args(SessionEvent)))
