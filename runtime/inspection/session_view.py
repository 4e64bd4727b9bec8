"""What is to be seen of a session: its status in one word, one line of a list, or everything at one version.

`list_sessions` reads a few events per session, so that a log with many is listed quickly; `view_session` folds one.
The rule: looking never writes, and a session that cannot be decoded is listed as damaged instead of hiding others.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, TypedDict, Unpack, cast, get_args

import msgspec

from refold.actors.agent.subsession import parent_in, parent_of
from refold.events.core.codec import tag_of
from refold.events.core.content import Block
from refold.events.core.errors import ConfigError, LogFormatError, quoted
from refold.events.core.ids import AgentId, EventRef, RunId, SessionId, StreamName, ToolCallId, checked_identifier
from refold.events.core.records import StoredEvent, StreamHead, event_ref
from refold.events.model.messages import Usage
from refold.events.model.request import prepared_of
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND, fold
from refold.events.session.react import pending
from refold.events.session.state import (
    Phase,
    SessionState,
    awaits_person,
    calls_awaiting_answer,
    calls_awaiting_approval,
    is_work,
    run_of_input,
)
from refold.inspection.log_reading import Batches, session_head, tombstones
from refold.inspection.summaries import call_words, content_words, effect_words
from refold.inspection.transcript import Entry, Transcript
from refold.stores.event_store import EventStore, ListedLog
from refold.stores.folding import Fold
from refold.stores.forked import fork_of, forks_in

SessionStatus = Literal["idle", "open", "waiting", "parked", "completed", "failed", "cancelled", "damaged", "deleted"]
"""`idle`: no run yet. `open`: a run has work in flight, or will have when a runtime opens its log. `waiting`: for
approval, or for its next step. `parked`: until a person decides. The next three: how the last run ended.
`damaged`: its events cannot be read; `refold check` says where. `deleted`: nothing but a tombstone is left of it."""

SESSIONS_PER_PAGE = 500

DESCRIBED = str(ev.SessionDescribed.__struct_config__.tag)

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
    forked_from: EventRef | None = None
    """The event that it goes on from, as a fork: `session/alice@57`; None = it is none."""
    user: str | None = None
    """None = no user was named."""
    metadata: Mapping[str, str] = {}


class SessionsWanted(TypedDict, total=False):
    """Which sessions a list has; each that is given must fit."""

    user: str | None
    """Whose they are."""
    status: SessionStatus | Collection[SessionStatus] | None
    """One of the statuses that they have."""
    metadata: Mapping[str, str] | None
    """What their metadata has, among others."""
    since: datetime | None
    """When the last event of each was, at the earliest; with a time zone."""
    limit: int | None
    """Most sessions."""
    after: str | None
    """The name behind which the list goes on: the last one of the page before."""


async def list_sessions(store: EventStore, **wanted: Unpack[SessionsWanted]) -> list[ListedSession]:
    """Return the sessions of a log, or those that are wanted, in order of their names.

    Raises:
        ConfigError: what is wanted cannot be.
    """
    fits, limit = _fitting(wanted), checked_page(wanted)
    found: list[ListedSession] = []
    size = SESSIONS_PER_PAGE if fits != EVERY else min(limit or SESSIONS_PER_PAGE, SESSIONS_PER_PAGE)
    # What waits for a person is in flight, so that no session is read for this which ended or never ran.
    in_flight = fits.statuses == frozenset({"waiting"})
    after = f"{SESSION_KIND}/{wanted.get('after') or ''}"
    async for heads in _pages(store, wanted.get("user"), after, size, in_flight):
        for head, outline in zip(heads, await _outlines(store, heads), strict=True):
            if (listed := await _listed(store, head, outline, fits)) is not None:
                found.append(listed)
        if limit is not None and len(found) >= limit:
            break
    return found[:limit]


async def _pages(
    store: EventStore, user: str | None, after: str, size: int, in_flight: bool
) -> AsyncIterator[list[StreamHead]]:
    """Yield the ends of sessions' streams in order, page by page; of a user's only those that may be the user's.

    `in_flight`: only those with effects in flight.
    """
    if isinstance(user, str) and hasattr(store, "streams_with"):
        beginning = b'{"type":"%s","user":%s' % (DESCRIBED.encode(), msgspec.json.encode(user))
        found = await _with_forks(store, set(await cast("ListedLog", store).streams_with(beginning)))
        names = sorted(name for name in found if name > after)
        for first in range(0, len(names), SESSIONS_PER_PAGE):
            page = [await store.head(name) for name in names[first : first + SESSIONS_PER_PAGE]]
            yield [head for head in page if head is not None and (head.pending or not in_flight)]
        return
    heads = None
    while heads is None or len(heads) == size:
        heads = await store.list_streams(prefix=f"{SESSION_KIND}/", after=after, limit=size, with_pending=in_flight)
        yield heads
        after = heads[-1].stream if heads else after


async def _with_forks(store: EventStore, streams: set[StreamName]) -> set[StreamName]:
    """Return some streams, and those that begin with events of one of them."""
    forks = [fork async for fork in forks_in(store, prefix=f"{SESSION_KIND}/")] if streams else []
    while more := {fork.stream for fork in forks if fork.origin.stream in streams} - streams:
        streams |= more
    return streams


async def list_names(store: EventStore, **wanted: Unpack[SessionsWanted]) -> list[SessionId]:
    """Return the names of the sessions that are wanted, in order; where all are, nothing of them is read.

    Raises:
        ConfigError: what is wanted cannot be.
    """
    if all(wanted.get(name) is None for name in ("user", "status", "metadata", "since")):
        limit = checked_page(wanted)
        after = f"{SESSION_KIND}/{wanted.get('after') or ''}"
        heads = await store.list_streams(prefix=f"{SESSION_KIND}/", after=after, limit=limit)
        return [SessionId(head.stream.removeprefix(f"{SESSION_KIND}/")) for head in heads]
    return [listed.session for listed in await list_sessions(store, **wanted)]


def checked_page(wanted: SessionsWanted) -> int | None:
    """Return the most sessions of a list, or raise ConfigError where that, the one before or another name is none."""
    limit, after = wanted.get("limit"), wanted.get("after")
    if strange := sorted(wanted.keys() - SessionsWanted.__annotations__.keys()):
        names = ", ".join(SessionsWanted.__annotations__)
        raise ConfigError(f"sessions are not listed by {strange[0]!r}; they are by {names}")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ConfigError(f"the limit of a list must be a whole number of at least 1, not {quoted(limit, 60)}")
    if after is not None and not isinstance(after, str):
        raise ConfigError(f"a list goes on after the name of a session, not {quoted(after, 60)}")
    return limit


class _Fitting(msgspec.Struct, frozen=True):
    user: str | None
    metadata: Mapping[str, str]
    since: int
    statuses: frozenset[str]

    def has(self, listed: ListedSession) -> bool:
        whose = self.user is None or listed.user == self.user
        said = all(listed.metadata.get(key) == value for key, value in self.metadata.items())
        return whose and said and listed.at >= self.since


def _fitting(wanted: SessionsWanted) -> _Fitting:
    since, status, metadata = wanted.get("since"), wanted.get("status"), wanted.get("metadata")
    user = wanted.get("user")
    if user is not None:
        checked_identifier(user, "user")
    said: object = metadata if metadata is not None else {}
    if not isinstance(said, Mapping) or not all(isinstance(text, str) for each in said.items() for text in each):
        raise ConfigError(f"the metadata that sessions have is a mapping of texts to texts, not {quoted(said)}")
    if since is not None and (not isinstance(since, datetime) or since.utcoffset() is None):
        raise ConfigError(f"a time must be a datetime with a time zone, such as datetime.now(UTC), not {quoted(since)}")
    named: object = (status,) if isinstance(status, str) else status or ()
    if not isinstance(named, Collection) or not all(isinstance(each, str) for each in named):
        raise ConfigError(f"sessions are listed by one status or several, not by {quoted(status)}")
    statuses = frozenset[str](named)
    if strange := sorted(statuses - set(get_args(SessionStatus))):
        raise ConfigError(f"{strange[0]!r} is no status of a session; there are {', '.join(get_args(SessionStatus))}")
    at = (since - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) if since is not None else -1
    return _Fitting(user, metadata or {}, at, statuses)


EVERY = _fitting({})


async def _outlines(store: EventStore, heads: Sequence[StreamHead]) -> list[list[StoredEvent] | None]:
    """Return what a list tells of sessions: their first events, the last one, and what says whose each is.

    None = that one's cannot be read.
    """
    if hasattr(store, "read_outlines"):
        try:
            names = [head.stream for head in heads]
            return list(await cast("ListedLog", store).read_outlines(names, first=FIRST_EVENTS, tag=DESCRIBED))
        except LogFormatError:
            if len(heads) > 1:  # One of them must not hide the others.
                return [(await _outlines(store, [head]))[0] for head in heads]
            return [None]
    found: list[list[StoredEvent] | None] = []
    for head in heads:
        try:
            events = await store.read_stream(head.stream)
        except LogFormatError:
            found.append(None)
            continue
        own = [event for event in events if event.stream == head.stream]  # Of a fork what is its own.
        told = [event for event in events[:-1] if tag_of(event.data) == DESCRIBED][-1:]
        outline = [*own[:FIRST_EVENTS], *(event for event in told if event not in own[:FIRST_EVENTS])]
        found.append(outline if outline[-1:] == own[-1:] else [*outline, own[-1]])
    return found


async def deleted_sessions(store: EventStore) -> list[ListedSession]:
    """Return the sessions that were deleted from a log, in order of their names; none of a store that cannot say that.

    Of each it is known how many events it had, and, as the time of the last one, when it was deleted.
    """
    found: list[ListedSession] = []
    async for each in tombstones(store):
        kind, _, name = each.stream.partition("/")
        if kind == SESSION_KIND:
            session = SessionId(name)
            found.append(ListedSession(session=session, status="deleted", version=each.version, began_at=0, at=each.at))
    return sorted(found, key=lambda listed: listed.session)


async def listed_session(store: EventStore, head: StreamHead) -> ListedSession:
    listed = await _listed(store, head, (await _outlines(store, [head]))[0], EVERY)
    assert listed is not None
    return listed


async def _listed(
    store: EventStore, head: StreamHead, outline: list[StoredEvent] | None, fits: _Fitting
) -> ListedSession | None:
    """Return what a list says of a session, or None where it does not fit; its status is the last that is looked at."""
    name = SessionId(head.stream.removeprefix(f"{SESSION_KIND}/"))
    listed = ListedSession(session=name, status="damaged", version=head.version, began_at=0, at=0)
    if outline and outline[-1].version == head.version:
        listed = msgspec.structs.replace(
            listed,
            began_at=outline[0].at,
            at=outline[-1].at,
            pending=head.pending,
            parent=parent_in(outline[0]),
            forked_from=outline[0].causation if outline[0].version > 1 else None,
        )
        try:
            told = (event for event in outline if tag_of(event.data) == DESCRIBED)
            for event in SESSION_CODEC.decode_all(told):
                if isinstance(event, ev.SessionDescribed):
                    listed = msgspec.structs.replace(listed, user=event.user, metadata=event.metadata)
            if not fits.has(listed):
                return None
            inputs = (e for e in SESSION_CODEC.decode_all(outline[:FIRST_EVENTS]) if isinstance(e, ev.InputQueued))
            if (first := next(inputs, None)) is not None:
                listed = msgspec.structs.replace(listed, first_input=content_words(first.content))
            status = await _status_of_head(store, head, outline[-1])
            listed = msgspec.structs.replace(listed, status=status)
        except LogFormatError:
            listed = msgspec.structs.replace(listed, first_input="")
    return listed if fits.has(listed) and (not fits.statuses or listed.status in fits.statuses) else None


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


async def events_until(store: EventStore, stream: str, version: int) -> list[ev.SessionEvent]:
    """Return the events of a session's stream up to and with a version."""
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


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call that a person has to allow, deny or answer."""

    call: ToolCallId
    """What `Session.decide` and `Session.answer` want to know."""
    what: str
    """The tool and its arguments, as text."""
    question: str | None = None
    """What it waits to be told; None = whether it may run."""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it was at one version."""

    session: SessionId
    parent: SessionId | None
    """The session whose call of a subagent began it; None = no such call did."""
    forked_from: EventRef | None
    """The event that it goes on from, as a fork; None = it is none."""
    agent: AgentId | None
    model: str | None
    user: str | None
    """None = no user was named."""
    metadata: Mapping[str, str]
    status: SessionStatus
    version: int
    """What is shown: everything up to this version."""
    last_version: int
    """What the log had when it was read."""
    at: int
    """Of the event at `version`, in microseconds since the epoch, UTC."""
    usage: Usage
    cost: float
    """In the currency of the prices in the configuration; 0 without prices."""
    run: OpenRun | None
    queue: tuple[WaitingInput, ...]
    pending: tuple[EffectInFlight, ...]
    waiting_calls: tuple[WaitingCall, ...]
    transcript: tuple[Entry, ...]


