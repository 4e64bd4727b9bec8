"""Synchronous tools in threads, and what their cancellation does."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from refold.actors import CancellationToken, ThreadPool
from refold.actors.calls.tool_context import ToolContext
from refold.tools.registry import ToolRegistry
from refold.tools.tool import tool
from tests.runtime.tools.tool_calls import context


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool(1)
    yield pool
    pool.close()


class Bench:
    """A tool that works in its thread until it is let go, called once as by an actor."""

    def __init__(self, pool: ThreadPool) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.token = CancellationToken()
        self.error: BaseException | None = None

        @tool
        def work(ctx: ToolContext[object]) -> str:
            self.begun.set()
            assert self.let_go.wait(30)
            if self.error is not None:
                raise self.error
            if self.obeys:
                ctx.cancel.raise_if_cancelled()
            return "worked"

        self.obeys = False
        self.task = asyncio.create_task(ToolRegistry([work], pool=pool).run("work", {}, context(cancel=self.token)))

    async def has_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 30)

    async def cancelled_by_user(self) -> None:
        """Cancel the token and the task, and let the task see it."""
        self.token.cancel()
        self.task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_a_cancelled_run_waits_for_the_real_end_of_a_body_and_gets_its_value(pool: ThreadPool) -> None:
    bench = Bench(pool)
    await bench.has_begun()
    await bench.cancelled_by_user()
    assert not bench.task.done()
    assert pool.abandoned == ("tool work",)
    bench.let_go.set()
    assert await bench.task == "worked"


async def test_a_cancelled_body_gives_its_place_to_the_next_at_once(pool: ThreadPool) -> None:
    stuck, other = Bench(pool), Bench(pool)
    await stuck.has_begun()
    await stuck.cancelled_by_user()
    other.let_go.set()
    assert await other.task == "worked"
    assert not stuck.task.done()
    stuck.let_go.set()
    assert await stuck.task == "worked"


@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [(LookupError("nothing there"), LookupError, "nothing there"), (SystemExit(3), RuntimeError, "SystemExit")],
)
async def test_what_a_cancelled_body_raises_is_raised_and_does_not_end_the_loop(
    pool: ThreadPool, error: BaseException, raised: type[Exception], said: str
) -> None:
    bench = Bench(pool)
    bench.error = error
    await bench.has_begun()
    await bench.cancelled_by_user()
    bench.let_go.set()
    with pytest.raises(raised, match=said):
        await bench.task


async def test_a_body_that_obeys_its_token_ends_as_cancelled(pool: ThreadPool) -> None:
    bench = Bench(pool)
    bench.obeys = True
    await bench.has_begun()
    bench.token.cancel()
    bench.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await bench.task
    assert pool.abandoned == ()


async def test_without_the_token_the_wait_ends_at_once_and_the_thread_is_abandoned(pool: ThreadPool) -> None:
    bench = Bench(pool)
    await bench.has_begun()
    bench.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench.task
    assert pool.abandoned == ("tool work",)
    bench.let_go.set()


async def test_a_second_cancellation_ends_the_wait_for_a_cancelled_body(pool: ThreadPool) -> None:
    bench = Bench(pool)
    await bench.has_begun()
    await bench.cancelled_by_user()
    bench.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bench.task
    assert pool.abandoned == ("tool work",)
    bench.let_go.set()


@pytest.mark.parametrize("by_user", [True, False])
async def test_a_body_that_waits_for_a_thread_when_it_is_cancelled_is_never_begun(
    pool: ThreadPool, by_user: bool
) -> None:
    first = Bench(pool)
    await first.has_begun()
    queued = Bench(pool)
    await asyncio.sleep(0)
    if by_user:
        queued.token.cancel()
    queued.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued.task
    first.let_go.set()
    assert await first.task == "worked"
    assert not queued.begun.is_set()


async def test_a_value_that_came_just_before_the_cancellation_is_kept(pool: ThreadPool) -> None:
    bench, next_one = Bench(pool), Bench(pool)
    await bench.has_begun()
    await asyncio.sleep(0)
    bench.let_go.set()
    assert next_one.begun.wait(30)  # the only thread has ended the first body, and this loop has not heard of it
    bench.token.cancel()
    bench.task.cancel()
    assert await bench.task == "worked"
    next_one.let_go.set()
    assert await next_one.task == "worked"
