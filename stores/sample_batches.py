"""Small batches and payloads for tests of stores, and what a store must give back of them."""

import hashlib
from collections.abc import Sequence

from refold.events.core.ids import EventRef, PayloadHash, StreamName
from refold.events.core.records import Appended, EncodedBatch, StoredEvent


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


def payload(data: bytes) -> dict[PayloadHash, bytes]:
    return {PayloadHash(hashlib.sha256(data).hexdigest()): data}


def expected_events(batches: Sequence[EncodedBatch], appended: Sequence[Appended]) -> list[StoredEvent]:
    """Return what a store must give back of batches that it says are at these places."""
    events: list[StoredEvent] = []
    for given, place in zip(batches, appended, strict=True):
        first = given.expected_version + 1
        for index, data in enumerate(given.events):
            head = index == 0
            events.append(
                StoredEvent(
                    position=place.position + index,
                    stream=given.stream,
                    version=first + index,
                    batch=first,
                    at=given.at,
                    data=data,
                    correlation=given.correlation if head else None,
                    causation=given.causation if head else None,
                    chain=place.chain if head else None,
                    pending=given.pending if head else None,
                )
            )
    return events
