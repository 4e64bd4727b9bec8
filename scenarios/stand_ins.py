"""Tools whose bodies do nothing: for the rehearsal of an agent whose own tools pay, delete and send.

A stand-in is described, checked and judged as the tool that it stands for; only its body is another one, and says what
it was called with.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import msgspec

from refold.actors.tool_context import ToolContext
from refold.agent import Agent
from refold.events.configuration import ToolSpec
from refold.subagent_tool import SubagentTool
from refold.tools import Tool, ToolBody


def with_stand_ins(agent: Agent) -> Agent:
    """Return the agent with a stand-in for each of its tools; a subagent is no such tool, but its own tools are."""
    return msgspec.structs.replace(agent, tools=stand_ins(agent.tools))


def stand_ins(tools: Sequence[Tool[..., object]]) -> tuple[Tool[..., object], ...]:
    """Return a stand-in for each of some tools."""
    return tuple(_of_subagent(tool) if isinstance(tool, SubagentTool) else _stand_in(tool) for tool in tools)


def stand_in_of(spec: ToolSpec) -> Tool[..., object]:
    """Return a stand-in for a tool of which nothing is known but its description.

    Raises:
        ConfigError: no tool can be described so.
    """

    async def handler(arguments: dict[str, object]) -> object:
        return f"{spec.name} was rehearsed with {', '.join(sorted(arguments)) or 'nothing'}"

    made = Tool.from_schema(
        name=spec.name,
        description=spec.description,
        input_schema=spec.input_schema,
        handler=handler,
        tier=spec.tier,
        effect=spec.effect,
        timeout_s=spec.timeout_s,
        display_name=spec.display_name,
    )
    return cast("Tool[..., object]", made)


def _of_subagent(tool: SubagentTool[..., object]) -> Tool[..., object]:
    return tool if isinstance(tool.agent, str) else replace(tool, agent=with_stand_ins(tool.agent))


def _stand_in(tool: Tool[..., object]) -> Tool[..., object]:
    async def carry_out(body: ToolBody, values: dict[str, object], context: ToolContext[object]) -> object:
        return f"{tool.name} was rehearsed with {', '.join(sorted(values)) or 'nothing'}"

    return tool.carried_out_by(carry_out)
