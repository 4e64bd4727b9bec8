"""A runtime that shares its log and does not own it: how its sessions reach the owner, and how it becomes the owner.

Read `Guest` first. Its sessions are the same as an owner's (`refold.sessions`): what changes one goes into the inbox,
and the owner performs it; what is asked of one is answered from the log; and what happens is told to the runtime's own
bus in the order in which the owner has told it, pieces of answers among it. So a caller who waits, waits for the log
and not for a process: when another process owns the log, or this one does, it goes on.

The rules: an event is told only when it was read from the log; where the owner cannot be heard, the log is looked at
again and again; and the owner's lock alone says who owns the log, so that no silence makes an owner of this process.
"""

import asyncio
import logging
import os
import uuid
from collections import OrderedDict
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar

from refold.actors.agent.session import PerformedInRun
from refold.actors.agent.subsession import SessionEnvelope
from refold.actors.effects import RECORD_RETRY_S, Envelope, Performed
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.kernel.supervision import Background
from refold.actors.kernel.system import ActorSystem
from refold.events.core.codec import tag_of
from refold.events.core.errors import (
    CommandRejected,
    LogFormatError,
    LogInUse,
    PersistenceError,
    StreamDeleted,
)
from refold.events.core.ids import SessionId, StreamName, kind_and_identifier, stream_name
from refold.events.core.records import StoredEvent
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.events import SessionEvent
from refold.events.session.state import SessionState
from refold.inspection.log_reading import tombstone_of
from refold.keeping.deletion import Deletion
from refold.options import Settings, log_path
from refold.publishing.event_bus import EventBus
from refold.publishing.notifications import Progressed, Streamed
from refold.publishing.subscription import ANSWER_OVER, read_recorded
from refold.remote.client import outcome_within, stir_watches
from refold.remote.follow import LOOK_ANYWAY_S, POLL_S, Changes, signatures
from refold.remote.frames import Durable, Hello, News, Noted, Piece, Report
from refold.remote.listener import Alarm, Listener
from refold.remote.protocol import (
    Done,
    Inbox,
    InboxClear,
    InboxCommand,
    InboxDelete,
    InboxDescribe,
    InboxImport,
    InboxOutcome,
    InboxSend,
    Refused,
    decoded_outcome,
    encoded_command,
    row_of,
)
from refold.sessions.access import NamedUser
from refold.stores.folding import Fold
from refold.stores.sqlite.file import absolute
from refold.stores.sqlite.ownership import log_owner
from refold.stores.sqlite.store import SQLiteStore

log = logging.getLogger("refold.runtime")

T = TypeVar("T")

FOLDS_MAX: Final = 256
"""Sessions whose folded state is kept, those that were looked at last."""

PAGE: Final = 1_000
"""Events that are read at once."""

OVERS_MAX: Final = 10_000
"""Sessions of which it is known when their last answer was over."""

OVER_TAGS: Final = frozenset(str(kind.__struct_config__.tag) for kind in ANSWER_OVER)


class _Folded:
    """A session's state, as far as it was read."""

    def __init__(self, stream: StreamName) -> None:
        self.fold: Fold[SessionState, SessionEvent] = Fold(stream, SESSION_CORE, SESSION_CODEC)
        self.lock = asyncio.Lock()


