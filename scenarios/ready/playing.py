"""How a ready scenario is played, and what its own command prints."""

import inspect
import sys
from collections.abc import Callable

import msgspec

from refold.agents.agent import Agent
from refold.agents.loading import AgentSource
from refold.events.core.errors import ConfigError
from refold.scenarios.plan.scenario import Scenario
from refold.scenarios.report import SimulationReport
from refold.scenarios.simulator import Simulator
from refold.scenarios.sweep import quiet


def player(scenario: Callable[[], Scenario], sample: Callable[[], Agent]) -> Callable[..., SimulationReport]:
    """Return what plays a scenario with an agent, or with the sample where none is given.

    The script is the sample's; with another agent the answers are drawn from the seed.
    """

    def play(agent: AgentSource | None = None) -> SimulationReport:
        if agent is None:
            return Simulator(sample).run(scenario())
        return Simulator(agent).run(msgspec.structs.replace(scenario(), script=()))

    return play


def said_about(story: str, report: SimulationReport) -> str:
    """Return a story and what came of it, in lines for people."""
    lives = "1 life" if report.lives == 1 else f"{report.lives} lives"
    kinds = ", ".join(f"{kind} {count}" for kind, count in report.event_kinds.items())
    lines = [
        inspect.cleandoc(story),
        "",
        f"{lives} of the process, {report.virtual_s:,.0f} virtual seconds, {report.events:,} events",
        f"faults     {', '.join(f'{name} {times}' for name, times in report.times.items()) or 'none'}",
        f"outcomes   {', '.join(f'{name} {report.outcomes.count(name)}' for name in dict.fromkeys(report.outcomes))}",
        f"operations {', '.join(f'{name} {times}' for name, times in report.operations.items())}",
        f"events     {kinds}",
        *(f"watched    {watched}" for watched in report.watched),
        f"checked    {', '.join(report.exercised)}",
        *(f"BROKEN     {broken}" for broken in report.broken),
        f"digest     {report.digest}",
    ]
    return "\n".join(lines) + "\n"


def main(story: str | None, play: Callable[[], SimulationReport]) -> None:
    """Play a ready scenario, print its story and what came of it, and exit with 1 if a promise was broken."""
    if story is None:
        raise ConfigError("a ready scenario tells its story in its docstring, which `python -OO` removes")
    with quiet():  # What the simulated runtime logs of the faults hides the story.
        report = play()
    sys.stdout.write(said_about(story, report))
    sys.exit(1 if report.broken else 0)
