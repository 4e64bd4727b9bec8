"""Streams that begin in the middle: a fork's own events lie behind a prefix of another stream, which it only names.

The first own event of a fork has the version after the prefix, and its cause and its input both name the event that it
goes on from: `session/alice@57`. So a fork costs one event, however long the prefix is, and no table knows of it.
`joined` is the one place where prefix and own events are put together. Every store reads a stream through it, so that
all that fold, check, show or export one read all versions from 1 on without a gap; those of the prefix are the
origin's events, under its name. In order of position each event is there once.

The rule: what a fork begins with never changes. Events are only appended, and a stream with forks is not deleted.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from refold.events.core.errors import LogFormatError
from refold.events.core.ids import EventRef, StreamName
from refold.events.core.records import EncodedBatch, StoredEvent, StreamHead, event_ref
from refold.stores.event_store import EventStore

ReadOwn: TypeAlias = Callable[[StreamName, int, int | None], list[StoredEvent]]
"""Reads the events that lie in a stream itself: its name, after which version, at most how many."""

STREAMS_PER_PAGE = 1_000


class ForkPoint(msgspec.Struct, frozen=True):
    """An event that a fork goes on from."""

    stream: StreamName
    version: int


class Fork(msgspec.Struct, frozen=True):
    """A stream that begins with a prefix of another one."""

    stream: StreamName
    origin: ForkPoint
    """The last event of the prefix."""


class _Begins(Protocol):
    @property
    def stream(self) -> StreamName: ...
    @property
    def causation(self) -> EventRef | None: ...
    @property
    def correlation(self) -> EventRef | None: ...


def origin_in(first: _Begins, version: int) -> ForkPoint | None:
    """Return what a stream goes on from, given its first own batch or event and that one's version.

    None = its first event is no fork's; where it has a later version than 1, those before it are missing.
    """
    cause, before = first.causation, version - 1
    if cause is None or cause != first.correlation or before < 1:
        return None
    stream = StreamName(cause.rpartition("@")[0])
    return ForkPoint(stream, before) if stream != first.stream and cause == event_ref(stream, before) else None


def forks_at(batch: EncodedBatch) -> ForkPoint | None:
    """Return what a batch lets its stream go on from; None = it belongs to a stream that begins with version 1."""
    return origin_in(batch, batch.expected_version + 1) if batch.begins_fork else None


def begins_behind(place: ForkPoint | None, version_of: Callable[[str], int]) -> int:
    """Return the version behind which a new stream begins: 0, or that of the event which a fork goes on from.

    `version_of` gives the version of a stream, 0 where there is none.
    """
    return place.version if place is not None and version_of(place.stream) >= place.version else 0


def joined(
    own: list[StoredEvent], read_own: ReadOwn, stream: str, after_version: int, limit: int | None
) -> list[StoredEvent]:
    """Return the events of a stream behind a version, those of the prefix that it begins with first.

    `own` is what `read_own` gives of the stream itself.
    """
    name, most, last = StreamName(stream), limit, None
    parts: list[list[StoredEvent]] = []
    after = max(after_version, 0)
    while True:
        found = own if last is None else read_own(name, after_version, most)
        parts.append(found if last is None else [event for event in found if event.version <= last])
        begins_later = bool(found) and found[0].version > after + 1
        place = origin_in(found[0], found[0].version) if begins_later else None
        if place is None:
            break
        name, last = place.stream, place.version if last is None else min(last, place.version)
        most = last - after if limit is None else min(limit, last - after)
    if len(parts) == 1:
        return parts[0]
    if most is not None and len(parts[-1]) < most:
        raise LogFormatError(f"stream {stream!r} goes on from {event_ref(name, last or 0)}, which is not in the log")
    events = [event for part in reversed(parts) for event in part]
    return events if limit is None else events[:limit]


async def fork_of(store: EventStore, head: StreamHead) -> Fork | None:
    """Return what a stream goes on from, given its end; None = it begins with its own version 1."""
    first = await store.read_stream(head.stream, limit=1)
    if not first or first[0].stream == head.stream:
        return None
    low, high = 1, head.version  # The event of version `low` is of the prefix, and that of `high` its own.
    while high - low > 1:
        middle = (low + high) // 2
        [event] = await store.read_stream(head.stream, after_version=middle - 1, limit=1)
        low, high = (low, middle) if event.stream == head.stream else (middle, high)
    [own] = await store.read_stream(head.stream, after_version=high - 1, limit=1)
    place = origin_in(own, own.version)
    return Fork(head.stream, place) if place is not None else None


async def own_events(store: EventStore, head: StreamHead) -> int:
    """Return how many events lie in a stream itself, given its end."""
    fork = await fork_of(store, head)
    return head.version - (fork.origin.version if fork is not None else 0)


async def forks_in(store: EventStore, *, prefix: str) -> AsyncIterator[Fork]:
    """Yield the streams with a prefix that go on from another one, in order of their names."""
    after = ""
    names_forks = getattr(store, "names_of_forks", None)
    while heads := await store.list_streams(prefix=prefix, after=after, limit=STREAMS_PER_PAGE):
        begin_later = None if names_forks is None else await names_forks([head.stream for head in heads])
        for head in heads:
            if (begin_later is None or head.stream in begin_later) and (fork := await fork_of(store, head)) is not None:
                yield fork
        after = heads[-1].stream


async def origins_of(store: EventStore, heads: Sequence[StreamHead]) -> list[StreamHead]:
    """Return the ends of all streams that some go on from, directly or not, without those themselves."""
    found: dict[str, StreamHead] = {}
    known = {head.stream for head in heads}
    waiting = list(heads)
    while waiting:
        fork = await fork_of(store, waiting.pop())
        if fork is None or fork.origin.stream in known:
            continue
        origin = await store.head(fork.origin.stream)
        if origin is not None:
            known.add(origin.stream)
            found[origin.stream] = origin
            waiting.append(origin)
    return list(found.values())
