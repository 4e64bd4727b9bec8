"""The disk of a simulated process whose log is a real SQLite file: what goes wrong there, and what outlives each life.

The store is `SQLiteStore` as in production, with its real SQLite. Its files, random numbers and clock are reached
through `refold.scenarios.world.sqlite_shim`, which counts each operation that changes a file and lets it fail as
planned. `InlineWorker` takes the place of the thread of a connection: each function runs on the loop, whole, after a
delay drawn from the seed, and its outcome is told one step later, so that a crash, a cancellation or another task can
come between the two, as with a thread.

The rule: nothing of a dead life reaches the next one but what was on the disk when it died. So from then on every
operation of it fails, also what is closed late; and each life has a folder of its own with a copy of what the life
before has left, so that SQLite, which knows files by their inodes in the whole process, takes them for others.
"""

import asyncio
import os
import random
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from refold.events.core.errors import ConfigError, LogFormatError, PersistenceError
from refold.scenarios import faults
from refold.scenarios.monitors.monitor import Monitor
from refold.scenarios.plan.world import World
from refold.scenarios.world.disk_model import DiskDamage, DiskModel, FolderSynced, Renamed, SyncFailed, WrittenAgain
from refold.scenarios.world.loop import SimulatedLoop
from refold.scenarios.world.sqlite_shim import (
    CANTOPEN,
    FULL,
    IOERR,
    IOERR_DELETE,
    IOERR_FSYNC,
    IOERR_TRUNCATE,
    IOERR_WRITE,
    AttachedFolder,
    FileOperation,
    OperationKind,
    SQLiteShim,
)
from refold.stores.sqlite.connection import SQLiteConnection, settle, tell_outcome
from refold.stores.sqlite.file import require_path
from refold.stores.sqlite.store import SQLiteStore

T = TypeVar("T")

DELAY_MAX_S = 0.003
"""Longest time that an operation of a connection takes, in virtual seconds."""


class InlineWorker:
    """The `refold.stores.sqlite.connection.Worker` of one connection."""

    name = "a simulated connection"

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Callable[[], object]] = deque()
        self._busy = False

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on the loop once what was queued before has run; the future gets its result."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.put(lambda: tell_outcome(self._loop, work, partial(settle, future)))
        return future

    def put(self, work: Callable[[], object]) -> None:
        """Run `work` likewise, with no future; at once if the loop is closed."""
        if self._loop.is_closed():  # The connection is let go of after its life has died.
            work()
            return
        self._waiting.append(work)
        if not self._busy:
            self._busy = True
            self._later()

    def end(self) -> None:
        """End, for which there is nothing to do."""

    def join(self) -> None:
        """Return: there is no thread."""

    def _later(self) -> None:
        self._loop.call_later(self._chance.random() * DELAY_MAX_S, self._run)

    def _run(self) -> None:
        self._waiting.popleft()()
        if self._waiting:
            self._later()
        else:
            self._busy = False


CLOSED_S: Final = 1.0
"""So long may an opening that was given up take to close its file, in virtual seconds."""

LOG: Final = "events.db"

MEMORY_FOLDER: Final = "/dev/shm"  # noqa: S108 - a folder with a name of its own is made there
"""Files in it cost no disk; where there is none, they lie with other temporary files."""

CODES: Final[dict[str, dict[OperationKind, int]]] = {
    "EIO": {
        "open": CANTOPEN,
        "write": IOERR_WRITE,
        "truncate": IOERR_TRUNCATE,
        "sync": IOERR_FSYNC,
        "delete": IOERR_DELETE,
    },
    "ENOSPC": {"open": CANTOPEN, "write": FULL, "sync": IOERR_FSYNC},
}
"""What SQLite says of each operation when the system fails it with an error."""


DAMAGES: Final[dict[faults.Damage, tuple[DiskDamage, ...]]] = {
    "dropped": ("none",),
    "kept": ("all",),
    "subset": ("subset",),
    "prefix": ("prefix",),
    "torn": ("torn_head", "torn_tail"),
    "garbage": ("garbage",),
    "zeros": ("zeros",),
}
"""What the damage of a fault may be in the model of disks."""


