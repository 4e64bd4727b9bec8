"""The exact request behind a model's answer, built again from the log.

    request = await recorded_request("events.db", "alice", 12)

It is made of the same parts and by the same functions as the one that was sent (`refold.events.model.request`): the
configuration in force, the history as far as it was sent, and what was done to both. The rule: a request that cannot be
built as it was is an error, never something like it.
"""

import hashlib

import msgspec

from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.ids import PayloadHash
from refold.events.model.configuration import AgentConfiguration
from refold.events.model.messages import ModelRequest, Prepared, RequestReference
from refold.events.model.payloads import all_restored, stored_hashes
from refold.events.model.request import applied, plain_request, prepared_of, prompt_and_tools
from refold.events.session import events as ev
from refold.events.session.core import fold
from refold.inspection.log_reading import ReadableLog, opened, session_head
from refold.inspection.session_view import checked_version, events_until
from refold.stores.event_store import EventStore


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


async def recorded_request(log: ReadableLog, session: str, version: int | None = None) -> RecordedRequest:
    """Return the request that belongs to a model's answer, failure or summary; nothing is written.

    Args:
        log: path of the file, or an open store, which stays open. It may be in use.
        session: whose it is.
        version: of the ModelResponded, ModelFailed or ContextPrepared; None = the last of them.

    Raises:
        ConfigError: there is no such session or version, or the event at it refers to no request.
        LogFormatError: the log lacks a part of the request, or a part is not what it was.
        PersistenceError: the log cannot be read.
    """
    async with opened(log) as store:
        head = await session_head(store, session)
        events = await events_until(store, head.stream, checked_version(head, version))
        place, reference = _reference_in(events, session, latest=version is None)
        configured = events[reference.configured - 1] if 0 < reference.configured <= place else None
        if not isinstance(configured, ev.AgentConfigured):
            raise LogFormatError(f"version {place} of session {session!r} names a configuration that is none")
        return await _built(store, session, events[: place - 1], configured.configuration, reference)


def _reference_in(events: list[ev.SessionEvent], session: str, *, latest: bool) -> tuple[int, RequestReference]:
    """Return the version of the event that is meant, and its reference."""
    for place in range(len(events), 0, -1):
        event = events[place - 1]
        if isinstance(event, ev.ModelResponded | ev.ModelFailed | ev.ContextPrepared) and event.request is not None:
            return place, event.request
        if not latest:
            break
    where = "" if latest else f" at version {len(events)}"
    raise ConfigError(f"session {session!r} has no event{where} that refers to a request; `refold show --events` lists")


async def _built(
    store: EventStore,
    session: str,
    before: list[ev.SessionEvent],
    configuration: AgentConfiguration,
    reference: RequestReference,
) -> RecordedRequest:
    """Return the request of an event, given the events before it."""
    version = len(before) + 1
    stored = fold(before).messages[: reference.messages]
    digest = hashlib.sha256(b"".join(map(msgspec.json.encode, stored))).hexdigest()
    if len(stored) < reference.messages or (reference.digest and digest != reference.digest):
        raise LogFormatError(
            f"the history before version {version} of session {session!r} is not the one that was sent; "
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
    return RecordedRequest(
        session=session,
        version=version,
        request=applied(plain, prepared),
        recalled=reference.recalled,
        prepared=prepared,
    )
