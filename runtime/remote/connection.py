"""A log as seen by a process that does not own it: a worker of a web server beside the one that runs the agents.

Read `refold.remote.protocol` first. What changes a session goes through the inbox to the runtime that owns the log;
what is looked at is read from the log. The rules: a connection never writes the log while a runtime owns it, keeps
nothing open between calls, and needs no closing; a caller who waits is told why there is no end for now.

`with connect(log) as connection` gives a `SyncConnection`, for threads: the same connection, reached from outside. Its
thread begins with the first call, in the process that makes it, so that a connection may be made before a fork.
"""

import atexit
import math
import os
import threading
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

from refold.actors.calls.conversation import own_copy
from refold.actors.kernel.clock import Clock, SystemClock
from refold.actors.sync.loop_thread import LoopThread, blocking
from refold.events.core.cleaning import recorded_reason
from refold.events.core.content import Message
from refold.events.core.errors import CommandRejected, ConfigError
from refold.events.core.ids import RunId, SessionId, checked_identifier, stream_name
from refold.events.model.payloads import all_restored, stored_hashes
from refold.events.session.commands import DescribeSession
from refold.events.session.core import SESSION_CORE, SESSION_KIND
from refold.events.session.state import history
from refold.inspection.log_reading import opened
from refold.inspection.session_view import ListedSession, SessionsWanted, list_names, list_sessions
from refold.publishing.notifications import RecordedSessionEvent
from refold.publishing.subscription import read_recorded
from refold.remote.client import Given, give, session_state
from refold.remote.follow import POLL_S, follow_run, follow_session
from refold.remote.people import AwaitedDecision, ConnectedForPeople, awaited_decisions
from refold.remote.protocol import (
    InboxCancel,
    InboxCommand,
    InboxDescribe,
    InboxSetAside,
    InboxTakeBack,
    Refused,
    send_command,
)
from refold.remote.run import ConnectedRun, SyncConnectedRun, Unfinished, iterated
from refold.sessions.access import Input, NamedUser, RunOverrides, checked_name, describe_command, run_options
from refold.sessions.outcome import RunResult
from refold.sessions.run_handle import known_run, run_id_parts
from refold.stores.event_store import EventStore
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite.ownership import LogOwner, log_owner

T = TypeVar("T")

PATIENCE_S: Final = 10.0
"""How long to wait for a runtime, where nothing else is said."""

EVENTS_PAGE: Final = 1000
"""How many events are read from the log at once."""


def connect(log: str | os.PathLike[str], *, patience_s: float = PATIENCE_S, clock: Clock | None = None) -> "Connection":
    """Return the way to a log that a runtime of another process, thread or event loop owns, or will own.

    Nothing is opened or started, so that a connection may be made at any time, before a fork too, and held for ever.

    Args:
        log: the path of the log's file.
        patience_s: how long a command waits for a runtime to perform it, and a caller for one to own the log.
        clock: None = the machine's.

    Raises:
        ConfigError: that is the path of no file, or no number of seconds.
    """
    return Connection(log, patience_s=patience_s, clock=clock)


