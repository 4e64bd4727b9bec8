"""The deterministic loop: virtual time, an order that follows from a schedule, and nothing of the world outside."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from refold.scenarios.world.loop import (
    Deadlock,
    OutsideWorld,
    Schedule,
    SeededSchedule,
    SimulatedLoop,
    SparseSchedule,
    StepLimit,
)

T = TypeVar("T")


def run(program: Coroutine[Any, Any, T], schedule: Schedule | None = None, *, steps_max: int = 100_000) -> T:
    loop = SimulatedLoop(schedule, steps_max=steps_max)
    try:
        return loop.run_until_complete(program)
    finally:
        loop.steps = 0
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def names_in_order(count: int = 4, turns: int = 3) -> list[int]:
    order: list[int] = []

    async def work(number: int) -> None:
        for _ in range(turns):
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*[work(number) for number in range(count)])
    return order


def test_sleeping_takes_no_time_and_moves_the_loops_clock() -> None:
    async def sleep() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    began = time.process_time()
    assert run(sleep()) == 86_400
    assert time.process_time() - began < 60


def test_timers_come_in_the_order_of_their_times() -> None:
    async def sleepers() -> list[float]:
        woken: list[float] = []

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(asyncio.get_running_loop().time())

        await asyncio.gather(sleep(3), sleep(1), sleep(2))
        return woken

    assert run(sleepers()) == [1, 2, 3]


def test_without_a_schedule_tasks_take_turns() -> None:
    assert run(names_in_order()) == [0, 1, 2, 3] * 3


def test_a_seed_gives_its_order_again_and_seeds_differ() -> None:
    orders = [run(names_in_order(), SeededSchedule(seed)) for seed in range(20)]
    assert orders == [run(names_in_order(), SeededSchedule(seed)) for seed in range(20)]
    assert len({tuple(order) for order in orders}) > 10
    assert all(sorted(order) == sorted([0, 1, 2, 3] * 3) for order in orders)


def test_a_sparse_schedule_is_fair_but_for_what_it_names() -> None:
    assert run(names_in_order(), SparseSchedule({})) == [0, 1, 2, 3] * 3
    assert run(names_in_order(), SparseSchedule({0: 2})) != [0, 1, 2, 3] * 3


def test_plain_callbacks_keep_their_order_whatever_the_schedule() -> None:
    async def callbacks() -> list[int]:
        loop, order = asyncio.get_running_loop(), list[int]()
        for number in range(10):
            loop.call_soon(order.append, number)
        await asyncio.sleep(1)
        return order

    for seed in range(10):
        assert run(callbacks(), SeededSchedule(seed)) == list(range(10))


def test_sets_of_tasks_are_in_the_order_in_which_these_were_made() -> None:
    async def numbers() -> list[str]:
        tasks = {asyncio.ensure_future(asyncio.sleep(1)) for _ in range(30)}
        done, _ = await asyncio.wait(tasks)
        return [task.get_name() for task in done]

    assert run(numbers()) == run(numbers())


def test_waiting_for_what_never_comes_is_a_deadlock_that_names_who_waits() -> None:
    async def wait() -> None:
        asyncio.current_task().set_name("the one who waits")  # type: ignore[union-attr]
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="the one who waits"):
        run(wait())


@pytest.mark.parametrize(
    ("steps_max", "words"),
    [(500, "no end after 500 steps"), (1_000_000, r"200,000 steps at once, at 0\.000 s")],
)
def test_a_program_that_goes_on_and_on_or_never_lets_time_go_by_is_ended(steps_max: int, words: str) -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - what is to be ended
            await asyncio.sleep(0)

    with pytest.raises(StepLimit, match=words):
        run(spin(), steps_max=steps_max)


@pytest.mark.parametrize(
    "reach",
    [
        lambda: asyncio.to_thread(print),
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.start_server(print, "localhost", 0),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.create_subprocess_shell("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
    ],
)
def test_the_world_outside_is_refused(reach: Any) -> None:
    async def program() -> None:
        await reach()

    with pytest.raises(OutsideWorld, match="which a simulation has not"):
        run(program())


def test_a_step_that_is_stopped_before_it_is_taken_is_not_lost() -> None:
    class Stop(BaseException):
        pass

    loop = SimulatedLoop()
    taken: list[int] = []

    async def work() -> None:
        for number in range(5):
            taken.append(number)
            await asyncio.sleep(0)

    def stop(step: int) -> None:
        if step == 3:
            loop.before_step = None
            raise Stop

    loop.before_step = stop
    task = loop.create_task(work())
    with pytest.raises(Stop):
        loop.run_until_complete(task)
    loop.run_until_complete(task)
    assert taken == [0, 1, 2, 3, 4]
    loop.close()
