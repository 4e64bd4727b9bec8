"""Where in a file of JSON Lines everything is: all that a `JsonLinesStore` keeps in memory.

Events, payloads and snapshots stay in the file and are read when they are asked for. Kept are, for each batch, its
position, its version and its place in the file (40 bytes), for each stream its name and its end (some 500 bytes), and
for each payload its hash and its place (some 250 bytes). The rule it protects: what belongs to one append is seen
together or not at all, by the reading thread too.
"""

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from refold.events.core.ids import PayloadHash
from refold.events.core.records import Snapshot, StreamHead
from refold.stores.event_store import ListedPayload, Tombstone
from refold.stores.jsonl.check import Checked, CheckedBatch, CheckedPayload
from refold.stores.jsonl.format import HeaderLine


class Span(NamedTuple):
    """Where a line is in the file, its line end included."""

    offset: int
    length: int


class Placed(NamedTuple):
    """What a line holds, and where it is."""

    checked: Checked
    span: Span


class BatchPlace(NamedTuple):
    """A batch, found in the index."""

    position: int
    span: Span


class _Stream:
    """One stream: its end, and where its batches are in the index of all."""

    __slots__ = ("batches", "head", "versions")

    def __init__(self) -> None:
        self.head: StreamHead | None = None
        self.versions = array("q")
        self.batches = array("q")


class LogIndex:
    """Finds batches, payloads and snapshots; used by two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions = array("q")
        self._offsets = array("q")
        self._lengths = array("q")
        self._streams: dict[str, _Stream] = {}
        self._names: list[str] | None = []
        self._payloads: dict[PayloadHash, Span] = {}
        self._hashes: list[PayloadHash] | None = []
        self._snapshots: dict[str, Span] = {}
        self._tombstones: list[Tombstone] = []
        self._removed_position = 0

    def add(self, placed: Iterable[Placed]) -> None:
        """Add what one append, or one other line, has brought."""
        with self._lock:
            for checked, span in placed:
                self._add(checked, span)

    def replace(self, other: "LogIndex") -> None:
        """Hold what another index holds, which nobody uses any more."""
        with self._lock:
            lock = self._lock
            self.__dict__.update(other.__dict__)
            self._lock = lock

    def _add(self, checked: Checked, span: Span) -> None:
        match checked:
            case CheckedBatch(position=position, batch=batch, chain=chain):
                stream = self._streams.get(batch.stream)
                if stream is None:
                    stream = self._streams[batch.stream] = _Stream()
                    self._names = None
                stream.versions.append(batch.expected_version + 1)
                stream.batches.append(len(self._positions))
                version = batch.expected_version + len(batch.events)
                stream.head = StreamHead(stream=batch.stream, version=version, chain=chain, pending=batch.pending)
                self._positions.append(position)
                self._offsets.append(span.offset)
                self._lengths.append(span.length)
            case CheckedPayload(hash=payload_hash):
                self._payloads.setdefault(payload_hash, span)
                self._hashes = None
            case Snapshot(stream=name):
                self._snapshots[name] = span
            case Tombstone():
                self._tombstones.append(checked)
            case HeaderLine(removed_position=position):
                self._removed_position = position
            case _:
                return  # The end of an export says nothing about what comes after it.

    def head(self, stream: str) -> StreamHead | None:
        """Return the end of one stream."""
        with self._lock:
            found = self._streams.get(stream)
            return found.head if found is not None else None

    def find_head(self, stream: str) -> tuple[int, bytes] | None:
        """Return the version and the chain of one stream."""
        head = self.head(stream)
        return (head.version, head.chain) if head is not None else None

    def list_streams(self, prefix: str, after: str, limit: int | None, with_pending: bool) -> list[StreamHead]:
        """Return the ends of streams in order of their names."""
        with self._lock:
            if self._names is None:
                self._names = sorted(self._streams)
            first = max(bisect_right(self._names, after), bisect_left(self._names, prefix))
            found: list[StreamHead] = []
            for name in islice(self._names, first, None):
                if not name.startswith(prefix) or len(found) == limit:
                    break
                head = self._streams[name].head
                if head is not None and (head.pending or not with_pending):
                    found.append(head)
            return found

    def batches_after_position(self, position: int, count: int) -> list[BatchPlace]:
        """Return the next `count` batches, beginning with the one that holds what follows after `position`."""
        with self._lock:
            first = max(bisect_right(self._positions, position) - 1, 0)
            return [self._place(number) for number in range(first, min(first + count, len(self._positions)))]

    def batches_after_version(self, stream: str, version: int, count: int) -> list[BatchPlace]:
        """Return the next `count` batches of a stream, beginning with the one that holds what follows `version`."""
        with self._lock:
            found = self._streams.get(stream)
            if found is None:
                return []
            first = max(bisect_right(found.versions, version) - 1, 0)
            return [self._place(number) for number in found.batches[first : first + count]]

    def _place(self, number: int) -> BatchPlace:
        return BatchPlace(self._positions[number], Span(self._offsets[number], self._lengths[number]))

    def has_payload(self, payload_hash: PayloadHash) -> bool:
        """Return whether there is such a payload."""
        return self.payload(payload_hash) is not None

    def payload(self, payload_hash: PayloadHash) -> Span | None:
        """Return where a payload is."""
        with self._lock:
            return self._payloads.get(payload_hash)

    def list_payloads(self, after: str, limit: int) -> list[ListedPayload]:
        """Return payloads in order of their hashes."""
        with self._lock:
            if self._hashes is None:
                self._hashes = sorted(self._payloads)
            first = bisect_right(self._hashes, after)
            names = self._hashes[first : first + limit]
            return [ListedPayload(name, self._payloads[name].length) for name in names]

    def snapshot(self, stream: str) -> Span | None:
        """Return where the last snapshot of a stream is."""
        with self._lock:
            return self._snapshots.get(stream)

    @property
    def removed_position(self) -> int:
        """Highest position that was ever removed."""
        return self._removed_position

    def list_tombstones(self, after_position: int, limit: int) -> list[Tombstone]:
        """Return tombstones in order of their positions."""
        with self._lock:
            later = [tombstone for tombstone in self._tombstones if tombstone.position > after_position]
            return sorted(later, key=lambda tombstone: tombstone.position)[:limit]
