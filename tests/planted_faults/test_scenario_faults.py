"""The simulator has been seen to fail: faults around the core are planted into copies of the package and found.

All of them, and what finds each: `python -P -m tests.planted_faults.rehearsing`.
"""

from pathlib import Path

import pytest

from tests.planted_faults.planting import ROOT, copy_package, plant
from tests.planted_faults.rehearsing import rehearse
from tests.planted_faults.scenario_fault import PARTS, ScenarioFault
from tests.planted_faults.scenario_faults import SCENARIO_FAULTS
from tests.planted_faults.sweep import World, sweep

QUICK_SEEDS = 30

QUICK = 6
"""How many of the faults, evenly spread over them, are planted in a slow run; each plays a few scenarios."""

FOUND = [fault for fault in SCENARIO_FAULTS if not fault.not_found]
QUICK_FAULTS = FOUND[:: len(FOUND) // QUICK][:QUICK]


def test_every_fault_can_be_planted_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    copy_package(tmp_path)
    for fault in SCENARIO_FAULTS:
        plant(tmp_path, fault.file, fault.original, fault.original)
    assert len({fault.name for fault in SCENARIO_FAULTS}) == len(SCENARIO_FAULTS)


def test_there_are_faults_in_every_part() -> None:
    assert {fault.part for fault in SCENARIO_FAULTS} == set(PARTS)
    assert len(SCENARIO_FAULTS) >= 73  # As many as of the core.


def test_without_a_fault_the_same_scenarios_break_nothing() -> None:
    found = sweep(10, World())
    assert (found.seeds, found.rules) == (10, ())
    assert found.package == str(ROOT / "runtime")


@pytest.mark.slow
@pytest.mark.parametrize("fault", QUICK_FAULTS, ids=lambda fault: fault.name)
def test_scenarios_find_a_planted_fault(fault: ScenarioFault, tmp_path: Path) -> None:
    assert rehearse(fault, tmp_path, QUICK_SEEDS).rules
