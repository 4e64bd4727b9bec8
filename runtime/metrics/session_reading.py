"""The steps and the statistics of one session, read from its log."""

from refold.events.ids import PayloadHash
from refold.events.session_events import SessionEvent
from refold.events.session_statistics import SessionStatistics, statistics_of
from refold.events.steps import Step, steps_of, stored_texts
from refold.log_reading import ReadableLog, opened, session_head
from refold.session_view import checked_version, events_until
from refold.stores.event_store import EventStore

PAYLOADS_PER_READ = 100


async def read_steps(store: EventStore, stream: str) -> tuple[Step, ...]:
    """Return the steps of a session's stream; of one that is not in the log, none.

    Raises:
        LogFormatError: an event or a payload is damaged.
        PersistenceError: the log cannot be read.
    """
    events = await _events(store, stream)
    return steps_of(events, await _texts(store, events))


async def read_stream_statistics(store: EventStore, stream: str, *, append_errors: int) -> SessionStatistics:
    """Return what a session's stream comes to; of one that is not in the log, nothing.

    Args:
        store: the log.
        stream: the session's.
        append_errors: as a runtime has counted them.

    Raises:
        LogFormatError: an event or a payload is damaged.
        PersistenceError: the log cannot be read.
    """
    events = await _events(store, stream)
    return statistics_of(events, await _texts(store, events), append_errors=append_errors)


async def read_statistics(log: ReadableLog, session: str, *, at: int | None = None) -> SessionStatistics:
    """Return what a session of a log comes to.

    Args:
        log: the path of its file, or an open store.
        session: its id.
        at: its last version to be looked at; None = all.

    Raises:
        ConfigError: the log has no such session, or the session no such version.
        LogFormatError: the file is not a log, or something in it is damaged.
        PersistenceError: the file is missing or cannot be read.
    """
    async with opened(log) as store:
        head = await session_head(store, session)
        events = await events_until(store, head.stream, checked_version(head, at))
        return statistics_of(events, await _texts(store, events))


async def _events(store: EventStore, stream: str) -> list[SessionEvent]:
    head = await store.head(stream)
    return [] if head is None else await events_until(store, stream, head.version)


async def _texts(store: EventStore, events: list[SessionEvent]) -> dict[PayloadHash, bytes]:
    names = stored_texts(events)
    found: dict[PayloadHash, bytes] = {}
    for first in range(0, len(names), PAYLOADS_PER_READ):
        found |= await store.read_payloads(names[first : first + PAYLOADS_PER_READ])
    return found
