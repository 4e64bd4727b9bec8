"""One thread per file or connection: in order, off the loop, and gone when it is closed."""

import asyncio
import threading
from functools import partial

import pytest

from refold.events.core.errors import PersistenceError
from refold.scenarios.world.loop import SimulatedLoop
from refold.stores.sqlite.connection import SerialWorker, Watchdog, close_worker, settled


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


async def test_work_runs_in_order_in_one_daemon_thread() -> None:
    worker = SerialWorker("refold test order")
    assert named("refold test order") == [], "it begins with the first work"
    done: list[int] = []

    def work(number: int) -> int:
        done.append(number)
        return threading.get_ident()

    futures = [worker.submit(partial(work, number)) for number in range(9)]
    identities = set(await asyncio.gather(*futures))
    assert done == list(range(9))
    assert len(identities) == 1
    assert threading.get_ident() not in identities
    assert [running.daemon for running in named("refold test order")] == [True]
    await close_worker(worker)
    assert named("refold test order") == []


class Crash(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize("error", [ZeroDivisionError, Crash])
async def test_an_error_reaches_who_waits_and_the_thread_goes_on(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    worker = SerialWorker("refold test errors")
    with pytest.raises(error):
        await worker.submit(fail)
    assert await worker.submit(lambda: 7) == 7
    await close_worker(worker)


async def test_work_of_a_cancelled_caller_runs_to_its_end() -> None:
    worker = SerialWorker("refold test cancelled")
    begun, released = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        begun.set()
        released.wait()
        ended.append(True)

    future = worker.submit(work)
    begun.wait()
    future.cancel()
    released.set()
    await close_worker(worker)
    assert ended == [True]


async def test_closing_waits_for_what_is_queued_but_not_longer_than_asked(caplog: pytest.LogCaptureFixture) -> None:
    worker = SerialWorker("refold test hanging")
    released = threading.Event()
    worker.submit(released.wait)
    await close_worker(worker, timeout_s=0.01)
    assert "takes longer than 0.01 s" in caplog.text
    with pytest.raises(PersistenceError, match="is closed"):
        worker.submit(released.wait)
    [running] = named("refold test hanging")
    released.set()
    running.join()


async def test_a_thread_that_never_began_needs_no_end() -> None:
    worker = SerialWorker("refold test idle")
    assert not worker.is_alive()
    worker.end()
    assert named("refold test idle") == []
    with pytest.raises(PersistenceError):
        worker.submit(int)


def test_work_that_outlives_its_loop_disturbs_nobody() -> None:
    released = threading.Event()
    worker = SerialWorker("refold test outlived")

    async def begin() -> None:
        worker.submit(released.wait)

    asyncio.run(begin())
    released.set()

    async def end() -> None:
        assert await worker.submit(lambda: 7) == 7
        await close_worker(worker)

    asyncio.run(end())


async def test_a_wait_that_is_cancelled_ends_with_the_outcome() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(settled(future))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
    future.set_exception(ValueError("nobody asks any more"))
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_wait_that_takes_too_long_is_over_and_the_work_goes_on() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await settled(future, timeout_s=0.001)
    assert not future.done()
    future.set_result(1)
    assert await settled(future) == 1


def test_a_watchdog_tells_what_is_late_by_its_own_time_on_any_loop() -> None:
    watchdog, told = Watchdog(), list[tuple[str, float]]()

    async def work(name: str, ends: bool) -> None:
        loop = asyncio.get_running_loop()
        for place in range(3):
            watchdog.begin(loop, 30.0, lambda: told.append((name, loop.time())))
            await asyncio.sleep(20.0)
            if ends or place < 2:
                watchdog.end()
        await asyncio.sleep(100.0)

    for name, ends in (("in time", True), ("late", False), ("late again", False)):
        loop = SimulatedLoop()  # The timer of the one before is never looked at again.
        loop.run_until_complete(work(name, ends))
        loop.close()
    assert told == [("late", 70.0), ("late again", 70.0)]
