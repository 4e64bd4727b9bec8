"""Content that the log keeps by its hash, for those who want to see the whole of it."""

import re
from typing import TypeAlias

import msgspec

from refold.events.configuration import payload_hash
from refold.events.content import ImageBlock, TextBlock
from refold.events.errors import ConfigError, LogFormatError
from refold.events.ids import PayloadHash, StreamName
from refold.events.payloads import whole_block
from refold.stores.event_store import EventStore

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
        case ImageBlock(data=data):
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
