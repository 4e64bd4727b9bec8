"""What has changed of late in a large state, so that what is derived from it can follow instead of being made anew.

Arrays beside a state (for a search over a hundred thousand texts, say) are no part of it. Whoever keeps them remembers
how many changes they have seen, and asks for those since. The rule: this is part of the folded state and depends on
its events alone; one more change costs the same however many there were.
"""

from typing import Generic, TypeVar

import msgspec

N = TypeVar("N", bound=str)

CHANGES_KEPT = 1_024
"""At least so many of the last changes are known, once there were so many."""


class RecentChanges(msgspec.Struct, Generic[N], kw_only=True):
    """The names of what was changed last, oldest first; part of a state."""

    names: list[N] = []
    count: int = 0
    """How many changes there have ever been."""

    def note(self, name: N) -> None:
        """Note that what is called `name` was added, changed or removed."""
        if len(self.names) >= 2 * CHANGES_KEPT:
            del self.names[:CHANGES_KEPT]
        self.names.append(name)
        self.count += 1

    def since(self, count: int) -> list[N] | None:
        """Return the names changed after the first `count` changes, each once; None = that is not known any more."""
        missed = self.count - count
        if missed > len(self.names):
            return None
        return list(dict.fromkeys(self.names[len(self.names) - missed :]))
