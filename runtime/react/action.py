"""The action in a ReAct step: which tool, and with which arguments, in every form that models write it.

Read `refold.react.text` first. The rule: arguments are an object only where their meaning is certain; otherwise they
stay the text that the model wrote, and the call of the tool tells the model what is wrong with it.
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from refold.events.core.content import Json, JsonObject, is_json_object
from refold.react.labels import Label
from refold.react.lenient_json import read_call, read_json, read_keywords

NAME_CHARACTERS_MAX = 256
"""An action's name is cut after so many characters; no tool has a longer one."""

ANSWER = "FINAL_ANSWER"
"""The label of a final answer, which models write as an action's name too."""

FENCE = re.compile(r"```[\w+.-]{0,20}[ \t]*\r?\n?")
"""The line that opens a fenced block."""


class ParsedAction(NamedTuple):
    name: str
    arguments: JsonObject | str
    """A JSON object, or the text of them."""
    end: int
    """Place behind them."""
    complete: bool
    """Whether more text could not change them."""

    @property
    def is_none(self) -> bool:
        said = self.name.casefold().rstrip(".")
        return said in _NO_ACTION or said.startswith(_NO_ACTION_AND_WHY)  # No tool has a name of several words.

    @property
    def is_answer(self) -> bool:
        return folded(self.name) == folded(ANSWER)


def is_reserved(name: str) -> bool:
    """Return whether an action of that name is read as something else than a call of a tool."""
    action = ParsedAction(name, {}, 0, True)
    return action.is_none or action.is_answer


class _Named(NamedTuple):
    """An action of which the line of the name gives no arguments, or only the place where they begin."""

    name: str
    arguments_at: int | None = None


def action_at(text: str, labels: Sequence[Label]) -> ParsedAction | None:
    """Return the action that the first of `labels` begins, before those that follow it; None = no name is there."""
    label, following = labels[0], labels[1:3]
    limit = following[0].start if following else len(text)
    start = _value_start(text, label.end, limit)
    answer = _answer_at(text, start, labels)
    if answer is not None:
        return answer
    in_json = action_in_json(text, start) if text.startswith("{", start) else None
    if in_json is not None:
        return in_json
    start = _after_blanks(text, label.end, limit)
    if (fence := FENCE.match(text, start, limit)) is not None and fence.group().endswith("\n"):
        start = _after_blanks(text, fence.end(), limit)
    line_end = text.find("\n", start, limit)
    line_end = line_end if line_end >= 0 else limit
    has_input = bool(following) and following[0].kind == "input"
    named = _on_the_line(text, start, line_end, label.mark, has_input=has_input)
    if not isinstance(named, _Named):
        return named
    if named.arguments_at is not None:
        return ParsedAction(named.name, *_arguments(text, named.arguments_at, limit))
    if has_input:
        input_limit = following[1].start if len(following) > 1 else len(text)
        return ParsedAction(named.name, *_arguments(text, following[0].end, input_limit))
    plain = _PLAIN_INPUT.match(text, line_end, limit)
    if plain is not None:
        return ParsedAction(named.name, *_arguments(text, plain.end(), limit))
    start = _after_blanks(text, line_end, limit)
    if text.startswith(("{", "```"), start):
        return ParsedAction(named.name, *_arguments(text, start, limit))
    return ParsedAction(named.name, {}, line_end, False)


def _answer_at(text: str, start: int, labels: Sequence[Label]) -> ParsedAction | None:
    """Return the final answer that is written as an action, such as `Action: Final Answer: 42`; None = it is none."""
    label, following = labels[0], labels[1:3]
    limit = following[0].start if following else len(text)
    found = _ANSWER.match(text, start, limit)
    if found is None:
        return None
    inline = _INLINE_INPUT.match(text, found.start("sign"), limit) or _PLAIN_INPUT.match(text, found.end(), limit)
    answer = _answer_in(text, inline.end() if inline is not None else found.end(), limit)
    closing = found["closing"] + (found["behind"] or "")
    for mark in (label.mark, found["opening"].translate(_MIRRORED)[::-1]):
        if mark and mark not in closing:
            answer = answer.removesuffix(mark).rstrip()
        elif not mark.strip("*_"):
            answer = without_emphasis(answer, mark)
    if text.count("```", 0, label.start) % 2:  # The whole step stands in one fence.
        answer = answer.removesuffix("```").rstrip()
    if not answer and following and following[0].kind == "input":
        limit = following[1].start if len(following) > 1 else len(text)
        answer = _answer_in(text, following[0].end, limit).removesuffix(following[0].mark).rstrip()
        answer = without_emphasis(answer, following[0].emphasis)
        answer = "" if answer.casefold() in _NO_INPUT else answer
    return ParsedAction(ANSWER, answer, limit, limit < len(text))


