"""A run in a log that another process owns: awaited, cancelled and read, by its id or by the key of its input.

What changes it goes through the inbox, and what is looked at is read from the log, as in `refold.remote.connection`.
The rule: an input that no runtime has taken yet is the same input under its key, however often it is asked about.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from refold.actors.kernel.clock import Clock
from refold.actors.sync.loop_thread import LoopThread, blocking, next_or_none
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import RunId, SessionId, ToolCallId
from refold.publishing.notifications import RecordedSessionEvent
from refold.remote.follow import POLL_S, follow_run
from refold.sessions.access import NamedUser
from refold.sessions.outcome import RunResult
from refold.sessions.run_handle import input_of, place_of
from refold.sessions.sent_input import RunEvents

T = TypeVar("T")


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """An input that is accepted for good, and whose run has not ended when the wait for it did.

    Sending the same input under the same `key` waits for the same run again.
    """

    session: SessionId
    key: str
    run: RunId | None
    """Its run; None = the input waits in the inbox for a runtime."""
    why: str
    """What it waits for, in words."""
    calls: tuple[ToolCallId, ...] = ()
    """Calls of the session that wait for approval, where that is why."""


class LogOfRun(Protocol):
    """The log of a run, as its connection has it."""

    @property
    def log(self) -> Path: ...

    @property
    def clock(self) -> Clock: ...


class SessionOfRun(Protocol):
    """The session of a run, as its connection has it."""

    @property
    def id(self) -> SessionId: ...

    @property
    def connection(self) -> LogOfRun: ...

    async def cancel(self, *, run: RunId | str | None = None, reason: str | None = None) -> bool: ...

    def follow(self, *, after_version: int | None = None) -> AsyncGenerator[RecordedSessionEvent, None]: ...


async def never_taken() -> RunId | None:
    """Return None."""
    return None


class ConnectedRun:
    """One run in a log that another process owns; get it from `ConnectedSession.submit`, or from `run`."""

    def __init__(
        self,
        session: SessionOfRun,
        run: RunId | None,
        take: Callable[[], Awaitable[RunId | None]] = never_taken,
        *,
        key: str | None = None,
        named: NamedUser | None = None,
    ) -> None:
        self.session: SessionId = session.id
        self.key = key
        """Of its input, as far as that is known; the same input under the same key is this run."""
        self.run = run
        """Its id within the session; None = no runtime has taken the input yet."""
        self._session = session
        self._take = take
        self._named = named

    @property
    def id(self) -> str | None:
        """What `AgentRuntime.run` and `Connection.run` find it by; None = no runtime has taken the input yet."""
        return f"{self.session}/{self.run}" if self.run is not None else None

    async def result(self) -> RunResult:
        """Return how the run ended, once it has, whether a person or a runtime that owns the log is waited for.

        Cancelling the task that awaits this stops the wait and leaves the run alone.

        Raises:
            CommandRejected: the runtime has refused the input, or the session was deleted or is another user's.
            PersistenceError: the log cannot be read.
        """
        run, connection = await self._taken(), self._session.connection
        followed = await follow_run(
            connection.log,
            self.session,
            run,
            connection.clock,
            through_stops=True,
            named=self._named,
        )
        if not isinstance(followed, RunResult):
            raise CommandRejected(followed.why)
        return followed

    async def cancel(self, *, reason: str | None = None) -> bool:
        """End the run as cancelled; one that has ended stays.

        Returns:
            Whether that is done; False = it waits in the inbox for a runtime.

        Raises:
            CommandRejected: no runtime has taken the input yet, also when it was waited for.
            PersistenceError: it could not be put into the inbox.
        """
        self.run = self.run or await self._take()
        if self.run is None:
            raise CommandRejected("no runtime has taken the input yet, so that there is no run to cancel")
        return await self._session.cancel(run=self.run, reason=reason)

    async def stream(self, after: str | int = 0) -> AsyncGenerator[RecordedSessionEvent, None]:
        """Yield the events of the run behind a place, and then as they become durable, up to its end.

        Pieces of answers are not logged, so that only the owner's `RunHandle.stream` has those.

        Args:
            after: a version of the session, or the `place` of an earlier reader.

        Raises:
            ConfigError: that is no place.
            CommandRejected: the runtime has refused the input, or the session was deleted.
            PersistenceError: the log cannot be read.
        """
        start, run = place_of(after), await self._taken()
        events = RunEvents(run)
        async with aclosing(self._session.follow(after_version=input_of(run) - 1)) as followed:
            async for recorded in followed:
                if events.include(recorded.version, recorded.event) and recorded.version > start.version:
                    yield recorded
                if events.ended is not None:
                    return

    async def _taken(self) -> RunId:
        self.run = self.run or await self._take()
        while self.run is None:  # It is asked again after a pause: a connection may have no patience of its own.
            await self._session.connection.clock.sleep(POLL_S)
            self.run = await self._take()
        return self.run


class SyncConnectedRun:
    """One run in a log that another process owns, for threads; get it from `SyncConnectedSession.submit`, or `run`."""

    def __init__(self, loop_thread: LoopThread, run: ConnectedRun) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = run

    @property
    def id(self) -> str | None:
        """What finds it in any process; None = no runtime has taken the input yet."""
        return self.asynchronous.id

    @property
    def key(self) -> str | None:
        """Of its input, as far as that is known."""
        return self.asynchronous.key

    result = blocking(ConnectedRun.result)
    cancel = blocking(ConnectedRun.cancel)

    def stream(self, after: str | int = 0) -> Iterator[RecordedSessionEvent]:
        """Yield the events of the run behind a place, and then as they become durable; see `ConnectedRun.stream`."""
        return iterated(self.loop_thread, self.asynchronous.stream(after))


def iterated(thread: LoopThread, items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield what comes of a generator of a thread's loop."""
    try:
        while (item := thread.run(lambda: next_or_none(items))) is not None:
            yield item
    finally:
        thread.begin(items.aclose)  # Not waited for: a generator that is let go of ends in any thread.
