"""The suite has been seen to fail: each fault that names tests, planted into a copy, is found by them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import pytest

from tests.planted_faults.faults import SHELL_FAULTS, Fault
from tests.planted_faults.planting import ROOT, Edit, copy_package, plant, run_copy

Verdict = Literal["hold", "violated", "not exercised"]
"""What a test says of a copy: it passed, failed, or came to no outcome, as where it is gone or cannot be imported."""

VERDICT_OF: dict[str, Verdict] = {"PASSED": "hold", "FAILED": "violated"}

ENDLESS_AFTER_S = 60
"""Ends a test that a fault has made endless, which finds nothing; the slowest takes a few seconds."""

ENDED_AFTER_S = 1_200
"""Ends all tests together that are run on one copy."""

QUICK = 4
"""How many of the faults, evenly spread over them, are planted in an everyday run."""

QUICK_FAULTS = SHELL_FAULTS[len(SHELL_FAULTS) // (2 * QUICK) :: len(SHELL_FAULTS) // QUICK]

PYTEST = """
import importlib.util, sys
print("imported", importlib.util.find_spec("refold").origin)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""
"""Says where the package lies, which pytest is the first to import, and runs tests of it."""


def verdicts(folder: Path, tests: Iterable[str]) -> dict[str, Verdict]:
    """Return what each test says of the copy of the package in `folder`."""
    paths = {f"tests/{test}": test for test in tests}
    options = ["-n0", "-q", "-rpf", "--tb=no", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    options += ["-o", f"faulthandler_timeout={ENDLESS_AFTER_S}"]
    arguments = ("-c", PYTEST, *options, *paths)
    # Only the copy is on the path, and Hypothesis repeats itself in CI.
    done = run_copy(folder, *arguments, timeout_s=ENDED_AFTER_S, PYTHONPATH=str(folder), CI="1")
    assert done.stdout.startswith(f"imported {folder}{os.sep}"), done.stdout + done.stderr
    found: dict[str, Verdict] = dict.fromkeys(paths.values(), "not exercised")
    for word, row in re.findall(r"^(PASSED|FAILED) (tests/.+?)(?: - .*)?$", done.stdout, re.MULTILINE):
        for path in {row, row.partition("[")[0]} & paths.keys():
            if found[paths[path]] != "violated":
                found[paths[path]] = VERDICT_OF[word]
    return found


def test_each_test_that_is_named_is_there_with_its_row() -> None:
    named = {f"tests/{test}" for fault in SHELL_FAULTS for test in fault.tests}
    files = sorted({test.partition("::")[0] for test in named})
    collect = [sys.executable, "-P", "-m", "pytest", "-n0", "-q", "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*collect, *files], cwd=ROOT, capture_output=True, text=True, check=True, timeout=ENDED_AFTER_S
    )
    rows = set(done.stdout.splitlines())
    assert named - rows - {row.partition("[")[0] for row in rows} == set()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault in QUICK_FAULTS else pytest.mark.slow, id=fault.name)
        for fault in SHELL_FAULTS
    ],
)
def test_a_planted_fault_is_found_by_each_test_that_is_named(fault: Fault, tmp_path: Path) -> None:
    copy_package(tmp_path)
    plant(tmp_path, fault)
    found = verdicts(tmp_path, fault.tests)
    assert found == dict.fromkeys(fault.tests, "violated")


@pytest.mark.slow(seconds=20)
def test_without_a_fault_every_test_that_is_named_holds(tmp_path: Path) -> None:
    copy_package(tmp_path)
    named = {test for fault in SHELL_FAULTS for test in fault.tests}
    assert verdicts(tmp_path, sorted(named)) == dict.fromkeys(named, "hold")


def test_a_test_that_comes_to_no_outcome_exercises_nothing(tmp_path: Path) -> None:
    copy_package(tmp_path)
    named = "class InMemoryStore:"
    plant(tmp_path, Edit(at="refold.stores.memory:InMemoryStore", original=named, planted="class Forgotten:"))
    tests = ("stores/test_memory.py::TestInMemoryStore::test_a_new_store_is_empty", "stores/test_memory.py::gone")
    assert verdicts(tmp_path, tests) == dict.fromkeys(tests, "not exercised")
