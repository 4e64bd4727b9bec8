"""Inputs that join the run under way, and runs that go step by step."""

import pytest

from refold.events.core.contract import Recorded
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import RunId
from refold.events.model.configuration import AgentConfig
from refold.events.model.retry import RetryPolicy
from refold.events.session.commands import AllowTurn, CancelRun, SendInput
from refold.events.session.events import InputQueued
from tests.events.conftest import Session, configuration, names, say, use


def test_where_no_run_is_under_way_it_is_an_ordinary_input(session: Session) -> None:
    (queued, *_) = session.send("now", now=True)
    assert isinstance(queued, InputQueued)
    assert queued.joins is None
    assert session.run == "run_3"


def test_it_waits_for_the_results_and_is_shown_to_the_next_model_call(session: Session) -> None:
    session.send("first")
    session.answer(use("look"))
    (queued,) = session.send("hurry", now=True)
    assert isinstance(queued, InputQueued)
    assert queued.joins == "run_3"
    assert session.texts == ["user: first"]
    assert names(session.result(session.calls[0])) == ["ToolCallCompleted", "ModelRequested"]
    assert session.texts == ["user: first", "user: hurry"]
    assert [message.role for message in session.history] == ["user", "assistant", "user", "user"]


def test_a_run_that_has_its_answer_takes_another_turn_for_it(session: Session) -> None:
    session.send("first")
    session.send("wait", now=True)
    assert names(session.answer(say("Done."))) == ["ModelResponded", "ModelRequested"]
    assert session.texts == ["user: first", "assistant: Done.", "user: wait"]
    assert names(session.answer(say("Really done."))) == ["ModelResponded", "RunCompleted"]
    assert session.state.last_run is not None
    assert session.state.last_run.final == (say("Really done."),)


def test_without_a_turn_left_it_enters_the_history_at_the_end_and_the_answer_counts() -> None:
    session = Session(configuration(AgentConfig(model="test-model", max_turns=1)))
    session.send("first")
    session.send("too late", now=True)
    assert names(session.answer(say("Done."))) == ["ModelResponded", "RunCompleted"]
    assert session.texts == ["user: first", "assistant: Done.", "user: too late"]


def test_several_join_in_their_order_and_before_inputs_that_wait_for_a_run_of_their_own(session: Session) -> None:
    session.send("first")
    session.send("own run")
    session.send("one", now=True)
    session.send("two", now=True)
    session.answer(say("…"))
    session.answer(say("Done."))
    assert session.run == "run_6"
    assert session.texts == [
        "user: first",
        "assistant: …",
        "user: one",
        "user: two",
        "assistant: Done.",
        "user: own run",
    ]


def test_it_joins_the_model_call_that_is_made_again() -> None:
    session = Session(configuration(AgentConfig(model="test-model", retry=RetryPolicy())))
    session.send("first")
    session.fail_model(retryable=True)
    session.send("while it waits", now=True)
    assert session.texts == ["user: first"]
    assert names(session.fire("retry:5")) == ["TimerFired"]
    assert session.texts == ["user: first", "user: while it waits"]
    assert names(session.answer(say("Done."))) == ["ModelResponded", "RunCompleted"]


def test_of_a_cancelled_run_it_stays_in_the_history(session: Session) -> None:
    session.send("first")
    session.answer(use("look"))
    session.send("hurry", now=True, key="k")
    assert names(session.cancel()) == ["CancelRequested", "ToolCallFailed", "RunCancelled"]
    assert session.texts == ["user: first", "user: hurry"]
    assert session.state.keys["k"].terminal == session.state.version


def test_of_a_failed_run_it_stays_in_the_history(session: Session) -> None:
    session.send("first")
    session.send("hurry", now=True)
    assert names(session.fail_model()) == ["ModelFailed", "RunFailed"]
    assert session.texts == ["user: first", "user: hurry"]


def test_a_parked_run_shows_it_when_somebody_resumes_it() -> None:
    session = Session(configuration(AgentConfig(model="test-model", resumes_max=0)))
    session.send("first")
    session.answer(use("look"))
    session.crash()
    assert names(session.send("hurry", now=True)) == ["InputQueued"]
    assert [effect.key for effect in session.pending] == ["resume:run_3"]
    session.crash(asked=True)
    session.result(session.calls[0])
    assert session.texts == ["user: first", "user: hurry"]


def test_a_crash_loses_none_of_them_and_makes_the_same_model_call_again(session: Session) -> None:
    session.send("first")
    session.send("hurry", now=True)
    before = session.pending_keys
    session.crash()
    assert session.pending_keys == before
    assert session.texts == ["user: first"]
    session.answer(say("…"))
    assert session.texts[-1] == "user: hurry"


def test_one_whose_token_was_cancelled_joins_nothing_and_ends_as_a_cancelled_run_of_its_own(session: Session) -> None:
    session.send("first")
    session.send("never mind", now=True, cancelled=True)
    assert names(session.answer(say("Done."))) == ["ModelResponded", "RunCompleted", "RunStarted", "RunCancelled"]


def test_one_that_has_joined_has_no_run_to_be_cancelled(session: Session) -> None:
    session.send("first")
    session.send("hurry", now=True)
    assert session.tell_or_recorded(CancelRun(run=RunId("run_6"))) == Recorded(0)


