"""The four functions of a semantic memory: what is known, by key, with tags and perhaps an embedding.

Read `refold.events.core.pure_core` first. An embedding is recorded as the bytes of its numbers (float32,
little-endian), so that what is searched is what was given, bit for bit. Those of one message lie together in a payload,
a block of one row for each, whose digest the events name (`in_blocks`); so a large store is read block by block. Few
and short ones, and those of older logs, are in their events. The rules: every embedding has the same number of
dimensions, only finite numbers, and a length above 0, since nothing else has an angle to another; and a key keeps its
place in the order of insertion when its value is replaced.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, assert_never

import msgspec

from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import AgentMemoryError, quoted
from refold.events.core.ids import PayloadHash
from refold.events.core.pure_core import KeyedCommand, KeyedEvent, PureCore, Recorded, State
from refold.events.kinds.episodic import check_tags
from refold.events.kinds.indexing import RecentChanges
from refold.events.model.configuration import FOLD_VERSION, payload_hash
from refold.events.model.payloads import PayloadRow

BYTES_PER_NUMBER = 4

BLOCK_BYTES_MIN: Final = 1024
"""Embeddings that take less together stay in their events: a payload takes some 200 bytes beside its content."""

BLOCK_BYTES_MAX: Final = 2 * 1024 * 1024
"""A block is read, checked and looked through in one step, a few milliseconds."""


class PutEntry(KeyedCommand, frozen=True, kw_only=True):
    """Know something under a key, in place of what was known under it."""

    name: str
    """The key that it is known under; `key` is that of the command."""
    value: str
    tags: tuple[str, ...] = ()
    embedding: bytes | None = None
    """Its numbers as float32, little-endian; None = it is not found by similarity, or `vector` alone is known."""
    vector: PayloadRow | msgspec.UnsetType | None = msgspec.UNSET
    """Where it lies, if it lies in a payload that is recorded with this; see `in_blocks`."""

    beside_content: ClassVar[frozenset[str]] = frozenset({"vector"})


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
    vector: PayloadRow | None = None
    """Where the embedding lies, if it is not here."""


class EntryRemoved(KeyedEvent, frozen=True, kw_only=True, tag="knowledge.entry_removed.v1"):
    """Nothing is known under a key any more."""

    name: str


class EntriesCleared(KeyedEvent, frozen=True, kw_only=True, tag="knowledge.entries_cleared.v1"):
    """Nothing is known any more."""


class DimensionChanged(KeyedEvent, frozen=True, kw_only=True, tag="knowledge.dimension_changed.v1"):
    """Each embedding has so many numbers."""

    dimension: int | None = None


SemanticEvent = EntryPut | EntryRemoved | EntriesCleared | DimensionChanged


class Known(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What is known under one key."""

    value: str
    tags: tuple[str, ...]
    embedding: bytes | None
    number: int
    """Version of the event by which the key came in: the order of insertion."""
    block: int = 0
    """The block that has the embedding, by its number in `Knowledge.blocks`; 0 = none."""
    row: int = 0

    @property
    def embedded(self) -> bool:
        return self.block > 0 or self.embedding is not None


class VectorBlock(msgspec.Struct, kw_only=True, gc=False):
    """A payload with embeddings of entries."""

    payload: PayloadHash
    numbers: int
    """Of each row."""
    entries: int = 0
    """So many have theirs there."""


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
    blocks: dict[int, VectorBlock] = msgspec.field(default_factory=dict[int, VectorBlock])
    """By the version of the event that was the first to name them; without those that no entry needs any more."""
    last_block: int = 0
    """That was named last."""


