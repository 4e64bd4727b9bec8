"""A loop in a thread: what becomes of calls and of what lives on it, at its beginning and at its end."""

import asyncio
import contextlib
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from refold import ActorStopped
from refold.actors.loop_thread import AlreadyClosed, LoopThread
from tests.conformance.threads import InThread


class Inside:
    """Something that lives on a loop, and notes what happens to it."""

    def __init__(self, *, fails: str = "") -> None:
        self.fails = fails
        self.noted: list[str] = []
        self.left = asyncio.Event()

    @asynccontextmanager
    async def lived(self) -> AsyncIterator[None]:
        self.noted.append(f"entered in {threading.current_thread().name}")
        if self.fails == "at first":
            raise KeyError(self.fails)
        yield
        self.noted.append("left")
        self.left.set()
        if self.fails == "at last":
            raise KeyError(self.fails)


def started(inside: Inside, *, patience_s: float = 60) -> LoopThread:
    thread = LoopThread(inside.lived(), name="test loop", patience_s=patience_s)
    thread.start()
    return thread


def test_what_lives_on_the_loop_is_entered_first_and_left_last() -> None:
    inside = Inside()
    thread = started(inside)

    async def work() -> str:
        inside.noted.append("worked")
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert thread.run(work) == "test loop"
    thread.stop()
    thread.stop()
    assert inside.noted == ["entered in test loop", "worked", "left"]
    assert "test loop" not in [other.name for other in threading.enumerate()]


def test_what_fails_on_leaving_is_logged_and_the_thread_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    thread = started(Inside(fails="at last"))
    with caplog.at_level(logging.ERROR, logger="refold.runtime"):
        thread.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "test loop has not ended in order: KeyError('at last')"
    ]
    assert "test loop" not in [other.name for other in threading.enumerate()]


def test_a_call_that_is_under_way_at_the_end_may_end_by_itself() -> None:
    inside, begun = Inside(), threading.Event()
    thread = started(inside)

    async def work() -> str:
        begun.set()
        await inside.left.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        return "worked"

    working = InThread(lambda: thread.run(work))
    begun.wait()
    thread.stop()
    assert working.result() == "worked"


def test_a_call_that_never_ends_is_cut_when_the_patience_is_over_and_its_caller_is_told() -> None:
    thread, begun, ended = started(Inside(), patience_s=0.05), threading.Event(), list[str]()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cut")

    working = InThread(lambda: thread.run(work))
    begun.wait()
    thread.stop()
    with pytest.raises(ActorStopped, match="the runtime is closed") as raised:
        working.result()
    assert not isinstance(raised.value, AlreadyClosed)
    assert ended == ["cut"]


def test_a_call_that_cancels_itself_raises_what_asyncio_would_raise() -> None:
    thread = started(Inside())

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        thread.run(work)
    thread.stop()


class Large:
    """What a call returns, or has in its frame when it raises."""


def test_nobody_keeps_what_calls_came_to() -> None:
    thread, seen = started(Inside()), list[weakref.ref[Large]]()

    async def work(fail: bool) -> Large:
        large = Large()
        seen.append(weakref.ref(large))
        if fail:
            raise KeyError
        return large

    thread.run(lambda: work(False))
    with contextlib.suppress(KeyError):
        thread.run(lambda: work(True))
    thread.run(lambda: asyncio.sleep(0))  # The loop has done with both.
    gc.collect()
    assert [reference() for reference in seen] == [None, None]
    thread.stop()
