"""The agent of a simulated process: the user's own, with its subagents, but for what reaches outside.

Each agent's provider is replaced by a simulated model, or by a real provider whose host is simulated; each approval
handler by chance; and what lives on the log begins anew with each process.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec

from refold.actors.protocols import Provider
from refold.agent import Agent
from refold.approval_handling import ApprovalHandler
from refold.events.model import ModelRequest
from refold.scenarios.simulated_model import SimulatedModel
from refold.scenarios.simulated_tools import simulated_tools
from refold.scenarios.simulated_world import World
from refold.structured_output import output_schema
from refold.subagent_tool import SubagentTool, with_subagents
from refold.tools import Tool

ModelOf = Callable[[SimulatedModel], Provider]
"""Returns the provider through which a simulated model is asked."""


def simulated_agent(
    agent: Agent,
    world: World,
    *,
    asked: Callable[[ModelRequest], list[str]],
    approval: ApprovalHandler,
    provider_of: ModelOf = lambda model: model,
) -> Agent:
    """Return an agent as one life of the simulated process has it; its subagents are simulated too.

    Args:
        agent: the user's own.
        world: where chance and faults come from.
        asked: told of each request to any of the models, and says whose it is.
        approval: decides about the calls of all.
        provider_of: says how a model is reached.
    """
    for living in {id(living): living for found in with_subagents(agent) for living in found.stream_objects()}.values():
        living.begin_anew()
    made: dict[int, Agent] = {}

    def simulated(own: Agent, above: tuple[int, ...]) -> Agent:
        if id(own) not in made:
            made[id(own)] = msgspec.structs.replace(
                own,
                provider=provider_of(SimulatedModel(world, asked, _schema(own))),
                tools=simulated_tools([subagent_too(tool, (*above, id(own))) for tool in own.tools], world),
                approval=approval,
            )
        return made[id(own)]

    def subagent_too(tool: Tool[..., object], above: tuple[int, ...]) -> Tool[..., object]:
        if not isinstance(tool, SubagentTool) or isinstance(tool.agent, str):
            return tool
        leads_back = id(tool.agent) in above  # To one that is not made yet, and that the runtime has in any case.
        return replace(tool, agent=tool.agent.name if leads_back else simulated(tool.agent, above))

    return simulated(agent, ())


def _schema(agent: Agent) -> dict[str, Any] | None:
    if agent.output_type is None:
        return None
    return cast("dict[str, Any]", msgspec.json.decode(output_schema(agent.output_type)))
