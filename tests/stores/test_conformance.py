"""The shipped suite is believed because it fails: on stores that break one promise each."""

import unittest
from collections.abc import Sequence
from typing import Any

import pytest

from refold.events.core.errors import RefoldError
from refold.events.core.records import Appended, StoredEvent, StreamHead
from refold.inspection.check import check_log
from refold.stores import EventStoreConformance, InMemoryStore, batch


class ForgetsThePage(InMemoryStore):
    async def read_all(self, *, after_position: int = 0, limit: int = 1000) -> list[StoredEvent]:
        return await super().read_all(limit=limit)


class AppendsOneByOne(InMemoryStore):
    async def append(self, batches: Sequence[Any], payloads: Any = None) -> list[Appended]:
        appended: list[Appended] = []
        for single in batches:
            appended += await super().append([single], payloads)
        return appended


class ExpectsNothing(InMemoryStore):
    async def append(self, batches: Sequence[Any], payloads: Any = None) -> list[Appended]:
        head = await self.head(batches[0].stream) if batches else None
        if head is not None and head.version != batches[0].expected_version:
            return []
        return await super().append(batches, payloads)


class ListsInAnyOrder(InMemoryStore):
    async def list_streams(self, **options: Any) -> list[StreamHead]:
        return (await super().list_streams(**options))[::-1]


class DropsPayloads(InMemoryStore):
    async def append(self, batches: Sequence[Any], payloads: Any = None) -> list[Appended]:
        return await super().append(batches)


class ReadsForksWithoutTheirPrefix(InMemoryStore):
    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        events = await super().read_stream(stream, after_version=after_version)
        return [event for event in events if event.stream == stream][:limit]


@pytest.mark.parametrize(
    "broken",
    [
        ForgetsThePage,
        AppendsOneByOne,
        ExpectsNothing,
        ListsInAnyOrder,
        DropsPayloads,
        ReadsForksWithoutTheirPrefix,
    ],
)
def test_the_suite_finds_a_store_that_breaks_a_promise(broken: type[InMemoryStore]) -> None:
    class Suite(EventStoreConformance):
        async def make_store(self) -> InMemoryStore:
            return broken()

    suite = Suite()
    failed = []
    for name in sorted(dir(suite)):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except unittest.SkipTest:  # What asks for a store that survives its closing.
                continue
            except (AssertionError, RefoldError, ValueError, LookupError):
                failed.append(name)
    assert failed


async def test_checking_a_store_that_gives_the_same_page_for_ever_ends_and_says_so() -> None:
    store = ForgetsThePage()
    await store.append([batch("session/a", 0, 3)])
    report = await check_log(store)
    assert "position" in {problem.kind for problem in report.problems}
