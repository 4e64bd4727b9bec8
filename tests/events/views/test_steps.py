"""Thoughts, actions and observations as a view of a session's events, and what a session comes to as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.content import AnswerContent, ImageBlock, ProviderBlock, ResultContent, ThinkingBlock
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.model.configuration import CodeIdentity
from refold.events.model.messages import RequestReference, Usage
from refold.events.model.payloads import spill
from refold.events.session import events as ev
from refold.events.views.statistics import SessionStatistics, statistics_of
from refold.events.views.steps import Step, Steps, steps_of, stored_texts
from tests.events.run_events import GOLDEN, RUN, SECOND, answered, call, failed, returned, sessions_of, text

TOKENS = Usage(input_tokens=10, output_tokens=1)


def started(at: int = 0) -> ev.RunStarted:
    return ev.RunStarted(run=RUN, input=1, code=CodeIdentity(refold="0.1.0", core=1), fingerprint="f", at=at * SECOND)


def wanted(turn: int = 1, at: int = 0) -> ev.ModelRequested:
    return ev.ModelRequested(run=RUN, turn=turn, at=at * SECOND)


def test_what_is_said_beside_calls_is_thought_and_what_is_said_without_is_the_answer() -> None:
    first, last = steps_of(
        [
            wanted(at=1),
            answered(ThinkingBlock(thinking="Hm."), text("Let me look."), call("look", city="Faro"), at=3),
            returned("rain", at=7),
            wanted(turn=2, at=7),
            answered(ThinkingBlock(thinking="Easy."), text("It "), text("rains."), turn=2, at=8),
        ]
    )
    assert (first.thought, first.answer, first.turn, first.run) == ("Hm.\nLet me look.", "", 1, RUN)
    [action] = first.actions
    assert (action.text, action.tool, action.observation, action.kind) == ('look {"city":"Faro"}', "look", "rain", None)
    assert (first.observations, first.failed) == (("rain",), False)
    assert (first.started_at, first.answered_at, first.ended_at, first.duration_s) == (
        SECOND,
        3 * SECOND,
        7 * SECOND,
        6,
    )
    assert (last.thought, last.answer, last.actions, last.turn, last.duration_s) == ("Easy.", "It rains.", (), 2, 1)


def test_results_find_their_calls_in_whatever_order_they_come() -> None:
    events: list[ev.SessionEvent] = [
        answered(call("a"), call("b", 1), call("c", 2)),
        failed("timeout", "slow", 2, at=9),
        returned("A", 0, at=2),
    ]
    [step] = steps_of(events)
    assert [(action.tool, action.observation, action.kind) for action in step.actions] == [
        ("a", "A", None),
        ("b", None, None),
        ("c", "slow", "timeout"),
    ]
    assert (step.observations, step.failed, step.ended_at, step.duration_s) == (("A", "slow"), True, None, None)
    [ended] = steps_of([*events, returned("B", 1, at=5)])
    assert ended.ended_at == 9 * SECOND


def test_an_answer_that_cannot_be_used_is_a_failed_step() -> None:
    [step] = steps_of([answered(text("What?"), rejected="no JSON")])
    assert (step.failed, step.rejected, step.answer) == (True, "no JSON", "What?")


def test_calls_that_brought_no_answer_and_results_of_nobodys_calls_are_no_steps() -> None:
    late = ev.ToolResultLate(call=ToolCallId("call_6_0"), content=(text("late"),))
    error = ev.ModelFailed(run=RUN, turn=1, kind="server", message="down")
    half = ev.ModelInterrupted(turn=1, content=(text("Half"),), usage=Usage(output_tokens=3))
    assert steps_of([wanted(), error, half, failed("crashed", "gone"), late]) == ()


def test_a_call_that_is_tried_again_began_when_it_was_first_wanted() -> None:
    error = ev.ModelFailed(run=RUN, turn=1, kind="server", message="down", retryable=True)
    [step] = steps_of([wanted(at=1), error, answered(text("Hi."), at=30)])
    assert step.duration_s == 29


def test_large_texts_are_found_in_the_payloads_or_shown_by_their_size() -> None:
    said: tuple[AnswerContent, ...] = (ThinkingBlock(thinking="t" * 70_000), call("look"))
    seen: tuple[ResultContent, ...] = (text("r" * 70_000), ImageBlock(media_type="image/png", data=b"x" * 70_000))
    (content, payloads), (result, more) = spill(said), spill(seen)
    events: list[ev.SessionEvent] = [
        answered(*content),
        ev.ToolCallCompleted(call=ToolCallId("call_6_0"), content=result),
    ]
    known: dict[PayloadHash, bytes] = {**payloads, **more}
    names = stored_texts(events)
    assert len(names) == 2
    assert len(known) == 3, "the image is not asked for"
    [step] = steps_of(events, {name: known[name] for name in names})
    assert (step.thought, step.observations) == ("t" * 70_000, ("r" * 70_000,))
    [blind] = steps_of(events)
    assert blind.thought.startswith("(70,0")
    assert "bytes in payload" in blind.observations[0]


def test_what_only_a_provider_understands_says_nothing() -> None:
    [step] = steps_of([answered(ProviderBlock(provider="p", data={"x": 1}), text("Hi."))])
    assert (step.thought, step.answer) == ("", "Hi.")


# A session as a whole


WHOLE: list[ev.SessionEvent] = [
    ev.InputQueued(content=(text("Go"),)),
    started(at=1),
    wanted(at=1),
    answered(text("Look first."), call("look", city="Faro"), call("pay", 1), at=2, usage=TOKENS),
    returned("rain", at=3),
    failed("denied", "no", 1, at=5),
    wanted(turn=2, at=5),
    ev.ModelInterrupted(turn=2, usage=Usage(output_tokens=7)),
    answered(text("It rains."), turn=2, at=6, usage=TOKENS),
    ev.RunCompleted(run=RUN, at=6 * SECOND),
    ev.InputQueued(content=(text("Again"),), at=100 * SECOND),
    started(at=100),
    wanted(at=100),
    answered(text("Well."), at=104, usage=TOKENS),
]


def test_a_session_as_a_whole() -> None:
    found = statistics_of(WHOLE)
    assert (found.version, found.inputs, found.runs_started, found.runs_completed) == (14, 2, 2, 1)
    assert found.thoughts == ["Look first."]
    assert found.actions == ['look {"city":"Faro"}', "pay {}"]
    assert found.observations == ["rain", "no"]
    assert found.observations.total_bytes == 6
    assert [action.tool for action in found.failed_tool_calls] == ["pay"]
    assert [action.tool for action in found.tool_calls] == ["look", "pay"]
    assert [step.answer for step in found.successful_steps] == ["It rains.", "Well."]
    assert found.first_step == found.steps[0]
    assert found.last_step == found.steps[-1]
    assert len(found.steps) == 3
    assert found.final_answer == "It rains.", "the run that is open has not answered"
    assert found.duration_s == 5 + 4
    assert found.usage == Usage(input_tokens=30, output_tokens=3 + 7)
    assert (found.memory_hits, found.append_errors) == (0, None)


def test_memories_that_entered_requests_are_hits() -> None:
    request = RequestReference(configured=2, messages=1, recalled=("m1", "m2"))
    answer = answered(request=request)
    assert statistics_of([answer, answered(), answer]).memory_hits == 4


def test_a_tool_that_ends_the_run_gives_the_answer_and_the_first_of_two_counts() -> None:
    run: list[ev.SessionEvent] = [
        started(),
        wanted(),
        answered(call("a"), call("b", 1)),
        returned("A", ends_run=True),
        returned("B", 1, ends_run=True),
    ]
    assert statistics_of([*run, ev.RunCompleted(run=RUN)]).final_answer == "A"
    assert statistics_of([*run, ev.RunFailed(run=RUN, kind="budget", message="")]).final_answer is None
    again: list[ev.SessionEvent] = [started(), wanted(), answered(text("Later.")), ev.RunCompleted(run=RUN)]
    assert statistics_of([*run, ev.RunCancelled(run=RUN), *again]).final_answer == "Later."


def test_a_session_in_which_nothing_has_happened() -> None:
    found = statistics_of([])
    assert (found.version, found.steps, found.final_answer, found.duration_s) == (0, (), None, 0.0)
    assert found.first_step is found.last_step is None
    assert found.thoughts == found.actions == found.observations == []


SESSIONS = [events for golden in GOLDEN for events in sessions_of(golden).values()]


@given(st.sampled_from(SESSIONS), st.data())
def test_steps_of_any_prefix_are_those_of_the_whole_less_what_came_later(
    events: list[ev.SessionEvent], data: st.DataObject
) -> None:
    split = data.draw(st.integers(0, len(events)))
    steps = Steps()
    for event in events[:split]:
        steps.add(event)
    early, whole = steps.steps, steps_of(events)
    assert early == steps_of(events[:split])
    assert [(step.run, step.turn, step.thought, step.answer) for step in early] == [
        (step.run, step.turn, step.thought, step.answer) for step in whole[: len(early)]
    ]
    for now, later in zip(early, whole, strict=False):
        assert [action.tool for action in now.actions] == [action.tool for action in later.actions]
        seen = [(action, then) for action, then in zip(now.actions, later.actions, strict=True) if action.ended_at]
        assert all(action == then for action, then in seen)


@pytest.mark.parametrize("events", SESSIONS, ids=lambda events: f"{len(events)} events")
def test_the_figures_of_golden_sessions_are_those_of_an_independent_count(events: list[ev.SessionEvent]) -> None:
    found: SessionStatistics = statistics_of(events)
    kinds = [type(event) for event in events]
    assert len(found.steps) == kinds.count(ev.ModelResponded)
    assert len(found.tool_calls) <= kinds.count(ev.ToolCallCompleted) + kinds.count(ev.ToolCallFailed)
    answered_calls = [action for action in found.tool_calls if action.ended_at]
    assert len(answered_calls) == len(found.tool_calls), "every golden run has ended"
    assert len(found.failed_tool_calls) <= kinds.count(ev.ToolCallFailed)
    ended = [kinds.count(end) for end in (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)]
    assert [found.runs_completed, found.runs_failed, found.runs_cancelled] == ended
    assert found.duration_s >= 0
    steps: list[Step] = [*found.successful_steps, *(step for step in found.steps if step.failed)]
    assert len(steps) == len(found.steps)
