"""The spans of a log: of what it holds, and of what comes.

The rules: nothing is written, so the log may be in use, by this process or another one; each span comes once, when its
end is recorded; a session that began before the reading is read from its beginning when its next event comes, so the
cost grows with what happens and not with the log.
"""

from collections.abc import AsyncGenerator
from typing import Final

from refold.actors.agent.subsession import call_of_child, parent_in
from refold.actors.kernel.clock import Clock
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import EventRef, SessionId, StreamName, stream_name
from refold.events.core.records import StoredEvent, version_in
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.inspection.log_reading import ReadableLog, kind_of, opened
from refold.inspection.session_view import events_until
from refold.inspection.tail import POLL_S, follow_log
from refold.stores.event_store import EventStore
from refold.tracing.spans import SessionSpans, TracePlace, TraceSpan

SESSIONS_MAX: Final = 10_000
"""So many sessions are held while they rest; the one that rests longest is let go, and read again when it goes on."""

NESTED_MAX: Final = 64
"""So deep subagents are followed upwards to their trace; a log that was made up could go in a circle."""


async def read_spans(
    log: ReadableLog,
    *,
    after: int = 0,
    session: str | None = None,
    content: bool = False,
    follow: bool = False,
    poll_s: float = POLL_S,
    clock: Clock | None = None,
) -> AsyncGenerator[TraceSpan, None]:
    """Give the spans of a log in the order in which their ends were recorded; those that are open have none yet.

    Args:
        log: the path of its file, or an open store. It has to be there already.
        after: only spans whose end has a greater position in the log.
        session: of this session only; its subagents are others.
        content: also what people, models and tools said, as the log has it: what it redacts, no span says.
        follow: wait for those to come; False = end with the last one there is.
        poll_s: seconds between two looks at a log in which there was nothing new.
        clock: measures them; None = the machine's.

    Raises:
        LogFormatError: the file is not a log, is damaged, or comes from a newer Refold.
        PersistenceError: the log cannot be read; it is gone, or another one has taken its place.
    """
    async with opened(log) as store:
        sessions = _Sessions(store, content=content)
        stream = stream_name(SESSION_KIND, session) if session is not None else None
        async for stored in follow_log(store, after=after, stream=stream, follow=follow, poll_s=poll_s, clock=clock):
            if kind_of(stored.stream) != SESSION_KIND:
                continue
            for span in await sessions.add(stored):
                yield span


class _Sessions:
    """The sessions of a log whose spans are made."""

    def __init__(self, store: EventStore, *, content: bool) -> None:
        self._store = store
        self._content = content
        self._known: dict[StreamName, SessionSpans] = {}
        """The one that rests longest comes first."""

    async def add(self, stored: StoredEvent) -> list[TraceSpan]:
        spans = self._known.pop(stored.stream, None) or await self._read(stored.stream, stored.version - 1)
        self._known[stored.stream] = spans
        if len(self._known) > SESSIONS_MAX:
            self._known.pop(next(iter(self._known)))
        try:
            event = SESSION_CODEC.decode(stored)
        except LogFormatError:  # Of a newer Refold: what it means is not known here.
            return []
        return list(spans.add(stored.version, event, stored.position))

    async def _read(self, stream: StreamName, version: int, depth: int = 0) -> SessionSpans:
        """Return a session as it was after a version."""
        spans = SessionSpans(stream, await self._began_by(stream, depth), content=self._content)
        for place, event in enumerate(await events_until(self._store, stream, version) if version else (), 1):
            list(spans.add(place, event))
        return spans

    async def _began_by(self, stream: StreamName, depth: int) -> TracePlace | None:
        """Return the span of the call that a child session carries out; None = it is no child's."""
        first = await self._store.read_stream(stream, limit=1)
        if depth == NESTED_MAX or not first or first[0].stream != stream or (parent := parent_in(first[0])) is None:
            return None
        above, call = stream_name(SESSION_KIND, parent), call_of_child(SessionId(stream.partition("/")[2]))
        known = self._known.get(above)
        if (place := known.place_of(call) if known is not None else None) is not None:
            return place
        # The session above has gone on since, or is not looked at: as it was when the call began.
        began = version_in(EventRef(first[0].causation or ""))
        return (await self._read(above, began, depth + 1)).place_of(call)
