"""What happens to an actor that fails: restarted after a growing pause, and stopped if that keeps happening.

The same for work beside the actors (`Background`), which is never given up.

Only the decision and the report are here; `refold.actors.kernel.cell` carries it out. The rule protected here: no
failure is silent. Each is logged on `refold.actors`, remembered, and reported to the system's `on_failure` as an
`ActorFailure`; a told message that an actor failed on is not handled again by itself, and is kept as a `ParkedMessage`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Literal, Protocol

import msgspec

from refold.actors.kernel.clock import Clock
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
        """Decide what follows a failure, and report it.

        Args:
            restarts_s: times of the actor's earlier restarts; those before the window are removed, and the one
                decided on now is added.

        Returns:
            Seconds to wait before the restart, or None if the actor is to be stopped: it failed too often, or
            the log that it is rebuilt from is damaged.
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
        """Remember that background work ended before its time, and tell the listener; it has been logged."""
        self.background_restarts += 1
        self._tell(
            ActorFailure(
                address=f"background/{name}",
                error_type=f"{type(error).__module__}.{type(error).__qualname__}",
                message=str(error) or "it was cancelled by other code",
                during="background",
                restarts=restarts,
                stopped=False,
            )
        )

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
        log.error("actor %s failed in %s: %s; %s", address, during, describe(error), outcome, exc_info=error)
        failure = ActorFailure(
            address=address,
            error_type=f"{type(error).__module__}.{type(error).__qualname__}",
            message=str(error),
            during=during,
            restarts=restarts,
            stopped=stopped,
        )
        self._tell(failure)

    def _tell(self, failure: ActorFailure) -> None:
        self.failures.append(failure)
        if self._on_failure is None:
            return
        try:
            self._on_failure(failure)
        except Exception:
            log.exception("on_failure itself failed while it was told of %s", failure)


def describe(error: BaseException) -> str:
    """Return an error in one line: its class and text."""
    return f"{type(error).__qualname__}: {error}" if str(error) else type(error).__qualname__


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
        """Return when it is over."""
        await asyncio.wait([self._finished])

    async def stop(self) -> None:
        """End it, and return when it has ended."""
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
        # Told of only now: a loop that is torn down cancels all tasks, and does not come this far.
        self.restarts += 1
        failed = None if isinstance(error, asyncio.CancelledError) else error
        cause = f"failed: {describe(failed)}" if failed is not None else "was cancelled by other code"
        log.error("%s %s; it begins again", self.name, cause, exc_info=failed)
        self._begin()
        if self._report is not None:
            self._report(self.name, error, self.restarts)

    def _settle(self) -> None:
        if not self._finished.done():
            self._finished.set_result(None)
            if self._over is not None:
                self._over()
