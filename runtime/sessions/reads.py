"""What is read of a session beside its events: its metadata, content that the log keeps by its hash, and approvals.

A subagent's call waits in the session of the subagent, and its parent waits for that; so a caller that asks the parent
is told of both, and each says whose it is.
"""

import copy
import re
from collections.abc import AsyncIterator
from typing import TypeAlias

import msgspec

from refold.actors.agent.subsession import ancestors_of, children_prefix
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import (
    DocumentBlock,
    ImageBlock,
    TextBlock,
)
from refold.events.core.errors import CommandRejected, ConfigError, LogFormatError
from refold.events.core.ids import AgentId, PayloadHash, SessionId, StreamName, kind_and_identifier, stream_name
from refold.events.model.configuration import payload_hash
from refold.events.model.payloads import whole_block
from refold.events.session.commands import DescribeSession
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.events import SessionEvent, SessionOpened, ToolApprovalRequested
from refold.events.session.state import SessionState, calls_awaiting_approval, reason_to_ask
from refold.stores.event_store import EventStore
from refold.stores.folding import Fold


class SessionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a session is, what the application says of it, and what was so when it began."""

    session: SessionId
    agent: AgentId
    opened_at: int
    """Microseconds since the epoch, UTC."""
    graph_entities: int | None
    """How many entities it saw of the agent's graph; None = there was no graph, or that was not known."""
    user: str | None = None
    """None = no user was named."""
    metadata: dict[str, str] = {}
    """The present one."""


def metadata_in(
    first: RecordedEvent[SessionEvent], user: str | None, metadata: dict[str, str]
) -> SessionMetadata | None:
    event = first.event
    if not isinstance(event, SessionOpened):
        return None
    return SessionMetadata(
        session=event.session,
        agent=event.agent,
        opened_at=first.time,
        graph_entities=event.graph_entities,
        user=user,
        metadata=metadata,
    )


async def require_user(store: EventStore, session: SessionId, described: DescribeSession | None) -> None:
    """Return where a session is not another user's than the one who is named; one that has not begun is nobody's.

    Raises:
        CommandRejected: it is another user's.
        PersistenceError: the log cannot be read.
    """
    if described is None or described.user is None:
        return
    found = Fold(stream_name(SESSION_KIND, session), SESSION_CORE, SESSION_CODEC)
    await found.read(store)
    if found.state.user not in (None, described.user):
        raise CommandRejected(f"session {session!r} is another user's; use a session of user {described.user!r}")


_HASH = re.compile(r"[0-9a-f]{64}")

_EVENTS_PAGE = 1000

Name: TypeAlias = PayloadHash | str


async def content_by_hash(store: EventStore, stream: StreamName, name: Name) -> bytes:
    """Return what a session's events refer to by a hash.

    A text comes as UTF-8, an image as its file, another block as its JSON, and what is no block as it lies there.

    Args:
        store: the log.
        stream: the session's; what only other sessions refer to is not shown.
        name: 64 hexadecimal digits.

    Raises:
        ConfigError: no event of the session refers to it.
        PersistenceError: the log cannot be read.
    """
    if not isinstance(name, str) or not _HASH.fullmatch(name):
        raise ConfigError(f"{name!r:.80} is no hash of a payload; it has 64 digits out of 0-9 and a-f")
    if not await _refers(store, stream, name.encode()):
        raise ConfigError(f"nothing in {stream} has the payload {name}")
    payload = PayloadHash(name)
    found = await store.read_payloads([payload])
    if payload in found and payload_hash(found[payload]) != payload:
        raise LogFormatError(f"the payload {name} of {store.name} is damaged; restore it from a backup")
    try:
        block = whole_block(payload, found)
    except LogFormatError:
        if payload not in found:
            raise
        return found[payload]
    match block:
        case TextBlock(text=text, provider_data=None):
            return text.encode()
        case ImageBlock(data=data, url=None) | DocumentBlock(data=data, url=None):
            return data
        case _:
            return msgspec.json.encode(block)


async def _refers(store: EventStore, stream: StreamName, name: bytes) -> bool:
    """Return whether the text of an event holds a hash; no event is decoded for that."""
    version = 0
    while page := await store.read_stream(stream, after_version=version, limit=_EVENTS_PAGE):
        if any(name in event.data for event in page):
            return True
        version = page[-1].version
    return False


class AwaitedApproval(ToolApprovalRequested, frozen=True, kw_only=True):
    """A call that waits for a person's decision; `Session.decide` takes it."""

    session: SessionId
    """Whose call it is: the session that was asked, or one that a call of a subagent began below it."""


def approvals_in(state: SessionState) -> list[AwaitedApproval]:
    """Return the calls of one session that wait, in the order in which that was asked for."""
    run, session = state.run, state.session
    if run is None or session is None:
        return []
    return [
        AwaitedApproval(
            session=session,
            run=run.id,
            call=call.id,
            tool=call.name,
            input=copy.deepcopy(call.input),
            reason=reason_to_ask(call),
            action=call.verdict.action,
            expires_at=call.expires_at,
            at=call.requested_at,
        )
        for call in calls_awaiting_approval(state)
    ]


async def sessions_below(
    store: EventStore, session: SessionId, *, with_pending: bool = False
) -> AsyncIterator[SessionId]:
    """Yield the sessions that calls in a session began, and calls in those, and so on.

    Args:
        with_pending: only those with open work.
    """
    prefixes = [children_prefix(session)]
    while prefixes:
        prefix = prefixes.pop()
        for head in await store.list_streams(prefix=f"{SESSION_KIND}/{prefix}", with_pending=with_pending):
            found = SessionId(kind_and_identifier(head.stream)[1])
            first = await store.read_stream(head.stream, limit=1)
            if session in await ancestors_of(store, found, first[0]):
                yield found
            if not (own := children_prefix(found)).startswith(prefix):  # The id is so long that its hash stands there.
                prefixes.append(own)
