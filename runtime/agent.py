"""The description of an agent: what a runtime runs and what `module:attribute` names in the command."""

from collections.abc import Sequence

import msgspec

from refold.actors.protocols import Provider
from refold.events.configuration import AgentConfig
from refold.events.errors import ConfigError
from refold.events.ids import checked_identifier
from refold.tools import Tool


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that makes an agent, and nothing that runs.

    Raises:
        ConfigError: the name cannot be one, or holds a slash.
    """

    config: AgentConfig
    provider: Provider
    """What answers its requests."""
    tools: Sequence[Tool[..., object]] = ()
    name: str = "agent"
    """Its AgentId."""

    def __post_init__(self) -> None:
        if "/" in checked_identifier(self.name, "agent name"):
            raise ConfigError(f"the agent name {self.name!r} holds a slash; use a name without one")
