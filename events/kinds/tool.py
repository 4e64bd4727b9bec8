"""A tool's four functions: what it was defined as, and which of its calls were given up.

What can happen to a tool: it is defined, and a call of it is given up.

A tool's stream grows on transitions only, never with each call; calls are in the sessions' streams.
"""

from typing import TypeAlias, assert_never, get_args

import msgspec

from refold.events.core.codec import NEWER_REFOLD, EventCodec
from refold.events.core.event import Event
from refold.events.core.ids import EventRef
from refold.events.core.pure_core import PureCore, Recorded
from refold.events.model.configuration import FOLD_VERSION, ToolSpec


class ToolDefined(Event, frozen=True, kw_only=True, tag="tool.defined.v1"):
    """From here on the tool is what `spec` says."""

    spec: ToolSpec


class ToolCallAbandoned(Event, frozen=True, kw_only=True, tag="tool.call_abandoned.v1"):
    """A call ignored its cancellation past the grace period; its body may still be running."""

    started: EventRef
    """Its ToolCallStarted."""


ToolEvent: TypeAlias = ToolDefined | ToolCallAbandoned
"""Any event of a tool's stream."""


TOOL_KIND = "tool"
"""Kind of a tool's address and stream."""

TOOL_CODEC: EventCodec[ToolEvent] = EventCodec(get_args(ToolEvent), unknown=NEWER_REFOLD)
"""Encodes and decodes every tool event."""


class DefineTool(msgspec.Struct, frozen=True):
    """Say what the tool is now; nothing is recorded where nothing differs."""

    spec: ToolSpec


class AbandonCall(msgspec.Struct, frozen=True):
    """Note that a call ignored its cancellation past the grace period."""

    started: EventRef


ToolCommand: TypeAlias = DefineTool | AbandonCall
"""Anything that a tool's stream can be told."""


class ToolState(msgspec.Struct):
    """All that a tool's events add up to."""

    version: int = 0
    spec: ToolSpec | None = None
    abandoned: int = 0
    """Calls that were given up."""


class ToolCore(PureCore[ToolState, ToolCommand, ToolEvent]):
    """The four pure functions of a tool."""

    fold_version = FOLD_VERSION

    def admit(self, state: ToolState, command: ToolCommand) -> ToolEvent | Recorded:
        match command:
            case DefineTool(spec=spec):
                return Recorded(0) if spec == state.spec else ToolDefined(spec=spec)
            case AbandonCall(started=started):
                return ToolCallAbandoned(started=started)
            case _:
                assert_never(command)

    def evolve(self, state: ToolState, event: ToolEvent) -> ToolState:
        state.version += 1
        match event:
            case ToolDefined(spec=spec):
                state.spec = spec
            case ToolCallAbandoned():
                state.abandoned += 1
            case _:
                assert_never(event)
        return state


TOOL_CORE = ToolCore()
