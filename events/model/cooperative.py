"""Work that takes long and gives the loop back now and then: a generator that yields where others may go on.

A question to a large state is such work (see `refold.actors.shell.messages.Query`): its actor handles nothing else
until it is answered, so the state does not change, and others have the loop between the steps. The rule: what is
found does not depend on where the steps end. `refold.actors.shell.cooperative` does it in turns with others.

Work that needs payloads of the log asks for them at the end of a step (`Asking`): what carries it out reads them.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from refold.events.core.ids import PayloadHash

T = TypeVar("T")
R = TypeVar("R")

Cooperative: TypeAlias = Generator[None, None, R]
"""Work of which each step ends with a yield, and which returns what it found."""


class PayloadsWanted:
    """Payloads that work needs for its next step, and those of them that there are."""

    __slots__ = ("found", "names")

    def __init__(self, names: Iterable[PayloadHash]) -> None:
        self.names: Sequence[PayloadHash] = tuple(names)
        self.found: Mapping[PayloadHash, bytes] = {}
        """Filled in before the next step; whether they hash to their names is for the work to see."""


Asking: TypeAlias = Generator[PayloadsWanted | None, None, R]
"""The same, where a step may ask for payloads."""

ITEMS_PER_STEP: Final = 500
"""So many small things are done in a step; a few milliseconds."""


def at_once(steps: Asking[R], payloads: Callable[[PayloadHash], bytes | None] = lambda _: None) -> R:
    """Return what `steps` find, without a pause."""
    while True:
        try:
            wanted = next(steps)
        except StopIteration as found:
            value: R = found.value
            return value
        if wanted is not None:
            wanted.found = {name: data for name in wanted.names if (data := payloads(name)) is not None}


def listed(items: Iterable[T]) -> Cooperative[list[T]]:
    found: list[T] = []
    source: Iterator[T] = iter(items)
    for place, item in enumerate(source, 1):
        found.append(item)
        if not place % ITEMS_PER_STEP:
            yield
    return found