def _answer_in(text: str, start: int, limit: int) -> str:
    """Return an answer without what stands around all of it: brackets, quotes, a fence, an object of one value."""
    answer = text[start:limit].strip()
    if answer.endswith("```") and answer.count("```") == 2 and (fence := FENCE.match(answer)) is not None:
        answer = answer[fence.end() : -3].strip()
    value = read_json(answer) if answer.startswith(("{", '"')) else None
    if value is not None and not answer[value[1] :].strip():
        return text_of_answer(_as_arguments(value[0]))
    called = called_answer(answer) if answer.startswith("(") else None
    if called is not None and called[1] == len(answer):
        return called[0]
    if answer[:1] + answer[-1:] in ("()", "[]") and not set(answer[1:-1]) & set(answer[0] + answer[-1]):
        return answer[1:-1].strip()
    return answer


def text_of_answer(arguments: JsonObject | str) -> str:
    """Return the final answer that the arguments of an action are: the one value that is named so, or their JSON."""
    if isinstance(arguments, str):
        return arguments.strip()
    value = _only_answer(arguments)
    if value is not None:
        return value
    return json.dumps(arguments, ensure_ascii=False) if arguments else ""


def called_answer(text: str) -> tuple[str, int] | None:
    """Return the answer in the parentheses of a call that a text begins with, and where they end.

    None where the call has something else than one text or one value with an answer's name.
    """
    call = read_call(text, 0)
    if call is None or len(call.positional) + len(call.named) != 1:
        return None
    given = call.positional[0] if call.positional else call.named
    answer = _only_answer(given) if is_json_object(given) else given
    return (answer.strip(), call.end) if isinstance(answer, str) else None


def scalar_text(value: Json) -> str | None:
    """Return a text, or a number or boolean as JSON; None where it is nothing such."""
    if isinstance(value, str):
        return value.strip()
    return json.dumps(value) if isinstance(value, int | float) else None


def without_emphasis(answer: str, mark: str) -> str:
    """Return an answer without a mark around all of it, where its label stands between the same."""
    inner = answer.removeprefix(mark).removesuffix(mark)
    whole = mark and len(answer) == len(inner) + 2 * len(mark)
    return inner if whole and inner.strip() == inner and inner and mark not in inner else answer


def _only_answer(given: JsonObject) -> str | None:
    if len(given) != 1:
        return None
    [(key, value)] = given.items()
    return scalar_text(value) if folded(key) in _ANSWERS else None


def action_in_json(text: str, at: int) -> ParsedAction | None:
    """Return the action that the JSON object at `at` names, if it is one and does."""
    value = read_json(text, at)
    if value is None:
        return None
    given, end = value
    if not is_json_object(given):
        return None
    name = next((named for key in _NAME_KEYS if isinstance(named := given.get(key), str)), "").strip()
    if not name:
        return None
    arguments = next((given[key] for key in _ARGUMENT_KEYS if key in given), None)
    return ParsedAction(name[:NAME_CHARACTERS_MAX], _as_arguments({} if arguments is None else arguments), end, True)


def folded(name: str) -> str:
    """Return a tool's name without what models change in it: case, blanks, underscores, hyphens and dots."""
    return _JOINERS.sub("", name).casefold()


def _on_the_line(text: str, start: int, line_end: int, mark: str, *, has_input: bool) -> ParsedAction | _Named | None:
    line = text[start:line_end].strip()
    line = line.removesuffix(mark).rstrip()[:NAME_CHARACTERS_MAX]
    found = _NAME.match(text, start, line_end)
    if found is None:
        return _Named(line) if line else None
    name, place = found["name"].rstrip("./"), found.end()
    if found["opening"]:
        closing = _CLOSING.match(text, place, line_end)
        place = closing.end() if closing is not None else place
    rest = text[place:line_end].strip()
    if not rest.strip("*_`.,:;"):
        return _Named(name)
    if rest.startswith("("):
        call = read_call(text, _after_blanks(text, place, line_end))
        if call is not None:
            return ParsedAction(name, _called(text, place, call.named, call.positional, call.end), call.end, True)
    elif rest.startswith("[") and rest.endswith("]") and not has_input:
        return ParsedAction(name, rest[1:-1].strip(), line_end, True)
    inline = _INLINE_INPUT.match(text, place) or _BEFORE_OBJECT.match(text, place)
    if inline is not None:
        return _Named(name, inline.end())
    remarks = has_input and rest.startswith(_REMARKS)
    return _Named(name if remarks else line)


