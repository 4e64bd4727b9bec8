"""Many scenarios, one for each seed, in one process or in several: what `refold simulate` plays.

    summary = SweepSummary()
    for report in swept(SweepPlan(agent="app.agents:support"), range(300), jobs=2):
        summary.add(report)

The rule: what comes of a seed depends on nothing but the agent, the plan and the seed, so neither on how many processes
there are nor on what was played before; and outcomes are given in the order of the seeds.
"""

import logging
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from functools import cache
from itertools import islice
from typing import Any, cast

import msgspec

from refold.agents.loading import AgentSource, load_agent_source
from refold.scenarios.monitors.monitor import RuleVerdict, verdicts_on
from refold.scenarios.plan.random_scenario import drawn_scenario
from refold.scenarios.plan.scenario import Scenario
from refold.scenarios.plan.world import Beginning
from refold.scenarios.report import SimulationReport
from refold.scenarios.simulator import Simulator
from refold.scenarios.workers import WorkerDied, done_in_processes
from refold.scenarios.world.loop import SimulationError
from refold.scenarios.world.stubs import with_stand_ins

SEEDS_PER_TASK = 4
"""So many seeds are given to a process at once."""


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep plays, beside the seeds."""

    agent: str
    """`module:attribute`, such as `app.agents:support`, of an agent or of a function that makes one."""
    own_tools: bool = False
    """Whether the bodies of the agent's own tools run; else stand-ins do."""
    drawing: dict[str, Any] = {}
    """What `drawn_scenario` is given beside the seed."""

    def not_repeated(self, what: str) -> str:
        """Return the words for a scenario that gave another log the second time."""
        return (
            f"{what} gives another log each time; something in {self.agent} depends on more than the seed, such as "
            "the machine's clock, a random number, or what was played before: a function that makes the agent anew may "
            "help"
        )

    def scenario(self, seed: int) -> Scenario:
        return drawn_scenario(seed, **self.drawing)

    def rehearsed(self) -> AgentSource:
        """Return the agent that is rehearsed, or what makes it."""
        agent = load_agent_source(self.agent)
        return agent if self.own_tools else with_stand_ins(agent)

    def simulator(self) -> Simulator:
        """Return what plays its scenarios."""
        return Simulator(self.rehearsed())


def swept(plan: SweepPlan, seeds: Iterable[int], *, jobs: int = 1) -> Generator[SimulationReport, None, None]:
    """Play the scenarios of many seeds, and yield what came of each, in their order.

    Args:
        plan: what is played.
        seeds: may be endless; seeds are taken from it shortly before they are played.
        jobs: in how many processes; 1 = in this one.

    Raises:
        ConfigError: there is no such agent.
        SimulationError: one of the processes died.
    """
    if jobs <= 1:
        simulator = plan.simulator()
        for seed in seeds:
            yield quietly(simulator, plan.scenario(seed))
        return
    plan.rehearsed()  # What is wrong with its name is said here, and not by a process that ends.
    yield from _swept_in_processes(plan, iter(seeds), jobs)


def _swept_in_processes(plan: SweepPlan, seeds: Iterator[int], jobs: int) -> Generator[SimulationReport, None, None]:
    encoded = msgspec.json.encode(plan)
    tasks = ((encoded, some) for some in iter(lambda: list(islice(seeds, SEEDS_PER_TASK)), []))
    with closing(done_in_processes(_play, tasks, jobs)) as outcomes:
        try:
            for some in outcomes:
                yield from some
        except WorkerDied as death:
            _, (first, *others) = cast("tuple[bytes, list[int]]", death.task)
            which = f"the seeds {first} to {others[-1]}" if others else f"the seed {first}"
            raise SimulationError(
                f"the process that played {which} {death.how()}, so something in {plan.agent} ends processes; "
                f"--jobs 1 --first {first} --seeds {1 + len(others)} plays them in one that shows what happens"
            ) from death


@cache
def _simulator(encoded: bytes) -> tuple[SweepPlan, Simulator]:
    plan = msgspec.json.decode(encoded, type=SweepPlan)
    return plan, plan.simulator()


def _play(task: tuple[bytes, list[int]]) -> list[SimulationReport]:
    encoded, seeds = task
    plan, simulator = _simulator(encoded)
    return [quietly(simulator, plan.scenario(seed)) for seed in seeds]


@contextmanager
def quiet() -> Generator[None]:
    """Let nothing of what is played reach the command's answer.

    What the simulated runtime logs of the faults goes nowhere, and what tools print to stderr.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        logging.disable(disabled)


def quietly(simulator: Simulator, scenario: Scenario, beginning: Beginning | None = None) -> SimulationReport:
    with quiet():
        return simulator.run(scenario, beginning=beginning)


class SweepSummary:
    """What came of many seeds, all told."""

    def __init__(self) -> None:
        self.seeds = 0
        self.lives = 0
        self.steps = 0
        self.events = 0
        self.virtual_s = 0.0
        self.planned: Counter[str] = Counter()
        """How many faults were planned, by the names of their classes."""
        self.happened: Counter[str] = Counter()
        """How many of them came to happen."""
        self.met: Counter[tuple[str, str]] = Counter()
        """How often a kind of fault met a session, by its name and what the session was doing."""
        self.exercised: Counter[str] = Counter()
        """In how many scenarios there was something to check for each promise."""
        self.broken: dict[str, list[int]] = {}
        """The seeds whose scenarios broke a promise, by its name."""
        self.refused: set[str] = set()
        """What was reached for outside of the simulation."""
        self.first: SimulationReport | None = None
        self.first_broken: SimulationReport | None = None

    def add(self, report: SimulationReport) -> None:
        self.seeds += 1
        self.first = self.first or report
        self.refused.update(report.refused)
        self.lives += report.lives
        self.steps += report.steps
        self.events += report.events
        self.virtual_s += report.virtual_s
        self.planned.update(type(fault).__name__ for fault in report.scenario.faults)
        self.happened.update(type(fault).__name__ for fault in report.happened)
        self.exercised.update(report.exercised)
        for count in report.met:
            self.met[count.fault, count.situation] += count.times
        for rule in dict.fromkeys(broken.rule for broken in report.broken):
            self.broken.setdefault(rule, []).append(report.scenario.seed)
        if report.broken:
            self.first_broken = self.first_broken or report

    def verdicts(self) -> dict[str, RuleVerdict]:
        return verdicts_on(self.broken, self.exercised)
