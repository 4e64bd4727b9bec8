"""Calls that end the run, and calls whose carrying out breaks."""

import pytest

from refold.events.core.content import CRASHED_TEXT, ImageBlock, ToolResultBlock
from refold.events.core.ids import ToolCallId
from refold.events.model.configuration import AgentConfig
from refold.events.session.commands import RecordToolResult
from refold.events.session.events import RunFailed, ToolCallCompleted, Verdict
from refold.events.session.react import CALLS_RUNNING_MAX
from refold.events.session.state import FinishedRun
from tests.events.conftest import ALLOW, BROKEN, Session, configuration, names, say, use

ENDED = "The run was ended by another call of the same answer, so this one was not run."
RETRY = AgentConfig(model="test-model", error_recovery="retry", recoveries_max=1)


def at_calls(*tools: str, config: AgentConfig | None = None, verdicts: list[Verdict] | None = None) -> Session:
    session = Session(configuration(config))
    session.send()
    session.answer(*(use(tool) for tool in tools), verdicts=verdicts)
    return session


def results(session: Session) -> list[tuple[str | None, str]]:
    """Return kind and text of each result in the last message that holds results."""
    message = [
        message for message in session.history if any(type(block) is ToolResultBlock for block in message.content)
    ]
    return [(block.kind, block.text) for block in message[-1].content if isinstance(block, ToolResultBlock)]


def last_run(session: Session) -> FinishedRun:
    assert session.state.last_run is not None
    return session.state.last_run


def finish(session: Session, call: ToolCallId, text: str = "42") -> list[str]:
    return names(session.result(call, text, ends_run=True))


# Ending the run


def test_a_tool_may_end_the_run_with_its_result_as_the_answer() -> None:
    session = at_calls("write")
    assert finish(session, session.calls[0]) == ["ToolCallCompleted", "RunCompleted"]
    last = last_run(session)
    assert (last.outcome, last.final, last.stop_reason, last.turns) == ("completed", (say("42"),), "end_turn", 1)
    assert results(session) == [(None, "42")]


def test_a_run_that_a_tool_has_ended_lets_what_runs_return_and_starts_nothing_more() -> None:
    session = at_calls("look", "look", "write", "pay")
    first, second, *_ = session.calls
    assert finish(session, first) == ["ToolCallCompleted", "ToolCallFailed", "ToolCallFailed"]
    assert session.pending_keys == [f"tool:{second}"]
    assert names(session.result(second, "seen")) == ["ToolCallCompleted", "RunCompleted"]
    assert results(session) == [(None, "42"), (None, "seen"), ("denied", ENDED), ("denied", ENDED)]
    assert last_run(session).final == (say("42"),)


def test_a_run_that_a_tool_has_ended_asks_nobody_any_more() -> None:
    session = at_calls("pay", "look", verdicts=[ALLOW, ALLOW])
    session.decide(session.calls[0], True)
    finish(session, session.calls[0])
    session = at_calls("look", "sign")
    assert session.pending_keys == ["tool:call_6_0", "approval:7"]
    assert finish(session, session.calls[0]) == ["ToolCallCompleted", "ToolCallFailed", "RunCompleted"]
    assert session.pending == []


def test_the_first_call_that_ends_the_run_gives_the_answer() -> None:
    session = at_calls("look", "look")
    finish(session, session.calls[1], "second")
    assert finish(session, session.calls[0], "first") == ["ToolCallCompleted", "RunCompleted"]
    assert last_run(session).final == (say("second"),)


def test_the_calls_that_wait_for_their_place_among_many_do_not_start() -> None:
    session = at_calls(*["look"] * (CALLS_RUNNING_MAX + 5))
    events = finish(session, session.calls[3])
    assert events == ["ToolCallCompleted", *["ToolCallFailed"] * 5]
    assert len(session.pending) == CALLS_RUNNING_MAX - 1


def test_a_tool_that_fails_cannot_end_the_run() -> None:
    session = at_calls("write")
    assert names(session.result(session.calls[0], "no", kind="permanent", ends_run=True)) == [
        "ToolCallFailed",
        "ModelRequested",
    ]


