"""A dry run of user code: run on what a log recorded, so that nothing outside changes.

During a dry run Refold's own tools and providers refuse to be called, and so do the network and other
processes, also in tasks and threads that it begins. The rule: what needed something outside is told apart from what
gave an answer; and code that gives none is waited for only so long, and not asked again.
"""

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from refold.actors.calls.results import text_of_error
from refold.events.core.errors import AgentLoopError, CommandRejected, LogFormatError

T = TypeVar("T")

ANSWER_S: Final = 10.0
"""So many seconds one piece of user code may take, unless the caller says otherwise."""

OUTSIDE: Final = frozenset(
    {
        "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "pty.spawn",
        "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendmsg",
        "socket.sendto", "subprocess.Popen",
    }
)  # fmt: skip
"""Python's audit events that mean the network or another process; https://docs.python.org/3/library/audit_events.html
"""

_reached: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("refold_dry_run", default=None)
"""What the code that makes a dry run here wanted of the outside; None = it makes none."""

_watching = False

_left_behind: set[asyncio.Task[Any]] = set()
"""Tasks that gave no answer; held here, since an event loop holds its tasks weakly."""


class OutsideInDryRun(AgentLoopError):
    """Something outside was called in a dry run."""


class NotComparable(Exception):
    """Something could not be done again."""


class FailedInDryRun(Exception):
    """User code raised. It is a difference where it gave an answer when it was recorded."""


def require_outside(what: str) -> None:
    """Return where something outside may be called.

    Args:
        what: is called, such as `the tool weather`.
    """
    reached = _reached.get()
    if reached is not None:
        reached.append(what)
        raise OutsideInDryRun(f"{what} cannot be called in a replay")


class NotOpened:
    """Stands for what is not opened in a dry run, which cannot be done again where it is used.

    Args:
        what: it stands for.
    """

    def __init__(self, what: str) -> None:
        object.__setattr__(self, "_what", what)

    def __repr__(self) -> str:
        return f"<{self.__getattribute__('_what')}>"

    def __getattribute__(self, name: str) -> Any:
        require_outside(object.__getattribute__(self, "_what"))
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__getattribute__(name)

    def _used(self, *_arguments: object) -> Any:
        return self.__getattribute__("_what")

    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __setitem__ = __call__ = _used
    __enter__ = __exit__ = __aenter__ = __aexit__ = __await__ = __aiter__ = __eq__ = __hash__ = _used


class DryRun:
    """Runs user code so that nothing outside changes.

    Args:
        answer_s: how many seconds each piece of it may take, > 0.
    """

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._silent: set[str] = set()

    async def answer(self, place: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `work` does.

        Args:
            place: which code it is; where it once gave no answer, it is not asked again.

        Raises:
            FailedInDryRun: it raised.
            NotComparable: it gave no answer, or needs something outside.
            PersistenceError: the log cannot be read.
        """
        if place in self._silent:
            raise NotComparable(f"it gave no answer within {self._answer_s:g} seconds before")
        _watch()
        reached: list[str] = []
        context = contextvars.copy_context()
        context.run(_reached.set, reached)
        task = asyncio.get_running_loop().create_task(work(), context=context, name="dry run")
        try:
            await asyncio.wait([task], timeout=self._answer_s)
        finally:
            if not task.done():
                _leave(task)
        if not task.done():
            self._silent.add(place)
            raise NotComparable(f"it gave no answer within {self._answer_s:g} seconds")
        return _result(task, reached)


def _result(task: asyncio.Task[T], reached: list[str]) -> T:
    error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
    if reached:
        raise NotComparable(f"it needs something outside: {reached[0]}") from error
    if error is None:
        return task.result()
    if isinstance(error, AgentLoopError | CommandRejected):
        raise FailedInDryRun(text_of_error(error) or type(error).__name__) from error
    if isinstance(error, LogFormatError | asyncio.CancelledError):
        raise NotComparable(text_of_error(error) or type(error).__name__) from error
    raise error


def _leave(task: "asyncio.Task[Any]") -> None:
    _left_behind.add(task)
    task.add_done_callback(_forget)
    task.cancel()


def _forget(task: "asyncio.Task[Any]") -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # Retrieved, so that asyncio does not log it.


def _watch() -> None:
    """Have Python ask here before it reaches outside; an audit hook cannot be taken back, and does nothing elsewhere.

    https://docs.python.org/3/library/sys.html#sys.addaudithook
    """
    global _watching
    if not _watching:
        _watching = True
        sys.addaudithook(_audit)


def _audit(event: str, _arguments: tuple[object, ...]) -> None:
    if event in OUTSIDE:
        require_outside(event)
