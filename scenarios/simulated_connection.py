"""What runs the work of an SQLite connection in a simulation: the simulated loop itself, instead of a thread.

aiosqlite queues functions for a thread. Here each of them runs on the loop, whole, after a delay drawn from the seed;
what comes of it is told one step later, so that a crash, a cancellation or another task can come between the work and
the word of it, as with a thread. Everything else of aiosqlite and of the store is what runs in production.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from refold.stores.sqlite_connection import Operation

DELAY_MAX_S = 0.003
"""Longest time that an operation of a connection takes, in virtual seconds."""


class InlineWorker:
    """The `Worker` of one connection.

    Args:
        chance: how long each operation takes.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Operation] = deque()
        self._busy = False

    def start(self) -> None:
        """Begin, for which there is nothing to do."""

    def is_alive(self) -> bool:
        """Return False: there is no thread whose end anybody has to wait for."""
        return False

    def put_nowait(self, operation: Operation, /) -> None:
        """Run the operation on the loop once those before it have run; at once if the loop is closed."""
        if self._loop.is_closed():  # Somebody lets go of a connection of a dead life.
            operation[1]()
            return
        self._waiting.append(operation)
        if not self._busy:
            self._busy = True
            self._later()

    def _later(self) -> None:
        self._loop.call_later(self._chance.random() * DELAY_MAX_S, self._run)

    def _run(self) -> None:
        future, work = self._waiting.popleft()
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the work gets it
            failure = error
            self._tell(future, lambda told: told.set_exception(failure))
        else:
            self._tell(future, lambda told: told.set_result(result))
        if self._waiting:
            self._later()
        else:
            self._busy = False

    def _tell(self, future: asyncio.Future[Any] | None, tell: Callable[[asyncio.Future[Any]], None]) -> None:
        if future is not None:
            self._loop.call_soon(_tell_unless_done, future, tell)


def _tell_unless_done(future: asyncio.Future[Any], tell: Callable[[asyncio.Future[Any]], None]) -> None:
    if not future.done():
        tell(future)