class Connection:
    """A log that another process owns; get it from `connect`.

    Where no event loop runs, `with connect(log) as connection` gives a `SyncConnection`, on a loop of its own.
    """

    def __init__(
        self, log: str | os.PathLike[str], *, patience_s: float = PATIENCE_S, clock: Clock | None = None
    ) -> None:
        if not isinstance(log, str | os.PathLike):
            raise ConfigError(f"connect takes the path of a log's file, not {log!r:.60}; other processes see no store")
        if os.fspath(log) == ":memory:":
            raise ConfigError(
                "a log in memory is its runtime's own and cannot be reached from elsewhere; give the runtime and "
                "connect the path of a file"
            )
        sqlite_file.require_path(log)
        self.log: Path = sqlite_file.absolute(log)
        """The path of the log's file, absolute."""
        self.patience_s = _checked_seconds(patience_s, "patience_s")
        self.clock: Clock = clock if clock is not None else SystemClock()

    def session(
        self,
        session_id: str | None = None,
        *,
        user: str | None = None,
        metadata: Mapping[str, str | None] | None = None,
    ) -> "ConnectedSession":
        """Return a session, which may be in the log or not; its first input begins it.

        Args:
            session_id: any text of 1 to 512 UTF-8 bytes without NUL; None = a new id is made.
            user: whose it is; what is done with the session of another user raises CommandRejected. See
                `AgentRuntime.session`.
            metadata: what the application has to say of it; it is recorded with the next input.

        Raises:
            ConfigError: an argument cannot be one.
        """
        name = session_id if session_id is not None else str(uuid.uuid4())
        described = describe_command(user, metadata)
        return ConnectedSession(self, SessionId(checked_identifier(name, "session id")), described)

    def __enter__(self) -> "SyncConnection":
        self._face = SyncConnection(self)
        return self._face

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._face.close()

    async def run(self, run_id: str) -> ConnectedRun:
        """Return a run of any session in the log; see `AgentRuntime.run`.

        Raises:
            ConfigError: there is no such run.
            PersistenceError: the log cannot be read.
        """
        session, run = run_id_parts(run_id)
        return await self.session(session).run(run)

    async def sessions(self, **wanted: Unpack[SessionsWanted]) -> list[SessionId]:
        """Return the ids of all sessions in the log, or of those that are wanted; see `AgentRuntime.sessions`."""
        await self.wait_for_file()
        async with opened(self.log) as store:
            return await list_names(store, **wanted)

    async def list_sessions(self, **wanted: Unpack[SessionsWanted]) -> list[ListedSession]:
        """Return the sessions in the log that are wanted, with what is known of each; see `AgentRuntime.sessions`."""
        await self.wait_for_file()
        async with opened(self.log) as store:
            return await list_sessions(store, **wanted)

    async def approvals(self) -> list[AwaitedDecision]:
        """Return the calls of all sessions that wait for a person's decision, in order of sessions and calls.

        Raises:
            PersistenceError: the log or its inbox cannot be read.
        """
        await self.wait_for_file()
        return [each for each in await awaited_decisions(self.log) if each.question is None]

    async def questions(self) -> list[AwaitedDecision]:
        """Return what calls of all sessions wait to be told: answers and deferred results; raises as `approvals`."""
        await self.wait_for_file()
        return [each for each in await awaited_decisions(self.log) if each.question is not None]

    def owner(self) -> LogOwner | None:
        """Return the process that owns the log at this moment, or None if none does.

        Raises:
            PersistenceError: that cannot be told.
        """
        return log_owner(self.log)

    async def wait_for_file(self) -> None:
        """Return when the log's file is there, or no process is about to make it."""
        until_s = self.clock.monotonic_s() + self.patience_s
        while (
            sqlite_file.look_at(self.log) == "missing"
            and log_owner(self.log) is not None
            and self.clock.monotonic_s() < until_s
        ):
            await self.clock.sleep(POLL_S)


