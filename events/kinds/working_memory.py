"""The four functions of a working memory: a few texts by key, of which the one used longest ago goes first.

Read `refold.events.core.pure_core` first. The rule: setting a key and looking at it make it the newest, and both are
recorded, so what is kept follows from the recorded events alone. The cheapest record of a look is none where it changes
no order: looking at the newest key again, or at all of them, as a prompt does, leaves no event.
"""

from collections.abc import Sequence
from itertools import islice
from typing import assert_never

import msgspec

from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import AgentMemoryError, quoted
from refold.events.core.pure_core import KeyedCommand, KeyedEvent, PureCore, Recorded, State
from refold.events.model.configuration import FOLD_VERSION

FORGOTTEN_PER_EVENT = 1_000
"""Most keys that one event names."""


class SetItem(KeyedCommand, frozen=True, kw_only=True):
    """Keep a text under a key, which becomes the newest."""

    name: str
    """The key that it is kept under; `key` is that of the command."""
    value: str


class UseItem(KeyedCommand, frozen=True, kw_only=True):
    """Note that what is under a key was looked at, which makes it the newest."""

    name: str


class RemoveItem(KeyedCommand, frozen=True, kw_only=True):
    """Let go of what is under a key."""

    name: str


class ClearItems(KeyedCommand, frozen=True, kw_only=True):
    """Let go of everything."""


class ChangeRoom(KeyedCommand, frozen=True, kw_only=True):
    """Say how many keys there is room for."""

    capacity: int
    """At least 1."""


WorkingCommand = SetItem | UseItem | RemoveItem | ClearItems | ChangeRoom


class ItemSet(KeyedEvent, frozen=True, kw_only=True, tag="working.item_set.v1"):
    """A text is kept under a key."""

    name: str
    value: str


class ItemUsed(KeyedEvent, frozen=True, kw_only=True, tag="working.item_used.v1"):
    """What is under a key, which was not the newest, was looked at."""

    name: str


class ItemsForgotten(KeyedEvent, frozen=True, kw_only=True, tag="working.items_forgotten.v1"):
    """There were more keys than there is room for, and the oldest went."""

    names: tuple[str, ...]


class ItemRemoved(KeyedEvent, frozen=True, kw_only=True, tag="working.item_removed.v1"):
    """Nothing is kept under a key any more."""

    name: str


class ItemsCleared(KeyedEvent, frozen=True, kw_only=True, tag="working.items_cleared.v1"):
    """Nothing is kept any more."""


class RoomChanged(KeyedEvent, frozen=True, kw_only=True, tag="working.room_changed.v1"):
    """There is room for so many keys."""

    capacity: int


WorkingEvent = ItemSet | ItemUsed | ItemsForgotten | ItemRemoved | ItemsCleared | RoomChanged


class Items(State):
    """What a working memory's events add up to."""

    items: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """What was used last is last."""
    capacity: int | None = None
    """None = it was not said."""


def check_item(command: SetItem) -> None:
    if not (isinstance(command.name, str) and command.name):
        raise AgentMemoryError(f"working memory needs a text as a key, not {quoted(command.name)}")
    if not isinstance(command.value, str):
        raise AgentMemoryError(f"working memory keeps texts, and {quoted(command.name)} is {quoted(command.value)}")


class WorkingCore(PureCore[Items, WorkingCommand, WorkingEvent]):
    """The four pure functions of a working memory."""

    fold_version = FOLD_VERSION

    def admit(self, state: Items, command: WorkingCommand) -> WorkingEvent | Recorded:
        match command:
            case SetItem(name=name, value=value):
                check_item(command)
                return ItemSet(name=name, value=value)
            case UseItem(name=name):
                is_newest = name == next(reversed(state.items), None)
                return Recorded(0) if is_newest or name not in state.items else ItemUsed(name=name)
            case RemoveItem(name=name):
                return ItemRemoved(name=name) if name in state.items else Recorded(0)
            case ClearItems():
                return ItemsCleared() if state.items else Recorded(0)
            case ChangeRoom(capacity=capacity):
                if capacity < 1:
                    raise AgentMemoryError(f"a working memory needs room for at least 1 key, not {capacity}")
                return Recorded(0) if capacity == state.capacity else RoomChanged(capacity=capacity)
            case _:
                assert_never(command)

    def evolve(self, state: Items, event: WorkingEvent) -> Items:
        match event:
            case ItemSet(name=name, value=value):
                state.items.pop(name, None)
                state.items[name] = value
            case ItemUsed(name=name):
                state.items[name] = state.items.pop(name)
            case ItemsForgotten(names=names):
                for name in names:
                    del state.items[name]
            case ItemRemoved(name=name):
                del state.items[name]
            case ItemsCleared():
                state.items.clear()
            case RoomChanged(capacity=capacity):
                state.capacity = capacity
            case _:
                assert_never(event)
        return state

    def react(self, state: Items, event: WorkingEvent) -> Sequence[WorkingEvent]:
        match event:
            case ItemSet() | RoomChanged():
                excess = len(state.items) - state.capacity if state.capacity is not None else 0
                return _forgotten(tuple(islice(state.items, excess))) if excess > 0 else ()
            case _:
                return ()


WORKING_CORE = CheckedCore(WorkingCore)
"""Decides for every such memory."""


def _forgotten(names: Sequence[str]) -> list[ItemsForgotten]:
    return [
        ItemsForgotten(names=tuple(names[first : first + FORGOTTEN_PER_EVENT]))
        for first in range(0, len(names), FORGOTTEN_PER_EVENT)
    ]
