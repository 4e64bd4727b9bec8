"""A runtime's four functions: it only remembers what it is told, so a command is the fact itself."""

from typing import TypeAlias, assert_never, get_args

import msgspec

from refold.events.codec import NEWER_REFOLD, EventCodec
from refold.events.core import Effect
from refold.events.runtime_events import ActorFailed, RecallsNoted, RuntimeClosed, RuntimeEvent, RuntimeStarted

RUNTIME_CODEC: EventCodec[RuntimeEvent] = EventCodec(get_args(RuntimeEvent), unknown=NEWER_REFOLD)
"""Encodes and decodes every runtime event."""

RuntimeCommand: TypeAlias = RuntimeEvent
"""A fact to be recorded."""


class RuntimeState(msgspec.Struct):
    """All that a log's runtime events add up to."""

    version: int = 0
    starts: int = 0
    closed: bool = True
    """Whether the last runtime ended in order, or there was none."""
    recalls_noted: int = 0
    """Recalls of answers before this place in the log are noted, whatever ended the runtimes that got them."""
    failures: dict[str, int] = {}
    """Failures of actors, by address."""


class RuntimeCore:
    """The four pure functions of a runtime."""

    def initial(self) -> RuntimeState:
        """Return the state before the first event."""
        return RuntimeState()

    def version(self, state: RuntimeState) -> int:
        """Return how many events `state` has evolved through."""
        return state.version

    def admit(self, state: RuntimeState, command: RuntimeCommand) -> RuntimeEvent:
        """Return `command`: a fact is not refused."""
        return command

    def evolve(self, state: RuntimeState, event: RuntimeEvent) -> RuntimeState:
        """Fold `event` into `state`, which is changed and returned."""
        state.version += 1
        match event:
            case RuntimeStarted():
                state.starts += 1
                state.closed = False
            case RuntimeClosed():
                state.closed = True
            case RecallsNoted(position=position):
                state.recalls_noted = position
            case ActorFailed(address=address):
                state.failures[address] = state.failures.get(address, 0) + 1
            case _:
                assert_never(event)
        return state

    def react(self, state: RuntimeState, event: RuntimeEvent) -> list[RuntimeEvent]:
        """Return nothing: a runtime's facts have no consequences of its own."""
        return []

    def pending(self, state: RuntimeState) -> list[Effect]:
        """Return nothing: a runtime has no work of its own."""
        return []


RUNTIME_CORE = RuntimeCore()
