"""A new SQLite log from a text log: an export, or one that an early version of Refold wrote while it ran.

Read `refold.stores.jsonl.check` for what is checked and `refold.stores.jsonl.export` for the way here. Positions,
versions, times, chains and everything else are kept as they are. The rule it protects: the log appears as a whole and
checked from its first to its last line, or not at all (`refold.stores.sqlite.new_log`).
Memory holds one append at a time; the ends of streams are looked up in the new file. `open_to_read` imports a text log
into a temporary folder, which is how one is read.
"""

import gzip
import os
import sqlite3
import stat
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import PayloadHash
from refold.events.core.records import first_chain
from refold.stores.event_store import TellProgress, Tombstone, untold
from refold.stores.jsonl.check import Checked, CheckedBatch, CheckedPayload, LinesCheck, complete_appends, open_lines
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite.append import (
    ADD_EVENT,
    ADD_PAYLOAD,
    ADD_STREAM,
    ADD_TOMBSTONE,
    FIND_HEAD,
    HEADS_CACHED_MAX,
    INDEX_TOMBSTONES,
    MOVE_HEAD,
    EventRow,
    add_rows,
)
from refold.stores.sqlite.connection import SQLiteConnection, persistence_error
from refold.stores.sqlite.file import is_text_log
from refold.stores.sqlite.new_log import new_log
from refold.stores.sqlite.store import SQLiteStore

_BYTES_PER_STEP: Final = 4 * 1024 * 1024
"""After so many bytes a transaction is committed, and the loop looks whether the import is to go on."""

_CLOSE_TIMEOUT_S: Final = 2.0
"""Longest wait for a step that still waits for its input when the import is given up."""

_FIND_PAYLOAD: Final = "SELECT 1 FROM payloads WHERE hash = ?"

