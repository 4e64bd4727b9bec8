"""Cooperative work on an event loop; see `refold.events.model.cooperative`."""

import asyncio
import contextlib
from typing import TypeVar

from refold.events.model.cooperative import Cooperative

R = TypeVar("R")


async def in_turns(steps: Cooperative[R], *, to_the_end: bool = False) -> R:
    """Return what `steps` find, and give the loop back between them.

    Args:
        steps: the work.
        to_the_end: go on where the task is cancelled meanwhile, since what is found must not be lost.
    """
    while True:
        try:
            next(steps)
        except StopIteration as found:
            value: R = found.value
            return value
        with contextlib.suppress(*((asyncio.CancelledError,) if to_the_end else ())):
            await asyncio.sleep(0)
