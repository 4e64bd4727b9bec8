"""A runtime's four functions: it only remembers what it is told, so a command is the fact itself.

What can happen to a runtime: it starts and closes, and an actor of it fails.
"""

from typing import TypeAlias, assert_never, get_args

import msgspec

from refold.events.core.codec import NEWER_REFOLD, EventCodec
from refold.events.core.event import Event
from refold.events.core.ids import StreamName, stream_name
from refold.events.core.pure_core import PureCore
from refold.events.model.configuration import FOLD_VERSION, CodeIdentity

RUNTIME_STREAM: StreamName = stream_name("runtime", "log")
"""The one stream of runtime events in a log."""


class RuntimeStarted(Event, frozen=True, kw_only=True, tag="runtime.started.v1"):
    """A runtime took the log over."""

    code: CodeIdentity


class RuntimeClosed(Event, frozen=True, kw_only=True, tag="runtime.closed.v1"):
    """The runtime ended in order."""

    open_runs: int
    """Runs that were left open, to go on at the next start."""


class ActorFailed(Event, frozen=True, kw_only=True, tag="runtime.actor_failed.v1"):
    """An actor raised, and was restarted from its log or stopped."""

    address: str
    error: str
    """Type of the error."""
    message: str
    restarts: int
    """Restarts in the present window."""
    stopped: bool
    """It failed too often and stays stopped."""


class RecallsNoted(Event, frozen=True, kw_only=True, tag="runtime.recalls_noted.v1"):
    """What was recalled for answers is noted in the memories, as far as an earlier runtime had left that."""

    position: int
    """Of answers before this place in the log."""


RuntimeEvent: TypeAlias = RuntimeStarted | RuntimeClosed | ActorFailed | RecallsNoted
"""Any event of the runtime's stream."""


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
    """Recalls of answers before this place in the log are noted, however the runtimes ended that got them."""
    failures: dict[str, int] = {}
    """Failures of actors, by address."""


class RuntimeCore(PureCore[RuntimeState, RuntimeCommand, RuntimeEvent]):
    """The four pure functions of a runtime."""

    fold_version = FOLD_VERSION

    def admit(self, state: RuntimeState, command: RuntimeCommand) -> RuntimeEvent:
        """Return `command`: a fact is not refused."""
        return command

    def evolve(self, state: RuntimeState, event: RuntimeEvent) -> RuntimeState:
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


RUNTIME_CORE = RuntimeCore()
