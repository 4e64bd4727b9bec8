"""A shim between SQLite and its files: it sees every write, truncation, sync, opening and deletion, and can prevent it.

    shim = SQLiteShim.of_process()
    with shim.attached(folder, watcher) as disk:
        async with await SQLiteStore.open(folder / "events.db") as store:
            ...                       # watcher(operation) is called before each one; 0 lets it go on
            disk.power_off()          # from here on every operation fails

SQLite reaches files through a table of functions, its VFS (https://www.sqlite.org/vfs.html). The shim is a copy of the
table that the very library behind Python's `sqlite3` has for Unix, with some functions replaced by ours, which ask the
watcher and then call the original. Locks, shared memory and so the write-ahead log are the real ones. While anything is
attached, the shim is SQLite's default VFS in this process, so that a store needs no change to be rehearsed; files in
other folders are not touched.

SQLite's random numbers and its clock can be given too (`attached(..., chance=..., now_us=...)`); then what it does and
what it writes are the same in each process, byte for byte.

The rule it protects: what ctypes made is never freed, since a connection may call it at any time. So there is one shim
for each process, registered once and kept for ever.
"""

import ctypes
import importlib
import os
import random
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from refold.events.core.errors import ConfigError

IOERR: Final = 10
FULL: Final = 13
CANTOPEN: Final = 14
IOERR_READ: Final = IOERR | 1 << 8
IOERR_WRITE: Final = IOERR | 3 << 8
IOERR_FSYNC: Final = IOERR | 4 << 8
IOERR_TRUNCATE: Final = IOERR | 6 << 8
IOERR_DELETE: Final = IOERR | 10 << 8
"""Result codes of SQLite that a watcher may give (https://www.sqlite.org/rescode.html); `FULL` is a full disk."""

OPEN_CREATE: Final = 0x4
OPEN_MAIN_DATABASE: Final = 0x100
OPEN_MAIN_JOURNAL: Final = 0x800
OPEN_WAL: Final = 0x80000
"""Flags of an opening (https://www.sqlite.org/c3ref/c_open_autoproxy.html)."""

JULIAN_EPOCH_MS: Final = 210_866_760_000_000
"""The Unix epoch in the milliseconds that SQLite counts."""

OperationKind: TypeAlias = Literal["open", "create", "read", "write", "truncate", "sync", "delete", "close"]
"""What is done. `create` follows the `open` that made a file; it and `close` cannot be prevented."""


class ShimUnavailable(ConfigError):
    """The SQLite of this Python cannot be reached from outside, so that its files cannot be rehearsed."""


class FileOperation(NamedTuple):
    """What SQLite is about to do with a file."""

    kind: OperationKind
    path: str
    handle: int
    """Number of the opening that it goes through, from 1 for each attachment; 0 for a deletion."""
    offset: int = 0
    """Where a read or write begins; the new size for a truncation."""
    content: bytes = b""
    """What is to be written."""
    flags: int = 0
    """Of an opening or a sync, as SQLite gives them; for a deletion 1 if the folder is synced after it."""


Watcher: TypeAlias = Callable[[FileOperation], int]
"""Told of each operation before it happens, in the thread that does it: 0 lets it go on, a result code fails it."""


class AttachedFolder:
    """A folder whose SQLite files are watched, from `SQLiteShim.attached`."""

    def __init__(self, watcher: Watcher, *, reads: bool, syncs: bool) -> None:
        self._watcher = watcher
        self.reads = reads
        self.syncs = syncs
        self.is_off = False
        """Whether the power is off."""
        self.open_files = 0
        """How many openings are not closed yet. After a power cut, none may be left when the files are used anew."""
        self.handles = 0
        self.failure: BaseException | None = None
        """What the watcher raised first."""

    def power_off(self) -> None:
        """Fail everything from now on, also what is closed late: nothing reaches the files any more."""
        self.is_off = True

    def told(self, operation: FileOperation) -> int:
        """Return the result code for an operation; no exception may reach SQLite."""
        if self.is_off:
            return IOERR
        try:
            return self._watcher(operation)
        except BaseException as error:  # noqa: BLE001 - raised again when the folder is detached
            self.failure = self.failure or error
            self.power_off()
            return IOERR


