"""The calls in the sessions of subagents that wait for a person, as seen from the session whose run waits for them."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.agent_runtime import AgentRuntime
    from refold.events.session_events import ToolApprovalRequested
    from refold.published import Recorded
    from refold.session import Session


class ChildApprovals:
    """Tells of calls below a session that wait for somebody's approval, and that no handler is asked about.

    Args:
        runtime: whose sessions they are.
        session: whose children are watched, and theirs.
        found: called with each such call, and its session.
    """

    def __init__(
        self,
        runtime: "AgentRuntime",
        session: "Session",
        found: "Callable[[Session, ToolApprovalRequested], None]",
    ) -> None:
        from refold.actors.child_session import children_prefix

        self._runtime = runtime
        self._session = session
        self._found = found
        self._prefix = f"session/{children_prefix(session.id)}"
        self._looking: set[asyncio.Task[None]] = set()

    def watch(self) -> None:
        """Tell of those that come to wait from now on."""
        self._runtime.subscribe(self._see)

    async def tell_waiting(self) -> None:
        """Tell of those that wait now."""
        waiting = [self._session]
        while waiting:
            for child in await waiting.pop().children():
                await self._look_at(child)
                waiting.append(child)

    def _see(self, recorded: "Recorded") -> None:
        from refold.events.session_events import ToolApprovalRequested

        if isinstance(recorded.event, ToolApprovalRequested) and recorded.stream.startswith(self._prefix):
            task = asyncio.get_running_loop().create_task(self._look_at_stream(recorded.stream))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _look_at_stream(self, stream: str) -> None:
        await self._look_at(await self._runtime.session(stream.partition("/")[2]))

    async def _look_at(self, child: "Session") -> None:
        from refold.events.session_state import calls_awaiting_approval

        state = await child.state_at()
        agent = self._runtime.agents.get(state.agent) if state.agent is not None else None
        if calls_awaiting_approval(state) and (agent is None or agent.approval is None):
            for request in await child.approvals(below=False):
                self._found(child, request)