class ConnectedSession(ConnectedForPeople):
    """One conversation in a log that another process owns; get it from `Connection.session`."""

    def __init__(self, connection: Connection, session: SessionId, described: DescribeSession | None = None) -> None:
        self.id = session
        self.connection = connection
        self._named = NamedUser(session, described)
        self._path = connection.log
        self._stream = stream_name(SESSION_KIND, session)

    async def send(
        self,
        content: Input,
        *,
        key: str | None = None,
        wait_s: float | None = None,
        **options: Unpack[RunOverrides],
    ) -> RunResult | Unfinished:
        """Send an input through the log's owner, and return how its run ended.

        The input is accepted for good as soon as it lies in the inbox, even if this process or the owner ends
        then. Cancelling the task that awaits this stops the wait and leaves the run alone; `cancel` ends it.

        It is returned early, as `Unfinished`, when a call of the session waits for approval, when the run is
        parked, or when no runtime has owned the log for as long as the connection has patience.

        Args:
            content: text or blocks; not empty.
            key: idempotency key: the same key with the same content is the same run, whether it is sent here or by the
                owner's `Session.send`; None = a new one.
            wait_s: for how long to wait for the end of the run, 0 = only until the input is accepted; None = for as
                long as it takes.
            options: what this run does otherwise than its agent, as for `Session.send`.

        Raises:
            ConfigError: an argument makes no sense.
            CommandRejected: the input is empty or cannot be recorded, the key was used for something else, or the
                owner refuses it, as where the session is one of another agent.
            PersistenceError: the input could not be put into the inbox, or the log cannot be read.
        """
        connection = self.connection
        clock = connection.clock
        until_s = clock.monotonic_s() + (math.inf if wait_s is None else _checked_seconds(wait_s, "wait_s"))
        given = await self._give(
            send_command(content, run_options(options), self._named.said),
            key,
            patience_s=connection.patience_s if wait_s is None else min(connection.patience_s, wait_s),
            may_begin=True,
        )
        run = given.run
        if run is None:
            return Unfinished(session=self.id, key=given.key, run=None, why=given.why)
        followed = await follow_run(
            connection.log,
            self.id,
            run,
            clock,
            wait_s=until_s - clock.monotonic_s(),
            ownerless_s=connection.patience_s,
            owned=not given.directly,
            named=self._named,
        )
        if isinstance(followed, RunResult):
            return followed
        return Unfinished(session=self.id, key=given.key, run=run, why=followed.why, calls=followed.calls)

    async def submit(self, content: Input, *, key: str | None = None, **options: Unpack[RunOverrides]) -> ConnectedRun:
        """Send an input and return its run as soon as a runtime has taken it, or the connection's patience is over.

        It is accepted for good as soon as it lies in the inbox. The arguments, and what is raised, are as for `send`.
        """
        command = send_command(content, run_options(options), self._named.said)
        given = await self._give(command, key, may_begin=True)

        async def taken() -> RunId | None:
            return (await self._give(command, given.key, may_begin=True)).run

        return ConnectedRun(self, given.run, taken, key=given.key, named=self._named)

    async def run(self, run: RunId | str | None = None, *, key: str | None = None) -> ConnectedRun:
        """Return a run of the session, by its id or by the key of its input; see `Session.run`.

        Raises:
            ConfigError: the session has no such run, or no runtime has taken the input yet.
            PersistenceError: the log cannot be read.
        """
        async with self._log() as store:
            state = await session_state(store, self.id) if key is not None else SESSION_CORE.initial()
            name, _ = await known_run(store, self.id, run, key, state.keys.get)
        return ConnectedRun(self, name, key=key, named=self._named)

    async def cancel(
        self, *, run: RunId | str | None = None, key: str | None = None, reason: str | None = None
    ) -> bool:
        """End the run under way as cancelled; without one, nothing happens.

        Args:
            run: this run instead, which may be under way, queued or for a later time; one that has ended stays.
            key: idempotency key.
            reason: is recorded.

        Returns:
            Whether that is done; False = it waits in the inbox for a runtime.

        Raises:
            ConfigError: there is no such session.
            PersistenceError: it could not be put into the inbox.
        """
        named = RunId(checked_name(run, "run")) if run is not None else None
        why = recorded_reason(reason) if reason is not None else None
        return (await self._give(InboxCancel(run=named, reason=why), key)).outcome is not None

    async def set_aside(
        self,
        version: int,
        *,
        message: int | None = None,
        part: int | None = None,
        reason: str = "",
        key: str | None = None,
    ) -> bool:
        """Leave what an event brought out of later requests, as `Session.set_aside` does.

        Returns:
            Whether that is done; False = it waits in the inbox for a runtime.

        Raises:
            CommandRejected: a run is under way, or that is not in what the model is shown, or can be no such thing.
            ConfigError: there is no such session.
            PersistenceError: it could not be put into the inbox.
        """
        command = InboxSetAside(version=version, message=message, part=part, reason=recorded_reason(reason))
        return (await self._give(command, key)).outcome is not None

    async def take_back(self, version: int, *, reason: str = "", key: str | None = None) -> bool:
        """Show a model again what was set aside, as `Session.take_back` does; returns and raises as `set_aside`."""
        command = InboxTakeBack(version=version, reason=recorded_reason(reason))
        return (await self._give(command, key)).outcome is not None

    async def describe(
        self, *, user: str | None = None, metadata: Mapping[str, str | None] | None = None, key: str | None = None
    ) -> bool:
        """Say whose the session is, and what the application has to say of it, as `Session.describe` does.

        Returns:
            Whether that is done; False = it waits in the inbox for a runtime.

        Raises:
            ConfigError: an argument cannot be one, or there is no such session.
            CommandRejected: the session is another user's, or its metadata has too many bytes.
            PersistenceError: it could not be put into the inbox.
        """
        said = describe_command(user, metadata) or DescribeSession()
        command = InboxDescribe(user=said.user, metadata=dict(said.metadata))
        return (await self._give(command, key)).outcome is not None

    async def history(self) -> list[Message]:
        """Return the balanced history as the model sees it; of a session that has not begun, none.

        Raises:
            PersistenceError: the log cannot be read.
        """
        async with self._log() as store:
            messages = history(await session_state(store, self.id))
            hashes = stored_hashes(messages)
            payloads = await store.read_payloads(hashes) if hashes else {}
        return [own_copy(message) for message in all_restored(messages, payloads)]

    async def events(self, *, after_version: int = 0) -> AsyncGenerator[RecordedSessionEvent, None]:
        """Yield the session's recorded events with a version greater than `after_version`, up to now.

        Raises:
            PersistenceError: the log cannot be read.
        """
        async with self._log() as store:
            version = after_version
            while page := await read_recorded(store, self._stream, after_version=version, limit=EVENTS_PAGE):
                await self._named.require(store)
                for recorded in page:
                    yield recorded
                version = page[-1].version

    async def follow(self, *, after_version: int | None = None) -> AsyncGenerator[RecordedSessionEvent, None]:
        """Yield the session's events as they become durable, each once and in order, until the reader leaves.

        Pieces of answers are not logged, so that only the owner can follow those.

        Args:
            after_version: begin after this version, 0 for the beginning; None = from now on.

        Raises:
            CommandRejected: the session is another user's, or was deleted.
            PersistenceError: the log cannot be read.
        """
        async with self._log() as store:
            version = after_version
            if version is None:
                head = await store.head(self._stream)
                version = head.version if head is not None else 0
            async for recorded in follow_session(store, self._named, version, self.connection.clock):
                yield recorded

    def _beside(self, session: SessionId) -> "ConnectedSession":
        return self.connection.session(session, user=self._named.user)

    @asynccontextmanager
    async def _log(self) -> AsyncGenerator[EventStore]:
        """Give the log to read; raise CommandRejected where the session is another user's."""
        await self.connection.wait_for_file()
        async with opened(self.connection.log) as store:
            await self._named.require(store)
            yield store
            await self._named.require(store)

    async def _give(
        self, command: InboxCommand, key: str | None, *, patience_s: float | None = None, may_begin: bool = False
    ) -> Given:
        """Give a command to the owner, and wait for its outcome; raise CommandRejected if it was refused."""
        if self._named.said is not None:
            async with self._log():
                pass
        await self.connection.wait_for_file()
        given = await give(
            self.connection.log,
            self.id,
            command,
            key=key,
            timeout_s=self.connection.patience_s if patience_s is None else patience_s,
            clock=self.connection.clock,
            may_begin=may_begin,
            wait_for_runtime=may_begin,
        )
        if isinstance(given.outcome, Refused):
            raise CommandRejected(given.outcome.message)
        if may_begin:  # Said once: what is said of the session elsewhere stays.
            self._named.said = describe_command(self._named.user, None)
        return given


