"""Cooperative work on an event loop; see `refold.events.model.cooperative`."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias, TypeVar

from refold.events.core.ids import PayloadHash
from refold.events.model.cooperative import Asking

R = TypeVar("R")

ReadPayloads: TypeAlias = Callable[[Iterable[PayloadHash]], Awaitable[dict[PayloadHash, bytes]]]
"""Returns those of some payloads that a log has."""


async def in_turns(steps: Asking[R], *, to_the_end: bool = False, read: ReadPayloads | None = None) -> R:
    """Return what `steps` find, and give the loop back between them.

    With `to_the_end`, go on where the task is cancelled meanwhile, since what is found must not be lost. `read` gives
    the payloads that are asked for; None = there are none.
    """
    while True:
        try:
            wanted = next(steps)
        except StopIteration as found:
            value: R = found.value
            return value
        if wanted is not None and read is not None:
            wanted.found = await read(wanted.names)
            continue
        with contextlib.suppress(*((asyncio.CancelledError,) if to_the_end else ())):
            await asyncio.sleep(0)
