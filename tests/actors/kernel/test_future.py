"""Futures that threads and coroutines wait for alike."""

import asyncio
import threading

import pytest

from refold.actors import ActorFuture, ActorStopped


async def test_any_number_of_coroutines_get_the_value() -> None:
    future: ActorFuture[int] = ActorFuture()

    async def wait() -> int:
        return await future

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not future.ready()
    future.set(7)
    assert await asyncio.gather(*waiting) == [7, 7, 7]
    assert future.get() == 7


async def test_a_thread_gets_what_the_loop_sets_and_the_loop_gets_what_a_thread_sets() -> None:
    to_thread: ActorFuture[str] = ActorFuture()
    to_loop: ActorFuture[str] = ActorFuture()

    def relay() -> None:
        to_loop.set(to_thread.get(timeout=10) + ", relayed")

    thread = threading.Thread(target=relay)
    thread.start()
    to_thread.set("hello")
    assert await to_loop == "hello, relayed"
    thread.join()


async def test_an_error_is_raised_for_each_who_asks_and_its_traceback_does_not_grow() -> None:
    future: ActorFuture[int] = ActorFuture()
    error = ValueError("broken")
    future.settle(error=error)
    depths = set()
    for _ in range(3):
        with pytest.raises(ValueError, match="broken") as raised:
            await future
        depths.add(len(raised.traceback))
    assert len(depths) == 1


def test_settling_says_whether_it_was_the_first() -> None:
    future: ActorFuture[int] = ActorFuture()
    assert future.settle(1)
    assert not future.settle(2)
    assert not future.settle(error=ValueError("late"))
    assert future.get() == 1


def test_set_exception_needs_an_error() -> None:
    with pytest.raises(ValueError, match="needs an error"):
        ActorFuture[int]().set_exception()


async def test_an_awaiter_that_is_cancelled_leaves_the_others_waiting() -> None:
    future: ActorFuture[int] = ActorFuture()

    async def wait() -> int:
        return await future

    given_up, patient = asyncio.create_task(wait()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    future.set(1)
    assert await patient == 1
    assert given_up.cancelled()


def test_a_thread_is_not_left_waiting_for_a_loop_that_was_closed() -> None:
    loop = asyncio.new_event_loop()
    future: ActorFuture[int] = ActorFuture(loop)
    loop.close()
    with pytest.raises(ActorStopped, match="closed"):
        future.get()


def test_settling_after_a_waiters_loop_was_closed_is_quiet() -> None:
    future: ActorFuture[int] = ActorFuture()

    async def give_up() -> None:
        async def wait() -> int:
            return await future

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(give_up())
    future.set(1)
    assert future.ready()


async def test_derived_futures_can_be_awaited_and_are_ready_with_what_they_are_derived_from() -> None:
    numbers: ActorFuture[list[int]] = ActorFuture()
    doubled = numbers.map(lambda items: [2 * item for item in items])
    total = numbers.reduce(lambda a, b: a + b, 100)
    both = numbers.join(doubled)
    assert not doubled.ready()
    numbers.set([1, 2, 3])
    assert doubled.ready()
    assert (await doubled, await total, await both) == ([2, 4, 6], 106, [[1, 2, 3], [2, 4, 6]])


async def test_a_long_computation_leaves_the_loop_free_and_is_done_once() -> None:
    source: ActorFuture[int] = ActorFuture()
    begun, go_on, calls, loop = asyncio.Event(), threading.Event(), [], asyncio.get_running_loop()

    def compute(value: int) -> int:
        calls.append(threading.current_thread())
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(10)
        return value + 1

    computed = source.map_in_thread(compute)
    waiting = [asyncio.ensure_future(_outcome(computed)) for _ in range(2)]
    source.set(1)
    await begun.wait()
    assert not computed.ready()
    waiting[0].cancel()
    await asyncio.sleep(0)
    go_on.set()
    assert await waiting[1] == 2
    assert await computed == computed.get() == 2
    assert len(calls) == 1
    assert calls[0] is not threading.current_thread()


async def test_a_computation_that_fails_raises_for_each_who_asks() -> None:
    source: ActorFuture[int] = ActorFuture()
    source.set(0)
    computed = source.map_in_thread(lambda value: 1 // value)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await computed
    with pytest.raises(ZeroDivisionError):
        computed.get()


def test_in_a_thread_a_computation_is_done_by_who_gets_it() -> None:
    source: ActorFuture[int] = ActorFuture()
    source.set(1)
    assert source.map_in_thread(lambda value: threading.current_thread()).get() is threading.current_thread()


async def _outcome(future: ActorFuture[int]) -> int:
    return await future
