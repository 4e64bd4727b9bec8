"""The file beside a log through which other processes command the runtime that owns it: its rows, and nothing else.

`<log>.inbox` is an SQLite database of its own, since nobody but the owner writes the log. What the commands are is for
`refold.remote.protocol` to know; here a command is bytes. The rules it protects: a row that was added is performed once
or is still there; one key in a session is one command for ever; a file that is not ours, or that another user could
write into, is refused and left as it was.

The journal is a rollback journal and not a WAL, so that there is one file to look at and to secure, and any number of
processes may write. Each transaction opens the file, works in a thread of its own, and closes it: an idle inbox costs
nothing. What many callers of one event loop write at once is written in one transaction.
"""

import asyncio
import hashlib
import math
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from refold.events.core.errors import CommandRejected, LogFormatError, PersistenceError
from refold.stores.guarding.log_place import status_of
from refold.stores.guarding.trusted_files import INBOX_SUFFIX, require_inbox_trusted
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite.connection import SQLiteConnection, persistence_error, primary_code

T = TypeVar("T")

INBOX_APPLICATION_ID: Final = 0x52464C49
"""`RFLI`: marks an SQLite file as an inbox."""

INBOX_FORMAT_VERSION: Final = 1
"""The file's `user_version`."""

COMMAND_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest command that an inbox takes."""

KEEP_US: Final = 7 * 24 * 3600 * 1_000_000
"""Microseconds that a performed row is kept, for those who ask again with its key."""

KEEP_ROWS: Final = 1_000
"""Most performed rows that are kept; the oldest go first."""

EXAMINE_TRIES: Final = 20
"""How often a file is looked at that seems to be damaged."""

GROUP_MAX: Final = 500
"""Most things that are written in one transaction."""

BUSY_S: Final = 60.0
"""For so long a transaction asks for its turn: on a slow disk one waits for many commits of other processes."""

LOOK_AGAIN_S: Final = 0.016
"""After so long it is asked again at first, and twice as often with every second of waiting. SQLite keeps no order, and
would ask ever more seldom: who goes on writing leaves the file for a millisecond, which who asks seldom misses."""

LOOK_AGAIN_MIN_S: Final = 0.004
"""Least pause: to ask costs processor time, and a process that has the file may have been stopped."""

CANCELLED_S: Final = 5.0
"""For so long a cancelled caller waits for its turn to note what was done, which else is found out again."""

_TABLE: Final = """\
CREATE TABLE commands (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL CHECK (length(digest) = 32),
    command BLOB,
    at INTEGER NOT NULL,
    outcome BLOB,
    outcome_at INTEGER,
    UNIQUE (session, key)
) STRICT"""

_INDEX: Final = "CREATE INDEX commands_waiting ON commands (session, id) WHERE outcome IS NULL"

_PRAGMAS: Final = (
    *sqlite_file.PRAGMAS_ALWAYS,
    "PRAGMA busy_timeout = 0",  # `_begin` waits.
    "PRAGMA secure_delete = ON",
    # A transaction ends when its journal is deleted. With FULL the journal may come back after a power cut, and take
    # back what was acknowledged.
    "PRAGMA synchronous = EXTRA",
)

_COLUMNS: Final = "id, session, key, digest, command, at, outcome"


class InboxBusy(PersistenceError):
    """Other processes had the inbox for as long as the caller could wait; nothing was read or written."""


class RowName(NamedTuple):
    """What a row is known by: its id alone may be another row's in a file that was removed and made anew."""

    id: int
    session: str
    key: str
    digest: bytes


class InboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """One command in the file."""

    id: int
    """Rows are performed in order of their ids."""
    session: str
    key: str
    digest: bytes
    """SHA-256 of the command."""
    command: bytes | None
    """None once it was performed: what people wrote stays in the log alone."""
    at: int
    """When it was added, in microseconds since the epoch, UTC."""
    outcome: bytes | None = None

    @property
    def name(self) -> RowName:
        return RowName(self.id, self.session, self.key, self.digest)


InboxSignature = tuple[int, int, int, int, int]
"""What the file system says of the file: it differs after a write, unless two writes share one tick of its clock."""


# State of the process, which need not look at a file twice.
_examined: dict[Path, tuple[int, int]] = {}
"""Device and inode of inboxes that are ours."""


