"""Inputs for a later time, histories that begin anew, and what counts as the time of a run."""

import msgspec
import pytest

from refold.events.core.content import Message
from refold.events.core.contract import Recorded, WaitUntil
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.configuration import AgentConfig
from refold.events.model.messages import Usage
from refold.events.model.retry import RetryPolicy
from refold.events.session.commands import (
    AllowTurn,
    CancelRun,
    ClearHistory,
    ImportHistory,
    RecordModelInterruption,
    SendInput,
)
from refold.events.session.events import InputQueued, ModelInterrupted, TimerSet
from refold.events.session.invariants import check_events
from tests.events.conftest import STREAM, Session, configuration, encoded, names, say, use

TIMED = AgentConfig(model="test-model", run_timeout_s=60.0)
MINUTE = 60_000_000


# Inputs for a later time


def test_an_input_for_later_is_a_wait_and_begins_its_run_when_its_time_comes(session: Session) -> None:
    (scheduled,) = session.send("later", due_at=99)
    assert isinstance(scheduled, TimerSet)
    assert (scheduled.timer, scheduled.due_at, scheduled.content) == ("input:3", 99, (say("later"),))
    assert session.pending == [WaitUntil(key="input:3", causation=3, correlation=3, due_at=99)]
    assert session.texts == []
    events = session.fire("input:3")
    assert names(events) == ["TimerFired", "InputQueued", "RunStarted", "ModelRequested"]
    assert isinstance(events[1], InputQueued)
    assert (events[1].scheduled, events[1].content) == (3, (say("later"),))
    assert session.run == "run_3"
    assert session.texts == ["user: later"]
    assert session.pending[0].correlation == 5


def test_the_earliest_is_waited_for_and_of_one_time_the_one_accepted_first(session: Session) -> None:
    for due_at in (30, 10, 20, 10):
        session.send(f"at {due_at}", due_at=due_at)
    fired: list[str] = []
    while session.state.scheduled:
        fired += session.pending_keys[:1]
        session.fire(fired[-1])
    assert fired == ["input:4", "input:6", "input:5", "input:3"]


def test_only_the_time_that_is_waited_for_can_come(session: Session) -> None:
    session.send(due_at=20)
    session.send(due_at=10)
    assert session.fire("input:3") == []
    assert names(session.fire("input:4"))[0] == "TimerFired"
    assert session.fire("input:4") == []


def test_it_waits_for_the_run_under_way_and_runs_in_the_order_in_which_it_was_queued(session: Session) -> None:
    session.send("later", due_at=10)
    session.send("first")
    session.send("second")
    assert names(session.fire("input:3")) == ["TimerFired", "InputQueued"]
    for _ in range(3):
        session.answer(say("ok"))
    assert [text for text in session.texts if text != "assistant: ok"] == ["user: first", "user: second", "user: later"]


@pytest.mark.parametrize("doing", ["parked", "person", "step", "tool"])
def test_its_time_comes_whatever_the_run_under_way_is_doing(doing: str) -> None:
    session = Session(configuration(AgentConfig(model="test-model", resumes_max=0)))
    session.send("later", due_at=10)
    session.send(stepwise=doing == "step")
    session.answer(use("pay" if doing == "person" else "look"))
    if doing == "parked":
        session.crash()
    if doing == "step":
        session.result(session.calls[0])
    assert "input:3" in session.pending_keys
    assert names(session.fire("input:3")) == ["TimerFired", "InputQueued"]


def test_its_key_stands_for_it_before_and_after_its_time(session: Session) -> None:
    session.send("later", due_at=10, key="k")
    again = SendInput(content=(say("later"),), key="k")
    assert session.tell_or_recorded(again) == Recorded(3)
    session.fire("input:3")
    assert session.tell_or_recorded(again) == Recorded(3)
    session.answer(say("ok"))
    session.restart()
    assert session.tell_or_recorded(again) == Recorded(3)
    assert (session.state.keys["k"].run, session.state.keys["k"].terminal) == ("run_3", session.state.version)
    with pytest.raises(CommandRejected, match="key 'k'"):
        session.send("other", key="k")


def test_it_can_be_cancelled_before_its_time(session: Session) -> None:
    session.send("later", due_at=10, key="k")
    session.send("latest", due_at=20)
    assert names(session.cancel(RunId("run_3"))) == ["CancelRequested"]
    assert session.pending_keys == ["input:4"]
    assert session.fire("input:3") == []
    assert session.tell_or_recorded(CancelRun(run=RunId("run_3"))) == Recorded(0)
    assert session.state.keys["k"].cancelled == 5
    assert session.tell_or_recorded(SendInput(content=(say("later"),), key="k")) == Recorded(3)


