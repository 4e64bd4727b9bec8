"""What a log must hold after each step of a workload, computed beside the store and not by it.

The rule that it judges by: after any failure a log is as it was after one of the steps, whole, and not before the last
one that was acknowledged. A step is an opening for writing, an append or a snapshot; each is in the log or not.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from refold.events.core.ids import PayloadHash
from refold.events.core.records import EncodedBatch, Snapshot, StoredEvent, first_chain, next_chain

EventRow: TypeAlias = tuple[int, str, int, int, int, str, str | None, str | None, bytes | None, str | None]
"""Position, stream, version, batch, at, data, and of a batch's first event correlation, causation, chain, pending."""

HeadRow: TypeAlias = tuple[str, int, bytes, str]
SnapshotRow: TypeAlias = tuple[str, int, bytes, int, bytes]


class FoundLog(NamedTuple):
    """What a log holds, in order of position, of name, and of hash."""

    incarnation: int
    events: list[EventRow]
    heads: list[HeadRow]
    payloads: list[tuple[str, bytes]]
    snapshots: list[SnapshotRow]


class _Step(NamedTuple):
    incarnation: int
    events: int
    heads: dict[str, HeadRow]
    payloads: dict[str, bytes]
    snapshots: dict[str, SnapshotRow]

    def found(self, events: list[EventRow]) -> FoundLog:
        return FoundLog(
            incarnation=self.incarnation,
            events=events[: self.events],
            heads=[self.heads[name] for name in sorted(self.heads)],
            payloads=sorted(self.payloads.items()),
            snapshots=[self.snapshots[name] for name in sorted(self.snapshots)],
        )


class ExpectedLog:
    """Grows with each step that a store is asked for; step 0 is a log that is not there, or was never opened."""

    def __init__(self) -> None:
        self._events: list[EventRow] = []
        self._steps = [_Step(0, 0, {}, {}, {})]

    @property
    def last(self) -> int:
        """The number of the last step."""
        return len(self._steps) - 1

    @property
    def event_count(self) -> int:
        """How many events the log has after the last step."""
        return self._steps[-1].events

    def events(self) -> list[EventRow]:
        """Return all events after the last step."""
        return self._events[: self.event_count]

    def version(self, stream: str) -> int:
        """Return the version of a stream after the last step."""
        head = self._steps[-1].heads.get(stream)
        return head[1] if head is not None else 0

    def opened(self) -> int:
        """Add an opening for writing and return the step's number."""
        last = self._steps[-1]
        return self._add(last._replace(incarnation=last.incarnation + 1))

    def appended(self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes]) -> int:
        """Add an append and return the step's number; the batches go on from where their streams are."""
        last = self._steps[-1]
        heads = dict(last.heads)
        for batch in batches:
            name = batch.stream
            _, version, chain, _ = heads.get(name) or (name, 0, first_chain(name), "")
            assert version == batch.expected_version, "a workload must know where its streams are"
            chain, pending = next_chain(chain, batch), " ".join(batch.pending)
            for index, data in enumerate(batch.events):
                first = index == 0
                self._events.append(
                    (
                        len(self._events) + 1,
                        name,
                        version + index + 1,
                        version + 1,
                        batch.at,
                        data.decode(),
                        batch.correlation if first else None,
                        batch.causation if first else None,
                        chain if first else None,
                        pending if first else None,
                    )
                )
            heads[name] = (name, version + len(batch.events), chain, pending)
        kept: dict[str, bytes] = {**last.payloads, **{str(key): payload for key, payload in payloads.items()}}
        return self._add(last._replace(events=len(self._events), heads=heads, payloads=kept))

    def snapshotted(self, snapshot: Snapshot) -> int:
        """Add a snapshot that was kept and return the step's number."""
        last = self._steps[-1]
        row = (snapshot.stream, snapshot.version, snapshot.chain, snapshot.fold_version, snapshot.state)
        return self._add(last._replace(snapshots={**last.snapshots, snapshot.stream: row}))

    def snapshot_now(self, stream: str, state: bytes) -> Snapshot:
        """Return a snapshot at the end of a stream that is there."""
        name, version, chain, _ = self._steps[-1].heads[stream]
        return Snapshot(stream=name, version=version, chain=chain, fold_version=1, state=state)  # type: ignore[arg-type]

    def until(self, step: int) -> "ExpectedLog":
        """Return what is expected of a log that was found to be at a step, before anything is added."""
        copy = ExpectedLog()
        copy._steps = self._steps[: step + 1]
        copy._events = self._events[: self._steps[step].events]
        return copy

    def step_of(self, found: FoundLog, *, openings_count: bool = True) -> int | None:
        """Return the last step after which a log is as it was found, or None if it never should be so.

        Args:
            found: what the log holds.
            openings_count: whether it has to have been opened as often as it was after the step.
        """
        for step in range(self.last, -1, -1):
            expected = self._steps[step]
            if (expected.events, len(expected.payloads)) != (len(found.events), len(found.payloads)):
                continue
            if openings_count and expected.incarnation != found.incarnation:
                continue
            if expected.found(self._events)._replace(incarnation=found.incarnation) == found:
                return step
        return None

    def difference(self, found: FoundLog) -> str:
        """Return in words where a log leaves what it should be, for one that is at no step."""
        for index, (expected, row) in enumerate(zip(self._events, found.events, strict=False)):
            if expected != row:
                return f"event {index + 1} is {row!r} and was appended as {expected!r}"
        if len(found.events) > len(self._events):
            return f"it has {len(found.events)} events, and {len(self._events)} were appended"
        counts = {step.events for step in self._steps}
        if len(found.events) not in counts:
            return f"it ends within an append, at event {len(found.events)}"
        return (
            f"with {len(found.events)} events it has incarnation {found.incarnation}, {len(found.heads)} streams, "
            f"{len(found.payloads)} payloads and {len(found.snapshots)} snapshots, which is no state that it was in"
        )

    def _add(self, step: _Step) -> int:
        self._steps.append(step)
        return self.last


def row_of(event: StoredEvent) -> EventRow:
    """Return an event that a store gave back in the form of a row."""
    pending = " ".join(event.pending) if event.pending is not None else None
    return (
        event.position,
        event.stream,
        event.version,
        event.batch,
        event.at,
        event.data.decode(),
        event.correlation,
        event.causation,
        event.chain,
        pending,
    )
