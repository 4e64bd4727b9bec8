"""The description of an agent: what a runtime runs and what `module:attribute` names in the command."""

import inspect
from collections.abc import Sequence

import msgspec

from refold.actors.judging import Offer, Policy
from refold.actors.protocols import Provider
from refold.approval_handling import ApprovalHandler
from refold.events.configuration import AgentConfig
from refold.events.errors import ConfigError
from refold.events.ids import checked_identifier
from refold.tools import Tool


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that makes an agent, and nothing that runs.

    Raises:
        ConfigError: the name cannot be one, or holds a slash; or something is no function that must be one.
    """

    config: AgentConfig
    provider: Provider
    """What answers its requests."""
    tools: Sequence[Tool[..., object]] = ()
    name: str = "agent"
    """Its AgentId."""
    approval: ApprovalHandler | None = None
    """Is asked about calls that wait for approval; None = they wait for `Session.decide` or `refold approve`."""
    policy: Policy | None = None
    """Judges each call that a model asks for, before anybody approves; a failing policy breaks the call."""
    offer: Offer | None = None
    """Says which tools a model is offered in a session; None = all."""

    def __post_init__(self) -> None:
        if "/" in checked_identifier(self.name, "agent name"):
            raise ConfigError(f"the agent name {self.name!r} holds a slash; use a name without one")
        for field in ("approval", "policy", "offer"):
            given = getattr(self, field)
            if given is not None and not callable(given):
                raise ConfigError(f"Agent.{field} must be a function, not {type(given).__name__}")
        if self.offer is not None and inspect.iscoroutinefunction(self.offer):
            raise ConfigError("Agent.offer must be a plain function that returns quickly, not an async one")


def agent_of(
    given: AgentConfig | Agent | None,
    provider: Provider | None,
    tools: Sequence[Tool[..., object]],
    name: str,
    approval: ApprovalHandler | None,
    policy: Policy | None,
    offer: Offer | None,
) -> Agent:
    """Return the agent that a runtime is given, whole or in parts.

    Raises:
        ConfigError: something is missing, of the wrong kind, or given twice.
    """
    if isinstance(given, Agent):
        if tools or any(part is not None for part in (provider, approval, policy, offer)):
            raise ConfigError("an Agent has its own provider, tools, approval, policy and offer; give none beside it")
        return given
    if not isinstance(given, AgentConfig):
        raise ConfigError(f"AgentRuntime needs an AgentConfig or an Agent first, not {type(given).__name__}")
    if provider is None:
        raise ConfigError("AgentRuntime needs a provider; for tests, ScriptedProvider plays a script")
    if not callable(getattr(provider, "complete", None)):
        raise ConfigError(f"a provider has an async method `complete`, and {type(provider).__name__} has none")
    return Agent(
        config=given,
        provider=provider,
        tools=tuple(tools),
        name=name,
        approval=approval,
        policy=policy,
        offer=offer,
    )
