"""The four functions of a semantic memory: what is known, by key, with tags and perhaps an embedding.

Read `refold.events.core.pure_core` first. An embedding is recorded as the bytes of its numbers (float32,
little-endian), so that what is folded is what was given, bit for bit. The rules: every embedding has the same number of
dimensions, only finite numbers, and a length above 0, since nothing else has an angle to another; and a key keeps its
place in the order of insertion when its value is replaced.
"""

import math
import struct
from typing import assert_never

import msgspec

from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import AgentMemoryError
from refold.events.core.pure_core import KeyedCommand, KeyedEvent, PureCore, Recorded, State
from refold.events.kinds.episodic import check_tags
from refold.events.kinds.indexing import RecentChanges
from refold.events.model.configuration import FOLD_VERSION

KNOWLEDGE_KIND = "knowledge"

BYTES_PER_NUMBER = 4


class PutEntry(KeyedCommand, frozen=True, kw_only=True):
    """Know something under a key, in place of what was known under it."""

    name: str
    """The key that it is known under; `key` is that of the command."""
    value: str
    tags: tuple[str, ...] = ()
    embedding: bytes | None = None
    """Its numbers as float32, little-endian; None = it is not found by similarity."""


class RemoveEntry(KeyedCommand, frozen=True, kw_only=True):
    """Forget what is known under a key."""

    name: str


class ClearEntries(KeyedCommand, frozen=True, kw_only=True):
    """Forget everything."""


class ChangeDimension(KeyedCommand, frozen=True, kw_only=True):
    """Say how many numbers each embedding has."""

    dimension: int | None
    """At least 1; None = as many as the first one."""


SemanticCommand = PutEntry | RemoveEntry | ClearEntries | ChangeDimension


class EntryPut(KeyedEvent, frozen=True, kw_only=True, tag="knowledge.entry_put.v1"):
    """Something is known under a key."""

    name: str
    value: str
    tags: tuple[str, ...] = ()
    embedding: bytes | None = None
    """Float32, little-endian; Base64 in the log."""


class EntryRemoved(KeyedEvent, frozen=True, kw_only=True, tag="knowledge.entry_removed.v1"):
    """Nothing is known under a key any more."""

    name: str


class EntriesCleared(KeyedEvent, frozen=True, kw_only=True, tag="knowledge.entries_cleared.v1"):
    """Nothing is known any more."""


class DimensionChanged(KeyedEvent, frozen=True, kw_only=True, tag="knowledge.dimension_changed.v1"):
    """Each embedding has so many numbers."""

    dimension: int | None = None


SemanticEvent = EntryPut | EntryRemoved | EntriesCleared | DimensionChanged


