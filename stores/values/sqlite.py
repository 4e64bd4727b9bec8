"""The persistence backend in the file of a log: a table beside the events, written by the log's own writer.

Read `refold.stores.values.backend` for the contract. The table is made with the first value. No event refers to
it: a log with it is read and written by every Refold that knows the log's format, and `refold export` and `import`,
which carry events, leave it behind.
"""

import sqlite3
from collections.abc import Callable
from typing import Final

from refold.events.core.errors import ConfigError, LogFormatError, LogInUse, PersistenceError
from refold.stores.event_store import EventStore
from refold.stores.sqlite.store import SQLiteStore
from refold.stores.values.backend import PersistenceBackend, checked_key, checked_value, shown

TABLE: Final = "CREATE TABLE kept_values (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL) STRICT"
"""Keys are UTF-8, so that their order is that of code points, and NUL means nothing."""

_Change = Callable[[sqlite3.Connection], None]

_FIND_TABLE: Final = "SELECT sql FROM sqlite_schema WHERE name = 'kept_values'"
_SAVE: Final = "INSERT OR REPLACE INTO kept_values (key, value) VALUES (?, ?)"
_LOAD: Final = "SELECT value FROM kept_values WHERE key = ?"
_EXISTS: Final = "SELECT 1 FROM kept_values WHERE key = ?"
_DELETE: Final = "DELETE FROM kept_values WHERE key = ?"
_COUNT: Final = "SELECT count(*) FROM kept_values"

# No key holds the byte 0xFF, so the keys that begin with a prefix are those from it up to it and that byte.
_LIST: Final = "SELECT key FROM kept_values WHERE key >= ? AND key < ? ORDER BY key"


class SQLiteBackend(PersistenceBackend):
    """Keeps values in the file of an open log; they are as durable as its events.

    Args:
        store: the log, open for writing if values are to be saved: `runtime.store`, where the runtime has its log at a
            path, or what `SQLiteStore.open` gave. It stays the caller's to close.

    Raises:
        ConfigError: the store is no SQLiteStore.
    """

    def __init__(self, store: EventStore) -> None:
        if not isinstance(store, SQLiteStore):
            raise ConfigError(
                f"SQLiteBackend needs an SQLiteStore, such as runtime.store of a runtime whose log is a path, not "
                f"{type(store).__name__}"
            )
        self._store = store
        self._closed = False

    @property
    def name(self) -> str:
        return self._store.name

    async def save(self, key: str, value: bytes) -> None:
        row = (self._checked(key), checked_value(value, key, self.name))

        def change(connection: sqlite3.Connection) -> None:
            if not _has_table(connection):
                connection.execute(TABLE)
            connection.execute(_SAVE, row)

        await self._change(key, change, "saved in")

    async def load(self, key: str) -> bytes | None:
        encoded = self._checked(key)
        row = await self._row(_LOAD, encoded, f"the value of {shown(key)} cannot be read from {self.name}")
        return row[0] if row is not None else None

    async def delete(self, key: str) -> None:
        encoded = self._checked(key)
        if not await self.exists(key):  # Without a transaction, and without a table.
            return

        def change(connection: sqlite3.Connection) -> None:
            connection.execute(_DELETE, (encoded,))

        await self._change(key, change, "deleted from")

    async def exists(self, key: str) -> bool:
        encoded = self._checked(key)
        return await self._row(_EXISTS, encoded, f"whether {self.name} has {shown(key)} cannot be told") is not None

    async def list_keys(self, prefix: str = "") -> list[str]:
        self._require_open()
        start = prefix.encode("utf-8", "surrogatepass")  # A prefix that no key can have finds none.

        def read(connection: sqlite3.Connection) -> list[bytes]:
            if not _has_table(connection):
                return []
            return [key for (key,) in connection.execute(_LIST, (start, start + b"\xff")).fetchall()]

        keys = await self._store.read_beside(read, f"the keys of {self.name} cannot be listed")
        return [key.decode() for key in keys]

    async def key_count(self) -> int:
        self._require_open()

        def read(connection: sqlite3.Connection) -> int:
            return int(connection.execute(_COUNT).fetchone()[0]) if _has_table(connection) else 0

        return await self._store.read_beside(read, f"the keys of {self.name} cannot be counted")

    async def close(self) -> None:
        self._closed = True

    async def _row(self, query: str, encoded: bytes, failed: str) -> tuple[bytes] | None:
        def read(connection: sqlite3.Connection) -> tuple[bytes] | None:
            if not _has_table(connection):
                return None
            row: tuple[bytes] | None = connection.execute(query, (encoded,)).fetchone()
            return row

        return await self._store.read_beside(read, failed)

    async def _change(self, key: str, change: _Change, what: str) -> None:
        failed = f"the value of {shown(key)} could not be {what} {self.name}"
        try:
            await self._store.change_beside(change, failed)
        except (LogFormatError, LogInUse):
            raise
        except PersistenceError as error:
            if failed in str(error):
                raise
            raise PersistenceError(f"{failed}: {error}", outcome_unknown=error.outcome_unknown) from error

    def _checked(self, key: str) -> bytes:
        self._require_open()
        return checked_key(key, self.name)

    def _require_open(self) -> None:
        if self._closed:
            raise PersistenceError(f"the values of {self.name} are closed; make another SQLiteBackend of the log")


def _has_table(connection: sqlite3.Connection) -> bool:
    row = connection.execute(_FIND_TABLE).fetchone()
    if row is None:
        return False
    if row[0] not in (TABLE, TABLE.encode()):
        raise LogFormatError("the log has a table kept_values that Refold did not make; drop or rename it")
    return True
