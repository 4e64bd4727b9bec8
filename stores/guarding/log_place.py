"""Whether the log and its WAL are the files that their owner opened, and hold what was written into them.

A file can be deleted, renamed, replaced or cut while it is open. The open file goes on without its name, or with a
hole, SQLite says nothing, and what is written after that is lost with the process. So `LogPlace` keeps which files the
log and its WAL are, and how far they reach: an append is acknowledged only while the names lead to the files that it
was written to, and these still hold what they held. It also keeps how far was acknowledged. Read `wal` and
`acknowledged`.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from refold.events.core.errors import PersistenceError
from refold.stores.guarding.acknowledged import Acknowledged, AcknowledgedFile, forget_acknowledged
from refold.stores.guarding.wal import WalCut, WalWatch

_Identity = tuple[int, int]
"""Device and inode of a file; none is used again while the file is open."""

_PUT_LOG_BACK: Final = "put it back, with the WAL beside it, and write again, or close this store and open another log"

_WRITE_AGAIN: Final = "leave the log in its place and write again: what the WAL held is copied into the log first"

_logger = logging.getLogger("refold.stores")


class LogPlace:
    """Remembers which files the log and its WAL were at the opening, and how far they reach."""

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
        """Keep which file the log is, unless it is known from an opening before; call it before SQLite opens the file.

        Raises:
            PersistenceError: it is missing, or another file than at the first opening, or was cut.
        """
        self.require_log()
        self.require_uncut()
        if self._log_identity is None:
            self._log_identity = _identity(self._log)

    def remember_wal(self) -> None:
        """Keep which file the WAL is from now on, and where it ends; call it once SQLite has written to it.

        Raises:
            PersistenceError: one of the files is missing, or the log is another one than before SQLite opened it.
        """
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
        """Return if the log is the file that it was at the first opening; also before that, if it is there.

        Raises:
            PersistenceError: it is missing or another file.
        """
        _require(self._log, self._log_identity, "the log", _PUT_LOG_BACK)

    def require_uncut(self) -> None:
        """Return unless it was seen that a file was cut.

        Raises:
            PersistenceError: it was.
        """
        if self._cut:
            raise self._was_cut(self._cut)

    @property
    def is_cut(self) -> bool:
        """Whether it was seen that a file was cut."""
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

        Raises:
            PersistenceError: it was cut; nothing was written.
        """
        self.require_uncut()
        if self._watch is not None and self._watch.is_short() and (self._watch.size or frames()):
            raise self._was_cut(f"{self._wal}: it was cut")

    def require_both(self, log_bytes: Callable[[], int]) -> None:
        """Return if both are the files that an append has just been written to, and hold what they held.

        Costs two looks at the file system, and some at the WAL.

        Args:
            log_bytes: what the log's length must be, once the WAL is copied into it; asked for where it is shorter now.

        Raises:
            PersistenceError: one is missing, another file, or was cut; `outcome_unknown` is True.
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
        """Let go of the files.

        Args:
            all_in_log: whether nothing is in the WAL alone; then how far was acknowledged needs no noting.
        """
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


def _status(path: str, *, outcome_unknown: bool = False) -> os.stat_result | None:
    """Return what is at the path, links not followed; None if there is nothing."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PersistenceError(
            f"{path} cannot be looked at: {error.strerror}", outcome_unknown=outcome_unknown
        ) from error


def _identity(path: str) -> _Identity | None:
    status = _status(path)
    return None if status is None else (status.st_dev, status.st_ino)


def _require(path: str, remembered: _Identity | None, what: str, advice: str, *, outcome_unknown: bool = False) -> int:
    """Return the length of the file."""
    status = _status(path, outcome_unknown=outcome_unknown)
    if status is None:
        raise PersistenceError(
            f"{what} {path} was deleted or renamed while it was open; {advice}", outcome_unknown=outcome_unknown
        )
    if remembered is not None and (status.st_dev, status.st_ino) != remembered:
        raise PersistenceError(
            f"{what} {path} was replaced by another file while it was open; {advice}", outcome_unknown=outcome_unknown
        )
    return status.st_size
