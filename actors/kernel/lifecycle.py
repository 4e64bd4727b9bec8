"""What lives and ends with an instance of an actor (children, background work), and when idle actors are let go.

Read `refold.actors.kernel.cell` first. The rules: everything is held strongly, in the order it was started; no error of
background work is lost; and when the instance stops or restarts, all of it has ended before anything else happens.
An actor that `may_passivate` is stopped when it has been idle for a while, or when more actors live than may and it has
been idle longest. Its address stays, and the next message there makes a new instance. Only an actor at rest is let
go, and while nothing is idle there is no timer.
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, Protocol, TypeVar

from refold.actors.kernel.clock import Clock, Timer
from refold.actors.kernel.errors import AskCycle
from refold.actors.kernel.reply import TIMER_RESOLUTION_S, Reply
from refold.actors.kernel.supervision import Supervisor, describe

R = TypeVar("R")


class TaskSystem(Protocol):
    """As much of an actor system as background work needs to know."""

    loop: AbstractEventLoop
    context: Context
    supervisor: Supervisor


class Child(Protocol):
    """As much of a cell as what ends it needs to know."""

    def request_stop(self, *, now: bool, reply: Reply | None = None) -> Reply: ...
    def passivate(self) -> None: ...


class Dependents:
    """The children and the background tasks of the cell of one address."""

    __slots__ = ("_address", "_system", "_tasks", "children")

    def __init__(self, system: TaskSystem, address: str) -> None:
        self._system = system
        self._address = address
        self.children: dict[str, Child] = {}
        """By address, oldest first."""
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        system = self._system
        task = system.loop.create_task(_contained(work), name=f"{self._address} {name}", context=system.context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it would warn of that
        return task

    def busy(self) -> bool:
        return bool(self.children or self._tasks)

    def cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def end_tasks(self) -> None:
        while self._tasks:
            self.cancel_tasks()
            for task in list(self._tasks):
                await asyncio.wait([task])

    async def stop_children(self, *, now: bool) -> None:
        """Stop the children, last started first, and return when all have stopped."""
        stopping = [(child, child.request_stop(now=now)) for child in reversed(list(self.children.values()))]
        for child, stopped in stopping:
            try:
                await stopped
            except AskCycle:  # its handler waits for us, so it will not come to its end by itself
                await child.request_stop(now=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._system.supervisor.report(self._address, error, "background")


async def _contained(work: Coroutine[Any, Any, R]) -> R:
    """Await background work; SystemExit would stop the loop, so it becomes an ordinary error."""
    try:
        return await work
    except SystemExit as error:
        raise RuntimeError(f"background work raised {describe(error)}") from error


class Passivation:
    """The idle actors of one system that may be let go, longest idle first."""

    def __init__(self, clock: Clock, after_s: float | None, live_max: int | None) -> None:
        self._clock = clock
        self._after_s = after_s
        self._live_max = live_max
        self._idle: dict[Child, float] = {}  # when each came to rest, on the monotonic clock
        self._timer: Timer | None = None
        self.going = 0
        """Actors that are being let go now."""
        self.count = 0
        """Actors that were let go so far."""

    def rested(self, cell: Child, live: int) -> None:
        """Note that an actor that may be let go has nothing to do, `live` actors living now."""
        self._idle[cell] = self._clock.monotonic_s() if self._after_s is not None else 0.0
        self.make_room(live)
        if self._timer is None and self._after_s is not None and self._idle:
            self._timer = self._clock.call_later(self._after_s, self._look)

    def woken(self, cell: Child) -> None:
        self._idle.pop(cell, None)

    def make_room(self, live: int) -> None:
        """Let actors go, longest idle first, until no more live than may, or none is idle."""
        while self._live_max is not None and live - self.going > self._live_max and self._idle:
            self._let_go(next(iter(self._idle)))

    def end(self) -> None:
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _let_go(self, cell: Child) -> None:
        del self._idle[cell]
        self.going += 1
        self.count += 1
        cell.passivate()

    def _look(self) -> None:
        self._timer = None
        if self._after_s is None:
            return
        now_s = self._clock.monotonic_s()
        while self._idle:
            cell, rested_s = next(iter(self._idle.items()))
            remaining_s = rested_s + self._after_s - now_s
            if remaining_s > TIMER_RESOLUTION_S:
                self._timer = self._clock.call_later(remaining_s, self._look)
                return
            self._let_go(cell)
