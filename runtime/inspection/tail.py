"""`follow_log`: the events of a log as they are appended, from this process or another one.

    async with aclosing(follow_log("events.db", after=projection.position)) as events:
        async for stored in events:
            projection.apply(stored)

The log is read, page by page, and again every `poll_s` seconds; between two reads no transaction is open, so the writer
neither waits for a follower nor is kept from cutting its WAL back. Read `refold.inspection.log_reading` first;
`Following` decodes the events, and finds what their batches go back to. The rules: events come in order of position,
each once, over any number of restarts of the writer; a log that was replaced by another one ends in an error instead of
in a mixture of two; and an event that today's code cannot decode, of a user's own kind or of a newer Refold, is shown
as it was recorded, so that a follower sees all of the log.
"""

import os
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from refold.actors.kernel.clock import Clock, SystemClock
from refold.events.core.codec import tag_of
from refold.events.core.errors import ConfigError, LogFormatError, PersistenceError
from refold.events.core.event import Event
from refold.events.core.ids import EventRef, StreamName
from refold.events.core.records import StoredEvent, event_ref
from refold.inspection.kinds import KINDS
from refold.inspection.log_reading import EVENTS_PER_PAGE, ReadableLog, kind_of, opened
from refold.inspection.summaries import event_words
from refold.stores.event_store import EventStore
from refold.stores.sqlite.file import is_text_log

POLL_S: Final = 0.2
"""Seconds between two looks at a log in which there was nothing new."""


async def follow_log(
    log: ReadableLog,
    *,
    after: int = 0,
    stream: str | None = None,
    follow: bool = True,
    poll_s: float = POLL_S,
    clock: Clock | None = None,
) -> AsyncGenerator[StoredEvent, None]:
    """Give the events after a position, those there are and those to come, in order of position, each once.

    Events are as the store gives them: `SESSION_CODEC.decode(stored)` is the event of a session. A reader
    that keeps the position of the last one that it dealt with goes on there after a restart.

    Args:
        log: path of the file, or an open store, which stays open. It has to be there already.
        after: only events with a greater position; 0 = from the beginning.
        stream: only this stream's events.
        follow: wait for those to come; False = end with the last one there is, as a text log always does.
        poll_s: seconds between two looks at a log in which there was nothing new.
        clock: measures them; None = the machine's.

    Raises:
        ConfigError: `poll_s` is not greater than 0, or `after` is negative.
        LogFormatError: the file is not a log, is damaged, or comes from a newer Refold.
        PersistenceError: the log cannot be read; it is gone, or another one has taken its place.
    """
    if not poll_s > 0:
        raise ConfigError(f"poll_s is {poll_s}; it must be greater than 0")
    if after < 0:
        raise ConfigError(f"after is {after}; the first position is 1, and 0 stands for all of the log")
    clock = clock or SystemClock()
    is_text = isinstance(log, str | os.PathLike) and is_text_log(log)
    async with opened(log) as store:
        pages = _Pages(store, after, stream)
        while True:
            page, whole = await pages.next()
            for event in page:
                yield event
            if not whole:
                continue
            if not follow or is_text:
                return
            await clock.sleep(poll_s)


class _Pages:
    """Reads a log page by page, and knows which event was the last."""

    def __init__(self, store: EventStore, after: int, stream: str | None) -> None:
        self._store = store
        self._after = after
        self._stream = stream
        self._last: StoredEvent | None = None

    async def next(self) -> tuple[list[StoredEvent], bool]:
        """Return the next events, and whether there were no more than these.

        Raises:
            PersistenceError: the log cannot be read, or the last event is not in it any more.
        """
        last = self._last
        page = await self._read(EVENTS_PER_PAGE)
        whole = len(page) < EVENTS_PER_PAGE
        if last is not None:
            # The last event is read again with those that follow: in another log, another one stands in its place.
            if not page or page[0] != last:
                raise PersistenceError(
                    f"the log {self._store.name} was replaced by another one, or the stream {last.stream!r} was "
                    f"removed from it: the event at position {last.position} is not there any more"
                )
            page = page[1:]
        if page:
            self._last = page[-1]
        return [event for event in page if event.position > self._after], whole

    async def _read(self, limit: int) -> list[StoredEvent]:
        last = self._last
        if self._stream is not None:
            version = last.version - 1 if last is not None else 0
            return await self._store.read_stream(self._stream, after_version=version, limit=limit)
        position = last.position - 1 if last is not None else self._after
        return await self._store.read_all(after_position=position, limit=limit)


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """An event of any kind with its place in the log; as JSON it has the members of a `RecordedEvent`."""

    stream: StreamName
    version: int
    position: int
    time: int
    """Microseconds since the epoch, UTC."""
    event: Event | msgspec.Raw | str
    """The event; what was recorded, where it cannot be decoded: as JSON or, if it is not even that, as a text."""
    batch: int
    """Version of its batch's stimulus."""
    correlation: EventRef
    """The input, or other outside fact, that it goes back to."""
    causation: EventRef | None
    """The event that caused it; None = it came from outside."""

    @property
    def type(self) -> str:
        """The event's tag, without the kind of its stream; a question mark where there is none."""
        match self.event:
            case Event():
                tag = str(self.event.__struct_config__.tag)
            case str():
                tag = "?"
            case _:
                tag = tag_of(bytes(self.event)) or "?"
        return tag.removeprefix(f"{kind_of(self.stream)}.")

    @property
    def words(self) -> str:
        """What the event says, in a few words."""
        match self.event:
            case Event():
                return event_words(self.event)
            case str():
                return self.event
            case _:
                return bytes(self.event).decode(errors="replace")


class Following:
    """Reads events of one log in order of position."""

    def __init__(self, store: EventStore) -> None:
        """Make one."""
        self._store = store
        self._first: StoredEvent | None = None
        """The first event of the batch that was met last."""

    async def read(self, stored: StoredEvent) -> Followed:
        """Return the next event, decoded if that can be."""
        first = await self._first_of_batch(stored)
        stimulus = event_ref(stored.stream, stored.batch)
        return Followed(
            stream=stored.stream,
            version=stored.version,
            position=stored.position,
            time=stored.at,
            event=_event(stored),
            batch=stored.batch,
            correlation=first.correlation or stimulus,
            causation=stored.causation if stored.version == stored.batch else stimulus,
        )

    async def _first_of_batch(self, stored: StoredEvent) -> StoredEvent:
        first = self._first
        if stored.version == stored.batch:
            first = stored
        elif first is None or (first.stream, first.version) != (stored.stream, stored.batch):
            # What a batch goes back to is in its first event, and reading began after it.
            found = await self._store.read_stream(stored.stream, after_version=stored.batch - 1, limit=1)
            first = found[0] if found else stored
        self._first = first
        return first


def _event(stored: StoredEvent) -> Event | msgspec.Raw | str:
    kind = KINDS.get(kind_of(stored.stream))
    if kind is None:
        return _as_recorded(stored.data)
    try:
        event: Event = kind.codec.decode(stored)
    except LogFormatError:
        return _as_recorded(stored.data)
    return event


def _as_recorded(data: bytes) -> msgspec.Raw | str:
    try:
        data.decode()
        # On one line, with any line ends between its members left out.
        return msgspec.Raw(msgspec.json.format(msgspec.json.decode(data, type=msgspec.Raw), indent=-1))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return data.decode(errors="replace")
