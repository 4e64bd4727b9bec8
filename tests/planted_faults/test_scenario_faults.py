"""The simulator has been seen to fail: faults around the core are planted into copies of the package and found.

All of them, and what finds each: `python -P -m tests.planted_faults.rehearsing`.
"""

from pathlib import Path

import pytest

from tests.planted_faults.faults import SCENARIO_FAULTS, Fault
from tests.planted_faults.planting import ROOT
from tests.planted_faults.rehearsing import rehearse
from tests.planted_faults.sweep import sweep

QUICK_SEEDS = 60

QUICK = 6
"""How many of the faults, evenly spread over them, are planted in a slow run; each plays a few scenarios."""

FOUND = [fault for fault in SCENARIO_FAULTS if not fault.missed]
QUICK_FAULTS = FOUND[:: len(FOUND) // QUICK][:QUICK]


def test_without_a_fault_the_same_scenarios_break_nothing() -> None:
    found = sweep(10, "memory")
    assert (found.seeds, found.rules) == (10, ())
    assert found.package == str(ROOT / "runtime")


@pytest.mark.slow
@pytest.mark.parametrize("fault", QUICK_FAULTS, ids=lambda fault: fault.name)
def test_scenarios_find_a_planted_fault(fault: Fault, tmp_path: Path) -> None:
    assert rehearse(fault, tmp_path, QUICK_SEEDS).rules
