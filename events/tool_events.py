"""What can happen to a tool: it is defined, and a call of it is given up.

A tool's stream grows on transitions only, never with each call; calls are in the sessions' streams.
"""

from typing import TypeAlias

from refold.events.configuration import ToolSpec
from refold.events.event import Event
from refold.events.ids import EventRef


class ToolDefined(Event, frozen=True, kw_only=True, tag="tool.defined.v1"):
    """From here on the tool is what `spec` says."""

    spec: ToolSpec


class ToolCallAbandoned(Event, frozen=True, kw_only=True, tag="tool.call_abandoned.v1"):
    """A call ignored its cancellation past the grace period; its body may still be running."""

    started: EventRef
    """Its ToolCallStarted."""


ToolEvent: TypeAlias = ToolDefined | ToolCallAbandoned
"""Any event of a tool's stream."""
