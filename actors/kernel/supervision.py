"""What happens to an actor that fails, what lives and ends with its instance, and when idle actors are let go.

One that fails is restarted after a growing pause, and stopped if that keeps happening; work beside the actors
(`Background`) is never given up. Only the decision and the report are here; `refold.actors.kernel.cell` carries it out.

The rules: no failure is silent. Each is logged on `refold.actors`, remembered, and reported to the system's
`on_failure` as an `ActorFailure`; a told message that an actor failed on is not handled again by itself, and is kept as
a `ParkedMessage`. What an instance has begun (children, background work) is held strongly, in the order it was started,
and has ended before anything else happens to it. Only an actor at rest that `may_passivate` is let go, when it has been
idle for a while, or when more actors live than may; the next message to its address makes a new instance.
"""

import asyncio
import inspect
import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from refold.actors.kernel.clock import Clock, Timer
from refold.actors.kernel.errors import AskCycle
from refold.actors.kernel.reply import TIMER_RESOLUTION_S, Reply
from refold.events.core.cleaning import error_words, text_of_error
from refold.events.core.errors import ConfigError, LogFormatError

log = logging.getLogger("refold.actors")

FAILURES_MAX = 1000
"""So many failures a system remembers."""

PARKED_MAX = 100
"""So many parked messages it keeps."""

Moment = Literal["start", "message", "failure", "stop", "background"]
"""What an actor was doing: `on_start`, a message, `on_failure`, `on_stop`, or work that it spawned."""


class ActorFailure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure of one actor, which is reported to the system's `on_failure`."""

    address: str
    error_type: str
    """Qualified name of the error's class."""
    message: str
    """The error's text."""
    during: Moment
    restarts: int
    """Restarts within the window, the one that follows this failure included."""
    stopped: bool
    """Whether the actor is now stopped, having failed too often."""


class ParkedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A told message that was not handled; no asker waits to learn of it."""

    address: str
    """Whom it was for."""
    message: object
    reason: str
    """Why it was not handled, in words."""


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often a failing actor is restarted, and how long it waits before."""

    restarts_max: int = 5
    """Restarts allowed within `window_s`; the next failure stops the actor. 0 = the first one does."""
    window_s: float = 60.0
    backoff_s: float = 0.1
    """Pause before the first restart within the window; each further one takes twice as long."""
    backoff_max_s: float = 10.0

    def __post_init__(self) -> None:
        if self.restarts_max < 0 or self.window_s <= 0 or self.backoff_s < 0 or self.backoff_max_s < self.backoff_s:
            raise ConfigError(
                f"{self} cannot work: restarts_max and backoff_s must be >= 0, window_s > 0, "
                "and backoff_max_s >= backoff_s"
            )

    def pause_s(self, restart: int) -> float:
        """Return the seconds before the given restart within the window, 1 being the first."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(restart - 1, 64))


class Supervisor:
    """Judges and reports the failures of one system's actors."""

    def __init__(
        self, policy: RestartPolicy, clock: Clock, on_failure: Callable[[ActorFailure], object] | None
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._on_failure = on_failure
        self.failures: deque[ActorFailure] = deque(maxlen=FAILURES_MAX)
        """The last ones, oldest first."""
        self.background_restarts = 0
        """How often background work was begun again."""
        self.parked: deque[ParkedMessage] = deque(maxlen=PARKED_MAX)
        """The last ones, oldest first."""

    def judge(self, address: str, error: BaseException, during: Moment, restarts_s: list[float]) -> float | None:
        """Report a failure; return the seconds to wait before the restart, or None where the actor is to be stopped.

        Of `restarts_s`, the times of its earlier restarts, those before the window are removed, and this one is added.
        """
        now_s = self._clock.monotonic_s()
        restarts_s[:] = [time_s for time_s in restarts_s if now_s - time_s < self._policy.window_s]
        damaged = isinstance(error, LogFormatError)  # No restart mends a log.
        stopped = damaged or len(restarts_s) >= self._policy.restarts_max
        if not stopped:
            restarts_s.append(now_s)
        self.report(address, error, during, restarts=len(restarts_s), stopped=stopped)
        return None if stopped else self._policy.pause_s(len(restarts_s))

    def begun_again(self, name: str, error: BaseException, restarts: int) -> None:
        self.background_restarts += 1
        said = text_of_error(error) or "it was cancelled by other code"
        self._tell(f"background/{name}", error, said, "background", restarts, stopped=False)

    def report(
        self, address: str, error: BaseException, during: Moment, *, restarts: int = 0, stopped: bool = False
    ) -> None:
        """Log a failure and tell the listener. A listener that raises is logged and otherwise ignored."""
        if stopped and isinstance(error, LogFormatError):
            outcome = "stopped, since no restart mends a log"
        elif stopped:
            outcome = f"stopped, having been restarted {restarts} times within {self._policy.window_s:g} s"
        elif during in ("start", "message"):
            outcome = (
                f"restarting it ({restarts} of at most {self._policy.restarts_max} in {self._policy.window_s:g} s)"
            )
        else:
            outcome = "nothing else changes for it"
        log.error("actor %s failed in %s: %s; %s", address, during, error_words(error), outcome, exc_info=error)
        self._tell(address, error, text_of_error(error), during, restarts, stopped=stopped)

    def _tell(
        self, address: str, error: BaseException, said: str, during: Moment, restarts: int, *, stopped: bool
    ) -> None:
        failure = ActorFailure(
            address=address,
            error_type=f"{type(error).__module__}.{type(error).__qualname__}",
            message=said,
            during=during,
            restarts=restarts,
            stopped=stopped,
        )
        self.failures.append(failure)
        if self._on_failure is None:
            return
        try:
            self._on_failure(failure)
        except Exception:
            log.exception("on_failure itself failed while it was told of %s", failure)


Work = Callable[[], Coroutine[Any, Any, None]]

PAUSES = RestartPolicy()
"""Of background work, which is begun again however often it ends."""


class Begin(Protocol):
    """Begins background work and returns it; `Background` itself, or `ActorSystem.background`, which also reports."""

    def __call__(self, name: str, work: Work, /, over: Callable[[], None] | None = None) -> "Background": ...


class Background:
    """Work beside the actors that must not end before its owner ends it; begins when it is made, on the running loop.

    Any code on the loop may cancel any task, and any work may raise. However a task of this ends, the work is begun
    again after a pause that grows; that is logged, and reported. So `work` must take up what there is to do from where
    it keeps that. It is over when `work` returns.

    Args:
        name: of its tasks, for logs and debuggers.
        work: makes the coroutine that does it.
        over: called when `work` has returned, or was ended.
        report: is told, in addition to the log, what ended a task before its time.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        /,
        over: Callable[[], None] | None = None,
        report: Callable[[str, BaseException, int], None] | None = None,
    ) -> None:
        self.name = name
        self.restarts = 0
        """How often it was begun again."""
        self._work = work
        self._over = over
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._ends_s: list[float] = []
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._finished = self._loop.create_future()
        self._begin()

    @property
    def is_over(self) -> bool:
        return self._finished.done()

    def end(self) -> None:
        """Have it end; `wait` returns when it has."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._settle()
        else:
            self._task.cancel()

    async def wait(self) -> None:
        await asyncio.wait([self._finished])

    async def stop(self) -> None:
        self.end()
        await self.wait()

    def _begin(self) -> None:
        self._timer = None
        work = self._whole()
        self._task = self._loop.create_task(work, name=self.name)
        self._task.add_done_callback(self._task_ended)
        self._task.add_done_callback(lambda _: work.close())  # Cancelled before its first step, it would warn of that.

    async def _whole(self) -> None:
        await self._work()
        self._settle()  # At once, so that what comes from now on begins other work.

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None or self._ended or isinstance(error, KeyboardInterrupt | SystemExit):  # Those end the loop.
            self._settle()
            return
        now_s = self._loop.time()
        self._ends_s = [*(end_s for end_s in self._ends_s if now_s - end_s < PAUSES.window_s), now_s]
        pause_s = PAUSES.pause_s(len(self._ends_s))
        # By the loop's own time, since a clock that a test moves may stand still.
        self._timer = self._loop.call_later(pause_s, self._begin_again, error)

    def _begin_again(self, error: BaseException) -> None:
        # Told of only now: a loop that is torn down cancels all tasks, and seldom comes this far.
        if _is_torn_down():
            self._settle()
            return
        self.restarts += 1
        failed = None if isinstance(error, asyncio.CancelledError) else error
        cause = f"failed: {error_words(failed)}" if failed is not None else "was cancelled by other code"
        log.error("%s %s; it begins again", self.name, cause, exc_info=failed)
        self._begin()
        if self._report is not None:
            self._report(self.name, error, self.restarts)

    def _settle(self) -> None:
        if not self._finished.done():
            self._finished.set_result(None)
            if self._over is not None:
                self._over()


def _is_torn_down() -> bool:
    """Tell whether the running loop is at its end, and runs only until all that it has cancelled has ended.

    No loop says so; `asyncio.run`, and each `asyncio.Runner`, runs it from there.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is asyncio.Runner.close.__code__:
            return True
        frame = frame.f_back
    return False


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

    def spawn(
        self, work: Coroutine[Any, Any, R], name: str, over: Callable[[], object] | None = None
    ) -> asyncio.Task[R]:
        system = self._system
        task = system.loop.create_task(_contained(work), name=f"{self._address} {name}", context=system.context.copy())
        self._tasks[task] = None
        task.add_done_callback(partial(self._ended, work, over))
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
        stopping = [(child, child.request_stop(now=now)) for child in reversed(list(self.children.values()))]
        for child, stopped in stopping:
            try:
                await stopped
            except AskCycle:  # its handler waits for us, so it will not come to its end by itself
                await child.request_stop(now=True)

    def _ended(
        self, work: Coroutine[Any, Any, object], over: Callable[[], object] | None, task: asyncio.Task[Any]
    ) -> None:
        self._tasks.pop(task, None)
        work.close()  # cancelled before its first step, it would warn of that
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._system.supervisor.report(self._address, error, "background")
        if over is not None:
            over()


async def _contained(work: Coroutine[Any, Any, R]) -> R:
    """Await background work; SystemExit would stop the loop, so it becomes an ordinary error."""
    try:
        return await work
    except SystemExit as error:
        raise RuntimeError(f"background work raised {error_words(error)}") from error


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
