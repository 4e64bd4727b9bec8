"""The matrix by which similar embeddings are found, derived from the folded state and the blocks that it names.

Similarity is the cosine of the angle between two vectors, `a·b / (|a| |b|)`. A product of the matrix with the query
gives it for all rows in float32, near enough to name the few that may be among the best; those are computed again in
float64, one row like the other. So the order depends neither on the linear algebra of the machine nor on where a row
happens to lie: equal embeddings have equal scores, and the one that was inserted first comes first. Needs numpy.

The matrix lies in parts of some megabytes. One more embedding never has the others copied, and a question goes from
part to part, so that others have the loop between them. The rule: what is searched was read from a block that hashes
to the name that an event gives, or from the event.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from refold.events.core.errors import LogFormatError, quoted
from refold.events.core.ids import PayloadHash
from refold.events.kinds.semantic import BLOCK_BYTES_MAX, BYTES_PER_NUMBER, Knowledge, Known
from refold.events.model.configuration import payload_hash
from refold.events.model.cooperative import ITEMS_PER_STEP, Asking, Cooperative, PayloadsWanted

Vectors = NDArray[np.float32]

ROWS_AT_FIRST = 16

PART_BYTES = 4 * 1024 * 1024
"""So large is a part of the matrix, about; the product with it takes less than a millisecond."""

ROWS_AT_ONCE = 4_096
"""So many rows are computed again in one go; it bounds the memory that this takes."""

NAMES_PER_STEP = 10_000
"""So many names are looked at before others have the loop."""

BLOCKS_AT_ONCE = 256
"""So many blocks are asked for in one go, unless they are large."""

REPEATED_BYTES_MAX = 256 * 1024 * 1024
"""So many bytes, or as many as all different rows have, may entries take that name the same rows of blocks as others.
So a search in a small log cannot take any amount of memory."""

SQUARES = (1e-30, 1e30)
"""Between these, float32 gives the square of a length as exactly as all else; other rows are always computed again."""


class VectorIndex:
    """The embeddings of one store by row; a row that goes is filled with the last one. Call `follow` first."""

    def __init__(self, state: Knowledge) -> None:
        self._changes = state.changes
        self._entries = state.entries
        self._seen: int | None = None
        """Changes of the state that are in it; None = not all of those that were there at first."""
        self.dimension = state.dimension
        self._keys: list[str] = []
        self._known: list[Known] = []
        """By row: whose embedding it is, by the key, and of what state of the entry."""
        self._row_of: dict[str, int] = {}
        self._rows_of_part = max(1, PART_BYTES // (BYTES_PER_NUMBER * max(1, self.dimension)))
        self._parts: list[Vectors] = []
        self._lengths: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
        """0 = float32 cannot tell it exactly enough."""

    def fits(self, state: Knowledge) -> bool:
        """Tell whether it can follow the changes of a state; else another index must be made."""
        same = state.changes is self._changes and state.entries is self._entries
        return same and (not state.embedded or state.dimension == self.dimension)

    def follow(self, state: Knowledge) -> Asking[None]:
        """Take in what has changed in the state; what a missing block kept out is taken in the next time."""
        if state.embedded and self.dimension < 1:
            raise LogFormatError("embeddings in the log have no numbers")
        count = state.changes.count
        changed = state.changes.since(self._seen) if self._seen is not None else None
        if changed is None:
            changed = yield from self._differing(state)
        blocks: dict[PayloadHash, list[str]] = {}
        inline: list[str] = []
        for place, name in enumerate(changed, 1):
            known = state.entries.get(name)
            if known is None or not known.embedded:
                self._remove(name)
            elif known.block:
                block = state.blocks[known.block]
                if block.numbers != self.dimension:
                    raise LogFormatError(
                        f"the payload {block.payload} has rows of {block.numbers}, not {self.dimension}"
                    )
                blocks.setdefault(block.payload, []).append(name)
            else:
                inline.append(name)
            if not place % NAMES_PER_STEP:
                yield None
        for part in _in_parts(inline, ITEMS_PER_STEP):
            known_of = [state.entries[name] for name in part]
            given = [each.embedding or b"" for each in known_of]
            if any(len(each) != BYTES_PER_NUMBER * self.dimension for each in given):
                raise LogFormatError(f"embeddings in the log have other numbers than the {self.dimension} of the store")
            self._set(part, known_of, _matrix(b"".join(given), self.dimension))
            yield None
        yield from self._take_blocks(state, blocks)
        self._seen = count

    def vector(self, key: str) -> bytes:
        """Return the embedding of a key that has one: float32, little-endian."""
        return self._row(self._row_of[key]).astype("<f4").tobytes()

    def most_similar(self, query: Vectors, count: int, threshold: float | None) -> Cooperative[list[tuple[str, float]]]:
        """Return the keys and cosines of the `count` most similar embeddings, of at least `threshold`; in steps.

        Args:
            query: `(dimension,) float32`, finite, not zero.
            count: at most so many, >= 0.
            threshold: None = any will do.
        """
        rows = len(self._keys)
        if not rows or count <= 0:
            return []
        exact = query.astype(np.float64)
        unit = (exact / np.sqrt((exact * exact).sum())).astype(np.float32)
        near = np.empty(rows, dtype=np.float32)
        for number, first in enumerate(range(0, rows, self._rows_of_part)):
            own = near[first : first + self._rows_of_part]
            with np.errstate(over="ignore", invalid="ignore"):  # Of rows that are computed again.
                np.einsum("ij,j->i", self._parts[number][: len(own)], unit, out=own)  # In this thread alone.
            yield
        lengths = self._lengths[:rows]
        np.divide(near, lengths, out=near, where=lengths > 0)
        odd = np.flatnonzero(lengths == 0)
        near[odd] = yield from self._cosines(odd, exact)
        margin = 4 * (self.dimension + 4) * np.finfo(np.float32).eps
        if count < rows:
            least = np.partition(near, rows - count)[rows - count] - margin
            places = np.flatnonzero(near >= least)
        else:
            places = np.arange(rows)
        if threshold is not None:
            places = places[near[places] >= threshold - margin]
        scores = yield from self._cosines(places, exact)
        if threshold is not None:
            places, scores = places[scores >= threshold], scores[scores >= threshold]
        numbers = np.array([self._known[place].number for place in places.tolist()], dtype=np.int64)
        order = np.lexsort((numbers, -scores))[:count]
        found = zip(places[order].tolist(), scores[order].tolist(), strict=True)
        return [(self._keys[row], score) for row, score in found]

    def _cosines(self, places: NDArray[np.int64], query: NDArray[np.float64]) -> Cooperative[NDArray[np.float64]]:
        square = (query * query).sum()
        scores = np.empty(len(places))
        for first in range(0, len(places), ROWS_AT_ONCE):
            rows = places[first : first + ROWS_AT_ONCE]
            part = self._gathered(rows).astype(np.float64)
            squares = (part * part).sum(axis=1)
            scores[first : first + len(rows)] = (part * query).sum(axis=1) / np.sqrt(squares * square)
            yield
        return np.clip(scores, -1.0, 1.0)

    def _gathered(self, rows: NDArray[np.int64]) -> Vectors:
        parts, within = np.divmod(rows, self._rows_of_part)
        gathered: Vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        for number in np.unique(parts).tolist():
            mine = parts == number
            gathered[mine] = self._parts[number][within[mine]]
        return gathered

    # Taking in

    def _differing(self, state: Knowledge) -> Cooperative[list[str]]:
        """Return the keys of which it has another embedding than the state, or none."""
        found = [name for name in self._keys if name not in state.entries]
        for place, (name, known) in enumerate(state.entries.items(), 1):
            row = self._row_of.get(name)
            if known.embedded if row is None else self._known[row] is not known:
                found.append(name)
            if not place % NAMES_PER_STEP:
                yield
        return found

    def _take_blocks(self, state: Knowledge, blocks: dict[PayloadHash, list[str]]) -> Asking[None]:
        yield from self._require_room(state, blocks)
        for payloads in _groups(blocks, BYTES_PER_NUMBER * self.dimension):
            wanted = PayloadsWanted(payloads)
            yield wanted
            names = [name for payload in payloads for name in blocks[payload]]
            known = [state.entries[name] for name in names]
            taken: list[bytes] = []
            for payload in payloads:
                rows = [state.entries[name].row for name in blocks[payload]]
                taken.append(_rows(payload, wanted.found.get(payload), rows, self.dimension))
            self._set(names, known, _matrix(taken[0] if len(taken) == 1 else b"".join(taken), self.dimension))
            yield None

    def _require_room(self, state: Knowledge, blocks: dict[PayloadHash, list[str]]) -> Cooperative[None]:
        """Raise LogFormatError where many entries name few rows, and would take far more memory than the log has."""
        repeated = different = 0
        for names in blocks.values():
            rows = len({state.entries[name].row for name in names})
            different += rows
            repeated += len(names) - rows
            yield
        row_bytes = BYTES_PER_NUMBER * self.dimension
        if (repeated - different) * row_bytes > REPEATED_BYTES_MAX:
            raise LogFormatError(
                f"{repeated:,} entries in the log name embeddings that other entries name, too; to search them would "
                f"take {repeated * row_bytes:,} bytes: remove entries that repeat others"
            )

    def _set(self, names: Sequence[str], known: Sequence[Known], matrix: Vectors) -> None:
        """Take in embeddings, each in the row of its key, or behind all others."""
        lengths = _lengths(matrix, names)
        new: list[int] = []
        for place, name in enumerate(names):
            if (row := self._row_of.get(name)) is None:
                new.append(place)
            else:
                self._row(row)[:] = matrix[place]
                self._lengths[row], self._known[row] = lengths[place], known[place]
        if len(new) < len(names):
            matrix, lengths = matrix[new], lengths[new]
        first = len(self._keys)
        self._row_of.update((names[place], row) for row, place in enumerate(new, first))
        self._keys += [names[place] for place in new]
        self._known += [known[place] for place in new]
        if len(self._keys) > len(self._lengths):
            self._lengths = np.resize(self._lengths, 2 * len(self._keys))
        self._lengths[first : len(self._keys)] = lengths
        taken = 0
        while taken < len(new):
            part, within = divmod(first + taken, self._rows_of_part)
            count = min(self._rows_of_part - within, len(new) - taken)
            self._part(part, within + count)[within : within + count] = matrix[taken : taken + count]
            taken += count

    def _part(self, number: int, rows: int) -> Vectors:
        """Return a part with room for so many rows; the first one grows to its size as a list does."""
        if number == len(self._parts):
            self._parts.append(np.empty((0, self.dimension), dtype=np.float32))
        part = self._parts[number]
        if len(part) < rows:
            room = self._rows_of_part if number else min(self._rows_of_part, max(2 * rows, ROWS_AT_FIRST))
            self._parts[number] = np.empty((room, self.dimension), dtype=np.float32)
            self._parts[number][: len(part)] = part
        return self._parts[number]

    def _remove(self, name: str) -> None:
        row = self._row_of.pop(name, None)
        if row is None:
            return
        last, known = self._keys.pop(), self._known.pop()
        if last != name:
            self._keys[row], self._known[row] = last, known
            self._row_of[last] = row
            self._lengths[row] = self._lengths[len(self._keys)]
            self._row(row)[:] = self._row(len(self._keys))
        if len(self._parts) > 1 and len(self._keys) <= (len(self._parts) - 2) * self._rows_of_part:
            self._parts.pop()

    def _row(self, row: int) -> Vectors:
        part, within = divmod(row, self._rows_of_part)
        found: Vectors = self._parts[part][within]
        return found


def _in_parts(items: Iterable[str], count: int) -> Iterator[list[str]]:
    source = iter(items)
    while part := list(islice(source, count)):
        yield part


def _groups(blocks: dict[PayloadHash, list[str]], row_bytes: int) -> Iterator[list[PayloadHash]]:
    """Return blocks in groups, each of which is read in one go."""
    group: list[PayloadHash] = []
    size = 0
    for payload, names in blocks.items():
        if group and (len(group) == BLOCKS_AT_ONCE or size + len(names) * row_bytes > BLOCK_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(payload)
        size += len(names) * row_bytes
    if group:
        yield group


def _rows(name: PayloadHash, data: bytes | None, rows: Sequence[int], dimension: int) -> bytes:
    if data is None:
        raise LogFormatError(f"the payload {name}, which has embeddings, is missing from the log")
    size = BYTES_PER_NUMBER * dimension
    count = len(data) // size
    if payload_hash(data) != name or count * size != len(data) or not 0 <= min(rows) <= max(rows) < count:
        raise LogFormatError(f"the payload {name}, which has embeddings, is damaged")
    if len(rows) == count and all(map(int.__eq__, rows, range(count))):
        return data
    return b"".join([data[row * size : (row + 1) * size] for row in rows])


def _matrix(data: bytes, dimension: int) -> Vectors:
    matrix: Vectors = np.frombuffer(data, dtype="<f4").reshape(-1, dimension)
    return matrix


def _lengths(matrix: Vectors, names: Sequence[str]) -> NDArray[np.float32]:
    """Return the lengths of rows; 0 where float32 cannot tell it."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares: NDArray[np.float32] = np.einsum("ij,ij->i", matrix, matrix)
    plain = (squares > SQUARES[0]) & (squares < SQUARES[1])
    for row in np.flatnonzero(~plain).tolist():
        if not (np.isfinite(matrix[row]).all() and matrix[row].any()):
            raise LogFormatError(f"the embedding of {quoted(names[row])} in the log has no direction")
    return np.sqrt(np.where(plain, squares, 0))
