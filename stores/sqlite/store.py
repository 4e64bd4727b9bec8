"""The event store in one SQLite file.

Read `refold.stores.event_store` for the contract and `schema.sql` for the tables. Around them: `file` looks at a
file before it is touched and makes new ones, `ownership` lets one runtime write, and `rewrite` sees whether the file
was taken away. In `sides`, reading and writing have each a connection and its thread, in which `append` and `read` run,
one hop per call.

The rule: what was acknowledged is in the file, and after anything that leaves this in doubt (an I/O error,
an append that hangs) nothing is written before the file was closed, opened and examined again.
"""

import asyncio
import logging
import os
import sqlite3
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

from refold.events.core.errors import LogInUse, PersistenceError
from refold.events.core.ids import PayloadHash, StreamName
from refold.events.core.records import Appended, EncodedBatch, Snapshot, StoredEvent, StreamHead
from refold.stores.append_rules import (
    APPEND_TIMEOUT_S,
    WAIT_FOR_LOG_S,
    FaultPoint,
    check_append,
    check_limit,
    check_snapshot,
    no_fault,
)
from refold.stores.event_store import ListedPayload, TellProgress, Tombstone, untold
from refold.stores.guarding.log_place import LogPlace
from refold.stores.guarding.trusted_files import require_log_trusted
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite import read as sqlite_read
from refold.stores.sqlite.append import SNAPSHOT_ROW_BYTES, LogWriter
from refold.stores.sqlite.connection import Connect, SQLiteConnection, settled
from refold.stores.sqlite.file import Durability
from refold.stores.sqlite.new_log import Backup, new_log
from refold.stores.sqlite.ownership import LogOwnership
from refold.stores.sqlite.sides import ReadingSide, WritingSide, source_of_owner, source_of_reader

_logger = logging.getLogger("refold.stores")

POSITIONS_PER_READ: Final = 50_000
"""So much of the log is searched in one read, since other reads wait for it."""

P = ParamSpec("P")
T = TypeVar("T")


