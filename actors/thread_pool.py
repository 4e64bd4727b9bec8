"""Threads for blocking code, such as synchronous tools: never more than a bound, never waited for, never lost count of.

A thread cannot be stopped from outside. Work that is no longer wanted is therefore *abandoned*: what waits for it
goes on, a new thread takes the place of the one that is stuck, so the pool does not shrink, and the work stays listed
by name until it returns, which it may still do: then its late outcome goes to `on_late`. The threads are
daemons, so a stuck one does not keep the process alive.

A thread that waits for what others do (`place_lent`) is not at work: its place is another's meanwhile, so that work
that waits for other work of the same pool gets its answer however small the pool is. Afterwards it works on at once,
for that moment beyond the bound.

The rule it protects: at most `threads_max` threads begin wanted work, and every one that is stuck is named.
"""

import asyncio
import contextlib
import contextvars
import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, ParamSpec, TypeVar

from refold.actors.kernel.reply import ActorFuture
from refold.events.core.cleaning import text_of_error
from refold.events.core.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


class _Here(threading.local):
    """What this thread is doing."""

    work: "ThreadWork[Any] | None" = None


_here = _Here()


@contextlib.contextmanager
def place_lent() -> Generator[None, None, None]:
    """Let another thread of this thread's pool, if it is of one, work in its place for as long as it waits inside."""
    work = _here.work
    if work is None or not work.pool.lend_place_of(work):
        yield
        return
    try:
        yield
    finally:
        work.pool.take_back_place_of(work)


class LateOutcome(Generic[R]):
    """What abandoned work came to: `value`, or `error` if it raised."""

    __slots__ = ("error", "name", "value")

    def __init__(self, name: str, value: R | None, error: BaseException | None) -> None:
        self.name = name
        self.value = value
        self.error = error


class ThreadWork(Generic[R]):
    """One call in a thread of the pool: `await` it for its result, or `abandon` it."""

    def __init__(self, pool: "ThreadPool", loop: AbstractEventLoop, name: str, call: Callable[[], R]) -> None:
        self.name = name
        self.pool = pool
        self._loop = loop
        self._call = call
        self._context = contextvars.copy_context()
        self._outcome: ActorFuture[R] = ActorFuture()
        self._on_late: Callable[[LateOutcome[R]], object] | None = None

    def __await__(self) -> Generator[Any, None, R]:
        """Wait for the result; the error of the call is raised. A waiter that is cancelled leaves the work running."""
        return self._outcome.__await__()

    def done(self) -> bool:
        """Return whether the outcome is there, or the work was abandoned."""
        return self._outcome.ready()

    def abandon(self, on_late: Callable[[LateOutcome[R]], object] | None = None) -> bool:
        """Give the work up: a coroutine that awaits it gets CancelledError. Once it is done, this changes nothing.

        Work that no thread has begun is never begun. Work that runs goes on, unwanted.

        Args:
            on_late: called on the loop with what the running work comes to; not called if the loop is closed then.

        Returns:
            True if the work has begun and is not done, so that it may have any effect.
        """
        self._on_late = on_late
        if not self._outcome.settle(error=asyncio.CancelledError(f"{self.name} was abandoned")):
            return False
        return self.pool.replace_thread_of(self)

    def run_here(self) -> None:
        """Make the call in this thread and settle the outcome; for the pool."""
        value: R | None = None
        error: BaseException | None = None
        _here.work = self
        try:
            value = self._context.run(self._call)
        except BaseException as raised:  # noqa: BLE001 - handed to those who wait
            error = raised if _may_be_raised(raised) else _wrapped(self.name, raised)
        finally:
            _here.work = None
        if not self._outcome.settle(value, error) and self._on_late is not None:
            late = LateOutcome(self.name, value, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._on_late, late)


