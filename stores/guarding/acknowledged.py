"""How far a log had been acknowledged: kept beside it, so that a log that ends before that is not taken for whole.

SQLite cannot tell a WAL that was cut, removed or damaged from one that ended there: it reads as far as the checksums
are right. So the owner of a log writes after each commit, into `<log>.head`, the position and the digest of the last
batch. It does not wait for the disk: after a power cut the file may say less than the log has, and it never says more.
It is there while a log is open, and after a crash, and goes when the log was closed in order and all is in one file.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

HEAD_SUFFIX: Final = ".head"
_FORM: Final = struct.Struct(">4sQQ32sI")
_MAGIC: Final = b"RFLH"


class Acknowledged(NamedTuple):
    """The last batch that was acknowledged."""

    first: int
    """Position of its first event."""
    last: int
    """Position of its last event."""
    chain: bytes
    """Digest of its stream after it."""


def acknowledged(log: Path) -> Acknowledged | None:
    """Return how far a log had been acknowledged; None where nothing says so, or what says so is damaged itself.

    Raises:
        OSError: the file is there and cannot be read.
    """
    try:
        descriptor = os.open(_path(log), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        data = os.pread(descriptor, _FORM.size, 0)
    finally:
        os.close(descriptor)
    if len(data) < _FORM.size:
        return None
    magic, first, last, chain, checksum = _FORM.unpack(data)
    return Acknowledged(first, last, chain) if (magic, checksum) == (_MAGIC, zlib.crc32(data[:-4])) else None


def forget_acknowledged(log: Path) -> None:
    """Remove what says how far a log had been acknowledged."""
    _path(log).unlink(missing_ok=True)


class AcknowledgedFile:
    """Where the owner of a log writes how far it is; a file of its own, so that an owner of before cannot reach it."""

    def __init__(self, log: Path) -> None:
        """Make the file, with what the one before says.

        Raises:
            OSError: that cannot be done.
        """
        self._file = _path(log)
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
        data = _FORM.pack(_MAGIC, *batch, 0)[:-4]
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


def _path(log: Path) -> Path:
    return log.with_name(log.name + HEAD_SUFFIX)
