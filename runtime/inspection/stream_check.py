"""What must hold of one stream, batch by batch, and the problems that a check finds.

Versions are 1, 2, 3… without gaps and positions increase with them; each batch begins with the event that it is named
for, has one time, not before that of the batch before, and hashes to the digest that stands beside it; every event
decodes; the invariants of its kind hold; and the list of streams says where the stream ends. The rule: one fault is
one problem. After it, the check goes on from what is there, so that it does not report the same thing again at each
later event. `PayloadCheck` checks that the payloads are there that events refer to, and are what their names say.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from refold.events.core.codec import tag_of
from refold.events.core.errors import LogFormatError
from refold.events.core.event import Event
from refold.events.core.ids import PayloadHash, event_ref, kind_and_identifier
from refold.events.core.records import EncodedBatch, StoredEvent, StreamHead, first_chain, next_chain
from refold.events.model.configuration import payload_hash
from refold.events.model.payloads import referenced_payloads
from refold.events.session.events import SessionForked
from refold.inspection.kinds import EventReader, StreamKind
from refold.stores.event_store import EventStore, WholeLog

ProblemKind = Literal[
    "version",
    "position",
    "batch",
    "time",
    "event",
    "chain",
    "head",
    "payload",
    "invariant",
    "unreadable",
    "file",
]
"""What is wrong.

`version`: versions of a stream are not 1, 2, 3… `position`: positions do not increase. `batch`: events do not belong
together as they say. `time`: time goes back, or differs within a batch. `event`: an event cannot be decoded. `chain`: a
batch is not what was appended. `head`: the list of streams says something else than the events. `payload`: content
that an event refers to is missing or changed. `invariant`: the events cannot have happened to a session.
`unreadable`: the file itself is damaged there. `file`: SQLite finds its pages or indexes damaged, or it lacks what had
been acknowledged.
"""

PAYLOADS_PER_PAGE = 1_000

PROBLEMS_KEPT = 1_000
"""Most problems that a report holds; the others are only counted."""


MESSAGE_CHARACTERS = 2_000
"""After so many characters a message is cut; it may quote what a hostile log says."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a log."""

    kind: ProblemKind
    stream: str = ""
    """Empty = it concerns the whole log."""
    version: int = 0
    """Of the event at fault; 0 and no position = it concerns the whole stream."""
    position: int | None = None
    """Of that event, where there is one."""
    message: str
    """What is wrong there; at most `MESSAGE_CHARACTERS` of it."""

    def __str__(self) -> str:
        at_event = self.version or self.position is not None
        place = event_ref(self.stream, self.version) if at_event else self.stream or "the log"
        return f"{place}: {self.message}"


class Problems:
    """The problems found so far."""

    def __init__(self) -> None:
        self.found = 0
        """How many."""
        self.kept: list[Problem] = []
        """The first `PROBLEMS_KEPT` of them."""

    def add(
        self, kind: ProblemKind, stream: str, message: str, *, version: int = 0, position: int | None = None
    ) -> None:
        """Note one more."""
        self.found += 1
        if len(self.kept) < PROBLEMS_KEPT:
            said = message if len(message) <= MESSAGE_CHARACTERS else f"{message[:MESSAGE_CHARACTERS]}…"
            self.kept.append(Problem(kind=kind, stream=stream, version=version, position=position, message=said))

    def add_at(self, event: StoredEvent, kind: ProblemKind, message: str) -> None:
        """Note one more, at an event."""
        self.add(kind, event.stream, message, version=event.version, position=event.position)


