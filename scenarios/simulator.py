"""Plays a scenario: an agent's real runtime, sessions and tools on a simulated loop, through crashes and restarts.

    report = Simulator(agent).run(Scenario(acts=(Say(session="alice", text="hello"),), faults=(Crash(at_s=1.0),)))
    report.raise_if_broken()

One life of the process after the other runs on a loop of its own. A crash stops the loop between two steps and throws
away everything but the disk; what is left of the old life then learns that it is gone, and nothing it does counts. The
next life opens the same log, and those outside who were told nothing ask again under the same key. After the calm no
fault happens, and everything that was accepted has to end within the scenario's patience.

The agent's provider and approval handler are replaced: answers and decisions come from the scenario's seed.
"""

import asyncio
import os

from refold.agent_source import AgentSource, checked_source
from refold.events.errors import ConfigError
from refold.scenarios.garbage import garbage_by_hand
from refold.scenarios.saved_log import save_log
from refold.scenarios.scenario import Scenario
from refold.scenarios.simulated_world import Beginning
from refold.scenarios.simulation import Simulation
from refold.scenarios.simulation_report import SimulationReport
from refold.stores.memory import InMemoryStore


class Simulator:
    """Plays scenarios with one agent.

    Args:
        agent: what is rehearsed: its configuration, tools, policy and everything but its provider and approval handler;
            of a FallbackProvider, the breakers stay. Or a plain function that makes it, called for each life of the
            process; an agent whose own parts remember what the log does not know needs one.

    Raises:
        ConfigError: it is neither.
    """

    def __init__(self, agent: AgentSource) -> None:
        self._agent = checked_source(agent, "what is to be simulated")

    def run(self, scenario: Scenario, *, beginning: Beginning | None = None) -> SimulationReport:
        """Play one scenario to its end, or to the first promise that is broken.

        Args:
            scenario: what is played.
            beginning: the log that there is before, which is changed; None = an empty one.

        Raises:
            ConfigError: the agent cannot be one of a runtime, or a log that there is before is to be gone on with
                elsewhere than in memory.
        """
        if beginning is not None and scenario.store != "memory":
            raise ConfigError("a log that there is before is gone on with in memory; leave out store='sqlite'")
        return self._played(scenario, beginning)[0]

    def save_log(self, scenario: Scenario, path: str | os.PathLike[str]) -> SimulationReport:
        """Play one scenario and save the log that it leaves, whatever is wrong with it, as an SQLite file.

        `refold show`, `refold replay` and `refold check` open it.

        Args:
            scenario: what is played, once more if need be: it leaves the same log each time.
            path: of the new file; nothing may be there.

        Raises:
            ConfigError: the path names no file that an SQLite log could be made of, or one that is there already.
            PersistenceError: the file cannot be made.
        """
        report, simulation = self._played(scenario)
        if simulation.files is not None:
            simulation.files.save(path)
        else:
            assert isinstance(simulation.world.disk, InMemoryStore)
            asyncio.run(save_log(simulation.world.disk, path))
        return report

    def _played(self, scenario: Scenario, beginning: Beginning | None = None) -> tuple[SimulationReport, Simulation]:
        with garbage_by_hand():
            simulation = Simulation(self._agent, scenario, beginning)
            return simulation.run(), simulation
