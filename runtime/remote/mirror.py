"""What happens in a log whose owner is another process, told here in the order in which it is told there.

A guest has a mirror for its own bus, and the readers of a connection share one. The rules: an event is told only when
it was read from the log; and where the owner cannot be heard, the log is looked at again and again.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.supervision import Background
from refold.bell.frames import Durable, Hello, News, Noted, Piece, Report
from refold.bell.listener import Alarm, Listener
from refold.events.core.codec import tag_of
from refold.events.core.errors import LogFormatError, PersistenceError, StreamDeleted
from refold.events.core.ids import SessionId, StreamName, kind_and_identifier, stream_name
from refold.events.core.records import StoredEvent
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.inspection.log_reading import tombstone_of
from refold.publishing.event_bus import EventBus
from refold.publishing.notifications import Progressed, Streamed
from refold.publishing.subscription import ANSWER_OVER, read_recorded
from refold.remote.follow import LOOK_ANYWAY_S, POLL_S, Changes, signatures
from refold.remote.kept_log import PAGE, HeldLog, ReadLog, held_log

log = logging.getLogger("refold.runtime")

OVERS_MAX: Final = 10_000
"""Sessions of which it is known when their last answer was over."""

OVER_TAGS: Final = frozenset(str(kind.__struct_config__.tag) for kind in ANSWER_OVER)

Begin = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], Background]
"""Given a name and what makes the work, begins work beside the actors."""


class Mirror:
    """Tells a bus of this process what the owner of a log tells in its own.

    Args:
        log: path of the log, absolute.
        reading: the log; its store may be another one later, of the same log.
        bus: is told what happens in the sessions that are followed there.
        noted: called when the inbox may have outcomes.
        position: what is behind it in the log is told.
    """

    def __init__(
        self,
        log: Path,
        reading: ReadLog,
        clock: Clock,
        bus: EventBus,
        background: Begin,
        *,
        noted: Callable[[], object],
        position: int,
    ) -> None:
        self.bus = bus
        self.users = 0
        """Readers that share it."""
        self.gone = Alarm(clock)
        """Rings when an owner was heard and is not any more."""
        self.listener = Listener(log, clock, self._hear, self._lost, attends=True)
        self._log = log
        self._reading = reading
        self._bus = bus
        self._noted = noted
        self.position: int = position
        """Up to where it has told."""
        self._over: OrderedDict[SessionId, int] = OrderedDict()
        """By session: version of the last event behind which nothing comes of an answer asked for before."""
        self._owner = ""
        self._lock = asyncio.Lock()
        self._changes = Changes(lambda: signatures(log), clock, LOOK_ANYWAY_S)
        self._complaint = ""
        self._work = [background("bell", self.listener.listen), background("look at the shared log", self._look)]

    def end(self) -> None:
        """Tell nothing more."""
        for part in self._work:
            part.end()

    async def stop(self) -> None:
        for part in self._work:
            await part.stop()

    async def _hear(self, frame: News) -> None:
        match frame:
            case Hello(owner=owner, position=position):
                if owner != self._owner:
                    self._bus.forget_answers()
                self._owner = owner
                await self.catch_up(position)
                self._noted()
            case Durable(position=position):
                await self.catch_up(position)
            case Noted():
                self._noted()
            case Piece():
                if frame.asked > self._over.get(frame.session, 0):
                    piece = Streamed(
                        session=frame.session,
                        run=frame.run,
                        turn=frame.turn,
                        asked=frame.asked,
                        offset=frame.offset,
                        delta=frame.delta,
                    )
                    self._bus.mirrored(piece, since=frame.since, number=frame.number, so_far=frame.so_far)
            case Report():
                self._bus.reported(Progressed(session=frame.session, call=frame.call, report=frame.report))

    def _lost(self) -> None:
        self.gone.ring()
        self._changes.ring()
        self._noted()

    async def _look(self) -> None:
        """Look at the log where nothing is heard, and now and then where something is."""
        while True:
            await self._changes.pause(LOOK_ANYWAY_S if self.listener.hears else POLL_S)
            if not self._changes.are_due():
                continue
            try:
                await self.catch_up(None)
                for session in self._bus.followed_sessions():
                    if await tombstone_of(self._reading.store, stream_name(SESSION_KIND, session)) is not None:
                        self._bus.session_deleted(session)
            except PersistenceError as error:
                self.complain(error)

    def complain(self, error: PersistenceError) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning("the shared log %s: %s", self._log, error)

    async def catch_up(self, position: int | None) -> None:
        """Tell what the log has up to a position, or up to its end, that was not told yet."""
        async with self._lock:
            while position is None or self.position < position:
                page = await self._reading.store.read_all(after_position=self.position, limit=PAGE)
                wanted = page if position is None else [event for event in page if event.position <= position]
                for (stream, _), batch in groupby(wanted, key=lambda event: (event.stream, event.batch)):
                    events = list(batch)
                    await self._publish(stream, events)
                    self.position = events[-1].position
                if len(wanted) < PAGE:
                    return

    async def _publish(self, stream: StreamName, events: list[StoredEvent]) -> None:
        store, (kind, identifier) = self._reading.store, kind_and_identifier(stream)
        if kind != SESSION_KIND:
            return
        session = SessionId(identifier)
        over = [event.version for event in events if tag_of(event.data) in OVER_TAGS]
        if not self._bus.is_followed(session):
            if over:
                self._bus.answer_over(session)
        else:
            try:
                recorded = (
                    SESSION_CODEC.recorded(events)
                    if events[0].version == events[0].batch
                    else await read_recorded(
                        self._reading.store, stream, after_version=events[0].version - 1, limit=len(events)
                    )
                )
                state = await self._reading.folded.session(store, stream)
            except (LogFormatError, StreamDeleted) as error:
                self._bus.session_failed(session, str(error))
                return
            self._bus.recorded(session, recorded)
            self._bus.settled(session, state)
        if over:
            self._over[session] = over[-1]
            self._over.move_to_end(session)
            if len(self._over) > OVERS_MAX:
                self._over.popitem(last=False)


class JoinedMirror(msgspec.Struct, frozen=True):
    """A log that is open for reading, and a bus that is told what happens in it, for one of those who share them."""

    held: HeldLog
    mirror: Mirror
    mirrors: dict[int, Mirror]

    def leave(self) -> None:
        """Be told nothing more."""
        self.mirror.users -= 1
        if not self.mirror.users:
            for name in [name for name, mirror in self.mirrors.items() if mirror is self.mirror]:
                del self.mirrors[name]
            self.mirror.end()
        self.held.release()


async def joined_mirror(log: Path, clock: Clock) -> JoinedMirror:
    """Return a mirror of a log, which all readers of an event loop share; its owner leaves it."""
    held = await held_log(log)
    try:
        position = await held.store.end_position()
    except BaseException:
        held.release()
        raise
    mirrors = _mirrors.setdefault(held, {})
    mirror = mirrors.get(id(clock))
    if mirror is None:
        mirror = Mirror(log, held.log, clock, EventBus(), Background, noted=_nothing, position=position)
        mirrors[id(clock)] = mirror
    mirror.users += 1
    return JoinedMirror(held, mirror, mirrors)


def _nothing() -> None:
    """Others look into the inbox."""


_mirrors: WeakKeyDictionary[HeldLog, dict[int, Mirror]] = WeakKeyDictionary()
