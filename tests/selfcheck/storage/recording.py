"""A recorded run of a store: every operation on its files, and between them what was asked for and acknowledged.

What goes through SQLite is seen by the shim. That the store makes, renames and removes files by itself when it makes a
new log is seen by an audit hook, which Python keeps for ever once it is there, so that there is one for each process.
"""

import os
import random
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from os.path import basename
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from refold.scenarios.world.disk_model import DiskOperation, FolderSynced, Renamed, WrittenAgain
from refold.scenarios.world.sqlite_shim import FileOperation, SQLiteShim, Watcher
from tests.selfcheck.storage.expected_log import ExpectedLog

LOG_NAME = "events.db"
"""The name of every log that is rehearsed."""

FILE_NAMES = (
    LOG_NAME,
    f"{LOG_NAME}-wal",
    f"{LOG_NAME}-journal",
    f"{LOG_NAME}.new",
    f"{LOG_NAME}.new-wal",
    f"{LOG_NAME}.new-journal",
)
"""The names that a store makes, without those that mean nothing after a restart."""


class Mark(NamedTuple):
    """The last step that had been asked for, and the last that had been acknowledged, from here on."""

    asked: int
    acknowledged: int


NOTHING_YET: Final = Mark(0, 0)

Entry: TypeAlias = DiskOperation | Mark


class Recording(NamedTuple):
    """One run, from an empty or a given folder on."""

    files: Mapping[str, bytes | bytearray]
    """What was there before."""
    entries: Sequence[Entry]
    expected: ExpectedLog
    begin: Mark
    """What had been asked for and acknowledged before."""


class Recorder:
    """Writes down what happens in a folder; also the marks of a workload."""

    def __init__(self, folder: Path, begin: Mark) -> None:
        self.entries: list[Entry] = []
        self._folder = os.path.realpath(folder)
        self._mark = begin

    def __call__(self, operation: FileOperation) -> int:
        self.entries.append(operation)
        return 0

    def asked(self, step: int) -> None:
        self._mark = self._mark._replace(asked=step)
        self.entries.append(self._mark)

    def acknowledged(self, step: int) -> None:
        self._mark = self._mark._replace(acknowledged=step)
        self.entries.append(self._mark)

    def reached(self, point: str) -> None:
        """Be the fault point of a store, to write down what it brings to the disk by itself."""
        if point == "opening.wal_synced":
            self.entries.append(WrittenAgain(f"{LOG_NAME}-wal"))
        elif point == "opening.folder_synced":
            self.entries.append(FolderSynced())

    def audited(self, event: str, arguments: tuple[object, ...]) -> None:
        """Write down what Python itself is about to do with a file of the log."""
        path = arguments[0]
        if not isinstance(path, str | Path):
            return
        folder, name = os.path.split(path)
        if name not in FILE_NAMES or folder != self._folder:
            return
        if event == "os.rename":
            new = arguments[1]
            assert isinstance(new, str | Path)
            self.entries.append(Renamed(name, basename(new)))
        elif event == "os.remove":
            self.entries.append(FileOperation("delete", name, 0))
        elif isinstance(arguments[2], int) and arguments[2] & os.O_CREAT and not os.path.lexists(path):
            self.entries.append(FileOperation("create", name, 0))


# State of the process by nature: an audit hook cannot be removed.
_listening: list[Recorder] = []
_hooked: list[bool] = []
_AUDITED = ("os.rename", "os.remove", "open")


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _listening and event in _AUDITED:
        for recorder in _listening:
            recorder.audited(event, arguments)


def _never() -> int:
    return 0


@contextmanager
def recording(
    folder: Path,
    begin: Mark = NOTHING_YET,
    *,
    seed: str,
    syncs: bool = False,
    through: Callable[[Recorder], Watcher] | None = None,
) -> Generator[Recorder]:
    """Record what a store does with the log `LOG_NAME` in a folder.

    Args:
        folder: an existing one; its path has no links.
        begin: what had been asked for and acknowledged before.
        seed: of SQLite's random numbers.
        syncs: let syncs reach the disk.
        through: returns who is told of each operation first, and tells the recorder of it if it happens.

    Raises:
        ShimUnavailable: see `SQLiteShim.of_process`.
    """
    recorder = Recorder(folder, begin)
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    watcher = through(recorder) if through is not None else recorder
    with SQLiteShim.of_process().attached(folder, watcher, chance=random.Random(seed), now_us=_never, syncs=syncs):
        _listening.append(recorder)
        try:
            yield recorder
        finally:
            _listening.remove(recorder)
