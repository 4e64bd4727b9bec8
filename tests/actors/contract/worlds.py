"""The two worlds in which each test of the contract runs: pykka's thread actors, and our actors on a loop.

An actor is written once, as a *body*: a subclass of `pykka.Actor` with hooks and methods. A world makes it an actor of
its own kind. Our loop runs in a thread of its own, so that in both worlds a test blocks in `ask`, `get` and `stop`.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import pykka

from refold.actors import Actor, ActorFuture, ActorSystem

R = TypeVar("R")

LONG_S = 30
"""How long a test waits for what must happen; nothing takes that long unless it is broken."""


class World(Protocol):
    """A place where actors live."""

    def start(self, body: type, *args: Any, **kwargs: Any) -> Any:
        """Start an actor of that body, and return its ref."""

    def unstarted(self, body: type, *args: Any, **kwargs: Any) -> Any:
        """Make an instance of that body that nobody starts."""

    def future(self) -> "pykka.Future[Any]":
        """Make a future without an outcome."""

    def wait(self, gate: threading.Event) -> Any:
        """Wait inside a handler, which returns what this returns, and reply True; other actors go on."""

    def stop_all(self) -> None:
        """Stop every actor of this world."""


class PykkaWorld:
    """Thread actors, as pykka makes them."""

    def start(self, body: type, *args: Any, **kwargs: Any) -> Any:
        return _made(body, pykka.ThreadingActor).start(*args, **kwargs)

    def unstarted(self, body: type, *args: Any, **kwargs: Any) -> Any:
        return _made(body, pykka.ThreadingActor)(*args, **kwargs)

    def future(self) -> "pykka.Future[Any]":
        return pykka.ThreadingFuture()

    def wait(self, gate: threading.Event) -> Any:
        return gate.wait(LONG_S)

    def stop_all(self) -> None:
        pykka.ActorRegistry.stop_all()


class RefoldWorld:
    """Our actors, in a system whose loop runs in a thread."""

    def __init__(self, **settings: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="the loop of our actors")
        self._thread.start()
        self.system = self.run(self._make_system({"restart_backoff_s": 0, **settings}))

    async def _make_system(self, settings: dict[str, Any]) -> ActorSystem:
        return ActorSystem(**settings)

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LONG_S)

    def call(self, function: Callable[[], R]) -> R:
        """Call a function on the loop's own thread, and wait for it."""

        async def work() -> R:
            return function()

        return self.run(work())

    def start(self, body: type, *args: Any, **kwargs: Any) -> Any:
        return self.run(self.system.start(_made(body, Actor), *args, **kwargs))

    def unstarted(self, body: type, *args: Any, **kwargs: Any) -> Any:
        return _made(body, Actor)(*args, **kwargs)

    def future(self) -> "pykka.Future[Any]":
        return ActorFuture()

    def wait(self, gate: threading.Event) -> Any:
        return asyncio.to_thread(gate.wait, LONG_S)

    def stop_all(self) -> None:
        self.run(self.system.close())

    def end(self) -> None:
        """Stop the actors, the loop and its thread."""
        self.stop_all()
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def _made(body: type, kind: type) -> Any:
    return type(body.__name__, (body, kind), {})
