"""How a store reads and writes: two connections of its own, one that cannot write and one that nobody else uses.

Read `refold.stores.sqlite.read` and `refold.stores.sqlite.append` for what is read and written. The rules it protects:

- Looking at a log that is not ours leaves no trace, and never waits for the writer. An owner's WAL has to be read
  through SQLite's shared memory; but where no WAL is there, nobody writes, and the file is read as one that cannot
  change, which makes no WAL beside it. Whether that held is checked after the read.
- A write is waited for until its outcome is known, also by a caller that is cancelled; and after a write whose outcome
  cannot be known, the file is closed, opened and examined again before anything else is written.

Threads and locks. Each connection has one thread, which runs what it is given in order. The loop waits for it by a
future, and joins it only where it has nothing left to do; no thread waits for the loop. A write has the writing side's
turn (`_turn`, or `_begun` where it has no task), and so have opening anew and closing. What both sides go by, which
files the log and its WAL are, is changed in that turn only. A reader that connects holds `_connecting`. Neither lock is
waited for under the other: opening anew takes the reader's connection away without `_connecting`, and one that was just
being made is closed, since `_disconnected` says that it is too old. The lock of threads in `ownership` is held for a
few calls of the system, and nothing is waited for under it.

A write that takes too long loses its turn, and its thread may still be at it when the file is opened anew. SQLite's own
lock keeps the two apart: the opening waits for it, or fails, and then counts the incarnation up. So what hung is in the
log by then, or is refused.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from refold.events.core.errors import LogFormatError, LogInUse, PersistenceError
from refold.stores.append_rules import FaultPoint
from refold.stores.guarding.log_place import LogPlace
from refold.stores.guarding.trusted_files import require_log_trusted
from refold.stores.sqlite.append import LogWriter
from refold.stores.sqlite.connection import Connect, SQLiteConnection, Watchdog, persistence_error, settled
from refold.stores.sqlite.file import (
    GIVEN_UP,
    Durability,
    file_uri,
    look_through,
    prepare_for_reading,
    prepare_for_writing,
)
from refold.stores.sqlite.ownership import LogOwnership
from refold.stores.sqlite.read import MalformedRow

T = TypeVar("T")

_logger = logging.getLogger("refold.stores")

READ_TRIES_MAX: Final = 10
"""Times that a read is made again because the file changed under it; each needs an owner to come or go."""


class LogReplaced(PersistenceError):
    """Another file lies in the place of a log that is open for reading, so that nothing more is read of either."""


class LogSource(NamedTuple):
    """How the file is to be read now, and what would have to stay so for a read to be good."""

    options: str
    unchanged: tuple[int, ...]


def source_of_owner(place: LogPlace, log: Path) -> LogSource:
    """Return how the owner of a log reads it: beside its own writing."""
    place.require_log()
    return LogSource("mode=ro", ())


def source_of_reader(log: Path) -> LogSource:
    """Return how a process that does not own the log reads it."""
    try:
        status = log.stat()
        if log.with_name(log.name + "-wal").exists():
            return LogSource("mode=ro", (status.st_dev, status.st_ino))
    except OSError as error:
        raise PersistenceError(f"the log {log} cannot be looked at: {error.strerror}") from error
    return LogSource("immutable=1", (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


class ReadingSide:
    """Runs reads in a thread of their own, one at a time, connecting whenever that is needed."""

    def __init__(
        self,
        log: Path,
        source: Callable[[Path], LogSource],
        *,
        timeout_s: float,
        connect: Connect = SQLiteConnection.open,
    ) -> None:
        """Connect at the first read, or at `connect`; `source` says how the file is to be read then."""
        self._log = log
        self._source = source
        self._timeout_s = timeout_s
        self._open_connection = connect
        self._connection: SQLiteConnection | None = None
        self._connected_to: LogSource | None = None
        self._file: tuple[int, ...] = ()
        """Device and inode of what a reader has read first; an owner knows where its log is by itself."""
        self.one_file = False
        """Whether another file in the place of that one is not read, as where states are kept of what was read."""
        self._connecting = asyncio.Lock()
        self._disconnected = 0
        """Times that the connection was closed on demand."""
        self._closed = False

    async def read(self, work: Callable[[sqlite3.Connection], T], failed: str) -> T:
        """Run `work` on a consistent state of the log and return its result."""
        for _ in range(READ_TRIES_MAX):
            source = self._source(self._log)
            self._file = self._file or source.unchanged[:2]
            if self.one_file and source.unchanged[:2] != self._file:
                raise LogReplaced(f"the log {self._log} was replaced by another file while it was open; open it again")
            connection = await self._connect(source)
            try:
                result = await connection.run(work)
            except sqlite3.Error as error:
                if self._source(self._log) == source:
                    raise persistence_error(error, failed) from error
            except (MalformedRow, UnicodeDecodeError) as error:
                if self._source(self._log) == source:
                    raise LogFormatError(f"{failed}: {self._log} is damaged: {error}; restore a backup") from error
            else:
                if self._source(self._log) == source:
                    return result
        raise PersistenceError(f"{failed}: the file {self._log} kept changing; read it again")

    async def connect(self) -> None:
        """Connect now, so that an error shows now."""
        await self._connect(self._source(self._log))

    async def close(self) -> None:
        """Close the connection after the reads that are queued; later reads raise PersistenceError."""
        self._closed = True
        await self.disconnect()

    def close_now(self) -> None:
        """Close where nothing is read now, and wait for that in this thread; later reads raise PersistenceError."""
        self._closed = True
        connection, self._connection, self._connected_to = self._connection, None, None
        if connection is not None:
            connection.close_now()

    async def disconnect(self) -> None:
        """Close the connection after the reads that are queued; the next read connects again."""
        self._disconnected += 1
        connection, self._connection, self._connected_to = self._connection, None, None
        if connection is not None:
            await connection.close(timeout_s=self._timeout_s)

    async def _connect(self, source: LogSource) -> SQLiteConnection:
        if self._connection is not None and self._connected_to == source:
            return self._connection
        async with self._connecting:
            if self._connection is not None and self._connected_to != source:
                await self._connection.close()
                self._connection = None
            while self._connection is None:
                if self._closed:
                    raise PersistenceError(f"the log {self._log} is closed; open it again")
                disconnected = self._disconnected
                connection = await self._open(source)
                if disconnected != self._disconnected:  # Nobody but us knows of this one.
                    await connection.close()
                    continue
                self._connection, self._connected_to = connection, source
            return self._connection

    async def _open(self, source: LogSource) -> SQLiteConnection:
        require_log_trusted(self._log, writing=False)
        try:
            connection = await self._open_connection(file_uri(self._log, source.options))
        except sqlite3.Error as error:
            raise persistence_error(error, f"the log {self._log} cannot be opened for reading") from error
        try:
            await connection.run(lambda opened: prepare_for_reading(opened, self._log))
        except BaseException:
            await connection.close()
            raise
        return connection


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
        self._begun: asyncio.Future[None] | None = None
        """Done when the write has ended that `begin` has begun; the next turn waits for it first."""
        self._watchdog = Watchdog()
        self._connection: SQLiteConnection | None = None
        self._writer: LogWriter | None = None
        self._ours: set[int] = set()
        """Incarnations of which the log may have one: our last one, and those of openings that failed."""
        self._suspect = True
        self._lost = False
        """Whether a write was refused since another process has the log."""

    async def write(self, work: Callable[[LogWriter], T], failed: str) -> T:
        """Run `work` in the writing thread and return its result once it is certain, though the caller be cancelled."""
        async with self._turn:
            await self._end_of_begun()
            if self._suspect:
                await self._open_anew()
            future = self._submit(work)
            try:
                return await settled(future, timeout_s=self._timeout_s)
            except (TimeoutError, sqlite3.Error) as error:
                failure = self._failure(error, failed)
                raise failure from failure.__cause__
            finally:
                self._suspect = not future.done() or future.cancelled() or self._in_doubt(future.exception())

    def begin(self, work: Callable[[LogWriter], T], failed: str, done: Callable[[T | BaseException], object]) -> bool:
        """Run `work` as `write` does, without a task: the loop calls `done` with what `write` would return or raise.

        Returns:
            False where something has to be waited for first, so that nothing was begun.
        """
        if self._suspect or self._begun is not None or self._turn.locked():
            return False
        loop = asyncio.get_running_loop()
        begun = loop.create_future()

        def ended(outcome: "T | BaseException") -> None:
            if begun.done():
                return  # It took too long, which was told.
            self._watchdog.end()
            self._begun = None
            begun.set_result(None)
            self._suspect = isinstance(outcome, BaseException) and self._in_doubt(outcome)
            done(self._failure(outcome, failed) if isinstance(outcome, TimeoutError | sqlite3.Error) else outcome)

        self._call(work, ended)
        self._begun = begun
        self._watchdog.begin(loop, self._timeout_s, lambda: ended(TimeoutError()))
        return True

    def _failure(self, error: TimeoutError | sqlite3.Error, failed: str) -> PersistenceError:
        if isinstance(error, sqlite3.Error):
            failure = persistence_error(error, failed, outcome_unknown=True)
            failure.__cause__ = error
            return failure
        return PersistenceError(
            f"{failed}: it takes longer than {self._timeout_s} s; read the log again before retrying",
            outcome_unknown=True,
        )

    async def _end_of_begun(self) -> None:
        if self._begun is not None and self._begun.get_loop() is not asyncio.get_running_loop():
            self._begun, self._suspect = None, True  # Its loop has ended, so nobody is told what came of it.
        if self._begun is not None:
            await asyncio.wait([self._begun])

    async def open_anew(self) -> None:
        """Close the connection, if there is one, and open and examine the file again."""
        async with self._turn:
            await self._end_of_begun()
            await self._open_anew()

    @property
    def must_not_check_in(self) -> bool:
        """Whether a file was cut, so that copying the WAL into the log would spoil both."""
        return self._place.is_cut

    async def close(self) -> None:
        """Check the WAL in, close the connection and give up the ownership, as far as the disk lets us.

        Where another process has the log, the WAL is that one's, which would take it for cut.

        Raises:
            PersistenceError: the WAL was deleted or replaced, and not all of it could be saved; or it cannot be told
                whether another process has the log.
        """
        try:
            async with self._turn:
                await self._end_of_begun()
                all_in_log = False
                try:
                    lost = self._lost or self.is_lost
                    if not lost:
                        await self._rescue_wal()
                    if not (lost or self._suspect or self._place.is_cut):
                        all_in_log = await self._checkpoint()
                finally:
                    await self._close_connection()
                    self._place.close(all_in_log=all_in_log)
        finally:
            self._ownership.release()

    @property
    def is_lost(self) -> bool:
        """Whether another process has, or is about to have, the log; raises PersistenceError where that is not told."""
        return self._ownership.is_lost

    def take_no_commands(self) -> None:
        self._ownership.take_no_commands()

    async def give_up(self) -> None:
        """Close, and leave all else to the process that has the log now."""
        self._lost = True
        await self.close()

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
        ours = self._ours
        try:
            prepared = connection.submit(lambda opened: self._prepare(opened, ours))
            self._writer = await settled(prepared, timeout_s=self._timeout_s)
        except BaseException as error:
            ours.add(GIVEN_UP)  # Before the copy: what it adds is in both, or it refuses to go on.
            self._ours = ours - {GIVEN_UP}
            await connection.close(timeout_s=self._timeout_s)
            if isinstance(error, TimeoutError):
                raise PersistenceError(f"{failed}: it takes longer than {self._timeout_s} s") from None
            raise
        self._connection = connection
        self._suspect = False

    def _prepare(self, connection: sqlite3.Connection, ours: set[int]) -> LogWriter:
        incarnation = prepare_for_writing(connection, self._log, self._durability, ours=ours, fault=self._fault)
        ours &= {incarnation}
        self._place.remember_wal()
        return LogWriter(connection, self._log, self._place, incarnation, self._fault)

    def _submit(self, work: Callable[[LogWriter], T]) -> asyncio.Future[T]:
        connection, writer = self._open_writer()
        return connection.submit(lambda _: work(writer))

    def _call(self, work: Callable[[LogWriter], T], done: Callable[[T | BaseException], object]) -> None:
        connection, writer = self._open_writer()
        connection.call(lambda _: work(writer), done)

    def _open_writer(self) -> tuple[SQLiteConnection, LogWriter]:
        assert self._connection is not None
        assert self._writer is not None
        return self._connection, self._writer

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

    def _in_doubt(self, error: BaseException | None) -> bool:
        """Whether, after this came of it, a write may or may not be in the log, or left its connection unusable."""
        self._lost = self._lost or isinstance(error, LogInUse)
        unknown = isinstance(error, PersistenceError) and error.outcome_unknown
        return unknown or isinstance(error, sqlite3.Error | TimeoutError)

    async def _close_connection(self) -> None:
        connection, self._connection, self._writer = self._connection, None, None
        if connection is not None:
            await connection.close(timeout_s=self._timeout_s)
