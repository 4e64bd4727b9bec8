"""Given a session, when something has arrived, then exactly these events follow from it."""

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest

from refold.events.core.content import AnswerContent, ErrorKind, Message, ThinkingBlock, ToolResultBlock
from refold.events.core.contract import plan
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.configuration import AgentConfig
from refold.events.model.messages import StopReason
from refold.events.session.commands import ImportHistory, RecordToolResult, SendInput, SessionCommand
from refold.events.session.core import SESSION_CORE, fold
from refold.events.session.events import (
    RunFailed,
    RunParked,
    ToolApprovalRequested,
    ToolCallFailed,
    Verdict,
)
from refold.events.session.react import CALLS_RUNNING_MAX, pending, react
from tests.events.conftest import (
    ALLOW,
    ASK,
    DENY,
    INVALID,
    NOT_FOUND,
    TOOL_NAMES,
    Session,
    configuration,
    encoded,
    names,
    response,
    say,
    use,
)

CANCELLED = "Cancelled by user"
CRASHED = (
    "Tool execution was interrupted by a crash. Its outcome is unknown: it may have taken full, partial or no effect. "
    "Check before running it again."
)
CRASHED_IMPORT = "Tool execution was interrupted by a crash. Please retry."


def results(session: Session, message: int = -1) -> list[tuple[str | None, str]]:
    """Return kind and text of each result in one message of the history."""
    return [
        (block.kind, block.text) for block in session.history[message].content if isinstance(block, ToolResultBlock)
    ]


def at_calls(*tools: str, verdicts: Sequence[Verdict] | None = None, config: AgentConfig | None = None) -> Session:
    """Return a session whose model has just asked for `tools`."""
    session = Session(configuration(config))
    session.send()
    session.answer(*(use(tool) for tool in tools), verdicts=verdicts)
    return session


# A run without calls


def test_an_input_of_an_idle_session_is_one_batch_up_to_the_model_call(session: Session) -> None:
    assert names(session.send()) == ["InputQueued", "RunStarted", "ModelRequested"]


def test_a_final_answer_completes_the_run_in_its_batch(session: Session) -> None:
    session.send()
    assert names(session.answer(say("Hi"))) == ["ModelResponded", "RunCompleted"]


def test_an_input_one_tool_and_a_final_answer_are_four_batches(session: Session) -> None:
    before = len(session.batches)
    session.send()
    session.answer(use("write"))
    session.result(session.calls[0])
    session.answer(say("Done."))
    assert [names(batch.events) for batch in session.batches[before:]] == [
        ["InputQueued", "RunStarted", "ModelRequested"],
        ["ModelResponded", "ToolCallStarted"],
        ["ToolCallCompleted", "ModelRequested"],
        ["ModelResponded", "RunCompleted"],
    ]


def test_an_input_during_a_run_waits_and_runs_next(session: Session) -> None:
    session.send("first")
    assert names(session.send("second")) == ["InputQueued"]
    assert names(session.answer(say("one"))) == ["ModelResponded", "RunCompleted", "RunStarted", "ModelRequested"]
    assert session.run == "run_6"


def test_queued_inputs_run_in_the_order_accepted(session: Session) -> None:
    for text in ("a", "b", "c", "d"):
        session.send(text)
    for _ in range(4):
        session.answer(say("ok"))
    assert [message.text for message in session.history if message.role == "user"] == ["a", "b", "c", "d"]


def test_a_failed_model_call_fails_the_run_and_the_next_input_runs(session: Session) -> None:
    session.send("first")
    session.send("second")
    events = session.fail_model("server", "overloaded")
    assert names(events) == ["ModelFailed", "RunFailed", "RunStarted", "ModelRequested"]
    assert events[1] == RunFailed(run=RunId("run_3"), kind="provider", message="overloaded", at=events[1].at)


def test_a_failure_of_our_own_code_is_named_as_such(session: Session) -> None:
    session.send()
    assert getattr(session.fail_model("agent_loop", "bug")[1], "kind", None) == "agent_loop"


@pytest.mark.parametrize(
    ("content", "stop_reason"),
    [((), "end_turn"), ((say(" "),), "end_turn"), ((ThinkingBlock(thinking="hm"),), "max_tokens"), ((), "refusal")],
)
def test_an_empty_answer_is_asked_again_at_most_twice(
    session: Session, content: tuple[AnswerContent, ...], stop_reason: StopReason
) -> None:
    session.send()
    for _ in range(2):
        assert names(session.answer(*content, stop_reason=stop_reason)) == ["ModelResponded", "ModelRequested"]
    events = session.answer(*content, stop_reason=stop_reason)
    assert names(events) == ["ModelResponded", "RunFailed"]
    assert getattr(events[1], "kind", None) == "empty_answers"
    assert session.history == [Message("user", (say("Hello"),))]


