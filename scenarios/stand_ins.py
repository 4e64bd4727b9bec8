"""Tools whose bodies do nothing: for the rehearsal of an agent whose own tools pay, delete and send.

A stand-in is described, checked and judged as the tool that it stands for; only its body is another one, and says what
it was called with.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import cast, overload

import msgspec

from refold.actors.tool_context import ToolContext
from refold.agent import Agent
from refold.agent_source import AgentSource, checked_source, made_agent
from refold.events.configuration import ToolSpec
from refold.subagent_tool import SubagentTool
from refold.tools import Tool, ToolBody


@overload
def with_stand_ins(agent: Agent) -> Agent: ...
@overload
def with_stand_ins(agent: Callable[[], Agent]) -> Callable[[], Agent]: ...
def with_stand_ins(agent: AgentSource) -> AgentSource:
    """Return the agent with a stand-in for each of its tools; a subagent stays, and its own tools have stand-ins.

    Args:
        agent: or a function that makes it; then a function is returned.

    Raises:
        ConfigError: it is neither; or, later, the function fails or makes something else.
    """
    source = checked_source(agent, "what is to have stand-ins")
    if isinstance(source, Agent):
        return _with_stand_ins(source, ())
    return lambda: _with_stand_ins(made_agent(source), ())


def _with_stand_ins(agent: Agent, above: tuple[int, ...]) -> Agent:
    above = (*above, id(agent))
    tools = [_of_subagent(tool, above) if isinstance(tool, SubagentTool) else _stand_in(tool) for tool in agent.tools]
    return msgspec.structs.replace(agent, tools=tools)


def _of_subagent(tool: SubagentTool[..., object], above: tuple[int, ...]) -> Tool[..., object]:
    if isinstance(tool.agent, str):
        return tool
    leads_back = id(tool.agent) in above  # To one that the runtime has in any case.
    return replace(tool, agent=tool.agent.name if leads_back else _with_stand_ins(tool.agent, above))


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


def _stand_in(tool: Tool[..., object]) -> Tool[..., object]:
    async def carry_out(body: ToolBody, values: dict[str, object], context: ToolContext[object]) -> object:
        return f"{tool.name} was rehearsed with {', '.join(sorted(values)) or 'nothing'}"

    return tool.carried_out_by(carry_out)
