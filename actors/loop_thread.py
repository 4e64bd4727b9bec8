"""An event loop in a thread of its own, on which one thing lives, for callers that have no loop.

Read `LoopThread` first, then `blocking`, which makes a method that blocks of one that is awaited. The thread is a
daemon. A thread that is none would be joined before `atexit` runs, so a runtime that was not closed would keep the
interpreter from ending; a daemon still runs while `atexit` closes it, and threads of the application that are no
daemons have ended by then and could use it to their end.

The rules protected here: every call ends, with the outcome of its coroutine, or with why that is not known; what is
raised into the thread that waits (Ctrl-C, a signal handler's SystemExit) cancels the call, and waits for its end only
so long; no loop is blocked, neither this one nor another; and the two faces of a class cannot drift apart, since a
blocking method has the signature and the docstring of the awaited one.

On Linux an epoll instance is shared after a fork: a child that closes its copy of a loop, as by returning into its
parent's `asyncio.run`, takes the parent's descriptors out of it, and the parent sleeps for ever. So a child gets an
instance of its own in the place of each (`protect_from_children`).
"""

import asyncio
import contextvars
import logging
import os
import select
import selectors
import threading
from asyncio import events
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial, wraps
from inspect import cleandoc, signature
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from refold.actors.kernel.errors import ActorStopped, AskTimeout, WouldDeadlock
from refold.actors.kernel.reply import ActorFuture
from refold.actors.thread_pool import place_lent
from refold.events.core.errors import ConfigError

T = TypeVar("T")

log = logging.getLogger("refold.runtime")


OPENED_ON_A_LOOP: Final = "`async with AgentRuntime(...)` or `await AgentRuntime(...).open()`"
"""How a runtime is opened by code that has a loop."""


class Closed(ActorStopped):
    """What is called was closed. It has no address that its user knows, so that the reason is all that is said."""

    def __str__(self) -> str:
        return self.reason


class AlreadyClosed(Closed):
    """What is called is closed, and nothing of the call was begun."""


