"""Given a session, this work should be in flight and no other."""

from refold.events import AgentConfig, SessionState, WaitUntil
from refold.events.core.ids import ToolCallId
from refold.events.session.events import InputQueued, TimerSet, ToolApprovalRequested, Verdict
from refold.events.session.react import AskPerson, CallModel, RunTool, pending
from tests.events.conftest import Session, configuration, encoded, names, say, use


def test_each_piece_of_work_says_what_it_needs_and_what_caused_it(session: Session) -> None:
    assert pending(SessionState()) == []
    session.send()
    assert session.pending == [CallModel(key="model:5", causation=5, correlation=3, turn=1)]
    session.answer(use("write", path="a.txt"))
    call = ToolCallId("call_6_0")
    assert session.pending == [
        RunTool(key=f"tool:{call}", causation=7, correlation=3, call=call, name="write", input={"path": "a.txt"})
    ]
    session.cancel()
    session.send()
    session.answer(use("pay", amount=64), verdicts=[Verdict(verdict="ask", reason="much", action="pay much")])
    assert session.pending == [
        AskPerson(
            key="approval:15",
            causation=15,
            correlation=11,
            call=ToolCallId("call_14_0"),
            tool="pay",
            input={"amount": 64},
            reason="much",
            action="pay much",
            requested_at=session.state.at,
            expires_at=None,
        )
    ]


def test_a_limit_of_time_is_a_wait_from_the_start_of_the_run_and_asking_changes_nothing() -> None:
    session = Session(configuration(AgentConfig(model="test-model", run_timeout_s=2.5)))
    session.send()
    due_at = session.now + 2_500_000
    wait = WaitUntil(key="deadline:run_3", causation=4, correlation=3, due_at=due_at, pause=True)
    assert session.pending[0] == wait
    session.answer(use("write"), use("write"))
    assert session.pending[0] == wait
    session.crash()
    assert session.pending[0] == wait
    before = encoded(session.state)
    assert pending(session.state) == pending(session.state)
    assert encoded(session.state) == before


def test_a_call_that_expires_is_a_decision_and_a_wait_for_its_end_also_after_a_crash() -> None:
    session = Session(configuration(AgentConfig(model="test-model", approval_expiry_s=2.5)))
    session.send()
    session.answer(use("pay"))
    requested = session.log[-1]
    assert isinstance(requested, ToolApprovalRequested)
    assert requested.expires_at == session.now + 2_500_000
    for _ in range(2):
        asking, expiry = session.pending
        assert isinstance(asking, AskPerson)
        assert (asking.key, asking.expires_at) == ("approval:7", requested.expires_at)
        wait = WaitUntil(key="expiry:7", causation=7, correlation=3, due_at=requested.expires_at, pause=True)
        assert expiry == wait
        session.crash()


def test_a_hundred_calls_are_put_to_a_person_at_once_and_the_next_follow(session: Session) -> None:
    session.send()
    session.answer(*[use("pay")] * 102)
    asked = [effect.call for effect in session.pending if isinstance(effect, AskPerson)]
    assert asked == session.calls[:100]
    session.decide(asked[0], False)
    now_asked = [effect.call for effect in session.pending if isinstance(effect, AskPerson)]
    assert now_asked == session.calls[1:101]


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
    assert (session.run, session.texts, session.pending[0].correlation) == ("run_3", ["user: later"], 5)