_FUNCTIONS_OF_VFS: Final = (
    "xOpen",
    "xDelete",
    "xAccess",
    "xFullPathname",
    "xDlOpen",
    "xDlError",
    "xDlSym",
    "xDlClose",
    "xRandomness",
    "xSleep",
    "xCurrentTime",
    "xGetLastError",
    "xCurrentTimeInt64",
    "xSetSystemCall",
    "xGetSystemCall",
    "xNextSystemCall",
)

_FUNCTIONS_OF_FILE: Final = (
    "xClose",
    "xRead",
    "xWrite",
    "xTruncate",
    "xSync",
    "xFileSize",
    "xLock",
    "xUnlock",
    "xCheckReservedLock",
    "xFileControl",
    "xSectorSize",
    "xDeviceCharacteristics",
    "xShmMap",
    "xShmLock",
    "xShmBarrier",
    "xShmUnmap",
    "xFetch",
    "xUnfetch",
)


class _VFS(ctypes.Structure):
    _fields_: ClassVar = [
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        *((name, c_void_p) for name in _FUNCTIONS_OF_VFS),
    ]


class _Methods(ctypes.Structure):
    """The functions of an open file, `sqlite3_io_methods`."""

    _fields_: ClassVar = [
        ("iVersion", c_int),
        *((name, c_void_p) for name in _FUNCTIONS_OF_FILE),
    ]


class _File(ctypes.Structure):
    _fields_: ClassVar = [("pMethods", POINTER(_Methods))]


_Open = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_Delete = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_Randomness = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)
_Sleep = CFUNCTYPE(c_int, c_void_p, c_int)
_Now = CFUNCTYPE(c_int, c_void_p, POINTER(c_int64))
_Close = CFUNCTYPE(c_int, c_void_p)
_ReadOrWrite = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Truncate = CFUNCTYPE(c_int, c_void_p, c_int64)
_WithFlags = CFUNCTYPE(c_int, c_void_p, c_int)

_METHODS_VERSION: Final = 3
"""Version of `sqlite3_io_methods` with all the fields above (SQLite 3.7.17 and later)."""


class _OpenFile(NamedTuple):
    folder: AttachedFolder
    path: str
    handle: int


