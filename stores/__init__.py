"""Where events lie: the EventStore protocol and its implementations.

Read `refold.stores.event_store` first. Names load on first use, so that importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.stores.append_rules import FaultPoint as FaultPoint
    from refold.stores.event_store import EventStore as EventStore
    from refold.stores.memory import InMemoryStore as InMemoryStore
    from refold.stores.sqlite.ownership import LogOwner as LogOwner
    from refold.stores.sqlite.ownership import log_owner as log_owner
    from refold.stores.sqlite.store import SQLiteStore as SQLiteStore
    from refold.stores.values.backend import PersistenceBackend as PersistenceBackend
    from refold.stores.values.files import FileBackend as FileBackend
    from refold.stores.values.memory import MemoryBackend as MemoryBackend
    from refold.stores.values.sqlite import SQLiteBackend as SQLiteBackend

__all__ = [
    "EventStore",
    "FaultPoint",
    "FileBackend",
    "InMemoryStore",
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
    "FileBackend": "refold.stores.values.files",
    "InMemoryStore": "refold.stores.memory",
    "LogOwner": "refold.stores.sqlite.ownership",
    "MemoryBackend": "refold.stores.values.memory",
    "PersistenceBackend": "refold.stores.values.backend",
    "SQLiteBackend": "refold.stores.values.sqlite",
    "SQLiteStore": "refold.stores.sqlite.store",
    "log_owner": "refold.stores.sqlite.ownership",
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
