"""A session as frames: what each of its events added to the conversation, changed of the state, and said.

The frames up to a version are the session as it was then, without folding: the conversation is the entries
so far, a call is the last that a frame says of it, and a field of the state the last value of it. `Frames` makes them
from a log, in chunks of `CHUNK` events that never change once they are full; the page reads the chunks that it shows.

The rule: a field of a frame's state is a field of `SessionView`, which is what `refold show --json` writes. Texts of
many thousand characters are cut, and say so; what is whole is in the event, which is read for itself.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from refold.events.core.errors import LogFormatError
from refold.events.core.ids import EventRef, SessionId, StreamName, ToolCallId, stream_name
from refold.events.core.pure_core import evolve_all
from refold.events.core.records import StoredEvent
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.events import SessionEvent
from refold.events.session.react import pending
from refold.inspection.session_view import SessionView, view_of, with_what_was_done
from refold.inspection.summaries import event_words
from refold.inspection.transcript import CallEntry, Entry, Transcript
from refold.page.spans import Spans
from refold.stores.event_store import EventStore

CHUNK: Final = 500
"""Events whose frames are given at once."""

EVENTS_PER_STEP: Final = 100
"""Events after which others have the loop; some milliseconds."""

WORDS_MAX: Final = 200
"""Characters of an event's words."""

TEXT_MAX: Final = 20_000
"""Characters of a text."""

FRAME_BYTES: Final = 16_000
"""A frame that is not longer holds no text that is cut."""

_PLACE: Final = ("session", "parent", "forked_from", "version", "last_version", "at", "transcript")
FIELDS: Final = tuple(name for name in SessionView.__struct_fields__ if name not in _PLACE)
"""Of the state, as frames have them."""