class StreamCheck:
    """Takes the batches of one stream, oldest first, then `finish`.

    Args:
        head: the end of the stream according to the list of streams, read before the batches were.
        kind: what reads its events; None = they are not decoded.
        problems: takes what is found.
    """

    def __init__(self, head: StreamHead, kind: StreamKind | None, problems: Problems) -> None:
        self.version = 0
        """Of the last event taken."""
        self._head = head
        self._kind = kind
        self._read: EventReader | None = None
        self._problems = problems
        self._position = 0
        self._at = 0
        self._chain = first_chain(head.stream)
        self._whole = True
        """Whether every event so far was there and decoded, so that the invariants mean something."""
        self._prefix: StoredEvent | None = None
        """The first event of the last batch that belongs to another stream, of which this one is a fork."""
        self._end: StoredEvent | None = None
        """First event of the batch that ends where the head says that the stream ends."""

    def add(self, batch: Sequence[StoredEvent]) -> Iterator[tuple[Event, StoredEvent]]:
        """Check one more batch, and give those of its events that decode.

        What a fork begins with is checked where it lies, and only read here.
        """
        if self._read is None and self._kind is not None:
            self._read = self._kind.reader(batch[0].stream)
        if batch[0].stream != self._head.stream:
            self._pass(batch)
            return
        self._check_order(batch)
        self._check_batch(batch)
        for stored in batch:
            event = self._decoded(stored)
            if event is not None:
                yield event, stored

    def _pass(self, batch: Sequence[StoredEvent]) -> None:
        self._prefix, self._at = batch[0], batch[0].at
        self.version, self._position = batch[-1].version, batch[-1].position
        read = self._read if self._whole else None
        try:
            if read is not None:
                for stored in batch:
                    read(stored)
        except LogFormatError:
            self._whole = False

    def _check_fork(self, event: Event, stored: StoredEvent) -> None:
        """Compare what a fork says that it goes on from with what is there."""
        prefix, self._prefix = self._prefix, None
        if prefix is None:
            return
        if not isinstance(event, SessionForked):
            self._problems.add_at(stored, "event", "begins behind events of another stream, and is no SessionForked")
        elif event.session != kind_and_identifier(stored.stream)[1]:
            self._problems.add_at(stored, "invariant", f"says that it is of session {event.session!r}")
        elif prefix.chain is None or event.chain != prefix.chain.hex():
            said = f"goes on from version {event.version} of session {event.origin!r}, whose digest is another one"
            self._problems.add_at(stored, "chain", said)

    def _check_order(self, batch: Sequence[StoredEvent]) -> None:
        for event in batch:
            if event.version != self.version + 1:
                self._whole = False
                self._problems.add_at(event, "version", f"comes after version {self.version}: events are missing")
            if event.position <= self._position:
                message = f"has position {event.position}, the event before it has {self._position}"
                self._problems.add_at(event, "position", message)
            self.version, self._position = event.version, event.position

    def _check_batch(self, batch: Sequence[StoredEvent]) -> None:
        first = batch[0]
        if first.version != first.batch:
            begins = "begins after it" if first.batch > first.version else "does not begin just before it"
            message = f"belongs to the batch of version {first.batch}, which {begins}"
            self._problems.add_at(first, "batch", message)
        if first.at < self._at:
            self._problems.add_at(first, "time", f"is {self._at - first.at:,} µs older than the event before it")
        for event in batch[1:]:
            if event.at != first.at:
                self._problems.add_at(event, "time", "has another time than the batch that it belongs to")
        for event, before in zip(batch[1:], batch, strict=False):
            if event.position > before.position + 1:
                message = f"has position {event.position}, and the event before it in its batch {before.position}"
                self._problems.add_at(event, "position", message)
        self._at = max(self._at, first.at)
        self._check_chain(batch)
        if batch[-1].version == self._head.version:
            self._end = first

    def _check_chain(self, batch: Sequence[StoredEvent]) -> None:
        first = batch[0]
        chain = next_chain(
            self._chain,
            EncodedBatch(
                stream=first.stream,
                expected_version=first.version - 1,
                at=first.at,
                events=tuple(event.data for event in batch),
                pending=first.pending or (),
                correlation=first.correlation,
                causation=first.causation,
            ),
        )
        if first.chain is None:
            self._problems.add_at(first, "chain", "has no digest, which the first event of a batch must have")
        elif first.chain != chain:
            message = f"the batch of versions {first.version} to {batch[-1].version} is not what was appended"
            self._problems.add_at(first, "chain", f"{message}: its digest is another one")
        # From the recorded digest on, so that only the batches at fault are reported.
        self._chain = first.chain or chain

    def _decoded(self, stored: StoredEvent) -> Event | None:
        if self._read is None:
            if tag_of(stored.data) is None:
                self._problems.add_at(stored, "event", "is damaged: it is no JSON object with a type")
            return None
        try:
            event, violations = self._read(stored)
        except LogFormatError as error:
            self._whole = False
            self._problems.add_at(stored, "event", str(error))
            return None
        self._check_fork(event, stored)
        if self._whole:
            for violation in violations:
                self._problems.add_at(stored, "invariant", f"{violation.invariant}: {violation.message}")
        return event

    def finish(self) -> None:
        """Compare the head with the batches taken."""
        head = self._head
        if self.version < head.version:
            self._wrong_end(f"ends at version {head.version} according to the list of streams, at {self.version} here")
        elif self._end is None:
            self._wrong_end(f"ends at version {head.version} according to the list of streams, where no batch ends")
        elif head.chain != self._end.chain:
            self._wrong_end(f"has another digest at version {head.version} in the list of streams")
        elif head.pending != (self._end.pending or ()):
            self._wrong_end(f"has other pending effects at version {head.version} in the list of streams")

    def compare_with_end_of_now(self, head: StreamHead | None) -> None:
        """Compare a head read after the batches; the stream may have grown since the first head was read."""
        version = head.version if head is not None else 0
        if version < self.version:
            self._wrong_end(f"ends at version {version} according to the list of streams, at {self.version} here")

    def _wrong_end(self, message: str) -> None:
        self._problems.add("head", self._head.stream, message)


class PayloadCheck:
    """Checks each payload once, where it is first referred to.

    Args:
        store: where payloads are.
        problems: takes what is found.
    """

    def __init__(self, store: EventStore, problems: Problems) -> None:
        self._store = store
        self._problems = problems
        self._seen: set[PayloadHash] = set()

    @property
    def count(self) -> int:
        """How many different payloads were referred to so far."""
        return len(self._seen)

    async def add(self, event: Event, stored: StoredEvent) -> None:
        """Check the payloads that an event is the first to refer to; one at a time, since each may be large."""
        for name in referenced_payloads(event):
            if name in self._seen:
                continue
            self._seen.add(name)
            payload = (await self._store.read_payloads((name,))).get(name)
            if payload is None:
                self._problems.add_at(stored, "payload", f"the payload {name} is missing")
            elif payload_hash(payload) != name:
                self._problems.add_at(stored, "payload", _changed(name, payload))

    async def check_others(self, store: WholeLog) -> None:
        """Check the payloads that no event refers to as far as today's code can read it."""
        after = ""
        while page := await store.list_payloads(after=after, limit=PAYLOADS_PER_PAGE):
            for listed in page:
                if listed.hash in self._seen:
                    continue
                payload = (await store.read_payloads((listed.hash,))).get(listed.hash)
                if payload is not None and payload_hash(payload) != listed.hash:  # One that is gone was deleted.
                    self._problems.add("payload", "", _changed(listed.hash, payload))
            if page[-1].hash <= after:
                return  # The store gives the same payloads for ever.
            after = page[-1].hash


def _changed(name: PayloadHash, payload: bytes) -> str:
    return f"the payload {name} is not what was stored: its {len(payload):,} bytes hash to something else"
