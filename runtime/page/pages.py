"""What the page shows of one log that may grow, kept between two looks.

    async with opened_pages("events.db") as pages:
        await pages.session("alice")        # where it comes from, how far it was read, what waits
        await pages.chunk("alice", 0)       # its first frames

Sessions are read in the background and never twice, the last ones that were looked at are kept. Nothing here writes to
the log; what people decide goes the way of `refold approve`, through `refold.remote`. Read `refold.page.frames` first.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from refold.actors.agent.subsession import parent_in
from refold.events.core.errors import ConfigError, PersistenceError, quoted
from refold.events.core.ids import EventRef, SessionId, StreamName
from refold.events.core.records import event_ref
from refold.inspection.log_reading import opened, session_head
from refold.inspection.session_view import ListedSession
from refold.inspection.tail import Followed, Following
from refold.lineage.causes import named_event
from refold.page.beside import Held, held, streams_beside
from refold.page.frames import Frames
from refold.page.overview import Sessions
from refold.page.spans import Span
from refold.stores.event_store import EventStore
from refold.stores.forked import fork_of
from refold.stores.past_state import last_position
from refold.stores.sqlite.file import is_text_log
from refold.stores.sqlite.ownership import log_owner

SESSIONS_KEPT: Final = 6
"""So many sessions that were looked at stay read."""

PATIENCE_S: Final = 0.15
"""So long an answer waits for more to be read; then it says how far reading has come."""

RELATIVES_MAX: Final = 200
"""Children, and forks, in one answer."""

FOUND_MAX: Final = 500
"""Versions that a search tells."""


class ShownHead(msgspec.Struct, frozen=True, kw_only=True):
    """A session without its events."""

    log: str
    session: SessionId
    version: int
    """As far as it was read."""
    last_version: int
    position: int
    """Of its last event; what memories and breakers held later does not belong to it."""
    complete: bool
    damage: str
    parent: SessionId | None
    forked_from: EventRef | None
    children: list[ListedSession]
    forks: list[ListedSession]
    related: bool
    """Whether all sessions were looked through for them; else ask again."""
    spans: int
    """How many have ended, as far as it was read."""
    open_spans: list[Span]
    owned: bool
    """Whether a runtime owns the log, which takes what people decide."""
    waiting: int
    """Calls of the log that wait for a person, and questions, as far as its sessions were read."""


class Pages:
    """What is known of one log."""

    def __init__(self, store: EventStore, log: Path | None, patience_s: float | None) -> None:
        self.store = store
        self.log = log
        """Its file; None = it is a store, or a text log, which no runtime owns."""
        self._patience_s = patience_s
        self.sessions = Sessions()
        self._frames: dict[str, Frames] = {}
        self._held: dict[StreamName, Held] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._file = _identity(log)

    def check_same(self) -> None:
        """Return if the log is the file that was opened.

        What was read of it is kept, so that it would be mixed with another one's, and what a person decides is about
        what was shown.
        """
        if _identity(self.log) != self._file:
            raise PersistenceError(f"{self.log} is not the log that was opened any more; start refold inspect again")

    async def close(self) -> None:
        for task in self._reading.values():
            task.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)

    async def read_sessions(self) -> bool:
        """Read on in the list of sessions for a moment; return whether all of it was read."""
        return await self._continued("", self._all_sessions())

    async def session(self, session: str, *, alone: bool = False) -> ShownHead:
        """Return a session as far as it was read; `alone`: no other one is looked through for its relatives."""
        head = await session_head(self.store, session)
        related = alone or await self.read_sessions()
        frames = self._kept(session)
        if frames.version < head.version and not frames.damage:
            await self._continued(f"session/{session}", frames.advance(self.store))
        first = await self.store.read_stream(head.stream, limit=1)
        fork = await fork_of(self.store, head)
        last = await self.store.read_stream(head.stream, after_version=head.version - 1, limit=1)
        return ShownHead(
            log=self.store.name,
            session=SessionId(session),
            version=frames.version,
            last_version=max(head.version, frames.version),
            position=last[0].position if last else 0,
            complete=bool(frames.damage) or frames.version >= head.version,
            damage=frames.damage,
            parent=parent_in(first[0]) if first and first[0].stream == head.stream else None,
            forked_from=event_ref(fork.origin.stream, fork.origin.version) if fork is not None else None,
            children=self.sessions.children_of(session)[:RELATIVES_MAX],
            forks=self.sessions.forks_of(session)[:RELATIVES_MAX],
            related=related,
            spans=len(frames.spans.ended),
            open_spans=frames.spans.open,
            owned=self.owned(),
            waiting=self.sessions.waiting,
        )

    async def chunk(self, session: str, number: int) -> bytes:
        """Return some frames of a session as JSON, see `Frames.chunk`; raise ConfigError where there are none."""
        complete = False
        while True:
            try:
                return self._kept(session).chunk(number)
            except IndexError:
                if complete:
                    raise ConfigError(f"session {quoted(session, 200)} has no events there") from None
            complete = (await self.session(session)).complete

    def spans(self, session: str, after: int = 0, limit: int | None = None) -> list[Span]:
        """Return spans of a session that have ended, behind the first `after` ones, as far as it was read."""
        return self._kept(session).spans.ended[after:][:limit]

    def causes_elsewhere(self, session: str) -> list[EventRef]:
        """Return the events of other streams that caused some of a session's, as far as it was read."""
        return list(self._kept(session).causes_elsewhere)

    def found(self, session: str, text: str) -> list[int]:
        """Return the first versions of a session whose event, entry or state says a text, as far as it was read."""
        return self._kept(session).found(text, FOUND_MAX) if text else []

    async def beside(self, session: str) -> list[Held]:
        """Return what memories and breakers held while a session went on; raises as `session`."""
        await session_head(self.store, session)
        view = self._kept(session).view
        found: list[Held] = []
        for stream in await streams_beside(self.store, session, view.user if view is not None else None):
            head, known = await self.store.head(stream), self._held.get(stream)
            if known is None or head is None or (head.version > known.version and not known.damage):
                known = self._held[stream] = await held(self.store, stream)
            found.append(known)
        return found

    async def event(self, session: str, version: int) -> Followed:
        """Return a whole event; raises ConfigError where there is none."""
        head = await session_head(self.store, session)
        stored = await named_event(self.store, event_ref(head.stream, version))
        return await Following(self.store).read(stored)

    async def position(self) -> int:
        new = await self.store.read_all(after_position=self.sessions.position or 0, limit=1)
        return await last_position(self.store) if new else self.sessions.position or 0

    def owned(self) -> bool:
        return self.log is not None and log_owner(self.log) is not None

    async def _all_sessions(self) -> None:
        complete = False
        while not complete:
            complete = await self.sessions.advance(self.store)
            await asyncio.sleep(0)

    def _kept(self, session: str) -> Frames:
        frames = self._frames.pop(session, None) or Frames(session)
        self._frames[session] = frames  # The last one that was looked at is the last one in order.
        for name in list(self._frames)[:-SESSIONS_KEPT]:
            del self._frames[name]
            if (task := self._reading.pop(f"session/{name}", None)) is not None:
                task.cancel()
        return frames

    async def _continued(self, what: str, work: Coroutine[Any, Any, None]) -> bool:
        """Have some reading done in the background, once at a time, and wait a moment; return whether it ended."""
        task = self._reading.get(what)
        if task is None or task.done():
            task = self._reading[what] = asyncio.ensure_future(work)
        else:
            work.close()
        await asyncio.wait([task], timeout=self._patience_s)
        if not task.done() or task.cancelled():
            return False
        if self._reading.get(what) is task:
            del self._reading[what]
        task.result()
        return True


def _identity(log: Path | None) -> tuple[int, int] | None:
    try:
        status = log.stat() if log is not None else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status is not None else None


@asynccontextmanager
async def opened_pages(
    log: str | os.PathLike[str] | EventStore, *, patience_s: float | None = PATIENCE_S
) -> AsyncGenerator[Pages, None]:
    """Open a log for reading, and give what the page shows of it; raises as `opened`.

    Args:
        log: a path, or a store.
        patience_s: how long an answer waits for more to be read; None = until all is read.
    """
    async with opened(log) as store:
        of_file = isinstance(log, str | os.PathLike) and not is_text_log(log)
        path = Path(os.fspath(log)) if of_file and isinstance(log, str | os.PathLike) else None
        pages = Pages(store, path, patience_s)
        try:
            yield pages
        finally:
            await pages.close()
