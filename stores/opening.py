"""Which store a path means.

The rule: the name decides, not the content. To look into a file that may be an SQLite log of this very process would
be to close it again, and POSIX then drops the locks that SQLite holds on it (`refold.stores.sqlite.ownership`).
"""

import os
from typing import TYPE_CHECKING, Final

from refold.stores.append_rules import APPEND_TIMEOUT_S, WAIT_FOR_LOG_S

if TYPE_CHECKING:
    from refold.stores.jsonl.store import JsonLinesStore
    from refold.stores.sqlite.file import Durability
    from refold.stores.sqlite.store import SQLiteStore

JSON_LINES_SUFFIX: Final = ".jsonl"
"""A log whose name ends so, in lower or upper case, is one in JSON Lines; every other one is an SQLite file."""


def is_json_lines(path: str | os.PathLike[str]) -> bool:
    """Return whether a log at the path is, or would be, one in JSON Lines."""
    return os.fspath(path).lower().endswith(JSON_LINES_SUFFIX)


async def open_log(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    durability: "Durability" = "full",
    wait_for_log_s: float = WAIT_FOR_LOG_S,
    append_timeout_s: float = APPEND_TIMEOUT_S,
) -> "SQLiteStore | JsonLinesStore":
    """Open the log at a path: a `JsonLinesStore` if its name ends in `.jsonl`, else an `SQLiteStore`.

    The arguments are those of `SQLiteStore.open`.

    Raises:
        LogInUse: another runtime owns the log.
        LogFormatError: the file is not a log, is damaged, or comes from a newer Refold; it was left untouched.
        PersistenceError: the file or its folder cannot be used; the message says which and why.
        ConfigError: the path names no file, or this system cannot have logs.
    """
    if is_json_lines(path):
        from refold.stores.jsonl.store import JsonLinesStore

        return await JsonLinesStore.open(
            path,
            read_only=read_only,
            durability=durability,
            wait_for_log_s=wait_for_log_s,
            append_timeout_s=append_timeout_s,
        )
    from refold.stores.sqlite.store import SQLiteStore

    return await SQLiteStore.open(
        path,
        read_only=read_only,
        durability=durability,
        wait_for_log_s=wait_for_log_s,
        append_timeout_s=append_timeout_s,
    )
