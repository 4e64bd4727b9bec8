"""The persistence backend in a folder: one file per key.

Read `refold.stores.values.backend` for the contract. A value lies unchanged in a file whose name is its key, with
every character escaped as `%xx` but lower-case letters, digits, and `_`, `-` and `.` inside; so `runs/Eva.json` is
`runs%2f%45va.json`. A name that would be too long is `=` and the SHA-256 of the key instead, and that file begins with
the key. So no two keys have one name, also where a file system ignores case, and no name leads out of the folder.

The rules it protects: a file is written beside and renamed when it is complete and synchronised, so that there never
is half a value; what is no regular file (a link, a pipe, a folder) is neither read nor followed; and files beside, that
cannot be a key's, are left alone.
"""

import errno
import hashlib
import logging
import os
import re
import stat
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

from refold.events.core.errors import ConfigError, PersistenceError
from refold.stores.append_rules import FaultPoint, no_fault
from refold.stores.sqlite.connection import SerialWorker, close_worker, settled
from refold.stores.sqlite.file import require_path
from refold.stores.sqlite.rewrite import synchronise
from refold.stores.values.backend import KEY_BYTES_MAX, PersistenceBackend, checked_key, checked_value, shown

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

THREADS: Final = 4
"""So many files are read or written at once; what is done for one key is done by one thread, in order."""

NAME_CHARACTERS_MAX: Final = 140
"""Longest name that is an escaped key: encrypting file systems leave 143 of the usual 255 bytes."""

UNFINISHED: Final = ".new-"
"""Beginning of the name of a file that is being written."""

_HASHED: Final = "="
_logger = logging.getLogger("refold.stores")
_UNSAFE = re.compile(rb"[^a-z0-9_.-]|^\.|\.$")
_READ = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class FileBackend(PersistenceBackend):
    """Keeps each value in a file of its own, mode 0600, which survives power loss once `save` has returned.

    Any number of processes may use one folder at once. Threads begin with the first call, and end with `close` or with
    the object.

    Args:
        base_dir: the folder; made, for its owner only, with the first `save`.
        timeout_s: longest wait for the disk in one `save` or `delete`.
        fault: called in the writing thread at `save.written` (the new file is complete, under another name),
            `save.renamed` (it has its name) and `save.synchronised`; for rehearsal.

    Raises:
        ConfigError: the path can name no folder, or this system has no file locks.
    """

    def __init__(
        self, base_dir: str | os.PathLike[str], *, timeout_s: float = 30.0, fault: FaultPoint = no_fault
    ) -> None:
        require_path(base_dir)
        if fcntl is None:
            raise ConfigError("this system has no POSIX file locks, which FileBackend needs")
        self.base_dir: Final = Path(os.path.abspath(base_dir))
        self._timeout_s = timeout_s
        self._folder = _Folder(self.base_dir, fault)
        self._closed = False
        self._begin_workers()

    def _begin_workers(self) -> None:
        self._pid = os.getpid()
        self._workers = [SerialWorker(f"refold-values-{number}") for number in range(THREADS)]
        self._end = weakref.finalize(self, _end_all, self._workers)

    @property
    def name(self) -> str:
        return str(self.base_dir)

    async def save(self, key: str, value: bytes) -> None:
        encoded = checked_key(key, self.name)
        checked_value(value, key, self.name)
        failed = f"the value of {shown(key)} could not be saved in {self.name}"
        await self._change(encoded, lambda: self._folder.save(encoded, value), failed)

    async def load(self, key: str) -> bytes | None:
        encoded = checked_key(key, self.name)
        failed = f"the value of {shown(key)} cannot be read from {self.name}"
        return await self._ask(encoded, lambda: self._folder.load(encoded), failed)

    async def delete(self, key: str) -> None:
        encoded = checked_key(key, self.name)
        failed = f"the value of {shown(key)} could not be deleted from {self.name}"
        await self._change(encoded, lambda: self._folder.delete(encoded), failed)

    async def exists(self, key: str) -> bool:
        encoded = checked_key(key, self.name)
        failed = f"whether {self.name} has {shown(key)} cannot be told"
        return await self._ask(encoded, lambda: self._folder.has(encoded), failed)

    async def list_keys(self, prefix: str = "") -> list[str]:
        keys = await self._ask(b"", self._folder.keys, f"the keys of {self.name} cannot be listed")
        return sorted(key for key in keys if key.startswith(prefix))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._end.detach()
        if os.getpid() == self._pid:
            for worker in self._workers:
                if worker.is_alive():
                    await close_worker(worker, timeout_s=self._timeout_s)
                else:
                    worker.end()

    async def _change(self, encoded: bytes, work: Callable[[], None], failed: str) -> None:
        future = self._worker_for(encoded).submit(lambda: _without_os_errors(work, failed))
        try:
            await settled(future, timeout_s=self._timeout_s)
        except TimeoutError:
            raise PersistenceError(
                f"{failed}: it takes longer than {self._timeout_s:g} s; load it before trying again",
                outcome_unknown=True,
            ) from None

    async def _ask(self, encoded: bytes, work: Callable[[], T], failed: str) -> T:
        return await self._worker_for(encoded).submit(lambda: _without_os_errors(work, failed))

    def _worker_for(self, encoded: bytes) -> SerialWorker:
        if self._closed:
            raise PersistenceError(f"{self.name} is closed; make another FileBackend of it")
        if os.getpid() != self._pid:  # A forked child has none of the threads.
            self._end.detach()
            self._begin_workers()
        return self._workers[zlib.crc32(encoded) % THREADS]


