"""Recorded events of one session, read from the log in pages of any size."""

from refold.events.session_core import SESSION_CODEC
from refold.published import Recorded
from refold.stores.event_store import EventStore


async def read_recorded(store: EventStore, stream: str, *, after_version: int, limit: int) -> list[Recorded]:
    """Return the next `limit` events of a session's stream, or those there are.

    Raises:
        PersistenceError: the log cannot be read.
        LogFormatError: an event is damaged.
    """
    page = await store.read_stream(stream, after_version=after_version, limit=limit)
    if not page or page[0].version == page[0].batch:
        return SESSION_CODEC.recorded(page)
    before = page[0].batch - 1  # What a batch goes back to is in its first event.
    first = await store.read_stream(stream, after_version=before, limit=1)
    return SESSION_CODEC.recorded([*first, *page])[len(first) :]
