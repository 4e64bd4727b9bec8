"""A summary stands only where it may, and the session takes it once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events import AgentConfig, CommandRejected, Recorded
from refold.events.core.content import ImageBlock, Message, ProviderBlock, ThinkingBlock, tool_uses
from refold.events.model.context_window import (
    Context,
    message_tokens,
    summary_fault,
    summary_messages,
    summary_plan,
    transcript_text,
)
from refold.events.model.spending import Budget, Usage
from refold.events.session.commands import CancelRun, RecordContext, RecordToolResult
from refold.events.session.events import ToolResultLate
from refold.events.session.invariants import check_history
from tests.events.conftest import Session, configuration, names, say, use
from tests.events.histories import answered, called, histories, said


@pytest.mark.in_full
@given(histories(), st.integers(4, 120), st.integers(1, 60))
def test_whatever_is_planned_leaves_a_history_that_providers_accept_with_all_that_is_unanswered(
    drawn: tuple[list[Message], int], max_tokens: int, keep_tokens: int
) -> None:
    messages, latest = drawn
    context = Context(system_prompt="", messages=messages, latest_input=latest)
    plan = summary_plan(context, max_tokens, keep_tokens, message_tokens)
    total = sum(map(message_tokens, messages))
    if plan is None:
        return
    assert total > max_tokens
    summary = summary_messages("In short.", messages[latest] if plan.keeps_input else None)
    assert summary_fault(messages, latest, plan.replaced, summary) is None
    after = [*summary, *messages[plan.replaced :]]
    assert check_history(after) == []
    assert messages[latest] in after
    last = next((place for place in range(len(messages) - 1, -1, -1) if messages[place].role == "assistant"), -1)
    assert messages[last + 1 :] == after[len(after) - len(messages[last + 1 :]) :]
    assert plan.tokens >= max(1, max_tokens // 4)


def test_there_is_nothing_to_plan_where_there_is_room_or_too_little_to_gain() -> None:
    messages = [said("user", "x" * 40), said("assistant", "y" * 40), said("user", "z" * 400)]
    context = Context(system_prompt="", messages=messages, latest_input=2)
    assert summary_plan(context, 120, 60, message_tokens) is None
    assert summary_plan(context, 100, 50, message_tokens) is None
    wanted = summary_plan(context, 60, 30, message_tokens)
    assert wanted is not None
    assert (wanted.replaced, wanted.tokens, wanted.keeps_input) == (2, 20, False)
    assert summary_plan(Context(system_prompt="x" * 400, messages=messages), 60, 30, message_tokens) is None


def test_a_plan_takes_no_more_than_one_request_can_hold() -> None:
    messages = [message for _ in range(10) for message in (said("user", "x" * 40), said("assistant", "y" * 40))]
    messages.append(said("user", "go on"))
    plan = summary_plan(Context(system_prompt="", messages=messages, latest_input=20), 100, 10, message_tokens)
    assert plan is not None
    assert plan.tokens <= 100


def test_a_transcript_reads_like_a_conversation() -> None:
    messages = [
        said("user", "Look.", ImageBlock(media_type="image/png", data=b"x")),
        said(
            "assistant", ThinkingBlock(thinking="hm"), "I look.", ProviderBlock(provider="p", data={"type": "search"})
        ),
        called("call_1_0", "call_1_1"),
        answered("call_1_0", "call_1_1", text="seen"),
    ]
    assert transcript_text(messages).split("\n\n") == [
        "User: Look.",
        "User: [image/png]",
        "Agent: I look.",
        "Agent: [search of p]",
        "Agent calls look({})",
        "Agent calls look({})",
        "Result of look: seen",
        "Result of look: seen",
    ]


SEARCH = ProviderBlock(provider="p", data={"type": "search"})


def summary_of(session: Session, replaced: int = 1, **other: Any) -> RecordContext:
    run = session.state.run
    assert run is not None
    kept = session.state.messages[run.latest_input] if run.latest_input < replaced else None
    settings: dict[str, Any] = {
        "run": run.id,
        "turn": run.turns,
        "asked": run.asked,
        "after": session.state.summarised,
        "replaced": replaced,
        "summary": summary_messages("In short.", kept),
        "usage": Usage(input_tokens=7),
    }
    return RecordContext(**{**settings, **other})


@pytest.fixture
def session() -> Session:
    """A session whose second run has got its result, and waits for the model again."""
    made = Session(configuration(AgentConfig(model="m", budget=Budget(tokens=1_000))))
    made.send("First")
    made.answer(say("Hi"))
    made.send("Second")
    made.answer(use("look"))
    made.tell(RecordToolResult(call=made.calls[0], content=(say("seen"),)))
    return made


def test_a_summary_is_recorded_alone_and_the_model_call_goes_on(session: Session) -> None:
    before = session.pending_keys
    assert names(session.tell(summary_of(session, 2))) == ["ContextPrepared"]
    assert session.pending_keys == before
    assert session.texts == ["user: Summary of the conversation so far:\n\nIn short.", "user: Second"]
    assert session.state.run is not None
    assert session.state.run.latest_input == 1
    assert session.state.usage.input_tokens == 7 + 20


def test_the_latest_input_stays_where_it_was_said_before_the_cut(session: Session) -> None:
    session.tell(summary_of(session, 3))
    assert session.state.run is not None
    assert session.state.run.latest_input == 1
    assert session.texts[1] == "user: Second"
    session.tell(summary_of(session, 2))
    assert session.state.run.latest_input == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"replaced": 0}, "0 of 5 messages"),
        ({"replaced": 6}, "6 of 5 messages"),
        ({"replaced": 4}, "did not call"),
        ({"replaced": 3, "summary": summary_messages("In short.", None)}, "leaves out the latest input"),
        ({"summary": ()}, "the first one and not a user's"),
        ({"summary": (said("assistant", "I sum up."),)}, "the first one and not a user's"),
        ({"summary": (said("user", " "),)}, "blank"),
    ],
    ids=str,
)
def test_a_summary_that_may_not_stand_there_is_refused(session: Session, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(CommandRejected, match=words):
        session.tell(summary_of(session, **wrong))


def test_case_j12_a_summary_of_an_older_history_changes_nothing(session: Session) -> None:
    first = summary_of(session, 2)
    session.tell(first)
    assert session.tell_or_recorded(first) == Recorded(session.state.summarised)


def test_a_summary_that_comes_too_late_is_evidence_of_what_was_paid(session: Session) -> None:
    late = summary_of(session, 2)
    session.tell(CancelRun())
    assert names(session.tell(late)) == ["ModelInterrupted"]
    assert len(session.history) == 5
    again = Session(configuration())
    again.send()
    again.send("Behind")
    stale = summary_of(again, 1)
    again.answer(say("Hi"))
    assert names(again.tell(stale)) == ["ModelInterrupted"]


def test_a_summary_that_spends_the_budget_ends_the_run(session: Session) -> None:
    batch = session.tell(summary_of(session, 2, usage=Usage(output_tokens=1_000)))
    assert names(batch) == ["ContextPrepared", "RunFailed"]
    assert session.pending_keys == []


def test_a_late_result_of_a_call_that_was_summarised_is_still_known(session: Session) -> None:
    (call,) = [use.id for message in session.history for use in tool_uses(message.content)]
    session.tell(summary_of(session, 5, summary=(said("user", "All."), session.state.messages[2])))
    (late,) = session.tell(RecordToolResult(call=call, content=(say("seen twice"),)))
    assert isinstance(late, ToolResultLate)


@pytest.mark.parametrize("room", [1, 7, 31, 32, 900])
def test_what_is_too_long_for_a_summary_is_halved_until_there_is_none(room: int) -> None:
    """Also where there is so little room that a summary of half of it would be made of nothing."""
    messages = [said("user", "x" * 8_000), said("assistant", "y" * 8_000), said("user", "z" * 8_000)]
    sizes, too_long = list[int](), 0
    while len(sizes) < 40:
        context = Context(system_prompt="", messages=messages, latest_input=2, unsummarised=too_long)
        plan = summary_plan(context, room, room // 2, message_tokens)
        if plan is None:
            break
        sizes.append(too_long := plan.size)
    assert sizes == sorted(set(sizes), reverse=True)
    assert len(sizes) <= 13