def test_an_answer_between_empty_ones_begins_their_count_anew(session: Session) -> None:
    session.send()
    session.answer()
    session.answer()
    session.answer(use("look"))
    session.result(session.calls[0])
    assert names(session.answer()) == ["ModelResponded", "ModelRequested"]


def test_a_paused_turn_goes_on_with_what_was_said_so_far(session: Session) -> None:
    session.send()
    assert names(session.answer(say("Searching"), stop_reason="pause_turn")) == ["ModelResponded", "ModelRequested"]
    session.answer(say("Found."))
    assert [message.role for message in session.history] == ["user", "assistant", "assistant"]


def test_endless_pauses_end_at_max_turns() -> None:
    session = Session(configuration(AgentConfig(model="test-model", max_turns=2)))
    session.send()
    session.answer(say("…"), stop_reason="pause_turn")
    assert names(session.answer(say("…"), stop_reason="pause_turn")) == ["ModelResponded", "RunFailed"]


def test_a_text_that_was_cut_completes_the_run_and_shows_why_it_stopped(session: Session) -> None:
    session.send()
    assert names(session.answer(say("Once upon"), stop_reason="max_tokens")) == ["ModelResponded", "RunCompleted"]
    assert session.state.last_run is not None
    assert session.state.last_run.stop_reason == "max_tokens"


def test_reaching_max_turns_fails_the_run_in_these_words() -> None:
    session = at_calls("write", config=AgentConfig(model="test-model", max_turns=1))
    events = session.result(session.calls[0])
    assert names(events) == ["ToolCallCompleted", "RunFailed"]
    assert getattr(events[1], "kind", None) == "max_turns"
    assert getattr(events[1], "message", None) == "Max turns (1) reached, stopping forcibly"


# Calls and their order


def test_observing_calls_all_start_at_once() -> None:
    session = at_calls("look", "fetch", "look")
    assert names(session.log)[-4:] == ["ModelResponded", *["ToolCallStarted"] * 3]


def test_acting_calls_start_one_after_another_in_order() -> None:
    session = at_calls("write", "put", "write")
    for call in session.calls[:2]:
        assert session.pending_keys == [f"tool:{call}"]
        assert names(session.result(call)) == ["ToolCallCompleted", "ToolCallStarted"]
    assert names(session.result(session.calls[2])) == ["ToolCallCompleted", "ModelRequested"]


def test_an_acting_call_waits_for_the_observing_ones_before_it_and_holds_those_after_it() -> None:
    session = at_calls("look", "look", "write", "look")
    first, second, act, last = session.calls
    assert session.pending_keys == [f"tool:{first}", f"tool:{second}"]
    session.result(second)
    assert session.pending_keys == [f"tool:{first}"]
    session.result(first)
    assert session.pending_keys == [f"tool:{act}"]
    session.result(act)
    assert session.pending_keys == [f"tool:{last}"]


def test_results_stand_in_the_order_of_the_calls_however_they_came() -> None:
    session = at_calls("look", "look", "look")
    for call in reversed(session.calls):
        session.result(call, f"of {call}")
    assert [text for _, text in results(session)] == ["of call_6_0", "of call_6_1", "of call_6_2"]


def test_a_tool_that_nobody_described_acts_alone() -> None:
    session = at_calls("unheard_of", "look")
    assert session.pending_keys == ["tool:call_6_0"]


def test_refused_calls_are_answered_at_once_and_the_others_run() -> None:
    session = at_calls("look", "look", "look", "look", verdicts=[DENY, INVALID, NOT_FOUND, ALLOW])
    assert names(session.log)[-4:] == [*["ToolCallFailed"] * 3, "ToolCallStarted"]
    session.result(session.calls[3])
    assert results(session) == [
        ("denied", "not today"),
        ("invalid_arguments", "city is missing"),
        ("not_found", "there is no tool of that name"),
        (None, "done"),
    ]


