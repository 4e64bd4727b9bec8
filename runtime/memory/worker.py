"""Work in a thread of its own, for what would keep the loop from everything else."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

from refold.actors.kernel.future import ActorFuture, has_threads
from refold.stores.sqlite.serial_worker import SerialWorker

R = TypeVar("R")


def in_thread(call: Callable[[], R], name: str) -> ActorFuture[R]:
    """Return what `call` returns, or raises, in a daemon thread; at once, on a loop that has none."""
    future: ActorFuture[R] = ActorFuture()

    def settle() -> None:
        try:
            future.settle(call())
        except BaseException as error:  # noqa: BLE001 - handed to the waiting caller
            future.settle(error=error)

    if has_threads():
        worker = SerialWorker(name)
        worker.put(settle)
        worker.end()
    else:
        settle()
    return future


async def loaded(*modules: str) -> None:
    """Import modules that take long, such as those that need numpy, unless they are there."""
    missing = [module for module in modules if module not in sys.modules]
    if missing:
        await in_thread(lambda: [import_module(module) for module in missing], f"importing {missing[0]}")
