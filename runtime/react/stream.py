"""The pieces of a ReAct answer while it arrives: thoughts as thinking, the final answer as text, actions not at all.

So subscribers of a session see the same kinds of pieces as of a model with native tool calls, and no labels. The
pieces are read line by line in one pass, before the answer is complete: `refold.react.text` has the last word, and what
is recorded may be tidier than what was watched, as where a whole answer stands in a fence.
"""

from typing import Literal

from refold.events.model.messages import Delta, TextDelta, ThinkingDelta
from refold.react.labels import THINK_CLOSES, THINK_OPENS, Label, labels_in, may_become_label


class StepPieces:
    """Takes the text of one answer, piece by piece."""

    def __init__(self) -> None:
        self._part: Literal["opening", "reasoning", "thought", "answer", "silent"] = "opening"
        self._pending = ""
        """What has come of the line under way, or of the tag of a reasoning block, while it is not known what it is."""
        self._decided = False
        """Whether it is known what the line under way begins with."""
        self._blanks: str = ""
        """Passed on only if something follows them."""
        self._begun = False
        """Whether something of the part under way has been passed on."""
        self._deltas: list[Delta] = []

    def add(self, text: str) -> list[Delta]:
        if self._part == "opening":
            text = self._open(text)
        if self._part == "reasoning":
            text = self._reason(text)
        for line in text.splitlines(keepends=True):
            self._take(line)
        return self._taken()

    def rest(self) -> list[Delta]:
        if self._part == "reasoning":
            self._show(self._pending)
        elif self._pending:
            self._decide()
        return self._taken()

    def _taken(self) -> list[Delta]:
        taken, self._deltas = self._deltas, []
        return taken

    def _open(self, text: str) -> str:
        """Find out whether the answer begins with a block of reasoning, and return what is to be read further."""
        begun = self._pending + text
        opening = begun.lstrip()
        if THINK_OPENS.startswith(opening):
            self._pending = begun
            return ""
        self._pending = ""
        self._part = "reasoning" if opening.startswith(THINK_OPENS) else "thought"
        return opening.removeprefix(THINK_OPENS) if self._part == "reasoning" else begun

    def _reason(self, text: str) -> str:
        """Show what belongs to the reasoning, and return what comes behind it."""
        text = self._pending + text
        end = text.find(THINK_CLOSES)
        if end < 0:
            safe = max(0, len(text) - len(THINK_CLOSES) + 1)
            self._pending = text[safe:]
            self._show(text[:safe])
            return ""
        self._show(text[:end])
        self._pending = ""
        self._begin("thought")
        return text[end + len(THINK_CLOSES) :]

    def _take(self, line: str) -> None:
        if self._decided:
            self._show(line)
        else:
            self._pending += line
            if line.endswith("\n") or not may_become_label(self._pending):
                self._decide()
        if line.endswith("\n"):
            self._decided = False

    def _decide(self) -> None:
        line, self._pending, self._decided = self._pending, "", True
        label = next(labels_in(line), None)
        if label is None or not self._counts(label):
            self._show(line)
            return
        if label.kind != "thought":
            self._begin("answer" if label.kind == "answer" else "silent")
        self._show(line[label.end :])

    def _counts(self, label: Label) -> bool:
        if self._part == "answer":
            return label.kind == "observation" and label.plain
        return self._part == "thought" or self._part == "opening"

    def _begin(self, part: Literal["thought", "answer", "silent"]) -> None:
        self._part, self._blanks, self._begun = part, "", False

    def _show(self, text: str) -> None:
        if self._part == "silent":
            return
        text = self._blanks + text if self._begun else text.lstrip()
        kept = text.rstrip()
        self._blanks = text[len(kept) :]
        if kept:
            self._begun = True
            self._deltas.append(TextDelta(kept) if self._part == "answer" else ThinkingDelta(kept))
