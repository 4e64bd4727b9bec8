"""ReAct text: what a model says in one step, as Thought / Action / Action Input or Thought / FINAL_ANSWER.

`parse_react_step` reads a step out of a model's answer, and `step_text` writes one in the form that the model is asked
for. Read `refold.react.labels` for what counts as a label, and `refold.react.action` for how actions are read. The
rules: labels begin a line, or once a sentence, so that a thought may speak of actions and answers; the first Action or
FINAL_ANSWER decides, and of several actions only the first counts; an Observation that a model writes itself, and
everything behind it, never counts; what is not certain is refused with words that tell the model what was expected.
Time grows with the length of the text, and no text raises anything else.
"""

import json
import re
from collections.abc import Sequence

import msgspec

from refold.events.core.content import JsonObject, is_json_object
from refold.events.core.errors import AgentLoopError
from refold.events.model.configuration import ToolSpec
from refold.react.action import (
    FENCE,
    ParsedAction,
    action_at,
    action_in_json,
    called_answer,
    folded,
    scalar_text,
    text_of_answer,
    without_emphasis,
)
from refold.react.labels import Label, answer_without_colon, label_inside, labels_in, reasoning_end
from refold.react.lenient_json import read_json

EXPECTED = (
    "Expected is a line `Thought: …`, and after it either the two lines `Action: <name of a tool>` and "
    "`Action Input: <one JSON object>`, or `FINAL_ANSWER: <the whole answer>`."
)
"""Ends every message about a text that is no step."""

BEGINNING_SHOWN = 80
"""How many characters of a text that is no step are shown in the message."""


class ReActStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a model: a thought, and then either an action or the final answer."""

    thought: str = ""
    action: str | None = None
    """Name of the tool that is to be called, as the model wrote it."""
    arguments: JsonObject | str = {}
    """Of the action: a JSON object, or the text of them where they are none."""
    final_answer: str | None = None
    """Set exactly where there is no action; never blank."""
    said: str = ""
    """The part of the text that counts, word for word."""
    closed: bool = False
    """Whether the step was over before the text was: more text would not have changed it."""


def parse_react_step(text: str) -> ReActStep:
    """Return the step that a model's answer takes.

    Args:
        text: the answer. A block `<think>…</think>` at its beginning is passed over.

    Raises:
        AgentLoopError: it takes none, or none that is certain; the message says what was found and what was expected.
    """
    text = text[reasoning_end(text) :]
    if not text.strip():
        raise _problem("The answer is empty.")
    labels = list(labels_in(text))
    thoughts: list[str] = []
    at = 0
    declined = False
    for place, label in enumerate(labels):
        thoughts.append(text[at : label.start])
        at = label.end
        if label.kind == "observation":
            raise _problem("The answer tells an Observation and has no Action before it; only tools make observations.")
        if label.kind == "answer":
            return _answered(text, label, _thought_of(thoughts))
        if label.kind == "input" and not declined:
            raise _problem("The answer has an Action Input and no Action before it.")
        if label.kind == "action":
            action = action_at(text, labels[place : place + 3])
            named_below = place + 1 < len(labels) and labels[place + 1].kind == "answer"
            if named_below and (action is None or (action.is_answer and not action.arguments)):
                at = labels[place + 1].start
                continue
            if action is None:
                raise _problem("The answer has an Action that names no tool.")
            if not action.is_none:
                return _acted(text, action, labels[place + 1 :], _thought_of(thoughts))
            declined = True
        if label.kind != "thought":  # What the model says it does not do is no thought.
            at = labels[place + 1].start if place + 1 < len(labels) else len(text)
    step = _step_in_json(text) if not labels else None
    step = step or _step_on_one_line(text, at, thoughts)
    bare = answer_without_colon(text, labels[-1].end if labels else 0) if step is None else None
    if bare is not None:
        return _answered(text, bare, _thought_of([*thoughts, text[at : bare.start]]))
    if step is None:
        begins = " ".join(text[: 4 * BEGINNING_SHOWN].split())[:BEGINNING_SHOWN]
        raise _problem(f"The answer has neither an Action nor a FINAL_ANSWER; it begins with {begins!r}.")
    return step


def step_text(step: ReActStep) -> str:
    lines = [f"Thought: {step.thought}"] if step.thought else []
    if step.action is None:
        lines.append(f"FINAL_ANSWER: {step.final_answer or ''}")
    else:
        given = step.arguments
        written = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        lines += [f"Action: {step.action}", f"Action Input: {written}"]
    return "\n".join(lines)


def call_of(step: ReActStep, tools: Sequence[ToolSpec]) -> tuple[str, JsonObject | str]:
    """Return the tool's name and the arguments that a step's action means.

    A name that is no tool's becomes that of the only tool whose name differs in case, blanks, underscores, hyphens and
    dots alone. A text becomes the argument of a tool that has exactly one parameter, which takes text.
    """
    name = step.action or ""
    if all(spec.name != name for spec in tools):
        alike = [spec.name for spec in tools if folded(spec.name) == folded(name)]
        name = alike[0] if len(alike) == 1 else name
    given = step.arguments
    if isinstance(given, str) and not given.startswith(("{", "[")):
        parameter = _only_text_parameter(next((spec for spec in tools if spec.name == name), None))
        if parameter is not None:
            return name, {parameter: given}
    return name, given


def _only_text_parameter(spec: ToolSpec | None) -> str | None:
    properties = spec.input_schema.get("properties") if spec is not None else None
    if not is_json_object(properties) or len(properties) != 1:
        return None
    [(name, schema)] = properties.items()
    return name if is_json_object(schema) and schema.get("type") == "string" else None


def _problem(found: str) -> AgentLoopError:
    return AgentLoopError(f"{found} {EXPECTED}")


def _thought_of(pieces: list[str]) -> str:
    thought = "".join(pieces).strip()
    opening = FENCE.match(thought)
    if opening is not None and thought.count("```") % 2:  # The whole answer stands in one fence.
        thought = thought[opening.end() :]
    return thought.strip()


def _acted(text: str, action: ParsedAction, following: Sequence[Label], thought: str) -> ReActStep:
    cut = next((label.start for label in following if label.start >= action.end), len(text))
    if (invented := text.find("Observation:", action.end, cut)) >= 0:  # On the line of the arguments.
        cut = invented
    said, closed = text[:cut].strip(), action.complete or cut < len(text)
    if action.is_answer:
        return _final(thought, text_of_answer(action.arguments), said=said, closed=closed)
    return ReActStep(thought=thought, action=action.name, arguments=action.arguments, said=said, closed=closed)


def _answered(text: str, label: Label, thought: str) -> ReActStep:
    # An Observation with decoration may be a heading of the answer; a plain one is what the stop sequence cuts too.
    later = (it.start for it in labels_in(text, label.end) if it.kind == "observation" and it.plain)
    cut = next(later, len(text))
    answer = text[label.end : cut].strip()
    if not label.colon and answer.startswith("("):
        answer = _in_parentheses(answer)
    elif not label.colon and (sign := _SIGN.match(text, label.end, cut)) is not None:
        answer = text[sign.end() : cut].strip()
    if label.mark:
        answer = answer.removesuffix(label.mark).rstrip()
    answer = without_emphasis(answer, label.emphasis)
    if answer.endswith("```") and answer.count("```") % 2 and text.count("```", 0, label.start) % 2:
        answer = answer[:-3].rstrip()
    return _final(thought, answer, said=text[:cut].strip(), closed=cut < len(text))


def _in_parentheses(answer: str) -> str:
    called = called_answer(answer)
    if called is not None:
        return called[0]
    return answer[1:-1].strip() if answer.endswith(")") else answer


def _final(thought: str, answer: str, *, said: str, closed: bool) -> ReActStep:
    if not answer:
        raise _problem("The FINAL_ANSWER is empty.")
    return ReActStep(thought=thought, final_answer=answer, said=said, closed=closed)


def _step_on_one_line(text: str, at: int, thoughts: Sequence[str]) -> ReActStep | None:
    """Return the step of an answer in which the only label that decides stands behind a sentence, if it is certain."""
    label = label_inside(text, at)
    if label is None:
        return None
    thought = _thought_of([*thoughts, text[at : label.start]])
    if label.kind == "answer":
        return _answered(text, label, thought)
    action = action_at(text, [label])
    if action is None or action.is_none:
        return None
    if not action.is_answer and not (action.complete and is_json_object(action.arguments)):
        return None
    return _acted(text, action, (), thought)


def _step_in_json(text: str) -> ReActStep | None:
    """Return the step of an answer without labels that is a JSON object with their names as its keys."""
    fence = FENCE.match(text.lstrip())
    at = len(text) - len(text.lstrip()) + (fence.end() if fence is not None else 0)
    value = read_json(text, at) if text[at:].lstrip().startswith("{") else None
    if value is None or not is_json_object(value[0]):
        return None
    given = value[0]
    thought = given.get("thought")
    thought = thought.strip() if isinstance(thought, str) else ""
    said = text.strip()
    certain = any(key in given for key in ("action", "tool", "tool_name")) or {"name", "arguments"} <= given.keys()
    answer = given.get("final_answer", given.get("FINAL_ANSWER"))
    if isinstance(answer, bool) or (certain and not isinstance(answer, str)):  # It says whether there is one.
        answer = None
    if said_answer := scalar_text(answer):
        return _final(thought, said_answer, said=said, closed=True)
    action = action_in_json(text, at) if certain else None
    if action is None or action.is_none:
        return None
    if action.is_answer:
        return _final(thought, text_of_answer(action.arguments), said=said, closed=True)
    return ReActStep(thought=thought, action=action.name, arguments=action.arguments, said=said, closed=True)


_SIGN = re.compile(r"=+>?|-+>|-(?=\s)")
"""Between the label and the answer in place of a colon, on the label's line."""
