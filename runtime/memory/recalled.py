"""What stores of memories give back: frozen, and nothing in them can change."""

from typing import Self

import msgspec

from refold.events.ids import MemoryId


class Recalled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An episode as an `EpisodicStore` found it at some moment."""

    id: MemoryId
    agent: str
    content: str
    score: float
    """By which it was ranked among those that share as many words with the query; see `RecallPolicy`."""
    importance: float
    """What was left of its importance at that moment; see `DecayPolicy`."""
    given_importance: float
    """Its importance as it was given, 0 to 1."""
    tags: tuple[str, ...] = ()
    added_at: int
    """Microseconds since the epoch, UTC."""
    recalls: int = 0
    """How often it was recalled before."""
    shared_words: int = 0
    """How many words it shares with the query; 0 = it does not match, and nothing did, or there was no query."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


class KnownEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a `SemanticStore` knows under one key."""

    key: str
    value: str
    tags: tuple[str, ...] = ()
    embedding: bytes | None = None
    """Its numbers as float32, little-endian: `numpy.frombuffer(entry.embedding, "<f4")`; None = it has none."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


class SimilarEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a `SemanticStore` found to be similar."""

    key: str
    value: str
    score: float
    """The cosine of the angle between the two embeddings, -1 to 1."""
    tags: tuple[str, ...] = ()

    def __deepcopy__(self, memo: object) -> Self:
        return self
