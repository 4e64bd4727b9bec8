"""The exhaustive check has been seen to fail: each fault of the core, planted into a copy, is found."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.planted_faults.faults import CORE_FAULTS, FAULTS, PARTS, SCENARIO_FAULTS, SHELL_FAULTS, Fault
from tests.planted_faults.planting import ROOT, copy_package, edited, plant, run_copy
from tests.selfcheck.exhaustive.rules import RULES

SECONDS_MAX = 300
"""Ends a check that a fault has made endless; others take as long as the everyday check, at most."""

OF_STORES = {"INV5"}
"""Rules that the core cannot break."""

QUICK = 2
"""How many of the faults, evenly spread over them, are planted in an everyday run."""

QUICK_FAULTS = CORE_FAULTS[:: len(CORE_FAULTS) // QUICK]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if fault in QUICK_FAULTS else pytest.mark.slow, id=fault.name)
        for fault in CORE_FAULTS
    ],
)
def test_a_planted_fault_is_found_by_the_rules_that_it_breaks(fault: Fault, tmp_path: Path) -> None:
    copy_package(tmp_path)
    plant(tmp_path, fault)
    check = ("-m", "tests.selfcheck.exhaustive", "--stop-at-first", f"--scope={fault.scope}")
    done = run_copy(tmp_path, *check, timeout_s=SECONDS_MAX)
    assert (done.returncode, done.stderr) == (1, "")
    assert re.findall(r"^(\w+) +violated ", done.stdout, re.MULTILINE) == list(fault.rules)


def test_every_rule_of_the_core_is_the_only_one_to_find_some_fault() -> None:
    alone = {fault.rules[0] for fault in CORE_FAULTS if len(fault.rules) == 1}
    assert alone >= set(RULES) - OF_STORES


def test_every_fault_can_be_planted_has_a_name_of_its_own_and_is_looked_for() -> None:
    for fault in sorted(FAULTS, key=lambda each: each.module):
        module = ROOT.joinpath(*fault.module.removeprefix("refold.").split("."))
        module = ROOT / "runtime" / module.relative_to(ROOT) if fault.layer == "runtime" else module
        planted = edited(module.with_suffix(".py").read_text(encoding="utf-8"), fault)
        compile(planted, fault.module, "exec", dont_inherit=True)
        assert fault.rules or fault.tests or fault.world or fault.search
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_there_are_faults_in_every_layer_and_part() -> None:
    assert len(CORE_FAULTS) >= 73
    assert len(SCENARIO_FAULTS) >= 149
    assert min(Counter(fault.layer for fault in SHELL_FAULTS).values()) >= 10
    assert {fault.part for fault in FAULTS} == set(PARTS)
