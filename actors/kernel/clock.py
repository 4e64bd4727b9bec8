"""Time, as a port: the only way in which the actor kernel and everything above it learns or awaits time.

`SystemClock` is the real one. `ManualClock` stands still until a test advances it; it is shipped, so that users test
their own actors, timeouts and backoffs without waiting. The rule: no other module reads time or sets a timer.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

SETTLE_ROUNDS = 50
"""How often `ManualClock.advance` lets the loop go round after each timer: deeper chains of tasks need `settle`."""

RUN_STEP_S, RUN_EVERY_S = 1.0, 0.01
"""How far, and how often by the loop's time, a `ManualClock` moves while something ends after an error."""


class Timer(Protocol):
    """What `Clock.call_later` returns."""

    def cancel(self) -> None:
        """Keep the callback from being called; without effect once it was."""
        ...


class Clock(Protocol):
    """Where time comes from. Timers belong to the running event loop; only the two readings work without one."""

    def now_us(self) -> int:
        """Return microseconds since the epoch, UTC. It may jump, backwards too."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment; it never goes back. Only differences mean something."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` on the running loop after `delay_s` seconds; a delay <= 0 means as soon as possible."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds."""
        ...


class SystemClock:
    """The machine's clock and the running loop's timers."""

    def now_us(self) -> int:
        """Return microseconds since the epoch, UTC."""
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        """Return the machine's monotonic clock in seconds."""
        return time.monotonic()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Set a timer of the running loop.

        Raises:
            RuntimeError: no event loop is running in this thread.
        """
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds of the running loop's time."""
        await asyncio.sleep(delay_s)


class _ManualTimer:
    __slots__ = ("callback", "due_us")

    def __init__(self, due_us: int, callback: Callable[[], object]) -> None:
        self.due_us = due_us
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock that moves only when told to; all its timers run inside `advance`, in order of their due times.

    Where an error leaves the block of a runtime or an actor system, the clock moves by itself until that is closed, so
    that a test which fails ends.

    Use it from one thread, that of the event loop under test.
    """

    def __init__(self, now_us: int = 1_750_000_000_000_000) -> None:
        """Begin at `now_us` microseconds since the epoch, UTC."""
        self._now_us = now_us
        self._elapsed_us = 0
        self._timers: list[tuple[int, int, _ManualTimer]] = []
        self._order = itertools.count()

    def now_us(self) -> int:
        """Return microseconds since the epoch, UTC."""
        return self._now_us

    def monotonic_s(self) -> float:
        """Return the seconds advanced so far."""
        return self._elapsed_us / 1_000_000

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative; timers and `monotonic_s` do not notice."""
        self._now_us += round(seconds * 1_000_000)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` in the `advance` that reaches `delay_s` seconds from now."""
        due_us = self._elapsed_us + max(0, round(delay_s * 1_000_000))
        timer = _ManualTimer(due_us, callback)
        heapq.heappush(self._timers, (due_us, next(self._order), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        """Return once the clock was advanced by `delay_s` seconds."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        timer = self.call_later(delay_s, wake)
        try:
            await waiter
        finally:
            timer.cancel()

    def waiting(self) -> tuple[float, ...]:
        """Return in how many seconds each timer that is set is due, soonest first."""
        return tuple(
            (due_us - self._elapsed_us) / 1_000_000
            for due_us, _, timer in sorted(self._timers)
            if timer.callback is not None
        )

    async def advance(self, seconds: float) -> None:
        """Move time forward, calling each timer that falls due and letting the loop settle after each.

        A timer set by a callback meanwhile runs too if it falls due. Only work on the loop is waited for, not
        work in threads.
        """
        end_us = self._elapsed_us + round(seconds * 1_000_000)
        await self.settle()
        while self._timers and self._timers[0][0] <= end_us:
            due_us, _, timer = heapq.heappop(self._timers)
            callback, timer.callback = timer.callback, None
            if callback is None:
                continue
            self._move_to(due_us)
            callback()
            await self.settle()
        self._move_to(end_us)
        await self.settle()

    async def settle(self) -> None:
        """Let everything that is ready on the loop run, `SETTLE_ROUNDS` rounds deep, without moving time."""
        for _ in range(SETTLE_ROUNDS):
            await asyncio.sleep(0)

    def _move_to(self, elapsed_us: int) -> None:
        self._now_us += elapsed_us - self._elapsed_us
        self._elapsed_us = elapsed_us


@asynccontextmanager
async def moved_after(error: BaseException | None, clock: Clock | None) -> AsyncGenerator[None]:
    """Have a `ManualClock` move by itself inside, if there was an error: who would have moved it is gone by then."""
    if error is None or not isinstance(clock, ManualClock):
        yield
        return
    moving = asyncio.get_running_loop().create_task(_move(clock), name="moving the clock")
    try:
        yield
    finally:
        moving.cancel()
        await asyncio.wait([moving])


async def _move(clock: ManualClock) -> None:
    while True:
        await asyncio.sleep(RUN_EVERY_S)
        await clock.advance(RUN_STEP_S)