def test_its_key_stands_for_the_run_that_it_joined(session: Session) -> None:
    session.send("first", key="a")
    session.send("hurry", now=True, key="b")
    again = SendInput(content=(say("hurry"),), now=True, key="b")
    assert session.tell_or_recorded(again) == Recorded(6)
    assert (session.state.keys["b"].run, session.state.keys["b"].terminal) == ("run_3", 0)
    session.answer(say("…"))
    session.answer(say("Done."))
    ended = session.state.version
    assert [session.state.keys[key].terminal for key in "ab"] == [ended, ended]
    assert session.tell_or_recorded(again) == Recorded(6)
    with pytest.raises(CommandRejected, match="key 'b'"):
        session.send("something else", now=True, key="b")


def test_an_empty_one_is_refused(session: Session) -> None:
    session.send("first")
    with pytest.raises(CommandRejected, match="needs some content"):
        session.send(" ", now=True)


# Step by step


def test_a_stepwise_run_takes_one_turn_and_each_further_one_when_somebody_allows_it(session: Session) -> None:
    session.send(stepwise=True)
    session.answer(use("look"))
    assert names(session.result(session.calls[0])) == ["ToolCallCompleted"]
    assert [effect.key for effect in session.pending] == ["resume:run_3"]
    assert names(session.tell(AllowTurn())) == ["TurnAllowed", "ModelRequested"]
    session.answer(use("look"))
    assert names(session.result(session.calls[0])) == ["ToolCallCompleted"]
    session.tell(AllowTurn(run=session.run))
    assert names(session.answer(say("Done."))) == ["ModelResponded", "RunCompleted"]


def test_a_turn_is_not_allowed_before_the_last_one_is_over(session: Session) -> None:
    with pytest.raises(CommandRejected, match="no run is under way"):
        session.tell(AllowTurn())
    session.send(stepwise=True)
    with pytest.raises(CommandRejected, match="does not wait for its next turn"):
        session.tell(AllowTurn())
    session.answer(use("pay"))
    with pytest.raises(CommandRejected, match="does not wait for its next turn"):
        session.tell(AllowTurn())
    with pytest.raises(CommandRejected, match="run_9 is under way"):
        session.tell(AllowTurn(run=RunId("run_9")))


def test_an_ordinary_run_needs_no_allowance(session: Session) -> None:
    session.send()
    session.answer(use("look"))
    session.result(session.calls[0])
    with pytest.raises(CommandRejected, match="does not wait"):
        session.tell(AllowTurn())


def test_an_approval_belongs_to_the_turn_and_is_no_step(session: Session) -> None:
    session.send(stepwise=True)
    session.answer(use("pay"))
    assert names(session.decide(session.calls[0], True)) == ["ToolApprovalDecided", "ToolCallStarted"]
    assert names(session.result(session.calls[0])) == ["ToolCallCompleted"]
    assert [effect.key for effect in session.pending] == ["resume:run_3"]


def test_a_run_that_waits_for_its_next_step_can_be_cancelled(session: Session) -> None:
    session.send(stepwise=True)
    session.answer(use("look"))
    session.result(session.calls[0])
    session.send("next")
    assert names(session.cancel()) == ["CancelRequested", "RunCancelled", "RunStarted", "ModelRequested"]


def test_an_input_for_now_waits_with_the_run_for_its_next_step(session: Session) -> None:
    session.send("first", stepwise=True)
    session.send("hurry", now=True)
    assert names(session.answer(say("Done."))) == ["ModelResponded"]
    assert [effect.key for effect in session.pending] == ["resume:run_3"]
    assert names(session.tell(AllowTurn())) == ["TurnAllowed", "ModelRequested"]
    assert session.texts == ["user: first", "assistant: Done.", "user: hurry"]


def test_somebody_who_resumes_the_run_lets_it_go_on_to_its_end(session: Session) -> None:
    session.send(stepwise=True)
    session.answer(use("look"))
    session.result(session.calls[0])
    assert names(session.crash()) == ["RunResumed"]
    assert names(session.crash(asked=True)) == ["RunResumed", "ModelRequested"]
    session.answer(use("look"))
    assert names(session.result(session.calls[0])) == ["ToolCallCompleted", "ModelRequested"]


def test_waiting_for_a_step_over_many_restarts_parks_nothing(session: Session) -> None:
    session.send(stepwise=True)
    session.answer(use("look"))
    session.result(session.calls[0])
    for _ in range(10):
        assert names(session.crash()) == ["RunResumed"]


def test_the_last_turn_of_a_stepwise_run_fails_it_without_being_asked_for_more() -> None:
    session = Session(configuration(AgentConfig(model="test-model", max_turns=1)))
    session.send(stepwise=True)
    session.answer(use("look"))
    assert names(session.result(session.calls[0])) == ["ToolCallCompleted", "RunFailed"]


def test_a_paused_or_empty_answer_is_a_turn_too(session: Session) -> None:
    session.send(stepwise=True)
    assert names(session.answer(say("…"), stop_reason="pause_turn")) == ["ModelResponded"]
    session.tell(AllowTurn())
    assert names(session.answer()) == ["ModelResponded"]
    assert names(session.tell(AllowTurn())) == ["TurnAllowed", "ModelRequested"]
