"""Small batches and payloads for tests of stores, and what a store must give back of them."""

import hashlib
from collections.abc import Sequence

import msgspec

from refold.events.core.ids import EventRef, PayloadHash, StreamName
from refold.events.core.records import Appended, EncodedBatch, StoredEvent, stored_events


def batch(
    stream: str,
    expected_version: int,
    events: int = 1,
    *,
    at: int = 1_700_000_000_000_000,
    pending: tuple[str, ...] = (),
    correlation: str | None = None,
    causation: str | None = None,
) -> EncodedBatch:
    """Return a batch of so many small events, each different from all others of its stream."""
    return EncodedBatch(
        stream=StreamName(stream),
        expected_version=expected_version,
        at=at,
        events=tuple(b'{"type":"test.v1","n":%d}' % (expected_version + 1 + index) for index in range(events)),
        pending=pending,
        correlation=EventRef(correlation) if correlation is not None else None,
        causation=EventRef(causation) if causation is not None else None,
    )


def fork(stream: str, origin: str, version: int, events: int = 1) -> EncodedBatch:
    """Return the first own batch of a stream that goes on from a version of another one."""
    place = f"{origin}@{version}"
    first = batch(stream, version, events, correlation=place, causation=place)
    return msgspec.structs.replace(first, begins_fork=True)


def payload(data: bytes) -> dict[PayloadHash, bytes]:
    return {PayloadHash(hashlib.sha256(data).hexdigest()): data}


def expected_events(batches: Sequence[EncodedBatch], appended: Sequence[Appended]) -> list[StoredEvent]:
    """Return what a store must give back of batches that it says are at these places."""
    pairs = zip(batches, appended, strict=True)
    return [event for given, place in pairs for event in stored_events(given, place.position, place.chain)]
