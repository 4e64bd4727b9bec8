"""A log as seen by a process that does not own it: a worker of a web server beside the one that runs the agents.

Read `refold.remote.protocol` first. What changes a session goes through the inbox to the runtime that owns the log;
what is looked at is read from the log. The rules: a connection never writes the log while a runtime owns it, and needs
no closing (`refold.remote.kept_log`); a caller who waits is told why there is no end for now.

`with connect(log) as connection` gives a `SyncConnection`, for threads: the same connection, reached from outside. Its
thread begins with the first call, in the process that makes it, so that a connection may be made before a fork.
"""

import atexit
import os
import threading
import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

from refold.actors.kernel.clock import Clock, SystemClock
from refold.actors.loop_thread import LoopThread, blocking, blocking_face
from refold.connections.hosted import ConnectedHosted, SyncConnectedHosted
from refold.connections.people import AwaitedDecision, awaited_decisions
from refold.connections.run import ConnectedRun, SyncConnectedRun
from refold.connections.session import ConnectedSession, SyncConnectedSession, checked_seconds
from refold.events.core.checked_core import S
from refold.events.core.errors import ConfigError, quoted
from refold.events.core.ids import SessionId, checked_identifier
from refold.events.core.pure_core import C, E, PureCore
from refold.inspection.session_view import ListedSession, SessionsWanted, list_names, list_sessions
from refold.remote.kept_log import kept_open
from refold.remote.watching import POLL_S
from refold.sessions.access import describe_command
from refold.sessions.run_handle import run_id_parts
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite.ownership import LogOwner, log_owner

T = TypeVar("T")

PATIENCE_S: Final = 10.0
"""How long to wait for a runtime, where nothing else is said."""


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
            raise ConfigError(
                f"connect takes the path of a log's file, not {quoted(log, 60)}; other processes see no store"
            )
        if os.fspath(log) == ":memory:":
            raise ConfigError(
                "a log in memory is its runtime's own and cannot be reached from elsewhere; give the runtime and "
                "connect the path of a file"
            )
        sqlite_file.require_path(log)
        self.log: Path = sqlite_file.absolute(log)
        """The path of the log's file, absolute."""
        self.patience_s = checked_seconds(patience_s, "patience_s")
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

    def hosted(self, kind: str, core: type[PureCore[S, C, E]] | PureCore[S, C, E]) -> ConnectedHosted[S, C]:
        """Return the actors of a kind that the owner hosts by `AgentRuntime.host`, with their core.

        Raises:
            ConfigError: the kind cannot be one, or the core's types cannot work.
        """
        return ConnectedHosted(self, kind, core)

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
        async with kept_open(self.log) as log:
            return await list_names(log.store, **wanted)

    async def list_sessions(self, **wanted: Unpack[SessionsWanted]) -> list[ListedSession]:
        """Return the sessions in the log that are wanted, with what is known of each; see `AgentRuntime.sessions`."""
        await self.wait_for_file()
        async with kept_open(self.log) as log:
            return await list_sessions(log.store, **wanted)

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

    run = blocking_face(Connection.run, lambda face, run: SyncConnectedRun(face.loop_thread, run), "SyncConnectedRun")

    def hosted(self, kind: str, core: type[PureCore[S, C, E]] | PureCore[S, C, E]) -> SyncConnectedHosted[S, C]:
        """Return the actors of a kind that the owner hosts; see `Connection.hosted`."""
        return SyncConnectedHosted(self, self.asynchronous.hosted(kind, core))

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
