"""Hypothesis draws scenarios, finds those that break a promise, and shrinks them to what matters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from refold.scenarios import Scenario, Simulator, strategies
from tests.planted_faults.planting import ROOT, copy_package, plant
from tests.scenarios.test_simulator import agent


@settings(max_examples=6)
@given(strategies.scenarios())
def test_any_scenario_breaks_nothing(scenario: Scenario) -> None:
    Simulator(agent()).run(scenario).raise_if_broken()


@settings(max_examples=5)
@given(strategies.scenarios(wire="anthropic"))
def test_any_scenario_over_a_network_breaks_nothing(scenario: Scenario) -> None:
    Simulator(agent()).run(scenario).raise_if_broken()


@pytest.mark.slow
def test_among_many_scenarios_none_breaks_a_promise() -> None:
    assert strategies.smallest_broken(agent(), examples_max=120) is None


SEARCH = """
from refold.scenarios import strategies
from tests.scenarios.test_simulator import agent
report = strategies.smallest_broken(agent(), examples_max=400)
print("none" if report is None else report.broken[0].rule)
if report is not None:
    print(len(report.scenario.acts), len(report.scenario.faults))
"""

PLANTED = [
    pytest.param(
        "actors/folded_stream.py",
        "                appended = await self._journal.append(batches, envelope.payloads) if decided else []\n",
        "                __import__('asyncio').ensure_future(self._journal.append(batches, envelope.payloads))\n"
        "                appended = [Appended(stream=it.stream, position=1, version=1, chain=b'') for it in batches]\n",
        id="what is not committed is acknowledged",
    ),
    pytest.param(
        "actors/event_sourced.py",
        "            recovery = self._port.recovery(wanted)\n",
        "            recovery = self._port.recovery(wanted)\n"
        "            recovery = type(recovery)(held=frozenset(effect.key for effect in wanted))\n",
        id="what a crash interrupted is left alone",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "original", "planted"), PLANTED)
def test_a_planted_fault_is_found_and_the_scenario_shrunk(
    tmp_path: Path, file: str, original: str, planted: str
) -> None:
    copy_package(tmp_path)
    plant(tmp_path, file, original, planted)
    done = subprocess.run(
        [sys.executable, "-P", "-B", "-c", SEARCH],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PYTHONASYNCIODEBUG": ""},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    rule, sizes = done.stdout.splitlines()
    assert rule != "none"
    acts, planned = map(int, sizes.split())
    assert acts <= 2
    assert planned <= 1
