"""Child sessions: what a call of a subagent's tool begins in a session of its own, and how the two are linked.

The id of a child derives from its parent's and the call's, so that the same call always finds the same child; the
first event of a child's stream names the parent's ToolCallStarted as its cause. The rule: no child outlives the call
that began it, even where a process crashes between the end of the one and the end of the other.
"""

import hashlib

from refold.actors.shell.messages import Envelope
from refold.events.core.ids import (
    IDENTIFIER_BYTES_MAX,
    AgentId,
    SessionId,
    ToolCallId,
    kind_and_identifier,
    stream_name,
)
from refold.events.core.records import StoredEvent
from refold.events.session.commands import DescribeSession
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import SessionState, find_call
from refold.stores.event_store import EventStore

CALL_BYTES = 64
"""Room for a call's id behind its session's in the id of a child."""


class SessionEnvelope(Envelope, frozen=True, kw_only=True):
    """A command to a session, with what its sender says of the session itself, and what its run depends on."""

    deps: object = None
    """Of the run that it begins or is about; None = nothing of its own."""

    describes: DescribeSession | None = None
    """Recorded in front of what begins the session or may begin a run of it; another user's session refuses both."""


class ChildInput(SessionEnvelope, frozen=True, kw_only=True):
    """The input of a call to its child session, which it opens; its cause is the parent's ToolCallStarted."""

    agent: AgentId
    """Whose session it is."""
    ancestors: tuple[SessionId, ...]
    """The parent, its parent and so on."""


def children_prefix(parent: str) -> str:
    """Return what the ids of all children of a session begin with; those of their children too, save for long ids."""
    if len(parent.encode()) + CALL_BYTES > IDENTIFIER_BYTES_MAX:
        parent = f"child of {hashlib.sha256(parent.encode()).hexdigest()}"
    return f"{parent}/"


def child_session(parent: SessionId, call: ToolCallId) -> SessionId:
    return SessionId(f"{children_prefix(parent)}{call}")


def call_of_child(child: SessionId) -> ToolCallId:
    return ToolCallId(child.rpartition("/")[2])


def parent_in(first: StoredEvent) -> SessionId | None:
    """Return the parent of a session, given the first event of its stream; None = it has none, as a fork."""
    if first.version != 1:
        return None
    stream = first.causation.rpartition("@")[0] if first.causation is not None else first.stream
    if stream == first.stream:
        return None
    kind, identifier = kind_and_identifier(stream)
    return SessionId(identifier) if kind == SESSION_KIND else None


async def parent_of(store: EventStore, session: SessionId) -> SessionId | None:
    """Return the parent of a session; None = it has none, or is not in the log."""
    first = await store.read_stream(stream_name(SESSION_KIND, session), limit=1)
    return parent_in(first[0]) if first and first[0].stream == stream_name(SESSION_KIND, session) else None


async def ancestors_of(store: EventStore, session: SessionId, first: StoredEvent) -> tuple[SessionId, ...]:
    """Return the parent of a session, its parent and so on, given the first event of the session's stream."""
    ancestors: list[SessionId] = []
    parent = parent_in(first) if first.stream == stream_name(SESSION_KIND, session) else None
    while parent is not None and parent not in (session, *ancestors):  # Only a log that was made up goes in a circle.
        ancestors.append(parent)
        parent = await parent_of(store, parent)
    return tuple(ancestors)


def is_call_open(state: SessionState, call: ToolCallId) -> bool:
    found = find_call(state, call)
    return found is not None and found.started and found.result is None


def grace_of_child(cancel_grace_s: float, depth: int) -> float:
    """Return how many seconds the cancelled effects of a session may take to end.

    Each child has less than its parent, so that the parent's call ends after the child's work and in time; and more
    than half of it all, since for so long tools are left alone that watch their token.
    """
    return cancel_grace_s * (1 + 0.8**depth) / 2