async def view_session(store: EventStore, session: str, *, at: int | None = None) -> SessionView:
    """Return a session as it was at version `at`; None = its present state.

    Raises:
        ConfigError: there is no such session, or it has no such version.
    """
    head = await session_head(store, session)
    version = checked_version(head, at)
    events = await events_until(store, head.stream, version)
    transcript = Transcript()
    transcript.add_all(await with_what_was_done(store, events))
    parent, fork = await parent_of(store, SessionId(session)), await fork_of(store, head)
    origin = event_ref(fork.origin.stream, fork.origin.version) if fork is not None else None
    view = view_of(SessionId(session), fold(events), head.version, tuple(transcript.entries))
    return msgspec.structs.replace(view, parent=parent, forked_from=origin)


async def with_what_was_done(store: EventStore, events: list[ev.SessionEvent]) -> list[ev.SessionEvent]:
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


def view_of(
    session: SessionId, state: SessionState, last_version: int, transcript: tuple[Entry, ...] = ()
) -> SessionView:
    """Return what is to be seen of a folded state, without what the log says of where the session comes from."""
    run = state.run
    return SessionView(
        session=session,
        parent=None,
        forked_from=None,
        agent=state.agent,
        model=state.configuration.model if state.configuration is not None else None,
        user=state.user,
        metadata=state.metadata,
        status=status_of(state),
        version=state.version,
        last_version=last_version,
        at=state.at,
        usage=state.usage,
        cost=state.cost,
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
            WaitingCall(
                call=call.id,
                what=call_words(call.name, call.input),
                question=question,
            )
            for call, question in [
                *((call, None) for call in calls_awaiting_approval(state)),
                *((call, call.question.question) for call in calls_awaiting_answer(state) if call.question is not None),
            ]
        ),
        transcript=transcript,
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