class SQLiteStore:
    """An `EventStore` in one file; make it with `open`, and close it, or use it as `async with await open(...)`."""

    def __init__(self, log: Path, name: str, reading: ReadingSide, writing: WritingSide | None) -> None:
        self._log = log
        self._name = name
        self._reading = reading
        self._writing = writing
        self._pid = os.getpid()
        self._closed = False
        self._given_up = False
        self._copy: TemporaryDirectory[str] | None = None
        """The folder of the copy that is read in place of a log whose WAL cannot be read where it lies."""
        self._warning = weakref.finalize(self, _warn_of_open_log, log, self._pid)

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        durability: Durability = "full",
        wait_for_log_s: float = WAIT_FOR_LOG_S,
        append_timeout_s: float = APPEND_TIMEOUT_S,
        allow_shared_folder: bool = False,
        fault: FaultPoint = no_fault,
        connect: Connect = SQLiteConnection.open,
        name: str | None = None,
    ) -> Self:
        """Open a log, for writing as its only owner, or for reading beside an owner.

        For writing, a missing or empty file becomes a new log with mode 0600.

        Args:
            path: the file.
            read_only: never write or make anything; appends raise. Works while another process owns the log.
            durability: `"full"`: what was acknowledged survives power loss. `"normal"`: it survives the death of
                the process.
            wait_for_log_s: how long to wait for another owner to release the log.
            append_timeout_s: an append that takes longer counts as hanging: its outcome is unknown, and the file is
                opened anew before the next.
            allow_shared_folder: write a log although others may make files in its folder. Each file that SQLite reads
                beside it must still be this user's (SECURITY.md).
            fault: called in the writing thread at the named points of each append; for rehearsal.
            connect: opens the connections to the file; for rehearsal.
            name: what errors call the log; None = its path.

        Raises:
            LogInUse: another runtime owns the log.
            LogFormatError: the file is not a log, is damaged, or comes from a newer Refold; it was left untouched.
            PersistenceError: the file, one beside it or its folder cannot be used, or is not to be trusted; the message
                says which and why.
            ConfigError: the path names no file or a text log, or this system cannot have logs.
        """
        sqlite_file.require_path(path)
        sqlite_file.require_no_text_log(path)
        sqlite_file.require_sqlite()
        log = sqlite_file.resolved(path) if read_only else sqlite_file.absolute(path)
        with _called(log, name or str(log)):
            if read_only:
                return await cls._open_for_reading(log, name or str(log), append_timeout_s, connect)
            sqlite_file.look_at(log)
            require_log_trusted(log, writing=True, allow_shared_folder=allow_shared_folder)
            if (fault_of_sqlite := sqlite_file.known_fault()) is not None:
                _logger.info("%s: %s", name or log, fault_of_sqlite)
            return await cls._open_for_writing(
                log, name or str(log), durability, wait_for_log_s, append_timeout_s, fault, connect
            )

    @classmethod
    async def _open_for_writing(
        cls,
        log: Path,
        name: str,
        durability: Durability,
        wait_for_log_s: float,
        timeout_s: float,
        fault: FaultPoint,
        connect: Connect,
    ) -> Self:
        if sqlite_file.look_at(log) == "file":
            await sqlite_file.examine(log, connect)
        sqlite_file.require_access(log, writing=True)
        ownership = await LogOwnership.acquire(log, wait_s=wait_for_log_s)
        place = LogPlace(log, keeps_acknowledged=durability == "full")
        reading = ReadingSide(log, partial(source_of_owner, place), timeout_s=timeout_s, connect=connect)
        writing = WritingSide(
            log,
            place,
            ownership,
            durability=durability,
            timeout_s=timeout_s,
            fault=fault,
            close_reader=reading.disconnect,
            connect=connect,
        )
        store = cls(log, name, reading, writing)
        try:
            if sqlite_file.look_at(log) != "file":
                await sqlite_file.create(log, connect)
            await writing.open_anew()
            await reading.connect()
        except BaseException:
            await store.close()
            raise
        return store

    @classmethod
    async def _open_for_reading(cls, log: Path, name: str, timeout_s: float, connect: Connect) -> Self:
        sqlite_file.require_readable(log)
        require_log_trusted(log, writing=False)
        try:
            await sqlite_file.examine(log, connect)
            reading = ReadingSide(log, source_of_reader, timeout_s=timeout_s, connect=connect)
            await reading.connect()
        except PersistenceError as error:
            if not sqlite_file.is_unread_wal(error, log):
                raise
        else:
            return cls(log, name, reading, None)
        folder = TemporaryDirectory(prefix="refold-", ignore_cleanup_errors=True)
        try:
            copy = await asyncio.to_thread(sqlite_file.copied_with_wal, log, Path(folder.name))
            store = await cls._open_for_reading(copy, name, timeout_s, connect)
        except BaseException:
            folder.cleanup()
            raise
        store._copy = folder
        return store

    @property
    def name(self) -> str:
        return self._name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        writing = self._require_writing()
        if not batches and not payloads:
            return []
        with _called(self._log, self._name):
            return await writing.write(_append_of(batches, payloads), f"the append to {self._name} failed")

    def begin_append(
        self,
        batches: Sequence[EncodedBatch],
        payloads: Mapping[PayloadHash, bytes],
        done: Callable[[list[Appended] | BaseException], object],
    ) -> bool:
        """As `refold.stores.event_store.AppendsAtOnce` says."""

        def called(outcome: list[Appended] | BaseException) -> None:
            if isinstance(outcome, PersistenceError):
                _call_by_name(outcome, self._log, self._name)
            done(outcome)

        work = _append_of(batches, payloads)
        if not batches and not payloads:
            return False
        return self._require_writing().begin(work, f"the append to {self._name} failed", called)

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        check_limit(limit)
        return await self._read(
            f"stream {stream!r} of {self._name} cannot be read", sqlite_read.read_stream, stream, after_version, limit
        )

    async def read_outlines(self, streams: Sequence[str], *, first: int, tag: str) -> list[list[StoredEvent]]:
        """As `refold.stores.event_store.ListedLog` says."""
        return await self._read(
            f"the streams of {self._name} cannot be listed", sqlite_read.read_outlines, streams, first, tag
        )

    async def streams_with(self, beginning: bytes) -> list[StreamName]:
        """As `refold.stores.event_store.ListedLog` says."""
        failed, names, position, goes_on = f"the log {self._name} cannot be searched", set[StreamName](), 0, True
        while goes_on:
            found, goes_on = await self._read(failed, sqlite_read.streams_with, beginning, position, POSITIONS_PER_READ)
            names.update(found)
            position += POSITIONS_PER_READ
        return sorted(names)

    async def names_of_forks(self, streams: Sequence[str]) -> set[str]:
        """Return those of some streams that do not begin with their own version 1; see `refold.stores.forked`."""
        return await self._read(f"the streams of {self._name} cannot be listed", sqlite_read.names_of_forks, streams)

    async def read_all(self, *, after_position: int = 0, limit: int = 1000) -> list[StoredEvent]:
        check_limit(limit)
        return await self._read(
            f"the log {self._name} cannot be read after position {after_position}",
            sqlite_read.read_all,
            after_position,
            limit,
        )

    async def end_position(self) -> int:
        """Return the position of the last event; 0 = there is none.

        Raises:
            PersistenceError: the log cannot be read.
        """
        return await self._read(f"the end of the log {self._name} cannot be read", sqlite_read.end_position)

    async def head(self, stream: str) -> StreamHead | None:
        return await self._read(
            f"the end of stream {stream!r} of {self._name} cannot be read", sqlite_read.head, stream
        )

    async def list_streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None, with_pending: bool = False
    ) -> list[StreamHead]:
        check_limit(limit)
        return await self._read(
            f"the streams of {self._name} cannot be listed",
            sqlite_read.list_streams,
            prefix,
            after,
            limit,
            with_pending,
        )

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        return await self._read(f"payloads of {self._name} cannot be read", sqlite_read.read_payloads, list(hashes))

    async def back_up(self, path: str | os.PathLike[str], *, progress: TellProgress = untold) -> None:
        """Copy the log of this moment into a new file with mode 0600, while its owner goes on writing.

        The copy is a log of its own, made by SQLite's backup; it appears when it is complete and durable, or not at
        all. Commands that wait in the inbox beside the log are not copied.

        Args:
            path: of the copy. Nothing may be there, or an empty file.
            progress: called from time to time, in another thread, with how many pages are copied, and of how many.

        Raises:
            ConfigError: the path names no file, is that of a text log, or something is there.
            LogInUse: a runtime is about to make a log of the same name.
            PersistenceError: the log cannot be read, or the copy cannot be written.
        """
        self._require_open()
        async with new_log(path) as unfinished:
            backup = Backup(unfinished, progress)
            copying = asyncio.ensure_future(self._read(f"the log {self._name} cannot be copied", backup.copy))
            try:
                await asyncio.shield(copying)
            except asyncio.CancelledError:
                backup.give_up()
                await asyncio.wait([copying])
                raise

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        writing = self._require_writing()
        check_snapshot(snapshot)
        parts = max(1, -(-len(snapshot.state) // SNAPSHOT_ROW_BYTES))
        with _called(self._log, self._name):
            for part in reversed(range(parts)):
                await writing.write(
                    partial(LogWriter.save_snapshot, snapshot=snapshot, part=part, parts=parts),
                    f"the snapshot of stream {snapshot.stream!r} could not be kept in {self._name}",
                )

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        return await self._read(
            f"the snapshot of stream {stream!r} of {self._name} cannot be read", sqlite_read.load_snapshot, stream
        )

    async def read_beside(self, work: Callable[[sqlite3.Connection], T], failed: str) -> T:
        """Return what `work` reads from tables that hold no events, as bytes where they hold text.

        Args:
            work: one short read, in the reading thread.
            failed: what failed if it fails, as the beginning of a sentence.

        Raises:
            PersistenceError: it cannot be read.
        """
        return await self._read(failed, work)

    async def change_beside(self, work: Callable[[sqlite3.Connection], None], failed: str) -> None:
        """Change tables that hold no events, in one transaction, as durable as an append.

        Args:
            work: what is done inside the transaction, in the writing thread.
            failed: as for `read_beside`.

        Raises:
            PersistenceError: it failed; `outcome_unknown` says whether it may nevertheless be in the file.
        """
        writing = self._require_writing()
        with _called(self._log, self._name):
            await writing.write(lambda writer: writer.change_beside(work), failed)

    async def list_payloads(self, *, after: str = "", limit: int) -> list[ListedPayload]:
        check_limit(limit)
        return await self._read(
            f"the payloads of {self._name} cannot be listed", sqlite_read.list_payloads, after, limit
        )

    async def removed_position(self) -> int:
        return await self._read(f"the log {self._name} cannot be read", sqlite_read.removed_position)

    async def list_tombstones(self, *, after_position: int = 0, limit: int) -> list[Tombstone]:
        check_limit(limit)
        return await self._read(
            f"the tombstones of {self._name} cannot be listed", sqlite_read.list_tombstones, after_position, limit
        )

    async def find_tombstone(self, stream: str) -> Tombstone | None:
        """Return what a deleted stream was, or None if no stream of that name was deleted."""
        failed = f"the tombstones of {self._name} cannot be read"
        return await self._read(failed, sqlite_read.find_tombstone, stream)

    async def delete_streams(
        self, streams: Sequence[StreamHead], payloads: Iterable[PayloadHash], *, after_position: int, at: int
    ) -> int:
        """Delete streams with their snapshots, and payloads, in one transaction; see `ErasableLog`."""
        writing, ends, names = self._require_writing(), tuple(streams), tuple(payloads)
        with _called(self._log, self._name):
            return await writing.write(
                lambda writer: writer.delete_streams(ends, names, after_position, at),
                f"streams of {self._name} cannot be deleted",
            )

    async def empty_wal(self) -> bool:
        """Bring the WAL into the file and empty it, unless a reader needs it; return whether it is empty."""
        writing = self._require_writing()
        with _called(self._log, self._name):
            return await writing.write(LogWriter.empty_wal, f"the WAL of {self._name} cannot be emptied")

    async def vacuum(self) -> None:
        """Write the whole file anew, without the room that deleted rows left; see `refold.stores.keeping.compacting`.

        Raises:
            PersistenceError: it failed; the log is as it was.
        """
        writing = self._require_writing()
        with _called(self._log, self._name):
            await writing.write(LogWriter.vacuum, f"the file of {self._name} cannot be written anew")

    async def find_damage(self) -> list[str]:
        """Return what SQLite finds wrong with the file, one line each; none if it is sound. Reads the whole file.

        Raises:
            LogFormatError: the file is too damaged to be looked through.
            PersistenceError: the file cannot be read.
        """
        head = sqlite_file.acknowledged_end(self._log)  # First: what is acknowledged meanwhile is more.
        return await self._read(
            f"the log {self._name} cannot be looked through", lambda opened: sqlite_read.find_damage(opened, head)
        )

    async def reopen(self) -> None:
        """Close the file, open it and examine it again; a store does so by itself after a write in doubt.

        Raises:
            LogFormatError: the file is not the log that it was.
            PersistenceError: the file cannot be opened, or a write that hangs still holds it.
        """
        writing = self._require_writing()
        with _called(self._log, self._name):
            await writing.open_anew()

    def read_one_file(self) -> None:
        """Raise LogReplaced from now on where another file lies in the place of the one that was opened for reading."""
        self._reading.one_file = True

    @property
    def is_copy(self) -> bool:
        """Whether a copy is read in place of a log whose WAL cannot be read where it lies."""
        return self._copy is not None

    @property
    def is_lost(self) -> bool:
        """Whether another process has the log that was opened for writing here, since its lock file was removed.

        Raises:
            PersistenceError: that cannot be told.
        """
        return self._writing is not None and self._writing.is_lost

    def take_no_commands(self) -> None:
        """Say beside the log, which was opened for writing, that its owner performs nothing that others ask."""
        self._require_writing().take_no_commands()

    async def give_up(self) -> None:
        """Write nothing more, since another process has the log (LogInUse); it may still be read, until `close`."""
        writing, self._writing, self._given_up = self._writing, None, True
        if writing is not None:
            await writing.give_up()

    def close_now(self) -> None:
        """Close a log that was opened for reading and is not being read, and wait for that in this thread."""
        assert self._writing is None
        if not self._closed:
            self._closed = True
            self._warning.detach()
            self._reading.close_now()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._warning.detach()
        if os.getpid() != self._pid:
            # A forked child has none of the threads, and SQLite must not close its parent's connections there.
            return
        await settled(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        # The reader first: it would keep the WAL from being emptied, and the last to close must be who may remove it.
        # But a WAL that was cut must stay untouched, and with holes never come into the log.
        sides: list[ReadingSide | WritingSide] = [self._reading]
        if self._writing is not None:
            sides.append(self._writing)
        try:
            if self._writing is not None and self._writing.must_not_check_in:
                sides.reverse()
                await self._reading.connect()
        finally:
            try:
                await sides[0].close()
            finally:
                if len(sides) > 1:
                    await sides[1].close()
            if self._copy is not None:
                await asyncio.to_thread(self._copy.cleanup)

    async def _read(
        self, failed: str, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._require_open()
        with _called(self._log, self._name):
            return await self._reading.read(lambda connection: work(connection, *args, **kwargs), failed)

    def _require_open(self) -> None:
        if self._closed:
            raise PersistenceError(f"the log {self._name} is closed; open it again")
        if os.getpid() != self._pid:
            raise PersistenceError(
                f"the log {self._name} was opened by process {self._pid}, from which this process {os.getpid()} was "
                "forked; open logs after forking, in the process that uses them"
            )

    def _require_writing(self) -> WritingSide:
        self._require_open()
        if self._given_up:
            raise LogInUse(str(self._log), pid=None, host=None)
        if self._writing is None:
            raise PersistenceError(f"the log {self._name} is open for reading only; open it without read_only=True")
        return self._writing


@contextmanager
def _called(log: Path, name: str) -> Generator[None]:
    """Have the errors inside call the log by its name, where they know it by its path only."""
    try:
        yield
    except PersistenceError as error:
        _call_by_name(error, log, name)
        raise


def _call_by_name(error: PersistenceError, log: Path, name: str) -> None:
    if str(log) not in name:
        error.args = (str(error).replace(str(log), name),)


def _append_of(
    batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None
) -> Callable[[LogWriter], list[Appended]]:
    """Return what appends in the writing thread; raises as `check_append`."""
    # Copies, since another thread reads them while the caller's code may run.
    given, kept = tuple(batches), dict(payloads or {})
    check_append(given, {})

    def append(writer: LogWriter) -> list[Appended]:
        if kept:
            check_append((), kept)  # The digests of large payloads take their time, and not the loop's.
        return writer.append(given, kept)

    return append


def _warn_of_open_log(log: Path, pid: int) -> None:
    """Warn that a store was dropped open, at the latest when the interpreter ends; not in a forked child."""
    if os.getpid() == pid:
        warnings.warn(
            f"the log {log} was never closed; use `async with`, or call `close` of the runtime or store that opened it",
            ResourceWarning,
            stacklevel=1,
        )
