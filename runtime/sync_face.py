"""How a method that is awaited becomes one that blocks, with the same parameters and the same promise.

The rule protected here: the two faces cannot drift apart. A blocking method is made of the awaited one, which gives it
its signature, for readers and for type checkers, and its docstring.
"""

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from inspect import cleandoc
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from refold.loop_thread import LoopThread

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")

BLOCKS = "This blocks the calling thread. An interrupt, such as Ctrl-C, counts as the cancellation of its task."
"""What the docstring of a blocking method adds to that of the one it is made of."""


class Face(Protocol[A_co]):
    """Stands before an object that lives on the loop of another thread."""

    @property
    def loop_thread(self) -> LoopThread:
        """Where the object lives."""
        ...

    @property
    def asynchronous(self) -> A_co:
        """The object itself, for code that runs on its loop."""
        ...


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Face[A], P], R]:
    """Return `method` of what stands behind a face as a method of the face."""

    @wraps(method)
    def block(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.loop_thread.run(partial(method, self.asynchronous, *args, **kwargs))

    block.__doc__ = f"{cleandoc(method.__doc__ or '')}\n\n{BLOCKS}"
    return block


def run_on_loop(thread: LoopThread, call: Callable[[], R]) -> R:
    """Call a function that does not wait on the loop's thread, and return what it returns; also on that thread.

    Raises:
        WouldDeadlock, ActorStopped, ConfigError: as `LoopThread.run`.
        BaseException: whatever the function raised.
    """
    if thread.is_current:
        return call()

    async def called() -> R:
        return call()

    return thread.run(called)
