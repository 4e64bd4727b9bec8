"""A log is read in pages, and what is not there is named."""

from pathlib import Path

import pytest

from refold.events.core.errors import PersistenceError
from refold.events.core.ids import StreamName
from refold.inspection.log_reading import (
    EVENTS_PER_PAGE,
    STREAMS_PER_PAGE,
    Batches,
    Streams,
    kind_of,
    opened,
    session_head,
)
from refold.stores import InMemoryStore
from tests.runtime.log_builder import LogBuilder


@pytest.mark.parametrize("first", [1, EVENTS_PER_PAGE - 1, EVENTS_PER_PAGE, EVENTS_PER_PAGE + 1, 3 * EVENTS_PER_PAGE])
async def test_batches_are_whole_wherever_pages_end(builder: LogBuilder, first: int) -> None:
    sizes = [first, 1, 2, EVENTS_PER_PAGE, 3]
    for size in sizes:
        await builder.append(StreamName("order/1"), [b"{}"] * size)
    batches = [batch async for batch in Batches(builder.store, "order/1")]
    assert [len(batch) for batch in batches] == sizes
    assert [event.version for batch in batches for event in batch] == list(range(1, sum(sizes) + 1))


async def test_an_unknown_stream_has_no_batches() -> None:
    assert [batch async for batch in Batches(InMemoryStore(), "order/1")] == []


async def test_streams_come_in_order_over_all_pages(builder: LogBuilder) -> None:
    names = [f"order/{number:05}" for number in range(STREAMS_PER_PAGE + 5)]
    for name in reversed(names):
        await builder.append(StreamName(name), [b"{}"])
    assert [head.stream async for head in Streams(builder.store)] == names
    assert [head.stream async for head in Streams(builder.store, prefix="order/0000")] == names[:10]


async def test_an_open_store_stays_open() -> None:
    store = InMemoryStore()
    async with opened(store) as same:
        assert same is store
    assert await store.read_all() == []


async def test_a_file_is_closed_again(log_file: Path) -> None:
    async with opened(log_file) as store:
        assert await store.head("session/alice") is not None
    with pytest.raises(PersistenceError, match="closed"):
        await store.head("session/alice")


def test_the_kind_is_what_stands_before_the_first_slash() -> None:
    assert [kind_of(name) for name in ("session/a/b", "tool/x", "nothing")] == ["session", "tool", "nothing"]


async def test_a_session_is_found_by_its_name_whatever_the_name(builder: LogBuilder) -> None:
    for name in ("ünï/cödé 👩‍🚀", "a/b", "%"):
        await builder.open(name)
        assert (await session_head(builder.store, name)).stream == f"session/{name}"
