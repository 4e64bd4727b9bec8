"""The border around a user's store is a store itself, and passes the suite that every store passes."""

from pathlib import Path

import pytest

from refold.actors import ManualClock
from refold.guarded_store import ContainedStore
from refold.stores import EventStore, EventStoreConformance, InMemoryStore, SQLiteStore


class TestContainedInMemoryStore(EventStoreConformance):
    async def make_store(self) -> EventStore:
        return ContainedStore(InMemoryStore(), ManualClock(), 30)


class TestContainedSQLiteStore(EventStoreConformance):
    @pytest.fixture(autouse=True)
    def log(self, tmp_path: Path) -> None:
        self.path = tmp_path / "events.db"

    async def make_store(self) -> EventStore:
        return ContainedStore(await SQLiteStore.open(self.path), ManualClock(), None)

    async def reopen_store(self, store: EventStore) -> EventStore:
        await store.close()
        return await self.make_store()
