"""What a stream added up to at an earlier place of its log: time travel, with nothing but a store and a core.

The rule: the events up to that place are folded as they were then, all of them and from no snapshot, so the answer is
the state that the actor had, bit for bit; a place inside a batch is a place as well.

Where a log ends, found with a few small reads of any store.
"""

from typing import Any, Generic, TypeVar

import msgspec

from refold.events.core.codec import EventCodec
from refold.events.core.errors import ConfigError, PersistenceError
from refold.events.core.event import Event
from refold.events.core.pure_core import PureCore, Versioned
from refold.stores.append_rules import POSITION_MAX
from refold.stores.event_store import EventStore
from refold.stores.folding import Fold

S = TypeVar("S", bound=Versioned)
E = TypeVar("E", bound=Event)


class PastState(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """A state and the place that it belongs to."""

    state: S
    version: int
    """Of the last event that is in it; 0 = there is none."""
    at: int
    """The time of that place, microseconds since the epoch, UTC; 0 = before all events."""


async def past_state(
    store: EventStore,
    stream: str,
    core: PureCore[S, Any, E],
    codec: EventCodec[E],
    *,
    position: int | None = None,
    version: int | None = None,
) -> PastState[S]:
    """Return the state of a stream after the events up to a place, that one included.

    Args:
        position: a place in the log, of whichever stream's event; None = its end.
        version: a place in the stream; None = its end. 0 in either case is before the first event.

    Raises:
        PersistenceError: the log cannot be read.
    """
    for name, place in (("position", position), ("version", version)):
        if place is not None and place < 0:
            raise ConfigError(f"stream {stream!r} has no {name} {place}; the least is 0, before the first event")
    fold = Fold(stream, core, codec)
    await fold.read(store, snapshots_from=None, version=version, position=position)
    at = fold.at
    if version is not None and fold.version < version:
        head = await store.head(stream)
        if head is None or head.version < version:
            last = head.version if head is not None else 0
            raise ConfigError(f"stream {stream!r} has the versions 1 to {last}, and not {version}")
    if position:
        at = max(at, await _time_at(store, position))
    return PastState(state=fold.state, version=fold.version, at=at)


async def _time_at(store: EventStore, position: int) -> int:
    found = await store.read_all(after_position=position - 1, limit=1)
    return found[0].at if found and found[0].position == position else 0


async def last_position(store: EventStore) -> int:
    """Return the position of a log's last event, or 0 if it has none.

    What is appended meanwhile may or may not be seen. It takes two reads of one event per binary digit of the position.
    """
    known, beyond = 0, 1
    while found := await _position_from(store, beyond):
        known = found
        if known >= POSITION_MAX:
            break
        beyond = 2 * known
    low, high = known, beyond
    # Some event has position `known`, and none has `beyond` or a later one.
    while high - low > 1:
        middle = (low + high) // 2
        found = await _position_from(store, middle)
        if found:
            low = found
        else:
            high = middle
    return low


async def _position_from(store: EventStore, position: int) -> int:
    found = await store.read_all(after_position=position - 1, limit=1)
    if found and found[0].position < position:
        raise PersistenceError(f"{store.name} gives position {found[0].position} for what comes from {position} on")
    return found[0].position if found else 0


async def position_before_last(store: EventStore, count: int) -> int:
    """Return the position after which a log's last `count` events come; 0 if it has no more than those."""
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
