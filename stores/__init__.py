"""Where events lie: the EventStore protocol and its implementations.

Read `refold.stores.event_store` first. Names load on first use, so that importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.stores.append_rules import FaultPoint as FaultPoint
    from refold.stores.event_store import EventStore as EventStore
    from refold.stores.file_backend import FileBackend as FileBackend
    from refold.stores.json_lines_store import JsonLinesStore as JsonLinesStore
    from refold.stores.log_ownership import LogOwner as LogOwner
    from refold.stores.log_ownership import log_owner as log_owner
    from refold.stores.memory import InMemoryStore as InMemoryStore
    from refold.stores.memory_backend import MemoryBackend as MemoryBackend
    from refold.stores.persistence_backend import PersistenceBackend as PersistenceBackend
    from refold.stores.sqlite_backend import SQLiteBackend as SQLiteBackend
    from refold.stores.sqlite_store import SQLiteStore as SQLiteStore

__all__ = [
    "EventStore",
    "FaultPoint",
    "FileBackend",
    "InMemoryStore",
    "JsonLinesStore",
    "LogOwner",
    "MemoryBackend",
    "PersistenceBackend",
    "SQLiteBackend",
    "SQLiteStore",
    "log_owner",
]

_HOMES = {
    "EventStore": "refold.stores.event_store",
    "FaultPoint": "refold.stores.append_rules",
    "FileBackend": "refold.stores.file_backend",
    "InMemoryStore": "refold.stores.memory",
    "JsonLinesStore": "refold.stores.json_lines_store",
    "LogOwner": "refold.stores.log_ownership",
    "MemoryBackend": "refold.stores.memory_backend",
    "PersistenceBackend": "refold.stores.persistence_backend",
    "SQLiteBackend": "refold.stores.sqlite_backend",
    "SQLiteStore": "refold.stores.sqlite_store",
    "log_owner": "refold.stores.log_ownership",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