def in_blocks(commands: Sequence[Any]) -> tuple[Sequence[Any], dict[PayloadHash, bytes]]:
    """Return commands whose embeddings lie in blocks, and the blocks, which are recorded with them.

    The others are returned unchanged, and so are all where the embeddings are few and short.
    """
    given = [command for command in commands if isinstance(command, PutEntry) and command.embedding is not None]
    if sum(len(command.embedding or b"") for command in given) < BLOCK_BYTES_MIN:
        return commands, {}
    blocks: dict[PayloadHash, bytes] = {}
    places: list[PayloadRow] = []
    for rows in _blocks_of([command.embedding or b"" for command in given]):
        data = b"".join(rows)
        name = payload_hash(data)
        blocks[name] = data
        places += [PayloadRow(name, row, len(rows[0]) // BYTES_PER_NUMBER) for row in range(len(rows))]
    placed = iter(places)
    return [
        msgspec.structs.replace(command, vector=next(placed))
        if isinstance(command, PutEntry) and command.embedding is not None
        else command
        for command in commands
    ], blocks


def out_of_blocks(command: Any) -> Any:
    """Return a command as `in_blocks` was given it: its embedding is recorded in its event."""
    if isinstance(command, PutEntry) and command.embedding is not None:
        return msgspec.structs.replace(command, vector=msgspec.UNSET)
    return command


def _blocks_of(embeddings: Sequence[bytes]) -> Iterator[list[bytes]]:
    rows: list[bytes] = []
    for embedding in embeddings:
        if rows and (len(embedding) != len(rows[0]) or (len(rows) + 1) * len(embedding) > BLOCK_BYTES_MAX):
            yield rows
            rows = []
        rows.append(embedding)
    yield rows


def check_entry(command: PutEntry) -> None:
    if not (isinstance(command.name, str) and command.name):
        raise AgentMemoryError(f"what is known needs a text as its key, not {quoted(command.name)}")
    if not isinstance(command.value, str):
        raise AgentMemoryError(f"the value of {quoted(command.name)} must be a text, not {quoted(command.value)}")
    check_tags(command.tags, quoted(command.name))
    what = f"the embedding of {quoted(command.name)}"
    if command.embedding is not None:
        check_embedding(command.embedding, what)
    if isinstance(place := command.vector, PayloadRow):
        if place.row < 0 or place.numbers < 1:
            raise AgentMemoryError(f"{what} has no numbers")
        if command.embedding is not None:
            check_dimension(place.numbers, len(command.embedding) // BYTES_PER_NUMBER, what)


def check_embedding(embedding: bytes, what: str) -> None:
    if not embedding or len(embedding) % BYTES_PER_NUMBER:
        raise AgentMemoryError(f"{what} has no numbers")
    numbers = struct.unpack(f"<{len(embedding) // BYTES_PER_NUMBER}f", embedding)
    if not all(map(math.isfinite, numbers)):
        place = next(place for place, number in enumerate(numbers) if not math.isfinite(number))
        raise AgentMemoryError(f"{what} has {numbers[place]} at place {place}; every number must be finite, as float32")
    if not any(numbers):
        raise AgentMemoryError(f"{what} is zero in every place, so it is similar to nothing")


def check_dimension(dimension: int, expected: int, what: str) -> None:
    """Refuse a dimension that is not the expected one; 0 = any will do."""
    if expected and dimension != expected:
        raise AgentMemoryError(f"{what} has {dimension} numbers where those of the store have {expected}")


class SemanticCore(PureCore[Knowledge, SemanticCommand, SemanticEvent]):
    """The four pure functions of a semantic memory."""

    fold_version = FOLD_VERSION

    def admit(self, state: Knowledge, command: SemanticCommand) -> SemanticEvent | Recorded:
        match command:
            case PutEntry(name=name, embedding=embedding):
                check_entry(command)
                vector = command.vector if isinstance(command.vector, PayloadRow) else None
                numbers = vector.numbers if vector is not None else len(embedding or b"") // BYTES_PER_NUMBER
                if numbers:
                    known = state.entries.get(name)
                    # One that takes the place of the only one: the dimension of that binds no other entry then.
                    alone = state.embedded == 1 and known is not None and known.embedded
                    expected = state.given_dimension or 0 if alone else state.dimension
                    check_dimension(numbers, expected, f"the embedding of {quoted(name)}")
                tags = tuple(dict.fromkeys(command.tags))
                return EntryPut(
                    name=name,
                    value=command.value,
                    tags=tags,
                    embedding=embedding if vector is None else None,
                    vector=vector,
                )
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
                before, vector = state.entries.get(name), event.vector
                _leave(state, name, before)
                state.entries[name] = Known(
                    value=event.value,
                    tags=event.tags,
                    embedding=event.embedding,
                    number=before.number if before is not None else state.version,
                    block=_taken_block(state, vector) if vector is not None else 0,
                    row=vector.row if vector is not None else 0,
                )
                for tag in event.tags:
                    state.tagged.setdefault(tag, {})[name] = None
                if vector is not None or event.embedding is not None:
                    state.embedded += 1
                    numbers = vector.numbers if vector is not None else len(event.embedding or b"") // BYTES_PER_NUMBER
                    state.dimension = numbers
                state.changes.note(name)
            case EntryRemoved(name=name):
                _leave(state, name, state.entries.pop(name))
                state.changes.note(name)
            case EntriesCleared():
                state.entries.clear()
                state.tagged.clear()
                state.blocks.clear()
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


def _taken_block(state: Knowledge, place: PayloadRow) -> int:
    block = state.blocks.get(state.last_block)
    if block is None or (block.payload, block.numbers) != (place.payload, place.numbers):
        state.last_block = state.version
        block = state.blocks[state.version] = VectorBlock(payload=place.payload, numbers=place.numbers)
    block.entries += 1
    return state.last_block


def _leave(state: Knowledge, name: str, known: Known | None) -> None:
    """Have nothing but `entries` say any more that something was known under a key."""
    if known is None:
        return
    for tag in known.tags:
        del state.tagged[tag][name]
        if not state.tagged[tag]:
            del state.tagged[tag]
    if known.block:
        block = state.blocks[known.block]
        block.entries -= 1
        if not block.entries:
            del state.blocks[known.block]
    if known.embedded:
        state.embedded -= 1
        if not state.embedded:
            state.dimension = state.given_dimension or 0
