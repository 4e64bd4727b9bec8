"""Approvals that end by themselves, and those that hold for always."""

import pytest

from refold.events.core.content import ToolResultBlock
from refold.events.core.contract import Recorded, WaitUntil
from refold.events.core.errors import CommandRejected
from refold.events.model.configuration import AgentConfig
from refold.events.session.commands import DecideApproval
from refold.events.session.events import ToolApprovalDecided, ToolApprovalRequested, ToolCallFailed, Verdict
from refold.events.session.react import CALLS_RUNNING_MAX, AskPerson
from tests.events.conftest import Session, configuration, names, say, use

EXPIRING = AgentConfig(model="test-model", approval_expiry_s=2.5)


def results(session: Session) -> list[tuple[str | None, str]]:
    return [(block.kind, block.text) for block in session.history[-1].content if isinstance(block, ToolResultBlock)]


def at_calls(*tools: str, config: AgentConfig | None = None, verdicts: list[Verdict] | None = None) -> Session:
    session = Session(configuration(config))
    session.send()
    session.answer(*(use(tool) for tool in tools), verdicts=verdicts)
    return session


def ask(action: str = "") -> Verdict:
    return Verdict(verdict="ask", reason="policy", action=action)


# Expiry


def test_a_call_that_expires_is_a_decision_and_a_wait_for_its_end() -> None:
    session = at_calls("pay", config=EXPIRING)
    requested = session.log[-1]
    assert isinstance(requested, ToolApprovalRequested)
    assert requested.expires_at == session.now + 2_500_000
    asking, expiry = session.pending
    assert isinstance(asking, AskPerson)
    assert (asking.key, asking.expires_at) == ("approval:7", requested.expires_at)
    assert expiry == WaitUntil(key="expiry:7", causation=7, correlation=3, due_at=session.now + 2_500_000, pause=True)


def test_a_call_that_nobody_decided_in_time_counts_as_denied() -> None:
    session = at_calls("pay", config=EXPIRING)
    assert names(session.fire("expiry:7")) == ["TimerFired", "ToolCallFailed", "ModelRequested"]
    assert results(session) == [("denied", "Denied: nobody allowed the call in time, so it was not run.")]


def test_a_decision_that_comes_before_the_end_of_the_time_counts_and_the_time_means_nothing_more() -> None:
    session = at_calls("pay", config=EXPIRING)
    assert names(session.decide(session.calls[0], True)) == ["ToolApprovalDecided", "ToolCallStarted"]
    assert session.pending_keys == ["tool:call_6_0"]
    assert session.fire("expiry:7") == []


def test_a_decision_that_comes_after_the_end_of_the_time_is_refused() -> None:
    session = at_calls("pay", "write", config=EXPIRING)
    call = session.calls[0]
    assert names(session.fire("expiry:7")) == ["TimerFired", "ToolCallFailed", "ToolCallStarted"]
    with pytest.raises(CommandRejected, match="does not wait for approval"):
        session.decide(call, True)
    assert session.fire("expiry:7") == []


def test_each_call_has_an_end_of_its_own() -> None:
    session = at_calls("pay", "sign", config=EXPIRING)
    first, second = session.calls
    assert session.pending_keys == ["approval:7", "expiry:7", "approval:8", "expiry:8"]
    session.fire("expiry:8")
    assert session.pending_keys == ["approval:7", "expiry:7"]
    assert session.state.turn is not None
    assert [call.result is None for call in session.state.turn.calls] == [True, False]
    session.decide(first, False)
    assert second not in session.pending_keys


def test_a_second_run_that_nobody_allowed_in_time_says_that_the_outcome_is_unknown() -> None:
    session = at_calls("pay", config=EXPIRING)
    session.decide(session.calls[0], True)
    session.crash()
    assert session.pending_keys == ["approval:11", "expiry:11"]
    failed = session.fire("expiry:11")[1]
    assert isinstance(failed, ToolCallFailed)
    assert (failed.kind, failed.started) == ("crashed", True)


def test_the_time_goes_on_over_a_crash() -> None:
    session = at_calls("pay", config=EXPIRING)
    before = session.pending
    session.crash()
    assert session.pending == before


def test_a_parked_run_lets_no_time_end_until_it_goes_on() -> None:
    config = AgentConfig(model="test-model", approval_expiry_s=2.5, resumes_max=0)
    session = at_calls("look", "pay", config=config)
    session.crash()
    assert [effect.key for effect in session.pending] == ["resume:run_3"]
    assert session.fire("expiry:7") == []
    session.crash(asked=True)
    assert "expiry:7" in session.pending_keys
    assert names(session.fire("expiry:7"))[:2] == ["TimerFired", "ToolCallFailed"]


def test_a_cancelled_call_cannot_expire() -> None:
    session = at_calls("pay", config=EXPIRING)
    session.cancel()
    assert session.fire("expiry:7") == []


def test_only_so_many_are_put_to_a_person_at_once_and_the_next_follow() -> None:
    session = at_calls(*["pay"] * (CALLS_RUNNING_MAX + 2), config=EXPIRING)
    asked = [effect.call for effect in session.pending if isinstance(effect, AskPerson)]
    assert asked == session.calls[:CALLS_RUNNING_MAX]
    session.decide(asked[0], False)
    now_asked = [effect.call for effect in session.pending if isinstance(effect, AskPerson)]
    assert now_asked == session.calls[1 : CALLS_RUNNING_MAX + 1]


