"""Hypothesis looks for the smallest scenario that breaks a promise with the agent of these tests."""

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from refold.scenarios import Scenario, SimulationReport, Simulator
from tests.scenarios.rehearsed import agent


def smallest_broken(among: st.SearchStrategy[Scenario], *, examples_max: int) -> SimulationReport | None:
    """Return its report, which is the same in every process; None = none was found among so many."""
    simulator = Simulator(agent())
    try:
        scenario = find(
            among,
            lambda scenario: bool(simulator.run(scenario).broken),
            settings=settings(
                max_examples=examples_max,
                derandomize=True,
                database=None,
                deadline=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=(HealthCheck.too_slow,),
            ),
        )
    except NoSuchExample:
        return None
    return simulator.run(scenario)