class Known(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known under one key."""

    value: str
    tags: tuple[str, ...]
    embedding: bytes | None
    number: int
    """Version of the event by which the key came in: the order of insertion."""


class Knowledge(State):
    """What a semantic memory's events add up to."""

    entries: dict[str, Known] = msgspec.field(default_factory=dict[str, Known])
    """By key, in order of insertion."""
    tagged: dict[str, dict[str, None]] = msgspec.field(default_factory=dict[str, dict[str, None]])
    """The keys that have a tag."""
    embedded: int = 0
    """How many entries have an embedding."""
    given_dimension: int | None = None
    dimension: int = 0
    """Numbers of each embedding; 0 = as many as the next one has."""
    changes: RecentChanges[str] = msgspec.field(default_factory=RecentChanges[str])


def check_entry(command: PutEntry) -> None:
    """Return where something can be known, beside all else.

    Raises:
        AgentMemoryError: the key or the value cannot be one, or the embedding has no direction.
    """
    if not (isinstance(command.name, str) and command.name):
        raise AgentMemoryError(f"what is known needs a text as its key, not {command.name!r:.80}")
    if not isinstance(command.value, str):
        raise AgentMemoryError(f"the value of {command.name!r:.80} must be a text, not {command.value!r:.80}")
    check_tags(command.tags, repr(command.name)[:80])
    if command.embedding is not None:
        check_embedding(command.embedding, f"the embedding of {command.name!r:.80}")


def check_embedding(embedding: bytes, what: str) -> None:
    """Return where the bytes are those of a vector with a direction.

    Raises:
        AgentMemoryError: it is empty, all zero, or has a number that is NaN or infinite (as float32).
    """
    if not embedding or len(embedding) % BYTES_PER_NUMBER:
        raise AgentMemoryError(f"{what} has no numbers")
    numbers = struct.unpack(f"<{len(embedding) // BYTES_PER_NUMBER}f", embedding)
    if not all(map(math.isfinite, numbers)):
        place = next(place for place, number in enumerate(numbers) if not math.isfinite(number))
        raise AgentMemoryError(f"{what} has {numbers[place]} at place {place}; every number must be finite, as float32")
    if not any(numbers):
        raise AgentMemoryError(f"{what} is zero in every place, so it is similar to nothing")


def check_dimension(dimension: int, expected: int, what: str) -> None:
    """Return where `dimension` is the expected one, or any will do, which 0 means.

    Raises:
        AgentMemoryError: it is not.
    """
    if expected and dimension != expected:
        raise AgentMemoryError(f"{what} has {dimension} numbers where those of the store have {expected}")


class SemanticCore(PureCore[Knowledge, SemanticCommand, SemanticEvent]):
    """The four pure functions of a semantic memory."""

    fold_version = FOLD_VERSION

    def admit(self, state: Knowledge, command: SemanticCommand) -> SemanticEvent | Recorded:
        """Return what `command` becomes.

        Raises:
            AgentMemoryError: what it gives cannot be known.
        """
        match command:
            case PutEntry(name=name, embedding=embedding):
                check_entry(command)
                known = state.entries.get(name)
                if embedding is not None and not (state.embedded == 1 and known and known.embedding is not None):
                    _check_fits(state.dimension, embedding, name)
                elif embedding is not None:  # It takes the place of the only one, whose dimension binds nobody then.
                    _check_fits(state.given_dimension or 0, embedding, name)
                tags = tuple(dict.fromkeys(command.tags))
                return EntryPut(name=name, value=command.value, tags=tags, embedding=embedding)
            case RemoveEntry(name=name):
                return EntryRemoved(name=name) if name in state.entries else Recorded(0)
            case ClearEntries():
                return EntriesCleared() if state.entries else Recorded(0)
            case ChangeDimension(dimension=dimension):
                if dimension is not None and dimension < 1:
                    raise AgentMemoryError(f"the dimension of embeddings must be at least 1, not {dimension}")
                if dimension is not None and state.embedded and dimension != state.dimension:
                    raise AgentMemoryError(
                        f"the store holds {state.embedded} embeddings of {state.dimension} numbers, not {dimension}; "
                        "clear it first, or use another store"
                    )
                same = dimension == state.given_dimension
                return Recorded(0) if same else DimensionChanged(dimension=dimension)
            case _:
                assert_never(command)

    def evolve(self, state: Knowledge, event: SemanticEvent) -> Knowledge:
        match event:
            case EntryPut(name=name):
                before = state.entries.get(name)
                _leave(state, name, before)
                state.entries[name] = Known(
                    value=event.value,
                    tags=event.tags,
                    embedding=event.embedding,
                    number=before.number if before is not None else state.version,
                )
                for tag in event.tags:
                    state.tagged.setdefault(tag, {})[name] = None
                if event.embedding is not None:
                    state.embedded += 1
                    state.dimension = len(event.embedding) // BYTES_PER_NUMBER
                state.changes.note(name)
            case EntryRemoved(name=name):
                _leave(state, name, state.entries.pop(name))
                state.changes.note(name)
            case EntriesCleared():
                state.entries.clear()
                state.tagged.clear()
                state.embedded = 0
                state.dimension = state.given_dimension or 0
                state.changes = RecentChanges[str]()
            case DimensionChanged(dimension=dimension):
                state.given_dimension = dimension
                if not state.embedded:
                    state.dimension = dimension or 0
            case _:
                assert_never(event)
        return state


SEMANTIC_CORE = CheckedCore(SemanticCore)
"""Decides for every such memory."""


def _check_fits(dimension: int, embedding: bytes, name: str) -> None:
    check_dimension(len(embedding) // BYTES_PER_NUMBER, dimension, f"the embedding of {name!r:.80}")


def _leave(state: Knowledge, name: str, known: Known | None) -> None:
    """Have nothing but `entries` say any more that something was known under a key."""
    if known is None:
        return
    for tag in known.tags:
        del state.tagged[tag][name]
        if not state.tagged[tag]:
            del state.tagged[tag]
    if known.embedding is not None:
        state.embedded -= 1
        if not state.embedded:
            state.dimension = state.given_dimension or 0
