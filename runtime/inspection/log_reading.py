"""Reading a log from outside: opening it, and going through its streams and batches page by page.

What replay, `check_log` and the command share. The rule: a log of any size is read in pages, and nothing here writes
to it, so a log that another process is writing can be read at any time. All that reads a log raises LogFormatError
where the log is damaged, and PersistenceError where it cannot be read; only what users call says so again.
"""

import difflib
import os
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Self, TypeAlias, cast

import msgspec

from refold.events.core.content import DocumentBlock, ImageBlock, TextBlock
from refold.events.core.errors import ConfigError, LogFormatError, quoted
from refold.events.core.ids import PayloadHash, StreamName, kind_and_identifier, stream_name
from refold.events.core.records import StoredEvent, StreamHead
from refold.events.model.configuration import payload_hash
from refold.events.model.payloads import whole_block
from refold.inspection.times import time_words
from refold.stores.event_store import EventStore, Tombstone, WholeLog
from refold.stores.sqlite.file import is_text_log
from refold.stores.sqlite.store import SQLiteStore

EVENTS_PER_PAGE = 500
STREAMS_PER_PAGE = 1_000

NAMES_COMPARED_MAX = 10_000
"""So many sessions are looked at for names like one that does not exist."""

ReadableLog = str | os.PathLike[str] | EventStore
"""A log as callers name it: the path of its file, or an open store."""


@asynccontextmanager
async def opened(log: ReadableLog) -> AsyncGenerator[EventStore, None]:
    """Give the store of `log`: a file is opened for reading only and closed afterwards, a store is left open.

    A file whose name ends in `.jsonl` is a text log, which is imported into a temporary file first.

    Raises:
        LogFormatError: the file is not a log, is damaged, or comes from a newer Refold.
        PersistenceError: the file is missing or cannot be read.
    """
    if not isinstance(log, str | os.PathLike):
        yield log
        return
    if is_text_log(log):
        from refold.stores.jsonl.importing import open_to_read

        async with open_to_read(log) as copy:
            yield copy
        return
    async with await SQLiteStore.open(log, read_only=True) as store:
        yield store


class Batches:
    """The batches of one stream, oldest first, read page by page as they are asked for.

    Neighbours with the same `batch` are one batch; whether its first event is there is for the caller to check.
    """

    def __init__(self, store: EventStore, stream: str) -> None:
        self._store = store
        self._stream = stream
        self._read: deque[list[StoredEvent]] = deque()
        """The last one may go on in the next page."""
        self._version = 0
        self._complete = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[StoredEvent]:
        while len(self._read) < 2 and not self._complete:
            await self._turn_page()
        if not self._read:
            raise StopAsyncIteration
        return self._read.popleft()

    async def _turn_page(self) -> None:
        page = await self._store.read_stream(self._stream, after_version=self._version, limit=EVENTS_PER_PAGE)
        self._complete = len(page) < EVENTS_PER_PAGE
        batch: list[StoredEvent] = self._read[-1] if self._read else []
        for event in page:
            if batch and batch[0].batch == event.batch:
                batch.append(event)
            else:
                batch = [event]
                self._read.append(batch)
        if page:
            self._version = page[-1].version


class Streams:
    """The ends of a log's streams in order of their names, read page by page as they are asked for."""

    def __init__(self, store: EventStore, *, prefix: str = "") -> None:
        self._store = store
        self._prefix = prefix
        self._page: deque[StreamHead] = deque()
        self._after = ""
        self._complete = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamHead:
        if not self._page and not self._complete:
            page = await self._store.list_streams(prefix=self._prefix, after=self._after, limit=STREAMS_PER_PAGE)
            self._complete = len(page) < STREAMS_PER_PAGE
            self._page.extend(page)
        if not self._page:
            raise StopAsyncIteration
        head = self._page.popleft()
        self._after = head.stream
        return head


def kind_of(stream: str) -> str:
    """Return what stands before the first slash of a stream's name; all of it where there is none."""
    return stream.partition("/")[0]


async def session_head(store: EventStore, session: str) -> StreamHead:
    """Return the end of a session's stream.

    Raises:
        ConfigError: the log has no such session, or it was deleted; names those that are spelled alike.
    """
    stream = stream_name("session", session)
    head = await store.head(stream) if _can_be_a_name(session) else None
    if head is not None:
        return head
    await require_not_deleted(store, stream)
    if await _is_stream(store, session):
        raise ConfigError(
            f"no session {session!r} in {store.name}, but a stream of that name: `refold tail` and `refold export` "
            f"take it as --stream {session}"
        )
    prefix = stream_name("session", "")
    heads = await store.list_streams(prefix=prefix, limit=NAMES_COMPARED_MAX)
    alike = difflib.get_close_matches(session, [head.stream.removeprefix(prefix) for head in heads])
    if alike:
        advice = f"did you mean {' or '.join(repr(name) for name in alike)}?"
    else:
        advice = "the log has no sessions" if not heads else "`refold sessions` lists those that there are"
    raise ConfigError(f"no session {session!r} in {store.name}; {advice}")


