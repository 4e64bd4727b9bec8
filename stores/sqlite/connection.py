"""One SQLite connection on a worker of its own, what SQLite's errors mean, and the thread that such a worker is.

A whole function runs in one hop to the worker's thread, not one hop per statement: a hop costs more than a statement.
Files of values and inboxes have such a thread as well, for the blocking work of one open file.

The rules it protects: a disk that hangs neither stops the event loop nor keeps the process from ending, so the thread
is a daemon; work runs one piece at a time, in the order given; a caller who is cancelled, and a failed opening, leave
nothing half done, no thread and no open file behind; and a forked child leaves the files alone that its parent had
open. SQLite keeps, per process, which locks it has on a file and where in memory it sees a WAL's index, and a child
inherits that knowledge without the locks. Closing there what the parent opened, or opening the same file again, can
throw away what others have committed since.
"""

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, Self, TypeAlias, TypeVar
from urllib.parse import unquote
from weakref import WeakSet

from refold.events.core.errors import ConfigError, LogFormatError, PersistenceError

T = TypeVar("T")

_logger = logging.getLogger("refold.stores")


class Worker(Protocol):
    """Runs functions one at a time, in the order given: a `SerialWorker`, or what stands for one in a simulation."""

    @property
    def name(self) -> str:
        """What errors and warnings call it."""
        ...

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queue `work`; the future gets its result, and cancelling the future does not stop it."""
        ...

    def put(self, work: Callable[[], object]) -> None:
        """Queue `work` that nobody waits for and that does not fail; needs no event loop."""
        ...

    def end(self) -> None:
        """Take no more work, and end once all that is queued has run."""
        ...

    def join(self) -> None:
        """Return once nothing of it runs any more; it was ended, and all that was queued has run."""
        ...


class SerialWorker:
    """A `Worker` that is a daemon thread, which begins with the first work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False

    @property
    def name(self) -> str:
        return self._name

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        if self._ended:
            raise PersistenceError(f"{self._name} is closed; open it again")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.put(lambda: tell_outcome(loop, work, partial(settle, future)))
        return future

    def put(self, work: Callable[[], object]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put(work)

    def end(self) -> None:
        self._ended = True
        self._queue.put(None)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # It may hold what ends this thread when nothing else holds it any more.


def tell_outcome(
    loop: asyncio.AbstractEventLoop, work: Callable[[], T], done: Callable[[T | BaseException], object]
) -> None:
    """Run `work` in this thread, and have `done` called on the loop, if there is still one, with what came of it."""
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - the caller who waits for the work gets it
        _tell(loop, done, error)
    else:
        _tell(loop, done, result)


def _tell(
    loop: asyncio.AbstractEventLoop, done: Callable[[T | BaseException], object], outcome: T | BaseException
) -> None:
    try:
        loop.call_soon_threadsafe(done, outcome)
    except RuntimeError:
        _logger.debug("work on a file ended after its event loop was closed")


def settle(future: asyncio.Future[T], outcome: T | BaseException) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class Watchdog:
    """Sees whether work that is begun again and again ends in time, with a timer that the next work takes over."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._late: Callable[[], object] | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, timeout_s: float, late: Callable[[], object]) -> None:
        """Have `late` called after so many seconds, unless the work has ended; what was begun before has."""
        self._due_s, self._late = loop.time() + timeout_s, late
        if self._timer is None or self._loop is not loop:
            self._loop, self._timer = loop, loop.call_at(self._due_s, self._look, loop)

    def end(self) -> None:
        self._late = None

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return
        late, self._timer = self._late, None
        if late is None:
            return
        if loop.time() < self._due_s:
            self._timer = loop.call_at(self._due_s, self._look, loop)
        else:
            self._late = None
            late()


def _nothing() -> None:
    """Have nothing to close."""


async def close_worker(worker: Worker, last: Callable[[], None] = _nothing, *, timeout_s: float | None = None) -> None:
    """End a worker once what is queued and then `last` have run, and wait for that, even if the caller is cancelled.

    After `timeout_s` it ends by itself whenever it gets that far.
    """
    closed = worker.submit(last)
    worker.end()
    try:
        await settled(closed, timeout_s=timeout_s)
    except TimeoutError:
        _logger.warning("closing %s takes longer than %s s; it goes on in the background", worker.name, timeout_s)
    finally:
        if closed.done():
            worker.join()  # It has nothing left to do, and the loop may be closed next.


async def settled(future: asyncio.Future[T], *, timeout_s: float | None = None) -> T:
    """Return the result of `future`; a caller who is cancelled meanwhile gets CancelledError once it is there.

    Where there is no result in time, which begins anew when the caller is cancelled, TimeoutError; the work goes on.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            _, waiting = await asyncio.wait({future}, timeout=timeout_s)
        except asyncio.CancelledError as error:
            cancelled = error
        else:
            if waiting:
                future.add_done_callback(_retrieve)
                raise cancelled or TimeoutError
    if cancelled is not None:
        _retrieve(future)
        raise cancelled
    return future.result()


def _retrieve(future: asyncio.Future[T]) -> None:
    """Look at the outcome that nobody waits for, so that asyncio does not report it as forgotten."""
    if not future.cancelled():
        future.exception()


STATEMENTS_CACHED: Final = 64
"""Prepared statements that each connection keeps; we use about twenty."""

GIVE_UP_S: Final = 30.0
"""So long a caller who is cancelled while a file is opened waits for that to end, if the disk hangs."""

FileIdentity = tuple[int, int]
"""Device and inode: what SQLite knows a file by."""


class SQLiteConnection:
    """An open connection whose functions run one at a time, in the order given; make it with `open`."""

    def __init__(self, uri: str, worker: Worker) -> None:
        self.uri = uri
        self.in_use = True
        """Whether SQLite may have the file open, or is about to."""
        self._worker = worker
        self._opened: sqlite3.Connection | None = None
        self._closing = False

    @classmethod
    async def open(cls, uri: str, worker: Worker | None = None) -> Self:
        """Connect to a `file:` URI, in autocommit: transactions are begun and ended by name.

        Args:
            worker: runs what is done with the connection, and ends with it; None = a thread of its own.
        """
        _require_not_inherited(uri)
        connection = cls(uri, worker if worker is not None else SerialWorker(uri))
        _connections.add(connection)
        try:
            await connection._worker.submit(connection._open)
        except BaseException:
            connection._closing = True
            await close_worker(connection._worker, connection._give_up, timeout_s=GIVE_UP_S)
            raise
        return connection

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Queue `work` for the thread; the future gets its result, and cancelling the future does not stop it."""
        connection = self._open_connection()
        return self._worker.submit(lambda: work(connection))

    def call(self, work: Callable[[sqlite3.Connection], T], done: Callable[[T | BaseException], object]) -> None:
        """Queue `work` for the thread; the loop then calls `done` with its result, or with what it raised."""
        connection, loop = self._open_connection(), asyncio.get_running_loop()
        self._worker.put(lambda: tell_outcome(loop, lambda: work(connection), done))

    def _open_connection(self) -> sqlite3.Connection:
        if self._closing:
            raise PersistenceError(f"{self.uri} is closed; open it again")
        assert self._opened is not None
        return self._opened

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """A caller who is cancelled does not wait for the end of `work`."""
        return await self.submit(work)

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Close once all that is queued has run, and wait for that, even if the caller is cancelled.

        Args:
            timeout_s: longest wait; then the connection closes by itself whenever its thread gets that far.
        """
        if not self._closing:
            self._closing = True
            await close_worker(self._worker, self._close, timeout_s=timeout_s)

    def close_now(self) -> None:
        """Close, and return when that is done; in any thread, for one that is not in use and may be on no loop."""
        if not self._closing:
            self._closing = True
            self._worker.put(self._give_up)
            self._worker.end()
            self._worker.join()

    def __del__(self) -> None:
        """Close where no owner did, without a word: the owner warns."""
        opened = self._opened
        if opened is not None:
            self._worker.put(lambda: _close_quietly(opened))  # Only the thread that opened it may close it.
            self._worker.end()

    def _open(self) -> None:
        try:
            self._opened = sqlite3.connect(
                self.uri, uri=True, isolation_level=None, cached_statements=STATEMENTS_CACHED
            )
        except BaseException:
            self.in_use = False
            raise

    def _give_up(self) -> None:
        with suppress(sqlite3.Error):
            self._close()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        self.in_use = False


def _close_quietly(opened: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        opened.close()


Connect: TypeAlias = Callable[[str], Awaitable[SQLiteConnection]]
"""Opens a connection to a URI, as `SQLiteConnection.open` does; a rehearsal gives one of its own."""


# State of the process by nature: SQLite's knowledge of files belongs to processes.
_connections: WeakSet[SQLiteConnection] = WeakSet()

_inherited: set[FileIdentity] = set()
"""Files that the parent had open when this process was forked."""


def _keep_inherited() -> None:
    """In a forked child: keep what the parent opened from being closed here, also when the interpreter ends."""
    if not _connections:
        return
    from ctypes import py_object, pythonapi

    for connection in list(_connections):
        # The frames of threads that do not run here may hold them too, but nothing promises that.
        pythonapi.Py_IncRef(py_object(connection))
        identity = _identity_of(connection.uri)
        if identity is not None and connection.in_use:
            _inherited.add(identity)
    _connections.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)


def _identity_of(uri: str) -> FileIdentity | None:
    with suppress(OSError, ValueError):
        status = os.stat(_path_of(uri))
        return status.st_dev, status.st_ino
    return None


def _path_of(uri: str) -> str:
    return unquote(uri.removeprefix("file:").partition("?")[0])


def _require_not_inherited(uri: str) -> None:
    if _inherited and _identity_of(uri) in _inherited:
        raise ConfigError(
            f"{_path_of(uri)} was open in the process from which this process {os.getpid()} was forked, so that SQLite "
            "cannot open it here; fork before the log is opened, or start processes anew, as multiprocessing's "
            '"spawn" does'
        )


def persistence_error(error: sqlite3.Error, failed: str, *, outcome_unknown: bool = False) -> PersistenceError:
    """Return the error of ours that stands for one of SQLite's; `failed` begins its sentence."""
    code = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return LogFormatError(
            f"{failed}: the file is damaged, cut short, or not a log ({error}, {code}); restore it from a backup, or "
            "save what is whole of it with `refold repair`",
            outcome_unknown=outcome_unknown,
        )
    return PersistenceError(f"{failed}: {error} ({code})", outcome_unknown=outcome_unknown)


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, such as `sqlite3.SQLITE_IOERR`, or 0 where Python raised the error."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
