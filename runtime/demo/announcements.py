"""What the process of the demonstration's agent tells the process that watches it: one JSON line each, on its stdout.

It tells only what has happened: an event that is durable, a tool's body that has begun, how far one is, and the end.
"""

from typing import TypeAlias

import msgspec


class EventRecorded(msgspec.Struct, frozen=True, tag="event_recorded", omit_defaults=True):
    """An event of the session became durable."""

    version: int
    event: str
    """Its versioned tag."""
    call: str | None = None
    """The tool call that it is about."""


class BodyBegan(msgspec.Struct, frozen=True, tag="body_began"):
    """A tool's body began to run."""

    tool: str
    call: str


class BodyUnderWay(msgspec.Struct, frozen=True, tag="body_under_way"):
    """A tool's body is in the middle of its work."""

    tool: str
    call: str
    words: str
    """What it has done so far."""


class AgentFinished(msgspec.Struct, frozen=True, tag="agent_finished"):
    """The run has ended."""

    outcome: str
    """`completed`, or why not."""
    text: str
    """The answer."""
    state: str
    """Digest of the state that the session's actor held."""


Announcement: TypeAlias = EventRecorded | BodyBegan | BodyUnderWay | AgentFinished
"""One line."""
