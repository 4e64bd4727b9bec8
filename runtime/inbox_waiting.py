"""What waits for somebody's decision in a log, whoever owns it."""

import os

import msgspec

from refold.actors.clock import SystemClock
from refold.awaited_approvals import waiting_below
from refold.event_words import call_words
from refold.events.core import evolve_all
from refold.events.ids import RunId, SessionId, ToolCallId
from refold.events.session_core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session_state import SessionState, calls_awaiting_approval, reason_to_ask
from refold.inbox import Decide, Inbox
from refold.log_reading import Batches, opened, session_head
from refold.session_view import list_sessions
from refold.stores.event_store import EventStore
from refold.stores.sqlite_file import absolute


class AwaitedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A call that somebody has to allow or deny."""

    session: SessionId
    run: RunId | None
    call: ToolCallId
    tool: str
    what: str
    """The tool and its arguments, as text."""
    reason: str
    """Why somebody is asked."""
    decided: bool
    """A decision waits in the inbox for a runtime."""


async def awaited_decisions(
    log: str | os.PathLike[str], session: str | None = None, *, below: bool = False
) -> list[AwaitedDecision]:
    """Return the calls of a log, or of one session, that wait for approval, in order of sessions and calls.

    Args:
        log: path of the log.
        session: None = all.
        below: also those that wait in the sessions that calls of `session` began, behind its own.

    Raises:
        ConfigError: there is no such session.
        PersistenceError: the log or its inbox cannot be read.
    """
    inbox = Inbox(absolute(log), SystemClock())
    found: list[AwaitedDecision] = []
    async with opened(log) as store:
        if session is not None:
            await session_head(store, session)
            names = [SessionId(session)]
            if below:
                names += [name async for name in waiting_below(store, SessionId(session))]
        else:
            # What has ended waits for nobody; what is open or parked may, beside other calls at work.
            names = [
                listed.session
                for listed in await list_sessions(store)
                if listed.status in ("open", "waiting", "parked")
            ]
        for name in names:
            found += _of_session(name, await _state(store, name), await _decided(inbox, name))
    return found


async def _state(store: EventStore, session: SessionId) -> SessionState:
    state = SESSION_CORE.initial()
    async for batch in Batches(store, f"{SESSION_KIND}/{session}"):
        state = evolve_all(SESSION_CORE, SESSION_CODEC.decode_all(batch), state)
    return state


async def _decided(inbox: Inbox, session: SessionId) -> set[ToolCallId]:
    return {entry.command.call for entry in await inbox.waiting(session) if isinstance(entry.command, Decide)}


def _of_session(session: SessionId, state: SessionState, decided: set[ToolCallId]) -> list[AwaitedDecision]:
    return [
        AwaitedDecision(
            session=session,
            run=state.run.id if state.run is not None else None,
            call=call.id,
            tool=call.name,
            what=call_words(call.name, call.input),
            reason=reason_to_ask(call),
            decided=call.id in decided,
        )
        for call in calls_awaiting_approval(state)
    ]
