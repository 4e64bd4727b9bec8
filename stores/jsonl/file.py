"""The file of a `JsonLinesStore` as its owner writes it: made, opened, cut where a writer died, appended to.

Read `refold.stores.jsonl.reading` first. The rules it protects: an append is in the file as a whole or not at
all, for its last line end is what makes it count, and is written last; and what a failed write has left is taken away
again before anything else is written.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from refold.events.core.errors import LogFormatError, LogInUse, PersistenceError, WrongExpectedVersion
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch, Snapshot, first_chain, next_chain
from refold.stores.append_rules import FaultPoint, no_fault
from refold.stores.jsonl.check import POSITION_MAX, CheckedBatch, CheckedPayload
from refold.stores.jsonl.format import (
    FORMAT,
    LINE_BYTES_MAX,
    HeaderLine,
    batch_line,
    decoded_header,
    encoded,
    payload_line,
    snapshot_line,
)
from refold.stores.jsonl.index import LogIndex, Placed, Span
from refold.stores.jsonl.reading import TakenIn
from refold.stores.sqlite.file import Durability
from refold.stores.sqlite.rewrite import write_again

_WRITE_BYTES: Final = 8 * 1024 * 1024

_WRITE_AGAIN_BYTES: Final = 32 * 1024 * 1024
"""More than was written since the last sync that succeeded: one append, and perhaps snapshots before it."""

_HEADER_BYTES_MAX: Final = 64 * 1024

_logger = logging.getLogger("refold.stores")

_Identity = tuple[int, int]


def create(log: Path) -> None:
    """Make an empty log with mode 0600; the caller owns it and saw that there is none.

    Raises:
        PersistenceError: the file cannot be written.
    """
    unfinished = log.with_name(log.name + ".new")
    try:
        unfinished.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(unfinished, flags, 0o600)
        try:
            _write(descriptor, encoded(HeaderLine(format=FORMAT)))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        unfinished.rename(log)  # The name is brought to the disk when the log is opened, which may be later.
    except OSError as error:
        raise PersistenceError(f"the log {log} cannot be made: {error.strerror}") from error


def require_header(log: Path) -> None:
    """Return if a file begins as a log in JSON Lines does.

    Raises:
        LogFormatError: it does not, or comes from a newer Refold.
        PersistenceError: it cannot be read.
    """
    try:
        with log.open("rb") as file:
            decoded_header(file.readline(_HEADER_BYTES_MAX), str(log))
    except OSError as error:
        raise PersistenceError(f"the log {log} cannot be read: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive power loss.

    Raises:
        OSError: that cannot be done.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class JsonLinesFile:
    """Writes one file for its owner; all methods run in the writing thread."""

    def __init__(self, log: Path, index: LogIndex, durability: Durability, fault: FaultPoint) -> None:
        """Make one for a file that `open_anew` opens.

        Args:
            log: the file.
            index: knows what is in the file; shared with who reads.
            durability: what an acknowledged append survives.
            fault: called at the named points of each opening and append.
        """
        self._log = log
        self._index = index
        self._durability: Durability = durability
        self._fault = fault
        self._descriptor = -1
        self._identity: _Identity | None = None
        self.given_up = threading.Event()
        """Set by whoever does not wait any longer for the file to be opened."""
        self._taken = TakenIn(log, index, self.given_up)
        self._position = 0
        self._unsynchronised = False
        self.suspect = True
        """Whether the file has to be opened anew before the next write."""

    def open_anew(self) -> None:
        """Open the file, take it in, and cut off what a writer that died has left of its last append.

        Raises:
            LogFormatError: the file is damaged, or is not what it was when this owner opened it before.
            PersistenceError: it cannot be opened or cut, or is not in its place any more.
        """
        self.suspect = True
        self._release()
        index = LogIndex()
        taken = TakenIn(self._log, index, self.given_up)
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._log, flags)
            self._require_place()
            # Who made, moved or restored the file may have died before its name was on the disk.
            sync_folder(self._log.parent)
            self._fault("opening.folder_synced")
            status = os.fstat(self._descriptor)
            self._identity = (status.st_dev, status.st_ino)
            taken.take_in(self._descriptor)
            if not self._taken.is_continued_by(self._descriptor) or taken.end < self._taken.end:
                raise LogFormatError(f"the log {self._log} has lost what was appended to it; restore it from a backup")
            if status.st_size > taken.end:
                _logger.warning(
                    "the last %d bytes of %s are no complete append, as a writer leaves that died; they are cut off",
                    status.st_size - taken.end,
                    self._log,
                )
                os.ftruncate(self._descriptor, taken.end)
            if self._durability == "full":
                # What a writer that died had not synchronised, or could not, is acknowledged from now on.
                write_again(self._log, last_bytes=_WRITE_AGAIN_BYTES)
        except OSError as error:
            raise PersistenceError(f"the log {self._log} cannot be opened for writing: {error.strerror}") from error
        self._index.replace(index)
        taken.share(self._index)
        self._taken = taken
        self._position = taken.check.position
        self.suspect = False

    def append(self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes]) -> list[Appended]:
        """Write everything and return where each batch is.

        Raises:
            WrongExpectedVersion: a stream is at another version; nothing was written.
            LogInUse: somebody else has written to the log; nothing was written.
            ValueError: a batch makes too long a line; nothing was written.
            PersistenceError: the system failed, or the file is not in its place any more; `outcome_unknown` says
                whether the append may be in all the same.
        """
        streams = ", ".join(sorted({str(batch.stream) for batch in batches})[:5]) or "payloads only"
        failed = f"the append to {self._log} ({streams}) failed"
        self._require_owned(failed)
        appended, checked = self._planned(batches)
        payloads_to_write = [
            CheckedPayload(name, data) for name, data in payloads.items() if self._index.payload(name) is None
        ]
        contents: list[CheckedPayload | CheckedBatch] = [*payloads_to_write, *checked]
        if not contents:
            return []
        lines = [_line(item, more=True) for item in contents[:-1]]
        lines.append(_line(contents[-1], more=False))
        self._write(lines, failed)
        placed: list[Placed] = []
        offset = self._taken.end
        for item, line in zip(contents, lines, strict=True):
            kept = CheckedPayload(item.hash, b"") if isinstance(item, CheckedPayload) else item
            placed.append(Placed(kept, Span(offset, len(line))))
            offset += len(line)
        self._taken.appended(placed, offset, self._descriptor)
        if checked:
            self._position = checked[-1].position + len(checked[-1].batch.events) - 1
        self._fault("append.committed")
        self._require_place(outcome_unknown=True)
        return appended

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep the snapshot in place of an earlier one, without a wait for the disk.

        Raises:
            LogInUse: somebody else has written to the log; nothing was written.
            ValueError: it makes too long a line.
            PersistenceError: the system failed.
        """
        failed = f"the snapshot of stream {snapshot.stream!r} could not be kept in {self._log}"
        self._require_owned(failed)
        if self._index.head(snapshot.stream) is None:
            return
        line = snapshot_line(snapshot)
        self._write([line], failed, cache=True)
        end = self._taken.end + len(line)
        self._taken.appended([Placed(snapshot, Span(self._taken.end, len(line)))], end, self._descriptor)

    def close(self) -> None:
        """Close the file, if it is open; what was written and not synchronised is so first.

        Raises:
            PersistenceError: that failed; the file is closed all the same.
        """
        try:
            if self._descriptor != -1 and self._unsynchronised:
                os.fsync(self._descriptor)
        except OSError as error:
            raise PersistenceError(f"the log {self._log} cannot be synchronised: {error.strerror}") from error
        finally:
            self._release()

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor != -1:
            try:
                os.close(descriptor)
            except OSError as error:  # What it could not write, the next opening finds missing.
                _logger.warning("closing %s failed: %s", self._log, error)

    def _planned(self, batches: Sequence[EncodedBatch]) -> tuple[list[Appended], list[CheckedBatch]]:
        heads: dict[str, tuple[int, bytes]] = {}
        appended: list[Appended] = []
        checked: list[CheckedBatch] = []
        position = self._position + 1
        for batch in batches:
            stream = batch.stream
            version, chain = heads.get(stream) or self._index.find_head(stream) or (0, first_chain(stream))
            if version != batch.expected_version:
                raise WrongExpectedVersion(stream, batch.expected_version, version)
            if position + len(batch.events) > POSITION_MAX:
                raise LogFormatError(f"the log {self._log} has no positions left: its last is {self._position}")
            chain = next_chain(chain, batch)
            version += len(batch.events)
            heads[stream] = (version, chain)
            appended.append(Appended(stream=stream, position=position, version=version, chain=chain))
            checked.append(CheckedBatch(position, batch, chain))
            position += len(batch.events)
        return appended, checked

    def _write(self, lines: Sequence[bytes], failed: str, *, cache: bool = False) -> None:
        """Write lines that belong together; their last byte makes them count, and is written last."""
        for line in lines:
            if len(line) > LINE_BYTES_MAX:
                raise ValueError(f"{failed}: one line of it would have {len(line):,} bytes; at most {LINE_BYTES_MAX:,}")
        fault = no_fault if cache else self._fault
        try:
            fault("append.begun")
            if sum(map(len, lines)) <= _WRITE_BYTES:
                lines = [b"".join(lines)]
            for line in lines[:-1]:
                _write(self._descriptor, line)
            _write(self._descriptor, memoryview(lines[-1])[:-1])
            fault("append.inserted")
            _write(self._descriptor, b"\n")
            self._unsynchronised = True
            if self._durability == "full" and not cache:
                os.fsync(self._descriptor)
                self._unsynchronised = False
        except BaseException as error:
            taken_back = self._take_back()
            if isinstance(error, OSError):
                raise PersistenceError(f"{failed}: {error.strerror}", outcome_unknown=not taken_back) from error
            raise

    def _take_back(self) -> bool:
        """Cut the file where the last whole append ends, and return whether it is certain that this worked."""
        try:
            os.ftruncate(self._descriptor, self._taken.end)
            os.fsync(self._descriptor)
        except OSError as error:
            _logger.warning("what a failed append has left in %s cannot be cut off now: %s", self._log, error)
            self.suspect = True
            return False
        return True

    def _require_owned(self, failed: str) -> None:
        self._require_place()
        try:
            size = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise PersistenceError(f"{failed}: {error.strerror}") from error
        if size != self._taken.end:
            raise LogInUse(str(self._log), pid=None, host=None)

    def _require_place(self, *, outcome_unknown: bool = False) -> None:
        """Return if the name still leads to the file that is written to.

        Raises:
            PersistenceError: it does not.
        """
        advice = "put it back and write again, or close this store and open another log"
        try:
            status = self._log.lstat()
        except FileNotFoundError:
            raise PersistenceError(
                f"the log {self._log} was deleted or renamed while it was open; {advice}",
                outcome_unknown=outcome_unknown,
            ) from None
        except OSError as error:
            raise PersistenceError(
                f"the log {self._log} cannot be looked at: {error.strerror}", outcome_unknown=outcome_unknown
            ) from error
        if self._identity is not None and (status.st_dev, status.st_ino) != self._identity:
            raise PersistenceError(
                f"the log {self._log} was replaced by another file while it was open; {advice}",
                outcome_unknown=outcome_unknown,
            )


def _line(item: CheckedPayload | CheckedBatch, *, more: bool) -> bytes:
    if isinstance(item, CheckedPayload):
        return payload_line(item.hash, item.data, more=more)
    return batch_line(item.batch, item.position, item.chain, more=more)


def _write(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[:_WRITE_BYTES]) :]
