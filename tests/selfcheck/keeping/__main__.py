"""`python -m tests.selfcheck.keeping [--most N]`: what is done to a whole log, interrupted at every moment."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.selfcheck.keeping.interrupted import (
    CASES,
    WORKS,
    cancelled_at,
    full_disk_at,
    killed_at,
    moments_of,
    original,
)

CANCELLED_UNTIL = 300
"""So many steps of the loop are the most after which a work is cancelled."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Interrupt what is done to a whole log; the first fault ends it.")
    parser.add_argument("--most", type=int, default=0, help="most moments of each kind, spread evenly; 0 = all")
    most = parser.parse_args().most
    with tempfile.TemporaryDirectory() as made:
        folder, log = Path(made) / "log", original(Path(made) / "original")
        for name, moment in CASES:
            began, work = time.monotonic(), WORKS[name]
            count = moments_of(log, folder, work, moment)
            tried = _spread(count, most)
            for nth in tried:
                killed_at(log, folder, work, moment, nth)
            seconds = time.monotonic() - began
            told(f"{name}: killed at {len(tried)} of {count} {moment}s in {seconds:.0f} s")
        for name, work in WORKS.items():
            count = 1
            while full_disk_at(log, folder, work, count) and (not most or count < most):
                count += 1
            told(f"{name}: the disk was full from each of {count} writes on")
            steps = _spread(CANCELLED_UNTIL, most or 30)
            for step in steps:
                cancelled_at(log, folder, work, step)
            told(f"{name}: cancelled after {len(steps)} numbers of steps")


def told(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _spread(count: int, most: int) -> list[int]:
    if not most or count <= most:
        return list(range(1, count + 1))
    return sorted({1 + (count - 1) * place // (most - 1) for place in range(most)}) if most > 1 else [count]


if __name__ == "__main__":
    main()
