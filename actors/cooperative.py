"""Cooperative work on an event loop; see `refold.events.model.cooperative`."""

import asyncio
import contextlib
from typing import TypeVar

from refold.events.model.cooperative import Cooperative

R = TypeVar("R")


async def in_turns(steps: Cooperative[R]) -> R:
    """Return what `steps` find, and give the loop back between them."""
    while True:
        try:
            next(steps)
        except StopIteration as found:
            value: R = found.value
            return value
        await asyncio.sleep(0)


async def in_turns_to_its_end(steps: Cooperative[R]) -> R:
    """As `in_turns`, also where the task is cancelled meanwhile, since what is found must not be lost."""
    while True:
        try:
            next(steps)
        except StopIteration as found:
            value: R = found.value
            return value
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