class SyncConnection:
    """A log that another process owns, for code without a loop; for any number of threads.

    `with connect(log) as connection` is the usual way to get it. One that lives as long as the process, as in a worker
    of a web server, is made by `SyncConnection(connect(log))`; its thread ends with the interpreter.
    """

    def __init__(self, connection: Connection) -> None:
        self.asynchronous = connection
        self._thread: LoopThread | None = None
        # One for each process, since a child may be forked while another thread holds it.
        self._starting: dict[int, threading.Lock] = {}

    @property
    def loop_thread(self) -> LoopThread:
        """The thread of its loop in this process, started.

        Raises:
            WouldDeadlock: an event loop runs in this thread; use `connect` without `with`.
        """
        thread = self._thread
        if thread is not None and thread.is_ours and not thread.ending:
            return thread
        with self._starting.setdefault(os.getpid(), threading.Lock()):
            if self._thread is None or not self._thread.is_ours or self._thread.ending:
                thread = LoopThread(
                    nullcontext(),
                    name="refold-connection",
                    patience_s=max(1.0, self.asynchronous.patience_s),
                    what="connection",
                    on_a_loop="`connect(...)` without `with`",
                )
                thread.start()
                self._thread = thread
                atexit.register(self.close)
            return self._thread

    def session(
        self,
        session_id: str | None = None,
        *,
        user: str | None = None,
        metadata: Mapping[str, str | None] | None = None,
    ) -> "SyncConnectedSession":
        """Return a session, which may be in the log or not; its first input begins it. See `Connection.session`."""
        return SyncConnectedSession(self, self.asynchronous.session(session_id, user=user, metadata=metadata))

    def run(self, run_id: str) -> SyncConnectedRun:
        """Return a run of any session in the log; see `Connection.run`."""
        return SyncConnectedRun(self.loop_thread, self.loop_thread.run(lambda: self.asynchronous.run(run_id)))

    sessions = blocking(Connection.sessions)
    list_sessions = blocking(Connection.list_sessions)
    approvals = blocking(Connection.approvals)
    questions = blocking(Connection.questions)

    def owner(self) -> LogOwner | None:
        """Return the process that owns the log at this moment, or None if none does.

        Raises:
            PersistenceError: that cannot be told.
        """
        return self.asynchronous.owner()

    def close(self) -> None:
        """End its thread, any number of times; the next call begins a new one. In a forked child nothing happens."""
        thread, self._thread = self._thread, None
        atexit.unregister(self.close)
        if thread is not None and thread.is_ours:
            thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SyncConnectedSession:
    """One conversation in a log that another process owns; get it from `SyncConnection.session`. For many threads.

    What `ConnectedSession` says of the task that awaits holds for the thread that calls: an interrupt, such as Ctrl-C,
    stops the wait, and leaves the run alone.
    """

    def __init__(self, connection: SyncConnection, session: ConnectedSession) -> None:
        self.asynchronous = session
        self._connection = connection

    @property
    def id(self) -> SessionId:
        """Its id in the log."""
        return self.asynchronous.id

    @property
    def loop_thread(self) -> LoopThread:
        """The thread of the connection's loop."""
        return self._connection.loop_thread

    send = blocking(ConnectedSession.send)

    def submit(self, content: Input, *, key: str | None = None, **options: Unpack[RunOverrides]) -> SyncConnectedRun:
        """Send an input and return its run; see `ConnectedSession.submit`."""
        sent = partial(self.asynchronous.submit, content, key=key, **options)
        return SyncConnectedRun(self.loop_thread, self.loop_thread.run(sent))

    def run(self, run: RunId | str | None = None, *, key: str | None = None) -> SyncConnectedRun:
        """Return a run of the session, by its id or by the key of its input; see `ConnectedSession.run`."""
        return SyncConnectedRun(self.loop_thread, self.loop_thread.run(partial(self.asynchronous.run, run, key=key)))

    cancel = blocking(ConnectedSession.cancel)
    decide = blocking(ConnectedSession.decide)
    answer = blocking(ConnectedSession.answer)
    questions = blocking(ConnectedSession.questions)
    set_aside = blocking(ConnectedSession.set_aside)
    take_back = blocking(ConnectedSession.take_back)
    describe = blocking(ConnectedSession.describe)
    approvals = blocking(ConnectedSession.approvals)
    history = blocking(ConnectedSession.history)

    def events(self, *, after_version: int = 0) -> Iterator[RecordedSessionEvent]:
        """Yield the session's recorded events with a version greater than `after_version`, up to now."""
        return iterated(self.loop_thread, self.asynchronous.events(after_version=after_version))

    def follow(self, *, after_version: int | None = None) -> Iterator[RecordedSessionEvent]:
        """Yield the session's events as they become durable, until the reader leaves; see `ConnectedSession.follow`."""
        return iterated(self.loop_thread, self.asynchronous.follow(after_version=after_version))


def _checked_seconds(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{name} must be a number of seconds of at least 0, not {value!r:.60}")
    return value
