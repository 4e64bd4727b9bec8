"""The handler of an application that decides about calls which wait for approval: `Agent.approval`.

See `refold.actors.agent.approval` for when it is asked. The rule: what blocks runs in a thread of the pool.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from refold.actors.agent.approval import AskHandler
from refold.actors.calls.policy import Decision
from refold.actors.thread_pool import ThreadPool
from refold.events.core.ids import SessionId
from refold.events.session.events import ToolApprovalRequested

ApprovalHandler: TypeAlias = Callable[[SessionId, ToolApprovalRequested], Decision | Awaitable[Decision | None] | None]
"""Decides about a call that waits: `Allow()`, `Allow(always=True)`, `Deny(reason)`, or None, which leaves it to a later
`Session.decide`. Plain functions run in a thread and may block; what a handler raises is logged and decides nothing.
"""


def asking(handler: ApprovalHandler | None, pool: ThreadPool) -> AskHandler | None:
    """Return how the handler is asked, or None if there is none."""
    if handler is None:
        return None
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        return cast("AskHandler", handler)

    async def ask(session: SessionId, request: ToolApprovalRequested) -> object:
        work = pool.submit(lambda: handler(session, request), name=f"{session}/{request.call}")
        try:
            answer = await work
        except asyncio.CancelledError:
            work.abandon()
            raise
        return await answer if inspect.isawaitable(answer) else answer

    return ask
