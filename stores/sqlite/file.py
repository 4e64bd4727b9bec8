"""The file of a log: looking at it before touching it, making it, and preparing connections to it.

Read `schema.sql` first. The rule it protects: a file that is not ours, is damaged, or comes from a newer Refold is
left byte for byte as it was, with nothing left beside it. So a file is first read through a connection that cannot
write, and a new log is made under another name and renamed when it is complete: there never is half a log.
"""

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final, Literal, TypeGuard, cast
from urllib.parse import quote

from refold.events.core.errors import ConfigError, LogFormatError, LogInUse, PersistenceError
from refold.stores.append_rules import BYTES_MAX, INTEGER_MAX, FaultPoint, no_fault
from refold.stores.guarding.log_place import HEAD_SUFFIX, Acknowledged, acknowledged, forget_acknowledged
from refold.stores.guarding.trusted_files import whose
from refold.stores.sqlite.connection import Connect, SQLiteConnection, persistence_error, primary_code
from refold.stores.sqlite.ownership import log_owner
from refold.stores.sqlite.read import damage_found, missing_end
from refold.stores.sqlite.rewrite import synchronise, write_again

BUNDLE_SUFFIX: Final = ".refold"
"""Ends the name of a bundle: an archive with a text log in it."""

TEXT_LOG_SUFFIXES: Final = (".jsonl", ".jsonl.gz", BUNDLE_SUFFIX)
"""A file whose name ends so, in lower or upper case, is a text log, but for the first compressed; every other log is
SQLite's.

The name decides, not the content: to look into a file that may be an SQLite log of this very process would be to close
it again, and POSIX then drops the locks that SQLite holds on it (`refold.stores.sqlite.ownership`).
"""

APPLICATION_ID: Final = 0x52464C44
"""`RFLD`: marks an SQLite file as a Refold log."""

FORMAT_VERSION: Final = 1
"""The file's `user_version`."""

PAGE_BYTES: Final = 8192
"""Of a page in a log that is made, which two or three messages of 1 kB fill; of logs made before it are 4096."""

_WAL_BYTES_TO_COPY: Final = 4 * 1024 * 1024
"""Of pages in the WAL, which the writer then copies into the file."""

SQLITE_VERSION_MIN: Final = (3, 37, 0)
"""First SQLite with STRICT tables (2021)."""

_WAL_RESET_MENDED: Final = ((3, 44, 6), (3, 50, 7), (3, 51, 3))
"""First of each series of releases without the fault that `known_fault` tells; later series have none."""

Durability = Literal["full", "normal"]
"""`full`: an acknowledged append survives power loss. `normal`: it survives the death of the process."""

FileKind = Literal["missing", "empty", "file"]

_SYNCHRONOUS: Mapping[Durability, str] = {"full": "FULL", "normal": "NORMAL"}

PRAGMAS_ALWAYS: Final = (
    # A schema can hold expressions that run when we read; those of a hostile file must not call anything dangerous.
    "PRAGMA trusted_schema = OFF",
    # Finds damaged pages before they are used.
    "PRAGMA cell_size_check = ON",
    # With a memory map an I/O error is a SIGBUS that ends the process.
    "PRAGMA mmap_size = 0",
    # One function writes the rows, and it knows the ids it refers to; a check per row would find nothing.
    "PRAGMA foreign_keys = OFF",
    # Long enough for another connection's checkpoint or recovery, which is all that we ever wait for.
    "PRAGMA busy_timeout = 5000",
    # Sorting must not leave content in temporary files.
    "PRAGMA temp_store = MEMORY",
)

_PRAGMAS_WRITING: Final = (
    # Deleted means gone: freed space is overwritten with zeros.
    "PRAGMA secure_delete = ON",
    # A WAL that a slow reader made grow is cut back to 64 MiB when it is next begun anew.
    "PRAGMA journal_size_limit = 67108864",
)


def require_sqlite() -> None:
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        wanted = ".".join(map(str, SQLITE_VERSION_MIN))
        raise ConfigError(f"a log needs SQLite {wanted} or newer, and this Python has {sqlite3.sqlite_version}")


