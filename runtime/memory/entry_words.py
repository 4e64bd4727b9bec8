"""The words of what a semantic store knows, derived from the folded state and no part of it. Needs numpy."""

import numpy as np

from refold.actors.stepwise import ITEMS_PER_STEP, Steps
from refold.events.semantic_core import Knowledge, Known
from refold.events.words import words_of
from refold.memory.word_index import WordIndex, best

GONE_MIN = 1_024
"""Rows of entries that are gone or replaced are kept until there are more than this, and more than of the others."""


class EntryWords:
    """The entries by row; one whose value is replaced gets a new row. `made` makes it.

    Args:
        state: whose entries they will be.
    """

    def __init__(self, state: Knowledge) -> None:
        self._changes = state.changes
        self._entries = state.entries
        self._seen = state.changes.count
        self._names: list[str] = []
        self._row_of: dict[str, int] = {}
        self._words = WordIndex()

    @classmethod
    def made(cls, state: Knowledge) -> "Steps[EntryWords]":
        """Return the words of all that is known."""
        words = cls(state)
        for place, (name, known) in enumerate(state.entries.items(), 1):
            words._add(name, known)
            if not place % ITEMS_PER_STEP:
                yield
        return words

    def follow(self, state: Knowledge) -> bool:
        """Take in what has changed in the state; returns whether that is known, else another index must be made."""
        if state.changes is not self._changes or state.entries is not self._entries:
            return False
        changed = state.changes.since(self._seen)
        if changed is None or len(self._names) - len(self._row_of) > max(GONE_MIN, len(self._row_of)):
            return False
        self._seen = state.changes.count
        for name in changed:
            self._row_of.pop(name, None)
            known = self._entries.get(name)
            if known is not None:
                self._add(name, known)
        return True

    def matching(self, query: str, count: int) -> list[str]:
        """Return the keys of the `count` entries that share most words with `query`, of several the first inserted."""
        shared = self._words.shared(words_of(query), len(self._names))
        there = [row for row in np.flatnonzero(shared).tolist() if self._row_of.get(self._names[row]) == row]
        rows = np.array(there, dtype=np.int64)
        earlier = np.array([-self._entries[self._names[row]].number for row in there], dtype=np.float64)
        return [self._names[row] for row in rows[best(shared[rows], earlier, count)].tolist()]

    def _add(self, name: str, known: Known) -> None:
        row = self._row_of[name] = len(self._names)
        self._names.append(name)
        self._words.add(row, words_of(" ".join((name, known.value, *known.tags))))