class ThreadPool:
    """At most `threads_max` daemon threads, started when needed; `await pool.run(function, …)`."""

    def __init__(self, threads_max: int = 32, *, name: str = "refold") -> None:
        """Make a pool without any thread.

        Args:
            threads_max: threads that do wanted work at one time, >= 1; further work queues, first come first served.
            name: beginning of the threads' names.

        Raises:
            ConfigError: `threads_max` is below 1.
        """
        if threads_max < 1:
            raise ConfigError(f"a thread pool needs threads_max >= 1, not {threads_max}")
        self._threads_max = threads_max
        self._name = name
        self._changed = threading.Condition()
        self._queue: deque[ThreadWork[Any]] = deque()
        self._running: dict[ThreadWork[Any], None] = {}
        self._lent: set[ThreadWork[Any]] = set()
        """Work that runs and waits for other work."""
        self._abandoned: dict[ThreadWork[Any], None] = {}
        self._threads = 0
        self._idle = 0
        self._started = 0
        self._closed = False

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` in a thread, with this task's context variables, and return its result.

        If this is cancelled meanwhile, the work is abandoned; use `submit` to be told what it came to.

        Raises:
            ConfigError: the pool is closed.
            RuntimeError: `function` raised SystemExit, or another error that would act on the loop.
            Exception: what else it raised.
        """
        name = getattr(function, "__qualname__", repr(function))
        work = self.submit(lambda: function(*args, **kwargs), name=name)
        try:
            return await work
        finally:
            work.abandon()

    def submit(self, call: Callable[[], R], *, name: str) -> ThreadWork[R]:
        """Have `call` called in a thread, with this task's context variables; return the handle to it.

        Args:
            name: what `abandoned` and `close` call it.

        Raises:
            ConfigError: the pool is closed.
            RuntimeError: no thread could be started and there is none; the call is not going to be made.
        """
        work = ThreadWork(self, asyncio.get_running_loop(), name, call)
        with self._changed:
            if self._closed:
                raise ConfigError(f"the thread pool is closed and does not begin {name}")
            self._queue.append(work)
            try:
                self._serve_queue()
            except RuntimeError:
                if not self._threads:
                    self._queue.remove(work)
                    raise  # Otherwise one of those that there are takes it in its turn.
        return work

    @property
    def threads(self) -> int:
        """Threads that do wanted work, and do not wait inside it, or are idle."""
        return self._threads

    @property
    def abandoned(self) -> tuple[str, ...]:
        """Names of the work that was abandoned and still runs, abandoned first."""
        with self._changed:
            return tuple(work.name for work in self._abandoned)

    def close(self) -> tuple[str, ...]:
        """End the pool without waiting: idle threads end, queued work is never begun, running work is abandoned.

        Returns:
            Names of the work that still runs.
        """
        with self._changed:
            self._closed = True
            unwanted = [*self._running, *self._queue]
            self._changed.notify_all()
        for work in unwanted:
            work.abandon()
        return self.abandoned

    def _serve_queue(self) -> None:
        """Have a thread take what is queued, if the bound allows; with the lock held."""
        if self._idle >= len(self._queue):
            self._changed.notify()
        elif self._threads < self._threads_max:
            threading.Thread(target=self._serve, name=f"{self._name}-{self._started + 1}", daemon=True).start()
            self._threads += 1
            self._started += 1

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            work.run_here()
            with self._changed:
                self._running.pop(work, None)
                if work in self._abandoned:
                    del self._abandoned[work]
                    if self._threads or not self._queue:
                        return  # another thread has our place
                    self._threads += 1  # none could be started in our place
                elif self._threads > self._threads_max:
                    self._threads -= 1
                    return  # another one began while we waited
            del work  # hold on to no result while idle

    def _next(self) -> ThreadWork[Any] | None:
        """Return the next work for this thread, or None if it is to end."""
        with self._changed:
            self._idle += 1
            while not self._queue and not self._closed:
                self._changed.wait()
            self._idle -= 1
            if self._closed:
                self._threads -= 1
                return None
            work = self._queue.popleft()
            self._running[work] = None
            return work

    def replace_thread_of(self, work: ThreadWork[Any]) -> bool:
        """Count the thread of an abandoned work out and let another take its place; return whether it was begun."""
        with self._changed:
            if work in self._queue:
                self._queue.remove(work)
                return False
            if work in self._running:
                del self._running[work]
                self._abandoned[work] = None
                if work in self._lent:
                    self._lent.remove(work)  # another thread has its place already
                else:
                    self._give_place_away()
            return True

    def lend_place_of(self, work: ThreadWork[Any]) -> bool:
        """Count the thread of running work out for as long as it waits; return whether it is to take its place back."""
        with self._changed:
            if work not in self._running or work in self._lent:
                return False
            self._lent.add(work)
            self._give_place_away()
            return True

    def take_back_place_of(self, work: ThreadWork[Any]) -> None:
        """Count the thread of work that has waited in again, unless the work was abandoned meanwhile."""
        with self._changed:
            if work in self._lent:
                self._lent.remove(work)
                self._threads += 1

    def _give_place_away(self) -> None:
        """Count a thread out, and have another serve what is queued; with the lock held."""
        self._threads -= 1
        if self._queue and not self._closed:
            with contextlib.suppress(RuntimeError):  # no thread to be had: the next that is free serves it
                self._serve_queue()


def _may_be_raised(error: BaseException) -> bool:
    """Return whether raising an error in a coroutine means no more than itself."""
    if isinstance(error, asyncio.CancelledError):
        return True  # the spelling by which a tool obeys its cancellation token
    return isinstance(error, Exception) and not isinstance(error, StopIteration)


def _wrapped(name: str, error: BaseException) -> RuntimeError:
    wrapped = RuntimeError(f"{name} raised {type(error).__qualname__} in its thread: {text_of_error(error)}")
    wrapped.__cause__ = error
    return wrapped
