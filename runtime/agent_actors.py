"""The actor that makes an agent's model calls, with all that the agent has for it."""

from refold.actors.middleware import Hooks
from refold.actors.model import ModelActor
from refold.actors.recalling import Recalling
from refold.agent import Agent
from refold.session_hub import SessionHub
from refold.stores.event_store import EventStore
from refold.structured_output import OutputCheck
from refold.tool_registry import ToolRegistry


def model_actor_of(
    agent: Agent,
    tools: ToolRegistry,
    store: EventStore,
    hub: SessionHub,
    hooks: Hooks | None,
    recalling: Recalling | None,
) -> ModelActor:
    """Return the actor of an agent's model calls.

    Args:
        agent: whose calls it makes.
        tools: that exist in this process.
        store: of the log.
        hub: is told of pieces of answers.
        hooks: the agent's middleware.
        recalling: asks the agent's memories.
    """
    return ModelActor(
        agent.answering(),
        tools,
        store,
        hub,
        policy=agent.policy,
        offer=agent.offer,
        output_check=OutputCheck(agent.output_type) if agent.output_type is not None else None,
        recalling=recalling,
        window=agent.context,
        hooks=hooks,
        summariser=agent.provider,
    )
