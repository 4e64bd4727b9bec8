"""Whether the log and its WAL are the files that their owner opened, and hold what was written into them.

A file can be deleted, renamed, replaced or cut while it is open. The open file goes on without its name, or with a
hole, SQLite says nothing, and what is written after that is lost with the process. So `LogPlace` keeps which files the
log and its WAL are, and how far they reach: an append is acknowledged only while the names lead to the files that it
was written to, and these still hold what they held.

SQLite keeps in memory where the WAL ends and never looks at the file again. So a WAL that is cut under a running
process is written on behind a hole, every commit succeeds, and all of it is lost with the process. `WalWatch` looks, at
each commit, whether the end of the last transaction is where it was. The form is SQLite's
(https://www.sqlite.org/fileformat2.html#the_write_ahead_log): a header, then frames of one page each, the last of a
transaction marked; salts tell the frames of today from those of before the WAL was begun anew, and a checksum runs
through all of them.

Nor can the next opening tell a WAL that was cut, removed or damaged from one that ended there: SQLite reads as far as
the checksums are right. So the owner writes after each commit, into `<log>.head`, the position and the digest of the
last batch. It does not wait for the disk: after a power cut the file may say less than the log has, and it never says
more. It is there while a log is open, and after a crash, and goes when the log was closed in order and all is in one
file.
"""

import errno
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from refold.events.core.errors import PersistenceError

_Identity = tuple[int, int]
"""Device and inode of a file; none is used again while the file is open."""

_PUT_LOG_BACK: Final = "put it back, with the WAL beside it, and write again, or close this store and open another log"

_WRITE_AGAIN: Final = "leave the log in its place and write again: what the WAL held is copied into the log first"

_logger = logging.getLogger("refold.stores")

HEAD_SUFFIX: Final = ".head"
_NOTE: Final = struct.Struct(">4sQQ32sI")
_NOTE_MAGIC: Final = b"RFLH"


class Acknowledged(NamedTuple):
    """The last batch that was acknowledged."""

    first: int
    """Position of its first event."""
    last: int
    """Position of its last event."""
    chain: bytes
    """Digest of its stream after it."""


