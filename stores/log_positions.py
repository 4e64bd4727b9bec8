"""Where a log ends, found with a few small reads of any store."""

from typing import Final

from refold.stores.event_store import EventStore

_POSITION_MAX: Final = 2**62


async def last_position(store: EventStore) -> int:
    """Return the position of a log's last event, or 0 if it has none.

    What is appended meanwhile may or may not be seen. It takes two reads of one event per binary digit of the position.

    Raises:
        PersistenceError: the log cannot be read.
    """
    known, beyond = 0, 1
    while found := await store.read_all(after_position=beyond - 1, limit=1):
        known = found[0].position
        if known >= _POSITION_MAX:
            break
        beyond = 2 * known
    low, high = known, beyond
    # Some event has position `known`, and none has `beyond` or a later one.
    while high - low > 1:
        middle = (low + high) // 2
        found = await store.read_all(after_position=middle - 1, limit=1)
        if found:
            low = found[0].position
        else:
            high = middle
    return low


async def position_before_last(store: EventStore, count: int) -> int:
    """Return the position after which a log's last `count` events come; 0 if it has no more than those.

    Raises:
        PersistenceError: the log cannot be read.
    """
    last = await last_position(store)
    if count == 0:
        return last
    reach = count
    while True:
        begin = max(last - reach, 0)
        events = await store.read_all(after_position=begin, limit=reach)
        events = [event for event in events if event.position <= last]
        if len(events) >= count:
            return events[-count].position - 1
        if begin == 0:
            return 0
        reach *= 2  # Positions are missing there.
