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
import math
import os
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from refold.actors.agent.session import PerformedInRun
from refold.actors.agent.subsession import SessionEnvelope
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.kernel.supervision import Background
from refold.actors.kernel.system import ActorSystem
from refold.actors.shell.effects import RECORD_RETRY_S
from refold.actors.shell.messages import Envelope, Performed
from refold.events.core.checked_core import CheckedCore, S
from refold.events.core.errors import (
    CommandRejected,
    LogFormatError,
    LogInUse,
    PersistenceError,
)
from refold.events.core.ids import SessionId, StreamName, kind_and_identifier, stream_name
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import SessionState
from refold.inspection.log_reading import session_head
from refold.keeping.deletion import Deletion, UserDeletion
from refold.keeping.retention import Retention
from refold.lineage.fork import WantedFork
from refold.options import Settings, log_path
from refold.publishing.event_bus import EventBus
from refold.remote import rows
from refold.remote.hosted import queue_of, read_hosted, row_of_hosted, state_of
from refold.remote.kept_log import ReadLog
from refold.remote.mirror import Mirror
from refold.remote.protocol import (
    Done,
    Inbox,
    InboxOutcome,
    Refused,
    Retained,
    RowGone,
    UserDeleted,
    decoded_outcome,
    described_row,
    encoded_command,
    row_of,
    row_of_fork,
)
from refold.remote.watching import POLL_S, outcome_within, stir_watches
from refold.stores.sqlite.file import absolute
from refold.stores.sqlite.ownership import log_owner
from refold.stores.sqlite.sides import LogReplaced
from refold.stores.sqlite.store import SQLiteStore

log = logging.getLogger("refold.runtime")

T = TypeVar("T")


class Visiting(Protocol):
    """What a runtime has while it is a guest."""

    async def end(self) -> None:
        """Do nothing more."""
        ...


