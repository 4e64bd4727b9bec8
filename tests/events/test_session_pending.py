"""Given a session, this work should be in flight and no other."""

import pytest

from refold.events.core.contract import WaitUntil
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.configuration import AgentConfig
from refold.events.session.events import Verdict
from refold.events.session.react import AskPerson, CallModel, RunTool, pending
from refold.events.session.state import SessionState
from tests.events.conftest import Session, configuration, encoded, say, use

TIMED = AgentConfig(model="test-model", run_timeout_s=2.5)


def test_a_session_without_a_run_asks_for_nothing(session: Session) -> None:
    assert pending(SessionState()) == []
    assert session.pending == []
    session.send()
    session.answer(say("Hi"))
    assert session.pending == []


def test_a_run_at_the_model_asks_for_one_model_call(session: Session) -> None:
    session.send()
    assert session.pending == [CallModel(key="model:5", causation=5, correlation=3, turn=1)]


def test_every_model_call_of_a_session_has_a_key_of_its_own(session: Session) -> None:
    seen: list[str] = []
    for _ in range(2):
        session.send()
        seen += session.pending_keys
        session.answer(use("look"))
        session.result(session.calls[0])
        seen += session.pending_keys
        session.answer(say("Done."))
    assert len(set(seen)) == 4


def test_a_running_call_is_asked_for_with_its_name_its_arguments_and_its_causes(session: Session) -> None:
    session.send()
    session.answer(use("write", path="a.txt"))
    assert session.pending == [
        RunTool(
            key="tool:call_6_0",
            causation=7,
            correlation=3,
            call=ToolCallId("call_6_0"),
            name="write",
            input={"path": "a.txt"},
        )
    ]


def test_calls_are_named_in_the_order_of_their_start_and_leave_when_answered(session: Session) -> None:
    session.send()
    session.answer(use("look"), use("look"), use("look"))
    session.result(session.calls[1])
    assert session.pending_keys == ["tool:call_6_0", "tool:call_6_2"]


def test_a_call_that_waits_for_a_person_asks_for_a_decision_with_all_that_is_to_be_seen(session: Session) -> None:
    session.send()
    session.answer(use("pay", amount=64), verdicts=[Verdict(verdict="ask", reason="much", action="pay much")])
    assert session.pending == [
        AskPerson(
            key="approval:7",
            causation=7,
            correlation=3,
            call=ToolCallId("call_6_0"),
            tool="pay",
            input={"amount": 64},
            reason="much",
            action="pay much",
            requested_at=session.state.at,
            expires_at=None,
        )
    ]


def test_a_limit_of_time_is_a_wait_from_the_start_of_the_run() -> None:
    session = Session(configuration(TIMED))
    session.send()
    started_at = session.now
    wait = WaitUntil(key="deadline:run_3", causation=4, correlation=3, due_at=started_at + 2_500_000, pause=True)
    assert session.pending[0] == wait
    session.answer(use("write"))
    assert session.pending[0] == wait
    session.crash()
    assert session.pending[0] == wait


def test_a_parked_run_waits_for_somebody_and_not_even_for_its_time() -> None:
    session = Session(configuration(AgentConfig(model="test-model", run_timeout_s=2.5, resumes_max=0)))
    session.send()
    session.answer(use("look"))
    session.crash()
    assert [effect.key for effect in session.pending] == ["resume:run_3"]


@pytest.mark.parametrize("calls", [1, 3])
def test_a_cancel_leaves_nothing_to_be_done(calls: int) -> None:
    session = Session(configuration(TIMED))
    session.send()
    session.answer(*[use("look")] * calls)
    session.cancel()
    assert session.pending == []


def test_cancelling_one_run_asks_for_the_work_of_the_next(session: Session) -> None:
    session.send()
    session.send()
    session.cancel(RunId("run_3"))
    assert [type(effect) for effect in session.pending] == [CallModel]
    assert session.pending[0].correlation == 6


def test_pending_changes_no_state_and_gives_the_same_twice() -> None:
    session = Session(configuration(TIMED))
    session.send()
    session.answer(use("look"), use("look"))
    before = encoded(session.state)
    assert pending(session.state) == pending(session.state)
    assert encoded(session.state) == before


def test_no_key_of_an_effect_holds_a_space() -> None:
    session = Session(configuration(TIMED))
    session.send()
    keys = session.pending_keys
    session.answer(use("look"))
    assert all(key and not any(character.isspace() for character in key) for key in keys + session.pending_keys)
