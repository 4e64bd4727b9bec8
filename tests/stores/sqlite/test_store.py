from pathlib import Path

import pytest

from refold.stores import EventStore, SQLiteStore
from refold.stores.conformance import EventStoreConformance


class TestSQLiteStore(EventStoreConformance):
    @pytest.fixture(autouse=True)
    def log(self, tmp_path: Path) -> None:
        self.path = tmp_path / "events.db"

    async def make_store(self) -> EventStore:
        return await SQLiteStore.open(self.path)

    async def reopen_store(self, store: EventStore) -> EventStore:
        await store.close()
        return await SQLiteStore.open(self.path)
