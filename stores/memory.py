"""A real event store in memory: for tests, for rehearsal, and for sessions that need not outlive the process.

Read `refold.stores.event_store` first. The rule it protects: an append works out everything before it changes
anything, so a refused append leaves no trace.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import islice

from refold.events.core.errors import PersistenceError, StreamDeleted, WrongExpectedVersion
from refold.events.core.ids import PayloadHash, StreamName
from refold.events.core.records import (
    Appended,
    EncodedBatch,
    Snapshot,
    StoredEvent,
    StreamHead,
    first_chain,
    next_chain,
    stored_events,
)
from refold.stores.append_rules import FaultPoint, check_append, check_limit, check_snapshot, no_fault
from refold.stores.event_store import ListedPayload, Tombstone
from refold.stores.forked import begins_behind, forks_at, joined, origin_in


class InMemoryStore:
    """An `EventStore` that keeps everything in this object and loses it with the object."""

    def __init__(self, *, fault: FaultPoint = no_fault) -> None:
        """Make an empty store.

        Args:
            fault: called at the named points of each append; see `refold.stores.append_rules.FaultPoint`.
        """
        self._fault = fault
        self._log: list[StoredEvent] = []
        self._streams: dict[str, list[StoredEvent]] = {}
        self._heads: dict[str, StreamHead] = {}
        self._names: list[str] = []
        self._payloads: dict[PayloadHash, bytes] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._tombstones: dict[str, Tombstone] = {}
        self._removed_position = 0
        self._closed = False

    @property
    def name(self) -> str:
        return ":memory:"

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        self._require_open()
        payloads = payloads or {}
        check_append(batches, payloads)
        self._fault("append.begun")
        heads: dict[str, StreamHead] = {}
        appended: list[Appended] = []
        events: list[StoredEvent] = []
        last = max(self._removed_position, self._log[-1].position if self._log else 0)
        for batch in batches:
            if batch.stream in self._tombstones:
                raise StreamDeleted(batch.stream)
            head = heads.get(batch.stream) or self._heads.get(batch.stream)
            if head is not None and batch.begins_fork:
                raise WrongExpectedVersion(batch.stream, 0, head.version)
            version = head.version if head else begins_behind(forks_at(batch), self._version_of)
            if version != batch.expected_version:
                raise WrongExpectedVersion(batch.stream, batch.expected_version, version)
            chain = next_chain(head.chain if head else first_chain(batch.stream), batch)
            position = last + len(events) + 1
            events += stored_events(batch, position, chain)
            version += len(batch.events)
            heads[batch.stream] = StreamHead(stream=batch.stream, version=version, chain=chain, pending=batch.pending)
            appended.append(Appended(stream=batch.stream, position=position, version=version, chain=chain))
        self._fault("append.inserted")
        self._keep(events, heads, payloads)
        self._fault("append.committed")
        return appended

    def _version_of(self, stream: str) -> int:
        head = self._heads.get(stream)
        return head.version if head is not None else 0

    def _keep(
        self, events: list[StoredEvent], heads: dict[str, StreamHead], payloads: Mapping[PayloadHash, bytes]
    ) -> None:
        for name in heads:
            if name not in self._heads:
                insort(self._names, name)
        self._heads.update(heads)
        self._log += events
        for event in events:
            self._streams.setdefault(event.stream, []).append(event)
        self._payloads.update(payloads)

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        self._require_open()
        own = self._read_own(StreamName(stream), after_version, limit)
        return joined(own, self._read_own, stream, after_version, limit)

    def _read_own(self, stream: str, after_version: int, limit: int | None) -> list[StoredEvent]:
        return _page(self._streams.get(stream, []), after_version, limit)

    async def read_all(self, *, after_position: int = 0, limit: int = 1000) -> list[StoredEvent]:
        self._require_open()
        check_limit(limit)
        start = bisect_right(self._log, after_position, key=lambda event: event.position)
        return self._log[start : start + limit]

    async def head(self, stream: str) -> StreamHead | None:
        self._require_open()
        return self._heads.get(stream)

    async def list_streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None, with_pending: bool = False
    ) -> list[StreamHead]:
        self._require_open()
        check_limit(limit)
        heads = (self._heads[name] for name in self._names[bisect_right(self._names, after) :])
        wanted = (head for head in heads if head.stream.startswith(prefix) and (head.pending or not with_pending))
        return list(islice(wanted, limit))

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        self._require_open()
        return {wanted: self._payloads[wanted] for wanted in hashes if wanted in self._payloads}

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        self._require_open()
        check_snapshot(snapshot)
        if snapshot.stream in self._heads:
            self._snapshots[snapshot.stream] = snapshot

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        self._require_open()
        return self._snapshots.get(stream)

    async def list_payloads(self, *, after: str = "", limit: int) -> list[ListedPayload]:
        self._require_open()
        check_limit(limit)
        names = nsmallest(limit, (name for name in self._payloads if name > after))
        return [ListedPayload(name, len(self._payloads[name])) for name in names]

    async def removed_position(self) -> int:
        self._require_open()
        return self._removed_position

    async def list_tombstones(self, *, after_position: int = 0, limit: int) -> list[Tombstone]:
        self._require_open()
        check_limit(limit)
        later = (tombstone for tombstone in self._tombstones.values() if tombstone.position > after_position)
        return nsmallest(limit, later, key=lambda tombstone: tombstone.position)

    async def find_tombstone(self, stream: str) -> Tombstone | None:
        """Return what a deleted stream was, or None if no stream of that name was deleted."""
        self._require_open()
        return self._tombstones.get(stream)

    async def delete_streams(
        self, streams: Sequence[StreamHead], payloads: Iterable[PayloadHash], *, after_position: int, at: int
    ) -> int:
        """Delete streams with their snapshots, and payloads, or nothing; see `ErasableLog`."""
        self._require_open()
        for head in streams:
            found = self._heads.get(head.stream)
            if found is None or (found.version, found.chain) != (head.version, head.chain):
                raise WrongExpectedVersion(head.stream, head.version, found.version if found else 0)
        names = {head.stream for head in streams}
        for event in self._log[bisect_right(self._log, after_position, key=lambda event: event.position) :]:
            place = origin_in(event, event.version)
            if place is not None and place.stream in names and event.stream not in names:
                raise WrongExpectedVersion(place.stream, place.version, self._heads[place.stream].version)
        for head in streams:
            position = self._streams.pop(head.stream)[-1].position
            del self._heads[head.stream]
            del self._names[bisect_left(self._names, head.stream)]
            self._snapshots.pop(head.stream, None)
            self._removed_position = max(self._removed_position, position)
            self._tombstones[head.stream] = Tombstone(
                position=position, stream=head.stream, version=head.version, chain=head.chain, at=at
            )
        self._log = [event for event in self._log if event.stream not in names]
        later = [event.data for event in self._log if event.position > after_position]
        gone = [
            name for name in payloads if name in self._payloads and not any(name.encode() in data for data in later)
        ]
        for name in gone:
            del self._payloads[name]
        return len(gone)

    async def empty_wal(self) -> bool:
        """Return True: nothing lies beside it."""
        self._require_open()
        return True

    async def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise PersistenceError(f"the store {self.name} is closed; open another")


def _page(events: list[StoredEvent], after: int, limit: int | None) -> list[StoredEvent]:
    check_limit(limit)
    start = max(after - events[0].version + 1, 0) if events else 0
    return events[start:] if limit is None else events[start : start + limit]
