"""Where events lie: the EventStore protocol and its implementations.

Read `refold.stores.event_store` first. Names load on first use, so that importing this package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.stores.append_rules import FaultPoint as FaultPoint
    from refold.stores.event_store import EventStore as EventStore
    from refold.stores.json_lines_store import JsonLinesStore as JsonLinesStore
    from refold.stores.log_ownership import LogOwner as LogOwner
    from refold.stores.log_ownership import log_owner as log_owner
    from refold.stores.memory import InMemoryStore as InMemoryStore
    from refold.stores.sqlite_store import SQLiteStore as SQLiteStore

__all__ = [
    "EventStore",
    "FaultPoint",
    "InMemoryStore",
    "JsonLinesStore",
    "LogOwner",
    "SQLiteStore",
    "log_owner",
]

_HOMES = {
    "EventStore": "refold.stores.event_store",
    "FaultPoint": "refold.stores.append_rules",
    "InMemoryStore": "refold.stores.memory",
    "JsonLinesStore": "refold.stores.json_lines_store",
    "LogOwner": "refold.stores.log_ownership",
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
