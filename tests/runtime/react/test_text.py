"""Steps in ReAct text, in every form that models write them, and texts that are none."""

import json
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from refold.events.core.errors import AgentLoopError
from refold.events.model.configuration import ToolSpec
from refold.react.labels import labels_in
from refold.react.text import EXPECTED, ReActStep, call_of, parse_react_step, step_text

LISBON = {"city": "Lisbon"}

ACTIONS: dict[str, tuple[str, str, object]] = {
    "as asked for": ('Thought: t\nAction: weather\nAction Input: {"city": "Lisbon"}', "t", LISBON),
    "without a thought": ('Action: weather\nAction Input: {"city": "Lisbon"}', "", LISBON),
    "a thought without its label": ('I look.\nAction: weather\nAction Input: {"city": "Lisbon"}', "I look.", LISBON),
    "a thought of several lines": (
        "Thought: one\n\ntwo\nThought: three\nAction: weather\nAction Input: {}",
        "one\n\ntwo\nthree",
        {},
    ),
    "lower case": ('thought: t\naction: weather\naction input: {"city": "Lisbon"}', "t", LISBON),
    "upper case": ('THOUGHT: t\nACTION: weather\nACTION INPUT: {"city": "Lisbon"}', "t", LISBON),
    "underscores": ('Thought: t\nAction: weather\nAction_Input: {"city": "Lisbon"}', "t", LISBON),
    "hyphens": ('Thought: t\nAction: weather\nAction-Input: {"city": "Lisbon"}', "t", LISBON),
    "one word": ('Thought: t\nAction: weather\nActionInput: {"city": "Lisbon"}', "t", LISBON),
    "bold labels": ('**Thought:** t\n**Action:** weather\n**Action Input:** {"city": "Lisbon"}', "t", LISBON),
    "bold labels before the colon": (
        '**Thought**: t\n**Action**: weather\n**Action Input**: {"city": "Lisbon"}',
        "t",
        LISBON,
    ),
    "bold lines": ("**Thought: t\n**Action: weather**\nAction Input: {}", "t", {}),
    "underlined labels": ('__Thought:__ t\n__Action:__ weather\n__Action Input:__ {"city": "Lisbon"}', "t", LISBON),
    "headings": ('### Thought\nt\n### Action\nweather\n### Action Input\n{"city": "Lisbon"}', "t", LISBON),
    "bold labels alone on their lines": (
        '**Thought**\nt\n**Action**\nweather\n**Action Input**\n{"city": "Lisbon"}',
        "t",
        LISBON,
    ),
    "a list": ('- Thought: t\n- Action: weather\n- Action Input: {"city": "Lisbon"}', "t", LISBON),
    "a numbered list": ('1. Thought: t\n2. Action: weather\n3. Action Input: {"city": "Lisbon"}', "t", LISBON),
    "a quotation": ('> Thought: t\n> Action: weather\n> Action Input: {"city": "Lisbon"}', "t", LISBON),
    "numbered labels": ('Thought 1: t\nAction 1: weather\nAction Input 1: {"city": "Lisbon"}', "t", LISBON),
    "remarks in labels": ('Thought: t\nAction: weather\nAction Input (JSON): {"city": "Lisbon"}', "t", LISBON),
    "full-width colons": ('Thought\uff1at\nAction\uff1aweather\nAction Input\uff1a{"city": "Lisbon"}', "t", LISBON),
    "blanks before colons": ('Thought : t\nAction : weather\nAction Input : {"city": "Lisbon"}', "t", LISBON),
    "indented": ('  Thought: t\n  Action: weather\n  Action Input: {"city": "Lisbon"}', "t", LISBON),
    "Windows line ends": ('Thought: t\r\nAction: weather\r\nAction Input: {"city":\r\n"Lisbon"}\r\n', "t", LISBON),
    "values on lines of their own": ('Thought:\nt\nAction:\nweather\nAction Input:\n{"city": "Lisbon"}', "t", LISBON),
    "blank lines": ('Thought: t\n\nAction: weather\n\nAction Input: {"city": "Lisbon"}', "t", LISBON),
    "JSON over lines": ('Thought: t\nAction: weather\nAction Input: {\n  "city": "Lisbon"\n}\n', "t", LISBON),
    "nested JSON": (
        'Thought: t\nAction: weather\nAction Input: {"a": {"b": [1, {"c": "}"}]}, "d": "{"}',
        "t",
        {"a": {"b": [1, {"c": "}"}]}, "d": "{"},
    ),
    "fenced JSON": ('Thought: t\nAction: weather\nAction Input:\n```json\n{"city": "Lisbon"}\n```', "t", LISBON),
    "fenced JSON on the label's line": (
        'Thought: t\nAction: weather\nAction Input: ```{"city": "Lisbon"}```',
        "t",
        LISBON,
    ),
    "JSON in a code span": ('Thought: t\nAction: `weather`\nAction Input: `{"city": "Lisbon"}`', "t", LISBON),
    "everything in a fence": (
        '```\nThought: t\nAction: weather\nAction Input: {"city": "Lisbon"}\n```',
        "t",
        LISBON,
    ),
    "prose behind": ('Thought: t\nAction: weather\nAction Input: {"city": "Lisbon"}\nNow I wait.', "t", LISBON),
    "prose behind on the line": ('Thought: t\nAction: weather\nAction Input: {"city": "Lisbon"} I wait.', "t", LISBON),
    "an invented observation": (
        f"Thought: t\nAction: weather\nAction Input: {json.dumps(LISBON)}\nObservation: sunny\nFINAL_ANSWER: v",
        "t",
        LISBON,
    ),
    "an invented observation in bold": (
        'Thought: t\nAction: weather\nAction Input: {"city": "Lisbon"}\n**Observation:** sunny',
        "t",
        LISBON,
    ),
    "a second action": (
        'Thought: t\nAction: weather\nAction Input: {"city": "Lisbon"}\nAction: pay\nAction Input: {"all": true}',
        "t",
        LISBON,
    ),
    "an answer behind the action": (
        'Thought: t\nAction: weather\nAction Input: {"city": "Lisbon"}\nFINAL_ANSWER: sunny',
        "t",
        LISBON,
    ),
    "labels inside of the JSON": (
        'Thought: t\nAction: weather\nAction Input: {"text": "a\nObservation: b\nFINAL_ANSWER: c"}',
        "t",
        {"text": "a\nObservation: b\nFINAL_ANSWER: c"},
    ),
    "labels in mid-sentence": (
        "Thought: The Final Answer: needs an Action: so FINAL_ANSWER: must wait\nAction: weather\nAction Input: {}",
        "The Final Answer: needs an Action: so FINAL_ANSWER: must wait",
        {},
    ),
    "words that begin like labels": (
        "Thought: t\nActions speak.\nThoughtful: yes\nFinal answers follow\nActionable: no\nAction: weather",
        "t\nActions speak.\nThoughtful: yes\nFinal answers follow\nActionable: no",
        {},
    ),
    "a call as in a program": (
        'Thought: t\nAction: weather(city="Lisbon", days=2)',
        "t",
        {"city": "Lisbon", "days": 2},
    ),
    "a call with colons": ("Thought: t\nAction: weather(city: 'Lisbon')", "t", LISBON),
    "a call without arguments": ("Thought: t\nAction: weather()", "t", {}),
    "a call over lines": ('Thought: t\nAction: weather(\n  city="Lisbon",\n)', "t", LISBON),
    "a call with an object": ('Thought: t\nAction: weather({"city": "Lisbon"})', "t", LISBON),
    "a call with a text": ('Thought: t\nAction: weather("Lisbon")', "t", "Lisbon"),
    "a call with several values": ('Thought: t\nAction: weather("Lisbon", 2)', "t", '("Lisbon", 2)'),
    "a call in brackets": ("Thought: t\nAction: weather[Lisbon, today]", "t", "Lisbon, today"),
    "JSON on the action's line": ('Thought: t\nAction: weather {"city": "Lisbon"}', "t", LISBON),
    "JSON behind a colon": ('Thought: t\nAction: weather: {"city": "Lisbon"}', "t", LISBON),
    "JSON below": ('Thought: t\nAction: weather\n{"city": "Lisbon"}', "t", LISBON),
    "fenced JSON below": ('Thought: t\nAction: weather\n```json\n{"city": "Lisbon"}\n```', "t", LISBON),
    "both labels on one line": ('Thought: t\nAction: weather, Action Input: {"city": "Lisbon"}', "t", LISBON),
    "a shorter label for the input": ('Thought: t\nAction: weather\nInput: {"city": "Lisbon"}', "t", LISBON),
    "a longer label for the input": ('Thought: t\nAction: weather\nAction Arguments: {"city": "Lisbon"}', "t", LISBON),
    "the whole step on one line": (
        'Thought: It may rain. Action: weather Action Input: {"city": "Lisbon"} Observation: rain',
        "It may rain.",
        LISBON,
    ),
    "an answer that is announced": (
        "FINAL_ANSWER will come later.\nAction: weather",
        "FINAL_ANSWER will come later.",
        {},
    ),
    "headings of a thought": (
        "Thought:\nObservations: many\nActions: few\nAction: weather",
        "Observations: many\nActions: few",
        {},
    ),
    "a fenced call": ("Action:\n```python\nweather(city='Lisbon')\n```", "", LISBON),
    "a fenced name": ("Action:\n```\nweather\n```\nAction Input: {}", "", {}),
    "an action that is an object": (
        'Thought: t\nAction:\n```json\n{"action": "weather", "action_input": {"city": "Lisbon"}}\n```',
        "t",
        LISBON,
    ),
    "other keys": (
        'Thought: t\nAction: {"name": "weather", "arguments": {"city": "Lisbon"}}',
        "t",
        LISBON,
    ),
    "an object without labels": (
        '{"thought": "t", "action": "weather", "action_input": {"city": "Lisbon"}}',
        "t",
        LISBON,
    ),
    "a fenced object without labels": (
        '```json\n{"tool": "weather", "tool_input": {"city": "Lisbon"}}\n```',
        "",
        LISBON,
    ),
    "arguments in quotation marks": ('Action: weather\nAction Input: "{\\"city\\": \\"Lisbon\\"}"', "", LISBON),
    "arguments of Python": (
        "Action: weather\nAction Input: {'city': 'Lisbon', 'on': True, 'off': False, 'no': None,}",
        "",
        {"city": "Lisbon", "on": True, "off": False, "no": None},
    ),
    "arguments with names": ("Action: weather\nAction Input: city='Lisbon', days=2", "", {"city": "Lisbon", "days": 2}),
    "arguments as text": ("Action: weather\nAction Input: Lisbon\n\ntoday", "", "Lisbon\n\ntoday"),
    "arguments as a quoted text": ('Action: weather\nAction Input: "Lisbon"', "", "Lisbon"),
    "arguments as fenced text": ("Action: weather\nAction Input:\n```python\nprint(1)\n```\nSo.", "", "print(1)"),
    "arguments as a list": ("Action: weather\nAction Input: [1, 2]", "", "[1, 2]"),
    "arguments that are cut": ('Action: weather\nAction Input: {"city": "Lis', "", '{"city": "Lis'),
    "arguments that are broken": ('Action: weather\nAction Input: {"a": "b" "c"}', "", '{"a": "b" "c"}'),
    "no arguments": ("Action: weather\nAction Input: None\nObservation: x", "", {}),
    "no arguments in parentheses": ("Action: weather\nAction Input: (none)\nObservation: x", "", {}),
    "a text that means something": ("Action: weather\nAction Input: empty\nObservation: x", "", "empty"),
    "an input left empty": ("Action: weather\nAction Input:\nObservation: x", "", {}),
    "no input at all": ("Action: weather", "", {}),
    "a full stop": ("Action: weather.\nAction Input: {}", "", {}),
    "a quoted name": ('Action: "weather"\nAction Input: {}', "", {}),
    "a name in brackets": ("Action: [weather]\nAction Input: {}", "", {}),
    "a bold name": ("Action: **weather**\nAction Input: {}", "", {}),
    "a remark on the name": ("Action: weather (to see the sky)\nAction Input: {}", "", {}),
    "reasoning before": (
        "<think>\nAction: pay\nFINAL_ANSWER: no\n</think>\n\nThought: t\nAction: weather\nAction Input: {}",
        "t",
        {},
    ),
}

