"""Damages of a log's files: one page, one row, one index, one cut or some bits, and what Refold says of each.

    python -m tests.selfcheck.damage                            1,000 damages
    ... --count=20000 --seed=7 --processes=2                    more of them, others, on two processors
    ... --only=NUMBER                                           one of them
    ... --between-lives                                         in scenarios, see `lives`

A small log is damaged after it was closed in order, after its process was killed, or while a store has it open and
appends to it. What came of each stands in `trial`: an outcome is a fault if what is read is not what was there and
neither the opening, nor a read, nor `refold check` says so; or if `refold repair` saves what was never there or does
not pass the check. It prints the outcomes by damage, and exits with 1 if there are faults.
"""

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Final, TextIO

from refold.scenarios.sweep import quiet
from refold.scenarios.workers import done_in_processes
from tests.selfcheck.damage.lives import damaged_life
from tests.selfcheck.damage.samples import make_sample
from tests.selfcheck.damage.trial import DAMAGES, Contents, Outcome, When, read, tried
from tests.selfcheck.storage.power_loss import fast_folder

SHARES: Final[Sequence[When]] = ("closed", "closed", "crashed", "crashed", "running")

TRIALS_PER_TASK: Final = 25

FAULTS_SHOWN: Final = 20


def main(arguments: Sequence[str], out: TextIO) -> int:
    """Damage logs, print what came of it, and return the exit code: 0, or 1 for faults.

    Raises:
        SystemExit: the arguments are wrong.
    """
    parser = argparse.ArgumentParser("tests.selfcheck.damage")
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--between-lives", action="store_true")
    options = parser.parse_args(arguments)
    numbers = range(options.count) if options.only is None else range(options.only, options.only + 1)
    found: list[Outcome] = []
    for outcome in outcomes(numbers, options.seed, options.processes, between_lives=options.between_lives):
        found.append(outcome)
        if sys.stderr.isatty() and len(found) % 100 == 0:
            sys.stderr.write(f"\r{len(found):,} of {len(numbers):,}")
    faults = [outcome for outcome in found if outcome.fault or outcome.verdict == "SILENT"]
    for name, counts in table(found).items():
        words = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
        out.write(f"{name:30} {words}\n")
    for outcome in faults[:FAULTS_SHOWN]:
        out.write(f"fault: --seed={options.seed} --only={outcome.number}: {outcome}\n")
    out.write(f"{len(found):,} damages, {len(faults)} faults\n")
    return 1 if faults else 0


def table(found: Sequence[Outcome]) -> dict[str, Counter[str]]:
    """Return the outcomes by damage, and all together."""
    counts: dict[str, Counter[str]] = {}
    for outcome in found:
        for name in (f"{outcome.when}: {outcome.damage}", outcome.when, "all"):
            counted = counts.setdefault(name, Counter())
            counted[outcome.verdict] += 1
            if outcome.repaired != "-":
                counted[f"saved {outcome.repaired}"] += 1
    return dict(sorted(counts.items()))


def outcomes(numbers: Sequence[int], seed: int, processes: int, *, between_lives: bool = False) -> Iterator[Outcome]:
    tasks = iter([list(numbers[at : at + TRIALS_PER_TASK]) for at in range(0, len(numbers), TRIALS_PER_TASK)])
    if processes == 1:
        for task in tasks:
            yield from _some(seed, between_lives, task)
        return
    for some in done_in_processes(partial(_some, seed, between_lives), tasks, processes):
        yield from some


def _some(seed: int, between_lives: bool, numbers: Sequence[int]) -> list[Outcome]:
    found: list[Outcome] = []
    for number in numbers:
        with quiet(), fast_folder() as folder:  # What stores warn of is what is rehearsed.
            found.append(damaged_life(number, seed, folder) if between_lives else _one(number, seed, folder))
    return found


def _one(number: int, seed: int, folder: Path) -> Outcome:
    chance = random.Random(f"{seed} {number}")
    when = chance.choice(SHARES)
    damage = chance.choice(sorted(DAMAGES[when]))
    files, before = _samples()[when]
    return asyncio.run(tried(number, when, damage, files, before, folder))


_kept = ExitStack()
"""Holds the samples of this process, which go with it."""


@cache
def _samples() -> dict[When, tuple[list[Path], Contents]]:
    closed, crashed = asyncio.run(make_sample(_kept.enter_context(fast_folder())))
    before = asyncio.run(read(closed[0]))
    return {"closed": (closed, before), "crashed": (crashed, before), "running": (crashed, before)}
