"""Which of many texts share words with a query, found without looking at those that share none.

Each word has the rows of the texts that it is in. Rows are counted up as texts come, so their order is that of
insertion; a text that goes leaves its row behind, until the owner of the rows renumbers them. `EntryWords` is such an
index of what a semantic store knows, derived from the folded state and no part of it. Needs numpy.
"""

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from refold.events.kinds.indexing import words_of
from refold.events.kinds.semantic import Knowledge, Known
from refold.events.model.cooperative import ITEMS_PER_STEP, Cooperative

Rows = NDArray[np.int64]


class WordIndex:
    """The rows of every word."""

    def __init__(self) -> None:
        self._rows: dict[str, array[int]] = {}

    def add(self, row: int, words: Iterable[str]) -> None:
        """Note that the text of `row`, which is larger than any before, has these words, each given once."""
        rows_of = self._rows
        for word in words:
            rows = rows_of.get(word)
            if rows is None:
                rows_of[word] = array("q", (row,))
            else:
                rows.append(row)

    def shared(self, words: Iterable[str], rows: int) -> NDArray[np.int64]:
        """Return how many of `words`, each given once, the text of each row has."""
        counts = np.zeros(rows, dtype=np.int64)
        for word in words:
            found = self._rows.get(word)
            if found is not None:
                counts[np.frombuffer(found, dtype=np.int64)] += 1
        return counts

    def renumber(self, there: NDArray[np.bool_]) -> None:
        """Drop the rows that are not there any more, and number the others from 0."""
        place = np.cumsum(there, dtype=np.int64) - 1
        for word in list(self._rows):
            rows = np.frombuffer(self._rows[word], dtype=np.int64)
            kept = place[rows[there[rows]]]
            if len(kept):
                self._rows[word] = array("q", kept.tobytes())
            else:
                del self._rows[word]


def best(primary: NDArray[np.int64], score: NDArray[np.float64], count: int) -> Rows:
    """Return the places of the `count` best: of the largest `primary`, then the largest `score`, then the first.

    Only those returned are sorted: the others are left where they are. `primary` holds small numbers, >= 0.
    """
    places: Rows = np.arange(0, dtype=np.int64)
    if count > 0 and len(primary) <= count:
        places = np.arange(len(primary), dtype=np.int64)
    elif count > 0:
        at_least = np.cumsum(np.bincount(primary)[::-1])  # How many are as large as the largest, the next one, …
        least = len(at_least) - 1 - int(np.searchsorted(at_least, count))
        sure, rest = np.flatnonzero(primary > least), np.flatnonzero(primary == least)
        places = np.concatenate((sure, _of_largest(rest, score, count - len(sure))))
    order: Rows = np.lexsort((places, -score[places], -primary[places]))
    return places[order]


def _of_largest(places: Rows, score: NDArray[np.float64], count: int) -> Rows:
    """Return the `count` of `places`, in order, that have the largest scores, of equal ones the first."""
    if len(places) <= count:
        return places
    own = score if len(places) == len(score) else score[places]
    least = np.partition(own, len(own) - count)[len(own) - count]
    above = places[own > least]
    return np.concatenate((above, places[own == least][: count - len(above)]))


ROWS_PER_STEP = 10_000
"""So many entries that share a word are looked at before others have the loop."""

GONE_MIN = 1_024
"""Rows of entries that are gone or replaced are kept until there are more than this, and more than of the others."""


class EntryWords:
    """The entries by row; one whose value is replaced gets a new row. `made` makes it."""

    def __init__(self, state: Knowledge) -> None:
        self._changes = state.changes
        self._entries = state.entries
        self._seen = state.changes.count
        self._names: list[str] = []
        self._row_of: dict[str, int] = {}
        self._words = WordIndex()

    @classmethod
    def made(cls, state: Knowledge) -> "Cooperative[EntryWords]":
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

    def matching(self, query: str, count: int) -> Cooperative[list[str]]:
        """Return the keys of the `count` entries that share most words with `query`, of several the first inserted."""
        shared = self._words.shared(words_of(query), len(self._names))
        there: list[int] = []
        earlier: list[float] = []
        for place, row in enumerate(np.flatnonzero(shared).tolist(), 1):
            name = self._names[row]
            if self._row_of.get(name) == row:
                there.append(row)
                earlier.append(-self._entries[name].number)
            if not place % ROWS_PER_STEP:
                yield
        rows = np.array(there, dtype=np.int64)
        found = best(shared[rows], np.array(earlier, dtype=np.float64), count)
        return [self._names[row] for row in rows[found].tolist()]

    def _add(self, name: str, known: Known) -> None:
        row = self._row_of[name] = len(self._names)
        self._names.append(name)
        self._words.add(row, words_of(" ".join((name, known.value, *known.tags))))
