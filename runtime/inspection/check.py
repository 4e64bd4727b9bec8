"""`check_log`: is a log whole, unedited and possible?

    report = await check_log("events.db")
    report.problems

Of one stream, batch by batch: versions are 1, 2, 3… without gaps and positions increase with them; each batch begins
with the event that it is named for, has one time, not before that of the batch before, and hashes to the digest that
stands beside it; every event decodes; the invariants of its kind hold; the payloads that events refer to are there, and
are what their names say; and the list of streams says where the stream ends. Beside the streams one by one, the whole
log is read once in order of position, and SQLite looks through the pages and indexes of its file.

The rules: damage inside the log never raises; it becomes a problem that names its place, and the check goes on with
what can still be read. Only a file that is no log raises. A text log of which a line is damaged cannot be read; then
its lines are all that is checked, and no event is decoded. One fault is one problem: after it, the check goes on from
what is there, so that it does not report the same thing again at each later event.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal, cast

import msgspec

from refold.events.core.codec import tag_of
from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.event import Event
from refold.events.core.ids import PayloadHash, kind_and_identifier
from refold.events.core.records import StoredEvent, StreamHead, batch_of, event_ref, first_chain, next_chain
from refold.events.model.configuration import payload_hash
from refold.events.model.payloads import referenced_payloads
from refold.events.session.events import SessionForked
from refold.inspection.kinds import EventReader, GivenKind, StreamKind, kinds_with
from refold.inspection.log_reading import EVENTS_PER_PAGE, Batches, ReadableLog, Streams, kind_of, opened, tombstones
from refold.stores.event_store import EventStore, TellProgress, WholeLog, untold
from refold.stores.jsonl.check import find_damage
from refold.stores.past_state import last_position
from refold.stores.sqlite.file import is_text_log, resolved
from refold.stores.sqlite.store import SQLiteStore

CHAIN_BYTES: Final = 32

UNREADABLE = (PersistenceError, UnicodeError)
"""What a store raises on rows or pages that make no sense."""


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
        self.found += 1
        if len(self.kept) < PROBLEMS_KEPT:
            said = message if len(message) <= MESSAGE_CHARACTERS else f"{message[:MESSAGE_CHARACTERS]}…"
            self.kept.append(Problem(kind=kind, stream=stream, version=version, position=position, message=said))

    def add_at(self, event: StoredEvent, kind: ProblemKind, message: str) -> None:
        self.add(kind, event.stream, message, version=event.version, position=event.position)


class NotDecoded(msgspec.Struct, frozen=True, kw_only=True):
    """Streams whose events were not decoded: neither this version of Refold nor the caller knows their kind.

    Their versions, batches, times, chains and ends were checked, too.
    """

    kind: str
    streams: int


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked, and what is wrong."""

    log: str
    streams: int
    batches: int
    events: int
    payloads: int
    """Different payloads that events refer to."""
    not_decoded: tuple[NotDecoded, ...] = ()
    """In order of kind."""
    kinds_without_streams: tuple[str, ...] = ()
    """Kinds that the caller gave and no stream of the log has: mistyped, or of another log."""
    deleted: int = 0
    """Streams that were deleted, of which a tombstone says what they were."""
    deleted_streams: tuple[str, ...] = ()
    """Their names, at most `PROBLEMS_KEPT` of them."""
    problems_found: int = 0
    problems: tuple[Problem, ...] = ()
    """In order of stream and version, then those of the whole log, or in order of damaged lines; at most
    `PROBLEMS_KEPT`, the others are counted."""

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return self.problems_found == 0


async def check_log(
    log: ReadableLog, *, kinds: Mapping[str, GivenKind] | None = None, progress: TellProgress = untold
) -> CheckReport:
    """Check a log and return what is wrong with it; nothing is written.

    Args:
        log: path of the file, or an open store, which stays open. It may be in use: what is appended meanwhile is
            checked where it is met.
        kinds: the cores of the application's own kinds of streams, by kind; their events are decoded and folded.
        progress: called from time to time with what is counted, how many are done, and of how many.

    Raises:
        ConfigError: a kind cannot work.
        LogFormatError: the file is not a log at all, or comes from a newer Refold.
        PersistenceError: the file is missing or may not be read.
    """
    known = kinds_with(kinds)
    given = frozenset(kinds or ())
    try:
        async with opened(log) as store:
            check = _LogCheck(store, known, given, progress)
            await check.run()
            return check.report()
    except LogFormatError:
        report = await _damage_of_lines(log, given)
        if report is None:
            raise
        return report


async def _damage_of_lines(log: ReadableLog, given: frozenset[str]) -> CheckReport | None:
    """Return what is wrong with the lines of a text log that cannot be read, or None if it is no such log."""
    if not isinstance(log, str | os.PathLike) or not is_text_log(log):
        return None
    path = resolved(log)
    found, damage = await asyncio.to_thread(find_damage, path)
    if not damage:
        return None
    problems = Problems()
    for line in damage:
        problems.add("unreadable", line.stream, line.message, version=line.version, position=line.position)
    kinds = Counter(map(kind_of, found.streams))
    return CheckReport(
        log=str(path),
        streams=len(found.streams),
        batches=found.batches,
        events=found.events,
        payloads=found.payloads,
        not_decoded=tuple(NotDecoded(kind=kind, streams=n) for kind, n in sorted(kinds.items())),
        kinds_without_streams=tuple(sorted(given - set(kinds))),
        problems_found=problems.found,
        problems=tuple(problems.kept),
    )


