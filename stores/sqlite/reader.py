"""How a store reads: a connection of its own that cannot write, and never waits for the writer.

Read `refold.stores.sqlite.read` for what is read. The rule it protects: looking at a log that is not ours leaves no
trace. An owner's WAL has to be read through SQLite's shared memory; but where no WAL is there, nobody writes, and
the file is read as one that cannot change, which makes no WAL beside it. Whether that held is checked after the read.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.stores.guarding.log_place import LogPlace
from refold.stores.guarding.trusted_files import require_log_trusted
from refold.stores.sqlite.connection import Connect, SQLiteConnection, persistence_error
from refold.stores.sqlite.file import file_uri, prepare_for_reading
from refold.stores.sqlite.read import MalformedRow

T = TypeVar("T")

READ_TRIES_MAX: Final = 10
"""Times that a read is made again because the file changed under it; each needs an owner to come or go."""


class LogSource(NamedTuple):
    """How the file is to be read now, and what would have to stay so for a read to be good."""

    options: str
    unchanged: tuple[int, ...]


def source_of_owner(place: LogPlace, log: Path) -> LogSource:
    """Return how the owner of a log reads it: beside its own writing.

    Raises:
        PersistenceError: the log is not in its place any more.
    """
    place.require_log()
    return LogSource("mode=ro", ())


def source_of_reader(log: Path) -> LogSource:
    """Return how a process that does not own the log reads it.

    Raises:
        PersistenceError: the log cannot be looked at.
    """
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
        """Make a side that connects at its first read, or at `connect`.

        Args:
            source: how the file is to be read at the moment of a read.
            timeout_s: longest wait for the connection to close.
        """
        self._log = log
        self._source = source
        self._timeout_s = timeout_s
        self._open_connection = connect
        self._connection: SQLiteConnection | None = None
        self._connected_to: LogSource | None = None
        self._connecting = asyncio.Lock()
        self._disconnected = 0
        """Times that the connection was closed on demand."""
        self._closed = False

    async def read(self, work: Callable[[sqlite3.Connection], T], failed: str) -> T:
        """Run `work` on a consistent state of the log and return its result.

        Args:
            failed: what failed if it fails, as the beginning of a sentence.
        """
        for _ in range(READ_TRIES_MAX):
            source = self._source(self._log)
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
        """Connect now, so that an error shows now.

        Raises:
            PersistenceError: the log cannot be read.
            LogFormatError: it is not a log that this Refold reads.
        """
        await self._connect(self._source(self._log))

    async def close(self) -> None:
        """Close the connection after the reads that are queued; later reads raise PersistenceError."""
        self._closed = True
        await self.disconnect()

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
