"""What the tests of approvals, policies and retries share: tools that note what they did, and who waits for whom."""

import asyncio
from collections.abc import Sequence
from typing import Any

from refold import (
    AgentConfig,
    AgentRuntime,
    RecordedEvent,
    ScriptedProvider,
    Session,
    ToolApprovalRequested,
    ToolResultBlock,
    tool,
)


class Ledger:
    """Tools that note what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []

        @tool(tier="confirm")
        async def pay(amount: int) -> str:
            """Pay, if allowed."""
            self.done.append(f"paid {amount}")
            return f"paid {amount}"

        @tool(tier="confirm", action=lambda path: path.split("/")[0])
        async def delete(path: str) -> str:
            """Delete, if allowed; what is allowed always is allowed for a folder."""
            self.done.append(f"deleted {path}")
            return f"deleted {path}"

        @tool(tier="observe", effect="pure")
        async def look(n: int) -> str:
            """Look; needs nobody."""
            self.done.append(f"saw {n}")
            return f"saw {n}"

        self.tools = [pay, delete, look]


def runtime_of(log: Any, ledger: Ledger | None, script: Sequence[Any], **options: Any) -> AgentRuntime:
    """Return a runtime whose model plays `script`; options of AgentConfig and of AgentRuntime may be mixed."""
    fields = AgentConfig.__struct_fields__
    config = AgentConfig(model="m", **{name: options.pop(name) for name in list(options) if name in fields})
    tools = options.pop("tools", ledger.tools if ledger is not None else [])
    return AgentRuntime(config, provider=ScriptedProvider(script), tools=tools, log=log, **options)


class Seen:
    """The events of a runtime from now on, of one session or of all, and a wait for them."""

    def __init__(self, runtime: AgentRuntime, session: str | None = None) -> None:
        self.events: list[Any] = []
        self._changed = asyncio.Event()
        runtime.subscribe(self._see, session=session)

    def _see(self, recorded: RecordedEvent[Any]) -> None:
        self.events.append(recorded.event)
        self._changed.set()

    def of(self, name: str) -> list[Any]:
        return [event for event in self.events if type(event).__name__ == name]

    async def have(self, name: str, count: int = 1) -> list[Any]:
        """Return the events of a type once there are `count` of them."""
        while len(self.of(name)) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.of(name)

    async def requests(self, count: int = 1) -> list[ToolApprovalRequested]:
        """Return what somebody was asked to decide, once that are `count` calls."""
        return await self.have("ToolApprovalRequested", count)


async def results(session: Session) -> list[str]:
    """Return the texts of all tool results in the history."""
    return [block.text for block in await result_blocks(session)]


async def result_blocks(session: Session) -> list[ToolResultBlock]:
    return [
        block for message in await session.history() for block in message.content if isinstance(block, ToolResultBlock)
    ]


async def recorded(session: Session, name: str | None = None) -> list[Any]:
    """Return the session's events in the log, or those of one type."""
    return [item.event async for item in session.events() if name is None or type(item.event).__name__ == name]