class _Queued:
    """Something to be written, and the future of its caller; it is withdrawn, or it is begun."""

    def __init__(self, work: Callable[[sqlite3.Connection], Any], failed: str, future: asyncio.Future[Any]) -> None:
        self.work = work
        self.failed = failed
        self.future = future
        self.withdrawn = False
        self._begun = False
        self._lock = threading.Lock()

    def withdraw(self) -> bool:
        """Have it not written, where the transaction is not at it yet; return whether that is so."""
        with self._lock:
            self.withdrawn = not self._begun
        if self.withdrawn:
            self.future.cancel()
        return self.withdrawn

    def write(self, connection: sqlite3.Connection) -> object:
        with self._lock:
            self._begun = not self.withdrawn
        return self.work(connection) if self._begun else None


class _Queue:
    """What waits to be written to one inbox in one event loop."""

    def __init__(self) -> None:
        self.waiting: list[_Queued] = []
        self.group: list[_Queued] = []
        """What is being written."""
        self.task: asyncio.Task[None] | None = None


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, _Queue]] = WeakKeyDictionary()
"""Of each loop: any number of writers, such as requests to a web server, cost the file one transaction at a time."""


class InboxFile:
    """The inbox of one log; it opens nothing before it is used.

    Every method raises LogFormatError where the file is not an inbox, is damaged or comes from a newer Refold, and
    PersistenceError where it or its folder cannot be used, InboxBusy where others have it for `wait_s`.

    Args:
        log: the log's path, absolute, links of its last name not followed.
        allow_shared_folder: use it although others may make files in its folder.
    """

    def __init__(self, log: Path, *, allow_shared_folder: bool = False) -> None:
        self.path = log.with_name(log.name + INBOX_SUFFIX)
        self._log = log
        self._allow_shared_folder = allow_shared_folder

    def signature(self) -> InboxSignature | None:
        """Return what tells a changed file from an unchanged one; None if there is no file. Never waits for a lock."""
        status = self._status()
        if status is None:
            return None
        return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    async def add(
        self,
        session: str,
        key: str,
        command: bytes,
        at: int,
        *,
        keyed: bytes | None = None,
        wait_s: float = math.inf,
    ) -> tuple[InboxRow, bool]:
        """Add a row and return it, once it is durable, or the row that the session has under the key already.

        The second value says whether the row is new. `keyed` is what of the command the key stands for; None = all.
        """
        if len(command) > COMMAND_BYTES_MAX:
            raise CommandRejected(f"the command has {len(command):,} bytes; an inbox takes {COMMAND_BYTES_MAX:,}")
        digest = hashlib.sha256(command if keyed is None else keyed).digest()

        def insert(connection: sqlite3.Connection) -> tuple[InboxRow, bool]:
            inserted = connection.execute(
                "INSERT INTO commands (session, key, digest, command, at) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (session, key) DO NOTHING",
                (session, key, digest, command, at),
            )
            return _rows(connection, "session = ? AND key = ?", (session, key))[0], inserted.rowcount == 1

        self._make()
        added = await self._run(insert, "cannot take a command", writing=True, wait_s=wait_s, cancelled_s=0)
        if added is None:
            raise PersistenceError(f"the inbox {self.path} was removed while a command was put into it; try again")
        if added[0].digest != digest:
            raise CommandRejected(f"key {key!r} was used before for another command; use a new key")
        return added

    async def rows(self, names: Sequence[RowName], *, wait_s: float = math.inf) -> dict[RowName, InboxRow]:
        """Return those of these rows that are there, as they are now; others were taken back, or are too old."""

        def select(connection: sqlite3.Connection) -> dict[RowName, InboxRow]:
            found: dict[RowName, InboxRow] = {}
            for name in names:
                for row in _rows(connection, "id = ? AND session = ? AND key = ? AND digest = ?", name):
                    found[name] = row
            return found

        return await self._run(select, "cannot be read", wait_s=wait_s) or {}

    async def sessions_waiting(self, *, performed: bool = False, wait_s: float = math.inf) -> list[str]:
        """Return the sessions that have rows without an outcome, the one with the oldest row first.

        `performed` gives also those whose rows all have one.
        """

        def select(connection: sqlite3.Connection) -> list[str]:
            found = connection.execute(
                "SELECT session FROM commands WHERE outcome IS NULL OR ? GROUP BY session ORDER BY min(id)",
                (performed,),
            )
            return [_text(session) for (session,) in found]

        return await self._run(select, "cannot be read", wait_s=wait_s) or []

    async def waiting(self, session: str, *, wait_s: float = math.inf) -> list[InboxRow]:
        """Return a session's rows without an outcome, oldest first; at most a hundred."""
        select = partial(_rows, where="outcome IS NULL AND session = ?", values=(session,))
        return await self._run(select, "cannot be read", wait_s=wait_s) or []

    async def finish(self, name: RowName, outcome: bytes, at: int, *, wait_s: float = math.inf) -> None:
        """Give a row its outcome, unless it has one, and take rows away that are too old or too many."""

        def update(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE commands SET outcome = ?, outcome_at = ?, command = NULL"
                " WHERE id = ? AND session = ? AND key = ? AND digest = ? AND outcome IS NULL",
                (outcome, at, *name),
            )
            connection.execute(
                "DELETE FROM commands WHERE outcome IS NOT NULL AND id <> ? AND (outcome_at < ? OR id <= ("
                "SELECT id FROM commands WHERE outcome IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET ?))",
                (name.id, at - KEEP_US, KEEP_ROWS),
            )

        await self._run(update, "cannot note an outcome", writing=True, wait_s=wait_s)

    async def take_back(self, name: RowName, *, wait_s: float = math.inf) -> bool:
        """Remove a row that has no outcome; return whether there was one."""

        def delete(connection: sqlite3.Connection) -> bool:
            done = connection.execute(
                "DELETE FROM commands WHERE id = ? AND session = ? AND key = ? AND digest = ? AND outcome IS NULL", name
            )
            return done.rowcount == 1

        return bool(await self._run(delete, "cannot be changed", writing=True, wait_s=wait_s))

    async def forget(self, sessions: Sequence[str], *, kept: bytes) -> int:
        """Remove the rows of sessions, performed or not; return how many there were.

        Args:
            sessions: their names.
            kept: how the commands and outcomes begin whose rows stay.
        """

        def delete(connection: sqlite3.Connection) -> int:
            removed = "DELETE FROM commands WHERE session = ? AND substr(coalesce(outcome, command, x''), 1, ?) <> ?"
            return connection.executemany(removed, [(session, len(kept), kept) for session in sessions]).rowcount

        return await self._run(delete, "cannot be changed", writing=True) or 0

    async def _run(
        self,
        work: Callable[[sqlite3.Connection], T],
        failed: str,
        *,
        writing: bool = False,
        wait_s: float = math.inf,
        cancelled_s: float = CANCELLED_S,
    ) -> T | None:
        """Run `work` in a transaction and return its result; None where there is no file, or nothing in it to read.

        What has not begun to be written after `wait_s`, or so long after its caller was cancelled, is written no more;
        else the caller waits for the end of the transaction.
        """
        why = f"others had it for {wait_s:.3g} s, and nothing of this was written; try again"
        busy = InboxBusy(f"the inbox {self.path} {failed}: {why}")
        if not writing:
            try:
                async with asyncio.timeout(wait_s if wait_s < math.inf else None):
                    return await self._transact(work, failed, writing)
            except TimeoutError:
                raise busy from None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T | None] = loop.create_future()
        queues = _queues.setdefault(loop, {})
        queue = queues.get(self.path)
        if queue is None:
            queue = queues[self.path] = _Queue()
            emptying = self._empty(queue)
            queue.task = loop.create_task(emptying, name=f"work on {self.path.name}")
            queue.task.add_done_callback(lambda _: self._emptied(queue))
            queue.task.add_done_callback(lambda _: emptying.close())  # Cancelled before its first step, it would warn.
        queued = _Queued(work, failed, future)
        queue.waiting.append(queued)
        limit_s, cancelled = wait_s, None
        while not future.done():
            try:
                # By the loop's own time, since a clock that a test moves does not free the file.
                await asyncio.wait({future}, timeout=limit_s if limit_s < math.inf else None)
            except asyncio.CancelledError as error:
                limit_s, cancelled = cancelled_s, error
                continue
            if not future.done() and queued.withdraw():
                raise cancelled or busy
            limit_s = math.inf
        if cancelled is not None:
            future.exception()  # Looked at, so that asyncio does not report it as forgotten.
            raise cancelled
        return future.result()

    async def _empty(self, queue: "_Queue") -> None:
        """Write what waits, all that has come together in one transaction, until nothing does."""
        while queue.waiting:
            queue.group, queue.waiting = queue.waiting[:GROUP_MAX], queue.waiting[GROUP_MAX:]
            await self._write(queue.group)
        _queues[asyncio.get_running_loop()].pop(self.path, None)  # What comes from now on begins another task.

    def _emptied(self, queue: "_Queue") -> None:
        """Tell those whose work is not done that its task was cancelled, by other code or with the loop."""
        queues = _queues.get(asyncio.get_running_loop(), {})
        if queues.get(self.path) is queue:
            del queues[self.path]
        for queued in (*queue.group, *queue.waiting):
            if not queued.future.done():
                failed = f"{self.path} {queued.failed}: other code cancelled the work on it"
                queued.future.set_exception(PersistenceError(failed, outcome_unknown=True))

    async def _write(self, group: "list[_Queued]") -> None:
        """Write several things in one transaction, or, where that fails and nothing of it was written, one by one."""
        group = [queued for queued in group if not queued.withdrawn]
        if not group:
            return
        failed = group[0].failed if len(group) == 1 else "cannot be written"
        try:
            results = await self._transact(
                lambda connection: [queued.write(connection) for queued in group],
                failed,
                writing=True,
                wanted=lambda: not all(queued.withdrawn for queued in group),
            )
        except Exception as error:  # noqa: BLE001 - it is raised to the waiting caller
            if len(group) > 1:
                for queued in group:
                    await self._write([queued])
            elif not group[0].future.done():
                group[0].future.set_exception(error)
            return
        for place, queued in enumerate(group):
            if not queued.future.done():
                queued.future.set_result(results[place] if results is not None else None)

    async def _transact(
        self,
        work: Callable[[sqlite3.Connection], T],
        failed: str,
        writing: bool,
        wanted: Callable[[], bool] = lambda: True,
    ) -> T | None:
        status = self._status()
        if status is None:
            return None
        self._require_ours()
        if not (status.st_size or writing):
            return None
        identity = (status.st_dev, status.st_ino)
        failed = f"the inbox {self.path} {failed}"
        try:
            if status.st_size and _examined.get(self.path) != identity:
                await self._examine()
            connection = await SQLiteConnection.open(sqlite_file.file_uri(self.path, "mode=rw"))
            left = threading.Event()

            def waits(pause_s: float) -> bool:
                return not left.wait(pause_s) and wanted()

            try:
                result = await connection.run(lambda opened: self._in_transaction(opened, work, writing, waits))
            finally:
                left.set()  # A caller who is cancelled does not wait for the file's turn.
                await connection.close()
        except sqlite3.Error as error:
            raise self._error(error, failed) from error
        _examined[self.path] = identity
        return result

    async def _examine(self) -> None:
        """Look at a file through a connection that cannot change it, nor roll a journal back into it.

        Nor does it lock the file, so that it may see half of what another process writes; then it looks again. What was
        left half written when the process died, or the power went, is looked at in a copy, with its journal.
        """
        for tries_left in reversed(range(EXAMINE_TRIES)):
            connection = await SQLiteConnection.open(sqlite_file.file_uri(self.path, "immutable=1"))
            try:
                return await connection.run(self._check_kind)
            except (sqlite3.Error, LogFormatError) as error:
                if await connection.run(lambda _: self._is_ours_rolled_back()):
                    return None
                if not tries_left or isinstance(error, LogFormatError) or primary_code(error) != sqlite3.SQLITE_CORRUPT:
                    raise
            finally:
                await connection.close()

    def _is_ours_rolled_back(self) -> bool:
        """Tell whether the file is an inbox, or nothing yet, once the journal beside it has been rolled back."""
        journal = f"{self.path}-journal"
        with tempfile.TemporaryDirectory(prefix="refold-") as folder:
            copy = os.path.join(folder, "inbox")
            try:
                shutil.copyfile(journal, f"{copy}-journal")
                shutil.copyfile(self.path, copy)
            except FileNotFoundError:  # There is no journal, or not any more.
                return False
            with closing(sqlite3.connect(copy, isolation_level=None)) as rolled_back:
                try:
                    if not (rolled_back.execute("SELECT name FROM sqlite_schema").fetchone() or os.path.getsize(copy)):
                        return True
                    self._check_kind(rolled_back)
                except (sqlite3.Error, LogFormatError):  # What is wrong with the file itself is said.
                    return False
        return True

    def _check_kind(self, connection: sqlite3.Connection) -> None:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application_id != INBOX_APPLICATION_ID:
            raise LogFormatError(f"{self.path} is not an inbox of Refold; move it away")
        if version != INBOX_FORMAT_VERSION:
            raise LogFormatError(
                f"the inbox {self.path} has format {version} and this Refold reads {INBOX_FORMAT_VERSION}; "
                "use one Refold for both ends"
            )

    def _in_transaction(
        self,
        connection: sqlite3.Connection,
        work: Callable[[sqlite3.Connection], T],
        writing: bool,
        waits: Callable[[float], bool],
    ) -> T | None:
        connection.text_factory = bytes
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * COMMAND_BYTES_MAX)
        try:
            _begin(connection, writing, waits)
            result = work(connection) if self._is_prepared(connection, writing) else None
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    def _is_prepared(self, connection: sqlite3.Connection, writing: bool) -> bool:
        """Tell whether the table is there; where that is wanted, make it."""
        found = dict(connection.execute("SELECT name, sql FROM sqlite_schema WHERE name NOT GLOB 'sqlite_*'"))
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        if not found and application_id == 0:
            if not writing:  # Another process is about to make it, or died before it could.
                return False
            for statement in (
                _TABLE,
                _INDEX,
                f"PRAGMA application_id = {INBOX_APPLICATION_ID}",
                f"PRAGMA user_version = {INBOX_FORMAT_VERSION}",
            ):
                connection.execute(statement)
            return True
        self._check_kind(connection)
        if found != {b"commands": _TABLE.encode(), b"commands_waiting": _INDEX.encode()}:
            raise LogFormatError(f"the inbox {self.path} has other tables than Refold made; move it away")
        return True

    def _make(self) -> None:
        """Make an empty file, for the owner's eyes only, where there is none."""
        if self._status() is not None:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except FileExistsError:  # Another process was quicker, and it is as good.
            return
        except OSError as error:
            raise PersistenceError(
                f"the inbox {self.path} cannot be made: {error.strerror}; a user who sends commands must be "
                "allowed to write into the folder of its log"
            ) from error
        try:
            if os.geteuid() == 0:  # Root may send to the runtime of any user, which must be able to read it.
                owner = self._log.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        except OSError as error:
            self.path.unlink(missing_ok=True)  # Else it would be root's for ever.
            raise PersistenceError(f"the inbox {self.path} cannot be given to the log's owner: {error}") from error
        finally:
            os.close(descriptor)

    def _status(self) -> os.stat_result | None:
        return status_of(self.path, f"the inbox {self.path}")

    def _require_ours(self) -> None:
        """Raise if another user could write commands into the file, or have SQLite change it."""
        require_inbox_trusted(self._log, allow_shared_folder=self._allow_shared_folder)
        if not os.access(self.path, os.R_OK | os.W_OK):
            raise PersistenceError(f"the inbox {self.path} cannot be written by this user; change its permissions")

    def _error(self, error: sqlite3.Error, failed: str) -> PersistenceError:
        if primary_code(error) == sqlite3.SQLITE_NOTADB:
            return LogFormatError(
                f"{self.path} is not an inbox of Refold, since it is no SQLite database; move it away"
            )
        if primary_code(error) == sqlite3.SQLITE_CORRUPT:
            return LogFormatError(
                f"{failed}: the file is damaged ({error}); move it away, the log is not touched by it"
            )
        return persistence_error(error, failed)