class SQLiteShim:
    """The shim of this process; `of_process` gives it."""

    NAME: ClassVar = b"refold-rehearsal"
    _of_process: "ClassVar[SQLiteShim | None]" = None
    _guard: ClassVar = threading.Lock()

    def __init__(self) -> None:
        """Register the shim, once in a process; use `of_process`."""
        self._library = library = library_of("_sqlite3")
        base = library.sqlite3_vfs_find(b"unix")
        if not base:
            raise ShimUnavailable("this SQLite has no VFS named 'unix'; rehearse its files on Linux or macOS")
        self._base = base
        self._kept: list[object] = []
        self._folders: dict[str, AttachedFolder] = {}
        self._files: dict[int, _OpenFile] = {}
        self._methods: dict[tuple[int, bool], _Methods] = {}
        self._chance: random.Random | None = None
        self._now_us: Callable[[], int] | None = None
        self._sleep: Callable[[int], object] | None = None
        self._vfs = _VFS()
        ctypes.memmove(ctypes.byref(self._vfs), base, ctypes.sizeof(_VFS))
        self._vfs.zName, self._vfs.pNext = self.NAME, None
        self._replace_functions(self._vfs, base)
        if library.sqlite3_vfs_register(ctypes.byref(self._vfs), 0):
            raise ShimUnavailable("this SQLite does not take a VFS of ours")

    @classmethod
    def of_process(cls) -> "SQLiteShim":
        """Return the one shim of this process.

        Raises:
            ShimUnavailable: `sqlite3` is built into this Python without its functions being reachable, or it is another
                system than Unix; the message says which.
        """
        with cls._guard:
            if cls._of_process is None:
                cls._of_process = cls()
            return cls._of_process

    @contextmanager
    def attached(
        self,
        folder: str | os.PathLike[str],
        watcher: Watcher,
        *,
        reads: bool = False,
        syncs: bool = False,
        chance: random.Random | None = None,
        now_us: Callable[[], int] | None = None,
        sleep: Callable[[int], object] | None = None,
    ) -> Generator[AttachedFolder]:
        """Watch the SQLite files in a folder that are opened from now on; one at a time gives chance, clock and sleep.

        Files that stay open afterwards go on being watched. Raises what the watcher raised.

        Args:
            folder: where the files are, or will be made; not folders within it.
            watcher: told of each operation before it happens.
            reads: tell it of reads, too.
            syncs: let syncs reach the disk; otherwise they succeed at once, which is right wherever what is on the disk
                after a power cut is modelled.
            chance: where SQLite gets its random numbers from.
            now_us: SQLite's clock, in microseconds since the epoch, UTC.
            sleep: called with microseconds instead of sleeping.

        Raises:
            ConfigError: the folder is attached already.
        """
        place = os.path.realpath(folder)
        with self._guard:
            if place in self._folders:
                raise ConfigError(f"the folder {place} is being watched already")
            attached = self._folders[place] = AttachedFolder(watcher, reads=reads, syncs=syncs)
            self._make_default(True)
        self._chance, self._now_us, self._sleep = chance, now_us, sleep
        if chance is not None:
            self._forget_randomness()
        try:
            yield attached
        except BaseException as error:
            if attached.failure is not None and attached.failure is not error:
                error.add_note(f"Before that, who watches the folder raised {attached.failure!r}.")
            raise
        finally:
            self._chance = self._now_us = self._sleep = None
            if chance is not None:
                self._forget_randomness()
            with self._guard:
                del self._folders[place]
                self._make_default(bool(self._folders))
        if attached.failure is not None:
            raise attached.failure

    def _make_default(self, ours: bool) -> None:
        vfs = ctypes.byref(self._vfs) if ours else self._base
        code = self._library.sqlite3_vfs_register(vfs, 1)
        assert code == 0, code

    def _forget_randomness(self) -> None:
        """Have SQLite seed its generator anew when it next needs a number."""
        self._library.sqlite3_randomness(0, None)

    def _replace_functions(self, vfs: _VFS, base: Any) -> None:
        original_open, original_delete = _Open(base.contents.xOpen), _Delete(base.contents.xDelete)
        original_randomness, original_sleep = _Randomness(base.contents.xRandomness), _Sleep(base.contents.xSleep)
        original_now = _Now(base.contents.xCurrentTimeInt64)
        base_address = ctypes.cast(base, c_void_p).value

        def x_open(_: int, name: int | None, file: int, flags: int, flags_out: int | None) -> int:
            path = os.fsdecode(ctypes.string_at(name)) if name else ""
            folder = self._folders.get(os.path.dirname(path))
            if folder is None:
                return int(original_open(base_address, name, file, flags, flags_out))
            folder.handles += 1
            handle = folder.handles
            code = folder.told(FileOperation("open", path, handle, flags=flags))
            if code:
                ctypes.memset(file, 0, ctypes.sizeof(_File))  # No methods: SQLite must not close what is not open.
                return code
            existed = os.path.exists(path)
            code = int(original_open(base_address, name, file, flags, flags_out))
            if code == 0:
                opened = ctypes.cast(file, POINTER(_File)).contents
                opened.pMethods = ctypes.pointer(self._methods_for(opened.pMethods.contents, folder.reads))
                self._files[file] = _OpenFile(folder, path, handle)
                folder.open_files += 1
                if not existed:
                    folder.told(FileOperation("create", path, handle, flags=flags))
            return code

        def x_delete(_: int, name: int, sync_folder: int) -> int:
            path = os.fsdecode(ctypes.string_at(name))
            folder = self._folders.get(os.path.dirname(path))
            code = folder.told(FileOperation("delete", path, 0, flags=sync_folder)) if folder is not None else 0
            return code or int(original_delete(base_address, name, sync_folder))

        def x_randomness(_: int, count: int, out: int) -> int:
            if self._chance is None:
                return int(original_randomness(base_address, count, out))
            ctypes.memmove(out, self._chance.randbytes(count), count)
            return count

        def x_sleep(_: int, microseconds: int) -> int:
            if self._sleep is None:
                return int(original_sleep(base_address, microseconds))
            self._sleep(microseconds)
            return microseconds

        def x_now(_: int, out: Any) -> int:
            if self._now_us is None:
                return int(original_now(base_address, out))
            out[0] = JULIAN_EPOCH_MS + self._now_us() // 1000
            return 0

        vfs.xOpen = self._keep(_Open, x_open)
        vfs.xDelete = self._keep(_Delete, x_delete)
        vfs.xRandomness = self._keep(_Randomness, x_randomness)
        vfs.xSleep = self._keep(_Sleep, x_sleep)
        vfs.xCurrentTimeInt64 = self._keep(_Now, x_now)

    def _methods_for(self, original: _Methods, reads: bool) -> _Methods:
        """Return our functions for files that have the original ones; there are two or three kinds in a process."""
        key = ctypes.addressof(original), reads
        if key not in self._methods:
            self._methods[key] = self._make_methods(original, reads)
        return self._methods[key]

    def _make_methods(self, original: _Methods, reads: bool) -> _Methods:
        if original.iVersion < _METHODS_VERSION:
            raise ShimUnavailable(f"files of this SQLite have functions of version {original.iVersion}, not 3")
        methods = _Methods()
        ctypes.memmove(ctypes.byref(methods), ctypes.byref(original), ctypes.sizeof(_Methods))
        methods.iVersion = _METHODS_VERSION
        files = self._files
        write, truncate, sync = (
            _ReadOrWrite(original.xWrite),
            _Truncate(original.xTruncate),
            _WithFlags(original.xSync),
        )
        read, close, unmap = _ReadOrWrite(original.xRead), _Close(original.xClose), _WithFlags(original.xShmUnmap)

        def x_write(file: int, source: int, size: int, offset: int) -> int:
            folder, path, handle = files[file]
            code = folder.told(FileOperation("write", path, handle, offset, ctypes.string_at(source, size)))
            return code or int(write(file, source, size, offset))

        def x_truncate(file: int, size: int) -> int:
            folder, path, handle = files[file]
            return folder.told(FileOperation("truncate", path, handle, size)) or int(truncate(file, size))

        def x_sync(file: int, flags: int) -> int:
            folder, path, handle = files[file]
            code = folder.told(FileOperation("sync", path, handle, flags=flags))
            return code or (int(sync(file, flags)) if folder.syncs else 0)

        def x_close(file: int) -> int:
            folder, path, handle = files.pop(file)
            folder.open_files -= 1
            folder.told(FileOperation("close", path, handle))
            return int(close(file))

        def x_unmap(file: int, delete: int) -> int:
            # Without power the shared memory stays, which the next user of the files may have by then.
            return int(unmap(file, 0 if files[file].folder.is_off else delete))

        def x_read(file: int, target: int, size: int, offset: int) -> int:
            folder, path, handle = files[file]
            return folder.told(FileOperation("read", path, handle, offset)) or int(read(file, target, size, offset))

        methods.xWrite, methods.xTruncate = self._keep(_ReadOrWrite, x_write), self._keep(_Truncate, x_truncate)
        methods.xSync, methods.xClose = self._keep(_WithFlags, x_sync), self._keep(_Close, x_close)
        methods.xShmUnmap = self._keep(_WithFlags, x_unmap)
        if reads:
            methods.xRead = self._keep(_ReadOrWrite, x_read)
        return methods

    def _keep(self, kind: Any, function: Callable[..., int]) -> int | None:
        """Return the address of a function that C can call, and keep it for ever."""
        made = kind(function)
        self._kept.append(made)
        return ctypes.cast(made, c_void_p).value


def library_of(module: str) -> Any:
    """Return the SQLite behind an extension module of Python, found through the module's own file."""
    file = getattr(importlib.import_module(module), "__file__", None)
    # A symbol is looked for in the module and then in what it is linked with, not in other libraries of the process.
    library = ctypes.CDLL(file)
    try:
        find, register, randomness = (
            library.sqlite3_vfs_find,
            library.sqlite3_vfs_register,
            library.sqlite3_randomness,
        )
        library.sqlite3_libversion.restype = c_char_p
    except AttributeError as error:
        where = file or "the interpreter"
        raise ShimUnavailable(
            f"SQLite is built into {where}, which keeps its functions to itself ({error}); rehearse files with a "
            "Python whose sqlite3 module uses a shared libsqlite3, as those of Linux distributions and pyenv do"
        ) from error
    used = importlib.import_module("sqlite3").sqlite_version
    reached = library.sqlite3_libversion().decode()
    if reached != used:
        raise ShimUnavailable(f"Python uses SQLite {used}, and only SQLite {reached} can be reached")
    find.restype, find.argtypes = POINTER(_VFS), [c_char_p]
    register.argtypes = [c_void_p, c_int]
    randomness.argtypes, randomness.restype = [c_int, c_void_p], None
    return library
