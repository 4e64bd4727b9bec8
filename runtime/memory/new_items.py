"""What is given to a store many at a time: `await memory.add_episodes([NewEpisode("agent", "Anna prefers tea"), …])`.

Each has the arguments of the method that adds one, with the same meaning.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from refold.events.errors import AgentMemoryError, CommandRejected

if TYPE_CHECKING:
    from refold.memory.embedding import Vector

G = TypeVar("G")
C = TypeVar("C")


class NewEpisode(msgspec.Struct, frozen=True):
    """An episode for `EpisodicStore.add_episodes`; see `EpisodicStore.add_episode`."""

    agent: str
    content: str
    importance: float = 0.5
    """From 0 to 1, both included."""
    tags: tuple[str, ...] = ()


class NewEntry(msgspec.Struct, frozen=True):
    """An entry for `SemanticStore.put_many`; see `SemanticStore.put`."""

    key: str
    value: str
    tags: tuple[str, ...] = ()
    embedding: "Vector | None" = None
    """Finite numbers, not all of them zero; None = the store's `embed` makes it of the value, where it has one."""


def commands_of(items: Iterable[G], kind: type[G], command: Callable[[G, int], C], called: str) -> list[C]:
    """Return the command for each item.

    Args:
        items: what a caller gave.
        kind: what each of them must be.
        command: makes one of an item and its place.
        called: what the items are to the caller.

    Raises:
        AgentMemoryError: one of them cannot be one; as whatever `command` raised that is a CommandRejected. Names it.
    """
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):
        raise AgentMemoryError(f"{called} must be several {kind.__name__}, not {items!r:.80}")
    commands: list[C] = []
    for place, item in enumerate(items):
        if not isinstance(item, kind):
            raise AgentMemoryError(f"{called}[{place}] must be a {kind.__name__}, not {item!r:.80}")
        try:
            commands.append(command(item, place))
        except CommandRejected as error:
            error.name_item(f"{called}[{place}]")
            raise
    return commands
