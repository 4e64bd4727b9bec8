"""What is to be seen of a session: its status in one word, one line of a list, or everything at one version.

`list_sessions` reads a few events per session, so that a log with many is listed quickly; `view_session` folds one.
The rule: looking never writes, and a session that cannot be decoded is listed as damaged instead of hiding others.
"""

from typing import Literal, cast

import msgspec

from refold.actors.agent.subsession import parent_in, parent_of
from refold.events.core.codec import tag_of
from refold.events.core.content import Block
from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.core.pure_core import keys_of
from refold.events.core.records import StoredEvent, StreamHead
from refold.events.model.messages import Usage
from refold.events.model.request import prepared_of
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND, fold
from refold.events.session.react import pending
from refold.events.session.state import (
    Phase,
    SessionState,
    awaits_person,
    calls_awaiting_approval,
    is_work,
    run_of_input,
)
from refold.inspection.log_reading import Batches, Streams, session_head
from refold.inspection.summaries import call_words, content_words, effect_words
from refold.inspection.transcript import Entry, Transcript
from refold.stores.event_store import EventStore, WholeLog
from refold.stores.folding import Fold

SessionStatus = Literal["idle", "open", "waiting", "parked", "completed", "failed", "cancelled", "damaged", "deleted"]
"""`idle`: no run yet. `open`: a run has work in flight, or will have when a runtime opens its log. `waiting`: for
approval, or for its next step. `parked`: until a person decides. The next three: how the last run ended.
`damaged`: its events cannot be read; `refold check` says where. `deleted`: nothing but a tombstone is left of it."""

TOMBSTONES_PER_PAGE = 1_000

FIRST_EVENTS = 4
"""Among so many of its first events a session's first input is looked for."""

_OUTCOMES: dict[str | None, SessionStatus] = {
    str(ev.RunCompleted.__struct_config__.tag): "completed",
    str(ev.RunFailed.__struct_config__.tag): "failed",
    str(ev.RunCancelled.__struct_config__.tag): "cancelled",
}


