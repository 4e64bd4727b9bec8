"""What those who follow sessions are given: events of the log, and what passes by without being logged."""

from typing import TypeAlias

import msgspec

from refold.events.core.codec import RecordedEvent
from refold.events.core.ids import RunId, SessionId, ToolCallId
from refold.events.model.messages import Delta
from refold.events.session.events import SessionEvent

RecordedSessionEvent: TypeAlias = RecordedEvent[SessionEvent]
"""An event of a session, durable, with its place in the log."""


class Streamed(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a model's answer; not logged.

    It comes before the ModelResponded that holds the whole answer. A ModelFailed, ModelInterrupted or RunResumed
    says that the answer did not come, and that what had been streamed of it is void.
    """

    session: SessionId
    run: RunId
    turn: int
    """Which of the run's model calls it answers, from 1."""
    asked: int
    """Version of the event that wants the answer; another attempt at it has another one, or begins at offset 0."""
    offset: int
    """How many characters of the answer come before it: of text, reasoning and arguments of calls together."""
    delta: Delta


class Progressed(msgspec.Struct, frozen=True, kw_only=True):
    """What a running tool, or middleware, reports; not logged."""

    session: SessionId
    call: ToolCallId
    """Of the tool; empty where middleware reports that is not called around a tool's body."""
    report: object
    """As it was given to `ctx.progress`, or to the `publish` of a `HookContext`."""


class Missed(msgspec.Struct, frozen=True):
    """Here, pieces of answers and reports of tools were left out, since their reader was slow; events never are."""

    count: int


Published: TypeAlias = RecordedSessionEvent | Streamed | Progressed | Missed
"""What a subscription yields."""