def _begin(connection: sqlite3.Connection, writing: bool, waits: Callable[[float], bool]) -> None:
    """Begin a transaction that has its lock, once others leave the file; who has waited longer asks more often."""
    begin = "BEGIN IMMEDIATE" if writing else "BEGIN"
    # A reader has its lock only with the SELECT; and the readers that a commit waits for have 5 s.
    statements = [*_PRAGMAS, begin, "SELECT count(*) FROM sqlite_schema", "PRAGMA busy_timeout = 5000"]
    waited_s = 0.0
    while statements:
        try:
            connection.execute(statements[0]).fetchone()
            del statements[0]
        except sqlite3.OperationalError as error:
            pause_s = max(LOOK_AGAIN_MIN_S, LOOK_AGAIN_S * 0.5**waited_s)
            if primary_code(error) != sqlite3.SQLITE_BUSY or waited_s >= BUSY_S or not waits(pause_s):
                raise
            waited_s += pause_s


def _rows(connection: sqlite3.Connection, where: str, values: tuple[object, ...]) -> list[InboxRow]:
    query = f"SELECT {_COLUMNS} FROM commands WHERE {where} ORDER BY id LIMIT 100"  # noqa: S608 - written in this module
    found = connection.execute(query, values)
    return [
        InboxRow(
            id=number, session=_text(session), key=_text(key), digest=digest, command=command, at=at, outcome=outcome
        )
        for number, session, key, digest, command, at, outcome in found
    ]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