class SimulatedDisk:
    """The files of one simulation; `remove` them when it is over."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shim = SQLiteShim.of_process()
        folder = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
        self._root = Path(tempfile.mkdtemp(prefix="refold-", dir=folder))
        self._lives = 0
        self._store: SQLiteStore | None = None
        self._former: list[SQLiteStore] = []
        """Those that another process had open when it lost the log, oldest first."""
        self._left: dict[str, bytes] = {}
        """What the life before has left, by name."""
        self._model = DiskModel()
        self._inodes: dict[str, int] = {}
        """Which files the model knows, by name: a file may also be made, renamed or removed by others than SQLite."""
        self._power = world.chance("power")
        self._faults_happen = True
        self.between_lives: Callable[[Path], object] = lambda log: None
        """Told of the log as a life has left it, before the next one of the process opens it."""
        self._cut: faults.PowerCut | None = None
        self._attaching: AbstractContextManager[AttachedFolder] | None = None
        self._attached: AttachedFolder | None = None

    async def open(self, *, read_only: bool = False) -> SQLiteStore:
        """Open the log in the life that has begun."""
        self._store = await SQLiteStore.open(
            self._folder() / LOG, read_only=read_only, fault=self._reached, connect=self._connect, name=LOG
        )
        return self._store

    async def starts(self, monitor: Monitor) -> bool:
        try:
            self._world.disk = await self.open()
            await monitor.opened()
        except LogFormatError as error:
            monitor.note("DURABLE", "", f"the log cannot be opened any more: {error}")
            return False
        except PersistenceError:  # As a process that cannot start, and is started again.
            await self.close(monitor)
            return False
        return True

    async def taken_over(self, monitor: Monitor) -> bool:
        """Open the log in another process that finds no lock file, beside the one that has it; return as `starts`."""
        if self._store is not None:
            self._former.append(self._store)
            self._store = None
        (self._folder() / f"{LOG}.lock").unlink(missing_ok=True)
        return await self.starts(monitor)

    async def close(self, monitor: Monitor) -> None:
        """Close the log in order, if this life has opened it, which leaves no file open."""
        for store in (self._store, *reversed(self._former)):
            if store is not None:
                await store.close()
        await asyncio.sleep(CLOSED_S)
        assert self._attached is not None
        if self._attached.open_files and not self._world.dying:
            monitor.note("INV7", "", f"a closed store leaves {self._attached.open_files} files open")

    def look(self, looking: Coroutine[Any, Any, T]) -> T:
        loop = SimulatedLoop(time_s=self._world.now_s())
        asyncio.set_event_loop(loop)
        self.begin_life(faults_happen=False)
        try:
            return loop.run_until_complete(looking)
        finally:
            loop.run_until_complete(self.tear_down())
            asyncio.set_event_loop(None)
            loop.close()

    def begin_life(self, *, faults_happen: bool = True) -> None:
        """Lay what there is of the files into a folder for the next life."""
        self._lives += 1
        self._faults_happen = faults_happen
        folder = self._folder()
        folder.mkdir()
        for name, content in self._left.items():
            (folder / name).write_bytes(content)
        if self._left and faults_happen:
            self.between_lives(folder / LOG)
        self._inodes = {name: _inode(folder / name) for name in self._left if name in self._inodes}
        self._attaching = self._shim.attached(
            folder,
            self._watch,
            chance=self._world.chance("sqlite"),
            now_us=self._world.clock.now_us,
            sleep=_no_time,
        )
        self._attached = self._attaching.__enter__()

    def end_life(self) -> None:
        assert self._attached is not None
        self._attached.power_off()
        for path in sorted(self._folder().iterdir()):
            if _outlives_process(path.name):
                self._look_at(path)
        cut, self._cut = self._cut, None
        if cut is not None:
            image = self._model.image(self._power.choice(DAMAGES[cut.damage]), self._power)
            self._left = {name: bytes(content) for name, content in image.files.items()}
            self._model, self._inodes = DiskModel(self._left), dict.fromkeys(self._left, 0)
        else:
            self._model.restarted()
            self._left = {
                path.name: path.read_bytes()
                for path in sorted(self._folder().iterdir())
                if _outlives_process(path.name)
            }

    async def tear_down(self) -> None:
        stores = [store for store in (self._store, *reversed(self._former)) if store is not None]
        self._store, self._former = None, []
        for store in stores:
            try:
                await store.close()
            except PersistenceError:  # Its disk is gone.
                assert self._attached is not None
                assert self._attached.is_off
        attaching, self._attaching = self._attaching, None
        if attaching is not None:
            attaching.__exit__(None, None, None)
        shutil.rmtree(self._folder())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the log as the last life has left it, with its WAL if it has one."""
        require_path(path)
        if LOG not in self._left:
            raise PersistenceError("the simulation has left no log")
        try:
            for name in (LOG, f"{LOG}-wal"):
                if name in self._left:
                    place = os.fspath(path) + name.removeprefix(LOG)
                    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                        file.write(self._left[name])
        except FileExistsError as error:
            raise ConfigError(f"{error.filename} is there already; choose another name") from None
        except OSError as error:
            raise PersistenceError(f"{os.fspath(path)} cannot be made: {error.strerror}") from error

    def remove(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def _folder(self) -> Path:
        return self._root / f"life {self._lives}"

    async def _connect(self, uri: str) -> SQLiteConnection:
        return await SQLiteConnection.open(uri, InlineWorker(self._world.chance("connection")))

    def _reached(self, point: str) -> None:
        if self._attached is None or self._attached.is_off:
            return
        if point == "opening.wal_synced":
            self._model.apply(WrittenAgain(f"{LOG}-wal"))
        elif point == "opening.folder_synced":
            self._look_at(self._folder() / LOG)
            self._model.apply(FolderSynced())

    def _watch(self, operation: FileOperation) -> int:
        if operation.kind == "close":
            return 0
        if operation.kind == "create":
            self._model.apply(operation)
            self._inodes[os.path.basename(operation.path)] = _inode(operation.path)
            return 0
        code = 0
        lasting = [
            fault
            for fault in (self._world.plan.lasting("disk") if self._faults_happen else ())
            if operation.kind == "sync" or not (isinstance(fault, faults.DiskFails) and fault.syncs_only)
        ]
        for fault in lasting:
            self._world.plan.note(fault)
        for fault in (*self._world.plan.count("disk"), *lasting) if self._faults_happen else ():
            match fault:
                case faults.PowerCut():
                    self._cut = fault
                case faults.DiskError(kind=kind) | faults.DiskFails(kind=kind):
                    code = CODES[kind].get(operation.kind, 0)
                case _:
                    raise AssertionError(f"{fault} is no fault of a disk")
        if self._cut is not None:
            return self._cut_power(operation)
        if not code:
            if operation.kind == "open":
                self._look_at(operation.path)
            elif operation.kind == "delete":
                self._inodes.pop(os.path.basename(operation.path), None)
            self._model.apply(operation)
        elif operation.kind == "sync":
            self._model.apply(SyncFailed(operation.handle))
        return code

    def _cut_power(self, operation: FileOperation) -> int:
        """Let the power go in the middle of an operation: what it was to write counts as written and not synced."""
        if operation.kind in ("write", "truncate"):
            self._model.apply(operation)
        assert self._attached is not None
        self._attached.power_off()
        self._world.die()
        return IOERR

    def _look_at(self, path: str | Path) -> None:
        """See whether others than SQLite have made, renamed or removed a file."""
        name, inode = os.path.basename(path), _inode(path)
        known = self._inodes.get(name, 0)
        if known == inode:
            return
        if known:
            self._model.apply(FileOperation("delete", name, 0))
            del self._inodes[name]
        if not inode:
            return
        before = next((other for other, its in self._inodes.items() if its == inode), None)
        if before is not None:
            del self._inodes[before]
            self._model.apply(Renamed(before, name))
        else:
            self._model.apply(FileOperation("create", name, 0))
        self._inodes[name] = inode


def _outlives_process(name: str) -> bool:
    return not name.endswith(("-shm", ".lock"))


def _inode(path: str | Path) -> int:
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return 0


def _no_time(microseconds: int) -> None:
    """Do not wait: no other process of a simulation could release a lock meanwhile."""
