"""What an owner checks and repairs of its files: that they are still in their place, and that they are on the disk.

A file can be deleted, renamed or replaced while it is open. The open file goes on without its name, SQLite says
nothing, and what is written after that is lost with the process. So `LogPlace` keeps which files the log and its WAL
are: an append is acknowledged only while the names still lead to the files that it was written to.

When a sync fails, the system counts what was to be written as written: readers see it, later syncs succeed, and yet it
is not on the disk and is gone after a power cut (https://lwn.net/Articles/752063/,
https://www.usenix.org/conference/atc20/presentation/rebello). So an append whose sync failed can be found in the WAL
when the log is opened again, and what is then appended after it would be lost with it. `write_again` writes everything
once more, the same bytes in the same places, and syncs that. Read `writer` first.
"""

import os
from pathlib import Path
from typing import Final

from refold.events.core.errors import PersistenceError

BLOCK_BYTES: Final = 1024 * 1024


def synchronise(path: Path) -> None:
    """Make what a file holds, or the names that a folder holds, survive power loss.

    Raises:
        OSError: that cannot be done.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_again(file: Path) -> bool:
    """Write a file's bytes over themselves, wait for the disk, and return whether there were any; False if no file.

    Nobody else may write the file meanwhile; who reads it reads the same as before.

    Raises:
        PersistenceError: the file cannot be written, or the disk does not take it.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _failed(file, error) from error
    try:
        size = 0
        while block := os.pread(descriptor, BLOCK_BYTES, size):
            written = 0
            while written < len(block):
                written += os.pwrite(descriptor, block[written:], size + written)
            size += len(block)
        if size:
            os.fsync(descriptor)
    except OSError as error:
        raise _failed(file, error) from error
    finally:
        os.close(descriptor)
    return size > 0


def _failed(file: Path, error: OSError) -> PersistenceError:
    return PersistenceError(f"{file} cannot be brought to the disk: {error.strerror}; its log was not opened")


_Identity = tuple[int, int]
"""Device and inode of a file; none is used again while the file is open."""

_PUT_LOG_BACK: Final = "put it back, with the WAL beside it, and write again, or close this store and open another log"

_WRITE_AGAIN: Final = "leave the log in its place and write again: what the WAL held is copied into the log first"


class LogPlace:
    """Remembers which files the log and its WAL were at the opening."""

    def __init__(self, log: Path) -> None:
        self._log = os.fspath(log)
        self._wal = self._log + "-wal"
        self._log_identity: _Identity | None = None
        self._wal_identity: _Identity | None = None

    def remember_log(self) -> None:
        """Keep which file the log is, unless it is known from an opening before; call it before SQLite opens the file.

        Raises:
            PersistenceError: it is missing, or another file than at the first opening.
        """
        self.require_log()
        if self._log_identity is None:
            self._log_identity = _identity(self._log)

    def remember_wal(self) -> None:
        """Keep which file the WAL is from now on; call it once SQLite has written to it.

        Raises:
            PersistenceError: one of the files is missing, or the log is another one than before SQLite opened it.
        """
        self.require_log()
        self._wal_identity = _identity(self._wal)
        _require(self._wal, self._wal_identity, "the WAL", _WRITE_AGAIN)

    def require_log(self) -> None:
        """Return if the log is the file that it was at the first opening; also before that, if it is there.

        Raises:
            PersistenceError: it is missing or another file.
        """
        _require(self._log, self._log_identity, "the log", _PUT_LOG_BACK)

    def wal_is_lost(self) -> bool:
        """Return whether the log is in its place and the WAL that we write to is not."""
        if self._wal_identity is None or _identity(self._log) != self._log_identity:
            return False
        return _identity(self._wal) != self._wal_identity

    def require_both(self) -> None:
        """Return if both are the files that an append has just been written to; costs two looks at the file system.

        Raises:
            PersistenceError: one is missing or another file; `outcome_unknown` is True.
        """
        _require(self._log, self._log_identity, "the log", _PUT_LOG_BACK, outcome_unknown=True)
        _require(self._wal, self._wal_identity, "the WAL", _WRITE_AGAIN, outcome_unknown=True)


def _identity(path: str, *, outcome_unknown: bool = False) -> _Identity | None:
    """Return which file is at the path, links not followed; None if there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PersistenceError(
            f"{path} cannot be looked at: {error.strerror}", outcome_unknown=outcome_unknown
        ) from error
    return status.st_dev, status.st_ino


def _require(path: str, remembered: _Identity | None, what: str, advice: str, *, outcome_unknown: bool = False) -> None:
    found = _identity(path, outcome_unknown=outcome_unknown)
    if found is None:
        raise PersistenceError(
            f"{what} {path} was deleted or renamed while it was open; {advice}", outcome_unknown=outcome_unknown
        )
    if remembered is not None and found != remembered:
        raise PersistenceError(
            f"{what} {path} was replaced by another file while it was open; {advice}", outcome_unknown=outcome_unknown
        )
