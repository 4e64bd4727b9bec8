"""What an ask waits on: its reply, the deadline of that, and the detection of circles of waiting actors.

A reply is a pykka future that threads and coroutines may wait for alike. pykka's own `await` yields once and then
blocks the loop; this one suspends the coroutine. Any number of waiters, in any thread and on any loop, may wait for one
future; each is woken in its own way, and one that gives up (a timeout, a cancellation) leaves the others and the future
alone. An outcome that nobody fetches is dropped without noise.

The rules: the first outcome stays; nobody blocks the loop that would have to produce it; and every ask ends. It is
answered, or its actor stops, or its time is over, or it would wait in a circle, or the system closes; `OpenAsks` holds
each until one of these is true.

Circles are found where a handler begins to wait. An actor handles one message at a time, so while its handler awaits
a reply of B, everything behind that message waits for B; if B's handler waits for us in turn, directly or through
others, no one will ever move. Each async handler is one `Handling`, known to what runs inside it by a context
variable (tasks and threads started inside inherit it), and lists the replies awaited in it at the moment.
"""

import asyncio
import contextlib
import functools
import math
import os
import queue
import sys
import threading
from asyncio import AbstractEventLoop, events
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

import pykka

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import ActorStopped, AskCycle, AskTimeout, WouldDeadlock

T = TypeVar("T")
R = TypeVar("R")

ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]

LOOP_CHECK_S = 1.0
"""How often a blocked thread looks whether the loop it depends on was closed under it."""

_settling = threading.Lock()  # one for all futures: it guards a few assignments, and a lock each would cost memory


def _renew_lock() -> None:
    """In a forked child: the thread that held it in the parent does not run here."""
    global _settling
    _settling = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class ActorFuture(pykka.Future[T]):
    """A value that is, or will be, there: `future.get(timeout=…)` in a thread, `await future` on any loop."""

    # Set on the instance only when they change: an ask makes a future, and making it is most of what that costs.
    _ready: bool = False
    _value: T | None = None
    _error: BaseException | None = None
    _traceback: TracebackType | None = None
    _waiters: list[asyncio.Future[None] | threading.Event] | None = None

    def __init__(self, loop: AbstractEventLoop | None = None) -> None:
        """Make a future without an outcome.

        Args:
            loop: the event loop on which the outcome will be produced, if any: blocking its thread is refused.
        """
        self._loop = loop

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'ready' if self.ready() else 'waiting'}>"

    def ready(self) -> bool:
        """Return whether the outcome is there, so that `get` returns or raises at once."""
        return self._ready

    def settle(self, value: T | None = None, error: BaseException | None = None) -> bool:
        """Set the outcome, from any thread: `error` if given, else `value`.

        Returns whether it was accepted: False, and nothing changes, if there was an outcome already.
        """
        with _settling:
            if self._ready:
                return False
            self._value = value
            if error is not None:
                self._error = error
                self._traceback = error.__traceback__
            self._ready = True
            waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            _wake(waiter)
        return True

    def set(self, value: T | None = None) -> None:
        """Set the value.

        Raises:
            queue.Full: there is an outcome already (pykka's error for it).
        """
        if not self.settle(value):
            raise queue.Full

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        """Set an error: that of `exc_info`, or the one being handled.

        Raises:
            queue.Full: there is an outcome already (pykka's error for it).
            ValueError: no error was given and none is being handled.
        """
        kind, error, traceback = exc_info or sys.exc_info()
        if error is None:
            if kind is None:
                raise ValueError("set_exception() needs an error: pass exc_info, or call it in an except block")
            error = kind()
        if not self.settle(error=error.with_traceback(traceback)):
            raise queue.Full

    def set_get_hook(self, func: Callable[[float | None], T]) -> None:
        """Refuse: a hook would have to block the loop. Use `map`, or `set` the value when it is there."""
        raise NotImplementedError("this future takes no get hook; use map(), or set() the value when it is there")

    def get(self, *, timeout: float | None = None) -> T:
        """Return the value, blocking this thread until it is there.

        Args:
            timeout: seconds to block at most; None = until there is an outcome.

        Raises:
            AskTimeout: no outcome in that time; the future lives on.
            WouldDeadlock: called on the loop that has to produce the outcome; `await` it there.
            ActorStopped: that loop was closed meanwhile.
            BaseException: the error that was set.
        """
        if not self._ready:
            self._block(timeout)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, T]:
        """Suspend the coroutine until the outcome is there; return the value or raise the error."""
        if not self._ready:
            waiter: asyncio.Future[None] = events.get_running_loop().create_future()
            if self._add_waiter(waiter):
                try:
                    yield from waiter
                except BaseException:
                    self._remove_waiter(waiter)
                    raise
        return self._outcome()

    __iter__ = __await__

    def map(self, func: Callable[[T], R]) -> "ActorFuture[R]":
        """Return a future of `func(value)`; `func` is called by the first who gets or awaits it."""
        return _Derived((self,), lambda values: func(values[0]))

    def map_in_thread(self, func: Callable[[T], R]) -> "ActorFuture[R]":
        """Return a future of `func(value)` for a `func` that computes for long: it never blocks a loop that waits.

        Who awaits it has `func` called in a daemon thread of its own, who gets it in the caller's thread; once. A
        waiter that gives up leaves that thread computing. A loop that has no threads computes itself.
        """
        return _Computed((self,), lambda values: func(values[0]))

    def filter(self, func: Callable[[Any], Any]) -> "ActorFuture[Iterable[Any]]":
        """Return a future of the list of those items of the value for which `func(item)` is true."""
        return self.map(lambda items: list(filter(func, cast("Iterable[Any]", items))))

    def join(self, *futures: pykka.Future[Any]) -> "ActorFuture[Iterable[Any]]":
        """Return a future of the list of the values of this future and `futures`, in that order."""
        return _Derived((self, *futures), list)

    def reduce(self, func: Callable[[Any, Any], Any], *args: Any) -> "ActorFuture[Any]":
        """Return a future of `functools.reduce(func, value, *args)`."""
        return self.map(lambda items: functools.reduce(func, cast("Iterable[Any]", items), *args))

    def _outcome(self) -> T:
        error = self._error
        if error is None:
            return cast("T", self._value)
        try:
            raise error.with_traceback(self._traceback)
        finally:
            del self, error  # the traceback refers to this frame: keep no circle through it

    def _name(self) -> str:
        return "the future"

    def _block(self, timeout: float | None) -> None:
        loop = self._loop
        if loop is not None and events._get_running_loop() is loop:
            raise WouldDeadlock(
                f"get() on the loop's own thread would stop the loop that has to answer for {self._name()}; "
                "write `await future` instead"
            )
        event = threading.Event()
        if not self._add_waiter(event):
            return
        remaining_s = math.inf if timeout is None else timeout
        while not event.wait(0 if loop is not None and loop.is_closed() else min(LOOP_CHECK_S, remaining_s)):
            remaining_s -= LOOP_CHECK_S
            if loop is not None and loop.is_closed():
                self.settle(error=ActorStopped(self._name(), "the event loop was closed before it answered"))
            elif remaining_s <= 0:
                self._remove_waiter(event)
                raise AskTimeout(self._name(), timeout or 0)

    def _add_waiter(self, waiter: asyncio.Future[None] | threading.Event) -> bool:
        with _settling:
            if self._ready:
                return False
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            return True

    def _remove_waiter(self, waiter: asyncio.Future[None] | threading.Event) -> None:
        with _settling:
            if self._waiters is not None and waiter in self._waiters:
                self._waiters.remove(waiter)


