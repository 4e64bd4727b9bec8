"""A pykka future that threads and coroutines may wait for alike.

pykka's own `await` yields once and then blocks the loop; this one suspends the coroutine. Any number of waiters, in
any thread and on any loop, may wait for one future; each is woken in its own way, and one that gives up (a timeout,
a cancellation) leaves the others and the future alone. An outcome that nobody fetches is dropped without noise.

The rule it protects: the first outcome stays; nobody who waits is forgotten; nobody blocks the loop that would have
to produce the outcome.
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
from types import TracebackType
from typing import Any, TypeVar, cast

import pykka

from refold.actors.kernel.errors import ActorStopped, AskTimeout, WouldDeadlock

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
            values: list[Any] = []
            for parent in self._parents:
                values.append((yield from _for_the_loop(parent).__await__()))
            self._fill(values)
        return (yield from super().__await__())

    __iter__ = __await__

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
            values: list[Any] = []
            for parent in self._parents:
                values.append((yield from _for_the_loop(parent).__await__()))
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