def test_a_late_result_cannot_end_the_run() -> None:
    session = at_calls("look", "write")
    call = session.calls[0]
    session.result(call)
    assert finish(session, call) == ["ToolResultLate"]
    assert session.state.run is not None
    assert not session.state.run.finishing


def test_an_input_for_now_cannot_keep_a_run_going_that_a_tool_has_ended_and_has_one_of_its_own() -> None:
    session = at_calls("look", "look")
    session.send("hurry", now=True)
    finish(session, session.calls[0])
    session.send("and this", now=True)
    expected = ["ToolCallCompleted", "RunCompleted", "RunStarted", "ModelRequested"]
    assert names(session.result(session.calls[1])) == expected
    assert session.texts[-2:] == ["user: hurry", "user: and this"]


def test_a_stepwise_run_that_a_tool_has_ended_needs_no_allowance() -> None:
    session = Session(configuration())
    session.send(stepwise=True)
    session.answer(use("write"))
    assert finish(session, session.calls[0]) == ["ToolCallCompleted", "RunCompleted"]


def test_a_run_that_a_tool_has_ended_can_still_be_cancelled() -> None:
    session = at_calls("look", "look")
    finish(session, session.calls[0])
    assert names(session.cancel()) == ["CancelRequested", "ToolCallFailed", "RunCancelled"]
    assert last_run(session).final == ()


def test_after_a_crash_what_ran_runs_again_where_it_may_and_the_run_completes() -> None:
    session = at_calls("look", "fetch", "look")
    first, _, last = session.calls
    finish(session, first)
    assert names(session.crash()) == ["RunResumed", "ToolCallFailed"]
    assert session.pending_keys == [f"tool:{last}"]
    assert names(session.result(last)) == ["ToolCallCompleted", "RunCompleted"]
    assert results(session)[1] == ("crashed", CRASHED_TEXT)


def test_an_approved_call_that_a_crash_interrupts_is_put_to_nobody_where_a_tool_has_ended_the_run() -> None:
    ask = Verdict(verdict="ask")
    session = at_calls("fetch", "look", verdicts=[ask, ALLOW])
    asked, look = session.calls
    session.decide(asked, True)
    finish(session, look)
    assert names(session.crash()) == ["RunResumed", "ToolCallFailed", "RunCompleted"]
    assert results(session)[0] == ("crashed", CRASHED_TEXT)


def test_a_parked_run_that_a_tool_ends_completes_when_somebody_resumes_it() -> None:
    session = at_calls("look", "pay", config=AgentConfig(model="test-model", resumes_max=0))
    session.crash()
    assert finish(session, session.calls[0]) == ["ToolCallCompleted"]
    session.decide(session.calls[1], True)
    assert names(session.crash(asked=True)) == ["RunResumed", "ToolCallFailed", "RunCompleted"]
    assert results(session) == [(None, "42"), ("denied", ENDED)]


def test_the_next_input_runs_on_a_history_that_providers_accept() -> None:
    session = at_calls("look", "write")
    session.send("next")
    assert finish(session, session.calls[0])[-3:] == ["RunCompleted", "RunStarted", "ModelRequested"]
    assert [message.role for message in session.history] == ["user", "assistant", "user", "user"]


def test_an_ending_without_text_is_an_answer_without_text() -> None:
    session = at_calls("write")
    image = ImageBlock(media_type="image/png", data=b"png")
    events = session.tell(RecordToolResult(call=session.calls[0], content=(image,), ends_run=True))
    assert isinstance(events[0], ToolCallCompleted)
    assert last_run(session).final == ()


# Breakage


def test_by_default_a_verdict_that_could_not_be_found_fails_the_run() -> None:
    session = Session(configuration())
    session.send()
    events = session.answer(use("look"), use("write"), verdicts=[ALLOW, BROKEN])
    assert names(events) == ["ModelResponded", "ToolCallFailed", "ToolCallFailed", "RunFailed"]
    assert isinstance(events[-1], RunFailed)
    assert (events[-1].kind, events[-1].message) == ("tool_execution", "the policy raised ValueError")
    assert results(session) == [("denied", "the policy raised ValueError")] * 2


