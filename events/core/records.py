"""The shapes in which batches enter a store and leave it, what refers to an event, and the digest that chains them.

Stores know nothing of event classes: they keep `data`, the JSON text of one event, whose `type` member is
the event's versioned tag (`session.run_started.v1`). `refold.events.core.codec` turns events into these records
and back. Unsent batches (`EncodedBatch`) and stored events (`StoredEvent`) are different types on purpose.

The chain: each batch's digest covers the digest before it, so that an edited, removed or reordered row of a
stream is found when the digests are computed again (`refold check`). It is evidence against accident and
against editing of the middle, not against a person who rewrites the whole tail.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from refold.events.core.errors import LogFormatError
from refold.events.core.ids import EventRef, StreamName

VERSION_DIGITS_MAX = 19
"""Of a version in a reference; a log holds versions below 2**63."""

_encode = msgspec.json.Encoder().encode


class EncodedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A stimulus and its consequences, encoded, not yet in any store."""

    stream: StreamName
    expected_version: int
    """Version the writer folded up to; 0 = no such stream. The first event becomes the version after it."""
    at: int
    """Microseconds since the epoch, UTC; the same for every event of the batch."""
    events: tuple[bytes, ...]
    """UTF-8 JSON of each event, at least one, stimulus first."""
    pending: tuple[str, ...] = ()
    """Keys of the effects that are in flight once the batch is true, in a fixed order; no key holds a space."""
    correlation: EventRef | None = None
    """The input (or timer) that everything here goes back to; None = the batch's own stimulus."""
    causation: EventRef | None = None
    """The event that directly caused the stimulus; None = it came from outside."""
    begins_fork: bool = False
    """It begins a stream that goes on from the event that `causation` and `correlation` name, which is that of
    `expected_version` in another stream; see `refold.stores.forked`."""


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """Where a batch ended up. Its events have consecutive versions and consecutive positions."""

    stream: StreamName
    position: int
    """Position of the batch's first event."""
    version: int
    """The stream's version after the batch, which is that of its last event."""
    chain: bytes
    """Digest after the batch, 32 bytes."""


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event as a store gives it back, not decoded."""

    position: int
    """Place in the log; increasing, gaps allowed."""
    stream: StreamName
    version: int
    """Place in the stream, from 1, no gaps. A fork's own events begin behind those of the prefix that it names."""
    batch: int
    """Version of the first event of the batch that it was appended in."""
    at: int
    """Microseconds since the epoch, UTC."""
    data: bytes
    """UTF-8 JSON."""
    correlation: EventRef | None = None
    """On the first event of a batch only, as it was given in the batch."""
    causation: EventRef | None = None
    """On the first event of a batch only, as it was given in the batch."""
    chain: bytes | None = None
    """On the first event of a batch only: the digest after the whole batch."""
    pending: tuple[str, ...] | None = None
    """On the first event of a batch only: the batch's pending keys."""


class StreamHead(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a stream, as the store's cache of stream ends tells it."""

    stream: StreamName
    version: int
    chain: bytes
    pending: tuple[str, ...]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A folded state at one version: a cache, used only where all of its coordinates agree with log and code."""

    stream: StreamName
    version: int
    chain: bytes
    """The stream's digest at that version."""
    fold_version: int
    """The core's FOLD_VERSION that made it."""
    state: bytes
    """The encoded state."""


def first_chain(stream: str) -> bytes:
    """Return the digest before a stream's first batch; it covers the name, so rows cannot change streams."""
    return hashlib.sha256(b"refold stream\0" + stream.encode()).digest()


def next_chain(previous: bytes, batch: EncodedBatch) -> bytes:
    """Return the SHA-256 digest after `batch`, given the 32-byte digest before it.

    It covers everything that a store keeps of a batch except positions, which an import may change.
    """
    header = _encode(
        (
            batch.expected_version,
            batch.at,
            batch.pending,
            batch.correlation,
            batch.causation,
            list(map(len, batch.events)),
        )
    )
    return hashlib.sha256(b"".join((previous, header, b"\n", *batch.events))).digest()


def stored_events(batch: EncodedBatch, position: int, chain: bytes | None = None) -> list[StoredEvent]:
    """Return the events of a batch as a store gives them back, the first of them at `position`."""
    version = batch.expected_version + 1
    first, *rest = (
        StoredEvent(
            position=position + index,
            stream=batch.stream,
            version=version + index,
            batch=version,
            at=batch.at,
            data=data,
        )
        for index, data in enumerate(batch.events)
    )
    told = {"correlation": batch.correlation, "causation": batch.causation, "chain": chain, "pending": batch.pending}
    return [msgspec.structs.replace(first, **told), *rest]


def batch_of(stored: Sequence[StoredEvent]) -> EncodedBatch:
    """Return what was appended as these events of one batch; whether it began a fork is not told."""
    first = stored[0]
    return EncodedBatch(
        stream=first.stream,
        expected_version=first.version - 1,
        at=first.at,
        events=tuple(event.data for event in stored),
        pending=first.pending or (),
        correlation=first.correlation,
        causation=first.causation,
    )


def event_ref(stream: str, version: int) -> EventRef:
    """Return the reference to one event, `"session/alice@3"`."""
    return EventRef(f"{stream}@{version}")


def version_in(reference: EventRef) -> int:
    """Return the version of the event that a recorded reference names."""
    version = reference.rpartition("@")[2]
    if not (version.isascii() and version.isdecimal() and len(version) <= VERSION_DIGITS_MAX):
        raise LogFormatError(f"the log is damaged: {reference[:80]!r} does not name an event")
    return int(version)
