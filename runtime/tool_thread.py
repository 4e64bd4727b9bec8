"""A synchronous tool's body, run in a thread and waited for to its real end.

A thread cannot be interrupted. So when the run is cancelled, the body is given up to the pool, which puts another
thread in its place, but still waited for, since what it did is worth knowing: its value is late evidence. When only
the waiting task is cancelled, because its actor stops, nobody is left to be told and the wait ends at once.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

from refold.actors.thread_pool import LateOutcome, ThreadPool
from refold.actors.tool_context import ToolContext
from refold.events.errors import AgentLoopError

R = TypeVar("R")


async def run_in_thread(call: Callable[[], R], *, name: str, context: ToolContext[object], pool: ThreadPool) -> R:
    """Return what `call` returns in a thread of `pool`, with this task's context variables.

    Cancelled with the run's token, it goes on until the thread has ended; a body that no thread has begun is never
    begun. Cancelled without the token, or once more, it raises at once and leaves the thread to itself.

    Raises:
        AgentLoopError: no thread could be started.
        ConfigError: the pool is closed.
        asyncio.CancelledError: the task was cancelled, or the body raised it.
        RuntimeError: the body raised SystemExit or the like.
        Exception: whatever else the body raised.
    """
    ended: asyncio.Future[LateOutcome[R]] = asyncio.get_running_loop().create_future()

    def keep(outcome: LateOutcome[R]) -> None:
        if not ended.done():
            ended.set_result(outcome)

    try:
        work = pool.submit(call, name=name)
    except RuntimeError as error:  # The machine has no thread to give.
        raise AgentLoopError(f"no thread could be started for {name}: {error}") from error
    try:
        return await work
    except asyncio.CancelledError:
        if not work.abandon(keep):
            return await work  # its end came first, or it was never begun, which raises
        if not context.cancel.cancelled:
            raise
    outcome = await ended
    if outcome.error is not None:
        raise outcome.error
    return cast("R", outcome.value)