class _Derived(ActorFuture[T]):
    """The outcome of a function of other futures' values, computed once, by the first who gets or awaits it."""

    def __init__(self, parents: tuple[pykka.Future[Any], ...], compute: Callable[[list[Any]], T]) -> None:
        super().__init__()
        self._parents = parents
        self._compute = compute
        self._begun = False

    def ready(self) -> bool:
        return self._ready or all(isinstance(parent, ActorFuture) and parent.ready() for parent in self._parents)

    def get(self, *, timeout: float | None = None) -> T:
        if not self._ready:
            self._fill([parent.get(timeout=timeout) for parent in self._parents])
        return super().get(timeout=timeout)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._ready:
            self._fill((yield from self._values()))
        return (yield from super().__await__())

    __iter__ = __await__

    def _values(self) -> Generator[Any, None, list[Any]]:
        values: list[Any] = []
        for parent in self._parents:
            values.append((yield from _for_the_loop(parent).__await__()))
        return values

    def _fill(self, values: list[Any]) -> None:
        with _settling:
            begun, self._begun = self._begun, True
        if begun:
            return
        try:
            value = self._compute(values)
        except BaseException as error:  # noqa: BLE001 - raised where it is got or awaited
            self.settle(error=error)
        else:
            self.settle(value)


class _Computed(_Derived[T]):
    """The outcome of a long computation, for which coroutines wait without blocking their loop."""

    def ready(self) -> bool:
        return self._ready

    def __await__(self) -> Generator[Any, None, T]:
        if not self._ready:
            values = yield from self._values()
            if not has_threads():
                self._fill(values)
            elif not self._begun:
                threading.Thread(target=self._fill, args=(values,), name="computing", daemon=True).start()
        return (yield from super(_Derived, self).__await__())  # The next above would compute on the loop.

    __iter__ = __await__


def has_threads() -> bool:
    """Tell whether work may be done in a thread here: everywhere but on a loop that says `has_threads = False`."""
    return getattr(events._get_running_loop(), "has_threads", True)


def settle_in_thread(future: ActorFuture[T], source: pykka.Future[T]) -> None:
    """Settle `future` with the outcome of `source`, which only a thread can wait for; a daemon thread does."""

    def wait() -> None:
        try:
            value = source.get()
        except BaseException as error:  # noqa: BLE001 - handed to those who wait
            future.settle(error=error)
        else:
            future.settle(value)

    threading.Thread(target=wait, name=f"waiting for {source!r}", daemon=True).start()


def _for_the_loop(future: pykka.Future[T]) -> ActorFuture[T]:
    """Return a future with the outcome of the given one that can be awaited without blocking the loop."""
    if isinstance(future, ActorFuture):
        return future
    awaitable: ActorFuture[T] = ActorFuture()
    settle_in_thread(awaitable, future)
    return awaitable


def _wake(waiter: asyncio.Future[None] | threading.Event) -> None:
    if isinstance(waiter, threading.Event):
        waiter.set()
        return
    loop = waiter.get_loop()
    if loop is events._get_running_loop():
        _wake_here(waiter)
    else:
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_wake_here, waiter)


def _wake_here(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


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
        # On one loop nothing happens between the look for a circle and the note. So of the waits that make up a circle
        # the last finds all others noted, in whichever order they came: where A asks B and B asks A, the second to wait
        # is told. Two that wait on different loops may look at the same moment and find nothing; then the timeout of an
        # ask ends the circle.
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
        """Return the answer as `ActorFuture.get`; raise AskCycle where who is asked waits for the handler that asks."""
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
        """Suspend until the answer is there; raise AskCycle where the actor asked waits for the handler that asks."""
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
