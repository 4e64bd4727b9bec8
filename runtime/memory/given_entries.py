"""What the indexes of a semantic store are made of."""

from refold.events.semantic_core import Knowledge


class GivenEntries:
    """What was known at one moment, which may be read in any thread.

    Args:
        state: as it is at that moment.
    """

    def __init__(self, state: Knowledge) -> None:
        self.entries = state.entries
        """As they are later."""
        self.items = list(state.entries.items())
        self.changes = state.changes
        self.count = state.changes.count
        self.dimension = state.dimension
