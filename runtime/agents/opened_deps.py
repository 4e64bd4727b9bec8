"""What agents depend on, opened with a runtime and closed with it: `Agent.deps`.

    @asynccontextmanager
    async def open_deps():
        async with httpx.AsyncClient() as client:
            yield Deps(client)

    agent = Agent(config=…, provider=…, tools=[…], deps=open_deps)

The rules: one source is opened once, whichever agents have it; all of it is opened and closed by one task, as some
context managers insist on; it is open before any function of the application is called, and until the last tool has
ended or was given up.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any, cast

from refold.actors.calls.context import Dependencies
from refold.actors.calls.results import passes
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.supervision import Background
from refold.actors.kernel.system import ActorSystem, ends_within
from refold.agents.agent import AnyAgent
from refold.agents.loading import failure_words
from refold.events.core.errors import ConfigError
from refold.events.core.ids import AgentId

log = logging.getLogger("refold.runtime")


def is_opened_first(source: object) -> bool:
    """Tell whether something is made or entered to be what an agent depends on; False = it is that already."""
    return _is_factory(source) or _is_context_manager(source) or _is_plain_manager(source)


async def opened(source: object, of: str, stack: AsyncExitStack) -> object:
    """Return what a source gives, which `stack` closes; `of` says in errors whose it is: `the agent 'shop'`."""
    made = source
    try:
        if _is_factory(source):
            made = cast("Any", source)()
            made = await made if inspect.isawaitable(made) else made
        if _is_context_manager(made):
            return await stack.enter_async_context(cast("AbstractAsyncContextManager[object]", made))
        if _is_plain_manager(made):
            return stack.enter_context(cast("AbstractContextManager[object]", made))
    except BaseException as error:  # The border to the user's code.
        if passes(error):
            raise
        again = made is source and not (_is_factory(source) or isinstance(error, OSError))
        hint = "; what can be entered once only is given as the function that makes it: deps=open_deps" if again else ""
        raise ConfigError(f"the deps of {of} cannot be opened{failure_words(error)}{hint}") from error
    if inspect.iscoroutine(made):
        made.close()
        raise ConfigError(
            f"the deps of {of} are a coroutine; give the function itself, which is called for each runtime"
        )
    if _is_generator(made):
        raise ConfigError(f"the deps of {of} are a generator; put @asynccontextmanager above the function")
    return made


class OpenedDeps:
    """Opens what the agents of one runtime depend on, and closes it; the first one's may be given `instead`."""

    def __init__(self, agents: Sequence[AnyAgent], instead: object) -> None:
        main = agents[0]
        self._main = (f"the agent {main.name!r}", main.deps) if instead is None else ("the runtime", instead)
        self._others = {AgentId(each.name): each.deps for each in agents[1:] if each.deps is not None}
        self._work: Background | None = None
        self._first: asyncio.Future[None] | None = None
        """Done when all is open for the first time, or cannot be opened."""
        self._over = asyncio.Event()

    async def open(self, dependencies: Dependencies, system: ActorSystem) -> None:
        """Return when all is open and `dependencies` has it; what cannot be opened has all closed again."""
        if self._first is not None:
            return
        first = self._first = asyncio.get_running_loop().create_future()
        self._work = system.background("what agents depend on", lambda: self._keep(dependencies, first))
        await first

    async def close(self, clock: Clock, grace_s: float) -> None:
        """Close all; return when that is done, or after twice the grace period."""
        work, first = self._work, self._first
        if work is None or first is None:
            return
        self._over.set()
        if first.cancelled():  # While it was opened.
            work.end()
        if await ends_within(grace_s, clock, work.wait()):
            return
        work.end()
        if not await ends_within(grace_s, clock, work.wait()):
            log.warning("what agents depend on did not close in time")

    async def _keep(self, dependencies: Dependencies, first: "asyncio.Future[None]") -> None:
        if self._over.is_set():
            return
        try:
            async with AsyncExitStack() as stack:
                await self._open_all(dependencies, stack)
                if not first.done():
                    first.set_result(None)
                await self._over.wait()
        except BaseException as error:  # The border to the user's code.
            if passes(error):
                raise
            if not first.done():
                self._over.set()
                first.set_exception(error)
            elif self._over.is_set():
                log.exception("what agents depend on did not close in order")
            else:
                raise

    async def _open_all(self, dependencies: Dependencies, stack: AsyncExitStack) -> None:
        known: dict[int, object] = {}

        async def once(source: object, of: str) -> object:
            if id(source) not in known:
                known[id(source)] = await opened(source, of, stack)
            return known[id(source)]

        of, main = self._main
        dependencies.main = await once(main, of)
        for name, source in self._others.items():
            dependencies.of_agents[name] = await once(source, f"the agent {name!r}")


def _is_factory(source: object) -> bool:
    return inspect.isroutine(source) or isinstance(source, type | functools.partial)


def _is_context_manager(source: object) -> bool:
    return hasattr(type(source), "__aenter__") and hasattr(type(source), "__aexit__")


def _is_plain_manager(source: object) -> bool:
    """Tell whether it is made by @contextmanager; a connection or a lock, which can be entered too, is given so."""
    return hasattr(type(source), "_recreate_cm")


def _is_generator(made: object) -> bool:
    return issubclass(type(made), Generator | AsyncGenerator)
