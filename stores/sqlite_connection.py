"""One SQLite connection on a thread of its own, and how to wait for what runs there.

Everything that Refold needs of aiosqlite beyond its public interface is in this module, pinned by
`tests/stores/test_sqlite_connection.py`: a whole function in one hop to the thread instead of one hop per
statement, and a daemon thread, so that a disk that hangs cannot keep the process from ending.

The rule it protects: a caller who is cancelled, and a failed opening, leave no thread and no open file behind.
"""

# What is private to aiosqlite, or has no type there, is used in this module only.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from typing import Final, Self, TypeVar, cast

import aiosqlite

from refold.events.errors import LogFormatError, PersistenceError

T = TypeVar("T")

_logger = logging.getLogger("refold.stores")

STATEMENTS_CACHED: Final = 64
"""Prepared statements that each connection keeps; we use about twenty."""


class SQLiteConnection:
    """An open connection whose functions run one at a time, in the order given, on one thread."""

    def __init__(self, connection: aiosqlite.Connection, uri: str) -> None:
        self._connection = connection
        self._uri = uri
        self._closing = False

    @classmethod
    async def open(cls, uri: str) -> Self:
        """Connect to a `file:` URI, in autocommit: transactions are begun and ended by name.

        Raises:
            sqlite3.Error: SQLite could not open the file.
        """
        connection = aiosqlite.connect(uri, uri=True, isolation_level=None, cached_statements=STATEMENTS_CACHED)
        connection._thread.daemon = True
        try:
            await connection
        except BaseException:
            # aiosqlite has told its thread to stop but does not wait for it; the loop may be closed next.
            while connection._thread.is_alive():  # noqa: ASYNC110 - a thread's end sets no event
                await asyncio.sleep(0)
            raise
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
