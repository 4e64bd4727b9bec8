"""`check_log`: is a log whole, unedited and possible?

    report = await check_log("events.db")
    report.problems

Read `refold.inspection.stream_check` for what is looked at in one stream. Beside the streams one by one, the whole log
is read once in order of position, and SQLite looks through the pages and indexes of its file. The rule: damage inside
the log never raises; it becomes a problem that names its place, and the check goes on with what can still be read. Only
a file that is no log raises. A text log of which a line is damaged cannot be read; then its lines are all that is
checked, and no event is decoded.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from typing import Final, cast

import msgspec

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.records import StoredEvent, StreamHead
from refold.inspection.kinds import GivenKind, StreamKind, kinds_with
from refold.inspection.log_reading import EVENTS_PER_PAGE, Batches, ReadableLog, Streams, kind_of, opened
from refold.inspection.stream_check import PROBLEMS_KEPT, PayloadCheck, Problem, Problems, StreamCheck
from refold.stores.event_store import EventStore, WholeLog
from refold.stores.jsonl.check import find_damage
from refold.stores.sqlite.file import is_text_log, resolved
from refold.stores.sqlite.store import SQLiteStore

CHAIN_BYTES: Final = 32

UNREADABLE = (PersistenceError, UnicodeError)
"""What a store raises on rows or pages that make no sense."""


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


async def check_log(log: ReadableLog, *, kinds: Mapping[str, GivenKind] | None = None) -> CheckReport:
    """Check a log and return what is wrong with it; nothing is written.

    Args:
        log: path of the file, or an open store, which stays open. It may be in use: what is appended meanwhile is
            checked as far as it is met.
        kinds: the cores of the application's own kinds of streams, by kind; their events are decoded and folded.

    Raises:
        ConfigError: a kind cannot work.
        LogFormatError: the file is not a log at all, or comes from a newer Refold.
        PersistenceError: the file is missing or may not be read.
    """
    known = kinds_with(kinds)
    given = frozenset(kinds or ())
    try:
        async with opened(log) as store:
            check = _LogCheck(store, known, given)
            await check.run()
            return check.report()
    except LogFormatError:
        report = await _damage_of_lines(log, given)
        if report is None:
            raise
        return report


async def _damage_of_lines(log: ReadableLog, given: frozenset[str]) -> CheckReport | None:
    """Return what is wrong with the lines of a text log that cannot be read, or None if it is no such log.

    Raises:
        LogFormatError: the file is not a log at all, or comes from a newer Refold.
        PersistenceError: it cannot be read.
    """
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

    def __init__(self, store: EventStore, kinds: Mapping[str, StreamKind], given: frozenset[str]) -> None:
        self._store = store
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
                await self._payloads.check_others(cast("WholeLog", self._store))
        except UNREADABLE as error:
            self._problems.add("unreadable", "", f"the payloads cannot be listed: {error}")
        if isinstance(self._store, SQLiteStore):
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
                for event, stored in check.add(batch):
                    await self._payloads.add(event, stored)
            check.finish()
            if check.version > head.version:
                check.compare_with_end_of_now(await self._store.head(head.stream))
        except UNREADABLE as error:
            message = f"the stream cannot be read after version {check.version}: {error}"
            self._problems.add("unreadable", head.stream, message, version=check.version)

    async def _check_tombstones(self) -> None:
        """Read what is said of deleted streams; a store of a user's need not say that."""
        if not hasattr(self._store, "list_tombstones"):
            return
        store = cast("WholeLog", self._store)
        position = 0
        while page := await store.list_tombstones(after_position=position, limit=EVENTS_PER_PAGE):
            for tombstone in page:
                self._deleted.append(tombstone.stream)
                if len(tombstone.chain) != CHAIN_BYTES or tombstone.version < 1:
                    message = "its tombstone says what no stream can have been"
                    self._problems.add("chain", tombstone.stream, message, version=tombstone.version)
                if await store.head(tombstone.stream) is not None:
                    self._problems.add("head", tombstone.stream, "the stream was deleted, and is there")
            if page[-1].position <= position:
                return  # The store gives the same tombstones for ever.
            position = page[-1].position

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
