"""Which of many texts share words with a query, found without looking at those that share none.

Each word has the rows of the texts that it is in. Rows are counted up as texts come, so their order is that of
insertion; a text that goes leaves its row behind, until whoever owns the rows renumbers them. Needs numpy.
"""

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

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
        """Return how many of `words`, each given once, the text of each row has.

        Args:
            words: of the query.
            rows: how many rows there are.
        """
        counts = np.zeros(rows, dtype=np.int64)
        for word in words:
            found = self._rows.get(word)
            if found is not None:
                counts[np.frombuffer(found, dtype=np.int64)] += 1
        return counts

    def renumber(self, there: NDArray[np.bool_]) -> None:
        """Let go of the rows that are not there any more, and count the others anew from 0."""
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

    Only those returned are sorted: the others are left where they are.

    Args:
        primary: small numbers, >= 0.
        score: as many, none of them NaN.
        count: at most so many.
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
