"""One SQLite connection on a thread of its own, and how to wait for what runs there.

Everything that Refold needs of aiosqlite beyond its public interface is in this module, pinned by
`tests/stores/sqlite/test_connection.py`: a whole function in one hop to the thread instead of one hop per
statement, and a daemon thread, so that a disk that hangs cannot keep the process from ending.

The rules it protects: a caller who is cancelled, and a failed opening, leave no thread and no open file behind; and a
forked child leaves the files alone that its parent had open. SQLite keeps, per process, which locks it has on a file
and where in memory it sees a WAL's index, and a child inherits that knowledge without the locks. Closing there what
the parent opened, or opening the same file again, can throw away what others have committed since.
"""

# What is private to aiosqlite, or has no type there, is used in this module only.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

import asyncio
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Thread
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar, cast
from urllib.parse import unquote
from weakref import WeakSet

import aiosqlite

from refold.events.core.errors import ConfigError, LogFormatError, PersistenceError

T = TypeVar("T")

_logger = logging.getLogger("refold.stores")

STATEMENTS_CACHED: Final = 64
"""Prepared statements that each connection keeps; we use about twenty."""


FileIdentity = tuple[int, int]
"""Device and inode: what SQLite knows a file by."""


Operation: TypeAlias = tuple[asyncio.Future[Any] | None, Callable[[], Any]]
"""Work of a connection, and who is told what comes of it."""


class Worker(Protocol):
    """Runs a connection's operations instead of a thread, one at a time and in the order given.

    It tells each outcome to the operation's future, if that is not done yet. After the operation that closes the
    connection no other one comes.
    """

    def start(self) -> None:
        """Begin: the first operation comes next."""
        ...

    def put_nowait(self, operation: Operation, /) -> None:
        """Take an operation on; it is not run before this returns."""
        ...

    def is_alive(self) -> bool:
        """Return whether a connection that could not be opened has to wait for the worker to end."""
        ...


class _Connection(aiosqlite.Connection):
    """One that is known while it is open, and that ends without a word where nobody closed it: its owner warns."""

    def __init__(self, uri: str, worker: Worker | None) -> None:
        super().__init__(
            lambda: sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=STATEMENTS_CACHED),
            iter_chunk_size=64,
        )
        own: Any = self
        if worker is not None:
            own._tx = own._thread = worker
        else:
            own._thread = Thread(target=_work, args=(own._tx,), daemon=True)
        self.uri = uri
        self.opening = True

    def __del__(self) -> None:
        opened = self._connection
        if opened is None:
            return

        def close_and_end() -> object:
            opened.close()
            return _END_OF_THREAD

        self._tx.put_nowait((None, close_and_end))  # Only the thread that opened it may close it.


def _work(operations: Any) -> None:
    """Be the thread of a connection, also after the loop that waited for an operation was closed under it."""
    while True:
        try:
            aiosqlite.core._connection_worker_thread(operations)
        except RuntimeError as error:  # Of that loop only; what an operation raises is its outcome.
            _logger.debug("nobody waits for an operation any more: %s", error)
        else:
            return


_END_OF_THREAD: Final = aiosqlite.core._STOP_RUNNING_SENTINEL


# State of the process by nature: SQLite's knowledge of files belongs to processes.
_open: WeakSet[_Connection] = WeakSet()

_inherited: set[FileIdentity] = set()
"""Files that the parent had open when this process was forked."""


def _keep_inherited() -> None:
    """In a forked child: see to it that what the parent opened is never closed here, nor when the interpreter ends."""
    if not _open:
        return
    from ctypes import py_object, pythonapi

    for connection in list(_open):
        # The frames of threads that do not run here may hold them too, but nothing promises that.
        pythonapi.Py_IncRef(py_object(connection))
        identity = _identity_of(connection.uri)
        if identity is not None and (connection.opening or connection._connection is not None):
            _inherited.add(identity)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)


def _identity_of(uri: str) -> FileIdentity | None:
    """Return which file a URI leads to, or None if there is none."""
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


class SQLiteConnection:
    """An open connection whose functions run one at a time, in the order given, on one thread."""

    def __init__(self, connection: _Connection, uri: str) -> None:
        self._connection = connection
        self._uri = uri
        self._closing = False

    @classmethod
    async def open(cls, uri: str, worker: Worker | None = None) -> Self:
        """Connect to a `file:` URI, in autocommit: transactions are begun and ended by name.

        Args:
            uri: of the file.
            worker: runs what is done with the connection; None = a thread of its own.

        Raises:
            sqlite3.Error: SQLite could not open the file.
            ConfigError: this process was forked from one that had the file open.
        """
        _require_not_inherited(uri)
        connection = _Connection(uri, worker)
        _open.add(connection)
        try:
            await connection
        except BaseException:
            # aiosqlite has told its thread to stop but does not wait for it; the loop may be closed next.
            while connection._thread.is_alive():  # noqa: ASYNC110 - a thread's end sets no event
                await asyncio.sleep(0)
            raise
        finally:
            connection.opening = False
        return cls(connection, uri)

    def submit(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Queue `work` for the thread; the future gets its result, and cancelling the future does not stop it.

        Raises:
            PersistenceError: the connection is closed.
        """
        if self._closing:
            raise PersistenceError(f"{self._uri} is closed; open it again")
        connection = self._connection._conn
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._connection._tx.put_nowait((future, lambda: work(connection)))
        return future

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the thread and return its result; a cancelled caller does not wait for it to end."""
        return await self.submit(work)

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Close once all that is queued has run, and wait for that, even if the caller is cancelled.

        Args:
            timeout_s: longest wait; then the connection closes by itself whenever its thread gets that far.
        """
        if self._closing:
            return
        self._closing = True
        # Closes in the thread and ends it. Its `close` would wait without bound once it is cancelled.
        closed = cast("asyncio.Future[None] | None", self._connection.stop())
        assert closed is not None
        try:
            await settled(closed, timeout_s=timeout_s)
        except TimeoutError:
            _logger.warning("closing %s takes longer than %s s; it goes on in the background", self._uri, timeout_s)


Connect: TypeAlias = Callable[[str], Awaitable[SQLiteConnection]]
"""Opens a connection to a URI, as `SQLiteConnection.open` does; a rehearsal gives one of its own."""


async def settled(future: asyncio.Future[T], *, timeout_s: float | None = None) -> T:
    """Return the result of `future`; a caller who is cancelled meanwhile gets CancelledError once it is there.

    Args:
        future: what must not be left half-done.
        timeout_s: longest wait; begins anew when the caller is cancelled.

    Raises:
        TimeoutError: there is no result in time, and the caller was not cancelled. The work goes on.
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


def persistence_error(error: sqlite3.Error, failed: str, *, outcome_unknown: bool = False) -> PersistenceError:
    """Return the error of ours that stands for one of SQLite's.

    Args:
        error: what SQLite said.
        failed: what failed, on what, as the beginning of a sentence.
        outcome_unknown: whether a write may be in the log all the same.
    """
    code = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return LogFormatError(
            f"{failed}: the file is damaged, cut short, or not a log ({error}, {code}); restore it from a backup",
            outcome_unknown=outcome_unknown,
        )
    return PersistenceError(f"{failed}: {error} ({code})", outcome_unknown=outcome_unknown)


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, such as `sqlite3.SQLITE_IOERR`, or 0 where Python raised the error."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF
