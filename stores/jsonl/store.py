"""The event store in one file of JSON Lines, for logs that people and their tools read and that are kept as text.

Read `refold.stores.event_store` for the contract and `refold.stores.jsonl.format` for the lines. The file is only
ever appended to. Its owner holds the same lock as an `SQLiteStore` (`refold.stores.sqlite.ownership`), writes in one
thread and reads in another; those who only read take in what the owner adds. Opening reads and checks the whole file,
and then a place per batch is kept in memory (`refold.stores.jsonl.index`): beyond some hundred thousand events an
`SQLiteStore` opens faster.

A reader in another process may see an append a moment before it is synchronised, and so acknowledged.

The rule it protects: what was acknowledged is in the file; and after anything that leaves this in doubt nothing is
written before the file was opened and checked again.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, cast

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import PayloadHash
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
from refold.stores.event_store import ListedPayload, Tombstone
from refold.stores.jsonl.file import JsonLinesFile, create, require_header
from refold.stores.jsonl.index import LogIndex
from refold.stores.jsonl.reading import LineReader, TakenIn
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite.connection import settled
from refold.stores.sqlite.file import Durability
from refold.stores.sqlite.ownership import LogOwnership
from refold.stores.sqlite.serial_worker import FileThread

T = TypeVar("T")


class JsonLinesStore:
    """An `EventStore` in one file; make it with `open`, and close it, or use it as `async with await open(...)`."""

    def __init__(self, log: Path, reading: "_Reading", writing: "_Writing | None") -> None:
        self._log = log
        self._reading = reading
        self._writing = writing
        self._index = reading.index
        self._pid = os.getpid()
        self._closed = False

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        durability: Durability = "full",
        wait_for_log_s: float = WAIT_FOR_LOG_S,
        append_timeout_s: float = APPEND_TIMEOUT_S,
        fault: FaultPoint = no_fault,
    ) -> Self:
        """Open a log, for writing as its only owner, or for reading beside an owner.

        For writing, a missing or empty file becomes a new log with mode 0600, and half an append at the end, which a
        writer leaves that died, is cut off. A reader leaves it where it is, and looks past it.

        Args:
            path: the file; any name will do, `.jsonl` is what commands and runtimes go by.
            read_only: never write or make anything; appends raise. Works while another process owns the log.
            durability: `"full"`: what was acknowledged survives power loss. `"normal"`: it survives the death of
                the process.
            wait_for_log_s: how long to wait for another owner to release the log.
            append_timeout_s: an append that takes longer counts as hanging: its outcome is unknown, and nothing
                else is written until it has ended.
            fault: called in the writing thread at the named points of each append; for rehearsal.

        Raises:
            LogInUse: another runtime owns the log.
            LogFormatError: the file is not a log, is damaged, or comes from a newer Refold; it was left untouched.
                The message names the line.
            PersistenceError: the file or its folder cannot be used; the message says which and why.
            ConfigError: the path names no file, or this system cannot lock files.
        """
        sqlite_file.require_path(path)
        log = sqlite_file.resolved(path) if read_only else sqlite_file.absolute(path)
        kind = sqlite_file.look_at(log)
        if read_only and kind == "missing":
            raise PersistenceError(f"the log {log} does not exist")
        if read_only and kind == "empty":
            raise LogFormatError(f"{log} is empty, so it is no log")
        sqlite_file.require_access(log, writing=not read_only)
        if read_only:
            reading = _Reading(log, LogIndex(), append_timeout_s, follows=True)
            store = cls(log, reading, None)
        else:
            if kind == "file":
                await _examine(log)
            ownership = await LogOwnership.acquire(log, wait_s=wait_for_log_s)
            reading = _Reading(log, LogIndex(), append_timeout_s, follows=False)
            file = JsonLinesFile(log, reading.index, durability, fault)
            store = cls(log, reading, _Writing(log, file, ownership, append_timeout_s))
        try:
            await store._begin()
        except BaseException:
            await store.close()
            raise
        return store

    async def _begin(self) -> None:
        if self._writing is not None:
            await self._writing.begin()
        await self._reading.read(lambda reader: None, f"the log {self._log} cannot be read")

    @property
    def name(self) -> str:
        return str(self._log)

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
        # Copies, since another thread reads them while the caller's code may run.
        given, kept = tuple(batches), dict(payloads or {})
        check_append(given, kept)
        if not given and not kept:
            return []
        return await writing.write(lambda file: file.append(given, kept), f"the append to {self._log} failed")

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        self._require_open()
        check_limit(limit)
        return await self._read(
            lambda reader: reader.read_stream(stream, after_version, limit),
            f"stream {stream!r} of {self._log} cannot be read",
        )

    async def read_all(self, *, after_position: int = 0, limit: int = 1000) -> list[StoredEvent]:
        self._require_open()
        check_limit(limit)
        return await self._read(
            lambda reader: reader.read_all(after_position, limit),
            f"the log {self._log} cannot be read after position {after_position}",
        )

    async def head(self, stream: str) -> StreamHead | None:
        self._require_open()
        return await self._read(
            lambda _: self._index.head(stream), f"the end of stream {stream!r} of {self._log} cannot be read"
        )

    async def list_streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None, with_pending: bool = False
    ) -> list[StreamHead]:
        self._require_open()
        check_limit(limit)
        return await self._read(
            lambda _: self._index.list_streams(prefix, after, limit, with_pending),
            f"the streams of {self._log} cannot be listed",
        )

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        self._require_open()
        wanted = list(hashes)
        return await self._read(lambda reader: reader.read_payloads(wanted), f"payloads of {self._log} cannot be read")

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        writing = self._require_writing()
        check_snapshot(snapshot)
        await writing.write(
            lambda file: file.save_snapshot(snapshot),
            f"the snapshot of stream {snapshot.stream!r} could not be kept in {self._log}",
        )

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        self._require_open()
        return await self._read(
            lambda reader: reader.load_snapshot(stream),
            f"the snapshot of stream {stream!r} of {self._log} cannot be read",
        )

    async def list_payloads(self, *, after: str = "", limit: int) -> list[ListedPayload]:
        """Return at most `limit` payloads whose hashes are greater than `after`, in order of the hashes."""
        self._require_open()
        check_limit(limit)
        return await self._read(
            lambda _: self._index.list_payloads(after, limit), f"the payloads of {self._log} cannot be listed"
        )

    async def removed_position(self) -> int:
        """Return the highest position that was ever removed."""
        self._require_open()
        return await self._read(lambda _: self._index.removed_position, f"the log {self._log} cannot be read")

    async def list_tombstones(self, *, after_position: int = 0, limit: int) -> list[Tombstone]:
        """Return at most `limit` tombstones with a greater position, in its order."""
        self._require_open()
        check_limit(limit)
        return await self._read(
            lambda _: self._index.list_tombstones(after_position, limit),
            f"the tombstones of {self._log} cannot be listed",
        )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            # A forked child has none of the threads, and the files are its parent's.
            return
        await settled(asyncio.ensure_future(self._close()))

    async def _close(self) -> None:
        try:
            await self._reading.close()
        finally:
            if self._writing is not None:
                await self._writing.close()

    async def _read(self, work: Callable[[LineReader], T], failed: str) -> T:
        if self._writing is not None:
            await self._writing.settle()
        return await self._reading.read(work, failed)

    def _require_open(self) -> None:
        if self._closed:
            raise PersistenceError(f"the log {self._log} is closed; open it again")
        if os.getpid() != self._pid:
            raise PersistenceError(
                f"the log {self._log} was opened by process {self._pid}, from which this process {os.getpid()} was "
                "forked; open logs after forking, in the process that uses them"
            )

    def _require_writing(self) -> "_Writing":
        self._require_open()
        if self._writing is None:
            raise PersistenceError(f"the log {self._log} is open for reading only; open it without read_only=True")
        return self._writing


async def _examine(log: Path) -> None:
    """Return if the file begins as a log does; before anything beside it is made.

    Raises:
        LogFormatError: it does not.
        PersistenceError: it cannot be read.
    """
    thread = FileThread(f"refold {log.name}")
    try:
        await thread.submit(lambda: require_header(log))
    finally:
        await thread.close()


class _Reading:
    """Runs reads in a thread of their own, one at a time, opening the file whenever that is needed."""

    def __init__(self, log: Path, index: LogIndex, timeout_s: float, *, follows: bool) -> None:
        self.index = index
        self._log = log
        self._timeout_s = timeout_s
        self._follows = follows
        self._thread = FileThread(f"refold reads {log.name}")
        self._reader = LineReader(log, index)
        self._given_up = threading.Event()
        self._taken = TakenIn(log, index, self._given_up)
        self._identity: tuple[int, int] | None = None

    async def read(self, work: Callable[[LineReader], T], failed: str) -> T:
        try:
            return await self._thread.submit(lambda: self._read(work))
        except OSError as error:
            raise PersistenceError(f"{failed}: {error.strerror}") from error

    async def close(self) -> None:
        self._given_up.set()
        released = self._thread.submit(self._release)
        try:
            await self._thread.close(timeout_s=self._timeout_s)
        finally:
            released.cancel()

    def _read(self, work: Callable[[LineReader], T]) -> T:
        self._look_at_file()
        return work(self._reader)

    def _look_at_file(self) -> None:
        status = self._log.stat()
        identity = (status.st_dev, status.st_ino)
        if identity != self._identity:
            if self._identity is not None and not self._follows:
                raise PersistenceError(
                    f"the log {self._log} was replaced by another file while it was open; put it back"
                )
            self._release()
            self._reader.descriptor = os.open(self._log, os.O_RDONLY | os.O_CLOEXEC)
            self._identity = identity
            if self._follows:
                self._begin_anew()
        elif self._follows:
            if status.st_size < self._taken.end or not self._taken.is_continued_by(self._reader.descriptor):
                self._begin_anew()
            elif status.st_size > self._taken.end:
                self._taken.take_in(self._reader.descriptor)

    def _begin_anew(self) -> None:
        """Take the whole file in; what was taken in before is another file's, or was cut off again by its writer."""
        index = LogIndex()
        taken = TakenIn(self._log, index, self._given_up)
        taken.take_in(self._reader.descriptor)
        self.index.replace(index)
        taken.share(self.index)
        self._taken = taken

    def _release(self) -> None:
        descriptor, self._reader.descriptor = self._reader.descriptor, -1
        self._identity = None
        if descriptor != -1:
            os.close(descriptor)


