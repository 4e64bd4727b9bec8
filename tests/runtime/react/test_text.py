"""Steps in ReAct text, in every form that models write them, and texts that are none."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from refold.events.core.errors import AgentLoopError
from refold.events.model.configuration import ToolSpec
from refold.react.labels import labels_in
from refold.react.text import EXPECTED, ReActStep, call_of, parse_react_step, step_text

STEPS = Path(__file__).parents[2] / "golden" / "text" / "react_steps.txt"
"""Texts of models, each with its title before it and what is read behind it: a step, or why it is none."""

READ: dict[str, tuple[str, dict[str, Any]]] = {
    title: (text, json.loads(step))
    for title, text, step in re.findall(r"^=== (.*)\n((?:.*\n)*?)--- (.*)\n", STEPS.read_text(), re.MULTILINE)
} | {
    "an action: Windows line ends": (
        'Thought: t\r\nAction: weather\r\nAction Input: {"city":\r\n"Lisbon"}\r\n\n',
        {"thought": "t", "arguments": {"city": "Lisbon"}},
    ),
    "an action: JSON over lines": (
        'Thought: t\nAction: weather\nAction Input: {\n  "city": "Lisbon"\n}\n\n',
        {"thought": "t", "arguments": {"city": "Lisbon"}},
    ),
    "no step: blanks": (" \n\t \n", {"refused": "The answer is empty."}),
    "no step: reasoning alone": ("<think>Action: pay</think>  \n", {"refused": "The answer is empty."}),
    "no step: an empty answer": ("Thought: t\nFINAL_ANSWER:  \n\n", {"refused": "The FINAL_ANSWER is empty."}),
}


@pytest.mark.parametrize(("text", "expected"), READ.values(), ids=READ)
def test_a_text_is_read_as_a_step_or_refused_with_what_was_expected(text: str, expected: dict[str, Any]) -> None:
    text = text.removesuffix("\n")
    if "refused" in expected:
        with pytest.raises(AgentLoopError) as refusal:
            parse_react_step(text)
        assert str(refusal.value) == f"{expected['refused']} {EXPECTED}"
        return
    step = parse_react_step(text)
    action = "weather" if "arguments" in expected else None
    assert (step.thought, step.action, step.arguments) == (expected["thought"], action, expected.get("arguments", {}))
    assert step.final_answer == expected.get("answer")


NAMES = ["FINAL_ANSWER", "Final Answer", "final_answer", "final answer", "FinalAnswer", "FINAL-ANSWER"]
WRITTEN = [
    *["Action: {} 42", "action: {} 42", "ACTION: {}: 42", "Action:{}:42", "Action: {} = 42", "Action: {} - 42"],
    *["Action: {}(42)", 'Action: {}("42")', "Action: {}[42]", "Action: {} (42)", "Action: [{}] 42", "Action: <{}> 42"],
    *["Action: {}, Action Input: 42", "Action: {} Action Input: 42", "Action: {}\nAction Input: 42"],
    *["Action: {}\nInput: 42", "Action: {}:\nAction Input: 42", 'Action: {}\nAction Input: {{"answer": "42"}}'],
    *['Action: {} {{"answer": "42"}}', "Action: {} 42\nAction Input: None", "Action: {} 42\nAction Input: {{}}"],
    *["Action: {}\n42", "Action: {}:\n\n42", "Action:\n{} 42", "Action: {}\n{}: 42", "Action:\n{}: 42"],
    *["**Action:** {} 42", "**Action: {} 42**", "**Action**: **{}** 42", "Action: `{}` 42", "Action: `{} 42`"],
    *["Action: **{}:** 42", "Action: __{}__: 42", "### Action: {} 42", "> Action: {} 42", "Action 1: {} 42"],
    *['Action: "{}" 42', "```\nAction: {} 42\n```", "Action: {}\n```\n42\n```", "Action\uff1a{}\uff1a42"],
    *[
        'Action: {} {{"answer": 42}}',
        'Action: {}: {{"Final Answer": 42}}',
        'Action: {}\nAction Input: {{"output": 42}}',
    ],
    *['Action: {}(answer="42")', "Action: {}(input=42)", 'Action: {}({{"answer": 42}})', "{}:\n42", "{}: 42"],
    *["Action: {} is 42", "Action: {} is: 42", "Action: **{}** **42**", "**Action:** **{}:** **42**", "**{}**\n**42**"],
    *["**{}:** **42**", "**Action: {}** **42**", "__{}:__ __42__", "Action: None\n{}: 42"],
    *["Action: {} 42\nObservation: 7", "I know. Action: {} 42", "Thought: t\nAction: {} 42"],
]


@pytest.mark.parametrize("written", WRITTEN)
def test_a_final_answer_may_be_an_action_in_every_spelling(written: str) -> None:
    for name in NAMES:
        step = parse_react_step(written.format(name, name))
        assert (step.action, step.final_answer) == (None, "42"), name


BARE = ["FINAL_ANSWER", "final_answer", "Final_Answer", "FINAL ANSWER", "Final Answer", "FINAL-ANSWER", "FinalAnswer"]
ALONE = ["{} 42", "**{}** 42", "**{}** **42**", "**{} 42**", "`{} 42`", "- {} 42", "Action: None\n{} 42", "{}\t42"]


@pytest.mark.parametrize("written", [*ALONE, "```\n{} 42\n```", *(f"Thought: t\n{alone}" for alone in ALONE)])
def test_a_final_answer_needs_neither_a_colon_nor_an_action(written: str) -> None:
    for name in BARE:
        step = parse_react_step(written.format(name))
        assert (step.action, step.final_answer) == (None, "42"), name
        assert step.thought == ("t" if "Thought" in written else "")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Action: FINAL_ANSWER Two lines:\n\n- a\n- b (c)", "Two lines:\n\n- a\n- b (c)"),
        ("Action: FINAL_ANSWER (a) and (b)", "(a) and (b)"),
        ("Action: FINAL_ANSWER: **42** it is", "**42** it is"),
        ("Action: FINAL_ANSWER -42", "-42"),
        ("Action: FINAL_ANSWER {42}", "{42}"),
        ('Action: FINAL_ANSWER\nAction Input: {"a": 1, "b": 2}', '{"a": 1, "b": 2}'),
        ("Action: FINAL_ANSWER x = 1", "x = 1"),
        ('Action: FINAL_ANSWER {"answer": true}', "true"),
        ('Action: FINAL_ANSWER {"answer": 1.50}', "1.5"),
        ('Action: FINAL_ANSWER {"answer": [42]}', '{"answer": [42]}'),
        ('Action: FINAL_ANSWER {"answer": null}', '{"answer": null}'),
        ('Action: FINAL_ANSWER {"answer": "", "a": 1}', '{"answer": "", "a": 1}'),
        ('Action: FINAL_ANSWER {"city": "Lisbon"}', '{"city": "Lisbon"}'),
        ('Action: FINAL_ANSWER(city="Lisbon")', 'city="Lisbon"'),
        ("Action: FINAL_ANSWER is", "is"),
        ("Action: FINAL_ANSWER isn't known", "isn't known"),
        ("Action: FINAL_ANSWER **42**", "**42**"),
        ("**Action:** FINAL_ANSWER **42**", "**42**"),
        ("Action: **FINAL_ANSWER** **a** and **b**", "**a** and **b**"),
        ("FINAL_ANSWER: **42**", "**42**"),
        ("**FINAL_ANSWER:** __42__", "__42__"),
        ("**FINAL_ANSWER**\n**a** and **b**", "**a** and **b**"),
        ("FINAL_ANSWER -42", "-42"),
        ("FINAL_ANSWER - 42", "42"),
        ("FINAL_ANSWER\n- a\n- b", "- a\n- b"),
        ("FINAL_ANSWER Two lines:\n- a", "Two lines:\n- a"),
        ('{"final_answer": 42}', "42"),
        ('{"final_answer": false, "action": "FINAL_ANSWER", "input": 42}', "42"),
        ('{"final_answer": 0, "action": "FINAL_ANSWER", "input": 42}', "42"),
        ("**Action:** FINAL_ANSWER\n**Action Input:** **42**", "42"),
        ("**Action: FINAL_ANSWER**\n**Action Input: 42**", "42"),
        ("Action: FINAL_ANSWER ```py\nx\n``` runs.", "```py\nx\n``` runs."),
    ],
)
def test_an_answer_is_all_that_was_said(text: str, answer: str) -> None:
    assert parse_react_step(text).final_answer == answer


@pytest.mark.parametrize(
    "name", ["final_answer_check", "final_answers", "final-answer-2", "final_answer.x", "my_final_answer"]
)
def test_a_tool_whose_name_only_begins_or_ends_like_an_answer_is_one(name: str) -> None:
    assert parse_react_step(f"Action: {name}\nAction Input: {{}}").action == name


@pytest.mark.parametrize(
    ("text", "said", "closed"),
    [
        ('Action: a\nAction Input: {"b": 1}\nObservation: c\nAction: d', 'Action: a\nAction Input: {"b": 1}', True),
        ("Action: a\nAction Input: b\nAction: d", "Action: a\nAction Input: b", True),
        ("Action: a\nAction Input: b", "Action: a\nAction Input: b", False),
        ('Action: a\nAction Input: {"b": 1} and so on', 'Action: a\nAction Input: {"b": 1} and so on', True),
        ('Action: a\nAction Input: {"b": 1} Observation: c', 'Action: a\nAction Input: {"b": 1}', True),
        ("Action: a", "Action: a", False),
        ("Action: a\nObservation: b", "Action: a", True),
        ("<think>x</think>\nFINAL_ANSWER: a", "FINAL_ANSWER: a", False),
        ("FINAL_ANSWER: a\nObservation: b", "FINAL_ANSWER: a", True),
    ],
)
def test_only_what_counts_was_said(text: str, said: str, closed: bool) -> None:
    step = parse_react_step(text)
    assert (step.said, step.closed) == (said, closed)


def test_an_action_that_is_a_sentence_is_no_tools_name() -> None:
    assert parse_react_step("Action: I use the weather\nAction Input: {}").action == "I use the weather"


TOOLS = [
    ToolSpec(
        name=name, description="", input_schema={"type": "object", "properties": {key: {"type": kind} for key in keys}}
    )
    for name, kind, keys in (
        ("get_weather", "string", ["city"]),
        ("count", "integer", ["number"]),
        ("route", "string", ["start", "end"]),
        ("Same", "string", ["x"]),
        ("same", "string", ["x"]),
    )
]


@pytest.mark.parametrize(
    ("action", "arguments", "name", "meant"),
    [
        ("get_weather", "Lisbon", "get_weather", {"city": "Lisbon"}),
        ("Get Weather", {"city": "Lisbon"}, "get_weather", {"city": "Lisbon"}),
        ("get-weather", "Lisbon", "get_weather", {"city": "Lisbon"}),
        ("get_weather", '{"city": "Lis', "get_weather", '{"city": "Lis'),
        ("get_weather", "[1]", "get_weather", "[1]"),
        ("count", "3", "count", "3"),
        ("route", "Lisbon", "route", "Lisbon"),
        ("SAME", "a", "SAME", "a"),
        ("same", "a", "same", {"x": "a"}),
        ("pay", "a", "pay", "a"),
    ],
)
def test_names_and_texts_become_calls_where_that_is_certain(
    action: str, arguments: Any, name: str, meant: object
) -> None:
    assert call_of(ReActStep(action=action, arguments=arguments), TOOLS) == (name, meant)


# Properties

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_PROSE = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).map(str.strip)
_NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,20}", fullmatch=True)


def _is_prose(text: str) -> bool:
    return next(labels_in(text), None) is None and "```" not in text and "<think>" not in text


@given(thought=_PROSE, name=_NAMES, arguments=st.dictionaries(st.text(), _JSON, max_size=4))
def test_an_action_that_is_written_is_read_again(thought: str, name: str, arguments: dict[str, object]) -> None:
    assume(_is_prose(thought) and name.lower() not in ("none", "null"))
    assume(name.replace("_", "").replace("-", "").lower() != "finalanswer")
    written = step_text(ReActStep(thought=thought, action=name, arguments=arguments))
    step = parse_react_step(written)
    assert (step.thought, step.action, step.arguments) == (thought, name, arguments)
    assert (step.said, step.closed) == (written, True)
    fenced = json.dumps(arguments, indent=2)
    assert parse_react_step(f"Action: {name}\nAction Input:\n```json\n{fenced}\n```").arguments == arguments


@given(thought=_PROSE, answer=_PROSE.filter(bool))
def test_an_answer_that_is_written_is_read_again(thought: str, answer: str) -> None:
    assume(_is_prose(thought) and _is_prose(answer))
    step = parse_react_step(step_text(ReActStep(thought=thought, final_answer=answer)))
    assert (step.thought, step.action, step.final_answer) == (thought, None, answer)


_WORDS = ("Thought", "Action", "Action Input", "FINAL_ANSWER", "Final Answer", "Observation", "weather", "None", "a=1")
_SIGNS = (":", "\uff1a", "\n", "\r\n", " ", "**", "```", "```json\n", *"{}[]()\"'\\,#=", '"""', "- ", "1. ")
_OTHERS = ("<think>", "</think>", '{"a": 1}', "\\u12", "1e999", "NaN", "9" * 30, "\ud800", "é")
_PARTS = st.sampled_from([*_WORDS, *_SIGNS, *_OTHERS])


