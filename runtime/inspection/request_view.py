"""The exact request of a model call, built again from the log, answered or not.

    request = await recorded_request("events.db", "alice", 12)

It is made of the same parts and by the same functions as the one that was sent (`refold.events.model.request`): the
configuration in force, the history as far as it was sent, and what was done to both. Of a call in flight, or lost with
its process, the last is in its RequestBuilt; where the agent has nothing that may change a request, there is no such
event, and the request follows from the state. The rule: a request that cannot be built as it was is an error, never
something like it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.ids import PayloadHash
from refold.events.model.configuration import AgentConfiguration, configured_for
from refold.events.model.messages import ModelRequest, Prepared, RequestReference
from refold.events.model.payloads import all_restored, stored_hashes
from refold.events.model.request import (
    AS_IT_STANDS,
    applied,
    form_of,
    messages_digest,
    plain_request,
    prepared_of,
    prompt_and_tools,
    request_digest,
)
from refold.events.session import events as ev
from refold.events.session.core import fold
from refold.events.session.evolve import evolve
from refold.inspection.log_reading import ReadableLog, opened, session_head
from refold.inspection.session_view import checked_version, events_until
from refold.react.prompt import text_request
from refold.stores.event_store import EventStore

REFERRING = (ev.RequestBuilt, ev.ModelResponded, ev.ModelFailed, ev.ContextPrepared)
"""Events that refer to a request."""


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a model was asked, and what had been done to it."""

    session: str
    version: int
    """Of the event that it belongs to."""
    request: ModelRequest
    recalled: tuple[str, ...] = ()
    """Identifiers of the remembered items that entered it."""
    prepared: Prepared
    """What was done to the plain request of configuration and history."""
    open: bool = False
    """Whether the log has no end of its call: it is in flight, or was lost with its process."""
    sent: str = ""
    """Digest of the request as it left, see `RequestReference.sent`."""
    as_sent: bool | None = None
    """Whether today's code makes the same of it, by that digest; None = the digest is not there, or is of a form that
    only the provider knows."""


class _Found(NamedTuple):
    """Which request is meant."""

    version: int
    """Of the event that it belongs to."""
    reference: RequestReference
    before: int
    """How many events there were before that."""
    is_open: bool = False


async def recorded_request(log: ReadableLog, session: str, version: int | None = None) -> RecordedRequest:
    """Return a request as a model gets it; nothing is written.

    Args:
        log: path of the file, or an open store, which stays open. It may be in use.
        session: whose it is.
        version: of the event that it belongs to: what wants the call (ModelRequested, or the TimerFired before another
            attempt), RequestBuilt, or what came of it (ModelResponded, ModelFailed, ModelInterrupted, ContextPrepared);
            None = the last request.

    Raises:
        ConfigError: there is no such session or version, the event at it has no request, or that was not built yet.
        LogFormatError: the log lacks a part of the request, or a part is not what it was.
        PersistenceError: the log cannot be read.
    """
    async with opened(log) as store:
        head = await session_head(store, session)
        place = checked_version(head, version)
        events = await events_until(store, head.stream, place)
        if len(events) < place:
            raise LogFormatError(f"version {len(events) + 1} of session {session!r} is missing; see `refold check`")
        found = _referred(events, place) if version is not None else None
        if found is None:  # What came of it, if anything, is behind it.
            events = await events_until(store, head.stream, head.version)
            found = _last_in(events, session) if version is None else _wanted_at(events, place, session)
        configured = events[found.reference.configured - 1] if 0 < found.reference.configured <= found.before else None
        if not isinstance(configured, ev.AgentConfigured):
            raise LogFormatError(f"version {found.version} of session {session!r} names a configuration that is none")
        return await _built(store, session, events[: found.before], configured.configuration, found)


def _last_in(events: Sequence[ev.SessionEvent], session: str) -> _Found:
    run = fold(events).run
    if run is not None and run.phase == "model":
        return _of_call(events, run.asked, session)
    for place in range(len(events), 0, -1):
        found = _referred(events, place)
        if found is not None:
            return found
        if isinstance(events[place - 1], ev.ModelRequested):  # Its run has ended without an answer.
            return _of_call(events, place, session)
    raise ConfigError(f"session {session!r} has no request; `refold show --events` lists its events")


