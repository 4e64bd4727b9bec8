"""A session as it was at one version, as a document that other programs can read and another session can take over.

    await session.checkpoint(FileBackend("exports"))             # Under the key "session/<id>".
    checkpoint = load_checkpoint(await backend.load("session/alice"))
    await another.import_history(checkpoint.history)

A checkpoint is an export. A session never goes on from one: it goes on from the log, which alone says what happened.
The document is one JSON object with the fields of `Checkpoint`, in their order, and `"format":
"refold.sessions.checkpoint.v1"` first; the same session at the same version always gives the same bytes.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from refold.events.core.content import Message
from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import AgentId, PayloadHash, RunId, SessionId, StreamName
from refold.events.core.records import StoredEvent
from refold.events.model.messages import Usage
from refold.events.model.payloads import all_restored, stored_hashes
from refold.events.session.state import SessionState, history
from refold.stores.event_store import EventStore


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, tag_field="format", tag="refold.sessions.checkpoint.v1"):
    """What a session was at one version. Fields are only ever added."""

    session: SessionId
    agent: AgentId | None
    """The agent that it belongs to; None before its first event."""
    version: int
    """Version of the last event that is in it; 0 = none."""
    chain: str
    """The stream's digest after the batch of that event, 64 hexadecimal digits; empty for version 0. A log of which it
    is a part has the same digest there."""
    at: int
    """When that event happened, in microseconds since the epoch, UTC."""
    run: RunId | None
    """The run under way."""
    last_run: RunId | None
    """The run that ended last."""
    outcome: Literal["completed", "failed", "cancelled"] | None
    """How that one ended."""
    usage: Usage
    """Tokens of all model calls so far."""
    cost: float
    """What they cost, as far as prices are known."""
    history: tuple[Message, ...]
    """The balanced history with all content; calls that are open have a result that says so."""


encode_message = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Checkpoint)

_NO_HISTORY = b'"history":[]}'


def checkpoint_bytes(facts: Checkpoint, messages: Iterable[bytes]) -> bytes:
    """Return the document of a checkpoint, UTF-8 JSON, with these encoded messages as its history."""
    document = encode_message(msgspec.structs.replace(facts, history=()))
    assert document.endswith(_NO_HISTORY)  # It is the last field.
    return document[: -len(_NO_HISTORY)] + b'"history":[' + b",".join(messages) + b"]}"


def load_checkpoint(data: bytes | None) -> Checkpoint:
    """Return the checkpoint that a backend keeps.

    Args:
        data: what `load` gave.

    Raises:
        PersistenceError: there is none, or it cannot be read; the message says what is wrong in it and where.
    """
    if data is None:
        raise PersistenceError("there is no checkpoint under this key; `list_keys` of the backend says which there are")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError) as error:
        raise PersistenceError(f"this is no checkpoint that this Refold can read: {error}") from error


def facts_of(state: SessionState, session: SessionId, chain: str = "") -> Checkpoint:
    """Return a checkpoint of a state, which still lacks its history."""
    last = state.last_run
    return Checkpoint(
        session=session,
        agent=state.agent,
        version=state.version,
        chain=chain,
        at=state.at,
        run=state.run.id if state.run is not None else None,
        last_run=last.run if last is not None else None,
        outcome=last.outcome if last is not None else None,
        usage=state.usage,
        cost=state.cost,
        history=(),
    )


def with_history(state: SessionState, session: SessionId) -> Checkpoint:
    """Return a checkpoint of a state, which still lacks its chain and the content that the log keeps as payloads."""
    return msgspec.structs.replace(facts_of(state, session), history=tuple(history(state)))


async def completed(facts: Checkpoint, store: EventStore, stream: StreamName) -> Checkpoint:
    """Return a checkpoint with the content, the chain and the history that the log has."""
    hashes = stored_hashes(facts.history)
    payloads: Mapping[PayloadHash, bytes] = await store.read_payloads(hashes) if hashes else {}
    messages = tuple(all_restored(facts.history, payloads))
    chain = await _chain_at(store, stream, facts.version) if facts.version else ""
    return msgspec.structs.replace(facts, history=messages, chain=chain)


async def _chain_at(store: EventStore, stream: StreamName, version: int) -> str:
    event = await _event_at(store, stream, version)
    first = event if event.chain is not None else await _event_at(store, stream, event.batch)
    if first.chain is None:
        raise LogFormatError(f"the batch of version {version} of stream {stream!r} has no chain; restore a backup")
    return first.chain.hex()


async def _event_at(store: EventStore, stream: StreamName, version: int) -> StoredEvent:
    found = await store.read_stream(stream, after_version=version - 1, limit=1)
    if not found:
        raise LogFormatError(f"stream {stream!r} has no version {version}; `refold check` says more")
    return found[0]
