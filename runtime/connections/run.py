"""A run in a log that another process owns: awaited, cancelled and read, by its id or by the key of its input.

What changes it goes through the inbox, and what is looked at is read from the log; read `connection` first.
The rule: an input that no runtime has taken yet is the same input under its key, however often it is asked about.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec

from refold.actors.loop_thread import LoopThread, blocking
from refold.connections.people import ConnectedForPeople
from refold.events.core.content import Json
from refold.events.core.errors import CommandRejected, ConfigError, StreamDeleted
from refold.events.core.ids import RunId, SessionId, ToolCallId, stream_name
from refold.events.session.core import SESSION_KIND
from refold.inspection.log_reading import tombstone_of
from refold.publishing.event_bus import EndedRun, EventBus
from refold.publishing.notifications import Published, RecordedSessionEvent
from refold.publishing.subscription import CAPACITY, FollowableSession, ReadingPlace, Subscription
from refold.remote.kept_log import ReadLog, kept_open
from refold.remote.mirror import JoinedMirror, follow_run, join_mirror, joined_mirror, run_status
from refold.remote.watching import POLL_S
from refold.sessions.access import NamedUser
from refold.sessions.outcome import RunResult, result_of
from refold.sessions.run_handle import (
    RunReader,
    RunStatus,
    place_of,
)
from refold.stores.sqlite.file import require_no_text_log
from refold.sync.session import SyncRunReader
from refold.type_parameters import Out_co

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


async def never_taken() -> RunId | None:
    """Return None."""
    return None


class ConnectedRun(Generic[Out_co]):
    """One run in a log that another process owns; get it from `ConnectedSession.submit`, or from `run`."""

    def __init__(
        self,
        session: ConnectedForPeople,
        named: NamedUser,
        run: RunId | None,
        take: Callable[[], Awaitable[RunId | None]] = never_taken,
        *,
        key: str | None = None,
        output_type: type[Out_co] | None = None,
    ) -> None:
        self.session: SessionId = session.id
        self.key = key
        """Of its input, as far as that is known; the same input under the same key is this run."""
        self.run = run
        """Its id within the session; None = no runtime has taken the input yet."""
        self._session = session
        self._take = take
        self._named = named
        self._output_type = output_type

    @property
    def id(self) -> str | None:
        """What `AgentRuntime.run` and `Connection.run` find it by; None = no runtime has taken the input yet."""
        return f"{self.session}/{self.run}" if self.run is not None else None

    async def result(self) -> RunResult[Out_co]:
        """Return how the run ended, once it has, whether a person or a runtime that owns the log is waited for.

        Cancelling the task that awaits this stops the wait and leaves the run alone.

        Raises:
            CommandRejected: the runtime has refused the input, or the session was deleted or is another user's.
            PersistenceError: the log cannot be read.
        """
        if (ended := (await self.status()).result) is not None:
            return ended
        run, connection = await self._taken(), self._session.connection
        async with joined_mirror(connection.log, connection.clock) as mirror:
            followed = await follow_run(
                mirror, self.session, run, through_stops=True, named=self._named, output_type=self._output_type
            )
        if not isinstance(followed, RunResult):
            raise CommandRejected(followed.why)
        return followed

    async def status(self) -> RunStatus[Out_co]:
        """Return where the run stands now, without waiting for its end; `queued` also before a runtime has its input.

        Raises:
            CommandRejected: the runtime has refused the input, or the session was deleted or is another user's.
            PersistenceError: the log cannot be read.
        """
        self.run = run = self.run or await self._take()
        if run is None:
            return RunStatus("queued")
        async with kept_open(self._session.connection.log) as kept:
            state = await kept.state(self.session)
            self._named.check(state.user)
            try:
                return await run_status(kept, state, self.session, run, self._output_type)
            except StreamDeleted:
                raise CommandRejected(f"session {self.session!r} was deleted") from None

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

    def stream(self, after: str | int = 0, *, capacity: int = CAPACITY) -> "ConnectedReader[Out_co]":
        """Return an async iterator of what happened in the run, and then of what happens, up to its end.

        It yields what `RunHandle.stream` of the owner yields, pieces of answers (`Streamed`) and reports of tools among
        it; where the owner cannot be heard (see "Embedding" in the documents), only the events.

        Args:
            after: a version of the session, or the `place` of an earlier reader, in any process.
            capacity: how many items may wait for the reader, >= 1.

        Raises:
            ConfigError: that is no place.
        """
        start = place_of(after)

        async def begin(followed: FollowableSession) -> RunReader:
            return RunReader(followed, await self._taken(), start, capacity)

        return ConnectedReader(self._session, self._named, begin, start, self._output_type)

    async def _taken(self) -> RunId:
        self.run = self.run or await self._take()
        while self.run is None:  # It is asked again after a pause: a connection may have no patience of its own.
            await self._session.connection.clock.sleep(POLL_S)
            self.run = await self._take()
        return self.run


async def taken(run: ConnectedRun[Any]) -> RunId:
    """Return the id of a run, once a runtime has taken its input; raises as `ConnectedRun.result`."""
    return await run._taken()  # pyright: ignore[reportPrivateUsage]


class ConnectedReader(Generic[Out_co]):
    """What happens in a run, or in a session, of a log that another process owns, as it happens.

    An async iterator and an async context manager, made by `ConnectedRun.stream`, and by `stream` and `follow` of
    `ConnectedSession`. It begins with the iteration, or the `async with`. Who leaves it changes nothing.
    """

    def __init__(
        self,
        session: ConnectedForPeople,
        named: NamedUser,
        begin: Callable[[FollowableSession], Awaitable[Subscription | RunReader]],
        start: ReadingPlace,
        output_type: type[Out_co] | None = None,
    ) -> None:
        self.session: SessionId | None = session.id
        self._of = session
        self._named = named
        self._begin = begin
        self._place = str(start)
        self._joined: JoinedMirror | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._items: Subscription | RunReader | None = None
        self._output_type = output_type
        self._result: RunResult[Out_co] | None = None
        self._over = False

    @property
    def place(self) -> str:
        """Where the reader of a run is: `stream(after=place)` goes on behind the last item; see `RunReader.place`."""
        return self._items.place if isinstance(self._items, RunReader) else self._place

    @property
    def partial_output(self) -> Json:
        """What there is of the text of the answer that is streamed in the run; see `RunReader.partial_output`."""
        return self._items.partial_output if isinstance(self._items, RunReader) else None

    @property
    def ended(self) -> EndedRun | None:
        """How the run has ended, once its end was read."""
        return self._items.ended if isinstance(self._items, RunReader) else None

    @property
    def result(self) -> RunResult[Out_co]:
        """How the run ended; to be read when its reader is at the end.

        Raises:
            ConfigError: it has not ended, as far as was read.
        """
        if self._result is None:
            raise ConfigError("the run has not ended yet; read its stream to the end first, then its result")
        return self._result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Published:
        """Return what happened, or happens, next.

        Raises:
            CommandRejected: the session is another user's, or was deleted; or the runtime has refused the input.
            ConfigError: it began on another event loop.
            PersistenceError: the log cannot be read; ask again.
        """
        if self._over:
            raise StopAsyncIteration
        kept, items = await self._begun()
        try:
            return await anext(items)
        except StreamDeleted:
            raise self._deleted() from None
        except StopAsyncIteration:
            ended = items.ended if isinstance(items, RunReader) else None
            if ended is not None:
                finished = ended.finished or (await kept.state_at(self._of.id, ended.version)).last_run
                assert finished is not None
                self._result = await result_of(finished, kept.store, self._output_type)
            else:
                await self._require_not_deleted(kept)
            self._leave()
            raise

    async def _begun(self) -> tuple[ReadLog, Subscription | RunReader]:
        if self._joined is None or self._items is None:
            connection = self._of.connection
            require_no_text_log(connection.log)
            await connection.wait_for_file()
            joined = await join_mirror(connection.log, connection.clock)
            try:
                joined.mirror.listener.attend()
                await joined.mirror.listener.tried()  # Else the first pieces would be told to nobody.
                await self._require_not_deleted(joined.held.log)
                self._items = await self._begin(self._followed(joined.held.log, joined.mirror.bus))
            except BaseException:
                joined.leave()
                raise
            self._joined, self._loop = joined, asyncio.get_running_loop()
            if self._over:  # Left by another task meanwhile.
                self._leave()
                raise StopAsyncIteration
        elif self._loop is not asyncio.get_running_loop():  # What it waits for would never wake the other one.
            raise ConfigError(
                "this reader began on another event loop; read it there, or begin another one here: "
                "`stream(after=place)` of a run, or `follow(after_version=...)`, goes on behind what was read"
            )
        return self._joined.held.log, self._items

    def _followed(self, kept: ReadLog, bus: EventBus) -> FollowableSession:
        named = self._named

        async def read(session: SessionId, version: int, limit: int) -> list[RecordedSessionEvent]:
            page = await kept.recorded_after(session, version, limit)
            await named.require(kept.store)
            return page

        return FollowableSession(self._of.id, bus, read, named.admission(lambda: kept.store))

    def _leave(self) -> None:
        self._over = True
        joined, self._joined = self._joined, None
        if joined is not None and self._loop is asyncio._get_running_loop():
            joined.leave()
        elif joined is not None:
            self._leave_on_its_loop(joined)
        if self._items is not None:
            self._items.close()

    def __del__(self) -> None:
        if self._joined is not None:
            self._leave_on_its_loop(self._joined)

    def _leave_on_its_loop(self, joined: JoinedMirror) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(joined.leave)
        except RuntimeError:  # The loop is closed: nothing goes on there.
            joined.held.store.close_now()

    async def _require_not_deleted(self, kept: ReadLog) -> None:
        if await tombstone_of(kept.store, stream_name(SESSION_KIND, self._of.id)) is not None:
            raise self._deleted()

    def _deleted(self) -> CommandRejected:
        return CommandRejected(f"session {self._of.id!r} was deleted")

    async def aclose(self) -> None:
        """Leave, any number of times."""
        self._leave()

    async def __aenter__(self) -> Self:
        if not self._over:
            await self._begun()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class SyncConnectedReader(SyncRunReader, Generic[Out_co]):
    """What happens in a run, or in a session, for threads; see `ConnectedReader`."""

    def __init__(self, loop_thread: LoopThread, reader: ConnectedReader[Out_co]) -> None:
        super().__init__(loop_thread, reader)
        self._of_connection = reader

    @property
    def result(self) -> RunResult[Out_co]:
        """How the run ended; see `ConnectedReader.result`."""
        return self._of_connection.result


class SyncConnectedRun(Generic[Out_co]):
    """One run in a log that another process owns, for threads; get it from `SyncConnectedSession.submit`, or `run`."""

    def __init__(self, loop_thread: LoopThread, run: ConnectedRun[Out_co]) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = run

    @property
    def id(self) -> str | None:
        """What finds it in any process; None = no runtime has taken the input yet."""
        return self.asynchronous.id

    @property
    def session(self) -> SessionId:
        """The id of its session."""
        return self.asynchronous.session

    @property
    def run(self) -> RunId | None:
        """Its id within the session; None = no runtime has taken the input yet."""
        return self.asynchronous.run

    @property
    def key(self) -> str | None:
        """Of its input, as far as that is known."""
        return self.asynchronous.key

    result = blocking(ConnectedRun[Out_co].result)
    status = blocking(ConnectedRun[Out_co].status)
    cancel = blocking(ConnectedRun.cancel)

    def stream(self, after: str | int = 0, *, capacity: int = CAPACITY) -> SyncConnectedReader[Out_co]:
        """Return an iterator of what happened in the run, and then of what happens; see `ConnectedRun.stream`."""
        return SyncConnectedReader(self.loop_thread, self.asynchronous.stream(after, capacity=capacity))
