from refold.stores import EventStore, InMemoryStore
from refold.stores.conformance import EventStoreConformance


class TestInMemoryStore(EventStoreConformance):
    async def make_store(self) -> EventStore:
        return InMemoryStore()
