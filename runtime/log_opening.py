"""The log of a runtime: opened as its options say, and what the runtime before it left."""

import os

from refold.actors.clock import SystemClock
from refold.contained_store import ContainedStore
from refold.events.runtime_core import RUNTIME_CODEC
from refold.events.runtime_events import RUNTIME_STREAM, RuntimeClosed
from refold.options import Settings
from refold.stores.event_store import EventStore
from refold.stores.json_lines_store import JsonLinesStore
from refold.stores.memory import InMemoryStore
from refold.stores.opening import open_log
from refold.stores.sqlite_store import SQLiteStore


async def ended_in_order(store: EventStore) -> bool:
    """Tell whether the runtime that had the log before recorded its end."""
    head = await store.head(RUNTIME_STREAM)
    if head is None:
        return False
    last = RUNTIME_CODEC.decode_all(await store.read_stream(RUNTIME_STREAM, after_version=head.version - 1))
    return bool(last) and isinstance(last[-1], RuntimeClosed)


async def opened_store(options: Settings) -> tuple[EventStore, bool]:
    """Return the log, and whether it is the runtime's to close."""
    log = options.log
    if isinstance(log, str | os.PathLike):
        if log == ":memory:":
            return InMemoryStore(), True
        store = await open_log(
            log,
            durability=options.durability,
            wait_for_log_s=options.wait_for_log_s,
            append_timeout_s=options.append_timeout_s,
        )
        return store, True
    bounded = type(log) in (InMemoryStore, JsonLinesStore, SQLiteStore)
    return ContainedStore(log, options.clock or SystemClock(), None if bounded else options.append_timeout_s), False
