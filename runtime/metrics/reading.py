"""Read from a log: its metrics as of any position, and the steps and the statistics of one session.

The rule: nothing is written, so the log may be in use.
"""

from typing import Final

from refold.events.core.errors import ConfigError
from refold.events.core.ids import PayloadHash
from refold.events.session.events import SessionEvent
from refold.events.views.metrics import MetricsState, count, snapshot
from refold.events.views.metrics_snapshot import MetricsSnapshot
from refold.events.views.statistics import SessionStatistics, statistics_of
from refold.events.views.steps import Step, steps_of, stored_texts
from refold.inspection.log_reading import ReadableLog, opened, session_head
from refold.inspection.session_view import checked_version, events_until
from refold.stores.event_store import EventStore
from refold.stores.past_state import last_position

EVENTS_PER_PAGE: Final = 1_000


async def read_metrics(log: ReadableLog, *, at: int | None = None) -> MetricsSnapshot:
    """Return the figures of a log as they were at a position.

    Args:
        log: the path of its file, or an open store.
        at: count the events up to this position, 0 = none; None = all that the log holds now.

    Raises:
        ConfigError: the log does not reach that position, or no position is negative.
        LogFormatError: the file is not a log, is damaged, or comes from a newer Refold.
        PersistenceError: the file is missing or cannot be read.
    """
    async with opened(log) as store:
        if at is not None:
            await _require_position(store, at)
        state = MetricsState()
        while page := await store.read_all(after_position=state.position, limit=EVENTS_PER_PAGE):
            for stored in page:
                if at is not None and stored.position > at:
                    return snapshot(state)
                count(state, stored)
        return snapshot(state)


async def _require_position(store: EventStore, position: int) -> None:
    last = await last_position(store)
    if not 0 <= position <= last:
        raise ConfigError(f"the log {store.name} has no position {position}; its positions are 0 to {last}")


PAYLOADS_PER_READ = 100


async def read_steps(store: EventStore, stream: str) -> tuple[Step, ...]:
    """Return the steps of a session's stream; of one that is not in the log, none."""
    events = await _events(store, stream)
    return steps_of(events, await _texts(store, events))


async def read_stream_statistics(store: EventStore, stream: str, *, append_errors: int) -> SessionStatistics:
    """Return what a session's stream comes to; of one that is not in the log, nothing.

    `append_errors` are those that a runtime has counted.
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
