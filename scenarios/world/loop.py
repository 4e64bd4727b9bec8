"""An event loop without a world: time is virtual, order comes from a seed, and an attempt to reach outside raises.

Sleeping costs nothing: when nothing is ready, time jumps to the next timer. One step is one callback. Callbacks run in
the order in which they were scheduled, as asyncio promises and its own parts rely on; but where a step of a task is
next, another task's step that is ready too may overtake it, which is all that a real machine can change for code on one
loop. `Schedule` says which.

The rules: the same program with the same schedule takes the same steps, in every process. So tasks and futures hash by
the order in which they were made and not by address, garbage is collected between the lives of a simulation and not
whenever memory says so, and threads, sockets, processes and signals are refused.
"""

import asyncio
import heapq
import random
from asyncio import base_events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

from refold.events.core.errors import RefoldError

T = TypeVar("T")

STEPS_MAX = 5_000_000
"""A simulation that takes more steps of the loop does not end."""

STEPS_AT_ONCE_MAX = 200_000
"""A simulation that takes more steps without any time going by never lets time go by."""


REFUSED = {
    "run_in_executor": "work was to be done in a thread",
    "add_signal_handler": "a handler was to be set for a signal",
    "add_reader": "a file descriptor was to be watched",
    "add_writer": "a file descriptor was to be watched",
    "getaddrinfo": "an address was asked for from the network",
    "create_connection": "a connection was to be opened over the network",
    "create_server": "a server was to be opened on the network",
    "create_datagram_endpoint": "a socket was to be opened on the network",
    "create_unix_connection": "a socket was to be opened",
    "create_unix_server": "a socket was to be opened",
    "subprocess_exec": "a process was to be started beside this one",
    "subprocess_shell": "a process was to be started beside this one",
}
"""The loop's methods that reach outside, and what a call of each is told."""


class SimulationError(RefoldError):
    """The simulated program did what it cannot do, or did not end."""


class Deadlock(SimulationError):
    """Nothing is ready and nothing is waited for that could become ready."""


class OutsideWorld(SimulationError):
    """The simulated program reached for threads, the network, other processes or signals."""


class StepLimit(SimulationError):
    """The simulated program goes on and on."""


class Schedule(Protocol):
    """Says which of the tasks that are ready goes next."""

    def choose(self, ready: int) -> int:
        """Return how many ready callbacks are overtaken, from 0, the fair order, to `ready - 1`."""
        ...


class FairSchedule:
    """Everything in the order in which it became ready."""

    def choose(self, ready: int) -> int:
        return 0


class SeededSchedule:
    """Any order, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"schedule {seed}")

    def choose(self, ready: int) -> int:
        return self._random.randrange(ready)


class SparseSchedule:
    """The fair order but for some choices, so that a failing order can be shrunk to what matters.

    By the number of the choice, from 0, how many are overtaken; more than there are means all.
    """

    def __init__(self, deviations: Mapping[int, int]) -> None:
        self._deviations = dict(deviations)
        self._choices = -1

    def choose(self, ready: int) -> int:
        """Return what was given for this choice, or 0."""
        self._choices += 1
        return min(self._deviations.get(self._choices, 0), ready - 1)


class _Task(asyncio.Task[Any]):
    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: "SimulatedLoop", **options: Any) -> None:
        self._number = loop.next_number()
        if options.get("name") is None:
            options["name"] = f"task {self._number}"
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    def __init__(self, *, loop: "SimulatedLoop") -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(base_events.BaseEventLoop):
    """The loop; use it through `run`, or as any loop's `run_until_complete`. Without a schedule the order is fair."""

    has_threads = False
    """What would be done in a thread elsewhere is done at once."""

    def __init__(self, schedule: Schedule | None = None, *, time_s: float = 0.0, steps_max: int = STEPS_MAX) -> None:
        self._time_s = time_s
        self._numbers = 0
        self._schedule = schedule or FairSchedule()
        self._steps_max = steps_max
        self.steps = 0
        """Steps taken so far."""
        self._steps_before = 0
        """Those that were taken before the present moment."""
        self.before_step: Callable[[int], object] | None = None
        """Called with the number of each step, from 1, before it is taken; what it raises ends the simulation."""
        self.on_refused: Callable[[str], object] | None = None
        """Called with what was reached for outside, before it is refused: the caller may swallow the error."""
        super().__init__()
        self.set_task_factory(_task)
        self.set_debug(False)  # It reads the machine's clock at each step.
        for name, what in REFUSED.items():
            setattr(self, name, partial(self._refuse, what))

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def time(self) -> float:
        return self._time_s

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        try:
            return super().run_until_complete(future)
        except BaseException:  # Raised once the future was done, it leaves the call behind that ends the loop.
            own: Any = self
            stop = base_events._run_until_complete_cb  # type: ignore[attr-defined]
            own._ready = deque(handle for handle in own._ready if handle._callback is not stop)
            raise

    def _run_once(self) -> None:
        own: Any = self  # The base class keeps this for loops alone.
        ready, timers = own._ready, own._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            own._timer_cancelled_count -= 1
        if not ready:
            if not timers:
                if own._stopping:
                    return
                raise Deadlock(f"after {self.steps} steps nothing is ready and no timer is set; {_waiting(self)}")
            self._time_s = max(self._time_s, timers[0]._when)
            self._steps_before = self.steps
        while timers and timers[0]._when <= self._time_s:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if timer._cancelled:
                own._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        place = 0
        if len(ready) > 1 and _is_step_of_a_task(ready[0]):
            place = self._schedule.choose(len(ready))
            if not _is_step_of_a_task(ready[place]):
                place = 0
        if not ready[place]._cancelled:
            self.steps += 1
            if self.steps > self._steps_max:
                raise StepLimit(f"no end after {self._steps_max:,} steps, at {self._time_s:.3f} s; {_waiting(self)}")
            if self.steps - self._steps_before > STEPS_AT_ONCE_MAX:
                raise StepLimit(f"{STEPS_AT_ONCE_MAX:,} steps at once, at {self._time_s:.3f} s; {_waiting(self)}")
            if self.before_step is not None:
                self.before_step(self.steps)  # What it stops may go on later, so that no step may be lost.
        handle = ready[place]
        del ready[place]
        if not handle._cancelled:
            handle._run()

    def _process_events(self, event_list: Any) -> None:
        """There is no selector and so there are no events."""

    def _refuse(self, what: str, *args: object, **options: object) -> NoReturn:
        if self.on_refused is not None:
            self.on_refused(what)
        raise OutsideWorld(f"{what}, which a simulation has not")

    def _write_to_self(self) -> None:
        """There is no selector that would have to be woken."""


def _task(loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    assert isinstance(loop, SimulatedLoop)
    return _Task(coroutine, loop=loop, **options)


def _is_step_of_a_task(handle: Any) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    names = sorted(task.get_name() for task in asyncio.all_tasks(loop))
    return f"{len(names)} tasks wait: {', '.join(names[:10])}"