# For always


def test_an_allowance_for_always_decides_the_other_waiting_calls_of_the_tool() -> None:
    session = at_calls("pay", "sign", "pay")
    first, sign, last = session.calls
    events = session.decide(first, True, always=True)
    assert names(events) == ["ToolApprovalDecided", "ToolApprovalDecided", "ToolCallStarted"]
    as_well = events[1]
    assert isinstance(as_well, ToolApprovalDecided)
    assert (as_well.call, as_well.allowed, as_well.always) == (last, True, False)
    assert session.pending_keys == [f"tool:{first}", "approval:8"]
    session.decide(sign, False)
    assert names(session.result(first)) == ["ToolCallCompleted", "ToolCallStarted"]


def test_later_calls_of_the_tool_start_without_asking_also_after_a_restart() -> None:
    session = at_calls("pay")
    session.decide(session.calls[0], True, always=True)
    session.result(session.calls[0])
    session.restart()
    assert names(session.answer(use("pay"))) == ["ModelResponded", "ToolCallStarted"]
    session.cancel()
    session.send("again")
    assert names(session.answer(use("pay"), use("sign")))[1:] == ["ToolApprovalRequested", "ToolCallStarted"]


def test_an_ordinary_allowance_holds_for_one_call() -> None:
    session = at_calls("pay")
    session.decide(session.calls[0], True)
    session.result(session.calls[0])
    assert names(session.answer(use("pay"))) == ["ModelResponded", "ToolApprovalRequested"]


def test_an_action_that_a_policy_names_is_what_is_allowed_and_not_the_tool() -> None:
    session = at_calls("write", "put", "write", verdicts=[ask("files"), ask("files"), ask()])
    session.decide(session.calls[0], True, always=True)
    assert session.pending_keys == ["tool:call_6_0", "approval:9"]
    session.cancel()
    session.send()
    events = session.answer(use("fetch"), use("write"), verdicts=[ask("files"), ask()])
    assert names(events) == ["ModelResponded", "ToolApprovalRequested", "ToolCallStarted"]


def test_what_a_policy_refuses_is_refused_whatever_was_allowed_always() -> None:
    session = at_calls("pay")
    session.decide(session.calls[0], True, always=True)
    session.result(session.calls[0])
    assert names(session.answer(use("pay"), verdicts=[Verdict(verdict="deny")]))[1:] == [
        "ToolCallFailed",
        "ModelRequested",
    ]
    assert names(session.answer(use("pay"), stop_reason="max_tokens"))[1:] == ["ToolCallFailed", "ModelRequested"]


def test_a_once_call_that_was_allowed_always_goes_back_to_the_person_after_a_crash() -> None:
    session = at_calls("pay")
    session.decide(session.calls[0], True, always=True)
    assert names(session.crash()) == ["RunResumed", "ToolApprovalRequested"]
    session.decide(session.calls[0], True)
    session.result(session.calls[0])
    session.answer(use("pay"))
    assert names(session.crash()) == ["RunResumed", "ToolApprovalRequested"]
    session.decide(session.calls[0], False)
    assert [kind for kind, _ in results(session)] == ["crashed"]


def test_allowing_another_call_always_runs_no_call_again_whose_outcome_is_unknown() -> None:
    session = at_calls("pay", "pay")
    first, second = session.calls
    session.decide(first, True)
    assert names(session.crash()) == ["RunResumed", "ToolApprovalRequested"]
    assert names(session.decide(second, True, always=True)) == ["ToolApprovalDecided"]
    assert [effect.key for effect in session.pending] == ["approval:12"]
    assert names(session.decide(first, True)) == ["ToolApprovalDecided", "ToolCallStarted"]


def test_a_denial_cannot_hold_for_always() -> None:
    session = at_calls("pay")
    with pytest.raises(CommandRejected, match="deny each call by itself"):
        session.decide(session.calls[0], False, always=True)


def test_the_key_of_an_allowance_for_always_means_just_that() -> None:
    session = at_calls("pay", "pay")
    call = session.calls[0]
    session.decide(call, True, key="d", always=True)
    again = DecideApproval(call=call, allowed=True, key="d", always=True)
    assert session.tell_or_recorded(again) == Recorded(9)
    with pytest.raises(CommandRejected, match="key 'd'"):
        session.decide(call, True, key="d")


def test_a_parked_run_notes_an_allowance_for_always_and_starts_nothing() -> None:
    session = at_calls("look", "pay", "pay", config=AgentConfig(model="test-model", resumes_max=0))
    session.crash()
    assert names(session.decide(session.calls[1], True, always=True)) == ["ToolApprovalDecided"] * 2
    assert [effect.key for effect in session.pending] == ["resume:run_3"]
    session.crash(asked=True)
    session.result(session.calls[0])
    assert session.pending_keys == ["tool:call_6_1"]


def test_one_session_allows_nothing_in_another() -> None:
    alice, bob = at_calls("pay"), at_calls("pay")
    alice.decide(alice.calls[0], True, always=True)
    bob.decide(bob.calls[0], False)
    assert names(bob.answer(use("pay"))) == ["ModelResponded", "ToolApprovalRequested"]
    bob.cancel()
    bob.send()
    assert names(bob.answer(say("Fine."))) == ["ModelResponded", "RunCompleted"]
