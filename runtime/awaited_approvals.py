"""The calls that wait for a person: those of a session, and those of the sessions that its calls began.

A subagent's call waits in the session of the subagent, and its parent waits for that; so who asks the parent is told of
both, and each says whose it is.
"""

import copy
from collections.abc import AsyncIterator

from refold.actors.child_session import ancestors_of, children_prefix
from refold.events.ids import SessionId, kind_and_identifier
from refold.events.session_core import SESSION_KIND
from refold.events.session_events import ToolApprovalRequested
from refold.events.session_state import SessionState, calls_awaiting_approval, reason_to_ask
from refold.stores.event_store import EventStore


class AwaitedApproval(ToolApprovalRequested, frozen=True, kw_only=True):
    """A call that waits for somebody's decision; `Session.decide` takes it."""

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


async def waiting_below(store: EventStore, session: SessionId) -> AsyncIterator[SessionId]:
    """Yield the sessions with open work that calls in a session began, and calls in those, and so on.

    Raises:
        PersistenceError: the log cannot be read.
    """
    prefixes = [children_prefix(session)]
    while prefixes:
        prefix = prefixes.pop()
        for head in await store.list_streams(prefix=f"{SESSION_KIND}/{prefix}", with_pending=True):
            found = SessionId(kind_and_identifier(head.stream)[1])
            first = await store.read_stream(head.stream, limit=1)
            if session in await ancestors_of(store, found, first[0]):
                yield found
            if not (own := children_prefix(found)).startswith(prefix):  # The id is so long that its hash stands there.
                prefixes.append(own)