async def stream_head(store: EventStore, stream: str) -> StreamHead:
    """Return the end of a stream.

    Raises:
        ConfigError: the log has no such stream, or it was deleted; names those that are spelled alike.
    """
    head = await store.head(stream_name(*kind_and_identifier(stream))) if _can_be_a_name(stream) else None
    if head is not None:
        return head
    await require_not_deleted(store, stream)
    heads = await store.list_streams(prefix=f"{kind_of(stream)}/", limit=NAMES_COMPARED_MAX)
    alike = difflib.get_close_matches(stream, [head.stream for head in heads])
    advice = f"; did you mean {' or '.join(repr(name) for name in alike)}?" if alike else ""
    raise ConfigError(f"no stream {stream!r} in {store.name}{advice}")


async def tombstone_of(store: EventStore, stream: str) -> Tombstone | None:
    """Return what is kept of a stream of this name that was deleted; None = none was."""
    find = getattr(store, "find_tombstone", None)  # Stores of users need not have tombstones.
    tombstone: Tombstone | None = await find(stream) if find is not None and _can_be_a_name(stream) else None
    return tombstone


async def tombstones(store: EventStore) -> AsyncGenerator[Tombstone, None]:
    """Give what is kept of each deleted stream, in order of position; nothing of a store that cannot say that."""
    if not hasattr(store, "list_tombstones"):
        return
    position = 0
    while page := await cast("WholeLog", store).list_tombstones(after_position=position, limit=EVENTS_PER_PAGE):
        for tombstone in page:
            yield tombstone
        if page[-1].position <= position:
            return  # The store gives the same tombstones for ever.
        position = page[-1].position


async def require_not_deleted(store: EventStore, stream: str) -> None:
    """Raise ConfigError if a stream of this name was deleted."""
    tombstone = await tombstone_of(store, stream)
    if tombstone is not None:
        raise ConfigError(
            f"{stream} was deleted from {store.name} on {time_words(tombstone.at)}; it had {tombstone.version:,} events"
        )


async def other_stream(store: EventStore, name: str) -> StreamHead | None:
    """Return the end of the stream `name`, such as `breaker/openai`, where no session has that name; else None."""
    if not _can_be_a_name(name) or await store.head(stream_name("session", name)) is not None:
        return None
    return await store.head(StreamName(name)) if await _is_stream(store, name) else None


async def _is_stream(store: EventStore, name: str) -> bool:
    kind, slash, identifier = name.partition("/")
    return (
        bool(kind and slash and identifier) and _can_be_a_name(name) and await store.head(StreamName(name)) is not None
    )


async def kinds_without_streams(store: EventStore, kinds: Iterable[str]) -> tuple[str, ...]:
    """Return those of `kinds` that no stream of the log has, in order."""
    return tuple(
        [
            kind
            for kind in sorted(kinds)
            if not (_can_be_a_name(kind) and await store.list_streams(prefix=f"{kind}/", limit=1))
        ]
    )


async def require_kinds(log: ReadableLog, kinds: Iterable[str]) -> None:
    """Return if a log has streams of every kind in `kinds`.

    Raises:
        ConfigError: of one it has none; names those that it has.
    """
    async with opened(log) as store:
        for kind in await kinds_without_streams(store, kinds):
            heads = await store.list_streams(limit=NAMES_COMPARED_MAX)
            there = sorted({kind_of(head.stream) for head in heads})
            if alike := difflib.get_close_matches(kind, there):
                advice = f"did you mean {' or '.join(map(repr, alike))}?"
            else:
                advice = f"its kinds: {', '.join(there)}" if there else "it is empty"
            raise ConfigError(f"no stream of {store.name} is of the kind {kind!r}; {advice}")


def _can_be_a_name(text: str) -> bool:
    """Tell whether a store can look for `text`; bytes of an argument that are not Unicode arrive as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_HASH = re.compile(r"[0-9a-f]{64}")

Name: TypeAlias = PayloadHash | str


async def content_by_hash(store: EventStore, stream: StreamName, name: Name) -> bytes:
    """Return what a session's events refer to by a hash.

    A text comes as UTF-8, an image as its file, another block as its JSON, and what is no block as it lies there.

    Args:
        stream: the session's; what only other sessions refer to is not shown.
        name: 64 hexadecimal digits.

    Raises:
        ConfigError: no event of the session refers to it.
    """
    if not isinstance(name, str) or not _HASH.fullmatch(name):
        raise ConfigError(f"{quoted(name)} is no hash of a payload; it has 64 digits out of 0-9 and a-f")
    if not await _refers(store, stream, name.encode()):
        raise ConfigError(f"nothing in {stream} has the payload {name}")
    payload = PayloadHash(name)
    found = await store.read_payloads([payload])
    if payload in found and payload_hash(found[payload]) != payload:
        raise LogFormatError(f"the payload {name} of {store.name} is damaged; restore it from a backup")
    try:
        block = whole_block(payload, found)
    except LogFormatError:
        if payload not in found:
            raise
        return found[payload]
    match block:
        case TextBlock(text=text, provider_data=None):
            return text.encode()
        case ImageBlock(data=data, url=None) | DocumentBlock(data=data, url=None):
            return data
        case _:
            return msgspec.json.encode(block)


async def _refers(store: EventStore, stream: StreamName, name: bytes) -> bool:
    """Return whether the text of an event holds a hash; no event is decoded for that."""
    version = 0
    while page := await store.read_stream(stream, after_version=version, limit=EVENTS_PER_PAGE):
        if any(name in event.data for event in page):
            return True
        version = page[-1].version
    return False
