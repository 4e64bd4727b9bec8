"""A log's file is made as small as what is in it, by SQLite's VACUUM.

What is deleted from a log leaves room in its file, which later events fill; nothing of what stood there can be read.
This gives the room back to the disk. SQLite writes all of the log into a temporary file and from there into the WAL, in
one transaction, so that the log is the old one or the new one, however the process ends.
"""

import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from refold.events.core.errors import PersistenceError
from refold.stores.event_store import TellProgress, untold
from refold.stores.sqlite.file import absolute, resolved
from refold.stores.sqlite.store import SQLiteStore

MARGIN: Final = 1.1
"""So many times the bytes of a log must be free for each copy of it."""

TIMEOUT_S: Final = 24 * 3600.0

_TEMPORARY: Final = ("/var/tmp", "/usr/tmp", "/tmp")  # noqa: S108 - where SQLite itself looks


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a log's file."""

    log: str
    bytes_before: int
    bytes_after: int
    wiped: bool
    """Whether the WAL is empty; it is not, and the file is as large as before, while another process reads the log."""


async def compact(
    log: str | os.PathLike[str],
    *,
    wait_for_log_s: float = 0.0,
    allow_shared_folder: bool = False,
    progress: TellProgress = untold,
) -> Compaction:
    """Make a log's file as small as what is in it; no runtime may own the log.

    Args:
        wait_for_log_s: how long to wait for a runtime to release the log.
        allow_shared_folder: as for `SQLiteStore.open`.
        progress: called when the file begins to be written anew; SQLite does not say how far it is.

    Raises:
        LogInUse: a runtime owns the log.
        PersistenceError: the disk has no room for two copies of the log, or the log cannot be written; it is as it was.
    """
    path = absolute(log)
    async with await SQLiteStore.open(
        log,
        wait_for_log_s=wait_for_log_s,
        append_timeout_s=TIMEOUT_S,
        allow_shared_folder=allow_shared_folder,
    ) as store:
        await store.empty_wal()
        before = path.stat().st_size
        require_room(path, before)
        progress(f"{before:,} bytes are written anew", 0, None)
        await store.vacuum()
        wiped = await store.empty_wal()
    return Compaction(log=str(resolved(path)), bytes_before=before, bytes_after=path.stat().st_size, wiped=wiped)


def require_room(log: Path, size: int) -> None:
    """Raise PersistenceError unless there is room for a copy of a log beside it, and for one where SQLite puts it."""
    wanted: dict[int, tuple[Path, int]] = {}
    for folder in (log.parent, _temporary_folder()):
        device = folder.stat().st_dev
        first, copies = wanted.get(device, (folder, 0))
        wanted[device] = (first, copies + 1)
    for folder, copies in wanted.values():
        needed, free = int(copies * size * MARGIN), shutil.disk_usage(folder).free
        if free < needed:
            raise PersistenceError(
                f"the log {log} cannot be made smaller: that takes {needed:,} bytes in {folder} for a while, and "
                f"{free:,} are free; make room there, or export the log and import it on another disk"
            )


def _temporary_folder() -> Path:
    """Look where SQLite does."""
    named = (os.environ.get("SQLITE_TMPDIR"), os.environ.get("TMPDIR"), *_TEMPORARY)
    for name in filter(None, named):
        if os.path.isdir(name) and os.access(name, os.W_OK | os.X_OK):
            return Path(name)
    return Path.cwd()
