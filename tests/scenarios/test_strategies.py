"""Hypothesis draws scenarios, finds those that break a promise, and shrinks them to what matters."""

from pathlib import Path

import pytest
from hypothesis import Phase, given, settings

from refold.scenarios import Scenario, Simulator, strategies
from tests.planted_faults.faults import search
from tests.scenarios.rehearsed import agent
from tests.scenarios.searching import smallest_broken

FOUND = (Phase.explicit, Phase.reuse, Phase.generate)
"""A scenario that breaks a promise is reported at once: to shrink it takes minutes."""


@settings(max_examples=6, phases=FOUND)
@given(strategies.scenarios())
def test_any_scenario_breaks_nothing(scenario: Scenario) -> None:
    Simulator(agent()).run(scenario).raise_if_broken()


@settings(max_examples=5, phases=FOUND)
@given(strategies.scenarios(wire="anthropic"))
def test_any_scenario_over_a_network_breaks_nothing(scenario: Scenario) -> None:
    Simulator(agent()).run(scenario).raise_if_broken()


@pytest.mark.slow
def test_among_many_scenarios_none_breaks_a_promise() -> None:
    assert smallest_broken(strategies.scenarios(), examples_max=60) is None


SEARCH = """
import msgspec
from refold.scenarios import strategies
from tests.scenarios.searching import smallest_broken
among = strategies.scenarios().map(lambda scenario: msgspec.structs.replace(scenario, patience_s=5_000.0))
report = smallest_broken(among, examples_max=400)
print("none" if report is None else report.broken[0].rule)
if report is not None:
    print(len(report.scenario.acts), len(report.scenario.faults))
"""

PLANTED = ["what is not committed is acknowledged", "what a crash interrupted is left alone"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_and_the_scenario_shrunk(tmp_path: Path, fault: str) -> None:
    done = search(tmp_path, SEARCH, faults=[fault])
    rule, sizes = done.stdout.splitlines()
    assert rule != "none"
    acts, planned = map(int, sizes.split())
    assert acts <= 2
    assert planned <= 1
