"""Work in a thread of its own, for what would keep the loop from everything else."""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from refold.actors.future import ActorFuture

R = TypeVar("R")

PREPARED_FROM: Final = 2_000
"""What is derived from so many texts or more is made in a thread when a runtime takes their store."""


def in_thread(call: Callable[[], R], name: str) -> ActorFuture[R]:
    """Return what `call` returns, or raises, in a daemon thread."""
    future: ActorFuture[R] = ActorFuture()

    def settle() -> None:
        try:
            future.settle(call())
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.settle(error=error)

    threading.Thread(target=settle, name=name, daemon=True).start()
    return future
