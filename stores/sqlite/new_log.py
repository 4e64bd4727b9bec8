"""A new log that is made of something else: it appears whole under its name, or not at all.

Read `new_log` first. Imports and backups fill a file of another name, which is brought to the disk and then renamed;
what a crash leaves of it has the ending `.making` and is no log.
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Final

from refold.events.core.errors import ConfigError, PersistenceError
from refold.stores.event_store import TellProgress
from refold.stores.guarding.log_place import forget_acknowledged
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite.ownership import LogOwnership
from refold.stores.sqlite.rewrite import synchronise

_PAGES_PER_STEP: Final = 2_000
"""After so many pages of a backup it is looked whether the caller still wants it."""


@asynccontextmanager
async def new_log(log: str | os.PathLike[str]) -> AsyncGenerator[Path, None]:
    """Give the path of an empty file to fill; afterwards it is durable and has the log's name, unless an error left it.

    Raises:
        ConfigError: the path names no file, is that of a text log, or something is there.
        LogFormatError: something else than a file is there.
        LogInUse: a runtime is about to make a log of the same name.
        PersistenceError: the folder cannot be used, or another process makes the same log.
    """
    sqlite_file.require_path(log)
    sqlite_file.require_sqlite()
    path = sqlite_file.absolute(log)
    if sqlite_file.is_text_log(path):
        raise ConfigError(f"{path} would be a text log by its name; copy the file, or name one such as events.db")
    _require_nothing(path)
    sqlite_file.require_access(path, writing=True)
    unfinished = path.with_name(path.name + ".making")
    _claim(unfinished)
    try:
        yield unfinished
        await asyncio.to_thread(synchronise, unfinished)
        ownership = await LogOwnership.acquire(path, wait_s=0)
        try:
            _require_nothing(path)
            forget_acknowledged(path)
            unfinished.rename(path)
            synchronise(path.parent)
        finally:
            ownership.release()
    except OSError as error:
        raise PersistenceError(f"the log {path} cannot be made: {error.strerror}") from error
    finally:
        for suffix in ("", "-wal", "-shm", "-journal", ".new"):
            unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)


def _require_nothing(log: Path) -> None:
    if sqlite_file.look_at(log) == "file":
        raise ConfigError(f"{log} is there already, and a new log is to be made; name another file")
    for suffix in ("-wal", "-journal"):
        beside = log.with_name(log.name + suffix)
        if os.path.lexists(beside):
            raise ConfigError(f"{beside} is left of another log, and would be mixed into the new one; move it away")


def _claim(unfinished: Path) -> None:
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise PersistenceError(
            f"{unfinished} is there: another process makes the same log, or one was killed; remove it in that case"
        ) from None
    except OSError as error:
        raise PersistenceError(f"{unfinished} cannot be made: {error.strerror}") from error


class Backup:
    """One copying of a log, in the thread of a connection that reads it; `give_up` ends it from another thread."""

    def __init__(self, unfinished: Path, progress: TellProgress) -> None:
        self._unfinished = unfinished
        self._progress = progress
        self._given_up = False

    def give_up(self) -> None:
        self._given_up = True

    def copy(self, connection: sqlite3.Connection) -> None:
        """Copy the log of this moment; its owner goes on writing beside that."""
        with closing(sqlite3.connect(self._unfinished, isolation_level=None)) as copy:
            connection.execute("BEGIN")
            try:
                # A read fixes the moment; without it the copying would begin anew whenever the owner writes.
                connection.execute("SELECT incarnation FROM log").fetchone()
                connection.backup(copy, pages=_PAGES_PER_STEP, progress=self._go_on, sleep=0)
            finally:
                connection.execute("ROLLBACK")

    def _go_on(self, status: int, remaining: int, total: int) -> None:
        if self._given_up:
            raise InterruptedError("the backup was given up")
        self._progress("pages", total - remaining, total)
