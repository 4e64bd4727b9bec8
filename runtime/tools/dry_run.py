"""A dry run of user code: run on what a log recorded, so that nothing outside changes.

It is made in a process of its own (`refold.replay.shadow`), in which Refold's own tools and providers refuse to be
called, whichever thread or task asks. The rule: what was tried is told apart from what gave an answer, also where the
code went on as if nothing were; and code that gives none is waited for only so long, and not asked again.
"""

import asyncio
import errno
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar, cast

import msgspec

from refold.events.core.cleaning import clean_text, text_of_error
from refold.events.core.errors import AgentLoopError, CommandRejected, LogFormatError

T = TypeVar("T")

_REFUSALS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENOTSOCK})

_DATABASE_REFUSALS: Final = frozenset(
    {
        "attempt to write a readonly database", "database or disk is full", "disk I/O error", "not authorized",
        "unable to open database file",
    }
)  # fmt: skip

ANSWER_S: Final = 10.0
"""So many seconds one piece of user code may take, unless the caller says otherwise."""

ACTS_KEPT: Final = 100
"""So many acts of one piece of code are told apart."""

NAMED_CHARACTERS: Final = 200
"""After so many characters the name of what was tried is cut."""

_LEFT_OUT = ("refold", "importlib", "_frozen_importlib", "_frozen_importlib_external")

_left_behind: set[asyncio.Task[Any]] = set()
"""Tasks that gave no answer; held here, since an event loop holds its tasks weakly."""


class RefusedAct(msgspec.Struct, frozen=True):
    """Something that code tried, and that was refused."""

    what: str
    """Such as `os.remove`, or `the tool weather`."""
    on: str
    """What it would have been done to, such as a path; empty = that is said."""
    place: str
    """Where in the application's code: `shop/hooks.py:31 in Stock.on_pre_llm`; empty = nowhere in it."""

    def __str__(self) -> str:
        return self.what + (f" ({self.place})" if self.place else "")


_tried: list[RefusedAct] | None = None
"""What the code of this process tried, since that was last taken; None = it makes no dry run."""


class OutsideInDryRun(AgentLoopError):
    """Something outside was called in a dry run."""


class NotComparable(Exception):
    """Something could not be done again."""


class ActedInDryRun(NotComparable):
    """It could not, since it needs something outside."""

    def __init__(self, acts: tuple[RefusedAct, ...]) -> None:
        super().__init__(f"it needs something outside: {acts[0]}")
        self.acts = acts


class FailedInDryRun(Exception):
    """User code raised. It is a difference where it gave an answer when it was recorded."""


def begin_dry_runs() -> None:
    """Have this process refuse what is outside from now on; it makes dry runs and does nothing else."""
    global _tried
    _tried = []


def require_outside(what: str) -> None:
    """Return where something outside, such as `the tool weather`, may be called."""
    if _tried is not None:
        refuse(what)


def refuse(what: str, on: str = "") -> NoReturn:
    """Note what was tried, and refuse it."""
    if _tried is not None and len(_tried) < ACTS_KEPT:
        _tried.append(RefusedAct(what, clean_text(on[:NAMED_CHARACTERS]), clean_text(_place_of_caller())))
    raise OutsideInDryRun(f"{what} cannot be called in a replay")


def tried_acts() -> tuple[RefusedAct, ...]:
    """Return what the code of this process tried outside since this was asked last."""
    if not _tried:
        return ()
    taken = tuple(_tried)
    _tried.clear()
    return taken


def _place_of_caller() -> str:
    """Return the innermost line of the application that is being run, not of a library where there is another."""
    libraries = ""
    for frame in _frames(inspect.currentframe()):
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        if module in _LEFT_OUT or module in sys.stdlib_module_names:
            continue
        code = frame.f_code
        name = os.path.relpath(code.co_filename) if os.path.isabs(code.co_filename) else code.co_filename
        if name.startswith(os.pardir):
            name = code.co_filename
        place = f"{name}:{frame.f_lineno} in {code.co_qualname}"
        if "site-packages" not in code.co_filename:
            return place
        libraries = libraries or place
    return libraries


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


class NotOpened:
    """Stands for what is not opened in a dry run, which cannot be done again where it is used."""

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
        told: is called with the place of the code before it runs, and with none after it.
    """

    def __init__(self, answer_s: float = ANSWER_S, told: Callable[[str], None] = lambda place: None) -> None:
        self._answer_s = answer_s
        self._told = told
        self.gone: dict[str, str] = {}
        """Places that are not asked again, and why."""

    async def answer(self, place: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `work` does.

        Args:
            place: which code it is; where it once gave no answer, it is not asked again.

        Raises:
            FailedInDryRun: it raised.
            ActedInDryRun: it, or code that was left behind before, needs something outside.
            NotComparable: it gave no answer.
            PersistenceError: the log cannot be read.
        """
        if place in self.gone:
            raise NotComparable(self.gone[place])
        self._told(place)
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()  # `asyncio.wait` takes longer than most hooks do.

        async def running() -> T:
            try:
                return await work()
            finally:
                _settle(over)

        task = _begun(running())
        timer = loop.call_later(self._answer_s, _settle, over) if not task.done() else None
        try:
            if timer is not None:
                await over
        finally:
            if timer is not None:
                timer.cancel()
            self._told("")
            if not task.done():
                _leave(task)
        if not task.done():
            self.gone[place] = no_answer_within(self._answer_s)
            raise NotComparable(self.gone[place])
        return _result(task)


def _begun(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Return a task; from Python 3.12 on it has begun, and most code of agents ends without waiting for anything."""
    eager = {"eager_start": True} if sys.version_info >= (3, 12) else {}
    return asyncio.Task(work, loop=asyncio.get_running_loop(), name="dry run", **cast("dict[str, Any]", eager))


def no_answer_within(answer_s: float) -> str:
    """Return why code is not asked again that was silent for so many seconds."""
    return f"it gave no answer within {answer_s:g} seconds"


def _settle(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)


def _result(task: asyncio.Task[T]) -> T:
    error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
    acts = tried_acts()
    if not acts and (refused := refused_by_system(error)) is not None:
        acts = (refused,)
    if acts:
        raise ActedInDryRun(acts) from error
    if error is None:
        return task.result()
    if isinstance(error, AgentLoopError | CommandRejected):
        raise FailedInDryRun(text_of_error(error) or type(error).__name__) from error
    if isinstance(error, LogFormatError | asyncio.CancelledError):
        raise NotComparable(text_of_error(error) or type(error).__name__) from error
    raise error


def refused_by_system(error: BaseException | None) -> RefusedAct | None:
    """Return what the kernel refused, where that is why code raised."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in _REFUSALS) or _is_of_database(error):
            trace, last = error.__traceback__, ""
            while trace is not None:
                if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _LEFT_OUT:
                    last = f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
                trace = trace.tb_next
            return RefusedAct(f"{type(error).__name__}: {error}", "", last)
        error = error.__cause__ or error.__context__
    return None


def _is_of_database(error: BaseException) -> bool:
    """Tell whether SQLite raised because it can write nothing, which it may want in order to read."""
    sqlite = sys.modules.get("sqlite3")
    return sqlite is not None and isinstance(error, sqlite.OperationalError) and str(error) in _DATABASE_REFUSALS


def _leave(task: "asyncio.Task[Any]") -> None:
    _left_behind.add(task)
    task.add_done_callback(_forget)
    task.cancel()


def _forget(task: "asyncio.Task[Any]") -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # Retrieved, so that asyncio does not log it.
