"""What is known: values by key, found by tag and by likeness.

Read `refold.memory.stream_object` first for what such an object is, and `refold.events.kinds.semantic` for what is
recorded. The rule: an embedding function is the application's own and is called outside of the recorded decisions; what
it gave is recorded, so a log is read without it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec

from refold.actors.hosting import Host
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.reply import ActorFuture
from refold.events.core.cleaning import clean_text
from refold.events.core.errors import AgentMemoryError, ConfigError, LogFormatError, quoted
from refold.events.core.ids import PayloadHash
from refold.events.kinds.episodic import check_tags
from refold.events.kinds.indexing import TextColumn
from refold.events.kinds.scopes import KNOWLEDGE_KIND
from refold.events.kinds.semantic import (
    BYTES_PER_NUMBER,
    SEMANTIC_CORE,
    ChangeDimension,
    ClearEntries,
    Knowledge,
    Known,
    PutEntry,
    RemoveEntry,
    SemanticCommand,
    SemanticEvent,
    check_dimension,
    check_embedding,
    check_entry,
    in_blocks,
)
from refold.events.model.cooperative import Asking, Cooperative, listed
from refold.memory.embedding import Embed, Embedder, Vector, Wanted, float32_bytes
from refold.memory.episodic import PREPARED_FROM, checked_threshold
from refold.memory.items import KnownEntry, NewEntry, SimilarEntry, commands_of, given_text, whole_number
from refold.memory.scoped import Scope, ScopedObject
from refold.memory.stream_object import loaded, outcome_of

if TYPE_CHECKING:
    from refold.memory.indexes.vectors import VectorIndex
    from refold.memory.indexes.words import EntryWords

log = logging.getLogger("refold.memory")

SIMILAR_LIMIT: Final = 5
"""So many similar entries are returned unless the caller says otherwise."""


class SemanticStore(ScopedObject[Knowledge, SemanticCommand, SemanticEvent]):
    """A semantic memory: `facts.put("capital of Portugal", "Lisbon", tags=["geography"])`.

    Methods that give an `ActorFuture` may be awaited on the loop, waited for by `.get()` in other threads, or left
    alone.

    Args:
        name: of the memory; its stream is `knowledge/<name>`.
        embed: gives the embedding of a text, at once or as an awaitable; None = embeddings are given by the caller. On
            the loop a plain function runs in a thread.
        dimension: how many numbers each embedding has, >= 1; None = as many as the first one.
        scope: whose facts a session's tools see; see `EpisodicStore`.
        clock: tells the time before a runtime has the memory; None = the machine's.

    Raises:
        ConfigError: the name, the function or the dimension cannot be one.
    """

    kind = KNOWLEDGE_KIND
    core = SEMANTIC_CORE

    def __init__(
        self,
        name: str = "main",
        *,
        embed: Embed | None = None,
        dimension: int | None = None,
        scope: Scope = "user",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, scope, clock)
        if dimension is not None:
            whole_number(dimension, "the dimension of embeddings", 1, ConfigError)
        self.dimension = dimension
        self._embedder = Embedder(embed) if embed is not None else None
        self._index: VectorIndex | None = None
        self._words: EntryWords | None = None

    @property
    def embeds(self) -> bool:
        """Whether the store makes embeddings itself."""
        return self._embedder is not None

    def settings(self) -> Sequence[SemanticCommand]:
        return (ChangeDimension(dimension=self.dimension),)

    def held(self, state: Knowledge) -> int:
        return len(state.entries)

    def opening(self, state: Knowledge) -> Sequence[SemanticCommand]:
        return () if state.given_dimension == self.dimension else (ChangeDimension(dimension=self.dimension),)

    async def attach(self, host: Host) -> None:
        await loaded("refold.memory.indexes.vectors", "refold.memory.indexes.words")
        await super().attach(host)

        def prepare(state: Knowledge) -> Asking[None]:
            if len(state.entries) >= PREPARED_FROM:
                if state.embedded:  # And words, where they are asked for.
                    yield from self._vectors_of(state)
                elif not self.embeds:
                    yield from self._words_of(state)

        try:
            await self.read_in_steps(prepare)
        except LogFormatError as error:  # Each question that needs it says so, and all others are answered.
            log.error("%s: what is similar cannot be found: %s", self.stream, error)

    def packed(
        self, commands: Sequence[SemanticCommand]
    ) -> tuple[Sequence[SemanticCommand], Mapping[PayloadHash, bytes]]:
        return in_blocks(commands)

    def payloads_of(self, state: Knowledge) -> Iterable[PayloadHash]:
        return {block.payload for block in state.blocks.values()}

    def put(
        self,
        key: str,
        value: str,
        tags: Sequence[str] = (),
        embedding: Vector | None = None,
        *,
        command_key: str | None = None,
    ) -> ActorFuture[None]:
        """Know a value under a key, in place of what was known under it.

        Args:
            key: text that is not empty.
            value: any text.
            tags: by which it is found.
            embedding: finite numbers, not all of them zero, kept as float32; None = the store's `embed` makes it of the
                value, and where there is none, the entry is not found by likeness.
            command_key: the same one with the same content counts once, also after a restart; an embedding is then not
                made again.

        Raises:
            AgentMemoryError: something of it cannot be known; names the key. At the call, or as the outcome where it
                depends on what the store holds, or on what `embed` gave.
        """
        command = _entry_put(NewEntry(key, value, cast("tuple[str, ...]", tags), embedding), command_key)
        return self._embedded([command], lambda made: self.perform(made[0]).map(_nothing))

    def put_many(self, entries: Iterable[NewEntry], *, command_key: str | None = None) -> ActorFuture[None]:
        """Know values under keys as `put` does, all of them or nothing.

        They take one message and one transaction, whose disk others wait for too: give some thousands at a time.

        Args:
            entries: in order; of two with one key, the later one stays.
            command_key: the same one with the same entries counts once, also after a restart; embeddings are then not
                made again.

        Raises:
            AgentMemoryError: one of the entries cannot be known; names it. At the call, or as the outcome, as of `put`.
        """

        def command(entry: NewEntry, place: int) -> PutEntry:
            return _entry_put(entry, f"{command_key} {place}" if command_key is not None else None)

        commands = commands_of(entries, NewEntry, command, "entries")
        return self._embedded(
            commands, lambda made: self.perform_each(made, "entries", lambda _, performed: performed).map(_nothing)
        )

    def _embedded(
        self, commands: list[PutEntry], put: Callable[[list[PutEntry]], ActorFuture[None]]
    ) -> ActorFuture[None]:
        """Return what `put` gives for the commands, each with an embedding where the store makes them."""
        lacking = [place for place, command in enumerate(commands) if command.embedding is None]
        if self._embedder is None or not lacking:
            return put(commands)
        keys = [command.key for command in commands]
        known = None if None in keys else self.read(lambda state: all(key in state.keys for key in keys))

        def made(embeddings: list[bytes] | None) -> ActorFuture[None]:
            if embeddings is None:
                return outcome_of(lambda: None, AgentMemoryError)
            whole = list(commands)
            for place, data in zip(lacking, embeddings, strict=True):
                whole[place] = msgspec.structs.replace(whole[place], embedding=data)
            return put(whole)

        wanted = [Wanted(commands[place].value, _embedding_of(commands[place].name)) for place in lacking]
        return self._embedder.then(wanted, made, loop=self._loop(), unless=known)

    def get(self, key: str) -> ActorFuture[str | None]:
        """Return the value that is known under a key, or None."""
        name = given_text(key, "a key")
        return self.read(lambda state: state.entries[name].value if name in state.entries else None)

    def entry(self, key: str) -> ActorFuture[KnownEntry | None]:
        """Return all that is known under a key, or None."""
        name = given_text(key, "a key")

        def question(state: Knowledge) -> Asking[KnownEntry | None]:
            return next(iter((yield from self._entries(state, [name] if name in state.entries else []))), None)

        return self.read_in_steps(question)

    def remove(self, key: str, *, command_key: str | None = None) -> ActorFuture[bool]:
        """Forget what is known under a key; returns whether there was something."""
        command = RemoveEntry(name=given_text(key, "a key"), key=command_key)
        return self.perform(command).map(lambda performed: performed.version > 0)

    def clear(self, *, command_key: str | None = None) -> ActorFuture[None]:
        """Forget everything."""
        return self.perform(ClearEntries(key=command_key)).map(lambda _: None)

    def by_tags(self, *tags: str) -> ActorFuture[list[KnownEntry]]:
        """Return the entries that have all of `tags`, in the order of insertion; without tags, all entries."""
        wanted = list(dict.fromkeys(given_text(tag, "a tag") for tag in tags))
        return self.read_in_steps(lambda state: self._entries(state, _tagged(state, wanted)))

    def similar(
        self, query: str | Vector, k: int = SIMILAR_LIMIT, threshold: float | None = None
    ) -> ActorFuture[list[SimilarEntry]]:
        """Return the entries whose embeddings are most similar to a query: by cosine, then by insertion.

        Args:
            query: an embedding, or a text where the store has `embed`.
            k: at most so many, >= 0.
            threshold: least cosine, included; None = any will do.

        Raises:
            AgentMemoryError: the query has no direction or another dimension, or is a text and there is no `embed`; or
                `k` or `threshold` cannot be one. At the call, or as the outcome.
        """
        whole_number(k, "k", 0, AgentMemoryError)
        if threshold is not None:
            threshold = checked_threshold(threshold, "a cosine")
        what = "the embedding of the query"
        if not isinstance(query, str):
            return self._similar(float32_bytes(query, what), k, threshold)
        if self._embedder is None:
            raise AgentMemoryError(f"{self!r} has no `embed`, so a query must be an embedding, not {quoted(query)}")
        return self._embedder.then(
            [Wanted(clean_text(query), what)],
            lambda made: self._similar(made[0] if made else b"", k, threshold),
            loop=self._loop(),
        )

    def _similar(self, data: bytes, k: int, threshold: float | None) -> ActorFuture[list[SimilarEntry]]:
        check_embedding(data, "the embedding of the query")

        def question(state: Knowledge) -> Asking[list[SimilarEntry]]:
            import numpy as np

            check_dimension(len(data) // BYTES_PER_NUMBER, state.dimension, "the embedding of the query")
            index = yield from self._vectors_of(state)
            found = yield from index.most_similar(np.frombuffer(data, dtype="<f4"), k, threshold)
            return (
                yield from listed(
                    SimilarEntry(key=key, value=state.entries[key].value, score=score, tags=state.entries[key].tags)
                    for key, score in found
                )
            )

        return self.read_in_steps(question)

    def matching(self, query: str, k: int = SIMILAR_LIMIT) -> ActorFuture[list[KnownEntry]]:
        """Return the entries that share words with a query, in key, value or tags; see `refold.events.kinds.indexing`.

        Those that share most of its words come first, then those inserted first.

        Args:
            query: any text.
            k: at most so many, >= 0.

        Raises:
            AgentMemoryError: the query or `k` cannot be one.
        """
        whole_number(k, "k", 0, AgentMemoryError)
        given_text(query, "a query")

        def question(state: Knowledge) -> Asking[list[KnownEntry]]:
            words = yield from self._words_of(state)
            return (yield from self._entries(state, (yield from words.matching(query, k))))

        return self.read_in_steps(question)

    # Looking into it

    def keys(self) -> ActorFuture[list[str]]:
        """Return all keys, in the order of insertion."""
        return self.read_in_steps(lambda state: listed(state.entries))

    def values_column(self) -> ActorFuture[TextColumn]:
        """Return all values, in the order of insertion of their keys."""

        def question(state: Knowledge) -> Cooperative[TextColumn]:
            return TextColumn((yield from listed(known.value for known in state.entries.values())))

        return self.read_in_steps(question)

    def tags(self) -> ActorFuture[list[str]]:
        """Return all tags that an entry has, in code-point order."""
        return self.read(lambda state: sorted(state.tagged))

    def most_common_tag(self) -> ActorFuture[str | None]:
        """Return the tag that most entries have, of several the first in code-point order; None = there is no tag."""
        return self.read(lambda state: min(state.tagged, key=lambda tag: (-len(state.tagged[tag]), tag), default=None))

    def count_by_tag(self, tag: str) -> ActorFuture[int]:
        """Return how many entries have a tag."""
        wanted = given_text(tag, "a tag")
        return self.read(lambda state: len(state.tagged.get(wanted, ())))

    def with_embedding(self) -> ActorFuture[list[str]]:
        """Return the keys of those entries that have an embedding, in the order of insertion."""
        return self.read_in_steps(lambda state: listed(key for key, known in state.entries.items() if known.embedded))

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return self._ref.system.loop if self._ref is not None else None

    def _entries(self, state: Knowledge, names: Iterable[str]) -> Asking[list[KnownEntry]]:
        """Return entries with their embeddings, in steps."""
        found = yield from listed((name, state.entries[name]) for name in names)
        if not any(known.block for _, known in found):
            return (yield from listed(_entry(name, known, known.embedding) for name, known in found))
        index = yield from self._vectors_of(state)
        return (
            yield from listed(
                _entry(name, known, index.vector(name) if known.block else known.embedding) for name, known in found
            )
        )

    def _vectors_of(self, state: Knowledge) -> "Asking[VectorIndex]":
        from refold.memory.indexes.vectors import VectorIndex

        if self._index is None or not self._index.fits(state):
            self._index = VectorIndex(state)
        yield from self._index.follow(state)
        return self._index

    def _words_of(self, state: Knowledge) -> "Cooperative[EntryWords]":
        from refold.memory.indexes.words import EntryWords

        if self._words is None or not self._words.follow(state):
            self._words = yield from EntryWords.made(state)
        return self._words

    def _forget_derived(self) -> None:
        self._index = None
        self._words = None


def _entry_put(entry: NewEntry, command_key: str | None) -> PutEntry:
    """Return the command that puts an entry, which is checked, with the embedding that was given."""
    check_tags(entry.tags, quoted(entry.key))
    check_entry(PutEntry(name=entry.key, value=entry.value))
    return PutEntry(
        name=clean_text(entry.key),
        value=clean_text(entry.value),
        tags=tuple(map(clean_text, entry.tags)),
        embedding=float32_bytes(entry.embedding, _embedding_of(entry.key)) if entry.embedding is not None else None,
        key=command_key,
    )


def _embedding_of(key: str) -> str:
    return f"the embedding of {quoted(key)}"


def _nothing(_: object) -> None:
    """Return None, for any outcome of a command."""


def _entry(name: str, known: Known, embedding: bytes | None) -> KnownEntry:
    return KnownEntry(key=name, value=known.value, tags=known.tags, embedding=embedding)


def _tagged(state: Knowledge, wanted: Sequence[str]) -> Iterable[str]:
    if not wanted:
        return state.entries
    keys = sorted((state.tagged.get(tag, {}) for tag in wanted), key=len)
    found = [name for name in keys[0] if all(name in others for others in keys[1:])]
    found.sort(key=lambda name: state.entries[name].number)
    return found