class _Folder:
    """What is done with the files, in a thread."""

    def __init__(self, path: Path, fault: FaultPoint) -> None:
        self._path = path
        self._fault = fault
        self._cleaned = False

    def save(self, encoded: bytes, value: bytes) -> None:
        self._make()
        self._clean()
        name = name_of(encoded)
        file, unfinished = self._unfinished()
        renamed = False
        try:
            with file:  # Its lock, which is let go with it, says that its writer lives.
                _write(file, [b"%d\n" % len(encoded), encoded, value] if name.startswith(_HASHED) else [value])
                self._fault("save.written")
                os.replace(unfinished, self._path / name)
                renamed = True
            self._fault("save.renamed")
            self._synchronised()
            self._fault("save.synchronised")
        finally:
            if not renamed:
                unfinished.unlink(missing_ok=True)

    def load(self, encoded: bytes) -> bytes | None:
        name = name_of(encoded)
        contents = _read(self._path / name)
        if contents is None or not name.startswith(_HASHED):
            return contents
        kept, value = _parted(contents)
        if kept != encoded:
            raise PersistenceError(f"its file {name} is damaged: it does not begin with the key; delete it")
        return value

    def delete(self, encoded: bytes) -> None:
        try:
            (self._path / name_of(encoded)).unlink()
        except FileNotFoundError:
            return
        self._synchronised()

    def has(self, encoded: bytes) -> bool:
        try:
            return stat.S_ISREG((self._path / name_of(encoded)).lstat().st_mode)
        except FileNotFoundError:
            return False

    def keys(self) -> list[str]:
        try:
            with os.scandir(self._path) as entries:
                names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        self._clean()
        return list(self._keys_of(names))

    def _keys_of(self, names: list[str]) -> Iterator[str]:
        for name in names:
            encoded = self._key_in(name) if name.startswith(_HASHED) else unquote_to_bytes(name)
            key = encoded.decode(errors="replace")
            # What is not the name that we give is not ours, such as what a user put there by hand.
            if key and name_of(key.encode()) == name:
                yield key

    def _key_in(self, name: str) -> bytes:
        contents = _read(self._path / name, most=2 * KEY_BYTES_MAX)
        return _parted(contents)[0] if contents is not None else b""  # Deleted since.

    def _make(self) -> None:
        """Make the folder, and those above it that are missing, so that they survive power loss."""
        missing = [folder for folder in (self._path, *self._path.parents) if not folder.exists()]
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in missing:
            synchronise(folder.parent)

    def _unfinished(self) -> tuple[FileIO, Path]:
        while True:
            descriptor, path = tempfile.mkstemp(prefix=UNFINISHED, dir=self._path)
            file = FileIO(descriptor, "wb")
            try:
                assert fcntl is not None  # Asked at the beginning.
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:
                    return file, Path(path)
            except BaseException:
                file.close()
                Path(path).unlink(missing_ok=True)
                raise
            file.close()  # Another process cleaned up in between, and took it for one whose writer had died.

    def _clean(self) -> None:
        """Remove, once in the life of a backend, what processes left that died before they renamed it."""
        if self._cleaned:
            return
        self._cleaned = True
        for left in self._path.glob(f"{UNFINISHED}*"):
            try:
                _remove_unless_locked(left)
            except OSError as error:  # Its writer lives, or has just renamed it, or it is not ours to open.
                _logger.debug("%s is left where it is: %s", left, error)

    def _synchronised(self) -> None:
        """Make names that were given or taken survive power loss."""
        try:
            synchronise(self._path)
        except OSError as error:
            raise PersistenceError(
                f"the folder could not be synchronised ({error.strerror})", outcome_unknown=True
            ) from error


def name_of(encoded: bytes) -> str:
    name = _UNSAFE.sub(lambda found: b"%%%02x" % ord(found[0]), encoded).decode()
    return name if len(name) <= NAME_CHARACTERS_MAX else _HASHED + hashlib.sha256(encoded).hexdigest()


def _remove_unless_locked(left: Path) -> None:
    descriptor = os.open(left, _READ)
    try:
        assert fcntl is not None  # Asked at the beginning.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), left.lstat()):
            left.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _parted(contents: bytes) -> tuple[bytes, bytes]:
    """Return the key and the value out of a file whose name is a hash; no key where the file is damaged."""
    length, newline, rest = contents.partition(b"\n")
    if not (newline and length.isdigit() and len(length) < 8):
        return b"", b""
    return rest[: int(length)], rest[int(length) :]


def _write(file: FileIO, parts: list[bytes]) -> None:
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[file.write(rest) :]
    os.fsync(file.fileno())


def _read(path: Path, most: int | None = None) -> bytes | None:
    try:
        with open(os.open(path, _READ), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise PersistenceError(f"{path.name} is no regular file; move it away")
            return file.read() if most is None else file.read(most)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PersistenceError(f"{path.name} is a symbolic link, which is not followed; move it away") from error
        raise


def _without_os_errors(work: Callable[[], T], failed: str) -> T:
    try:
        return work()
    except PersistenceError as error:
        raise PersistenceError(f"{failed}: {error}", outcome_unknown=error.outcome_unknown) from error
    except OSError as error:
        raise PersistenceError(f"{failed}: {error.strerror or error}") from error


def _end_all(workers: list[SerialWorker]) -> None:
    for worker in workers:
        worker.end()