def known_fault(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> str | None:
    """Return what to know about a version of SQLite that can damage a file in WAL mode; None = no such fault is known.

    The fault and the versions without it: https://www.sqlite.org/wal.html#walresetbug.
    """
    mended = next((first for first in _WAL_RESET_MENDED if first[:2] == version[:2]), _WAL_RESET_MENDED[-1])
    if version >= mended:
        return None
    versions = ", ".join(".".join(map(str, first)) for first in _WAL_RESET_MENDED)
    return (
        f"SQLite {'.'.join(map(str, version))} can damage a file that two programs write at the same moment "
        f"(fixed in {versions} and later). Refold writes a log through one connection only; let no other program "
        "write it, or use a newer SQLite"
    )


def require_path(path: str | os.PathLike[str]) -> None:
    text = os.fspath(path)
    if text in ("", ":memory:"):
        raise ConfigError(f"{text!r} names no file; use InMemoryStore for a log in memory")
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        raise ConfigError(f"{text!r} names no file: the file system cannot encode it; choose another name") from None
    if b"\0" in encoded:
        raise ConfigError(f"{text!r} names no file: it holds a NUL character; choose another name")


def is_text_log(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(TEXT_LOG_SUFFIXES)


def is_bundle(log: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a log is named as a bundle is."""
    if not isinstance(log, str | os.PathLike):
        return False
    return os.fspath(cast("str | os.PathLike[str]", log)).lower().endswith(BUNDLE_SUFFIX)


def require_no_text_log(path: str | os.PathLike[str]) -> None:
    if is_text_log(path):
        name = os.fspath(path)
        ending = next(each for each in TEXT_LOG_SUFFIXES if name.lower().endswith(each))
        log = f"{name[: -len(ending)]}.db"
        raise ConfigError(
            f"{name} is a text log by its name, and only an SQLite file can be opened as a log: make one of it with "
            f"`refold import {name} {log}` and open that, or begin a new log as {log}"
        )


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return the path as it stays when the process changes its folder, links kept."""
    return Path(os.path.abspath(path))


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return the path of the file that a path leads to, links followed; for reading only."""
    return Path(os.path.realpath(path))


def look_at(log: Path) -> FileKind:
    status = _status(log)
    if status is None:
        return "missing"
    if stat.S_ISLNK(status.st_mode):
        raise PersistenceError(f"the log {log} is a symbolic link; name the file that it points to")
    if stat.S_ISDIR(status.st_mode):
        raise LogFormatError(f"{log} is a folder, not a log; name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise LogFormatError(f"{log} is not a regular file, so it is no log")
    return "file" if status.st_size else "empty"


def _status(log: Path) -> os.stat_result | None:
    try:
        return log.lstat()
    except FileNotFoundError:
        if not log.parent.is_dir():
            raise PersistenceError(f"the folder {log.parent} of the log does not exist; make it first") from None
        return None
    except OSError as error:
        raise PersistenceError(f"the log {log} cannot be looked at: {error.strerror}") from error


def require_readable(log: Path) -> None:
    """Raise unless there is something to read at the path that this user may read."""
    match look_at(log):
        case "missing":
            raise PersistenceError(f"the log {log} does not exist")
        case "empty":
            raise LogFormatError(f"{log} is empty, so it is no log")
        case "file":
            require_access(log, writing=False)
            _require_readable_beside(log, "-wal", "which holds the newest events, so the log cannot be read without it")


def _require_readable_beside(log: Path, suffix: str, what: str) -> None:
    path = _beside(log, suffix)
    if path.exists() and not os.access(path, os.R_OK):
        raise PersistenceError(
            f"{path}, {what}, {whose(path)}; give it the rights of {log.name}, or read the log as its owner"
        )


def require_access(log: Path, *, writing: bool) -> None:
    """Raise if we may not read, or write, the file and its folder."""
    kind = look_at(log)
    if kind != "missing" and not os.access(log, os.R_OK):
        raise PersistenceError(f"the log {log} cannot be read by this user; change its permissions")
    if writing and kind != "missing" and not os.access(log, os.W_OK):
        raise PersistenceError(f"the log {log} is read-only; change its permissions, or open it with read_only=True")
    if writing and not os.access(log.parent, os.W_OK | os.X_OK):
        raise PersistenceError(
            f"the folder {log.parent} of the log is read-only, and its lock and WAL are written there; change its "
            "permissions, or open the log with read_only=True"
        )


LOOK_PAGES_MAX: Final = 64
"""A log of at most so many pages is looked through as a whole when it is opened; about a millisecond."""

LOOK_STEPS_MAX: Final = 1_000_000
"""After so many steps of SQLite's the look at a log that is opened ends; some 50 ms."""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""What SQLite says of pages that make no sense; the second where the first page is one."""


async def examine(log: Path, connect: Connect = SQLiteConnection.open) -> None:
    """Return if the file is a log that this Refold reads; leave no trace either way."""
    try:
        await _looked_at(log, "immutable=1", check_format, connect)
    except LogFormatError as error:
        # A process that died in the middle of a checkpoint leaves a file that makes sense only with its WAL.
        cause = error.__cause__
        damaged = isinstance(cause, sqlite3.Error) and primary_code(cause) in _DAMAGED
        if not (damaged and _is_beside(log, "-wal")):
            raise
        await _looked_at(log, "mode=ro", check_format, connect)


async def _looked_at(
    log: Path, options: str, look: Callable[[sqlite3.Connection, Path], None], connect: Connect
) -> None:
    try:
        connection = await connect(file_uri(log, options))
    except sqlite3.Error as error:
        raise persistence_error(error, f"the log {log} cannot be opened") from error
    try:
        await connection.run(lambda opened: look(opened, log))
    finally:
        await connection.close()


def acknowledged_end(log: Path) -> Acknowledged | None:
    """Return the last batch that had been acknowledged when the log was last open; None = that is not known."""
    try:
        return acknowledged(log)
    except OSError as error:
        raise PersistenceError(f"{log}{HEAD_SUFFIX} cannot be read: {error.strerror}") from error


async def look_through(log: Path, connect: Connect = SQLiteConnection.open) -> None:
    """Return if a log that we own has what it had when it was last open, as far as a quick look tells; change nothing.

    The look is bounded: the table that says which runs are open, with its indexes, and a small log as a whole.
    """
    end = acknowledged_end(log)
    options = "mode=ro" if _is_beside(log, "-wal") else "immutable=1"
    await _looked_at(log, options, partial(_look_through, end=end), connect)


def _look_through(connection: sqlite3.Connection, log: Path, end: Acknowledged | None) -> None:
    way_out = f"`refold check {log}` tells more, and `refold repair {log} -o NEW` saves what is whole in a new log"
    steps_left = LOOK_STEPS_MAX // 1000

    def enough() -> bool:
        nonlocal steps_left
        steps_left -= 1
        return steps_left < 0

    try:
        for pragma in PRAGMAS_ALWAYS:
            connection.execute(pragma)
        check_format(connection, log)
        missing = missing_end(connection, end)
        if missing:
            raise LogFormatError(
                f"the log {log} is not what it was: {missing}; its WAL was cut or removed, or an older copy is in its "
                f"place. {way_out}; to go on with what is there, remove {log.name}{HEAD_SUFFIX}"
            )
        connection.set_progress_handler(enough, 1000)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        looks = ("PRAGMA quick_check(1)",) if pages <= LOOK_PAGES_MAX else ()
        for look in (*looks, "PRAGMA integrity_check('streams')"):
            if lines := damage_found(connection, look):
                raise LogFormatError(f"the log {log} is damaged: {lines[0]}; {way_out}")
    except sqlite3.Error as error:
        if primary_code(error) != sqlite3.SQLITE_INTERRUPT:
            raise persistence_error(error, f"the log {log} cannot be looked through") from error
    finally:
        connection.set_progress_handler(None, 0)


def is_unread_wal(error: PersistenceError, log: Path) -> bool:
    """Tell whether a log could not be opened because its WAL can be read only where a file may be made beside it.

    So it is with a copy of a log and its WAL on read-only media. While a process owns the log, the reason is another.

    Raises:
        PersistenceError: this user may read neither the WAL's index nor the lock, which would tell.
    """
    cause = error.__cause__
    if not (
        isinstance(cause, sqlite3.Error)
        and primary_code(cause) == sqlite3.SQLITE_CANTOPEN
        and _is_beside(log, "-wal")
        and not os.access(log.parent, os.W_OK)
    ):
        return False
    try:
        return log_owner(log) is None
    except PersistenceError:  # A process may own it; then all but a readable index would be a guess.
        _require_readable_beside(log, "-shm", "without which SQLite cannot read the log's WAL")
        raise


def copied_with_wal(log: Path, folder: Path) -> Path:
    """Copy a log that no process owns, and its WAL, into a folder; return the copy's path."""
    copy = folder / log.name
    try:
        shutil.copyfile(log, copy)
        shutil.copyfile(_beside(log, "-wal"), _beside(copy, "-wal"))
    except OSError as error:
        raise PersistenceError(
            f"the WAL of the log {log} can be read only in a folder that can be written to, and a copy in {folder} "
            f"failed: {error.strerror}; copy {log.name} and {log.name}-wal to such a folder"
        ) from error
    return copy


def check_format(connection: sqlite3.Connection, log: Path) -> None:
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application_id != APPLICATION_ID:
            raise LogFormatError(f"{log} is not a Refold log; name another file")
        if version < 1:
            raise LogFormatError(f"the log {log} is damaged: it has format {version}; restore it from a backup")
        if version > FORMAT_VERSION:
            raise LogFormatError(
                f"the log {log} has format {version} and this Refold reads up to {FORMAT_VERSION}; install a newer one"
            )
        _check_schema(connection, log)
    except sqlite3.Error as error:
        if primary_code(error) == sqlite3.SQLITE_NOTADB:
            raise LogFormatError(
                f"{log} is not a Refold log, since it is no SQLite database; name another file, make a log of it "
                "with `refold import` if it is a text log, or restore it from a backup if it was a log"
            ) from error
        raise persistence_error(error, f"{log} cannot be examined") from error
    except UnicodeDecodeError as error:  # SQLite gives a damaged name in the schema unchanged.
        raise LogFormatError(f"the log {log} is damaged: {error}; restore it from a backup") from error


def _check_schema(connection: sqlite3.Connection, log: Path) -> None:
    found = {str(name): sql for name, sql in connection.execute("SELECT name, sql FROM sqlite_schema")}
    changed = sorted(name for name, sql in _schema_objects().items() if found.get(name) != sql)
    if changed:
        raise LogFormatError(f"the log {log} lacks or has another form of: {', '.join(changed)}; restore a backup")
    triggers = [str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]
    if triggers:
        raise LogFormatError(f"the log {log} has triggers that Refold did not make: {', '.join(triggers)}; drop them")
    computed = [name for name in found if name not in _schema_objects() and _is_computed_index(connection, name)]
    if computed:  # Each write would compute what the file says, which may take all memory.
        raise LogFormatError(
            f"the log {log} has indexes of expressions, or of some rows, that Refold did not make: "
            f"{', '.join(sorted(computed))}; drop them"
        )


def _is_computed_index(connection: sqlite3.Connection, name: str) -> bool:
    """Tell whether an object of the schema is an index that is not simply of columns."""
    owner = connection.execute("SELECT tbl_name FROM sqlite_schema WHERE type = 'index' AND name = ?", (name,))
    columns = connection.execute("SELECT cid FROM pragma_index_xinfo(?)", (name,)).fetchall()
    partial = [
        is_partial
        for (table,) in owner.fetchall()
        for index, is_partial in connection.execute("SELECT name, partial FROM pragma_index_list(?)", (table,))
        if index == name
    ]
    return any(column < -1 for (column,) in columns) or any(partial)


@cache
def schema_script() -> str:
    return Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")


@cache
def _schema_objects() -> dict[str, str | None]:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(schema_script())
        return dict(connection.execute("SELECT name, sql FROM sqlite_schema"))
    finally:
        connection.close()


async def create(log: Path, connect: Connect = SQLiteConnection.open) -> None:
    """Make an empty log; the caller owns it (`refold.stores.sqlite.ownership`) and saw that there is none.

    Its name survives power loss once it was prepared for writing.
    """
    for suffix in ("-wal", "-journal"):
        if _is_beside(log, suffix):
            raise LogFormatError(
                f"the log {log} is missing or empty, but its {_beside(log, suffix).name} is there; restore the log "
                "from a backup, or move that file away"
            )
    unfinished = _beside(log, ".new")
    try:
        for suffix in ("", "-wal", "-shm", "-journal"):
            _beside(unfinished, suffix).unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        connection = await connect(file_uri(unfinished, "mode=rw"))
        try:
            await connection.run(lambda opened: _create_tables(opened, log))
        finally:
            await connection.close()
        forget_acknowledged(log)  # That of a log that was deleted.
        unfinished.rename(log)  # The name is brought to the disk when the log is opened, which may be later.
    except sqlite3.Error as error:
        raise persistence_error(error, f"the log {log} cannot be made") from error
    except OSError as error:
        raise PersistenceError(f"the log {log} cannot be made: {error.strerror}") from error


def _create_tables(connection: sqlite3.Connection, log: Path) -> None:
    connection.execute("PRAGMA encoding = 'UTF-8'")
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(
        f"BEGIN IMMEDIATE;\n{schema_script()}\n"
        f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {FORMAT_VERSION};\nCOMMIT;"
    )
    _switch_to_wal(connection, log)


def _switch_to_wal(connection: sqlite3.Connection, log: Path) -> None:
    # Read to its end: only there does SQLite say that the change could not be written.
    ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if mode != "wal":
        raise PersistenceError(f"the log {log} cannot have a WAL there ({mode}); use a local file system")


GIVEN_UP: Final = -1
"""Among the incarnations that are ours: no caller waits for this opening any more; another one may have come since."""


def prepare_for_writing(
    connection: sqlite3.Connection,
    log: Path,
    durability: Durability,
    *,
    ours: set[int] | None = None,
    fault: FaultPoint = no_fault,
) -> int:
    """Examine the file again, now that we own it, and return our new incarnation of it.

    The file's name is on the disk before SQLite makes a WAL beside it: one without its log could not be told from what
    is left of a log that was deleted. What the WAL holds is on the disk afterwards, so that it can be built upon.

    Args:
        durability: what an acknowledged append survives.
        ours: incarnations of which the log may have one, if we have owned it all the time: the last one, and those of
            openings that failed. The new one is added before it is written, which is refused if `GIVEN_UP` is there.
        fault: called at the point `opening.folder_synced`, and at `opening.wal_synced` if there was a WAL that held
            anything.
    """
    try:
        # Who made, moved or restored the file may have died before its name was on the disk.
        synchronise(log.parent)
        fault("opening.folder_synced")
        for pragma in PRAGMAS_ALWAYS:
            connection.execute(pragma)
        _limit(connection)
        check_format(connection, log)
        for pragma in _PRAGMAS_WRITING:
            connection.execute(pragma)
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_BYTES_TO_COPY // page_bytes}")
        connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
        _switch_to_wal(connection, log)
        connection.execute("BEGIN IMMEDIATE")  # So that a connection of ours that hangs does not write it meanwhile.
        if write_again(_beside(log, "-wal")):
            fault("opening.wal_synced")
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        incarnation = _incarnation(connection, log)
        known = not ours or incarnation in ours
        if ours is not None and known:
            ours.add(incarnation + 1)
        if not known or (ours and GIVEN_UP in ours):
            connection.execute("ROLLBACK")
            raise LogInUse(str(log), pid=None, host=None)
        connection.execute("UPDATE log SET incarnation = ?", (incarnation + 1,))
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise persistence_error(error, f"the log {log} cannot be opened for writing") from error
    except OSError as error:
        raise PersistenceError(f"the log {log} cannot be opened for writing: {error.strerror}") from error
    return incarnation + 1


def _incarnation(connection: sqlite3.Connection, log: Path) -> int:
    row = connection.execute("SELECT incarnation, removed_position FROM log").fetchone()
    if row is None or list(map(type, row)) != [int, int] or not 0 <= row[0] < INTEGER_MAX:
        found = "nothing" if row is None else f"the incarnation {row[0]!r} and the removed position {row[1]!r}"
        raise LogFormatError(f"the log {log} is damaged: its table `log` holds {found}; restore it from a backup")
    incarnation: int = row[0]
    return incarnation


def prepare_for_reading(connection: sqlite3.Connection, log: Path) -> None:
    """Examine the file through a connection that only reads, and make it give texts as bytes."""
    try:
        for pragma in PRAGMAS_ALWAYS:
            connection.execute(pragma)
        connection.execute("PRAGMA query_only = ON")
        _limit(connection)
        check_format(connection, log)
    except sqlite3.Error as error:
        raise persistence_error(error, f"the log {log} cannot be opened for reading") from error
    connection.text_factory = bytes


def _limit(connection: sqlite3.Connection) -> None:
    """Bound what a hostile file can make SQLite do."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, BYTES_MAX + 4096)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)


def file_uri(log: Path, options: str) -> str:
    return f"file:{quote(os.fsencode(log))}?{options}"


def _beside(log: Path, suffix: str) -> Path:
    return log.with_name(log.name + suffix)


def _is_beside(log: Path, suffix: str) -> bool:
    return os.path.lexists(_beside(log, suffix))
