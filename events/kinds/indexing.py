"""What memories are searched by: columns of texts, changes that an index follows, and the words of a text.

Contents of a memory, thoughts of a session, descriptions of tools: each list of texts is given as a
`TextColumn`. The rules: it never changes, so it may be shared and kept; lengths are numbers of UTF-8 bytes, which are
the same on every machine; and where several texts would do as an answer, the first of them is given.

`RecentChanges` is for arrays beside a large state, such as those of a search over a hundred thousand texts: their owner
remembers how many changes they have seen and asks for those since, instead of building them again. It is part of the
folded state and depends on its events alone; one more change costs the same however many there were.

A search without embeddings compares words. Two texts share a word where they share it in any case and any Unicode
form (NFKC, then case-folded: `Straße` and `STRASSE`). A word is a run of letters, digits and `_`. Chinese and
Japanese are written without spaces: of their runs, each pair of neighbouring characters counts as a word, as search
engines do it, and so does a single character that stands alone.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar, cast, overload

import msgspec

from refold.events.core.errors import ConfigError


class TextColumn(Sequence[str]):
    """Texts in order, which do not change; a slice is a `TextColumn` too.

    Args:
        texts: each a str.

    Raises:
        ConfigError: one of them is no str, or they are one str where several texts are wanted.
    """

    __slots__ = ("_lengths", "_texts")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        if isinstance(texts, str):
            raise ConfigError("a TextColumn is made of several texts; put the one into a list")
        self._texts: tuple[str, ...] = tuple(texts)
        for place, text in enumerate(self._texts):
            if not isinstance(text, str):
                raise ConfigError(f"a TextColumn is made of texts, and item {place} is {type(text).__name__}")
        self._lengths: tuple[int, ...] | None = None

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> "TextColumn": ...
    def __getitem__(self, place: int | slice) -> "str | TextColumn":
        if isinstance(place, slice):
            return TextColumn(self._texts[place])
        return self._texts[place]

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __contains__(self, text: object) -> bool:
        return text in self._texts

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TextColumn):
            return self._texts == other._texts
        if isinstance(other, list | tuple):
            return self._texts == tuple(cast("Sequence[object]", other))
        return NotImplemented

    def __deepcopy__(self, memo: object) -> "TextColumn":
        return self

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self._texts[:3]))
        more = f", … {len(self) - 3} more" if len(self) > 3 else ""
        return f"TextColumn([{shown}{more}])"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths in UTF-8 bytes, in order."""
        if self._lengths is None:
            self._lengths = tuple(map(_bytes_of, self._texts))
        return self._lengths

    @property
    def total_bytes(self) -> int:
        """Sum of the lengths, in UTF-8 bytes."""
        return sum(self.lengths)

    @property
    def mean_bytes(self) -> float:
        """Mean length, in UTF-8 bytes; 0.0 where there are no texts."""
        return self.total_bytes / len(self) if self._texts else 0.0

    @property
    def longest(self) -> str | None:
        """The text of most UTF-8 bytes, the first of several; None where there are no texts."""
        return self._first_with(max)

    @property
    def shortest(self) -> str | None:
        """The text of fewest UTF-8 bytes, the first of several; None where there are no texts."""
        return self._first_with(min)

    @property
    def most_common(self) -> str | None:
        """The text that is there most often, of several the one that comes first; None where there are no texts."""
        return Counter(self._texts).most_common(1)[0][0] if self._texts else None

    @property
    def nonempty(self) -> "TextColumn":
        """Those texts that have a character."""
        return TextColumn(filter(None, self._texts))

    def count(self, text: object) -> int:
        """Return how many of the texts are `text`."""
        return self._texts.count(text)

    def count_containing(self, part: str) -> int:
        """Return how many of the texts hold `part`, in the same letters; all of them hold the empty text."""
        return sum(part in text for text in self._texts)

    def longer_than(self, length: int) -> "TextColumn":
        """Return those texts that have more than `length` UTF-8 bytes."""
        return TextColumn(text for text, own in zip(self._texts, self.lengths, strict=True) if own > length)

    def _first_with(self, pick: Callable[[Sequence[int]], int]) -> str | None:
        return self._texts[self.lengths.index(pick(self.lengths))] if self._texts else None


def _bytes_of(text: str) -> int:
    """Return the length of a text in UTF-8; a lone surrogate counts as three bytes, as what is put in its place has."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


N = TypeVar("N", bound=str)

CHANGES_KEPT = 1_024
"""At least so many of the last changes are known, once there were so many."""


class RecentChanges(msgspec.Struct, Generic[N], kw_only=True):
    """The names of what was changed last, oldest first; part of a state."""

    names: list[N] = []
    count: int = 0
    """How many changes there have ever been."""

    def note(self, name: N) -> None:
        if len(self.names) >= 2 * CHANGES_KEPT:
            del self.names[:CHANGES_KEPT]
        self.names.append(name)
        self.count += 1

    def since(self, count: int) -> list[N] | None:
        """Return the names changed after the first `count` changes, each once; None = that is not known any more."""
        missed = self.count - count
        if missed > len(self.names):
            return None
        return list(dict.fromkeys(self.names[len(self.names) - missed :]))


_WITHOUT_SPACES = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
# Compiled when they are first needed, and kept by `re`: of so many characters that takes milliseconds.
_WORD = rf"[{_WITHOUT_SPACES}]+|[^\W{_WITHOUT_SPACES}]+"
_HAS_WITHOUT_SPACES = rf"[{_WITHOUT_SPACES}]"
_PLAIN_WORD = re.compile(r"\w+")


def words_of(text: str) -> frozenset[str]:
    if text.isascii():
        return frozenset(_PLAIN_WORD.findall(text.lower()))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    if not re.search(_HAS_WITHOUT_SPACES, folded):
        return frozenset(_PLAIN_WORD.findall(folded))
    return frozenset(word for run in re.findall(_WORD, folded) for word in _pairs(run))


def _pairs(run: str) -> list[str]:
    if len(run) == 1 or not re.match(_HAS_WITHOUT_SPACES, run):
        return [run]
    return [run[place : place + 2] for place in range(len(run) - 1)]