def test_it_can_be_cancelled_when_it_is_queued_and_when_it_runs(session: Session) -> None:
    session.send("first")
    session.send("later", due_at=10)
    session.fire("input:6")
    assert names(session.cancel(RunId("run_6"))) == ["CancelRequested"]
    assert names(session.answer(say("ok")))[-2:] == ["RunStarted", "RunCancelled"]
    session.send("again", due_at=10)
    scheduled = session.state.version
    session.fire(f"input:{scheduled}")
    assert names(session.cancel(RunId(f"run_{scheduled}"))) == ["CancelRequested", "RunCancelled"]


def test_it_survives_a_restart_and_a_cleared_history(session: Session) -> None:
    session.send("first")
    session.answer(say("ok"))
    session.send("later", due_at=10)
    waits = session.pending
    session.tell(ClearHistory())
    session.restart()
    assert session.pending == waits
    session.fire(waits[0].key)
    assert session.texts == ["user: later"]


@pytest.mark.parametrize("how", ["now", "stepwise", "cancelled"])
def test_for_later_and_something_else_is_refused(session: Session, how: str) -> None:
    later = SendInput(content=(say("x"),), due_at=10)
    before = encoded(session.state)
    with pytest.raises(CommandRejected, match="for a later time"):
        session.tell(msgspec.structs.replace(later, **{how: True}))
    with pytest.raises(CommandRejected, match="needs some content"):
        session.send(" ", due_at=10)
    assert encoded(session.state) == before


# A history that begins anew


def answered(session: Session) -> ToolCallId:
    session.send("first")
    session.answer(use("look"))
    call = session.calls[0]
    session.result(call)
    session.answer(say("Done."))
    return call


def test_no_earlier_message_is_shown_after_clearing(session: Session) -> None:
    answered(session)
    assert names(session.tell(ClearHistory())) == ["HistoryCleared"]
    assert session.history == []
    session.send("anew")
    assert session.history == [Message("user", (say("anew"),))]
    session.answer(use("look"))
    session.result(session.calls[0])
    session.answer(say("Done."))
    assert check_events(session.log, STREAM) == []


def test_there_is_nothing_to_clear_in_an_empty_history(session: Session) -> None:
    assert session.tell_or_recorded(ClearHistory()) == Recorded(0)
    answered(session)
    session.tell(ClearHistory())
    cleared = session.state.version
    assert session.tell_or_recorded(ClearHistory()) == Recorded(cleared)


@pytest.mark.parametrize("doing", ["model", "person", "parked"])
def test_a_history_is_not_cleared_during_a_run(doing: str) -> None:
    session = Session(configuration(AgentConfig(model="test-model", resumes_max=0)))
    session.send()
    if doing == "person":
        session.answer(use("pay"))
    if doing == "parked":
        session.crash()
    with pytest.raises(CommandRejected, match="run_3 is under way; cancel it"):
        session.tell(ClearHistory())


def test_clearing_with_a_key_happens_once(session: Session) -> None:
    answered(session)
    session.tell(ClearHistory(key="c"))
    cleared = session.state.version
    session.send("anew")
    assert session.tell_or_recorded(ClearHistory(key="c")) == Recorded(cleared)
    session.answer(say("ok"))
    assert session.tell_or_recorded(ClearHistory(key="c")) == Recorded(cleared)
    assert session.texts == ["user: anew", "assistant: ok"]
    with pytest.raises(CommandRejected, match="key 'c'"):
        session.send("x", key="c")


def test_a_result_that_comes_after_its_history_was_cleared_is_late(session: Session) -> None:
    call = answered(session)
    session.tell(ClearHistory())
    assert names(session.result(call, "late")) == ["ToolResultLate"]
    session.send("anew")
    session.restart()
    assert names(session.result(call, "later")) == ["ToolResultLate"]
    assert session.texts == ["user: anew"]


@pytest.mark.parametrize(
    "call", ["call_6_1", "call_5_0", "call_06_0", "call_6_00", "call_6_0 ", "call_99_0", "call_٦_0"]
)
def test_a_call_that_never_was_is_refused_after_clearing_too(session: Session, call: str) -> None:
    answered(session)
    session.tell(ClearHistory())
    with pytest.raises(CommandRejected, match="is no call of this session"):
        session.result(ToolCallId(call))


def test_a_late_result_of_an_imported_call_is_known_after_clearing(session: Session) -> None:
    session.tell(ImportHistory(messages=(Message("user", (say("Hi"),)), Message("assistant", (use("look", "t1"),)))))
    session.tell(ClearHistory())
    assert names(session.result(ToolCallId("call_3_0"))) == ["ToolResultLate"]
    session.tell(ImportHistory(messages=(Message("user", (say("Hi"),)),)))
    assert session.texts == ["user: Hi"]