def acknowledged(log: Path) -> Acknowledged | None:
    """Return how far a log had been acknowledged; None where nothing says so, or what says so is damaged itself."""
    try:
        descriptor = os.open(_note_beside(log), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        data = os.pread(descriptor, _NOTE.size, 0)
    finally:
        os.close(descriptor)
    if len(data) < _NOTE.size:
        return None
    magic, first, last, chain, checksum = _NOTE.unpack(data)
    return Acknowledged(first, last, chain) if (magic, checksum) == (_NOTE_MAGIC, zlib.crc32(data[:-4])) else None


def forget_acknowledged(log: Path) -> None:
    _note_beside(log).unlink(missing_ok=True)


class AcknowledgedFile:
    """Where the owner of a log writes how far it is; a file of its own, so that an owner of before cannot reach it."""

    def __init__(self, log: Path) -> None:
        """Make the file, with what the one before says."""
        self._file = _note_beside(log)
        before = acknowledged(log)
        new = self._file.with_name(self._file.name + ".new")
        new.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(new, flags, 0o600)
        try:
            _allow_as(log, self._descriptor)
            if before is not None:
                self.write(before)
            new.rename(self._file)
        except OSError:
            self.close()
            raise

    def write(self, batch: Acknowledged) -> None:
        data = _NOTE.pack(_NOTE_MAGIC, *batch, 0)[:-4]
        os.pwrite(self._descriptor, data + zlib.crc32(data).to_bytes(4, "big"), 0)

    def close(self, *, remove: bool = False) -> None:
        """Close the file, and remove it unless it is another owner's by now."""
        try:
            if remove and os.path.samestat(os.fstat(self._descriptor), os.lstat(self._file)):
                self._file.unlink()
        except OSError:  # It is gone, or stays; what it says stays true.
            return
        finally:
            os.close(self._descriptor)


def _allow_as(log: Path, descriptor: int) -> None:
    """Give a file to the log's owner where root made it, and let those read it who may read the log."""
    status, ours = log.stat(), os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (ours.st_uid, ours.st_gid):
        try:
            os.fchown(descriptor, status.st_uid, status.st_gid)
        except PermissionError:  # We are not root; then its group may be one that must not read the log.
            return
    os.fchmod(descriptor, 0o600 | status.st_mode & 0o044)


def _note_beside(log: Path) -> Path:
    return log.with_name(log.name + HEAD_SUFFIX)


HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
COUNTED_BYTES_MAX: Final = 16 * 1024 * 1024
"""A WAL that is longer is not added up when a log is opened, which would take seconds."""

FRAMES_PER_READ: Final = 4
"""As many as the transaction of a turn has, so that one read finds where such a one ends."""

_MAGIC: Final = 0x377F0682
_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")


class WalHeader(NamedTuple):
    """What the first bytes of a WAL say."""

    page_bytes: int
    salts: tuple[int, int]
    checksum: tuple[int, int]
    byte_order: str
    """Of the words that the checksums add up, as `struct` has it."""

    @property
    def frame_bytes(self) -> int:
        return FRAME_HEADER_BYTES + self.page_bytes


class WalFrame(NamedTuple):
    """One page, as a transaction left it."""

    page: int
    ends_transaction: bool
    pages: int
    """Of the database after the transaction, where the frame ends one."""
    content: bytes


def wal_header(data: bytes) -> WalHeader | None:
    """Return what a header says; None where it is none, or damaged."""
    if len(data) < HEADER_BYTES:
        return None
    magic, _, page_bytes, _, salt_1, salt_2, sum_1, sum_2 = _HEADER.unpack(data[:HEADER_BYTES])
    if magic & ~1 != _MAGIC or not 512 <= page_bytes <= 65536 or page_bytes & (page_bytes - 1):
        return None
    order = ">" if magic & 1 else "<"
    if _checksum(data[:24], (0, 0), order) != (sum_1, sum_2):
        return None
    return WalHeader(page_bytes, (salt_1, salt_2), (sum_1, sum_2), order)


def _checksum(data: bytes, before: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = before
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def committed_frames(wal: bytes) -> Iterator[WalFrame]:
    """Give the frames of whole transactions, in order, as SQLite would take them when it opens the file."""
    header = wal_header(wal)
    if header is None:
        return
    checksum = header.checksum
    transaction: list[WalFrame] = []
    for offset in range(HEADER_BYTES, len(wal) - header.frame_bytes + 1, header.frame_bytes):
        page, pages, salt_1, salt_2, sum_1, sum_2 = _FRAME.unpack_from(wal, offset)
        content = wal[offset + FRAME_HEADER_BYTES : offset + header.frame_bytes]
        checksum = _checksum(wal[offset : offset + 8] + content, checksum, header.byte_order)
        if (salt_1, salt_2) != header.salts or (sum_1, sum_2) != checksum or not page:
            return
        transaction.append(WalFrame(page, pages > 0, pages, content))
        if pages:
            yield from transaction
            transaction.clear()


class WalCut(Exception):
    """A WAL is not what was written into it."""


class WalWatch:
    """Looks at the WAL of an open log before each transaction and after it; close it with `close`."""

    def __init__(self, path: Path) -> None:
        """Begin with what the file holds now, which must be a WAL that SQLite has open.

        Of a WAL that is longer than `COUNTED_BYTES_MAX` the first transactions are taken for the last ones.
        """
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._header: bytes = b""
        self._form: WalHeader | None = None
        self._end = HEADER_BYTES
        self._last = b""
        self._leftover = False
        """Whether frames of today stand behind the end: the next transaction is written over them."""
        try:
            wal = path.read_bytes() if self.size <= COUNTED_BYTES_MAX else b""
            self._begin(sum(1 for _ in committed_frames(wal)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._descriptor)

    def is_short(self) -> bool:
        """Tell whether the file is shorter than it was; a checkpoint may have emptied it."""
        return self.size < self._end

    @property
    def size(self) -> int:
        """Of the file, in bytes."""
        return os.fstat(self._descriptor).st_size

    def after_commit(self) -> None:
        """Look where the WAL ends now."""
        found = os.pread(self._descriptor, HEADER_BYTES, 0)
        if not found:  # Empty after a checkpoint, and nothing was to be written.
            return
        if len(found) < HEADER_BYTES:
            raise WalCut("it was cut")
        if found != self._header:
            form, before = wal_header(found), self._form
            if form is None:
                raise WalCut("its header is gone")
            if before is not None and not self._leftover and self._salts_at(self._end) == before.salts:
                raise WalCut("it is another WAL")  # SQLite has gone on behind what it takes to be there.
            self._header, self._form, self._end, self._last = found, form, HEADER_BYTES, b""
        self._go_to_next_end()

    def _begin(self, frames: int) -> None:
        self._header = self._read(0, HEADER_BYTES)
        self._form = wal_header(self._header)
        if self._form is None:
            raise WalCut("its header is gone")
        self._go_to(frames)

    def _go_to_next_end(self) -> None:
        """Go from the last transaction, which must be there, to the end of the one that was written since.

        That is the first frame which ends one. Those behind it may look as if they were of today, too: a transaction
        that failed has left them there, and the next one is written over them.
        """
        form, last = self._form, self._last
        assert form is not None
        frame_bytes, salts = form.frame_bytes, form.salts
        at, length = len(last), FRAMES_PER_READ * frame_bytes + FRAME_HEADER_BYTES
        data = os.pread(self._descriptor, at + length, self._end - at)
        if len(data) < at:
            raise WalCut("it was cut")
        if not data.startswith(last):
            raise WalCut("its last transaction is gone")
        end = self._end
        while True:
            if at + frame_bytes > len(data):
                at, data = 0, os.pread(self._descriptor, length, end)
                if len(data) < frame_bytes:
                    return
            frame = _FRAME.unpack_from(data, at)
            if frame[2:4] != salts:
                return
            at, end = at + frame_bytes, end + frame_bytes
            if frame[1]:
                break
        self._end, self._last = end, data[at - frame_bytes : at]
        behind = data[at : at + FRAME_HEADER_BYTES]
        self._leftover = len(behind) == FRAME_HEADER_BYTES and _FRAME.unpack(behind)[2:4] == salts

    def _go_to(self, frames: int) -> None:
        form = self._form
        assert form is not None
        self._end = HEADER_BYTES + frames * form.frame_bytes
        self._last = self._read(self._end - form.frame_bytes, form.frame_bytes) if frames else b""
        self._leftover = self._salts_at(self._end) == form.salts

    def _salts_at(self, offset: int) -> tuple[int, ...]:
        data = os.pread(self._descriptor, FRAME_HEADER_BYTES, offset)
        return _FRAME.unpack(data)[2:4] if len(data) == FRAME_HEADER_BYTES else ()

    def _read(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) < length:
            raise WalCut("it was cut")
        return data


class LogPlace:
    """Remembers which files the log and its WAL were at the opening, and how far they reach.

    The writing thread and the loop use it without a lock. What changes it belongs to a write, to opening anew or to
    closing, of which one has its turn at a time (`refold.stores.sqlite.sides`). A reader calls `require_log` at any
    time, which goes only by what the first opening has set for good.
    """

    def __init__(self, log: Path, *, keeps_acknowledged: bool = True) -> None:
        """Remember nothing yet.

        Args:
            log: the log.
            keeps_acknowledged: whether what is acknowledged is on the disk then, and is to be noted beside the log.
        """
        self._path = log
        self._log = os.fspath(log)
        self._wal = self._log + "-wal"
        self._log_identity: _Identity | None = None
        self._wal_identity: _Identity | None = None
        self._log_bytes = 0
        """Most bytes that the log has had at a commit."""
        self._watch: WalWatch | None = None
        self._cut = ""
        """What is wrong with files that were cut; empty = nothing."""
        self._keeps_acknowledged = keeps_acknowledged
        self._acknowledged: AcknowledgedFile | None = None

    def remember_log(self) -> None:
        """Keep which file the log is, unless an opening before has; call it before SQLite opens the file."""
        self.require_log()
        self.require_uncut()
        if self._log_identity is None:
            self._log_identity = _identity(self._log)

    def remember_wal(self) -> None:
        """Keep which file the WAL is from now on, and where it ends; call it once SQLite has written to it."""
        self.require_log()
        self._wal_identity = _identity(self._wal)
        _require(self._wal, self._wal_identity, "the WAL", _WRITE_AGAIN)
        self._close_watch()
        try:
            self._watch = WalWatch(Path(self._wal))
            if not self._keeps_acknowledged:
                forget_acknowledged(self._path)
            elif self._acknowledged is None:
                self._acknowledged = AcknowledgedFile(self._path)
        except WalCut as cut:
            raise self._was_cut(f"{self._wal}: {cut}") from None
        except OSError as error:
            raise PersistenceError(f"{error.filename} cannot be used: {error.strerror}") from error

    def require_log(self) -> None:
        """Return if the log is the file that it was at the first opening; also before that, if it is there."""
        _require(self._log, self._log_identity, "the log", _PUT_LOG_BACK)

    def require_uncut(self) -> None:
        if self._cut:
            raise self._was_cut(self._cut)

    @property
    def is_cut(self) -> bool:
        return bool(self._cut)

    def wal_is_lost(self) -> bool:
        """Return whether the log is in its place and the WAL that we write to is not."""
        if self._wal_identity is None or _identity(self._log) != self._log_identity:
            return False
        return _identity(self._wal) != self._wal_identity

    def require_wal(self, frames: Callable[[], int]) -> None:
        """Return if the WAL that is about to be written reaches as far as it did; costs one look at the file system.

        Args:
            frames: how many frames SQLite takes the WAL to have; others may have emptied it with a checkpoint.
        """
        self.require_uncut()
        if self._watch is not None and self._watch.is_short() and (self._watch.size or frames()):
            raise self._was_cut(f"{self._wal}: it was cut")

    def require_both(self, log_bytes: Callable[[], int]) -> None:
        """Return if both are the files that an append has just been written to, and hold what they held.

        Costs two looks at the file system, and some at the WAL. Where the log is shorter now, `log_bytes` gives what
        its length must be once the WAL is copied into it.
        """
        size = _require(self._log, self._log_identity, "the log", _PUT_LOG_BACK, outcome_unknown=True)
        _require(self._wal, self._wal_identity, "the WAL", _WRITE_AGAIN, outcome_unknown=True)
        if size < self._log_bytes and size < log_bytes():
            raise self._was_cut(f"{self._log}: it was cut", outcome_unknown=True)
        self._log_bytes = size
        if self._watch is None:
            return
        try:
            self._watch.after_commit()
        except WalCut as cut:
            raise self._was_cut(f"{self._wal}: {cut}", outcome_unknown=True) from None
        except OSError as error:
            raise PersistenceError(f"{self._wal} cannot be read: {error.strerror}", outcome_unknown=True) from error

    def acknowledge(self, batch: Acknowledged) -> None:
        """Note beside the log that it was written so far."""
        if self._acknowledged is None:
            return
        try:
            self._acknowledged.write(batch)
        except OSError as error:  # What was noted before stays true.
            _logger.warning("how far %s is written cannot be noted beside it any more: %s", self._log, error)
            self._acknowledged.close()
            self._acknowledged = None

    def close(self, *, all_in_log: bool) -> None:
        """Let go of the files; where nothing is in the WAL alone, how far was acknowledged needs no noting."""
        self._close_watch()
        if self._acknowledged is not None:
            self._acknowledged.close(remove=all_in_log)
            self._acknowledged = None

    def _close_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _was_cut(self, what: str, *, outcome_unknown: bool = False) -> PersistenceError:
        self._cut = what
        return PersistenceError(
            f"{what} while the log was open, so that events which were acknowledged are lost; nothing more is written: "
            f"close this store, and save what is whole with `refold repair {self._log} -o NEW`",
            outcome_unknown=outcome_unknown,
        )


def status_of(
    path: str | Path, called: str = "", *, follow: bool = False, outcome_unknown: bool = False
) -> os.stat_result | None:
    """Return what is at the path, links not followed unless that is asked for; None if there is nothing."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):  # No file can have too long a name.
            return None
        failed = f"{called or path} cannot be looked at: {error.strerror}"
        raise PersistenceError(failed, outcome_unknown=outcome_unknown) from error


def _identity(path: str) -> _Identity | None:
    status = status_of(path)
    return None if status is None else (status.st_dev, status.st_ino)


def _require(path: str, remembered: _Identity | None, what: str, advice: str, *, outcome_unknown: bool = False) -> int:
    """Return the length of the file."""
    status = status_of(path, outcome_unknown=outcome_unknown)
    if status is None:
        raise PersistenceError(
            f"{what} {path} was deleted or renamed while it was open; {advice}", outcome_unknown=outcome_unknown
        )
    if remembered is not None and (status.st_dev, status.st_ino) != remembered:
        raise PersistenceError(
            f"{what} {path} was replaced by another file while it was open; {advice}", outcome_unknown=outcome_unknown
        )
    return status.st_size