class Guest:
    """Reaches the sessions of a log whose owner is another process; implements `Reach`.

    Args:
        store: the log, opened for reading; `taken_over` gives another one.
        settings: of the runtime.
        system: where its background work lives; it has no sessions.
        bus: is told what happens.
        position: what is behind it in the log is told.
    """

    def __init__(
        self, store: SQLiteStore, settings: Settings, system: ActorSystem, bus: EventBus, *, position: int
    ) -> None:
        self.log: Path = absolute(_path(settings))
        self.store = store
        self._settings = settings
        self._system = system
        self._clock = system.clock
        self._bus = bus
        self._position: int = position
        self._inbox = Inbox(self.log, self._clock, allow_shared_folder=settings.allow_shared_folder)
        self._folds: OrderedDict[StreamName, _Folded] = OrderedDict()
        self._over: OrderedDict[SessionId, int] = OrderedDict()
        """By session: version of the last event behind which nothing comes of an answer asked for before."""
        self._owner = ""
        self._reading = asyncio.Lock()
        self._changes = Changes(lambda: signatures(self.log), self._clock, LOOK_ANYWAY_S)
        self._alarm = Alarm(self._clock)
        self._gone = Alarm(self._clock)
        self._listener = Listener(self.log, self._clock, self._hear, self._lost, attends=True)
        self._insisting: set[Background] = set()
        self._complaint = ""
        self._former: SQLiteStore | None = None
        """As which the log was open before it was taken over; readers that have begun go on in it."""
        self._closed: asyncio.Future[None] = system.loop.create_future()
        self._work = [
            system.background("bell", self._listener.listen),
            system.background("look at the shared log", self._look),
        ]

    @classmethod
    async def open(cls, settings: Settings, system: ActorSystem, bus: EventBus) -> "Guest":
        """Return a guest of a log that another runtime owns.

        Raises:
            PersistenceError: the log cannot be read, or is not there yet.
        """
        store = await SQLiteStore.open(_path(settings), read_only=True)
        try:
            return cls(store, settings, system, bus, position=await store.end_position())
        except BaseException:
            await store.close()
            raise

    # The end, and the change of the owner

    async def owned(self) -> SQLiteStore:
        """Return the log, opened for writing, as soon as no other runtime owns it."""
        while True:
            try:
                if log_owner(self.log) is None:
                    return await opened_to_own(self._settings)
            except LogInUse as error:
                log.debug("another process was quicker: %s", error)
            except PersistenceError as error:
                self._complain(error)
            await self._gone.wait(POLL_S)

    async def taken_over(self, store: SQLiteStore) -> None:
        """Tell what is left of the former owner's time, and hear nothing more; `store` is this runtime's own now.

        Raises:
            PersistenceError: the log cannot be read.
        """
        await self._stop_listening()
        self._former, self.store = self.store, store
        await self._catch_up(None)

    async def close(self) -> None:
        """End, with all that it has begun; the log that is in use stays open."""
        if not self._closed.done():
            self._closed.set_result(None)
        await self._stop_listening()
        for insisting in list(self._insisting):
            await insisting.stop()
        if self._former is not None:
            await self._former.close()

    async def _stop_listening(self) -> None:
        work, self._work = self._work, []
        for part in work:
            await part.stop()

    # What sessions ask for

    async def read(self, stream: StreamName, question: Callable[[SessionState], T], *, vital: bool) -> T:
        """Return what a session's state answers that the log has now."""
        return question((await self._folded(stream)).state)

    async def ask(self, stream: StreamName, envelope: SessionEnvelope, *, timeout_s: float | None) -> Performed:
        """Return when the owner has performed a command.

        Raises:
            CommandRejected: it was refused.
            AskTimeout: no owner has performed it in time; it stays in the inbox.
            PersistenceError: the inbox cannot be used.
        """
        session = SessionId(kind_and_identifier(stream)[1])
        command = envelope.command
        row, described = row_of(command, envelope.payloads, envelope.describes), envelope.describes
        if described not in (None, command) and isinstance(row, InboxImport | InboxClear | InboxDescribe):
            whose = InboxDescribe(user=described.user, metadata=dict(described.metadata))
            await self._performed(session, whose, None, timeout_s)
        elif not isinstance(row, InboxSend | InboxDescribe):
            await NamedUser(session, described).require(self.store)
        done, new = await self._performed(session, row, getattr(command, "key", None), timeout_s)
        assert isinstance(done, Done)
        if done.run is not None:
            return PerformedInRun(done.version, done.new and new, done.run)
        return Performed(done.version, done.new and new)

    def tell(self, stream: StreamName, envelope: Envelope) -> None:
        """Have the owner perform a command, and try again until it is in the inbox; from any thread."""
        session = SessionId(kind_and_identifier(stream)[1])
        row = row_of(envelope.command, envelope.payloads, None)

        async def insist() -> None:
            while True:
                try:
                    await self._inbox.put(session, row, uuid.uuid4().hex)
                except PersistenceError as error:
                    self._complain(error)
                    await self._clock.sleep(RECORD_RETRY_S)
                else:
                    self._listener.ring()
                    return

        def begin() -> None:
            work = self._system.background(f"tell {stream}", insist, lambda: self._insisting.discard(work))
            self._insisting.add(work)

        self._system.loop.call_soon_threadsafe(begin)

    async def delete(self, session: str, *, cancel: bool, forks: bool) -> Deletion:
        """Have the owner delete a session.

        Raises:
            CommandRejected: it was refused.
            AskTimeout: no owner has done so in time; it is done later.
        """
        deletion, _ = await self._performed(SessionId(session), InboxDelete(cancel=cancel, forks=forks), None, None)
        assert isinstance(deletion, Deletion)
        return deletion

    async def _performed(
        self, session: SessionId, row: InboxCommand, key: str | None, timeout_s: float | None
    ) -> tuple[InboxOutcome, bool]:
        """Return what came of a row, and whether it is new; raise ActorStopped where this runtime closes meanwhile."""
        asking = asyncio.ensure_future(self._asked(session, row, key, timeout_s))
        try:
            ends: list[asyncio.Future[Any]] = [asking, self._closed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                why = "the runtime closed; the process that owns the shared log may still perform the command"
                raise ActorStopped(stream_name(SESSION_KIND, session), why)
            return asking.result()
        finally:
            asking.cancel()

    async def _asked(
        self, session: SessionId, row: InboxCommand, key: str | None, timeout_s: float | None
    ) -> tuple[InboxOutcome, bool]:
        key = key if key is not None else uuid.uuid4().hex
        limit_s = self._settings.ask_timeout_s if timeout_s is None else timeout_s
        until_s = self._clock.monotonic_s() + limit_s
        given = decoded_outcome(await self._listener.give(session, key, encoded_command(row), timeout_s=limit_s))
        if isinstance(given, Refused):
            raise CommandRejected(given.message)
        if given is not None:
            return given, True
        entry = await self._inbox.put(session, row, key)
        outcome = entry.outcome
        if outcome is None:
            self._listener.ring()
            while outcome is None and (left_s := until_s - self._clock.monotonic_s()) > 0:
                outcome = await outcome_within(self._inbox, entry, min(left_s, 3600.0), self._clock)
        if outcome is None:
            raise AskTimeout(f"the owner of {self.log.name}", limit_s)
        if isinstance(outcome, Refused):
            raise CommandRejected(outcome.message)
        return outcome, entry.new

    async def _folded(self, stream: StreamName) -> Fold[SessionState, SessionEvent]:
        """Return a session's state as the log has it now.

        Raises:
            StreamDeleted: the session was deleted.
        """
        kept = self._folds.get(stream)
        if kept is None:
            kept = self._folds[stream] = _Folded(stream)
        self._folds.move_to_end(stream)
        while len(self._folds) > FOLDS_MAX:
            self._folds.popitem(last=False)
        async with kept.lock:
            fold = kept.fold
            try:
                if not fold.version:
                    await fold.read(self.store)
                while fold.version:
                    # With the last one that is known, so that a deleted stream is noticed.
                    page = await self.store.read_stream(stream, after_version=fold.version - 1, limit=PAGE)
                    if not page:
                        raise StreamDeleted(stream)
                    await fold.advance(page[1:])
                    if len(page) < PAGE:
                        break
            except BaseException:  # It may have been left half-way.
                if self._folds.get(stream) is kept:
                    del self._folds[stream]
                raise
        return fold

    # What is told

    async def _hear(self, frame: News) -> None:
        match frame:
            case Hello(owner=owner, position=position):
                if owner != self._owner:
                    self._bus.forget_answers()
                self._owner = owner
                await self._catch_up(position)
                stir_watches(self._inbox.file.path)
            case Durable(position=position):
                await self._catch_up(position)
            case Noted():
                stir_watches(self._inbox.file.path)
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
        self._gone.ring()
        self._alarm.ring()
        stir_watches(self._inbox.file.path)

    async def _look(self) -> None:
        """Look at the log where nothing is heard, and now and then where something is."""
        while True:
            await self._alarm.wait(LOOK_ANYWAY_S if self._listener.hears else POLL_S)
            if not self._changes.are_due():
                continue
            try:
                await self._catch_up(None)
                for session in self._bus.followed_sessions():
                    if await tombstone_of(self.store, stream_name(SESSION_KIND, session)) is not None:
                        self._bus.session_deleted(session)
            except PersistenceError as error:
                self._complain(error)

    def _complain(self, error: PersistenceError) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            log.warning("the shared log %s: %s", self.log, error)

    async def _catch_up(self, position: int | None) -> None:
        """Tell what the log has up to a position, or up to its end, that was not told yet."""
        async with self._reading:
            while position is None or self._position < position:
                page = await self.store.read_all(after_position=self._position, limit=PAGE)
                wanted = page if position is None else [event for event in page if event.position <= position]
                for (stream, _), batch in groupby(wanted, key=lambda event: (event.stream, event.batch)):
                    events = list(batch)
                    await self._publish(stream, events)
                    self._position = events[-1].position
                if len(wanted) < PAGE:
                    return

    async def _publish(self, stream: StreamName, events: list[StoredEvent]) -> None:
        kind, identifier = kind_and_identifier(stream)
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
                    else await read_recorded(self.store, stream, after_version=events[0].version - 1, limit=len(events))
                )
                state = (await self._folded(stream)).state
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


async def opened_to_own(settings: Settings) -> SQLiteStore:
    """Return the log of a runtime, opened for writing, without waiting for another owner.

    Raises:
        LogInUse: another runtime owns it.
        PersistenceError: it cannot be opened.
    """
    return await SQLiteStore.open(
        _path(settings),
        durability=settings.durability,
        wait_for_log_s=0,
        append_timeout_s=settings.append_timeout_s,
        allow_shared_folder=settings.allow_shared_folder,
    )


def _path(settings: Settings) -> str | os.PathLike[str]:
    path = log_path(settings)
    assert path is not None
    return path
