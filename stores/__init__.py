"""Where events and values are kept: the protocols, their implementations, and their contracts as tests.

Read `refold.stores.event_store` first. Names load on first use, so that importing this package costs nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.stores.append_rules import FaultPoint as FaultPoint
    from refold.stores.conformance import EventStoreConformance as EventStoreConformance
    from refold.stores.event_store import EventStore as EventStore
    from refold.stores.memory import InMemoryStore as InMemoryStore
    from refold.stores.sample_batches import batch as batch
    from refold.stores.sqlite.ownership import LogOwner as LogOwner
    from refold.stores.sqlite.ownership import log_owner as log_owner
    from refold.stores.sqlite.store import SQLiteStore as SQLiteStore
    from refold.stores.values.backend import PersistenceBackend as PersistenceBackend
    from refold.stores.values.backend import checked_key as checked_key
    from refold.stores.values.backend import checked_value as checked_value
    from refold.stores.values.conformance import PersistenceBackendConformance as PersistenceBackendConformance
    from refold.stores.values.files import FileBackend as FileBackend
    from refold.stores.values.memory import MemoryBackend as MemoryBackend
    from refold.stores.values.sqlite import SQLiteBackend as SQLiteBackend
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.stores.append_rules": "FaultPoint",
            "refold.stores.conformance": "EventStoreConformance",
            "refold.stores.event_store": "EventStore",
            "refold.stores.memory": "InMemoryStore",
            "refold.stores.sample_batches": "batch",
            "refold.stores.sqlite.ownership": "log_owner LogOwner",
            "refold.stores.sqlite.store": "SQLiteStore",
            "refold.stores.values.backend": "PersistenceBackend checked_key checked_value",
            "refold.stores.values.conformance": "PersistenceBackendConformance",
            "refold.stores.values.files": "FileBackend",
            "refold.stores.values.memory": "MemoryBackend",
            "refold.stores.values.sqlite": "SQLiteBackend",
        },
    )
