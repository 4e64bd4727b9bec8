"""Plants each fault that has a world into a copy of the package, and plays drawn scenarios until one finds it.

PYTHONPATH=. python -P -m tests.planted_faults.rehearsing      all of them; prints a table, exits 1 if one is missed
... --seeds=400                                                most scenarios for each; default 200
... --only=TEXT                                                those whose names hold a text
... --all                                                      those too of which it is known that none finds them
"""

import logging
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec

from tests.planted_faults.faults import SCENARIO_FAULTS, Fault, WorldName
from tests.planted_faults.planting import copy_package, plant, run_copy
from tests.planted_faults.sweep import Found, sweep

SEEDS = 200
"""Most scenarios that are played for one fault."""

ENDLESS_AFTER_S = 300
"""Ends a sweep that a fault has made endless, which finds nothing."""


def rehearse(fault: Fault, folder: Path, seeds: int = SEEDS) -> Found:
    """Play drawn scenarios on a copy of the package in `folder`, which is empty, until one finds the fault."""
    assert fault.world is not None
    copy_package(folder)
    plant(folder, fault)
    first, seconds = 0, 0.0
    while True:
        found = _swept(fault.world, folder, seeds - first, first)
        first, seconds = first + found.seeds, seconds + found.seconds
        if not found.rules or not breaks_anyway(fault.world, first - 1) or first == seeds:
            break
    rules = () if found.rules and breaks_anyway(fault.world, first - 1) else found.rules
    return msgspec.structs.replace(found, seeds=first, seconds=seconds, rules=rules)


@cache
def breaks_anyway(world: WorldName, seed: int) -> bool:
    """Return whether the scenario of a seed breaks a rule also without a fault, so that it finds none."""
    return bool(sweep(1, world, seed).rules)


def _swept(world: WorldName, folder: Path, seeds: int, first: int) -> Found:
    program = ("-m", "tests.planted_faults.sweep", str(seeds), world, str(first))
    done = run_copy(folder, *program, timeout_s=ENDLESS_AFTER_S)
    done.check_returncode()
    found = msgspec.json.decode(done.stdout, type=Found)
    assert Path(found.package).is_relative_to(folder), "another package was swept"
    return found


def main(arguments: Sequence[str]) -> int:
    """Rehearse the faults, print a table of what found them, and return the exit code."""
    logging.disable(logging.CRITICAL)  # Of what is played here to see whether it breaks anyway.
    options = dict((argument.removeprefix("--") + "=").split("=")[:2] for argument in arguments)
    seeds, only = int(options.get("seeds", SEEDS)), options.get("only", "")
    faults = [fault for fault in SCENARIO_FAULTS if only in fault.name and ("all" in options or not fault.missed)]
    found = dict(_rehearsed(faults, seeds))
    missed = [name for name, found_by in found.items() if not found_by.rules]
    parts = Counter(fault.part for fault in faults)
    of_parts = ", ".join(f"{count} of {part}" for part, count in parts.items())
    needed = sorted(found_by.seeds for found_by in found.values() if found_by.rules)
    sys.stdout.write(f"{len(faults) - len(missed)} of {len(faults)} faults found ({of_parts})")
    if needed:
        sys.stdout.write(f"; half of them within {needed[len(needed) // 2]} scenarios, all within {needed[-1]}")
    sys.stdout.write("\n")
    for fault in SCENARIO_FAULTS:
        if fault.missed and only in fault.name:
            sys.stdout.write(f"not covered: {fault.name}: {fault.missed}\n")
    return int(bool(missed))


def _rehearsed(faults: Sequence[Fault], seeds: int) -> Iterator[tuple[str, Found]]:
    sys.stdout.write(f"{'part':<18}{'world':<11}{'found by':<26}{'scenarios':>10}{'seconds':>9}  fault\n")
    for fault in faults:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = rehearse(fault, Path(folder), seeds)
            except subprocess.TimeoutExpired:
                found = Found(package=folder, seeds=0, seconds=ENDLESS_AFTER_S)
        rules = ", ".join(found.rules) or "MISSED"
        sys.stdout.write(
            f"{fault.part:<18}{fault.world:<11}{rules:<26}{found.seeds:>10}{found.seconds:>9.1f}  {fault.name}\n"
        )
        sys.stdout.flush()
        yield fault.name, found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