def test_what_was_allowed_always_and_the_keys_stay(session: Session) -> None:
    session.send(key="k")
    session.answer(use("pay"))
    session.decide(session.calls[0], True, always=True)
    session.result(session.calls[0])
    session.answer(say("Done."))
    session.tell(ClearHistory())
    assert session.send(key="k") == []
    session.send()
    assert names(session.answer(use("pay"))) == ["ModelResponded", "ToolCallStarted"]


# Answers that were cut


def test_what_had_come_of_an_answer_is_evidence_with_its_tokens_and_the_call_goes_on(session: Session) -> None:
    session.send()
    before = session.pending
    command = RecordModelInterruption(turn=1, asked=5, content=(say("Half an"), say(" ")), usage=Usage(output_tokens=3))
    (interrupted,) = session.tell(command)
    assert isinstance(interrupted, ModelInterrupted)
    assert (interrupted.asked, interrupted.content) == (5, (say("Half an"),))
    assert session.pending == before
    assert session.texts == ["user: Hello"]
    assert session.state.run is not None
    assert session.state.run.usage == session.state.usage == Usage(output_tokens=3)


def test_the_tokens_of_another_model_call_are_not_the_runs(session: Session) -> None:
    session.send()
    session.cancel()
    session.send()
    session.tell(RecordModelInterruption(turn=1, asked=5, usage=Usage(output_tokens=3)))
    assert session.state.run is not None
    assert (session.state.run.usage, session.state.usage) == (Usage(), Usage(output_tokens=3))


def test_nothing_is_recorded_before_the_session_is_open() -> None:
    session = Session()
    with pytest.raises(CommandRejected, match="not open"):
        session.tell(RecordModelInterruption(turn=1, asked=5))


# The time of a run


def deadline(session: Session) -> int | None:
    """Return when the run under way is out of time, as far as that is waited for."""
    return next(
        (wait.due_at for wait in session.pending if isinstance(wait, WaitUntil) and "deadline" in wait.key), None
    )


def test_waiting_for_a_decision_does_not_count() -> None:
    session = Session(configuration(TIMED))
    session.send()
    due_at = deadline(session)
    assert due_at is not None
    session.answer(use("pay"))
    waited_from = session.now
    assert deadline(session) is None
    assert session.fire("deadline:run_3") == []
    session.now += 10 * MINUTE
    session.decide(session.calls[0], True)
    assert deadline(session) == due_at + (session.now - waited_from)


def test_while_a_call_runs_the_time_counts_though_another_waits_for_a_person() -> None:
    session = Session(configuration(TIMED))
    session.send()
    due_at = deadline(session)
    session.answer(use("look"), use("pay"))
    assert deadline(session) == due_at
    session.now += MINUTE // 2
    session.result(session.calls[0])
    assert deadline(session) is None
    waited_from = session.now
    session.now += MINUTE
    session.decide(session.calls[1], True)
    assert due_at is not None
    assert deadline(session) == due_at + (session.now - waited_from)


def test_several_waits_add_up_over_crashes_and_the_run_can_still_run_out_of_time() -> None:
    session = Session(configuration(TIMED))
    session.send(stepwise=True)
    due_at, waited = deadline(session), 0
    assert due_at is not None
    for _ in range(3):
        session.answer(use("look"))
        session.result(session.calls[0])
        assert deadline(session) is None
        waited_from = session.now
        session.now += MINUTE
        session.crash()
        assert deadline(session) is None
        session.now += MINUTE
        session.tell(AllowTurn())
        waited += session.now - waited_from
        assert deadline(session) == due_at + waited
    assert names(session.fire("deadline:run_3")) == ["TimerFired", "RunFailed"]


def test_a_parked_run_has_all_the_time_in_the_world() -> None:
    session = Session(configuration(AgentConfig(model="test-model", run_timeout_s=60.0, resumes_max=0)))
    session.send()
    due_at = deadline(session)
    session.crash()
    parked_at = session.now
    assert [effect.key for effect in session.pending] == ["resume:run_3"]
    session.now += 10 * MINUTE
    session.crash(asked=True)
    assert due_at is not None
    assert deadline(session) == due_at + (session.now - parked_at)


def test_waiting_to_ask_the_model_again_counts() -> None:
    session = Session(configuration(AgentConfig(model="test-model", run_timeout_s=60.0, retry=RetryPolicy())))
    session.send()
    due_at = deadline(session)
    assert due_at is not None
    session.fail_model(retryable=True, retry_after_s=30)
    assert deadline(session) == due_at
    session.now += MINUTE // 2
    session.crash()
    session.fire("retry:5")
    assert deadline(session) == due_at
