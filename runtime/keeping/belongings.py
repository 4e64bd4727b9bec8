"""What of a log a session needs to be done again: itself, the sessions that its calls began, and memories.

The rule: of a memory only what was there at the session's last event, and only the parts that the session may have
seen. Which part a function of the application named is not in the log, so those are left out, and named.
"""

from collections.abc import Sequence

import msgspec

from refold.actors.agent.subsession import ancestors_of
from refold.events.core.ids import SessionId, StreamName, kind_and_identifier
from refold.events.core.records import StreamHead
from refold.events.kinds.scopes import GRAPH_KIND, KNOWLEDGE_KIND, MEMORY_KIND, WORKING_KIND, names_of, part_in
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.events import SessionDescribed
from refold.inspection.log_reading import Batches, Streams, kind_of, session_head
from refold.keeping.deletion import children_of
from refold.stores.event_store import EventStore
from refold.stores.forked import origins_of


class Belongings(msgspec.Struct, frozen=True, kw_only=True):
    """The streams that some sessions need."""

    streams: tuple[StreamName, ...]
    until_position: int
    """Of the last event of the sessions; what the memories had later is left out."""
    left_out: tuple[StreamName, ...]
    """Parts of memories that the sessions may have seen, which the log does not say."""


async def belongings_of(store: EventStore, sessions: Sequence[str]) -> Belongings:
    """Return what sessions need, with the sessions that their calls began."""
    streams: dict[StreamName, None] = {}
    users, conversations = set[str](), set[str]()
    until = 0
    for session in sessions:
        head = await session_head(store, session)
        family = [head, *await children_of(store, SessionId(session)), *await origins_of(store, [head])]
        first = await store.read_stream(head.stream, limit=1)
        conversations.update([session, *(await ancestors_of(store, SessionId(session), first[0]) if first else ())])
        for each in family:
            streams[each.stream] = None
            until = max(until, await _users(store, each, users))
    left_out: list[StreamName] = []
    for kind in (MEMORY_KIND, KNOWLEDGE_KIND, WORKING_KIND, GRAPH_KIND):
        async for head in Streams(store, prefix=f"{kind}/"):
            first = await store.read_stream(head.stream, limit=1)
            if not first or first[0].position > until:
                continue
            part = part_in(kind_and_identifier(head.stream)[1])
            owners = {"user": users, "session": conversations}.get(part.kind) if part is not None else None
            if part is None or (owners is not None and (part.hashed, part.owner) in names_of(owners)):
                streams[head.stream] = None
            elif owners is None:
                left_out.append(head.stream)
    return Belongings(streams=tuple(streams), until_position=until, left_out=tuple(left_out))


async def _users(store: EventStore, head: StreamHead, users: set[str]) -> int:
    """Add the users whose a session was, and return the position of its last event."""
    position = 0
    async for batch in Batches(store, head.stream):
        position = batch[-1].position
        for stored in batch:
            if b'"session.described.' in stored.data and kind_of(head.stream) == SESSION_KIND:
                event = SESSION_CODEC.decode(stored)
                if isinstance(event, SessionDescribed) and event.user is not None:
                    users.add(event.user)
    return position