class _Call(Generic[T]):
    """One coroutine that a thread waits for."""

    def __init__(self, thread: "LoopThread", call: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.outcome: ActorFuture[T] = ActorFuture()
        self._thread = thread
        self._call = call
        self._from_main_thread = threading.current_thread() is threading.main_thread()
        self.task: asyncio.Task[T] | None = None
        """Once it has begun."""

    def begin(self) -> None:
        """Begin, on the loop, with the context variables of the thread that posted this."""
        if self._thread.ending:
            self.refuse()
        elif not self.outcome.ready():
            self.task = asyncio.get_running_loop().create_task(self._run(), name=f"call of {self._thread.name}")
            self.task.add_done_callback(self._ended)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
        else:
            self.refuse(asyncio.CancelledError())

    def refuse(self, error: BaseException | None = None) -> None:
        """Tell the caller that nothing is begun, with `error` or because the loop has ended; from any thread."""
        self.outcome.settle(error=error or self._thread.stopped(AlreadyClosed))
        self._thread.forget(self)

    def give_up(self) -> None:
        """Tell the caller that the loop has ended under the call; from any thread."""
        if self._from_main_thread and self._thread.ended_by is not None:
            # As after `asyncio.run`: it is the program that is to end, and the main thread that can end it.
            self.refuse(self._thread.ended_by)
        else:
            self.refuse(self._thread.stopped() if self.task is not None else None)

    async def _run(self) -> T:
        return await self._call()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled() and self._thread.ending:
            self.give_up()
            return
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.outcome.settle(None if error is not None else task.result(), error)
        self._thread.forget(self)


class LoopThread:
    """Runs an event loop from `start` to `stop`, and on it something that is entered first and left last."""

    def __init__(
        self,
        inside: AbstractAsyncContextManager[object],
        *,
        name: str,
        patience_s: float,
        what: str = "runtime",
        on_a_loop: str = OPENED_ON_A_LOOP,
    ) -> None:
        """Make it; its thread will begin with the context variables that this one has now.

        Args:
            inside: entered on the loop by `start`, left by `stop`.
            name: of the thread, and in errors.
            patience_s: how long an interrupted caller waits for the end of what it has cancelled, and `stop` for the
                end of the thread.
            what: lives on it, in errors.
            on_a_loop: how the same is had on a loop of the caller's own, likewise.
        """
        self._what = what
        self._on_a_loop = on_a_loop
        self.name = name
        self.ending = False
        """Whether no call is begun any more, and those under way are to end."""
        self.ended_by: BaseException | None = None
        """The KeyboardInterrupt or SystemExit with which code on the loop ended it."""
        self._inside = inside
        self._patience_s = patience_s
        self._open_calls: set[_Call[Any]] = set()
        self._opened: ActorFuture[None] = ActorFuture()
        self._over = threading.Event()
        self._end_requested = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._serve,), name=name, daemon=True)
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that has the thread: a forked child has none."""
        return os.getpid() == self._pid

    def start(self) -> None:
        """Start the thread, and return when what lives on it has been entered; raise what entering raises."""
        try:
            self._require_no_loop()
            self._thread.start()
        except (WouldDeadlock, RuntimeError):
            self._loop.close()
            raise
        except BaseException:  # Interrupted, while the thread begins.
            self._end()
            raise
        try:
            self._opened.get()
        except BaseException:
            self._end()
            raise

    def run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what a coroutine returns that is made and run on the loop, with this thread's context variables.

        An interrupt of this thread, such as KeyboardInterrupt, cancels it and is raised when it has ended, or when the
        patience is over; a second interrupt is raised at once.

        Raises:
            WouldDeadlock: this is the loop's own thread, or one whose own loop would stand still.
            AlreadyClosed: the loop has ended, and did not begin it.
            ActorStopped: the loop has ended under the call.
            ConfigError: this process was forked from the one that has the thread.
            BaseException: what the coroutine raised.
        """
        self._require_no_loop()
        self.require_own_process()
        work = _Call(self, call)
        try:
            self._post(work)
            with place_lent():
                return work.outcome.get()
        except BaseException as error:
            if not work.outcome.ready():
                self._call_off(work, error)
            raise
        finally:
            del work  # A traceback refers to this frame: keep no circle through it.

    def begin(self, call: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Begin a coroutine without waiting for it, from any thread or `__del__`; after the loop, do nothing."""
        if self.is_ours:
            self._post(_Call(self, call))

    def stop(self) -> None:
        """Leave what lives on the loop, and end the loop and the thread; any number of times, from any other thread.

        A thread that has not ended when the patience is over is left to itself, which is logged.
        """
        self._require_no_loop()
        self.require_own_process()
        self._end()

    def require_own_process(self) -> None:
        """Raise ConfigError in a forked child, which has no such thread."""
        if not self.is_ours:
            raise ConfigError(
                f"this process was forked from the one that opened the {self._what}, which does not run here; open a "
                f"{self._what} after the fork. One process at a time has a log"
            )

    @property
    def is_current(self) -> bool:
        return events._get_running_loop() is self._loop

    def forget(self, work: _Call[Any]) -> None:
        self._open_calls.discard(work)

    def stopped(self, kind: type[Closed] = Closed) -> Closed:
        if self.ended_by is None:
            return kind(self.name, f"the {self._what} is closed; open a new one on the same log")
        error = kind(self.name, f"the {self._what} was ended by {self.ended_by!r}, raised by code on its loop")
        error.__cause__ = self.ended_by
        return error

    def _require_no_loop(self) -> None:
        running = events._get_running_loop()
        if running is None:
            return
        if running is self._loop:
            raise WouldDeadlock(
                f"a blocking call on {self.name}'s own thread would stop the loop that has to answer it; async code, "
                f"subscribers and on_event are called there: use `await` and the {self._what}'s `asynchronous`, or a "
                "plain function"
            )
        raise WouldDeadlock(
            f"a blocking call here would stop the event loop that runs in this thread; write {self._on_a_loop}, and "
            "`await` its methods, or call it in another thread, as by `await asyncio.to_thread(...)`"
        )

    def _post(self, work: _Call[Any]) -> None:
        self._open_calls.add(work)  # First: the end of the loop settles what is in here.
        try:
            self._loop.call_soon_threadsafe(work.begin)
        except RuntimeError:  # The loop is closed.
            work.refuse()

    def _call_off(self, work: _Call[Any], why: BaseException) -> None:
        """Cancel a call whose caller was interrupted, and wait for its end."""
        with suppress(RuntimeError):  # The loop is closed, and the call settled.
            self._loop.call_soon_threadsafe(work.cancel)
        try:
            work.outcome.get(timeout=self._patience_s)
        except AskTimeout:
            log.warning("a call that was cancelled by %r goes on after %g s", why, self._patience_s)
        except BaseException as error:
            if not work.outcome.ready():
                raise  # Interrupted once more.
            log.debug("a call that was cancelled by %r ended with %r", why, error)

    def _end(self) -> None:
        with suppress(RuntimeError):  # It has ended.
            self._loop.call_soon_threadsafe(self._request_end)
        if self._over.wait(self._patience_s):
            self._thread.join(self._patience_s)
        else:
            log.warning("the thread %s has not ended after %g s and is left to itself", self.name, self._patience_s)

    def _request_end(self) -> None:
        self._end_requested.set()
        if self._main is not None and not self._opened.ready():
            self._main.cancel()

    def _serve(self) -> None:
        """Run the loop to its end; a KeyboardInterrupt of code on it ends it as it ends `asyncio.run`."""
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                try:
                    runner.run(self._live())
                except BaseException as error:  # noqa: BLE001 - Handed to the caller that waits, or logged.
                    self._ended(error)
                self.ending = True
        finally:
            self._opened.settle(error=self.stopped())
            while self._open_calls:
                self._open_calls.pop().give_up()
            self._over.set()

    async def _live(self) -> None:
        self._main = asyncio.current_task()
        if not self._end_requested.is_set():
            async with self._inside:
                self._opened.settle()
                await self._end_requested.wait()
        self.ending = True
        begun = [work.task for work in self._open_calls if work.task is not None]
        if begun:  # They end by themselves now, and better than by being cancelled.
            await asyncio.wait(begun, timeout=self._patience_s)

    def _ended(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            log.critical("%s is ended by %r, which code on its loop has raised", self.name, error)
            self.ended_by = error
        if not self._opened.settle(error=error) and self.ended_by is None:
            log.error("%s has not ended in order: %r", self.name, error)


A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")

BLOCKS = "This blocks the calling thread. An interrupt, such as Ctrl-C, counts as the cancellation of its task."
"""What the docstring of a blocking method adds to that of the one it is made of."""


class HasLoopThread(Protocol):
    """What lives on the loop of another thread, or reaches what does."""

    @property
    def loop_thread(self) -> LoopThread: ...


class Face(HasLoopThread, Protocol[A_co]):
    """Stands before an object that lives on the loop of another thread."""

    @property
    def asynchronous(self) -> A_co: ...


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Face[A], P], R]:
    """Return `method` of what stands behind a face as a method of the face."""

    @wraps(method)
    def block(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.loop_thread.run(partial(method, self.asynchronous, *args, **kwargs))

    block.__doc__ = f"{cleandoc(method.__doc__ or '')}\n\n{BLOCKS}"
    return block


def blocking_face(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]], face: Callable[[HasLoopThread, R], F], gives: str
) -> Callable[Concatenate[Face[A], P], F]:
    """Return `method` as `blocking` does, where its outcome gets a face too; `gives` names that for `help`."""
    outcome = blocking(method)

    @wraps(outcome)
    def block(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> F:
        return face(self, outcome(self, *args, **kwargs))

    block.__signature__ = signature(method).replace(return_annotation=gives)  # type: ignore[attr-defined]
    return block


def run_on_loop(thread: LoopThread, call: Callable[[], R]) -> R:
    """Return what a function returns that is called on the loop's thread; also on that thread. Raises as `run`."""
    if thread.is_current:
        return call()

    async def called() -> R:
        return call()

    return thread.run(called)


async def next_or_none(items: AsyncIterator[T]) -> T | None:
    """Return the next of `items`, or None at their end."""
    try:
        return await anext(items)
    except StopAsyncIteration:
        return None


# State of the process by nature: a fork copies all of it.
_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def protect_from_children(loop: asyncio.AbstractEventLoop) -> None:
    """Keep a child that is forked from now on from doing anything to the loop of this process."""
    _loops.add(loop)


def _leave_loops_to_parent() -> None:
    """In a forked child: put an epoll instance of its own in the place of each that it shares with the parent."""
    if not hasattr(selectors, "EpollSelector"):  # Other kinds are not inherited, or belong to the process alone.
        return
    for loop in list(_loops):
        selector = getattr(loop, "_selector", None)
        if isinstance(selector, selectors.EpollSelector) and not loop.is_closed():
            with select.epoll() as own:
                os.dup2(own.fileno(), selector.fileno(), inheritable=False)
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_loops_to_parent)
