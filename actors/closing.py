"""The end of an actor system: in order, within a time, whatever the actors do.

The rule protected here: closing never hangs. What does not end is named, and nobody who waits for it waits on.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from refold.actors.actor_cell import ActorCell
from refold.actors.clock import Clock

STOP_NOW_WAIT_S = 1.0
"""How long closing waits, after the grace period, for cancelled handlers to end."""


async def stop_all(cells: Mapping[str, ActorCell], clock: Clock, grace_s: float) -> None:
    """Stop the actors of a system; return when all have stopped, or `STOP_NOW_WAIT_S` after the grace period.

    Args:
        cells: the live ones, by address; those that stop leave it.
    """
    if not await _ends_within(grace_s, clock, _stop_in_order(cells)):
        await _ends_within(STOP_NOW_WAIT_S, clock, _stop_now(cells))


async def _stop_in_order(cells: Mapping[str, ActorCell]) -> None:
    """Stop what messages started, all at once; then what was started explicitly, one by one, last started first."""
    roots = [cell for cell in cells.values() if cell.parent is None]
    for stopped in [cell.request_stop(now=False) for cell in roots if not cell.explicit]:
        await stopped
    for cell in reversed(roots):
        if cell.explicit:
            await cell.request_stop(now=False)


async def _stop_now(cells: Mapping[str, ActorCell]) -> None:
    for stopped in [cell.request_stop(now=True) for cell in list(cells.values())]:
        await stopped


async def _ends_within(seconds: float, clock: Clock, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`, and return whether it ended within so many seconds; otherwise it is cancelled."""
    task = asyncio.get_running_loop().create_task(work, name="closing actors")
    over = asyncio.Event()
    timer = clock.call_later(seconds, over.set)
    waiting = asyncio.get_running_loop().create_task(over.wait(), name="closing actors, grace period")
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        ended = task.done()
    finally:
        timer.cancel()
        for ending in (waiting, task):
            ending.cancel()
            await asyncio.wait([ending])
    if ended:
        task.result()
    return ended
