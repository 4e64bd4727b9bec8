"""The exhaustive check has been seen to fail: each of `FAULTS` is planted into a copy of the package and found."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refold.scenarios.session_rules import RULES
from tests.planted_faults.faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]

SECONDS_MAX = 300
"""Ends a check that a fault has made endless; the slowest takes some ten seconds."""

OF_STORES = {"INV5"}
"""Rules that the core cannot break."""

QUICK = 6
"""How many of the faults, evenly spread over them, are planted in an everyday run."""

QUICK_FAULTS = FAULTS[:: len(FAULTS) // QUICK]


def planted(fault: Fault, folder: Path) -> None:
    """Make `folder` hold an importable copy of the package with `fault` in it."""
    shutil.copytree(ROOT / "runtime", folder / "refold", ignore=shutil.ignore_patterns("__pycache__"))
    for layer in ("events", "stores", "actors", "scenarios"):
        shutil.copytree(ROOT / layer, folder / "refold" / layer, ignore=shutil.ignore_patterns("__pycache__"))
    module = folder / "refold" / "events" / f"{fault.module}.py"
    source = module.read_text(encoding="utf-8")
    assert source.count(fault.original) == 1, f"{fault.original!r} must stand once in {fault.module}; adapt the fault"
    module.write_text(source.replace(fault.original, fault.planted), encoding="utf-8")


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the everyday check on the package in `folder`, up to the first violation."""
    return subprocess.run(
        [sys.executable, "-P", "-B", "-m", "refold.scenarios.exhaustive", "--stop-at-first"],
        env={**os.environ, "PYTHONPATH": str(folder)},
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
    done = check(tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.findall(r"^(\w+) +violated ", done.stdout, re.MULTILINE) == list(fault.found_by)


def test_every_rule_of_the_core_is_the_only_one_to_find_some_fault() -> None:
    alone = {fault.found_by[0] for fault in FAULTS if len(fault.found_by) == 1}
    assert alone >= set(RULES) - OF_STORES