def test_an_answer_whose_calls_are_all_refused_leads_to_the_next_turn() -> None:
    session = at_calls("look", "write", verdicts=[NOT_FOUND, DENY])
    assert names(session.log)[-4:] == ["ModelResponded", "ToolCallFailed", "ToolCallFailed", "ModelRequested"]


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(verdict="deny", reason=" "),
        Verdict(verdict="invalid_arguments"),
        Verdict(verdict="not_found", reason="\n"),
    ],
)
def test_a_refusal_without_a_reason_says_something_all_the_same(verdict: Verdict) -> None:
    session = at_calls("look", verdicts=[verdict])
    assert results(session)[0][0] == verdict.verdict.replace("deny", "denied")
    assert results(session)[0][1].strip()


def test_no_call_of_an_answer_that_was_cut_is_run() -> None:
    session = Session(configuration())
    session.send()
    events = session.answer(use("write"), use("write"), stop_reason="max_tokens")
    assert names(events) == ["ModelResponded", "ToolCallFailed", "ToolCallFailed", "ModelRequested"]
    assert [kind for kind, _ in results(session)] == ["truncated", "truncated"]


def test_answers_that_are_cut_inside_their_calls_are_asked_again_at_most_twice(session: Session) -> None:
    session.send()
    for _ in range(2):
        assert names(session.answer(use("write"), stop_reason="max_tokens"))[-1] == "ModelRequested"
    failed = session.answer(use("write"), stop_reason="max_tokens")[-1]
    assert isinstance(failed, RunFailed)
    assert failed.kind == "truncated_answers"


def test_calls_that_ran_between_answers_that_were_cut_begin_their_count_anew(session: Session) -> None:
    session.send()
    for _ in range(2):
        session.answer(use("write"), stop_reason="max_tokens")
    session.answer(use("write"))
    assert names(session.result(session.calls[0])) == ["ToolCallCompleted", "ModelRequested"]


@pytest.mark.parametrize("kind", ["transient", "permanent", "timeout", "shed"])
def test_a_failing_tool_gives_the_model_a_result_of_its_kind_and_the_run_goes_on(kind: ErrorKind) -> None:
    session = at_calls("write")
    assert names(session.result(session.calls[0], "no luck", kind=kind)) == ["ToolCallFailed", "ModelRequested"]
    assert results(session) == [(kind, "no luck")]


def test_so_many_calls_run_beside_each_other_and_the_next_starts_when_one_has_ended() -> None:
    session = at_calls(*["look"] * (CALLS_RUNNING_MAX + 2))
    assert len(session.pending) == CALLS_RUNNING_MAX
    assert names(session.result(session.calls[7])) == ["ToolCallCompleted", "ToolCallStarted"]
    assert len(session.pending) == CALLS_RUNNING_MAX


# Approval


def test_a_call_of_the_confirm_tier_waits_for_a_person_and_shows_what_would_run(session: Session) -> None:
    session.send()
    requested = session.answer(use("pay", amount=64))[1]
    assert isinstance(requested, ToolApprovalRequested)
    assert (requested.tool, requested.input) == ("pay", {"amount": 64})
    assert session.pending_keys == ["approval:7"]


def test_a_policy_may_put_any_call_before_a_person() -> None:
    session = at_calls("look", verdicts=[ASK])
    assert names(session.log)[-1] == "ToolApprovalRequested"
    assert names(session.decide(session.calls[0], True)) == ["ToolApprovalDecided", "ToolCallStarted"]


def test_all_approvals_of_a_turn_are_asked_for_before_any_call_starts() -> None:
    session = at_calls("look", "pay", "write", "sign")
    assert names(session.log)[-3:] == ["ToolApprovalRequested", "ToolApprovalRequested", "ToolCallStarted"]


def test_a_confirmed_call_in_the_middle_of_observing_ones_runs_alone_and_in_its_place() -> None:
    session = at_calls("look", "pay", "look")
    first, pay, last = session.calls
    session.decide(pay, True)
    assert session.pending_keys == [f"tool:{first}"]
    session.result(first)
    assert session.pending_keys == [f"tool:{pay}"]
    session.result(pay)
    assert session.pending_keys == [f"tool:{last}"]


def test_a_denied_call_did_not_run_and_the_model_reads_the_reason() -> None:
    session = at_calls("pay")
    events = session.decide(session.calls[0], False, "too much")
    assert names(events) == ["ToolApprovalDecided", "ToolCallFailed", "ModelRequested"]
    assert results(session) == [("denied", "too much")]


def test_a_denial_without_a_reason_says_that_the_call_was_not_run() -> None:
    session = at_calls("pay")
    session.decide(session.calls[0], False, " ")
    assert results(session) == [("denied", "Denied: the call was not run.")]