class EventFrame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one event did."""

    version: int
    position: int
    at: int
    """Microseconds since the epoch, UTC."""
    type: str
    words: str
    batch: int
    """Version of the first event of its batch."""
    cause: EventRef | int | None = None
    """Of the first event of a batch: the event that caused it, by its version where the session has it."""
    entries: tuple[Entry, ...] = ()
    """New ones."""
    calls: dict[ToolCallId, CallEntry] = {}
    """Calls of earlier entries, as they are from here on."""
    state: dict[str, Any] = {}
    """The fields that have another value from here on."""


class Frames:
    """The frames of one session, as far as they were read."""

    def __init__(self, session: str) -> None:
        self.session = SessionId(session)
        self.stream: StreamName = stream_name(SESSION_KIND, session)
        self.version = 0
        """Of the last event that is in them."""
        self.damage = ""
        """Why what follows cannot be shown; empty = it can."""
        self.view: SessionView | None = None
        """After the last event."""
        self.spans = Spans()
        self.causes_elsewhere: dict[EventRef, None] = {}
        """Events of other streams that caused some of these."""
        self._state = SESSION_CORE.initial()
        self._transcript = Transcript()
        self._chunks: list[bytes] = []
        self._rows: list[bytes] = []
        self._base: bytes = b"{}"
        self._stream_before = self.stream
        self._reading = asyncio.Lock()

    async def advance(self, store: EventStore) -> None:
        """Read what the log has more; callers meanwhile wait for the same."""
        async with self._reading:
            head = await store.head(self.stream)
            while not self.damage and (
                page := await store.read_stream(self.stream, after_version=self.version, limit=CHUNK)
            ):
                events = await with_what_was_done(store, self._decoded(page))
                for place, (stored, event) in enumerate(zip(page, events, strict=False), 1):
                    if stored.version != self.version + 1:
                        break
                    try:
                        self._add(stored, event)
                    except LogFormatError as error:
                        self.damage = str(error)
                        return
                    if place % EVENTS_PER_STEP == 0:
                        await asyncio.sleep(0)
                if not self.damage and page[-1].version != self.version:
                    self.damage = self._lost()
            if head is not None and self.version < head.version:
                self.damage = self.damage or self._lost()

    def _lost(self) -> str:
        return f"version {self.version + 1} of {self.stream} is missing; `refold check` says more"

    def _decoded(self, page: Sequence[StoredEvent]) -> list[SessionEvent]:
        events: list[SessionEvent] = []
        for stored in page:
            try:
                events.append(SESSION_CODEC.decode(stored))
            except LogFormatError as error:
                self.damage = str(error)
                break
        return events

    def chunk(self, number: int) -> bytes:
        """Return the frames of a chunk, as JSON, those of the last one so far; raise IndexError where none was read."""
        if number == len(self._chunks) and self._rows:
            return _joined(self._base, self._rows)
        if number < 0:
            raise IndexError(number)
        return self._chunks[number]

    def found(self, text: str, limit: int) -> list[int]:
        """Return the first versions whose frame holds a text, in upper or lower case."""
        needle = msgspec.json.encode(text)[1:-1].lower()
        versions: list[int] = []
        for number in range((self.version + CHUNK - 1) // CHUNK):
            body = self.chunk(number)
            if needle in body.lower():
                rows = msgspec.json.decode(body, type=_Chunk).frames
                versions += [
                    number * CHUNK + place for place, row in enumerate(rows, 1) if needle in bytes(row).lower()
                ]
            if len(versions) >= limit:
                break
        return versions[:limit]

    def _add(self, stored: StoredEvent, event: SessionEvent) -> None:
        before, entries = self.view, len(self._transcript.entries)
        if not self._rows:
            self._base = encoded({name: getattr(before, name) for name in FIELDS} if before is not None else {})
        self._state = evolve_all(SESSION_CORE, (event,), self._state)
        self._transcript.add_all([event])
        view = view_of(self.session, self._state, 0)
        frame = EventFrame(
            version=stored.version,
            position=stored.position,
            at=event.at,
            type=str(event.__struct_config__.tag).removeprefix("session.").rpartition(".")[0],
            words=event_words(event)[:WORDS_MAX],
            batch=stored.batch,
            cause=self._cause(stored),
            entries=tuple(self._transcript.entries[entries:]),
            calls={call.call: call for call in self._transcript.touched_by(event)},
            state={
                name: value
                for name in FIELDS
                if (value := getattr(view, name)) != (getattr(before, name) if before is not None else None)
            },
        )
        self._rows.append(encoded(frame))
        self.spans.add(event, self._state, pending(self._state))
        self.view, self.version, self._stream_before = view, stored.version, stored.stream
        if len(self._rows) == CHUNK:
            self._chunks.append(_joined(self._base, self._rows))
            self._rows = []

    def _cause(self, stored: StoredEvent) -> EventRef | int | None:
        if stored.version != stored.batch or stored.causation is None:
            return None
        stream, _, version = stored.causation.rpartition("@")
        forked = stored.stream != self._stream_before  # From an origin, in which it has the same versions.
        if version.isdecimal() and (stream == stored.stream or (forked and int(version) == stored.version - 1)):
            return int(version)
        self.causes_elsewhere[stored.causation] = None
        return stored.causation


class _Chunk(msgspec.Struct):
    frames: list[msgspec.Raw]


def _joined(base: bytes, rows: list[bytes]) -> bytes:
    return b'{"base":%s,"frames":[%s]}' % (base, b",".join(rows))


def encoded(value: object) -> bytes:
    """Return a value as JSON in which no text is too long, see `shortened`."""
    whole = msgspec.json.encode(value)
    return whole if len(whole) <= FRAME_BYTES else msgspec.json.encode(shortened(msgspec.json.decode(whole)))


def shortened(value: Any) -> Any:
    """Return JSON values in which texts of more than `TEXT_MAX` characters are cut, and say how many are missing."""
    match value:
        case str():
            left = len(value) - TEXT_MAX
            return value if left <= 0 else f"{value[:TEXT_MAX]}… ({left:,} more characters)"
        case list():
            return [shortened(item) for item in cast("list[object]", value)]
        case dict():
            return {name: shortened(item) for name, item in cast("dict[str, object]", value).items()}
        case _:
            return value
