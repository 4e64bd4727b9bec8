"""Kill real children of an agent's process at random moments, and check after each kill that nothing is lost.

    python -P tests/conformance/killed_process/kill_many.py --kills 1000 --seed 7

Prints its progress, and at the end how many kills hit, what they hit, and every fault; exits 1 if there is one. The
same seed repeats the same work and the same delays before the kills; the machine decides what a delay comes to.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.conformance.killed_process.many_kills import Figures, kill_many
from tests.conformance.killed_process.planted import FAULTS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1_000, help="how many kills must hit a living child")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plant", choices=sorted(FAULTS), help="put this fault into the child; it must be found")
    parser.add_argument("--folder", type=Path, help="where the logs go; a new temporary one, unless given")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="refold-kills."))
    begun = time.monotonic()
    shown = 0

    def report(figures: Figures) -> None:
        nonlocal shown
        if figures.kills // 20 > shown:
            shown = figures.kills // 20
            sys.stderr.write(f"{time.monotonic() - begun:6.0f} s  {figures}\n")

    figures = asyncio.run(kill_many(folder, kills=given.kills, seed=given.seed, fault=given.plant, report=report))
    took = f"{time.monotonic() - begun:.0f} s"
    if figures.faults:
        took += f"; look into {folder}"
    lines = [f"seed {given.seed}: {figures}; {took}", *figures.faults]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if figures.faults else 0


if __name__ == "__main__":
    sys.exit(main())