def test_a_denied_call_lets_the_calls_behind_it_start() -> None:
    session = at_calls("pay", "write")
    assert names(session.decide(session.calls[0], False)) == [
        "ToolApprovalDecided",
        "ToolCallFailed",
        "ToolCallStarted",
    ]


# Cancellation


def test_cancelling_gives_each_open_call_one_result_in_these_words_and_keeps_what_was_done() -> None:
    session = at_calls("look", "look", "write")
    session.result(session.calls[0], "seen")
    events = session.cancel()
    assert names(events) == ["CancelRequested", "ToolCallFailed", "ToolCallFailed", "RunCancelled"]
    assert [event.started for event in events if isinstance(event, ToolCallFailed)] == [True, False]
    assert results(session) == [(None, "seen"), ("cancelled", CANCELLED), ("cancelled", CANCELLED)]


def test_cancelling_twice_is_cancelling_once() -> None:
    session = at_calls("look")
    run = session.run
    session.cancel()
    assert session.cancel(run) == []
    assert session.cancel() == []


def test_cancelling_while_the_model_thinks_leaves_only_the_input(session: Session) -> None:
    session.send()
    assert names(session.cancel()) == ["CancelRequested", "RunCancelled"]
    assert session.history == [Message("user", (say("Hello"),))]


def test_cancelling_while_a_person_thinks_closes_the_call_and_a_later_decision_is_refused() -> None:
    session = at_calls("pay")
    call = session.calls[0]
    assert names(session.cancel()) == ["CancelRequested", "ToolCallFailed", "RunCancelled"]
    with pytest.raises(CommandRejected, match="does not wait for approval"):
        session.decide(call, True)


def test_an_input_that_was_cancelled_before_it_began_keeps_its_message_and_calls_no_model(session: Session) -> None:
    assert names(session.send("never mind", cancelled=True)) == ["InputQueued", "RunStarted", "RunCancelled"]
    assert session.history == [Message("user", (say("never mind"),))]


def test_cancelling_a_queued_input_leaves_the_run_under_way_alone(session: Session) -> None:
    session.send("first")
    session.send("second")
    session.send("third")
    assert names(session.cancel(RunId("run_6"))) == ["CancelRequested"]
    assert session.cancel(RunId("run_6")) == []
    assert names(session.answer(say("one"))) == [
        "ModelResponded",
        "RunCompleted",
        "RunStarted",
        "RunCancelled",
        "RunStarted",
        "ModelRequested",
    ]
    assert [message.text for message in session.history] == ["first", "one", "second", "third"]


def test_after_a_cancel_the_next_input_runs_on_a_history_that_providers_accept() -> None:
    session = at_calls("look", "write")
    session.cancel()
    session.send("go on")
    session.answer(say("Fine."))
    assert [message.role for message in session.history] == ["user", "assistant", "user", "user", "assistant"]


# Time


def test_a_run_that_takes_too_long_fails_and_its_open_calls_time_out() -> None:
    session = at_calls("look", "write", config=AgentConfig(model="test-model", run_timeout_s=5))
    events = session.fire("deadline:run_3")
    assert names(events) == ["TimerFired", "ToolCallFailed", "ToolCallFailed", "RunFailed"]
    assert [kind for kind, _ in results(session)] == ["timeout", "timeout"]
    assert getattr(events[-1], "kind", None) == "run_timeout"


def test_the_time_of_an_earlier_run_does_not_end_a_later_one() -> None:
    session = Session(configuration(AgentConfig(model="test-model", run_timeout_s=5)))
    session.send()
    session.cancel()
    session.send()
    assert session.fire("deadline:run_3") == []
    assert session.state.run is not None


# Crash


def test_after_a_crash_an_unanswered_model_call_is_made_again(session: Session) -> None:
    session.send()
    before = session.pending
    assert names(session.crash()) == ["RunResumed"]
    assert session.pending == before


@pytest.mark.parametrize("tool", ["look", "put"])
def test_a_pure_or_idempotent_call_is_run_again_under_its_key(tool: str) -> None:
    session = at_calls(tool)
    before = session.pending
    assert names(session.crash()) == ["RunResumed"]
    assert session.pending == before


@pytest.mark.parametrize("tool", ["write", "fetch"])
def test_a_once_call_is_answered_in_these_words_and_not_run_again(tool: str) -> None:
    session = at_calls(tool)
    assert names(session.crash()) == ["RunResumed", "ToolCallFailed", "ModelRequested"]
    assert results(session) == [("crashed", CRASHED)]


