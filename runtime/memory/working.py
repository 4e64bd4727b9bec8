"""What an agent has in mind just now: a few texts by key, shown to the model with every prompt.

Read `refold.memory.stream_object` first for what such an object is, and `refold.events.kinds.working_memory` for what
is recorded.
"""

from collections.abc import Sequence

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.reply import ActorFuture
from refold.events.core.cleaning import clean_text
from refold.events.core.errors import ConfigError
from refold.events.kinds.scopes import WORKING_KIND
from refold.events.kinds.working_memory import (
    WORKING_CORE,
    ChangeRoom,
    ClearItems,
    Items,
    RemoveItem,
    SetItem,
    UseItem,
    WorkingCommand,
    WorkingEvent,
    check_item,
)
from refold.memory.items import given_text, whole_number
from refold.memory.scoped import Scope, ScopedObject

HEADING = "Working memory:"


class WorkingMemory(ScopedObject[Items, WorkingCommand, WorkingEvent]):
    """A working memory: `working.set("city", "Lisbon")`.

    There is room for `capacity` keys; beyond it the key goes that was used longest ago: set, or looked at with `get`.
    A look at any but the newest key is recorded, and nobody waits for that; `items` and a prompt use all keys alike.

    Args:
        capacity: most keys of each part, >= 1.
        name: of the memory; its stream is `working/<name>`.
        scope: whose texts stand in a session's prompts; see `EpisodicStore`.
        clock: tells the time before a runtime has the memory; None = the machine's.

    Raises:
        ConfigError: the name or the capacity cannot be one.
    """

    kind = WORKING_KIND
    core = WORKING_CORE

    def __init__(self, capacity: int, name: str = "main", *, scope: Scope = "user", clock: Clock | None = None) -> None:
        super().__init__(name, scope, clock)
        self.capacity = whole_number(capacity, "the capacity of a memory", 1, ConfigError)

    def settings(self) -> Sequence[WorkingCommand]:
        return (ChangeRoom(capacity=self.capacity),)

    def held(self, state: Items) -> int:
        return len(state.items)

    def opening(self, state: Items) -> Sequence[WorkingCommand]:
        return () if state.capacity == self.capacity else (ChangeRoom(capacity=self.capacity),)

    def set(self, name: str, value: str, *, key: str | None = None) -> ActorFuture[None]:
        """Keep a text under a name, which becomes the newest.

        Args:
            name: text that is not empty.
            value: any text.
            key: the same key with the same content counts once, also after a restart.

        Raises:
            AgentMemoryError: the name or the value cannot be one.
        """
        check_item(SetItem(name=name, value=value))
        command = SetItem(name=clean_text(name), value=clean_text(value), key=key)
        return self.perform(command).map(lambda _: None)

    def get(self, name: str) -> ActorFuture[str | None]:
        """Return what is kept under a name, or None; which makes it the one used last."""
        wanted = given_text(name, "a key")
        found = self.read(lambda state: state.items.get(wanted))
        if not self._past:
            self.tell(UseItem(name=wanted))
        return found

    def remove(self, name: str, *, key: str | None = None) -> ActorFuture[bool]:
        """Drop what is kept under a name; returns whether there was something."""
        return self.perform(RemoveItem(name=given_text(name, "a key"), key=key)).map(
            lambda performed: performed.version > 0
        )

    def clear(self, *, key: str | None = None) -> ActorFuture[None]:
        """Drop everything."""
        return self.perform(ClearItems(key=key)).map(lambda _: None)

    def items(self) -> ActorFuture[dict[str, str]]:
        """Return everything by name; what was used longest ago, and goes next, comes first."""
        return self.read(lambda state: state.items)

    def prompt_text(self) -> ActorFuture[str]:
        """Return what is appended to a prompt: a heading and a line `- name: value` each; nothing where it is empty.

        What was used longest ago comes first. Further lines of a name or value are indented, so that a text cannot pass
        for another item.
        """
        return self.read(lambda state: _prompt_text(state.items))


def _prompt_text(items: dict[str, str]) -> str:
    if not items:
        return ""
    return "\n".join((HEADING, *(_indented(f"- {name}: {value}") for name, value in items.items())))


def _indented(text: str) -> str:
    first, *more = text.splitlines()
    return "\n".join((first, *(f"  {line}" for line in more)))