ANSWERS: dict[str, tuple[str, str, str]] = {
    "as asked for": ("Thought: t\nFINAL_ANSWER: It is sunny.", "t", "It is sunny."),
    "without a thought": ("FINAL_ANSWER: It is sunny.", "", "It is sunny."),
    "with a blank": ("Thought: t\nFinal Answer: It is sunny.", "t", "It is sunny."),
    "lower case": ("thought: t\nfinal answer: It is sunny.", "t", "It is sunny."),
    "a hyphen": ("Final-Answer: It is sunny.", "", "It is sunny."),
    "one word": ("FinalAnswer: It is sunny.", "", "It is sunny."),
    "a full-width colon": ("Thought\uff1at\nFinal Answer\uff1aIt is sunny.", "t", "It is sunny."),
    "bold": ("**Thought:** t\n**Final Answer:** It is sunny.", "t", "It is sunny."),
    "a bold line": ("**Final Answer: It is sunny.**", "", "It is sunny."),
    "a heading": ("## Final Answer\n\nIt is sunny.", "", "It is sunny."),
    "an equals sign": ("FINAL_ANSWER = 42", "", "42"),
    "on the thought's line": ("Thought: I know. FINAL_ANSWER: It is sunny.", "I know.", "It is sunny."),
    "on a plain thought's line": ("I know! FINAL_ANSWER: It is sunny.", "I know!", "It is sunny."),
    "no colon, on the next line": ("FINAL_ANSWER\n42", "", "42"),
    "an arrow": ("FINAL_ANSWER -> 42", "", "42"),
    "a call": ('Final_Answer("It is sunny.")', "", "It is sunny."),
    "a call without quotation marks": ("FINAL_ANSWER(It is (very) sunny)", "", "It is (very) sunny"),
    "a call and prose": ("Final_Answer('It is sunny.') and that is all", "", "It is sunny."),
    "several paragraphs": ("FINAL_ANSWER: One\n\nTwo\n- three", "", "One\n\nTwo\n- three"),
    "labels inside": (
        "FINAL_ANSWER: Do this:\nAction: rest\nThought: fine\n**Observation:** it helps",
        "",
        "Do this:\nAction: rest\nThought: fine\n**Observation:** it helps",
    ),
    "an invented observation": ("FINAL_ANSWER: sunny\nObservation: rain\nThought: hm", "", "sunny"),
    "everything in a fence": ("```\nThought: t\nFINAL_ANSWER: sunny\n```", "t", "sunny"),
    "code in it": ("FINAL_ANSWER:\n```python\nprint(1)\n```", "", "```python\nprint(1)\n```"),
    "JSON in it": ('FINAL_ANSWER: {"a": [1]}', "", '{"a": [1]}'),
    "as an action": ("Thought: t\nAction: Final Answer\nAction Input: sunny", "t", "sunny"),
    "as an action with an object": ('Action: final_answer\nAction Input: {"answer": "sunny"}', "", "sunny"),
    "as an action that is a call": ('Action: FINAL_ANSWER("sunny")', "", "sunny"),
    "as an object": ('{"thought": "t", "final_answer": "sunny"}', "t", "sunny"),
    "as an object with an action": ('{"action": "Final Answer", "action_input": "sunny"}', "", "sunny"),
    "after no action": ("Thought: t\nAction: None\nAction Input: None\nFINAL_ANSWER: sunny", "t", "sunny"),
    "after no action, with a reason": ("Action: None (I know enough)\nFINAL_ANSWER: sunny", "", "sunny"),
    "after no action needed": ("Action: No action needed.\nFINAL_ANSWER: sunny", "", "sunny"),
    "after no action and a thought": ("Action: none\nThought: t\nFINAL_ANSWER: sunny", "t", "sunny"),
    "behind reasoning": ("<think>Action: pay</think>FINAL_ANSWER: sunny", "", "sunny"),
    "not of Latin letters": ("Thought: 想\nFINAL_ANSWER: 晴れ ☀️", "想", "晴れ ☀️"),
}