@pytest.mark.parametrize("tool", ["look", "put"])
def test_a_call_whose_tool_is_gone_is_answered(tool: str) -> None:
    session = at_calls(tool)
    session.crash(tools=["write"])
    assert results(session) == [("crashed", CRASHED)]


def test_each_call_of_a_mixed_turn_follows_its_effect_class() -> None:
    session = at_calls("look", "fetch", "look", "write")
    session.result(session.calls[2], "seen")
    assert names(session.crash()) == ["RunResumed", "ToolCallFailed"]
    assert session.pending_keys == ["tool:call_6_0"]
    session.result(session.calls[0])
    assert session.pending_keys == ["tool:call_6_3"]
    session.result(session.calls[3])
    assert results(session) == [(None, "done"), ("crashed", CRASHED), (None, "seen"), (None, "done")]


def test_a_call_that_had_not_started_simply_starts() -> None:
    session = at_calls("write", "write")
    assert names(session.crash()) == ["RunResumed", "ToolCallFailed", "ToolCallStarted"]
    assert session.pending_keys == ["tool:call_6_1"]


def test_a_once_call_that_a_person_approved_goes_back_to_the_person() -> None:
    session = at_calls("pay")
    call = session.calls[0]
    session.decide(call, True)
    requested = session.crash()[1]
    assert isinstance(requested, ToolApprovalRequested)
    assert requested.reason == CRASHED
    assert session.pending_keys == ["approval:11"]
    (asking,) = session.pending
    assert getattr(asking, "reason", None) == CRASHED
    assert names(session.decide(call, True)) == ["ToolApprovalDecided", "ToolCallStarted"]


def test_an_approved_idempotent_call_is_run_again_without_asking() -> None:
    session = at_calls("sign")
    session.decide(session.calls[0], True)
    assert names(session.crash()) == ["RunResumed"]
    assert session.pending_keys == ["tool:call_6_0"]


def test_a_second_run_that_a_person_denies_is_not_told_as_a_call_that_never_ran() -> None:
    session = at_calls("pay")
    call = session.calls[0]
    session.decide(call, True)
    session.crash()
    session.decide(call, False, "enough")
    assert results(session) == [("crashed", CRASHED)]


def test_a_cancel_while_the_person_thinks_about_a_second_run_says_that_the_body_had_started() -> None:
    session = at_calls("pay")
    session.decide(session.calls[0], True)
    session.crash()
    failed = session.cancel()[1]
    assert isinstance(failed, ToolCallFailed)
    assert failed.started
    assert results(session) == [("cancelled", CANCELLED)]


def test_a_result_of_the_first_run_counts_even_while_a_person_thinks_about_the_second() -> None:
    session = at_calls("pay")
    call = session.calls[0]
    session.decide(call, True)
    session.crash()
    assert names(session.result(call, "paid")) == ["ToolCallCompleted", "ModelRequested"]


def test_while_a_person_thinks_about_one_call_the_others_are_run_again() -> None:
    session = at_calls("fetch", "look", verdicts=[ASK, ALLOW])
    session.decide(session.calls[0], True)
    assert names(session.crash()) == ["RunResumed", "ToolApprovalRequested"]
    assert session.pending_keys == ["tool:call_6_1", "approval:12"]


def test_the_crash_words_never_appear_after_a_mere_cancel_nor_the_cancel_words_after_a_mere_crash() -> None:
    cancelled, crashed = at_calls("write", "look"), at_calls("write", "look")
    cancelled.cancel()
    crashed.crash()
    crashed.result(crashed.calls[1])
    assert not any("crash" in text for _, text in results(cancelled))
    assert not any("Cancelled" in text for _, text in results(crashed))


def test_a_run_that_is_lost_again_and_again_without_progress_is_parked() -> None:
    session = at_calls("look")
    for _ in range(3):
        assert names(session.crash()) == ["RunResumed"]
    events = session.crash()
    assert names(events) == ["RunResumed", "RunParked"]
    assert events[1] == RunParked(
        run=RunId("run_3"), reason="resumed 3 times without progress; resume or cancel it", at=events[1].at
    )
    assert [effect.key for effect in session.pending] == ["resume:run_3"]
    assert session.crash() == []


