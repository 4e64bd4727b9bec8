"""A connection for threads: `with connect(log) as connection` gives one, whose loop runs in a thread of its own.

Read `refold.remote.connection` for what each method does, and `refold.sync.loop_thread` for the thread. The rule: it is
the same connection, reached from outside; the thread begins with the first call, in whichever process makes it, so that
it may be made before a fork.
"""

import atexit
import os
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import Self, TypeVar

from refold.events.core.ids import SessionId
from refold.remote.connection import ConnectedSession, Connection
from refold.sessions.notifications import Recorded
from refold.stores.sqlite.ownership import LogOwner
from refold.sync.loop_thread import LoopThread, blocking

T = TypeVar("T")


class SyncConnection:
    """A log that somebody else owns, for code without a loop; for any number of threads.

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
                )
                thread.start()
                self._thread = thread
                atexit.register(self.close)
            return self._thread

    def session(self, session_id: str | None = None) -> "SyncConnectedSession":
        """Return a session, which may be in the log or not; its first input begins it. See `Connection.session`.

        Raises:
            ConfigError: the id cannot be one.
        """
        return SyncConnectedSession(self, self.asynchronous.session(session_id))

    sessions = blocking(Connection.sessions)
    approvals = blocking(Connection.approvals)

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
    """One conversation in a log that somebody else owns; get it from `SyncConnection.session`. For many threads.

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
    cancel = blocking(ConnectedSession.cancel)
    decide = blocking(ConnectedSession.decide)
    approvals = blocking(ConnectedSession.approvals)
    history = blocking(ConnectedSession.history)

    def events(self, *, after_version: int = 0) -> Iterator[Recorded]:
        """Yield the session's recorded events with a version greater than `after_version`, up to now."""
        return self._iterated(self.asynchronous.events(after_version=after_version))

    def follow(self, *, after_version: int | None = None) -> Iterator[Recorded]:
        """Yield the session's events as they become durable, until the reader leaves; see `ConnectedSession.follow`."""
        return self._iterated(self.asynchronous.follow(after_version=after_version))

    def _iterated(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        thread = self.loop_thread
        try:
            while (item := thread.run(lambda: _taken(items))) is not None:
                yield item
        finally:
            thread.begin(items.aclose)  # Not waited for: a generator that is let go of ends in any thread.


async def _taken(items: AsyncGenerator[T, None]) -> T | None:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return None
