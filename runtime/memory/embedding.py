"""Embeddings on their way into a store: vectors as bytes, and the application's function that makes them.

The rule: calls are made outside of any handler and never block the loop, and what follows from them happens in the
order in which they were asked for.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from refold.actors.kernel.reply import ActorFuture
from refold.events.core.cleaning import error_words
from refold.events.core.errors import AgentMemoryError, ConfigError
from refold.events.kinds.semantic import check_embedding
from refold.memory.stream_object import in_thread

R = TypeVar("R")


class Array(Protocol):
    """What a NumPy array of numbers has; so the type is known where NumPy is not loaded yet."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def tolist(self) -> Any: ...


Vector: TypeAlias = Sequence[float] | Array
"""Numbers, as a sequence or a one-dimensional array."""

Embed: TypeAlias = Callable[[str], Vector | Awaitable[Vector]]
"""Gives the embedding of a text."""

AWAITED_AT_ONCE: Final = 8
"""Of many texts, so many are embedded beside each other by an async function; by a plain one each after the other."""


class Wanted(NamedTuple):
    text: str
    what: str
    """What errors call the embedding."""


def float32_bytes(vector: Vector, what: str) -> bytes:
    """Return the numbers of a vector as float32, little-endian."""
    import numpy as np

    try:
        exact = np.asarray(vector, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise AgentMemoryError(f"{what} must be a vector of numbers: {error}") from None
    if exact.ndim != 1:
        raise AgentMemoryError(f"{what} must be one vector of numbers, and has {exact.ndim} dimensions")
    with np.errstate(over="ignore", under="ignore"):
        single = exact.astype("<f4")
    data = single.tobytes()
    if not (np.isfinite(single).all() and single.any()):
        check_embedding(data, what)  # It says what is wrong.
    return data


class Embedder:
    """Calls an application's function."""

    def __init__(self, embed: Embed) -> None:
        if not callable(embed):
            raise ConfigError(f"embed must be a function, not {type(embed).__name__}")
        self._embed = embed
        self._last: asyncio.Task[None] | None = None
        """The task that was begun last."""

    def then(
        self,
        wanted: Sequence[Wanted],
        use: Callable[[list[bytes] | None], ActorFuture[R]],
        *,
        loop: asyncio.AbstractEventLoop | None,
        unless: ActorFuture[bool] | None = None,
    ) -> ActorFuture[R]:
        """Return what `use` gives for the embeddings of texts.

        On a loop, this goes on in a task; in a thread without one, the function is called before this returns.

        Args:
            loop: where the store lives, on which an async function is awaited; None = nowhere yet.
            unless: where its outcome is true, nothing is embedded and `use` gets None.
        """
        here = asyncio._get_running_loop()
        if here is not None:
            future: ActorFuture[R] = ActorFuture(here)
            work = self._carry_out(future, wanted, use, unless, self._last)
            self._last = here.create_task(work)
            # Where other code cancels the task before its first step, nobody else would settle what is awaited.
            self._last.add_done_callback(lambda _: future.settle(error=asyncio.CancelledError()))
            self._last.add_done_callback(lambda _: work.close())
            return future
        try:
            known = unless is not None and unless.get()
            return use(None if known else [self._embedded(*each, loop) for each in wanted])
        except Exception as error:  # noqa: BLE001 - raised to the waiting caller, as on a loop
            future = ActorFuture()
            future.settle(error=error)
            return future

    def _embedded(self, text: str, what: str, loop: asyncio.AbstractEventLoop | None) -> bytes:
        vector = self._called(text, what)
        if inspect.isawaitable(vector):
            awaited = _awaited(vector, what)
            vector = asyncio.run(awaited) if loop is None else asyncio.run_coroutine_threadsafe(awaited, loop).result()
        return float32_bytes(vector, what)

    async def _carry_out(
        self,
        future: ActorFuture[R],
        wanted: Sequence[Wanted],
        use: Callable[[list[bytes] | None], ActorFuture[R]],
        unless: ActorFuture[bool] | None,
        before: asyncio.Task[None] | None,
    ) -> None:
        if before is not None and before.get_loop() is not asyncio.get_running_loop():
            before = None
        try:
            if before is not None and not inspect.iscoroutinefunction(self._embed):  # One thread at a time.
                await asyncio.wait((before,))
            data = None if unless is not None and await unless else await self._vectors(wanted)
            if before is not None:
                await asyncio.wait((before,))
            future.settle(await use(data))
        except BaseException as error:
            future.settle(error=error)
            if not isinstance(error, Exception):
                raise

    async def _vectors(self, wanted: Sequence[Wanted]) -> list[bytes]:
        at_once = AWAITED_AT_ONCE if inspect.iscoroutinefunction(self._embed) else 1
        made: list[bytes] = []
        for first in range(0, len(wanted), at_once):
            made += await asyncio.gather(*(self._vector(*each) for each in wanted[first : first + at_once]))
        return made

    async def _vector(self, text: str, what: str) -> bytes:
        if inspect.iscoroutinefunction(self._embed):
            vector = self._called(text, what)
        else:
            vector = await in_thread(lambda: self._called(text, what), "embedding")
        return float32_bytes(await _awaited(vector, what) if inspect.isawaitable(vector) else vector, what)

    def _called(self, text: str, what: str) -> Vector | Awaitable[Vector]:
        try:
            return self._embed(text)
        except (Exception, SystemExit) as error:  # In a task, SystemExit would end the loop.
            raise AgentMemoryError(f"{what} could not be made: {error_words(error)}") from error


async def _awaited(vector: Awaitable[Vector], what: str) -> Vector:
    try:
        return await vector
    except (Exception, SystemExit) as error:
        raise AgentMemoryError(f"{what} could not be made: {error_words(error)}") from error
