"""What lives and ends with an instance of an actor: its children, and the work it runs beside its mailbox.

The rules protected here: everything is held strongly, in the order it was started; no error of background work is
lost; when the instance stops or restarts, all of it has ended before anything else happens.
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from refold.actors.errors import AskCycle
from refold.actors.supervision import describe

if TYPE_CHECKING:
    from refold.actors.actor_cell import ActorCell

R = TypeVar("R")


class Dependents:
    """The children and the background tasks of one cell."""

    __slots__ = ("_cell", "_tasks", "children")

    def __init__(self, cell: "ActorCell") -> None:
        self._cell = cell
        self.children: dict[str, ActorCell] = {}
        """By address, oldest first."""
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        """Run `work` as a task; its error, if any, is reported."""
        system = self._cell.system
        task = system.loop.create_task(
            _contained(work), name=f"{self._cell.address} {name}", context=system.context.copy()
        )
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it would warn of that
        return task

    def busy(self) -> bool:
        """Return whether there are children or background work now."""
        return bool(self.children or self._tasks)

    def cancel_tasks(self) -> None:
        """Cancel the background work without waiting for its end."""
        for task in self._tasks:
            task.cancel()

    async def end_tasks(self) -> None:
        """Cancel the background work, and return when all of it has ended."""
        while self._tasks:
            self.cancel_tasks()
            for task in list(self._tasks):
                await asyncio.wait([task])

    async def stop_children(self, *, now: bool) -> None:
        """Stop the children, last started first, and return when all have stopped."""
        stopping = [(child, child.request_stop(now=now)) for child in reversed(list(self.children.values()))]
        for child, stopped in stopping:
            try:
                await stopped
            except AskCycle:  # its handler waits for us, so it will not come to its end by itself
                await child.request_stop(now=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._cell.system.supervisor.report(self._cell.address, error, "background")


async def _contained(work: Coroutine[Any, Any, R]) -> R:
    """Await background work; SystemExit would stop the loop, so it becomes an ordinary error."""
    try:
        return await work
    except SystemExit as error:
        raise RuntimeError(f"background work raised {describe(error)}") from error
