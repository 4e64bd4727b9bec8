"""The end of a life of the simulated process: what is left of it learns that it is gone, until nothing is left.

A crash stops the loop between two steps. Tasks that wait then would be found by the garbage collector some time later,
in an order that nobody knows; so they are cancelled in the order in which they were made, until none is left. The rule:
nothing that they do counts, so whoever buries a life has cut it off from the disk before.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from refold.scenarios.simulated_loop import SimulatedLoop, SimulationError

BURIAL_STEPS_MAX = 200_000
"""So many steps may what is left of a dead life take until it has ended."""


class Gone(BaseException):
    """The process is dead: passes through everything."""


def bury(loop: SimulatedLoop, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> bool:
    """End everything on a loop and close it; return whether it came to an end.

    Args:
        loop: of the life that is over.
        last: what is done on it in the end.
    """
    left = loop.steps + BURIAL_STEPS_MAX

    def limit(step: int) -> None:
        if step > left:
            raise Gone

    loop.before_step = limit
    loop.set_exception_handler(_ignore)
    logged = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # Nobody hears the dead.
    try:
        while True:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(asyncio.sleep(0))  # What is ready may begin more.
            tasks = sorted(asyncio.all_tasks(loop), key=hash)
            if not tasks:
                if last is not None:
                    loop.run_until_complete(last())
                return True
            begun = [task for task in tasks if _has_begun(task)]  # The others would leave what they were given undone.
            for task in begun:
                task.cancel()
            if begun:
                loop.run_until_complete(asyncio.gather(*begun, return_exceptions=True))
    except (Gone, SimulationError):
        return False
    finally:
        logging.disable(logged)
        loop.close()


def _has_begun(task: asyncio.Task[Any]) -> bool:
    coroutine = task.get_coro()
    return not inspect.iscoroutine(coroutine) or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """See no error of what is left of a dead life."""