class _LogCheck:
    """The check of one log under way."""

    def __init__(
        self, store: EventStore, kinds: Mapping[str, StreamKind], given: frozenset[str], progress: TellProgress
    ) -> None:
        self._store = store
        self._progress = progress
        self._end = 0
        """About so many events there are, as far as that can be read."""
        self._kinds = kinds
        self._without_streams = set(given)
        """Kinds that the caller gave and no stream had so far."""
        self._problems = Problems()
        self._payloads = PayloadCheck(store, self._problems)
        self._streams = 0
        self._batches = 0
        self._events = 0
        self._met: set[str] = set()
        """Streams that were met so far."""
        self._not_decoded: Counter[str] = Counter()
        self._deleted: list[str] = []

    async def run(self) -> None:
        with suppress(*UNREADABLE):  # It is met again, and noted, where it is checked.
            self._end = await last_position(self._store)
        try:
            async for head in Streams(self._store):
                await self._check_stream(head)
        except UNREADABLE as error:
            self._without_streams.clear()  # Which streams there are is not known.
            self._problems.add("unreadable", "", f"the streams cannot be listed: {error}")
        try:
            await self._check_tombstones()
        except UNREADABLE as error:
            self._problems.add("unreadable", "", f"the list of deleted streams cannot be read: {error}")
        try:
            await self._check_positions()
        except UNREADABLE as error:
            self._problems.add("unreadable", "", f"the log cannot be read in order of position: {error}")
        try:
            if hasattr(self._store, "list_payloads"):
                self._progress("payloads are compared with their names", 0, None)
                await self._payloads.check_others(cast("WholeLog", self._store))
        except UNREADABLE as error:
            self._problems.add("unreadable", "", f"the payloads cannot be listed: {error}")
        if isinstance(self._store, SQLiteStore):
            self._progress("SQLite looks through its pages", 0, None)
            await self._check_file(self._store)

    async def _check_file(self, store: SQLiteStore) -> None:
        """Have SQLite look through its pages and indexes, of which reads meet only some."""
        try:
            for line in await store.find_damage():
                self._problems.add("file", "", line)
        except UNREADABLE as error:
            self._problems.add("file", "", str(error))

    async def _check_stream(self, head: StreamHead) -> None:
        self._met.add(head.stream)
        self._streams += 1
        self._without_streams.discard(kind_of(head.stream))
        kind = self._kinds.get(kind_of(head.stream))
        if kind is None:
            self._not_decoded[kind_of(head.stream)] += 1
        check = StreamCheck(head, kind, self._problems)
        try:
            async for batch in Batches(self._store, head.stream):
                if batch[0].stream == head.stream:
                    self._batches += 1
                    self._events += len(batch)
                    self._progress("events", self._events, self._end or None)
                for event, stored in check.add(batch):
                    await self._payloads.add(event, stored)
            check.finish()
            if check.version > head.version:
                check.compare_with_end_of_now(await self._store.head(head.stream))
        except UNREADABLE as error:
            message = f"the stream cannot be read after version {check.version}: {error}"
            self._problems.add("unreadable", head.stream, message, version=check.version)

    async def _check_tombstones(self) -> None:
        """Read what is said of deleted streams."""
        async for tombstone in tombstones(self._store):
            self._deleted.append(tombstone.stream)
            if len(tombstone.chain) != CHAIN_BYTES or tombstone.version < 1:
                message = "its tombstone says what no stream can have been"
                self._problems.add("chain", tombstone.stream, message, version=tombstone.version)
            if await self._store.head(tombstone.stream) is not None:
                self._problems.add("head", tombstone.stream, "the stream was deleted, and is there")

    async def _check_positions(self) -> None:
        """Read the whole log once more, in order of position."""
        position = 0
        while page := await self._store.read_all(after_position=position, limit=EVENTS_PER_PAGE):
            before = position
            for event in page:
                if event.position <= position:
                    message = f"position {event.position} comes after position {position}"
                    self._problems.add_at(event, "position", message)
                if event.version < 1:  # Such an event is before every version that a stream is read from.
                    self._problems.add_at(event, "version", f"has version {event.version}; versions begin at 1")
                await self._check_listed(event)
                position = max(position, event.position)
            self._progress("events in order", position, self._end or None)
            if position == before:
                return  # The store gives the same events for ever, which has been noted.

    async def _check_listed(self, event: StoredEvent) -> None:
        """Note a stream that the list of streams lacks, unless it began after the list was read."""
        if event.stream in self._met:
            return
        self._met.add(event.stream)
        if not event.stream:
            self._problems.add_at(event, "head", "its stream has no name, so that it is in no list of streams")
        elif await self._store.head(event.stream) is None:
            self._problems.add_at(event, "head", "the stream is missing from the list of streams")

    def report(self) -> CheckReport:
        return CheckReport(
            log=self._store.name,
            streams=self._streams,
            batches=self._batches,
            events=self._events,
            payloads=self._payloads.count,
            not_decoded=tuple(NotDecoded(kind=kind, streams=n) for kind, n in sorted(self._not_decoded.items())),
            kinds_without_streams=tuple(sorted(self._without_streams)),
            deleted=len(self._deleted),
            deleted_streams=tuple(sorted(self._deleted)[:PROBLEMS_KEPT]),
            problems_found=self._problems.found,
            problems=tuple(self._problems.kept),
        )


class StreamCheck:
    """Takes the batches of one stream, oldest first, then `finish`.

    Args:
        head: the end of the stream according to the list of streams, read before the batches were.
        kind: what reads its events; None = they are not decoded.
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
        chain = next_chain(self._chain, batch_of(batch))
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
    """Checks each payload once, where it is first referred to."""

    def __init__(self, store: EventStore, problems: Problems) -> None:
        self._store = store
        self._problems = problems
        self._seen: set[PayloadHash] = set()

    @property
    def count(self) -> int:
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
