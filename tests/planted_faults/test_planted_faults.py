"""The exhaustive check has been seen to fail: each of `FAULTS` is planted into a copy of the package and found."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted_faults.faults import FAULTS, Fault
from tests.planted_faults.planting import ROOT, copy_package, plant
from tests.selfcheck.exhaustive.rules import RULES

SECONDS_MAX = 300
"""Ends a check that a fault has made endless; others take as long as the everyday check, at most."""

OF_STORES = {"INV5"}
"""Rules that the core cannot break."""

QUICK = 2
"""How many of the faults, evenly spread over them, are planted in an everyday run."""

QUICK_FAULTS = FAULTS[:: len(FAULTS) // QUICK]


def planted(fault: Fault, folder: Path) -> None:
    """Make `folder` hold an importable copy of the package with `fault` in it."""
    copy_package(folder)
    plant(folder, f"events/{fault.module}.py", fault.original, fault.planted)


def check(folder: Path, scope: str) -> subprocess.CompletedProcess[str]:
    """Run one scope of the everyday check on the package in `folder`, up to the first violation."""
    return subprocess.run(
        [sys.executable, "-P", "-B", "-m", "tests.selfcheck.exhaustive", "--stop-at-first", f"--scope={scope}"],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=() if fault in QUICK_FAULTS else pytest.mark.slow, id=fault.name) for fault in FAULTS],
)
def test_a_planted_fault_is_found_by_the_rules_that_it_breaks(fault: Fault, tmp_path: Path) -> None:
    planted(fault, tmp_path)
    done = check(tmp_path, fault.scope)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.findall(r"^(\w+) +violated ", done.stdout, re.MULTILINE) == list(fault.found_by)


def test_every_rule_of_the_core_is_the_only_one_to_find_some_fault() -> None:
    alone = {fault.found_by[0] for fault in FAULTS if len(fault.found_by) == 1}
    assert alone >= set(RULES) - OF_STORES