class _Writing:
    """Runs writes in a thread of their own, one at a time, for the owner of a log."""

    def __init__(self, log: Path, file: JsonLinesFile, ownership: LogOwnership, timeout_s: float) -> None:
        self._log = log
        self._file = file
        self._ownership = ownership
        self._timeout_s = timeout_s
        self._thread = FileThread(f"refold writes {log.name}")
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Future[object] | None = None

    async def begin(self) -> None:
        """Make the file if there is none, and open it. A long file takes as long as it takes to read it."""
        if sqlite_file.look_at(self._log) != "file":
            await settled(self._thread.submit(lambda: create(self._log)))
        try:
            await self._thread.submit(self._file.open_anew)
        except asyncio.CancelledError:
            self._file.given_up.set()
            raise

    async def settle(self) -> None:
        """After a write in doubt, open the file anew, so that who reads now is told what became of it.

        Raises:
            LogFormatError: the file is not the log that it was.
            PersistenceError: it cannot be opened.
        """
        if self._file.suspect and (self._running is None or self._running.done()):
            async with self._turn:
                await settled(self._thread.submit(self._open_if_suspect), timeout_s=self._timeout_s)

    async def write(self, work: Callable[[JsonLinesFile], T], failed: str) -> T:
        """Run `work` in the writing thread and return its result once it is certain.

        Raises:
            PersistenceError: the write failed or hangs; `outcome_unknown` says whether it may be in all the same.
            CancelledError: the caller was cancelled, and the outcome is settled.
        """
        if asyncio.get_running_loop() is not self._loop:
            # An owner whose loop was closed gives way to another one of the process, which must not be disturbed.
            raise PersistenceError(f"the log {self._log} was opened in another event loop; open it in this one")
        async with self._turn:
            await self._wait_for_hanging(failed)
            running = self._thread.submit(lambda: self._write(work))
            self._running = cast("asyncio.Future[object]", running)
            try:
                return await settled(running, timeout_s=self._timeout_s)
            except TimeoutError:
                raise PersistenceError(
                    f"{failed}: it takes longer than {self._timeout_s} s; read the log again before retrying",
                    outcome_unknown=True,
                ) from None

    async def _wait_for_hanging(self, failed: str) -> None:
        if self._running is not None and not self._running.done():
            await asyncio.wait({self._running}, timeout=self._timeout_s)
            if not self._running.done():
                raise PersistenceError(f"{failed}: an earlier one still hangs; nothing was begun")

    def _write(self, work: Callable[[JsonLinesFile], T]) -> T:
        self._open_if_suspect()
        return work(self._file)

    def _open_if_suspect(self) -> None:
        if self._file.suspect:
            self._file.open_anew()

    async def close(self) -> None:
        """Synchronise and close the file, and give up the ownership, as far as the disk lets us."""
        try:
            async with self._turn:
                closed = self._thread.submit(self._file.close)
                try:
                    await settled(closed, timeout_s=self._timeout_s)
                except TimeoutError:
                    raise PersistenceError(
                        f"the log {self._log} cannot be closed: it takes longer than {self._timeout_s} s"
                    ) from None
                finally:
                    await self._thread.close(timeout_s=self._timeout_s)
        finally:
            self._ownership.release()
