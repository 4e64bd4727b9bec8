"""The metrics of a log as of any position, read from outside: nothing is written, whoever owns the log."""

from typing import Final

from refold.events.errors import ConfigError
from refold.events.metrics_fold import MetricsState, count, snapshot
from refold.events.metrics_snapshot import MetricsSnapshot
from refold.log_reading import ReadableLog, opened
from refold.stores.event_store import EventStore
from refold.stores.log_positions import last_position

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