def _called(text: str, start: int, named: JsonObject, positional: list[Json], end: int) -> JsonObject | str:
    """Return the arguments of a call written as in a program; a single one without a name is taken for itself."""
    if not positional:
        return named
    if len(positional) == 1 and not named and (is_json_object(positional[0]) or isinstance(positional[0], str)):
        return _as_arguments(positional[0])
    return text[start:end].strip()


def _arguments(text: str, at: int, limit: int) -> tuple[JsonObject | str, int, bool]:
    """Return the arguments that begin at `at`, where they end, and whether more text could not change them.

    A JSON value may go beyond `limit`, the next label, since a line in one of its texts may look like a label.
    """
    fenced = text.startswith("```", _after_blanks(text, at, limit))
    start = _value_start(text, at, limit)
    value = read_json(text, start) if text.startswith(("{", '"', "'"), start) else None
    if value is not None and is_json_object(value[0]):
        return value[0], value[1], True
    if value is not None and not _rest_of_line(text, value[1]).strip("` \t\r"):
        return _as_arguments(value[0]), value[1], True
    closing = text.find("```", start, limit) if fenced else -1
    end = closing if closing >= 0 else limit
    raw = text[start:end].strip().strip("`").strip()
    complete = end < len(text)
    if raw.casefold() in _NO_INPUT:
        return {}, end, complete
    keywords = read_keywords(raw)
    return (raw if keywords is None else keywords), end, complete


def _as_arguments(value: Json) -> JsonObject | str:
    if is_json_object(value):
        return value
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    inner = read_json(value) if value.lstrip().startswith("{") else None
    return inner[0] if inner is not None and is_json_object(inner[0]) else value.strip()


def _value_start(text: str, at: int, limit: int) -> int:
    """Return where a value begins, behind blanks and the opening of a fence or of a code span."""
    at = _after_blanks(text, at, limit)
    fence = FENCE.match(text, at, limit)
    if fence is not None:
        return _after_blanks(text, fence.end(), limit)
    return at + 1 if text.startswith("`{", at) else at


def _after_blanks(text: str, at: int, limit: int) -> int:
    while at < limit and text[at].isspace():
        at += 1
    return at


def _rest_of_line(text: str, at: int) -> str:
    end = text.find("\n", at)
    return text[at : end if end >= 0 else len(text)]


_ANSWER = re.compile(
    r"(?P<opening>[`\"'*_\[<(]{0,4})final[ \t_-]{0,2}answer(?P<closing>[`\"'*_\]>)]{0,4})(?!\w|[-./]\w)[ \t]{0,4}"
    r"(?P<sign>(?:[:=,;\uff1a\u2013\u2014]|[-=]>|[.-](?=\s|$)|is:?(?=[ \t]+\S))?)(?P<behind>[`*_]{1,4}(?=\s))?",
    re.IGNORECASE | re.ASCII,
)
_MIRRORED = str.maketrans("[<(", "]>)")
_JOINERS = re.compile(r"[\s_\-.]")
_NAME = re.compile(r"(?P<opening>[`\"'*\[<]{0,4})(?P<name>\w[\w.\-/]{0,255})")
_CLOSING = re.compile(r"[`\"'*\]>]{0,4}")
_INLINE_INPUT = re.compile(
    r"[ \t]{0,4}[,;.|]?[ \t]{0,4}[*_]{0,4}action[ _-]{0,2}input[*_]{0,4}[ \t]{0,4}[:\uff1a][*_]{0,4}", re.IGNORECASE
)
_PLAIN_INPUT = re.compile(
    r"\s{0,40}[*_]{0,4}(?:tool[ _-]?)?(?:inputs?|arguments?|args|parameters?)[*_]{0,4}[ \t]{0,4}[:\uff1a][*_]{0,4}",
    re.IGNORECASE,
)
_BEFORE_OBJECT = re.compile(r"[ \t]{0,4}(?:[:=,]|->|with)?[ \t]{0,4}(?=\{)")
_REMARKS = ("(", "-", "\u2013", "\u2014", "#", "//")
_NO_ACTION = ("none", "n/a", "null", "no action", "no tool")
_NO_ACTION_AND_WHY = tuple(f"{said}{sign}" for said in _NO_ACTION for sign in " ,.;:")
_ANSWERS = {"answer", "finalanswer", "output", "input"}
"""Names of an answer in an object, folded."""
_NO_INPUT = {"", "none", "n/a", "null", "(none)"}
_NAME_KEYS = ("action", "tool", "tool_name", "name", "function")
_ARGUMENT_KEYS = ("action_input", "tool_input", "input", "arguments", "args", "parameters")
