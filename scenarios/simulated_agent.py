"""The agent as a simulated process has it: the user's own, but for what reaches outside.

Its provider, its tools' bodies and its approval handler are replaced; configuration, policy, middleware, memory and
breakers stay, and do in a simulation what they do in earnest.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from refold.agent import Agent
from refold.approval_handling import ApprovalHandler
from refold.events.errors import ConfigError
from refold.events.model import ModelRequest
from refold.scenarios.simulated_model import simulated_provider
from refold.scenarios.simulated_tools import simulated_tools
from refold.scenarios.simulated_world import World

AgentSource: TypeAlias = Agent | Callable[[], Agent]
"""An agent, or what makes one: called for each life of the process, as a process makes its own when it starts. An agent
with objects that remember, such as breakers and memories, needs one."""


def simulated_agent(
    source: AgentSource, world: World, asked: Callable[[ModelRequest], list[str]], approval: ApprovalHandler | None
) -> Agent:
    """Return the agent for the present life of a simulated process.

    Args:
        source: the user's.
        world: where chance and faults come from.
        asked: told of each request of a model.
        approval: decides about calls; None = they wait.

    Raises:
        ConfigError: what is to make an agent makes something else.
    """
    agent: object = source if isinstance(source, Agent) else source()
    if not isinstance(agent, Agent):
        raise ConfigError(f"a function that makes the agent to be simulated returned {agent!r:.80}, which is no Agent")
    return msgspec.structs.replace(
        agent,
        provider=simulated_provider(agent.provider, world, asked),
        tools=simulated_tools(agent.tools, world),
        approval=approval,
    )
