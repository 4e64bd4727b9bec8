"""The labels of ReAct text, each at the beginning of a line: Thought, Action, Action Input, Observation, FINAL_ANSWER.

They count in any case, bold or not, numbered or not, as list items and headings, and with a full-width colon. Read
`refold.react.text` first. The rule: a label needs its colon, unless the form alone makes it certain.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

LABEL_CHARACTERS_MAX = 80
"""No label with its decoration is longer."""

THINK_OPENS, THINK_CLOSES = "<think>", "</think>"
"""Around the reasoning that some models write before their answer."""

LabelKind: TypeAlias = Literal["thought", "action", "input", "answer", "observation"]


class Label(NamedTuple):
    """A label at the beginning of a line."""

    kind: LabelKind
    start: int
    """Where its line begins."""
    end: int
    """Where its value begins."""
    plain: bool
    """Whether the line begins with the very word and a colon follows it."""
    colon: bool
    mark: str
    """Bold or italic marks that were opened before the label and not closed behind it."""
    emphasis: str = ""
    """Those that were closed behind it."""


def labels_in(text: str, start: int = 0) -> Iterator[Label]:
    for found in _LABEL.finditer(text, start):
        label = _label(text, found)
        if label is not None:
            yield label


def may_become_label(line: str) -> bool:
    """Return whether a line that is not complete may begin with a label that is not complete yet."""
    if len(line) > LABEL_CHARACTERS_MAX:
        return False
    words = line.lstrip(_DECORATION)
    if len(line) - len(words) > _DECORATION_MAX:
        return False
    letters = _SEPARATORS.sub("", words).lower()
    if any(word.startswith(letters) for word in _WORDS):
        return True
    found = _LABEL.match(line)
    if found is None:
        return False
    if found["colon"]:
        return not line[found.end() :].strip(" \t*_")
    return _BEFORE_COLON.fullmatch(line, found.end()) is not None


def label_inside(text: str, start: int) -> Label | None:
    """Return the one label behind the end of a sentence, for a whole step on one line, which no label begins."""
    found = list(islice(_INSIDE.finditer(text, start), 2))
    if len(found) != 1:
        return None
    [inside] = found
    kind: LabelKind = "action" if inside["action"] else "answer"
    return Label(kind, inside.start(), inside.end(), plain=True, colon=True, mark="")


def answer_without_colon(text: str, start: int) -> Label | None:
    """Return the one label of a line such as `FINAL_ANSWER 42` that is no sentence, where nothing else decides."""
    found = list(islice(_WITHOUT_COLON.finditer(text, start), 2))
    if len(found) != 1:
        return None
    [line] = found
    mark, closed = line["mark"] or "", line["closed"] or ""
    return Label("answer", line.start(), line.end(), False, False, "" if closed else mark, closed)


def reasoning_end(text: str) -> int:
    """Return where the answer proper begins, behind a block `<think>…</think>` at the very beginning."""
    opening = _REASONING.match(text)
    if opening is None:
        return 0
    end = text.find(THINK_CLOSES, opening.end())
    return end + len(THINK_CLOSES) if end >= 0 else len(text)


def reasoning_in(text: str) -> str:
    """Return what stands in the block `<think>…</think>` at the very beginning of an answer; empty without one."""
    block = text[: reasoning_end(text)].strip()
    return block.removeprefix(THINK_OPENS).removesuffix(THINK_CLOSES).strip()


def _label(text: str, found: re.Match[str]) -> Label | None:
    word, before, end = found["word"], found["before"], found.end()
    kind: LabelKind = "input" if found["input"] else _KINDS[word[:3].lower()]
    mark = emphasis = before[len(before.rstrip("*_")) :]
    behind = found["closed"] or found["alone"] or ""
    if mark and mark in behind:
        mark = ""
    elif mark and text.startswith(mark, end):
        end, mark = end + len(mark), ""
    colon = bool(found["colon"])
    if not colon and not _is_certain(text, kind, word, before, end):
        return None
    while text.startswith((" ", "\t"), end):
        end += 1
    return Label(kind, found.start(), end, colon and not before and not behind, colon, mark, "" if mark else emphasis)


def _is_certain(text: str, kind: LabelKind, word: str, before: str, end: int) -> bool:
    if kind == "answer" and "_" in word and text.startswith("(", end):
        return True
    line_end = text.find("\n", end, end + LABEL_CHARACTERS_MAX)
    if line_end < 0:
        line_end = min(len(text), end + LABEL_CHARACTERS_MAX)
    behind = text[end:line_end].strip()
    if word == "FINAL_ANSWER" and (not behind or behind.startswith(("=", "-"))):
        return True
    return not behind and any(sign in before for sign in "#*_")


_KINDS: dict[str, LabelKind] = {"tho": "thought", "act": "action", "fin": "answer", "obs": "observation"}

_DECORATION = " \t>#*_`-.)(0123456789"
_DECORATION_MAX = 24
_SEPARATORS = re.compile(r"[ \t_-]")
_WORDS = (
    "thoughts",
    "observation",
    "finalanswer",
    *(f"action{word}" for word in ("inputs", "arguments", "args", "parameters")),
)
_BEFORE_COLON = re.compile(r"(?:[ \t_]?\d{0,3})?[*_`]{0,4}[ \t]?(?:\([^()\n]{0,24}\)?)?[ \t]{0,4}")

_LABEL = re.compile(
    r"^(?P<before>[ \t>#*_`\-\d.)(]{0,24})"
    r"(?P<word>thoughts?|action(?P<input>[ \t_-]{0,2}(?:inputs?|arguments?|args|parameters?))?"
    r"|final[ \t_-]{0,2}answer|observation)"
    r"(?:(?:[ \t_]?\d{1,3})?(?P<closed>[*_`]{0,4})(?:[ \t]?\([^()\n]{0,24}\))?[ \t]{0,4}(?P<colon>[:\uff1a])"
    r"|(?P<alone>[*_`]{0,4}))",
    re.IGNORECASE | re.MULTILINE | re.ASCII,
)
_INSIDE = re.compile(r"(?<=[.!?])[ \t]{1,4}(?:FINAL_ANSWER|(?P<action>Action))[:\uff1a][ \t]{0,4}")
_WITHOUT_COLON = re.compile(
    r"^[ \t>#\d.)-]{0,24}(?P<mark>[*_`]{1,4})?"
    r"(?:(?i:final)_(?i:answer)|FINAL[ -]?ANSWER|Final[ -]?Answer)(?P<closed>(?P=mark))?"
    r"[ \t]{1,4}(?!(?:is|was|will|would|should|must|can|cannot|may|might|needs?|follows?|comes?|has|to)\b)(?=\S)",
    re.MULTILINE | re.ASCII,
)
"""Behind the label a verb in lower case makes a sentence of the line: a thought about the answer."""
_REASONING = re.compile(r"\s{0,100}<think>")
