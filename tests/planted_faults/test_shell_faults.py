"""The suite has been seen to fail: each of `SHELL_FAULTS` is planted into a copy of the package and found by tests."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import pytest

from tests.planted_faults.metrics_faults import METRICS
from tests.planted_faults.planting import ROOT, copy_package, plant
from tests.planted_faults.shell_faults import ACTORS, RUNTIME, STORES, ShellFault
from tests.planted_faults.shell_faults import SHELL_FAULTS as OF_THE_SHELL

SHELL_FAULTS = (*OF_THE_SHELL, *METRICS)

Verdict = Literal["hold", "violated", "not exercised"]
"""What a test says of a copy: it passed, failed, or came to no outcome, as where it is gone or cannot be imported."""

VERDICT_OF: dict[str, Verdict] = {"PASSED": "hold", "FAILED": "violated"}

ENDLESS_AFTER_S = 60
"""Ends a test that a fault has made endless, which finds nothing; the slowest takes a few seconds."""

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
    done = subprocess.run(
        [sys.executable, "-P", "-B", "-c", PYTEST, *options, *paths],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder), "CI": "1"},  # Hypothesis repeats itself in CI.
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(f"imported {folder}{os.sep}"), done.stdout + done.stderr
    found: dict[str, Verdict] = dict.fromkeys(paths.values(), "not exercised")
    for word, row in re.findall(r"^(PASSED|FAILED) (tests/.+?)(?: - .*)?$", done.stdout, re.MULTILINE):
        for path in {row, row.partition("[")[0]} & paths.keys():
            if found[paths[path]] != "violated":
                found[paths[path]] = VERDICT_OF[word]
    return found


def test_every_fault_can_be_planted(tmp_path: Path) -> None:
    copy_package(tmp_path)
    for fault in SHELL_FAULTS:
        plant(tmp_path, fault.file, fault.original, fault.original)


def test_every_layer_has_faults_and_each_fault_a_name_of_its_own() -> None:
    for layer, faults in (("actors/", ACTORS), ("stores/", STORES), ("runtime/", RUNTIME)):
        assert len(faults) >= 10
        assert [fault.file for fault in faults if not fault.file.startswith(layer)] == []
    assert len({fault.name for fault in SHELL_FAULTS}) == len(SHELL_FAULTS)


@pytest.mark.parametrize("test", sorted({test for fault in SHELL_FAULTS for test in fault.found_by}))
def test_each_test_that_is_named_is_there(test: str) -> None:
    file, _, name = test.partition("[")[0].partition("::")
    source = (ROOT / "tests" / file).read_text(encoding="utf-8")
    if name.startswith("Test"):  # It comes from the shipped suite.
        source += (ROOT / "stores" / "conformance.py").read_text(encoding="utf-8")
    assert f"def {name.rpartition('::')[2]}(" in source


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault in QUICK_FAULTS else pytest.mark.slow, id=fault.name)
        for fault in SHELL_FAULTS
    ],
)
def test_a_planted_fault_is_found_by_each_test_that_is_named(fault: ShellFault, tmp_path: Path) -> None:
    copy_package(tmp_path)
    plant(tmp_path, fault.file, fault.original, fault.planted)
    found = verdicts(tmp_path, fault.found_by)
    assert found == dict.fromkeys(fault.found_by, "violated")


@pytest.mark.slow(seconds=20)
def test_without_a_fault_every_test_that_is_named_holds(tmp_path: Path) -> None:
    copy_package(tmp_path)
    named = {test for fault in SHELL_FAULTS for test in fault.found_by}
    assert verdicts(tmp_path, sorted(named)) == dict.fromkeys(named, "hold")


def test_a_test_that_comes_to_no_outcome_exercises_nothing(tmp_path: Path) -> None:
    copy_package(tmp_path)
    plant(tmp_path, "stores/memory.py", "class InMemoryStore:", "class Forgotten:")
    tests = ("stores/test_memory.py::TestInMemoryStore::test_a_new_store_is_empty", "stores/test_memory.py::gone")
    assert verdicts(tmp_path, tests) == dict.fromkeys(tests, "not exercised")