@given(st.lists(_PARTS | st.text(max_size=8), max_size=30).map("".join))
@example("Action: a(" + "(" * 5_000)
@example("Action: a\nAction Input: " + '{"a":' * 5_000)
@example("Action: a\nAction Input: " + "[" * 5_000)
@example("Action: a\nAction Input: " + "9" * 5_000)
@example("Action: a\nAction Input: {'a': " + "9" * 5_000 + "}")
def test_any_text_is_a_step_or_refused(text: str) -> None:
    step = _step_or_none(text)
    if step is None:
        with pytest.raises(AgentLoopError, match=re.escape(EXPECTED)):
            parse_react_step(text)
        return
    assert (step.action is None) != (step.final_answer is None)
    assert step.action is None or step.action.strip()
    assert step.final_answer is None or step.final_answer.strip()
    assert step.said in text


def _step_or_none(text: str) -> ReActStep | None:
    try:
        return parse_react_step(text)
    except AgentLoopError:
        return None


HARD: dict[str, Callable[[int], str]] = {
    "line ends": lambda n: "\n" * n,
    "signs": lambda n: "*_ " * n,
    "empty actions": lambda n: "Action:\n" * n,
    "declined actions": lambda n: "Action: none\n" * n,
    "thoughts": lambda n: "Thought: a\n" * n,
    "objects": lambda n: "Action: x\nAction Input: " + "{'a':" * n,
    "a text without an end": lambda n: "Action: x\nAction Input: {'" + "\\a" * n,
    "blanks": lambda n: "Action: " + " " * n,
    "fences": lambda n: "Action: x\nAction Input: " + "```" * n,
    "numbers": lambda n: "Action: x\nAction Input: a=1" + ", 1" * n,
    "inputs": lambda n: "Action: x\n" + "Action Input: {\n" * n,
    "parentheses": lambda n: "Action: x" + "(" * n,
    "names": lambda n: "Action: " + "x" * n,
    "answers": lambda n: "FINAL_ANSWER: a\n" * n,
    "observations in answers": lambda n: "FINAL_ANSWER: a\n" + "*Observation: b\n" * n,
}


def _lines_run(text: str) -> int:
    """Return how many lines of code are run to read a text."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        _step_or_none(text)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("make", HARD.values(), ids=HARD)
def test_reading_takes_steps_in_proportion_to_the_length(make: Callable[[int], str]) -> None:
    assert _lines_run(make(1_600)) <= 4.5 * _lines_run(make(400)) + 1_000
    _step_or_none(make(100_000))
