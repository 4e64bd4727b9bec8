"""What is noted about a session when it begins: facts from outside that no later event changes."""

import msgspec

from refold.events.codec import RecordedEvent
from refold.events.ids import AgentId, SessionId
from refold.events.session_events import SessionEvent, SessionOpened


class SessionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What was so when a session began."""

    session: SessionId
    agent: AgentId
    opened_at: int
    """Microseconds since the epoch, UTC."""
    graph_entities: int | None
    """How many entities the agent's graph had; None = it had no graph, or that was not known."""


def metadata_in(first: RecordedEvent[SessionEvent]) -> SessionMetadata | None:
    """Return what the first event of a session tells."""
    event = first.event
    if not isinstance(event, SessionOpened):
        return None
    return SessionMetadata(
        session=event.session, agent=event.agent, opened_at=first.time, graph_entities=event.graph_entities
    )
