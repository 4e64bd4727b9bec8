"""A shared log whose owner changes: what is asked of it here is done here, in another process, and here again.

The rule: what a process could not do since another one has taken the log is done by that one, once. Nothing of it was
written here, since an append of the former owner is refused before it writes.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Final, TypeVar

from refold.actors.agent.subsession import SessionEnvelope
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.shell.effects import retry_pause_s
from refold.actors.shell.journal import Journal
from refold.actors.shell.messages import Envelope, Performed
from refold.context import Reach, RuntimeContext
from refold.events.core.errors import BackpressureShed, LogInUse, PersistenceError, RefoldError
from refold.events.core.ids import SessionId, StreamName, checked_identifier
from refold.events.session.state import SessionState
from refold.keeping.deletion import Deletion, UserDeletion, delete_in, delete_user_in
from refold.keeping.retention import EndedStatus, Retention, retain_in
from refold.lineage.fork import WantedFork, fork_in
from refold.remote.guest import Guest
from refold.remote.rows import InboxRetain
from refold.remote.watching import POLL_S
from refold.running_agents import ActorReach
from refold.stores.sqlite.file import absolute
from refold.stores.sqlite.store import SQLiteStore

log = logging.getLogger("refold.runtime")

LOOK_AT_LOCK_S: Final = 0.5
"""How often an owner that writes nothing looks whether it still owns a shared log."""

T = TypeVar("T")

AS_IN_USE: Final = (LogInUse, ActorStopped)
"""What is raised where the log went to another process before something was done."""


class ChangingReach:
    """Reaches the sessions of a shared log; implements `Reach`.

    Args:
        now: how they are reached now.
        clock: of the runtime.
        moved: tells, once it is so, whether that changed since the log went to another process; given an error.
    """

    def __init__(self, now: Reach, clock: Clock, moved: Callable[[Exception], Awaitable[bool]]) -> None:
        self.now = now
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._moved = moved
        self._telling: set[asyncio.Task[None]] = set()

    async def read(self, stream: StreamName, question: Callable[[SessionState], T], *, vital: bool) -> T:
        """As `Reach.read`."""
        return await self._reached(lambda reach: reach.read(stream, question, vital=vital))

    async def ask(self, stream: StreamName, envelope: SessionEnvelope, *, timeout_s: float | None) -> Performed:
        """As `Reach.ask`."""
        return await self._reached(lambda reach: reach.ask(stream, envelope, timeout_s=timeout_s))

    async def _reached(self, call: Callable[[Reach], Awaitable[T]]) -> T:
        while True:
            reach = self.now
            try:
                return await call(reach)
            except AS_IN_USE as error:
                if self.now is not reach:  # The error is of an earlier life, and says nothing of this one.
                    continue
                if not await self._moved(error) or self.now is reach:
                    raise

    def tell(self, stream: StreamName, envelope: Envelope) -> None:
        """As `Reach.tell`."""
        if not isinstance(self.now, ActorReach):
            self.now.tell(stream, envelope)
            return
        self._loop.call_soon_threadsafe(self._begin_to_tell, stream, envelope)

    def _begin_to_tell(self, stream: StreamName, envelope: Envelope) -> None:
        task = self._loop.create_task(self._tell(stream, envelope), name=f"tell {stream}")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, stream: StreamName, envelope: Envelope) -> None:
        """Have a command performed, here or by the process that has the log then; try again until it is."""
        given = SessionEnvelope(envelope.command, envelope.payloads, vital=True, cause=envelope.cause)
        attempt = 0
        while True:
            try:
                await self.ask(stream, given, timeout_s=None)
            except (PersistenceError, AskTimeout, BackpressureShed) as error:
                log.warning("%s: a %s is not recorded yet: %s", stream, type(envelope.command).__name__, error)
                await self._clock.sleep(retry_pause_s(attempt))
                attempt += 1
            except RefoldError as error:
                log.info("%s: a %s has no effect: %s", stream, type(envelope.command).__name__, error)
                return
            else:
                return


async def watch_lock(store: SQLiteStore, journal: Journal, clock: Clock) -> None:
    """Have the journal told as soon as another process has the log."""
    while True:
        try:
            if store.is_lost:
                return journal.lose()
        except PersistenceError as error:
            log.debug("whether another process has the log is not known: %s", error)
        await clock.sleep(LOOK_AT_LOCK_S)


async def once_until(until_s: float, clock: Clock, attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what an attempt does, which is made again until a time while the log fails."""
    while True:
        try:
            return await attempt()
        except PersistenceError:
            if clock.monotonic_s() >= until_s:
                raise
            await clock.sleep(POLL_S)


class OwnersWork:
    """What is done to a log and not in one of its sessions: here, or by the process that owns it.

    Args:
        context: returns what is open, or raises ConfigError.
        guest: returns what reaches the owner; None = this process is the owner.
        moved: as for `ChangingReach`.
    """

    def __init__(
        self,
        context: Callable[[], RuntimeContext],
        guest: Callable[[], Guest | None],
        moved: Callable[[Exception], Awaitable[bool]],
    ) -> None:
        self._context = context
        self._guest = guest
        self._moved = moved

    async def _done(self, here: Callable[[RuntimeContext], Awaitable[T]], there: Callable[[Guest], Awaitable[T]]) -> T:
        self._context().require_open()
        while (guest := self._guest()) is None:
            context = self._context()
            journal = context.journal
            try:
                return await here(context)
            except (PersistenceError, ActorStopped) as error:
                # Also one that says that the log is closed, or open for reading only: this process left it meanwhile,
                # and may have it again.
                unknown = isinstance(error, PersistenceError) and error.outcome_unknown
                if unknown or (context.journal is journal and not await self._moved(error)):
                    raise
        return await there(guest)

    async def delete(self, session: str, *, cancel: bool, forks: bool) -> Deletion:
        """As `AgentRuntime.delete`."""
        name = checked_identifier(session, "session id")
        return await self._done(
            lambda context: delete_in(context, session, cancel=cancel, forks=forks),
            lambda guest: guest.delete(name, cancel=cancel, forks=forks),
        )

    async def delete_user(self, user: str, *, cancel: bool) -> UserDeletion:
        """As `AgentRuntime.delete_user`."""
        name = checked_identifier(user, "user")
        return await self._done(
            lambda context: delete_user_in(context, name, cancel=cancel),
            lambda guest: guest.delete_user(name, cancel=cancel),
        )

    async def retain(
        self,
        older_than: timedelta,
        statuses: Collection[EndedStatus],
        archive: str | os.PathLike[str] | None,
        *,
        dry_run: bool,
    ) -> Retention:
        """As `AgentRuntime.retain`."""
        wanted = InboxRetain(
            older_than_us=older_than // timedelta(microseconds=1),
            statuses=tuple(statuses),
            archive=str(absolute(archive)) if archive is not None else None,
            dry_run=dry_run,
        )
        return await self._done(
            lambda context: retain_in(context, older_than, statuses, archive, dry_run=dry_run),
            lambda guest: guest.retain(wanted),
        )

    async def fork(self, origin: SessionId, wanted: object) -> SessionId:
        """As `RuntimeContext.fork`."""
        assert isinstance(wanted, WantedFork)
        given = wanted

        async def here(context: RuntimeContext) -> SessionId:
            return (await fork_in(context, origin, given)).session

        return await self._done(here, lambda guest: guest.fork(origin, given))
