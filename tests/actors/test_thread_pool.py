"""Blocking code in threads: bounded, abandoned without loss of places, named, and never waited for."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator

import pytest

from refold.actors.thread_pool import LateOutcome, ThreadPool, place_lent
from refold.events.core.errors import ConfigError


class Stuck:
    """A function that runs until it is let go; `begun` says that a thread is in it."""

    def __init__(self, result: str = "late") -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.result = result

    def __call__(self) -> str:
        self.begun.set()
        self.let_go.wait(30)
        return self.result


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    """A pool of one thread."""
    made = ThreadPool(1)
    yield made
    made.close()


async def reached(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 30)


async def test_a_function_runs_in_a_daemon_thread_with_the_callers_context_variables() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("from the caller")

    def look(prefix: str, *, suffix: str) -> tuple[str, bool, bool]:
        thread = threading.current_thread()
        return prefix + variable.get() + suffix, thread.daemon, thread is threading.main_thread()

    pool = ThreadPool()
    assert await pool.run(look, "<", suffix=">") == ("<from the caller>", True, False)
    assert pool.close() == ()


async def test_an_error_of_the_function_is_raised_and_one_that_would_end_the_loop_is_wrapped() -> None:
    pool = ThreadPool()

    def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(KeyError, match="k"):
        await pool.run(fail, KeyError("k"))
    with pytest.raises(RuntimeError, match="SystemExit"):
        await pool.run(fail, SystemExit(3))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.run(fail, StopIteration())
    pool.close()


async def test_threads_are_made_on_demand_and_never_more_than_the_bound() -> None:
    pool = ThreadPool(2)
    assert pool.threads == 0
    assert await pool.run(lambda: 1) == 1
    assert pool.threads == 1
    stuck = [Stuck(str(number)) for number in range(4)]
    work = [pool.submit(function, name=function.result) for function in stuck]
    await reached(stuck[0].begun)
    await reached(stuck[1].begun)
    assert pool.threads == 2
    assert not stuck[2].begun.is_set()
    for function in stuck:
        function.let_go.set()
    assert [await each for each in work] == ["0", "1", "2", "3"]
    assert pool.threads == 2
    pool.close()


async def test_abandoned_work_is_named_and_its_thread_replaced(pool: ThreadPool) -> None:
    stuck = Stuck()
    work = pool.submit(stuck, name="weather")
    await reached(stuck.begun)
    assert work.abandon()
    assert (pool.abandoned, pool.threads) == (("weather",), 0)
    assert await pool.run(lambda: "the pool still works") == "the pool still works"
    with pytest.raises(asyncio.CancelledError):
        await work
    stuck.let_go.set()
    assert pool.close() in {("weather",), ()}


async def test_abandoned_work_that_has_returned_is_named_no_longer_and_its_thread_ends(pool: ThreadPool) -> None:
    stuck = Stuck()
    threads: list[threading.Thread] = []

    def call() -> str:
        threads.append(threading.current_thread())
        return stuck()

    work = pool.submit(call, name="weather")
    await reached(stuck.begun)
    work.abandon()
    assert await pool.run(lambda: 1) == 1
    stuck.let_go.set()
    await asyncio.to_thread(threads[0].join, 30)
    assert (pool.abandoned, pool.threads) == ((), 1)
    assert await pool.run(lambda: 2) == 2


async def test_the_late_outcome_of_abandoned_work_reaches_the_loop(pool: ThreadPool) -> None:
    stuck = Stuck("the real result")
    late: asyncio.Future[LateOutcome[str]] = asyncio.get_running_loop().create_future()
    work = pool.submit(stuck, name="weather")
    await reached(stuck.begun)
    work.abandon(on_late=late.set_result)
    stuck.let_go.set()
    outcome = await late
    assert (outcome.name, outcome.value, outcome.error) == ("weather", "the real result", None)
    await pool.run(lambda: None)


async def test_work_that_was_never_begun_is_never_begun_once_abandoned(pool: ThreadPool) -> None:
    stuck = Stuck()
    first = pool.submit(stuck, name="first")
    await reached(stuck.begun)
    ran: list[str] = []
    second = pool.submit(lambda: ran.append("second"), name="second")
    assert not second.abandon()
    assert pool.abandoned == ()
    stuck.let_go.set()
    assert await first == "late"
    await pool.run(lambda: None)
    assert ran == []


async def test_abandoning_what_is_done_changes_nothing() -> None:
    pool = ThreadPool()
    work = pool.submit(lambda: 1, name="quick")
    assert await work == 1
    assert work.done()
    assert not work.abandon()
    assert await work == 1
    pool.close()


async def test_cancelling_run_abandons_its_work(pool: ThreadPool) -> None:
    stuck = Stuck()
    task = asyncio.create_task(pool.run(stuck))
    await reached(stuck.begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(pool.abandoned) == 1
    assert await pool.run(lambda: 1) == 1
    stuck.let_go.set()


async def test_close_does_not_wait_and_names_what_is_stuck(pool: ThreadPool) -> None:
    stuck = Stuck()
    running = pool.submit(stuck, name="stuck")
    queued = pool.submit(lambda: 1, name="queued")
    await reached(stuck.begun)
    assert pool.close() == ("stuck",)
    for work in (running, queued):
        with pytest.raises(asyncio.CancelledError):
            await work
    with pytest.raises(ConfigError, match="closed"):
        pool.submit(lambda: 1, name="too late")
    stuck.let_go.set()


def test_a_late_outcome_after_the_loop_was_closed_is_dropped_quietly() -> None:
    stuck = Stuck()
    finished = threading.Event()

    def call() -> str:
        try:
            return stuck()
        finally:
            finished.set()

    async def abandon(on_late: Callable[[LateOutcome[str]], object]) -> None:
        pool = ThreadPool()
        work = pool.submit(call, name="stuck")
        await reached(stuck.begun)
        work.abandon(on_late)

    late: list[LateOutcome[str]] = []
    asyncio.run(abandon(late.append))
    stuck.let_go.set()
    assert finished.wait(30)
    assert late == []


def test_a_pool_without_threads_is_refused() -> None:
    with pytest.raises(ConfigError, match="threads_max"):
        ThreadPool(0)


async def test_work_that_waits_for_other_work_lends_its_place_and_works_on_beyond_the_bound() -> None:
    pool, stuck, inner = ThreadPool(1), Stuck(), Stuck("inner")
    loop = asyncio.get_running_loop()

    def outer() -> str:
        with place_lent(), place_lent():
            answer = asyncio.run_coroutine_threadsafe(pool.run(inner), loop).result()
        stuck()
        return f"outer of {answer}"

    waiting = asyncio.create_task(pool.run(outer))
    await reached(inner.begun)
    assert pool.threads == 1
    inner.let_go.set()
    await reached(stuck.begun)
    later = asyncio.create_task(pool.run(threading.current_thread))
    assert await later is not threading.current_thread()
    stuck.let_go.set()
    assert await waiting == "outer of inner"
    assert await pool.run(lambda: "again") == "again"
    assert pool.threads == 1
    assert pool.close() == ()


async def test_work_that_is_abandoned_while_its_place_is_lent_takes_no_place_back() -> None:
    pool, stuck, ended = ThreadPool(1), Stuck(), threading.Event()

    def wait() -> None:
        with place_lent():
            stuck()
        ended.set()

    work = pool.submit(wait, name="wait")
    await reached(stuck.begun)
    assert work.abandon()
    assert pool.threads == 0
    assert await pool.run(lambda: "other") == "other"
    assert pool.threads == 1
    stuck.let_go.set()
    await reached(ended)
    assert await pool.run(lambda: "other") == "other"
    assert pool.threads == 1
    pool.close()


def test_a_thread_of_no_pool_has_no_place_to_lend() -> None:
    with place_lent():
        assert threading.current_thread() is threading.main_thread()
