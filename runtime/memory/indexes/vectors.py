"""The matrix by which similar embeddings are found, derived from the folded state and no part of it.

Similarity is the cosine of the angle between two vectors, `a·b / (|a| |b|)`. One product of the matrix with the query
gives it for all rows in float32, near enough to name the few that may be among the best; those are computed again in
float64, one row like the other. So the order depends neither on the linear algebra of the machine nor on where a row
happens to lie: equal embeddings have equal scores, and the one that was inserted first comes first. Needs numpy.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from refold.events.kinds.semantic import Knowledge, Known
from refold.events.model.cooperative import Cooperative

Vectors = NDArray[np.float32]

ROWS_AT_FIRST = 64

ROWS_PER_STEP = 500
"""So many embeddings are taken in before the loop is given back."""

ROWS_AT_ONCE = 4_096
"""So many rows are computed again in one go; it bounds the memory that this takes."""


class VectorIndex:
    """The embeddings of one store by row; a row that goes is filled with the last one. `made` makes it."""

    def __init__(self, state: Knowledge) -> None:
        self._changes = state.changes
        self._entries = state.entries
        self._seen = state.changes.count
        self.dimension = state.dimension
        self._keys: list[str] = []
        self._row_of: dict[str, int] = {}
        rows = max(ROWS_AT_FIRST, state.embedded)
        self._numbers = np.zeros(rows, dtype=np.int64)
        self._given: Vectors = np.zeros((rows, self.dimension), dtype=np.float32)
        self._units: Vectors = np.zeros((rows, self.dimension), dtype=np.float32)

    @classmethod
    def made(cls, state: Knowledge) -> "Cooperative[VectorIndex]":
        index = cls(state)
        embedded = ((name, known) for name, known in state.entries.items() if known.embedding is not None)
        while part := list(islice(embedded, ROWS_PER_STEP)):
            index._add(part)
            yield
        return index

    def follow(self, state: Knowledge) -> bool:
        """Take in what has changed in the state; returns whether that is known, else another index must be made."""
        if state.changes is not self._changes or state.entries is not self._entries:
            return False
        changed = state.changes.since(self._seen)
        if changed is None or (state.embedded and state.dimension != self.dimension):
            return False
        self._seen = state.changes.count
        for name in changed:
            known = state.entries.get(name)
            if known is None or known.embedding is None:
                self._remove(name)
            else:
                self._set(name, known.number, np.frombuffer(known.embedding, dtype="<f4"))
        return True

    def most_similar(self, query: Vectors, count: int, threshold: float | None) -> list[tuple[str, float]]:
        """Return the keys and cosines of the `count` most similar embeddings, of at least `threshold`.

        Args:
            query: `(dimension,) float32`, finite, not zero.
            count: at most so many, >= 0.
            threshold: None = any will do.
        """
        rows = len(self._keys)
        if not rows or count <= 0:
            return []
        near = self._units[:rows] @ _units(query[np.newaxis])[0]
        margin = 4 * (self.dimension + 4) * np.finfo(np.float32).eps
        if count < rows:
            least = np.partition(near, rows - count)[rows - count] - margin
            places = np.flatnonzero(near >= least)
        else:
            places = np.arange(rows)
        if threshold is not None:
            places = places[near[places] >= threshold - margin]
        scores = self._cosines(places, query)
        if threshold is not None:
            places, scores = places[scores >= threshold], scores[scores >= threshold]
        order = np.lexsort((self._numbers[places], -scores))[:count]
        found = zip(places[order].tolist(), scores[order].tolist(), strict=True)
        return [(self._keys[row], score) for row, score in found]

    def _cosines(self, places: NDArray[np.int64], query: Vectors) -> NDArray[np.float64]:
        exact = query.astype(np.float64)
        square = (exact * exact).sum()
        scores = np.empty(len(places))
        for first in range(0, len(places), ROWS_AT_ONCE):
            part = self._given[places[first : first + ROWS_AT_ONCE]].astype(np.float64)
            squares = (part * part).sum(axis=1)
            scores[first : first + len(part)] = (part * exact).sum(axis=1) / np.sqrt(squares * square)
        return np.clip(scores, -1.0, 1.0)

    def _add(self, part: Sequence[tuple[str, Known]]) -> None:
        """Take in new entries, for which there is room."""
        first = len(self._keys)
        rows = slice(first, first + len(part))
        self._keys += [name for name, _ in part]
        self._row_of.update((name, row) for row, (name, _) in enumerate(part, first))
        self._numbers[rows] = [known.number for _, known in part]
        data = b"".join(known.embedding for _, known in part if known.embedding is not None)
        self._given[rows] = np.frombuffer(data, dtype="<f4").reshape(len(part), self.dimension)
        self._units[rows] = _units(self._given[rows])

    def _set(self, name: str, number: int, vector: Vectors) -> None:
        row = self._row_of.get(name)
        if row is None:
            row = self._row_of[name] = len(self._keys)
            self._keys.append(name)
            if row == len(self._numbers):
                self._numbers = np.pad(self._numbers, (0, row))
                self._given = np.pad(self._given, ((0, row), (0, 0)))
                self._units = np.pad(self._units, ((0, row), (0, 0)))
        self._numbers[row] = number
        self._given[row] = vector
        self._units[row] = _units(vector[np.newaxis])[0]

    def _remove(self, name: str) -> None:
        row = self._row_of.pop(name, None)
        if row is None:
            return
        last = self._keys.pop()
        if last != name:
            self._keys[row] = last
            self._row_of[last] = row
            for column in (self._numbers, self._given, self._units):
                column[row] = column[len(self._keys)]


def _units(vectors: Vectors) -> Vectors:
    """Return vectors of length 1 in the same directions; `(n, d) float32`, none of them zero."""
    exact = vectors.astype(np.float64)
    units: Vectors = (exact / np.sqrt((exact * exact).sum(axis=1, keepdims=True))).astype(np.float32)
    return units