def test_progress_begins_the_count_of_resumes_anew() -> None:
    session = at_calls("look", "look")
    for _ in range(3):
        session.crash()
    session.result(session.calls[0])
    assert names(session.crash()) == ["RunResumed"]


def test_an_answer_is_progress(session: Session) -> None:
    session.send()
    for _ in range(3):
        session.crash()
    session.answer(use("look"))
    assert names(session.crash()) == ["RunResumed"]


def test_waiting_for_a_person_over_many_restarts_parks_nothing() -> None:
    session = at_calls("pay")
    for _ in range(10):
        assert names(session.crash()) == ["RunResumed"]
    assert names(session.decide(session.calls[0], True)) == ["ToolApprovalDecided", "ToolCallStarted"]


def test_somebody_may_resume_a_parked_run() -> None:
    session = parked("look")
    assert names(session.crash(asked=True)) == ["RunResumed"]
    assert session.pending_keys == ["tool:call_6_0"]


def test_a_parked_once_call_is_answered_when_somebody_resumes_its_run() -> None:
    session = parked("look", "fetch")
    assert names(session.crash(asked=True)) == ["RunResumed", "ToolCallFailed"]


def test_somebody_may_cancel_a_parked_run() -> None:
    session = parked("look", "fetch")
    assert names(session.cancel()) == ["CancelRequested", "ToolCallFailed", "ToolCallFailed", "RunCancelled"]
    assert results(session) == [("cancelled", CANCELLED), ("cancelled", CANCELLED)]


def test_a_parked_run_whose_calls_are_answered_meanwhile_goes_on_when_resumed() -> None:
    session = parked("look")
    assert names(session.result(session.calls[0])) == ["ToolCallCompleted"]
    assert names(session.crash(asked=True)) == ["RunResumed", "ModelRequested"]


def test_a_parked_run_whose_last_call_is_denied_meanwhile_goes_on_when_resumed() -> None:
    session = at_calls("look", "pay", config=AgentConfig(model="test-model", resumes_max=0))
    session.crash()
    session.decide(session.calls[1], False)
    session.result(session.calls[0])
    assert [effect.key for effect in session.pending] == ["resume:run_3"]
    assert names(session.crash(asked=True)) == ["RunResumed", "ModelRequested"]


def test_inputs_behind_a_parked_run_wait() -> None:
    session = parked("look")
    assert names(session.send("second")) == ["InputQueued"]
    assert names(session.cancel())[-2:] == ["RunStarted", "ModelRequested"]


def test_a_tool_that_came_back_is_run_again_although_an_earlier_process_did_not_have_it() -> None:
    session = parked("put")
    session.crash(tools=(), asked=False)
    assert names(session.crash(tools=TOOL_NAMES, asked=True)) == ["RunResumed"]
    assert session.pending_keys == ["tool:call_6_0"]


def parked(*tools: str) -> Session:
    session = at_calls(*tools, config=AgentConfig(model="test-model", resumes_max=0))
    assert names(session.crash(tools=())) == ["RunResumed", "RunParked"]
    return session


# Import


def test_open_calls_of_an_imported_history_are_answered_in_these_words_and_never_run(session: Session) -> None:
    events = session.tell(
        ImportHistory(
            messages=(Message("user", (say("Hi"),)), Message("assistant", (use("look", "t1"), use("write", "t2"))))
        )
    )
    assert names(events) == ["HistoryImported", "ToolCallFailed", "ToolCallFailed"]
    assert results(session) == [("crashed", CRASHED_IMPORT), ("crashed", CRASHED_IMPORT)]
    assert session.pending == []


def test_a_run_after_the_import_of_an_orphaned_call_is_balanced(session: Session) -> None:
    session.tell(ImportHistory(messages=(Message("user", (say("Hi"),)), Message("assistant", (use("look", "t1"),)))))
    assert names(session.send("go on")) == ["InputQueued", "RunStarted", "ModelRequested"]
    session.answer(say("Fine."))
    assert [message.role for message in session.history] == ["user", "assistant", "user", "user", "assistant"]


# What react is


def test_react_changes_no_state_and_gives_the_same_twice() -> None:
    session = at_calls("look", "pay", "write", verdicts=[DENY, ALLOW, ALLOW])
    for event in session.log:
        before = encoded(session.state)
        assert react(session.state, event) == react(session.state, event)
        assert encoded(session.state) == before


def test_everything_that_follows_is_in_the_batch_so_nothing_more_follows_from_its_last_event() -> None:
    session = at_calls("look", "pay", "write")
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
