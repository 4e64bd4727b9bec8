"""Work that takes long and gives the loop back now and then: a generator that yields where others may go on.

A question to a large state is such work (see `refold.actors.effects.Query`): its actor handles nothing else
until it is answered, so the state does not change, and others have the loop between the steps. The rule: what is
found does not depend on where the steps end. `refold.actors.cooperative` does it in turns with others.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Cooperative: TypeAlias = Generator[None, None, R]
"""Work of which each step ends with a yield, and which returns what it found."""

ITEMS_PER_STEP: Final = 500
"""So many small things are done in a step; a few milliseconds."""


def at_once(steps: Cooperative[R]) -> R:
    """Return what `steps` find, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as found:
            value: R = found.value
            return value


def listed(items: Iterable[T]) -> Cooperative[list[T]]:
    """Return a list of `items`."""
    found: list[T] = []
    source: Iterator[T] = iter(items)
    for place, item in enumerate(source, 1):
        found.append(item)
        if not place % ITEMS_PER_STEP:
            yield
    return found
