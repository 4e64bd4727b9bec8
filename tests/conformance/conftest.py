"""Logs that are checked and replayed when the test that used them is over."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from refold.log_check import check_log
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore, SQLiteStore


@pytest.fixture(params=["memory", "file"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A log that is checked and replayed when the test is over; a replay has no handler and no policy."""
    store: EventStore = InMemoryStore() if request.param == "memory" else await SQLiteStore.open(tmp_path / "events.db")
    yield store
    await assert_sound(store)
    await store.close()


@pytest.fixture
async def memory() -> AsyncIterator[InMemoryStore]:
    """A log in memory, for tests in which a `ManualClock` says how time goes; checked and replayed likewise."""
    store = InMemoryStore()
    yield store
    await assert_sound(store)


async def assert_sound(store: Any) -> None:
    assert (await check_log(store)).problems == ()
    (await replay(store, level="core")).raise_for_divergence()
