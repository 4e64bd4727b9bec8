"""Ready scenarios: one file each for what goes wrong in earnest, with an agent to try it on, to read, run and copy.

    python -m refold.scenarios.ready.disk_full

Read `disk_full` first. Each file tells its story, what is promised and what to look at. Its `agent()` is a sample, its
`scenario()` the plan, and `play(agent)` plays that with your own agent, or with the sample where you give none.
"""

from importlib import import_module
from typing import Protocol, cast

import msgspec

from refold.agents.agent import Agent
from refold.agents.loading import AgentSource
from refold.events.core.errors import ConfigError
from refold.scenarios.plan.scenario import Scenario
from refold.scenarios.report import SimulationReport

NAMES: tuple[str, ...] = (
    "network_split",
    "provider_brown_out",
    "crash_during_approval",
    "poisoned_tool",
    "disk_full",
    "cancel_storm",
    "thundering_restart",
    "clock_backwards",
    "slow_subscriber",
    "two_runtimes",
)
"""All ready scenarios."""


class ReadyScenario(Protocol):
    """What a file of a ready scenario has."""

    __doc__: str | None

    def agent(self) -> Agent:
        """Return the sample agent, made anew."""
        ...

    def scenario(self) -> Scenario:
        """Return the plan."""
        ...

    def play(self, agent: AgentSource | None = None) -> SimulationReport:
        """Play it with an agent; None = with the sample."""
        ...


def ready_scenario(name: str) -> ReadyScenario:
    """Return a ready scenario by its name, which may have dashes for underscores.

    Raises:
        ConfigError: there is none of that name.
    """
    wanted = name.replace("-", "_")
    if wanted not in NAMES:
        raise ConfigError(f"there is no ready scenario {name!r}; there are {', '.join(NAMES)}")
    return cast("ReadyScenario", import_module(f"refold.scenarios.ready.{wanted}"))


def for_any_agent(name: str) -> Scenario:
    """Return the plan of a ready scenario without the sample's script: answers are drawn from the seed."""
    return msgspec.structs.replace(ready_scenario(name).scenario(), script=())