NONE: dict[str, tuple[str, str]] = {
    "nothing": ("", "The answer is empty."),
    "blanks": (" \n\t ", "The answer is empty."),
    "reasoning alone": ("<think>Action: pay</think>  ", "The answer is empty."),
    "reasoning without an end": ("<think>hm\nFINAL_ANSWER: x", "The answer is empty."),
    "plain text": (
        "It is sunny.\nThat is all.",
        "The answer has neither an Action nor a FINAL_ANSWER; it begins with 'It is sunny. That is all.'.",
    ),
    "a thought alone": (
        "Thought: hm",
        "The answer has neither an Action nor a FINAL_ANSWER; it begins with 'Thought: hm'.",
    ),
    "an answer in mid-sentence": (
        "Thought: FINAL_ANSWER: would be 42",
        "The answer has neither an Action nor a FINAL_ANSWER; it begins with 'Thought: FINAL_ANSWER: would be 42'.",
    ),
    "an answer inside a sentence": (
        "Thought: I write FINAL_ANSWER: 42 soon",
        "The answer has neither an Action nor a FINAL_ANSWER; it begins with 'Thought: I write FINAL_ANSWER: 42 soon'.",
    ),
    "two answers in mid-sentence": (
        "A. FINAL_ANSWER: 1. FINAL_ANSWER: 2",
        "The answer has neither an Action nor a FINAL_ANSWER; it begins with 'A. FINAL_ANSWER: 1. FINAL_ANSWER: 2'.",
    ),
    "an action in mid-sentence that is not certain": (
        "I go on. Action: look around",
        "The answer has neither an Action nor a FINAL_ANSWER; it begins with 'I go on. Action: look around'.",
    ),
    "an object of something else": (
        '{"name": "Ann"}',
        'The answer has neither an Action nor a FINAL_ANSWER; it begins with \'{"name": "Ann"}\'.',
    ),
    "no action and nothing else": (
        "Action: None",
        "The answer has neither an Action nor a FINAL_ANSWER; it begins with 'Action: None'.",
    ),
    "an observation first": (
        "Thought: t\nObservation: sunny\nFINAL_ANSWER: sunny",
        "The answer tells an Observation and has no Action before it; only tools make observations.",
    ),
    "an input first": ("Action Input: {}\nAction: weather", "The answer has an Action Input and no Action before it."),
    "an action without a name": (
        "Thought: t\nAction:\nAction Input: {}",
        "The answer has an Action that names no tool.",
    ),
    "an empty answer": ("Thought: t\nFINAL_ANSWER:  \n", "The FINAL_ANSWER is empty."),
    "an empty answer as an action": ("Action: Final Answer", "The FINAL_ANSWER is empty."),
}


@pytest.mark.parametrize(("text", "thought", "arguments"), ACTIONS.values(), ids=ACTIONS)
def test_an_action_is_read(text: str, thought: str, arguments: object) -> None:
    step = parse_react_step(text)
    assert (step.thought, step.action, step.arguments, step.final_answer) == (thought, "weather", arguments, None)


@pytest.mark.parametrize(("text", "thought", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_a_final_answer_is_read(text: str, thought: str, answer: str) -> None:
    step = parse_react_step(text)
    assert (step.thought, step.action, step.arguments, step.final_answer) == (thought, None, {}, answer)


@pytest.mark.parametrize(("text", "found"), NONE.values(), ids=NONE)
def test_what_is_no_step_is_refused_with_what_was_expected(text: str, found: str) -> None:
    with pytest.raises(AgentLoopError) as refusal:
        parse_react_step(text)
    assert str(refusal.value) == f"{found} {EXPECTED}"


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
