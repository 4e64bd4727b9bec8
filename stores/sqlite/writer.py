"""How a store writes: one connection that nobody else uses, and what happens when a write is in doubt.

Read `refold.stores.sqlite.append` for what is written. The rule it protects: a write is waited for until its outcome
is known, also by a caller that is cancelled; and after a write whose outcome cannot be known, the file is closed,
opened and examined again before anything else is written.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from refold.events.core.errors import PersistenceError
from refold.stores.append_rules import FaultPoint
from refold.stores.guarding.log_place import LogPlace
from refold.stores.sqlite.append import LogWriter
from refold.stores.sqlite.connection import Connect, SQLiteConnection, persistence_error
from refold.stores.sqlite.file import Durability, file_uri, look_through, prepare_for_writing
from refold.stores.sqlite.ownership import LogOwnership
from refold.stores.sqlite.serial_worker import settled

T = TypeVar("T")

_logger = logging.getLogger("refold.stores")


class WritingSide:
    """Runs writes in a thread of their own, one at a time, for the owner of a log."""

    def __init__(
        self,
        log: Path,
        place: LogPlace,
        ownership: LogOwnership,
        *,
        durability: Durability,
        timeout_s: float,
        fault: FaultPoint,
        close_reader: Callable[[], Awaitable[None]],
        connect: Connect = SQLiteConnection.open,
    ) -> None:
        """Make a side that opens the file at its first write, or at `open_anew`.

        Args:
            place: where it has to stay while it is open.
            ownership: the right to write it; given up at `close`.
            timeout_s: longest wait for one write, and for opening and closing the file.
            fault: called at the named points of each append.
            close_reader: closes the connection of the same store that reads, so that opening anew is opening anew.
        """
        self._log = log
        self._place = place
        self._ownership = ownership
        self._durability: Durability = durability
        self._timeout_s = timeout_s
        self._fault = fault
        self._close_reader = close_reader
        self._connect = connect
        self._turn = asyncio.Lock()
        self._connection: SQLiteConnection | None = None
        self._writer: LogWriter | None = None
        self._ours: set[int] = set()
        """Incarnations of which the log may have one: our last one, and those of openings that failed."""
        self._suspect = True

    async def write(self, work: Callable[[LogWriter], T], failed: str) -> T:
        """Run `work` in the writing thread and return its result once it is certain.

        Args:
            failed: what failed if it fails, as the beginning of a sentence.

        Raises:
            CancelledError: the caller was cancelled, and the outcome is settled.
        """
        async with self._turn:
            if self._suspect:
                await self._open_anew()
            future = self._submit(work)
            try:
                return await settled(future, timeout_s=self._timeout_s)
            except TimeoutError:
                raise PersistenceError(
                    f"{failed}: it takes longer than {self._timeout_s} s; read the log again before retrying",
                    outcome_unknown=True,
                ) from None
            except sqlite3.Error as error:
                raise persistence_error(error, failed, outcome_unknown=True) from error
            finally:
                self._suspect = _in_doubt(future)

    async def open_anew(self) -> None:
        """Close the connection, if there is one, and open and examine the file again.

        Raises:
            PersistenceError: the file cannot be opened, is not in its place any more, or a write that hangs still
                holds it; nothing was written.
            LogFormatError: the file is not the log that it was.
        """
        async with self._turn:
            await self._open_anew()

    @property
    def must_not_check_in(self) -> bool:
        """Whether a file was cut, so that copying the WAL into the log would spoil both."""
        return self._place.is_cut

    async def close(self) -> None:
        """Check the WAL in, close the connection and give up the ownership, as far as the disk lets us.

        Raises:
            PersistenceError: the WAL was deleted or replaced, and not all of it could be saved.
        """
        try:
            async with self._turn:
                all_in_log = False
                try:
                    await self._rescue_wal()
                    if not (self._suspect or self._place.is_cut):
                        all_in_log = await self._checkpoint()
                finally:
                    await self._close_connection()
                    self._place.close(all_in_log=all_in_log)
        finally:
            self._ownership.release()

    async def _open_anew(self) -> None:
        self._suspect = True
        self._place.remember_log()
        await self._rescue_wal()
        await self._close_reader()
        await self._close_connection()
        await look_through(self._log, self._connect)
        failed = f"the log {self._log} cannot be opened for writing"
        try:
            connection = await self._connect(file_uri(self._log, "mode=rw"))
        except sqlite3.Error as error:
            raise persistence_error(error, failed) from error
        try:
            prepared = connection.submit(self._prepare)
            self._writer = await settled(prepared, timeout_s=self._timeout_s)
        except BaseException as error:
            await connection.close(timeout_s=self._timeout_s)
            if isinstance(error, TimeoutError):
                raise PersistenceError(f"{failed}: it takes longer than {self._timeout_s} s") from None
            raise
        self._connection = connection
        self._suspect = False

    def _prepare(self, connection: sqlite3.Connection) -> LogWriter:
        incarnation = prepare_for_writing(connection, self._log, self._durability, ours=self._ours, fault=self._fault)
        self._ours = {incarnation}
        self._place.remember_wal()
        return LogWriter(connection, self._log, self._place, incarnation, self._fault)

    def _submit(self, work: Callable[[LogWriter], T]) -> asyncio.Future[T]:
        writer = self._writer
        assert self._connection is not None
        assert writer is not None
        return self._connection.submit(lambda _: work(writer))

    async def _rescue_wal(self) -> None:
        """Bring what only a nameless WAL holds into the log before the connection to it is closed."""
        if self._writer is None or self._place.is_cut or not self._place.wal_is_lost():
            return
        failed = f"the WAL of {self._log} was deleted or replaced, and its events cannot be copied into the log"
        try:
            complete = await settled(self._submit(lambda writer: writer.rescue()), timeout_s=self._timeout_s)
        except TimeoutError:
            raise PersistenceError(f"{failed}: it takes longer than {self._timeout_s} s") from None
        except sqlite3.Error as error:
            raise persistence_error(error, failed) from error
        if not complete:
            raise PersistenceError(f"{failed} while others read it; close them and try again, before this process ends")

    async def _checkpoint(self) -> bool:
        try:
            return await settled(self._submit(lambda writer: writer.empty_wal()), timeout_s=self._timeout_s)
        except (sqlite3.Error, TimeoutError) as error:
            # Nothing is lost: all of it is in the WAL, which the next opening reads.
            _logger.warning("the WAL of %s could not be checked in at closing: %r", self._log, error)
            return False

    async def _close_connection(self) -> None:
        connection, self._connection, self._writer = self._connection, None, None
        if connection is not None:
            await connection.close(timeout_s=self._timeout_s)


def _in_doubt(future: asyncio.Future[T]) -> bool:
    """Whether, after the wait for it, a write may or may not be in the log, or left its connection unusable."""
    if not future.done() or future.cancelled():
        return True
    error = future.exception()
    return isinstance(error, sqlite3.Error) or (isinstance(error, PersistenceError) and error.outcome_unknown)
