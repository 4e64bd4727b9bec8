from refold.stores import EventStore, EventStoreConformance, InMemoryStore


class TestInMemoryStore(EventStoreConformance):
    async def make_store(self) -> EventStore:
        return InMemoryStore()
