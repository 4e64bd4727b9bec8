"""The agent as a simulated process has it: the user's own, with its subagents, but for what reaches outside.

Each provider, the bodies of tools and approval handlers are replaced; configuration, policy, middleware, memory
and breakers stay, and do in a simulation what they do in earnest. What lives on the log begins anew with each process.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import msgspec

from refold.actors.calls.protocols import Provider
from refold.agents.agent import AgentTool, AnyAgent, with_subagents
from refold.agents.approval import ApprovalHandler
from refold.agents.loading import AgentSource, made_agent
from refold.events.core.ids import AgentId
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest
from refold.scenarios.plan.world import World
from refold.scenarios.world.model import SimulatedModel, simulated_provider
from refold.scenarios.world.tools import simulated_tools
from refold.sessions.structured_output import output_schema
from refold.tools.tool import Tool

ToOthers = TypeVar("ToOthers", bound=AgentTool[..., object])

Reached: TypeAlias = Callable[[SimulatedModel], Provider]
"""Returns the provider through which a simulated model is asked."""


def simulated_agent(
    source: AgentSource,
    world: World,
    *,
    asked: Callable[[ModelRequest], list[str]],
    approval: ApprovalHandler | None,
    reached: Reached = lambda model: model,
) -> AnyAgent:
    """Return the agent for the present life of a simulated process; its subagents are simulated too.

    A function is called, as a process makes its own agent when it starts. `asked` is told of each request to any of the
    models, and says whose it is; without `approval`, calls wait.
    """
    agent = made_agent(source)
    for living in {id(living): living for found in with_subagents(agent) for living in found.stream_objects()}.values():
        living.begin_anew()
    made: dict[int, AnyAgent] = {}

    def simulated(own: AnyAgent, above: tuple[int, ...]) -> AnyAgent:
        if id(own) not in made:
            output = _schema(own)
            made[id(own)] = msgspec.structs.replace(
                own,
                provider=simulated_provider(
                    own.provider,
                    lambda place: reached(SimulatedModel(world, asked, place=place, output=output, steps=_steps(own))),
                ),
                tools=simulated_tools(
                    [subagent_too(tool, (*above, id(own))) for tool in own.tools], world, AgentId(own.name)
                ),
                handoffs=[agent_too(tool, (*above, id(own))) for tool in own.handoff_tools()],
                approval=approval,
            )
        return made[id(own)]

    def subagent_too(tool: Tool[..., object], above: tuple[int, ...]) -> Tool[..., object]:
        return agent_too(tool, above) if isinstance(tool, AgentTool) else tool

    def agent_too(tool: ToOthers, above: tuple[int, ...]) -> ToOthers:
        if isinstance(tool.agent, str):
            return tool
        leads_back = id(tool.agent) in above  # To one that is not made yet, and that the runtime has in any case.
        return replace(tool, agent=tool.agent.name if leads_back else simulated(tool.agent, above))

    return simulated(agent, ())


def _steps(agent: AnyAgent) -> tuple[ToolSpec, ...] | None:
    return tuple(tool.spec for tool in agent.all_tools()) if agent.config.protocol == "react" else None


def _schema(agent: AnyAgent) -> dict[str, Any] | None:
    if agent.output_type is None:
        return None
    return output_schema(agent.output_type)
