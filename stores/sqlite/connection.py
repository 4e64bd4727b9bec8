"""One SQLite connection on a worker of its own, and what SQLite's errors mean.

A whole function runs in one hop to the worker's thread, not one hop per statement: a hop costs more than a statement.

The rules it protects: a caller who is cancelled, and a failed opening, leave no thread and no open file behind; and a
forked child leaves the files alone that its parent had open. SQLite keeps, per process, which locks it has on a file
and where in memory it sees a WAL's index, and a child inherits that knowledge without the locks. Closing there what
the parent opened, or opening the same file again, can throw away what others have committed since.
"""

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Self, TypeAlias, TypeVar
from urllib.parse import unquote
from weakref import WeakSet

from refold.events.core.errors import ConfigError, LogFormatError, PersistenceError
from refold.stores.sqlite.serial_worker import SerialWorker, Worker, close_worker

T = TypeVar("T")

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

        Raises:
            sqlite3.Error: SQLite could not open the file.
            ConfigError: this process was forked from one that had the file open.
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
        if self._closing:
            raise PersistenceError(f"{self.uri} is closed; open it again")
        connection = self._opened
        assert connection is not None
        return self._worker.submit(lambda: work(connection))

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the thread and return its result; a cancelled caller does not wait for it to end."""
        return await self.submit(work)

    async def close(self, *, timeout_s: float | None = None) -> None:
        """Close once all that is queued has run, and wait for that, even if the caller is cancelled.

        Args:
            timeout_s: longest wait; then the connection closes by itself whenever its thread gets that far.
        """
        if not self._closing:
            self._closing = True
            await close_worker(self._worker, self._close, timeout_s=timeout_s)

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
        """Close what was opened after all, where the caller was cancelled meanwhile."""
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
    """Return the error of ours that stands for one of SQLite's.

    Args:
        failed: what failed, on what, as the beginning of a sentence.
        outcome_unknown: whether a write may nevertheless be in the log.
    """
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
