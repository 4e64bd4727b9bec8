"""Making what a question needs in a thread, where that takes long, and asking then."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from refold.actors.future import ActorFuture

R = TypeVar("R")


def ask_after(prepare: Callable[[], None], ask: Callable[[], ActorFuture[R]]) -> ActorFuture[R]:
    """Return what `ask` gives once `prepare` is done: on a loop both are called in a daemon thread, else here.

    What either raises is the outcome.
    """
    future: ActorFuture[R] = ActorFuture(asyncio._get_running_loop())

    def go() -> None:
        try:
            prepare()
            future.settle(ask().get())
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.settle(error=error)

    if asyncio._get_running_loop() is None:
        go()
    else:
        threading.Thread(target=go, name="preparing a question", daemon=True).start()
    return future
