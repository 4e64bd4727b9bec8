"""What is shown of a ReAct answer while it arrives."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.model.messages import TextDelta, ThinkingDelta
from refold.react.stream import StepPieces


def shown(pieces: list[str]) -> tuple[str, str]:
    """Return the thinking and the text that are shown of an answer that comes in pieces."""
    step = StepPieces()
    deltas = [delta for piece in pieces for delta in step.add(piece)] + step.rest()
    thinking = "".join(delta.thinking for delta in deltas if isinstance(delta, ThinkingDelta))
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    assert all(delta != ThinkingDelta("") and delta != TextDelta("") for delta in deltas)
    return thinking, text


ANSWERS: dict[str, tuple[str, str, str]] = {
    "an action": ('Thought: I look.\nAction: weather\nAction Input: {"city": "Lisbon"}', "I look.", ""),
    "an answer": ("Thought: I know.\nFINAL_ANSWER: It is\n\nsunny.\n", "I know.", "It is\n\nsunny."),
    "bold": ("**Thought:** I know.\n**Final Answer:** sunny", "I know.", "sunny"),
    "a heading": ("### Final Answer\nsunny", "", "sunny"),
    "numbers": ("1. Thought 1: I know.\n2. Final Answer: 42", "I know.", "42"),
    "several thoughts": ("Thought: one\nThought: two\nFINAL_ANSWER: three", "one\ntwo", "three"),
    "no colon": ("FINAL_ANSWER\n42", "", "42"),
    "an answer that is announced": ("FINAL_ANSWER will come\nFINAL_ANSWER: 42", "FINAL_ANSWER will come", "42"),
    "words that begin like labels": (
        "Actionable: no\nFinal words\n* Thoughts on it\nFINAL_ANSWER: x",
        "Actionable: no\nFinal words\n* Thoughts on it",
        "x",
    ),
    "labels in an answer": ("FINAL_ANSWER: Do:\nAction: rest\nThought: x", "", "Do:\nAction: rest\nThought: x"),
    "an invented observation": ("Thought: t\nObservation: u\nFINAL_ANSWER: v", "t", ""),
    "an observation behind an action": ("Action: a\nObservation: u\nThought: v\nFINAL_ANSWER: w", "", ""),
    "an observation behind an answer": ("FINAL_ANSWER: a\nObservation: b\nThought: c", "", "a"),
    "an observation that is a heading": ("FINAL_ANSWER: a\n**Observation:** b", "", "a\n**Observation:** b"),
    "reasoning": ("<think>Action: x\nhm</think>\nThought: t\nFINAL_ANSWER: u", "Action: x\nhmt", "u"),
    "reasoning without an end": ("<think>hm", "hm", ""),
    "no label": ("It is\n  sunny. ", "It is\n  sunny.", ""),
    "the beginning of a tag": ("<th", "<th", ""),
    "the beginning of a label": ("FINAL_ANS", "FINAL_ANS", ""),
    "nothing": ("", "", ""),
}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize(("answer", "thinking", "text"), ANSWERS.values(), ids=ANSWERS)
def test_thoughts_are_thinking_and_the_answer_is_text(answer: str, thinking: str, text: str, size: int) -> None:
    assert shown([answer[start : start + size] for start in range(0, len(answer), size)]) == (thinking, text)


def test_an_answer_is_shown_as_soon_as_its_label_is_known() -> None:
    step = StepPieces()
    assert step.add("Thought: I") == [ThinkingDelta("I")]
    assert step.add(" know") == [ThinkingDelta(" know")]
    assert step.add(".\nFINAL_") == [ThinkingDelta(".")]
    assert step.add("ANSWER:") == []
    assert step.add(" It") == [TextDelta("It")]
    assert step.add(" is sunny.\nAct") == [TextDelta(" is sunny.")]
    assert step.add("ually hot") == [TextDelta("\nActually hot")]
    assert step.rest() == []


_LABELS = (
    "Thought:",
    "Action:",
    "Action Input:",
    "FINAL_ANSWER:",
    "FINAL_ANSWER ",
    "Observation:",
    "**Final Answer:**",
)
_OTHERS = ("\n", "\r\n", " ", "**", "# ", "- ", "1. ", ":", "{}", "x", "It is sunny", "<think>", "</think>", "\u2028")
_PARTS = st.sampled_from([*_LABELS, *_OTHERS])


@given(answer=st.lists(_PARTS, max_size=20).map("".join), cuts=st.lists(st.integers(0, 200), max_size=10))
def test_what_is_shown_does_not_depend_on_the_pieces(answer: str, cuts: list[int]) -> None:
    places = sorted({0, len(answer), *(cut for cut in cuts if cut < len(answer))})
    pieces = [answer[start:end] for start, end in pairwise(places)]
    assert shown(pieces) == shown(list(answer)) == shown([answer])