class Guest:
    """Reaches the sessions of a log whose owner is another process; implements `Reach`.

    Args:
        store: the log, opened for reading; `taken_over` gives another one.
        system: where its background work lives; it has no sessions.
        position: what is behind it in the log is told.
    """

    def __init__(
        self, store: SQLiteStore, settings: Settings, system: ActorSystem, bus: EventBus, *, position: int
    ) -> None:
        self.log: Path = absolute(_path(settings))
        self._settings = settings
        self._system = system
        self._clock = system.clock
        self._inbox = Inbox(self.log, self._clock, allow_shared_folder=settings.allow_shared_folder)
        self._bus = bus
        self._reading = ReadLog(store)
        self._mirror = self._mirror_from(position)
        self.objects: Visiting | None = None
        """The memories of the runtime's agents."""
        self._insisting: set[Background] = set()
        self._former: SQLiteStore | None = None
        """As which the log was open before it was taken over; readers that have begun go on in it."""
        self._closed: asyncio.Future[None] = system.loop.create_future()

    def _mirror_from(self, position: int) -> Mirror:
        noted = partial(stir_watches, self._inbox.file.path)
        begin = self._system.background
        mirror = Mirror(self.log, self._reading, self._clock, self._bus, begin, noted=noted, position=position)
        mirror.listener.attend()
        return mirror

    @property
    def position(self) -> int:
        """Up to where it has told what the log has."""
        return self._mirror.position

    @property
    def store(self) -> SQLiteStore:
        store = self._reading.store
        assert isinstance(store, SQLiteStore)
        return store

    @classmethod
    async def open(cls, settings: Settings, system: ActorSystem, bus: EventBus, position: int | None = None) -> "Guest":
        """Return a guest of a log that another runtime owns; `position` as for the class, None = the log's end."""
        store = await SQLiteStore.open(_path(settings), read_only=True)
        try:
            end = await store.end_position()
            return cls(store, settings, system, bus, position=end if position is None else position)
        except BaseException:
            await store.close()
            raise

    # The end, and the change of the owner

    async def open_again(self, system: ActorSystem, position: int) -> "Guest":
        """Be a guest again, once another runtime has the log that was taken over; see `open`."""
        store = await SQLiteStore.open(_path(self._settings), read_only=True)
        former, self._former = self._former, None
        if former is not None:
            await former.close()
        store.read_one_file()
        self._system, self._reading.store = system, store
        self._mirror = self._mirror_from(position)
        return self

    async def settle(self) -> None:
        """Tell those who wait for runs that had ended here how they ended: their actors are gone."""
        for session in self._bus.ending_sessions():
            try:
                state = await self._reading.state(session)
            except LogFormatError as error:
                self._bus.session_failed(session, str(error))
                continue
            if state.version:
                self._bus.settled(session, state)
            else:  # By the process that has the log now.
                self._bus.session_deleted(session)

    async def owned(self) -> SQLiteStore:
        """Return the log, opened for writing, once no other runtime owns it; raise LogReplaced where it is another."""
        while True:
            try:
                if log_owner(self.log) is None:
                    await self.store.end_position()  # No other log is made, or taken, where this one is not any more.
                    return await opened_to_own(self._settings)
            except LogInUse as error:
                log.debug("another process was quicker: %s", error)
            except LogReplaced:
                raise
            except PersistenceError as error:
                self._mirror.complain(error)
            await self._mirror.gone.wait(POLL_S)

    async def taken_over(self, store: SQLiteStore) -> None:
        """Tell what is left of the former owner's time, and hear nothing more; `store` is this runtime's own now."""
        await self._end_objects()
        await self._mirror.stop()
        self._former, self._reading.store = self.store, store
        await self._mirror.catch_up(None)

    async def close(self) -> None:
        """End, with all that it has begun; the log that is in use stays open."""
        if not self._closed.done():
            self._closed.set_result(None)
        await self._end_objects()
        await self._mirror.stop()
        for insisting in list(self._insisting):
            await insisting.stop()
        if self._former is not None:
            await self._former.close()

    async def _end_objects(self) -> None:
        objects, self.objects = self.objects, None
        if objects is not None:
            await objects.end()

    # What sessions ask for

    async def read(self, stream: StreamName, question: Callable[[SessionState], T], *, vital: bool) -> T:
        """Return what a session's state answers that the log has now."""
        return question(await self._reading.folded.session(self.store, stream))

    async def ask(self, stream: StreamName, envelope: SessionEnvelope, *, timeout_s: float | None) -> Performed:
        """Return when the owner has performed a command; after AskTimeout it stays in the inbox."""
        session = SessionId(kind_and_identifier(stream)[1])
        command = envelope.command
        row = described_row(row_of(command, envelope.payloads, envelope.describes), envelope.describes)
        done, new = await self._performed(session, row, getattr(command, "key", None), timeout_s)
        assert isinstance(done, Done)
        if done.run is not None:
            return PerformedInRun(done.version, done.new and new, done.run)
        return Performed(done.version, done.new and new)

    def tell(self, stream: StreamName, envelope: Envelope) -> None:
        """Have the owner perform a command, and try again until it is in the inbox; from any thread."""
        session = SessionId(kind_and_identifier(stream)[1])
        self._insist(stream, session, row_of(envelope.command, envelope.payloads, None), uuid.uuid4().hex)

    def _insist(self, stream: StreamName, session: SessionId, row: rows.InboxCommand, key: str) -> None:
        async def insist() -> None:
            while True:
                try:
                    await self._inbox.put(session, row, key)
                except PersistenceError as error:
                    self._mirror.complain(error)
                    await self._clock.sleep(RECORD_RETRY_S)
                else:
                    self._mirror.listener.ring()
                    return

        def begin() -> None:
            work = self._system.background(f"tell {stream}", insist, lambda: self._insisting.discard(work))
            self._insisting.add(work)

        self._system.loop.call_soon_threadsafe(begin)

    async def ask_hosted(
        self, core: CheckedCore[Any, Any, Any], address: StreamName, command: object, timeout_s: float | None
    ) -> Performed:
        """As `Hosted.ask`."""
        key, row = row_of_hosted(core, address, command)
        done, new = await self._performed(queue_of(address), row, key, timeout_s)
        assert isinstance(done, Done)
        return Performed(done.version, done.new and new)

    def tell_hosted(self, core: CheckedCore[Any, Any, Any], address: StreamName, command: object) -> None:
        """As `Hosted.tell`; tries again until the command is in the inbox."""
        key, row = row_of_hosted(core, address, command)
        self._insist(address, queue_of(address), row, key)

    async def read_hosted(self, core: CheckedCore[S, Any, Any], address: StreamName, question: Callable[[S], T]) -> T:
        """As `Hosted.read`."""
        return await read_hosted(self._reading, core, address, question)

    async def state_of(self, core: CheckedCore[S, Any, Any], address: StreamName) -> S:
        """Return an actor's state as the log has it now, to look at only; raises PersistenceError."""
        return await state_of(self._reading, core, address)

    async def delete(self, session: str, *, cancel: bool, forks: bool) -> Deletion:
        """Have the owner delete a session; after AskTimeout it is done later."""
        name, row = SessionId(session), rows.InboxDelete(cancel=cancel, forks=forks)
        deletion, _ = await self._performed(name, row, None, None)
        assert isinstance(deletion, Deletion)
        return deletion

    async def delete_user(self, user: str, *, cancel: bool) -> UserDeletion:
        outcome, _ = await self._performed(
            rows.WHOLE_LOG, rows.InboxDeleteUser(user=user, cancel=cancel), None, math.inf
        )
        assert isinstance(outcome, UserDeleted)
        return msgspec.structs.replace(outcome.deletion, user=user)

    async def retain(self, wanted: rows.InboxRetain) -> Retention:
        outcome, _ = await self._performed(rows.WHOLE_LOG, wanted, None, math.inf)
        assert isinstance(outcome, Retained)
        return outcome.retention

    async def fork(self, origin: SessionId, wanted: WantedFork) -> SessionId:
        """Have the owner make a fork, and return its id; after AskTimeout it is made later."""
        version = wanted.at if wanted.at is not None else (await session_head(self.store, origin)).version
        row = row_of_fork(origin, version, wanted)
        await self._performed(origin, row, None, None)
        return SessionId(row.name)

    async def _performed(
        self, session: SessionId, row: rows.GivenRow, key: str | None, timeout_s: float | None
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
        self, session: SessionId, row: rows.GivenRow, key: str | None, timeout_s: float | None
    ) -> tuple[InboxOutcome, bool]:
        key = key if key is not None else uuid.uuid4().hex
        limit_s = self._settings.ask_timeout_s if timeout_s is None else timeout_s
        until_s = self._clock.monotonic_s() + limit_s
        listener, new = self._mirror.listener, True
        answer = await listener.give(session, key, encoded_command(row), timeout_s=limit_s)
        if (outcome := decoded_outcome(answer)) is None:
            inbox = self._inbox.until(until_s)
            try:
                entry = await inbox.put(session, row, key)
            except PersistenceError as error:
                error.outcome_unknown |= answer is not None  # The owner may perform what it was given.
                raise
            outcome, new = entry.outcome, entry.new
            if outcome is None:
                listener.ring()
            while outcome is None and (left_s := until_s - self._clock.monotonic_s()) > 0:
                try:
                    outcome = await outcome_within(inbox, entry, min(left_s, 3600.0), self._clock)
                except RowGone:  # As after a clock that jumped by weeks; its key tells what came of it.
                    entry = await inbox.put(session, row, key)
                    outcome = entry.outcome
                    listener.ring()
        if outcome is None:
            raise AskTimeout(f"the owner of {self.log.name}", limit_s)
        if isinstance(outcome, Refused):
            raise CommandRejected(outcome.message)
        return outcome, new


async def opened_to_own(settings: Settings) -> SQLiteStore:
    """Return the log of a runtime, opened for writing; raise LogInUse where another runtime owns it."""
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