def test_by_default_a_call_that_could_not_be_carried_out_fails_the_run_and_closes_the_others() -> None:
    session = at_calls("look", "look", "write")
    events = session.result(session.calls[0], "the runner broke", kind="permanent", broken=True)
    assert names(events) == ["ToolCallFailed", "ToolCallFailed", "ToolCallFailed", "RunFailed"]
    assert results(session) == [
        ("permanent", "the runner broke"),
        ("crashed", "the runner broke"),
        ("denied", "the runner broke"),
    ]


@pytest.mark.parametrize("reason", ["", " \n"])
def test_a_breakage_that_says_nothing_leaves_a_history_that_providers_accept(reason: str) -> None:
    session = Session(configuration())
    session.send()
    session.answer(use("look"), verdicts=[Verdict(verdict="broken", reason=reason)])
    assert results(session) == [("denied", "The run failed before the call was answered.")]
    session.send()
    session.answer(use("look"), use("look"))
    image = ImageBlock(media_type="image/png", data=b"png")
    session.tell(RecordToolResult(call=session.calls[0], content=(image,), kind="permanent", broken=True))
    assert results(session)[1] == ("crashed", "The run failed before the call was answered.")


def test_with_recovery_the_model_is_told_and_the_other_calls_run() -> None:
    session = at_calls("look", "write", config=RETRY, verdicts=[BROKEN, ALLOW])
    assert session.pending_keys == ["tool:call_6_1"]
    assert names(session.result(session.calls[1])) == ["ToolCallCompleted", "ModelRequested"]
    text = "The call could not be carried out, so it was not run. Try again with fewer or simpler calls."
    assert results(session) == [("denied", text), (None, "done")]


def test_with_recovery_the_run_fails_when_it_breaks_too_often_in_a_row() -> None:
    session = at_calls("look", config=RETRY, verdicts=[BROKEN])
    events = session.answer(use("look"), verdicts=[BROKEN])
    assert names(events) == ["ModelResponded", "ToolCallFailed", "RunFailed"]
    assert getattr(events[-1], "kind", None) == "tool_execution"


def test_two_breakages_in_one_turn_count_once() -> None:
    session = at_calls("look", "look", "look", config=RETRY, verdicts=[BROKEN, BROKEN, ALLOW])
    assert names(session.result(session.calls[2], "broke", kind="permanent", broken=True)) == [
        "ToolCallFailed",
        "ModelRequested",
    ]
    assert session.state.run is not None
    assert session.state.run.breakages == 1


def test_a_turn_that_goes_well_begins_the_count_anew() -> None:
    session = at_calls("look", config=RETRY, verdicts=[BROKEN])
    session.answer(use("look"))
    session.result(session.calls[0])
    assert names(session.answer(use("look"), verdicts=[BROKEN])) == [
        "ModelResponded",
        "ToolCallFailed",
        "ModelRequested",
    ]


def test_no_recovery_at_all_is_like_stopping() -> None:
    config = AgentConfig(model="test-model", error_recovery="retry", recoveries_max=0)
    session = at_calls("look", config=config, verdicts=[BROKEN])
    assert names(session.log)[-1] == "RunFailed"


def test_a_breakage_in_an_answer_that_was_cut_does_not_count_since_no_call_of_it_runs() -> None:
    session = Session(configuration())
    session.send()
    events = session.answer(use("look"), verdicts=[BROKEN], stop_reason="max_tokens")
    assert names(events) == ["ModelResponded", "ToolCallFailed", "ModelRequested"]


def test_a_breakage_while_a_tool_has_ended_the_run_is_told_and_the_run_completes_where_it_recovers() -> None:
    session = at_calls("look", "look", config=RETRY)
    finish(session, session.calls[0])
    assert names(session.result(session.calls[1], "broke", kind="permanent", broken=True)) == [
        "ToolCallFailed",
        "RunCompleted",
    ]


def test_a_breakage_of_a_parked_run_fails_it() -> None:
    session = at_calls("look", config=AgentConfig(model="test-model", resumes_max=0))
    session.crash()
    events = session.result(session.calls[0], "broke", kind="permanent", broken=True)
    assert names(events) == ["ToolCallFailed", "RunFailed"]
