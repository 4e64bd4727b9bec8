"""What is given to a store many at a time: `await memory.add_episodes([NewEpisode("agent", "Anna prefers tea"), …])`.

Each has the arguments of the method that adds one, with the same meaning.

What stores of memories give back: frozen, and nothing in them can change.

Texts as callers give them, by which something is kept or found: the same text finds what was kept under it.
"""

from collections.abc import Callable, Iterable
from typing import Self, TypeVar

import msgspec

from refold.events.core.cleaning import clean_text
from refold.events.core.errors import AgentMemoryError, CommandRejected, RefoldError, quoted
from refold.events.core.ids import MemoryId
from refold.memory.embedding import Vector

G = TypeVar("G")
C = TypeVar("C")


class NewEpisode(msgspec.Struct, frozen=True):
    """An episode for `EpisodicStore.add_episodes`; see `EpisodicStore.add_episode`."""

    agent: str
    content: str
    importance: float = 0.5
    """From 0 to 1, both included."""
    tags: tuple[str, ...] = ()


class NewEntry(msgspec.Struct, frozen=True):
    """An entry for `SemanticStore.put_many`; see `SemanticStore.put`."""

    key: str
    value: str
    tags: tuple[str, ...] = ()
    embedding: Vector | None = None
    """Finite numbers, not all of them zero; None = the store's `embed` makes it of the value, where it has one."""


def key_of_item(key: str | None, place: int) -> str | None:
    """Return the key of one of several items that are given under a key."""
    if key is not None and not isinstance(key, str):
        raise CommandRejected(f"a key must be a text, not {quoted(key)}")
    return f"{key} {place}" if key is not None else None


def commands_of(items: Iterable[G], kind: type[G], command: Callable[[G, int], C], called: str) -> list[C]:
    """Return what `command` makes of each item and its place; `called` is what the items are to the caller."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise AgentMemoryError(f"{called} must be several {kind.__name__}, not {quoted(items)}")
    commands: list[C] = []
    for place, item in enumerate(items):
        if not isinstance(item, kind):
            raise AgentMemoryError(f"{called}[{place}] must be a {kind.__name__}, not {quoted(item)}")
        try:
            commands.append(command(item, place))
        except CommandRejected as error:
            error.name_item(f"{called}[{place}]")
            raise
    return commands


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


def whole_number(given: object, what: str, least: int, error: type[RefoldError]) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise error(f"{what} must be a whole number of at least {least}, not {quoted(given)}")
    return given


def given_text(text: object, what: str) -> str:
    """Return `text` in its recorded form: see `clean_text`. Errors call it `what`, such as `a key`."""
    if not isinstance(text, str):
        raise AgentMemoryError(f"{what} must be a text, not {quoted(text)}")
    return clean_text(text)