class ListedSession(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a list of sessions."""

    session: SessionId
    status: SessionStatus
    version: int
    """How many events it has."""
    began_at: int
    """Microseconds since the epoch, UTC."""
    at: int
    """Of the last event, likewise."""
    first_input: str = ""
    """What its first input says, if that is among its first events."""
    pending: tuple[str, ...] = ()
    """Keys of the effects in flight."""
    parent: SessionId | None = None
    """The session whose call of a subagent began it; None = no such call did."""


async def list_sessions(store: EventStore) -> list[ListedSession]:
    """Return the sessions of a log, in order of their names.

    Raises:
        PersistenceError: the log cannot be read.
    """
    return [await listed_session(store, head) async for head in Streams(store, prefix=f"{SESSION_KIND}/")]


async def deleted_sessions(store: EventStore) -> list[ListedSession]:
    """Return the sessions that were deleted from a log, in order of their names; none of a store that cannot say that.

    Of each it is known how many events it had, and, as the time of the last one, when it was deleted.

    Raises:
        PersistenceError: the log cannot be read.
    """
    if not hasattr(store, "list_tombstones"):
        return []
    found: list[ListedSession] = []
    position = 0
    while page := await cast("WholeLog", store).list_tombstones(after_position=position, limit=TOMBSTONES_PER_PAGE):
        for tombstone in page:
            kind, _, name = tombstone.stream.partition("/")
            if kind == SESSION_KIND:
                session = SessionId(name)
                found.append(
                    ListedSession(
                        session=session, status="deleted", version=tombstone.version, began_at=0, at=tombstone.at
                    )
                )
        position = page[-1].position
    return sorted(found, key=lambda listed: listed.session)


async def listed_session(store: EventStore, head: StreamHead) -> ListedSession:
    """Return what a list says of a session, given the end of its stream.

    Raises:
        PersistenceError: the log cannot be read.
    """
    name = head.stream.removeprefix(f"{SESSION_KIND}/")
    damaged = ListedSession(session=SessionId(name), status="damaged", version=head.version, began_at=0, at=0)
    try:
        first = await store.read_stream(head.stream, limit=FIRST_EVENTS)
        last = await store.read_stream(head.stream, after_version=max(head.version - 1, 0), limit=1)
    except LogFormatError:
        return damaged
    if not first or not last:
        return damaged
    try:
        status: SessionStatus = await _status_of_head(store, head, last[0])
        first_input = _first_input(first)
    except LogFormatError:
        status, first_input = "damaged", ""
    return ListedSession(
        session=SessionId(name),
        status=status,
        version=head.version,
        began_at=first[0].at,
        at=last[0].at,
        first_input=first_input,
        pending=keys_of(head.pending),
        parent=parent_in(first[0]),
    )


async def _status_of_head(store: EventStore, head: StreamHead, last: StoredEvent) -> SessionStatus:
    """Return a session's status from the end of its stream if that says it, else from all of its events."""
    if any(is_work(key) for key in head.pending):
        return "open"
    outcome = _OUTCOMES.get(tag_of(last.data))
    if outcome is not None:
        return outcome
    waiting = Fold(head.stream, SESSION_CORE, SESSION_CODEC)
    await waiting.read(store, version=head.version)
    return status_of(waiting.state)


def _first_input(events: list[StoredEvent]) -> str:
    inputs = (event for event in SESSION_CODEC.decode_all(events) if isinstance(event, ev.InputQueued))
    first = next(inputs, None)
    return content_words(first.content) if first is not None else ""


async def events_until(store: EventStore, stream: str, version: int) -> list[ev.SessionEvent]:
    """Return the events of a session's stream up to and with a version.

    Raises:
        LogFormatError: one of them is damaged.
        PersistenceError: the log cannot be read.
    """
    events: list[ev.SessionEvent] = []
    async for batch in Batches(store, stream):
        events += SESSION_CODEC.decode_all(event for event in batch if event.version <= version)
        if batch[-1].version >= version:
            break
    return events


def status_of(state: SessionState) -> SessionStatus:
    """Return a session's status, given its folded state."""
    if state.run is None:
        return state.last_run.outcome if state.last_run is not None else "idle"
    if state.run.parked:
        return "parked"
    return "waiting" if awaits_person(state.run, state.turn) else "open"


class OpenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that has not ended."""

    run: RunId
    phase: Phase
    parked: bool
    started_at: int
    """Microseconds since the epoch, UTC."""
    turns: int
    usage: Usage


class WaitingInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input that no model has been shown yet."""

    run: RunId
    content: tuple[Block, ...]
    due_at: int | None = None
    """When its run is to begin, in microseconds since the epoch; None = when those before it have ended."""
    every: ev.Repeat | None = None
    """When it is due again after that; None = never. `run` stands for all of its runs that are still to come."""


class EffectInFlight(msgspec.Struct, frozen=True, kw_only=True):
    """Work that should be going on."""

    key: str
    causation: int
    """Version of the event that asked for it."""
    what: str
    """In words."""


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a person has to allow or deny."""

    call: ToolCallId
    """What `Session.decide` wants to know."""
    what: str
    """The tool and its arguments, as text."""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it was at one version."""

    session: SessionId
    parent: SessionId | None
    """The session whose call of a subagent began it; None = no such call did."""
    agent: AgentId | None
    model: str | None
    status: SessionStatus
    version: int
    """What is shown: everything up to this version."""
    last_version: int
    """What the log had when it was read."""
    at: int
    """Of the event at `version`, in microseconds since the epoch, UTC."""
    usage: Usage
    run: OpenRun | None
    queue: tuple[WaitingInput, ...]
    pending: tuple[EffectInFlight, ...]
    waiting_calls: tuple[WaitingCall, ...]
    transcript: tuple[Entry, ...]


async def view_session(store: EventStore, session: str, *, at: int | None = None) -> SessionView:
    """Return a session as it was at version `at`; None = as it is now.

    Raises:
        ConfigError: there is no such session, or it has no such version.
        LogFormatError: an event up to there cannot be decoded, or contradicts those before it.
        PersistenceError: the log cannot be read.
    """
    head = await session_head(store, session)
    version = checked_version(head, at)
    events = await events_until(store, head.stream, version)
    transcript = Transcript()
    transcript.add_all(await _with_what_was_done(store, events))
    parent = await parent_of(store, SessionId(session))
    return _view(SessionId(session), parent, head.version, fold(events), transcript)


async def _with_what_was_done(store: EventStore, events: list[ev.SessionEvent]) -> list[ev.SessionEvent]:
    """Return events whose answers say what was done to their requests, also where the log keeps that apart."""
    names = [event.request.prepared_payload for event in events if isinstance(event, ev.ModelResponded)]
    payloads = await store.read_payloads([name for name in names if name is not None]) if any(names) else {}
    return [
        msgspec.structs.replace(
            event,
            request=msgspec.structs.replace(
                event.request, prepared=prepared_of(event.request, payloads), prepared_payload=None
            ),
        )
        if isinstance(event, ev.ModelResponded) and event.request.prepared_payload in payloads
        else event
        for event in events
    ]


def checked_version(head: StreamHead, version: int | None) -> int:
    """Return `version` if the stream has it, and its last version for None.

    Raises:
        ConfigError: it has not; names those that it has.
        LogFormatError: it has none, although the stream is listed.
    """
    kind, _, name = head.stream.partition("/")
    if head.version < 1:
        raise LogFormatError(
            f"{kind} {name!r} ends at version {head.version} according to the list of streams, which is damaged; "
            "`refold check` says what else is wrong with the log"
        )
    if version is None:
        return head.version
    if not 1 <= version <= head.version:
        raise ConfigError(f"{kind} {name!r} has no version {version}; its versions are 1 to {head.version}")
    return version


def _view(
    session: SessionId, parent: SessionId | None, last_version: int, state: SessionState, transcript: Transcript
) -> SessionView:
    run = state.run
    return SessionView(
        session=session,
        parent=parent,
        agent=state.agent,
        model=state.configuration.model if state.configuration is not None else None,
        status=status_of(state),
        version=state.version,
        last_version=last_version,
        at=state.at,
        usage=state.usage,
        run=None
        if run is None
        else OpenRun(
            run=run.id,
            phase=run.phase,
            parked=run.parked,
            started_at=run.started_at,
            turns=run.turns,
            usage=run.usage,
        ),
        queue=_waiting_inputs(state),
        pending=tuple(
            EffectInFlight(key=effect.key, causation=effect.causation, what=effect_words(effect))
            for effect in pending(state)
        ),
        waiting_calls=tuple(
            WaitingCall(call=call.id, what=call_words(call.name, call.input)) for call in calls_awaiting_approval(state)
        ),
        transcript=tuple(transcript.entries),
    )


def _waiting_inputs(state: SessionState) -> tuple[WaitingInput, ...]:
    joining = state.run.joining if state.run is not None else []
    return (
        *(WaitingInput(run=waiting.run, content=waiting.message.content) for waiting in (*joining, *state.queue)),
        *(
            WaitingInput(run=run_of_input(later.version), content=later.content, due_at=later.due_at, every=later.every)
            for later in state.scheduled
        ),
    )
