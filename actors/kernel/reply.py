"""What an ask waits on: its reply, the deadline of that, and the detection of circles of waiting actors.

Read `refold.actors.kernel.future` first. The rule protected here: every ask ends. It is answered, or its actor stops,
or its time is over, or it would wait in a circle, or the system closes; `OpenAsks` holds each until one of these is
true.

Circles are found where a handler begins to wait. An actor handles one message at a time, so while its handler awaits
a reply of B, everything behind that message waits for B; if B's handler waits for us in turn, directly or through
others, no one will ever move. Each async handler is one `Handling`, known to what runs inside it by a context
variable (tasks and threads started inside inherit it), and lists the replies awaited in it at the moment.
"""

import contextlib
import math
import queue
from asyncio import AbstractEventLoop
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any, Protocol

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import ActorStopped, AskCycle, AskTimeout
from refold.actors.kernel.future import ActorFuture, ExcInfo

TIMER_RESOLUTION_S = 1e-6
"""A deadline nearer than this has come: timers do not fire more exactly."""


class Answerer(Protocol):
    """Who is to answer: as much of an actor cell as waiting needs to know."""

    address: str

    @property
    def handling(self) -> "Handling | None": ...


class Handling:
    """One message while its async handler runs; over when the cell's `handling` is no longer this object."""

    interruptible = True
    """Whether stopping the actor now may cancel it."""
    awaited: "dict[Reply, None] | None" = None

    def __init__(self, cell: Answerer) -> None:
        self.cell = cell

    def active(self) -> bool:
        return self.cell.handling is self

    def wait_for(self, reply: "Reply") -> None:
        """Note that the handler waits for `reply`.

        A wait that would never end settles `reply` with AskCycle, and withdraws it: if its message is still queued,
        it is never handled.
        """
        if not self.active():
            return  # what waits was started by a handler that has returned: its actor is free to answer
        circle = _circle(reply.answerer, self.cell)
        if circle is not None:
            if reply.settle(error=AskCycle((self.cell.address, *circle))):  # Else it was found before.
                reply.withdrawn = True
            return
        if self.awaited is None:
            self.awaited = {}
        self.awaited[reply] = None

    def stop_waiting(self, reply: "Reply") -> None:
        if self.awaited is not None:
            self.awaited.pop(reply, None)


current_handling: ContextVar[Handling | None] = ContextVar("refold_current_handling", default=None)
"""The message inside whose handler this code runs, if any. It may be over: see `Handling`."""


def _circle(answerer: Answerer | None, goal: Answerer) -> tuple[str, ...] | None:
    """Return the addresses from `answerer` to `goal`, if the one waits for the other, directly or through others."""
    if answerer is None:
        return None
    if answerer is goal:
        return (goal.address,)
    handling = answerer.handling
    if handling is not None and handling.awaited is not None:
        for reply in tuple(handling.awaited):  # Another loop or thread may change it meanwhile.
            if not reply.ready():
                path = _circle(reply.answerer, goal)
                if path is not None:
                    return (answerer.address, *path)
    return None


class Reply(ActorFuture[Any]):
    """The answer to one ask."""

    answerer: Answerer | None = None
    """Set once the message is in a mailbox."""
    waited_for_in: Handling | None = None
    """The handler whose thread blocks until the answer is there: known when the message arrives, so that all that comes
    of the message finds it waiting."""
    withdrawn = False
    """Whether the message is to be dropped unhandled, since waiting for its answer would never end."""
    lane: "dict[Reply, None] | None" = None
    deadline_s = math.inf

    def __init__(self, loop: AbstractEventLoop, address: str) -> None:
        self._loop = loop
        self.address = address

    def settle(self, value: Any = None, error: BaseException | None = None) -> bool:
        """Set the outcome, from any thread; see `ActorFuture.settle`."""
        lane = self.lane
        if lane is not None:
            lane.pop(self, None)
        return super().settle(value, error)

    def set(self, value: Any = None) -> None:
        self.settle(value)

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        if not self._ready:
            with contextlib.suppress(queue.Full):  # settled in another thread meanwhile
                super().set_exception(exc_info)

    def get(self, *, timeout: float | None = None) -> Any:
        """Return the answer, blocking this thread until it is there; see `ActorFuture.get`.

        Raises:
            AskCycle: the answer could never come, since the actor asked waits, perhaps through others, for the
                handler for which this thread works.
        """
        handling = None if self._ready else current_handling.get()
        if handling is None or self._loop is None:  # pyright: ignore[reportUnnecessaryComparison] - mypy sees the base's
            return super().get(timeout=timeout)
        with contextlib.suppress(RuntimeError):  # The loop is closed, which blocking here finds out by itself.
            self._loop.call_soon_threadsafe(handling.wait_for, self)  # Behind the message on its way.
        try:
            return super().get(timeout=timeout)
        finally:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(handling.stop_waiting, self)

    def __await__(self) -> Generator[Any, None, Any]:
        """Suspend until the answer is there; return it or raise the error.

        Raises:
            AskCycle: the answer could never come, since the actor asked waits, perhaps through others, for the
                handler that awaits here.
        """
        handling = None if self._ready else current_handling.get()
        return super().__await__() if handling is None else self._await_in(handling)

    def _await_in(self, handling: Handling) -> Generator[Any, None, Any]:
        handling.wait_for(self)
        try:
            return (yield from super().__await__())
        finally:
            handling.stop_waiting(self)

    __iter__ = __await__

    def _name(self) -> str:
        return self.address


class OpenAsks:
    """The asks without an answer, in the order asked, and the timers that end them.

    Asks with the same timeout end in the order they began, so one timer per distinct timeout is enough: an ask costs
    one entry in a dictionary, not a timer of its own.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lanes: dict[float, dict[Reply, None]] = {}

    def add(self, reply: Reply, timeout_s: float) -> None:
        """Give `reply` so many seconds from now; `math.inf` = until the system closes. Only on the system's loop."""
        lane = self._lanes.get(timeout_s)
        if lane is None:
            lane = self._lanes[timeout_s] = {}
            if timeout_s < math.inf:
                self._clock.call_later(timeout_s, lambda: self._expire(timeout_s))
        if timeout_s < math.inf:
            reply.deadline_s = self._clock.monotonic_s() + timeout_s
        reply.lane = lane
        lane[reply] = None

    def end_all(self, reason: str) -> None:
        """Answer everything that is still open with ActorStopped, since the system is closed."""
        for lane in list(self._lanes.values()):
            for reply in list(lane):
                reply.settle(error=ActorStopped(reply.address, reason))

    def _expire(self, timeout_s: float) -> None:
        lane = self._lanes[timeout_s]
        now_s = self._clock.monotonic_s()
        for reply in list(lane):
            remaining_s = reply.deadline_s - now_s
            if remaining_s > TIMER_RESOLUTION_S:
                self._clock.call_later(remaining_s, lambda: self._expire(timeout_s))
                return
            reply.settle(error=AskTimeout(reply.address, timeout_s))
        del self._lanes[timeout_s]