def _wanted_at(events: Sequence[ev.SessionEvent], place: int, session: str) -> _Found:
    if place > len(events):
        raise LogFormatError(
            f"the log lacks version {len(events) + 1} of session {session!r}; `refold check` says more"
        )
    event = events[place - 1]
    if isinstance(event, ev.ModelInterrupted) and 0 < event.asked < place:
        return _of_call(events, event.asked, session)
    run = fold(events[:place]).run
    if run is None or run.asked != place:
        raise ConfigError(
            f"version {place} of session {session!r} has no request; `refold show --events` lists its events"
        )
    return _of_call(events, place, session)


def _referred(events: Sequence[ev.SessionEvent], place: int) -> _Found | None:
    event = events[place - 1]
    if not isinstance(event, REFERRING) or event.request is None:
        return None
    return _Found(place, event.request, place - 1)


def _of_call(events: Sequence[ev.SessionEvent], asked: int, session: str) -> _Found:
    """Return the request of the model call that an event wants."""
    state, before, end, built = fold(events[:asked]), asked, None, None
    while True:
        derived = RequestReference(configured=state.configured, messages=len(state.messages))
        configuration, fits = state.configuration, state.fits
        if before == len(events):
            break
        event = events[before]
        state = evolve(state, event)
        if state.run is None or state.run.asked != asked or state.run.phase != "model":
            end = event
            break
        before += 1
        if isinstance(event, ev.RequestBuilt):
            built = _referred(events, before)
        elif isinstance(event, ev.ContextPrepared):  # What was built before was its request.
            built = None
    if isinstance(end, ev.ModelResponded | ev.ModelFailed) and (found := _referred(events, before + 1)) is not None:
        return found
    if built is not None:
        return built._replace(is_open=end is None)
    if fits or (configuration is not None and configuration.builds_requests):
        raise ConfigError(
            f"the request that version {asked} of session {session!r} wants is not in the log: the offer of tools, a "
            "memory, the context window or middleware was still at work on it, or its call had only just begun"
        )
    return _Found(asked, derived, before, end is None)


async def _built(
    store: EventStore,
    session: str,
    before: list[ev.SessionEvent],
    configuration: AgentConfiguration,
    found: _Found,
) -> RecordedRequest:
    """Return the request that is meant, given the events before the one that it belongs to."""
    reference, state = found.reference, fold(before)
    configuration = configured_for(configuration, state.run.options if state.run is not None else None)
    stored = state.messages[: reference.messages]
    digest = messages_digest(stored)
    if len(stored) < reference.messages or (reference.digest and digest != reference.digest):
        raise LogFormatError(
            f"the history before version {found.version} of session {session!r} is not the one that was sent; "
            "`refold check` says what is wrong with the log"
        )
    names: list[PayloadHash] = [configuration.system_prompt, configuration.tool_schemas, *stored_hashes(stored)]
    if reference.prepared_payload is not None:
        names.append(reference.prepared_payload)
    payloads = await store.read_payloads(names)
    for name in names:
        if name not in payloads:
            raise LogFormatError(f"payload {name} is missing from {store.name}")
    prepared = prepared_of(reference, payloads)
    prompt, tools = prompt_and_tools(configuration, payloads, store.name)
    plain = plain_request(
        configuration,
        prompt,
        tools,
        tuple(all_restored(stored, payloads)),
        reference.offered,
    )
    request = applied(plain, prepared)
    sent = reference.sent if form_of(reference.sent) == AS_IT_STANDS else ""
    if configuration.protocol == "react":  # A provider may have been told to send no stop sequence.
        texts = [text_request(request, stop=stop) for stop in (True, False)]
        request = next((text for text in texts if request_digest(text) == sent), texts[0])
    return RecordedRequest(
        session=session,
        version=found.version,
        request=request,
        recalled=reference.recalled,
        prepared=prepared,
        open=found.is_open,
        sent=reference.sent,
        as_sent=request_digest(request) == sent if sent else None,
    )
