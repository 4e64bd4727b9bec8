"""Who may write a log: one runtime at a time, on one machine.

The owner holds a POSIX lock on `<log>.lock`. The lock is never on the log itself: POSIX drops a process's locks
on a file when the process closes any descriptor of it, so opening and closing the log elsewhere would lose it,
and would lose SQLite's own locks with it. Within one process such locks do not conflict at all, so there is a
check of our own beside it. A third guard is in the log: the incarnation number that each append compares
(`refold.stores.sqlite_append`), for the case that somebody removes the lock file.

The lock file stays when the log is closed. Removing it would be a race: a process that has opened it and waits
for the lock would get the lock of a file that is no longer there, while a third one creates and locks a new one.
"""

import asyncio
import errno
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Final

import msgspec

from refold.events.errors import ConfigError, LogInUse, PersistenceError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

POLL_S: Final = 0.1
"""Seconds between two tries for a lock that another runtime holds."""

_OWNER_BYTES_MAX = 4096

_FileIdentity = tuple[int, int]
"""Device and inode of a lock file: what the process's own locks go by."""

# State of the process by nature: locks on files belong to processes.
_owned_here: dict[_FileIdentity, int] = {}
"""Lock files held by this process, with its id: a forked child finds its parent's entries and ignores them."""

_guard = threading.Lock()


class LogOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The process that owns a log for writing; None where it cannot be told."""

    pid: int | None = None
    host: str | None = None


class LogOwnership:
    """The right to write one log; held from `acquire` until `release`."""

    def __init__(self, log: Path, descriptor: int, identity: _FileIdentity) -> None:
        self._log = log
        self._descriptor = descriptor
        self._identity = identity

    @classmethod
    async def acquire(cls, log: Path, *, wait_s: float) -> "LogOwnership":
        """Return the ownership of `log`, waiting up to `wait_s` seconds for another runtime to release it.

        Raises:
            LogInUse: another runtime, of this process or another, held it all the time.
            PersistenceError: the lock file cannot be made or opened.
            ConfigError: this system has no POSIX locks.
        """
        tries_left = int(wait_s / POLL_S)
        while True:
            try:
                return cls._try_acquire(log)
            except LogInUse:
                if tries_left <= 0:
                    raise
            tries_left -= 1
            await asyncio.sleep(POLL_S)

    @classmethod
    def _try_acquire(cls, log: Path) -> "LogOwnership":
        if fcntl is None:
            raise ConfigError("an SQLite log needs POSIX file locks, which this system lacks; use InMemoryStore")
        with _guard:
            descriptor, identity = _open_lock_file(log)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write_owner(descriptor)
            except OSError as error:
                owner = _read_owner(descriptor)
                os.close(descriptor)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise _in_use(log, owner) from None
                raise PersistenceError(f"the lock file of {log} cannot be locked: {error}") from error
            _owned_here[identity] = os.getpid()
        return cls(log, descriptor, identity)

    def release(self) -> None:
        """Let another runtime own the log; a second call changes nothing."""
        with _guard:
            if _owned_here.pop(self._identity, None) is not None:
                os.close(self._descriptor)


def log_owner(log: str | os.PathLike[str]) -> LogOwner | None:
    """Return the process that owns `log` for writing at this moment, or None if none does.

    Raises:
        PersistenceError: the lock file is there and cannot be opened.
    """
    path = Path(log)
    if fcntl is None or not _lock_path(path).exists():
        return None
    with _guard:
        try:
            descriptor, _ = _open_lock_file(path)
        except LogInUse as error:
            return LogOwner(pid=error.pid, host=error.host)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _read_owner(descriptor)
        else:
            return None
        finally:
            os.close(descriptor)


def _lock_path(log: Path) -> Path:
    return log.with_name(log.name + ".lock")


def _open_lock_file(log: Path) -> tuple[int, _FileIdentity]:
    """Return a descriptor of the lock file and its identity; `_guard` is held.

    Closing a descriptor of a file that this process has locked would drop the lock, so it is looked at first.
    """
    path = _lock_path(log)
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        status = path.lstat()
        if _owned_here.get((status.st_dev, status.st_ino)) == os.getpid():
            raise _in_use(log, LogOwner(pid=os.getpid(), host=socket.gethostname()))
        if not stat.S_ISREG(status.st_mode):
            raise PersistenceError(f"the lock file {path} is not a regular file; remove it")
    except FileNotFoundError:
        flags |= os.O_CREAT
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise PersistenceError(f"the lock file {path} cannot be opened for writing: {error.strerror}") from error
    status = os.fstat(descriptor)
    return descriptor, (status.st_dev, status.st_ino)


def _write_owner(descriptor: int) -> None:
    owner = LogOwner(pid=os.getpid(), host=socket.gethostname())
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, msgspec.json.encode(owner) + b"\n", 0)


def _read_owner(descriptor: int) -> LogOwner:
    try:
        return msgspec.json.decode(os.pread(descriptor, _OWNER_BYTES_MAX, 0), type=LogOwner)
    except msgspec.DecodeError:
        # The owner has locked the file and not written its name yet.
        return LogOwner()


def _in_use(log: Path, owner: LogOwner) -> LogInUse:
    return LogInUse(str(log), pid=owner.pid, host=owner.host)