_PRAGMAS: Final = (
    # Until the log is renamed it is nobody's: what a crash leaves of it is thrown away.
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA temp_store = MEMORY",
)


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an import has brought into the new log."""

    log: str
    streams: int
    batches: int
    events: int
    payloads: int
    partial: bool
    """Whether the export says that streams were left out."""


async def import_log(
    source: BinaryIO, name: str, log: str | os.PathLike[str], *, progress: TellProgress = untold
) -> ImportReport:
    """Make a new SQLite log of the lines in `source`.

    Args:
        source: an open binary file; read in another thread, and left open.
        log: path of the new log. Nothing may be there, or an empty file.
        progress: called from time to time, in another thread, with how many bytes of lines are taken, and of how many.

    Raises:
        LogFormatError: a line is not what has to be there; the message names it, and nothing was made.
        LogInUse: a runtime is about to make a log of the same name; nothing was made.
    """
    async with new_log(log) as unfinished:
        return await _fill(unfinished, source, name, sqlite_file.absolute(log), progress)


@asynccontextmanager
async def open_to_read(path: str | os.PathLike[str]) -> AsyncGenerator[SQLiteStore, None]:
    """Give a log for reading; of a text log a copy in SQLite, in a temporary folder that is removed afterwards."""
    if not is_text_log(path):
        async with await SQLiteStore.open(path, read_only=True) as store:
            yield store
        return
    log = sqlite_file.resolved(path)
    sqlite_file.require_readable(log)
    with tempfile.TemporaryDirectory(prefix="refold-") as folder:
        copy = Path(folder) / "events.db"
        try:
            with open_lines(log) as source:
                await import_log(source, str(log), copy)
        except OSError as error:
            raise PersistenceError(f"the log {log} cannot be read: {error.strerror}") from error
        async with await SQLiteStore.open(copy, read_only=True, name=str(log)) as store:
            yield store


async def _fill(unfinished: Path, source: BinaryIO, name: str, log: Path, progress: TellProgress) -> ImportReport:
    failed = f"the log {log} cannot be made of {name}"
    await sqlite_file.create(unfinished)
    try:
        connection = await SQLiteConnection.open(sqlite_file.file_uri(unfinished, "mode=rw"))
        try:
            filling = _Filling(source, name, progress)
            await connection.run(filling.begin)
            while await connection.run(filling.take_some):
                pass
            return await connection.run(lambda opened: filling.finish(opened, log))
        finally:
            await connection.close(timeout_s=_CLOSE_TIMEOUT_S)
    except sqlite3.Error as error:
        raise persistence_error(error, failed) from error


class _Filling:
    """Takes lines into the tables; all methods run in the connection's thread."""

    def __init__(self, source: BinaryIO, name: str, progress: TellProgress) -> None:
        self._name = name
        self._progress = progress
        self._bytes = _size_of(source)
        self._check = LinesCheck(name, self._find_head, self._find_payload)
        self._appends: Iterator[list[Checked]] = complete_appends(self._check, source)
        self._connection: sqlite3.Connection | None = None
        self._heads: dict[str, tuple[int, int, bytes]] = {}
        """Id, version and chain of streams that were met lately."""
        self._batches = 0
        self._events = 0
        self._payloads = 0

    def begin(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        for pragma in _PRAGMAS:
            connection.execute(pragma)

    def take_some(self, connection: sqlite3.Connection) -> bool:
        """Take the next lines in one transaction, and return whether there may be more."""
        goes_on = False
        enough = self._check.size_bytes + _BYTES_PER_STEP
        connection.execute("BEGIN IMMEDIATE")
        try:
            for append in self._appends:
                for checked in append:
                    self._take(connection, checked)
                goes_on = self._check.size_bytes >= enough
                if goes_on:
                    break
        except OSError as error:
            raise PersistenceError(f"{self._name} cannot be read: {error.strerror}") from error
        connection.execute("COMMIT")
        self._progress("bytes", self._check.size_bytes, self._bytes)
        return goes_on

    def finish(self, connection: sqlite3.Connection, log: Path) -> ImportReport:
        header = self._check.header
        assert header is not None
        connection.execute("UPDATE log SET removed_position = ?", (header.removed_position,))
        (streams,) = connection.execute("SELECT count(*) FROM streams").fetchone()
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_mode = WAL")
        return ImportReport(
            log=str(sqlite_file.resolved(log)),
            streams=streams,
            batches=self._batches,
            events=self._events,
            payloads=self._payloads,
            partial=header.partial,
        )

    def _take(self, connection: sqlite3.Connection, checked: Checked) -> None:
        match checked:
            case CheckedBatch():
                self._add_batch(connection, checked)
            case CheckedPayload(hash=name, data=data):
                connection.execute(ADD_PAYLOAD, (name, data))
                self._payloads += 1
            case Tombstone(position=position, stream=stream, version=version, chain=chain, at=at):
                row = (position, stream, version, chain, at)
                try:
                    connection.execute(INDEX_TOMBSTONES)
                    connection.execute(ADD_TOMBSTONE, row)
                except sqlite3.IntegrityError as error:
                    raise self._error(f"the tombstone cannot be kept: {error}") from None
            case _:
                return  # The header counts at the end; a snapshot is a cache, which the new log makes for itself.

    def _add_batch(self, connection: sqlite3.Connection, checked: CheckedBatch) -> None:
        position, batch, chain = checked
        pending = " ".join(batch.pending)
        stream = self._stream_id(connection, batch.stream)
        rows: list[EventRow] = []
        add_rows(rows, batch, stream, position, chain, pending)
        connection.executemany(ADD_EVENT, rows)
        version = batch.expected_version + len(batch.events)
        connection.execute(MOVE_HEAD, (version, chain, pending, stream))
        if len(self._heads) >= HEADS_CACHED_MAX:
            self._heads.clear()
        self._heads[batch.stream] = (stream, version, chain)
        self._batches += 1
        self._events += len(rows)

    def _stream_id(self, connection: sqlite3.Connection, stream: str) -> int:
        if stream not in self._heads and self._find_head(stream) is None:
            number = connection.execute(ADD_STREAM, (stream, first_chain(stream))).lastrowid
            assert number is not None
            return number
        return self._heads[stream][0]

    def _find_head(self, stream: str) -> tuple[int, bytes] | None:
        known = self._heads.get(stream)
        if known is None:
            assert self._connection is not None
            row = self._connection.execute(FIND_HEAD, (stream,)).fetchone()
            if row is None:
                return None
            known = self._heads[stream] = (row[0], row[1], row[2])
        return known[1], known[2]

    def _find_payload(self, payload_hash: PayloadHash) -> bool:
        assert self._connection is not None
        return self._connection.execute(_FIND_PAYLOAD, (payload_hash,)).fetchone() is not None

    def _error(self, what: str) -> LogFormatError:
        return LogFormatError(f"{self._name}, line {self._check.lines}: {what}")


def _size_of(source: BinaryIO) -> int | None:
    """Return how many bytes of lines a file holds; None where its size does not say that: a pipe, or packed lines."""
    try:
        status = os.fstat(source.fileno())
    except OSError:  # It is no file.
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) and not isinstance(source, gzip.GzipFile) else None
