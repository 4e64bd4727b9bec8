"""Who may write a log: one runtime at a time, on one machine.

The owner holds a POSIX lock on `<log>.lock`. The lock is never on the log itself: POSIX drops a process's locks
on a file when the process closes any descriptor of it, so opening and closing the log elsewhere would lose it,
and would lose SQLite's own locks with it. Within one process such locks do not conflict at all, so there is a
check of our own beside it. A third guard is in the log: the incarnation number that each append compares
(`refold.stores.sqlite.append`), in case the lock file is removed.

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
from typing import Final, NamedTuple

import msgspec

from refold.events.core.errors import ConfigError, LogInUse, PersistenceError
from refold.stores.guarding.log_place import status_of
from refold.stores.guarding.trusted_files import whose

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

POLL_S: Final = 0.1
"""Seconds between two tries for a lock that another runtime holds."""

_OWNER_BYTES_MAX = 4096

_FileIdentity = tuple[int, int]
"""Device and inode of a lock file: what the process's own locks go by."""


class _Held(NamedTuple):
    """A lock file that a process holds open and locked."""

    pid: int
    """A forked child finds its parent's entries and ignores them."""
    descriptor: int
    loop: asyncio.AbstractEventLoop
    """The event loop of the owner: once it is closed, nobody is left who could release the lock."""


# State of the process by nature: locks on files belong to processes.
_owned_here: dict[_FileIdentity, _Held] = {}

_guard = threading.Lock()


def _renew_guard() -> None:
    """In a forked child: the thread that held it in the parent does not run here."""
    global _guard
    _guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_guard)


class LogOwner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The process that owns a log for writing; None where it cannot be told."""

    pid: int | None = None
    host: str | None = None
    takes_commands: bool = True
    """Whether other processes may command it; False = it is an `EventSourcedSystem`."""


class LogOwnership:
    """The right to write one log; held from `acquire` until `release`."""

    def __init__(self, log: Path, held: _Held, identity: _FileIdentity) -> None:
        self._log = log
        self._held = held
        self._identity = identity

    @classmethod
    async def acquire(cls, log: Path, *, wait_s: float) -> "LogOwnership":
        """Return the ownership of `log`, waiting up to `wait_s` seconds for another runtime to release it.

        An owner in this process whose event loop was closed is not waited for: it can do nothing any more, and should
        it be used in another loop, its appends find a newer incarnation.
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
        # Looked up, opened, locked and entered in one piece. The system grants a process a lock that it has already. So
        # two threads that both looked before either was entered would both own the log; and the one that closes its
        # descriptor first would take the lock from the other.
        with _guard:
            _release_abandoned(log)
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
            held = _owned_here[identity] = _Held(os.getpid(), descriptor, asyncio.get_running_loop())
        return cls(log, held, identity)

    def take_no_commands(self) -> None:
        """Say that the owner performs nothing that other processes ask."""
        _write_owner(self._held.descriptor, takes_commands=False)

    @property
    def is_lost(self) -> bool:
        """Whether another lock file is in the place of the one that is held, as where that one was removed."""
        return _identity_of_lock(self._log) not in (None, self._identity)

    def release(self) -> None:
        """Let another runtime own the log; a second call changes nothing."""
        with _guard:
            # After a takeover the entry, and even the number of the descriptor, are another owner's.
            if _owned_here.get(self._identity) is self._held:
                del _owned_here[self._identity]
                os.close(self._held.descriptor)


def log_owner(log: str | os.PathLike[str]) -> LogOwner | None:
    """Return the process that owns `log` for writing at this moment, or None if none does.

    Raises:
        PersistenceError: the lock file is there and cannot be opened.
    """
    path = Path(log)
    if fcntl is None or not os.path.lexists(_lock_path(path)):
        return None
    with _guard:
        held = _held_here(_identity_of_lock(path))
        if held is not None:
            return _read_owner(held.descriptor)
        try:
            descriptor, _ = _open_lock_file(path)
        except PersistenceError:
            if os.access(_lock_path(path), os.R_OK):
                raise
            raise PersistenceError(
                f"whether a process owns the log {path.name} is not known: {_lock_path(path)} {whose(_lock_path(path))}"
            ) from None
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


def _release_abandoned(log: Path) -> None:
    """Release the lock of an owner in this process whose event loop was closed without it; `_guard` is held."""
    identity = _identity_of_lock(log)
    held = _held_here(identity)
    if identity is not None and held is not None and held.loop.is_closed():
        del _owned_here[identity]
        os.close(held.descriptor)


def _held_here(identity: _FileIdentity | None) -> _Held | None:
    held = _owned_here.get(identity) if identity is not None else None
    return held if held is not None and held.pid == os.getpid() else None


def _identity_of_lock(log: Path) -> _FileIdentity | None:
    path = _lock_path(log)
    status = status_of(path, f"the lock file {path}")
    if status is None:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise PersistenceError(f"the lock file {path} is not a regular file; remove it")
    return status.st_dev, status.st_ino


def _open_lock_file(log: Path) -> tuple[int, _FileIdentity]:
    """Return a descriptor of the lock file and its identity; `_guard` is held.

    Closing a descriptor of a file that this process has locked would drop the lock, so it is looked at first.
    """
    path = _lock_path(log)
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    identity = _identity_of_lock(log)
    if identity is None:
        flags |= os.O_CREAT
    elif _held_here(identity) is not None:
        raise _in_use(log, LogOwner(pid=os.getpid(), host=socket.gethostname()))
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise PersistenceError(f"the lock file {path} cannot be opened for writing: {error.strerror}") from error
    if identity is None and os.geteuid() == 0:
        _give_to_owner(log, descriptor)
    status = os.fstat(descriptor)
    return descriptor, (status.st_dev, status.st_ino)


def _give_to_owner(log: Path, descriptor: int) -> None:
    """Let the log's owner lock it, too, once root does not any more."""
    try:
        status = log.stat()
        os.fchown(descriptor, status.st_uid, status.st_gid)
    except OSError:  # There is no log yet, or a file system without owners.
        return


def _write_owner(descriptor: int, *, takes_commands: bool = True) -> None:
    owner = LogOwner(pid=os.getpid(), host=socket.gethostname(), takes_commands=takes_commands)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, msgspec.json.encode(owner) + b"\n", 0)


def _read_owner(descriptor: int) -> LogOwner:
    try:
        return msgspec.json.decode(os.pread(descriptor, _OWNER_BYTES_MAX, 0), type=LogOwner)
    except msgspec.DecodeError:
        # The owner has locked the file and not written its name yet.
        return LogOwner()


def _in_use(log: Path, owner: LogOwner) -> LogInUse:
    error = LogInUse(str(log), pid=owner.pid, host=owner.host)
    if (owner.pid, owner.host) == (os.getpid(), socket.gethostname()):
        error.add_note("That is this very process: close the store that it opened, or keep using it.")
    return error
