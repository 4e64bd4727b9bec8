"""What is counted while storage is rehearsed, and how a problem that was found is met again.

A problem ends with a command whose words name one piece of the rehearsal. `power 86 44` is the cut after operation 44
of the run of seed 86, `normal` and `lying` the same with the other durability and the other disk; `errors 3 120` is
fault 120 of a failing disk with seed 3; `syncs 3 12` is place 12 at which syncs fail.
"""

from collections import Counter
from typing import Final, Self

import msgspec

COMMAND: Final = "python -m tests.selfcheck.storage"

PROBLEMS_KEPT: Final = 5


class Tally(msgspec.Struct, kw_only=True):
    """Figures that can be added: numbers, counters, tallies, and the largest of each field `*_max`."""

    broken: Counter[str] = msgspec.field(default_factory=Counter[str])
    """How often each promise was broken."""
    problems: list[str] = msgspec.field(default_factory=list[str])
    """The first few, with what makes them again."""

    def add(self, other: Self) -> None:
        """Add what was found elsewhere."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Tally):
                mine.add(theirs)
            elif name == "problems":
                self.problems = (mine + theirs)[:PROBLEMS_KEPT]
            else:
                setattr(self, name, max(mine, theirs) if name.endswith("_max") else mine + theirs)

    def note(self, promise: str, problem: str) -> None:
        """Count a broken promise."""
        self.broken[promise] += 1
        self.report(problem)

    def report(self, problem: str) -> None:
        """Keep a problem, unless there are enough of them."""
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(problem)


def again(*words: object) -> str:
    """Return what is added to a problem: a line with the command that meets it again."""
    return f"\n    again: {COMMAND} --only '{' '.join(map(str, words))}'"
