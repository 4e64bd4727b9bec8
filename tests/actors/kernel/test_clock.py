"""The manual clock, and the system's clock as far as it can be observed without waiting."""

import asyncio

from refold.actors.kernel.clock import ManualClock, SystemClock


async def test_timers_run_in_order_of_their_due_times_and_then_of_setting(clock: ManualClock) -> None:
    fired: list[str] = []
    clock.call_later(2, lambda: fired.append("two"))
    clock.call_later(1, lambda: fired.append("one"))
    clock.call_later(2, lambda: fired.append("two, set later"))
    await clock.advance(1.5)
    assert fired == ["one"]
    await clock.advance(0.5)
    assert fired == ["one", "two", "two, set later"]


async def test_a_cancelled_timer_does_not_run(clock: ManualClock) -> None:
    fired: list[str] = []
    timer = clock.call_later(1, lambda: fired.append("fired"))
    timer.cancel()
    await clock.advance(2)
    assert fired == []
    assert clock.waiting() == ()


async def test_each_timer_sees_the_time_at_which_it_is_due() -> None:
    clock = ManualClock(now_us=0)
    seen: list[tuple[int, float]] = []
    for delay_s in (0.25, 1, 3):
        clock.call_later(delay_s, lambda: seen.append((clock.now_us(), clock.monotonic_s())))
    await clock.advance(5)
    assert seen == [(250_000, 0.25), (1_000_000, 1.0), (3_000_000, 3.0)]
    assert clock.monotonic_s() == 5.0


async def test_a_timer_set_by_a_timer_runs_within_the_same_advance(clock: ManualClock) -> None:
    fired: list[float] = []
    clock.call_later(1, lambda: clock.call_later(1, lambda: fired.append(clock.monotonic_s())))
    await clock.advance(2)
    assert fired == [2.0]


async def test_advance_lets_the_tasks_that_were_woken_run(clock: ManualClock) -> None:
    woken: list[float] = []

    async def sleeper() -> None:
        for _ in range(3):
            await clock.sleep(1)
            woken.append(clock.monotonic_s())

    task = asyncio.create_task(sleeper())
    await clock.advance(3)
    assert woken == [1.0, 2.0, 3.0]
    assert task.done()


async def test_a_sleeper_that_is_cancelled_leaves_no_timer(clock: ManualClock) -> None:
    task = asyncio.create_task(clock.sleep(1))
    await clock.settle()
    assert clock.waiting() == (1.0,)
    task.cancel()
    await clock.settle()
    assert clock.waiting() == ()


async def test_a_jump_of_the_wall_clock_does_not_touch_timers() -> None:
    clock = ManualClock(now_us=10_000_000)
    fired: list[int] = []
    clock.call_later(1, lambda: fired.append(clock.now_us()))
    clock.jump(-5)
    assert clock.now_us() == 5_000_000
    assert clock.monotonic_s() == 0.0
    await clock.advance(1)
    assert fired == [6_000_000]


async def test_the_system_clock_sets_timers_of_the_running_loop() -> None:
    clock = SystemClock()
    fired = asyncio.Event()
    clock.call_later(0, fired.set)
    await fired.wait()
    await clock.sleep(0)
    assert clock.monotonic_s() <= clock.monotonic_s()
    assert clock.now_us() > 1_600_000_000_000_000
