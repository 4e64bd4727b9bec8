"""A log is followed from outside: in order, each event once, while its writer goes on."""

# The loop of a test waits for nothing else.
# ruff: noqa: ASYNC240

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest

from refold.actors import ManualClock
from refold.events.core.errors import ConfigError, PersistenceError
from refold.events.core.records import StoredEvent
from refold.inspection.log_reading import EVENTS_PER_PAGE
from refold.replay import follow_log
from refold.stores import EventStore, InMemoryStore, SQLiteStore, batch

LOOKS_MAX = 2_000
"""So often the clock is moved on before something counts as missing."""


class Follower:
    """Follows a log in a task of its own, on a clock that the test moves."""

    def __init__(self, log: Path | EventStore, **options: object) -> None:
        self.clock = ManualClock()
        self.seen: list[StoredEvent] = []
        self._task = asyncio.ensure_future(self._follow(follow_log(log, clock=self.clock, **options)))  # type: ignore[arg-type]

    async def _follow(self, events: AsyncGenerator[StoredEvent, None]) -> None:
        async with aclosing(events):
            async for event in events:
                self.seen.append(event)

    async def until(self, position: int) -> None:
        """Return once everything up to a position was seen, and nothing is read any more until the clock moves."""
        for _ in range(LOOKS_MAX):
            if not await self._rests():
                self._task.result()
                break
            if self.seen and self.seen[-1].position >= position:
                return
            await self.clock.advance(0.2)
        raise AssertionError(f"position {position} was not seen")

    async def ended(self) -> None:
        """Return, or raise, once following has ended by itself."""
        for _ in range(LOOKS_MAX):
            if not await self._rests():
                self._task.result()
                return
            await self.clock.advance(0.2)
        raise AssertionError("it did not end")

    async def _rests(self) -> bool:
        """Wait until it has looked, in a thread where the log is a file; tell whether it will look again."""
        while not self._task.done() and not self.clock.waiting():  # noqa: ASYNC110 - A clock sets no event.
            await asyncio.sleep(0)
        return not self._task.done()

    async def stop(self) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task

    @property
    def positions(self) -> list[int]:
        return [event.position for event in self.seen]


async def test_what_is_there_and_what_comes_is_seen_once_and_in_order(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0, 3)])
        follower = Follower(log)
        await follower.until(3)
        for version in range(3, 10):
            await store.append([batch("session/a", version), batch("session/b", version - 3)])
        await follower.until(17)
        assert follower.seen == await store.read_all()
    await follower.stop()


async def test_a_writer_may_come_and_go(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
    follower = Follower(log)
    for version in range(1, 5):
        await follower.until(version)
        async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
            await store.append([batch("session/a", version)])
            if version % 2:
                await follower.until(version + 1)
    await follower.until(5)
    assert follower.positions == [1, 2, 3, 4, 5]
    await follower.stop()


async def test_a_log_of_many_pages_is_read_without_a_wait_between_them() -> None:
    store = InMemoryStore()
    await store.append([batch("session/a", 0, 3 * EVENTS_PER_PAGE)])
    async with aclosing(follow_log(store, clock=ManualClock(), follow=True)) as events:
        for position in range(1, 3 * EVENTS_PER_PAGE + 1):
            assert (await anext(events)).position == position


async def positions(store: EventStore, **options: Any) -> list[int]:
    return [event.position async for event in follow_log(store, follow=False, **options)]


@pytest.mark.parametrize(
    "count", [0, 1, EVENTS_PER_PAGE - 1, EVENTS_PER_PAGE, EVENTS_PER_PAGE + 1, 2 * EVENTS_PER_PAGE]
)
async def test_without_following_it_ends_with_the_last_event(count: int) -> None:
    store = InMemoryStore()
    if count:
        await store.append([batch("session/a", 0, count)])
    assert await positions(store) == list(range(1, count + 1))


async def test_one_stream_alone() -> None:
    store = InMemoryStore()
    await store.append([batch("session/a", 0, 2)])
    follower = Follower(store, stream="session/b")
    await follower.clock.advance(1)
    for version in range(3):
        await store.append([batch("session/a", version + 2), batch("session/b", version)])
    await follower.until(8)
    assert [(event.stream, event.version) for event in follower.seen] == [("session/b", n) for n in (1, 2, 3)]
    await follower.stop()


async def test_it_looks_again_only_after_the_poll_time() -> None:
    store = InMemoryStore()
    follower = Follower(store, poll_s=5)
    await follower.clock.advance(1)
    await store.append([batch("session/a", 0)])
    await follower.clock.advance(3)
    assert follower.seen == []
    await follower.clock.advance(2)
    assert follower.positions == [1]
    await follower.stop()


@pytest.mark.parametrize("stream", [None, "session/a"])
async def test_a_log_that_is_replaced_ends_it(tmp_path: Path, stream: str | None) -> None:
    log, other = tmp_path / "events.db", tmp_path / "other.db"
    for path, at in ((log, 1), (other, 2)):
        async with await SQLiteStore.open(path) as store:
            await store.append([batch("session/a", 0, 5, at=at)])
    follower = Follower(log, stream=stream)
    await follower.until(5)
    other.rename(log)
    with pytest.raises(PersistenceError, match="was replaced by another one"):
        await follower.ended()
    assert follower.positions == [1, 2, 3, 4, 5]


async def test_a_log_that_is_removed_ends_it(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
    follower = Follower(log)
    await follower.until(1)
    log.unlink()
    with pytest.raises(PersistenceError, match="No such file"):
        await follower.ended()


async def test_a_log_that_a_copy_of_itself_replaces_is_followed_on(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0, 2)])
    follower = Follower(log)
    await follower.until(2)
    copy = Path(shutil.copy(log, tmp_path / "copy.db"))
    async with await SQLiteStore.open(copy) as store:
        await store.append([batch("session/a", 2)])
    copy.rename(log)
    await follower.until(3)
    assert follower.positions == [1, 2, 3]
    await follower.stop()


async def test_the_wal_is_cut_back_while_somebody_follows(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0)])
        follower = Follower(log)
        await follower.until(1)
        with closing(sqlite3.connect(log, timeout=0)) as other:
            busy, pages, copied = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert (busy, pages, copied) == (0, 0, 0)
        await store.append([batch("session/a", 1)])
        await follower.until(2)
    await follower.stop()


@pytest.mark.parametrize("options", [{"poll_s": 0}, {"poll_s": float("nan")}, {"after": -1}])
async def test_what_cannot_be_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        await anext(follow_log(InMemoryStore(), **options))  # type: ignore[arg-type]
