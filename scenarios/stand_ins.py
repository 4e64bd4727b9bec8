"""Tools whose bodies do nothing: for the rehearsal of an agent whose own tools pay, delete and send.

A stand-in is described, checked and judged as the tool that it stands for; only its body is another one, and says what
it was called with.
"""

from collections.abc import Sequence

import msgspec

from refold.actors.tool_context import ToolContext
from refold.agent import Agent
from refold.tools import Tool, ToolBody


def with_stand_ins(agent: Agent) -> Agent:
    """Return the agent with a stand-in for each of its tools."""
    return msgspec.structs.replace(agent, tools=stand_ins(agent.tools))


def stand_ins(tools: Sequence[Tool[..., object]]) -> tuple[Tool[..., object], ...]:
    """Return a stand-in for each of some tools."""
    return tuple(_stand_in(tool) for tool in tools)


def _stand_in(tool: Tool[..., object]) -> Tool[..., object]:
    async def carry_out(body: ToolBody, values: dict[str, object], context: ToolContext[object]) -> object:
        return f"{tool.name} was rehearsed with {', '.join(sorted(values)) or 'nothing'}"

    return tool.carried_out_by(carry_out)
