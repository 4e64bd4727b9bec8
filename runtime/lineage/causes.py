"""Why an event is in a log, and what else happened around it, over all streams.

    await why("events.db", "session/alice@17")     # Back to the input: model calls, tools, parents, memories, breakers.
    await timeline("events.db", 4711)              # The events of all streams around a position.

An event that is not the first of its batch follows from that one; the first was caused by the event that the log names
beside it, which may be of another stream. What a fork begins with is the cause of its first event. Nothing is written.
"""

import msgspec

from refold.events.core.errors import ConfigError, quoted
from refold.events.core.event import Event
from refold.events.core.ids import EventRef, StreamName
from refold.events.core.records import VERSION_DIGITS_MAX, StoredEvent, event_ref
from refold.inspection.kinds import KINDS
from refold.inspection.log_reading import ReadableLog, opened, session_head, stream_head, tombstone_of
from refold.inspection.tail import Followed, Following
from refold.stores.event_store import EventStore
from refold.stores.past_state import last_position

CAUSES_MAX = 100_000
"""A chain is not followed further."""


class CausingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a chain of causes."""

    reference: EventRef
    """`session/alice@17`."""
    position: int | None
    """In the log; None = it is not there any more."""
    time: int
    """Microseconds since the epoch, UTC; 0 = not known."""
    type: str
    """Its tag; empty = it is not there any more."""
    words: str
    """What it says, in a few words."""
    event: Event | msgspec.Raw | str | None = None
    """As this version reads it, or as it was recorded."""


async def why(log: ReadableLog, event: str) -> tuple[CausingEvent, ...]:
    """Return an event, what caused it, what caused that, and so on, back to what came from outside.

    Args:
        log: path of the file, or an open store. It may be in use.
        event: `session/alice@17`, or `alice@17` of a session, or its position in the log as digits.

    Raises:
        ConfigError: there is no such event.
        LogFormatError: the file is no log, or a cause goes in a circle.
        PersistenceError: the log cannot be read.
    """
    async with opened(log) as store:
        stored: StoredEvent | None = await named_event(store, event)
        following = Following(store)
        chain: list[CausingEvent] = []
        met: set[EventRef] = set()
        while stored is not None and len(chain) < CAUSES_MAX:
            told = await following.read(stored)
            reference = event_ref(stored.stream, stored.version)
            met.add(reference)
            chain.append(_cause(reference, told))
            named = told.causation
            if named is None or named in met:
                break
            stored = await _event_at(store, named)
            if stored is None:
                chain.append(await _lost(store, named))
        return tuple(chain)


async def timeline(log: ReadableLog, around: int, *, window: int = 10) -> tuple[Followed, ...]:
    """Return the events of all streams around a position: it, and at most so many on each side.

    Args:
        log: path of the file, or an open store. It may be in use.
        around: the position; where none has it, the events before and behind it.
        window: how many on each side, >= 0.

    Raises:
        ConfigError: the log does not reach so far, or an argument makes no sense.
        PersistenceError: the log cannot be read.
    """
    if type(window) is not int or window < 0:
        raise ConfigError(f"window is how many events are shown on each side, at least 0, not {quoted(window, 60)}")
    async with opened(log) as store:
        last = await last_position(store)
        if type(around) is not int or not 1 <= around <= last:
            raise ConfigError(f"the log {store.name} has the positions 1 to {last}, and not {quoted(around, 60)}")
        before: list[StoredEvent] = []
        begin, reach = around, window
        while len(before) < window and begin > 1:  # Positions may be missing there.
            begin = max(around - reach, 1)
            found = await store.read_all(after_position=begin - 1, limit=around - begin) if begin < around else []
            before = [event for event in found if event.position < around]
            reach *= 2
        at_and_behind = await store.read_all(after_position=around - 1, limit=window + 1)
        following = Following(store)
        shown = [*before[len(before) - min(window, len(before)) :], *at_and_behind]
        return tuple([await following.read(event) for event in shown])


async def named_event(store: EventStore, name: str) -> StoredEvent:
    """Return the event that a person names; raises as `why`."""
    if name.isascii() and name.isdecimal() and len(name) <= VERSION_DIGITS_MAX:
        found = await store.read_all(after_position=int(name) - 1, limit=1)
        if found and found[0].position == int(name):
            return found[0]
        raise ConfigError(f"the log {store.name} has no event at position {name}")
    stream, mark, version = name.rpartition("@" if "@" in name else ":")
    if not mark or not (version.isascii() and version.isdecimal() and len(version) <= VERSION_DIGITS_MAX):
        raise ConfigError(f"{quoted(name)} names no event; write session/alice@17, or its position in the log")
    kind = stream.partition("/")[0]
    head = await (stream_head if "/" in stream and kind in KINDS else session_head)(store, stream)
    event = await _event_at(store, event_ref(head.stream, int(version)))
    if event is None:
        raise ConfigError(f"{head.stream} has the versions 1 to {head.version}, and not {version}")
    return event


async def _event_at(store: EventStore, reference: EventRef) -> StoredEvent | None:
    stream, _, version = reference.rpartition("@")
    if not (version.isascii() and version.isdecimal() and len(version) <= VERSION_DIGITS_MAX):
        return None
    found = await store.read_stream(stream, after_version=int(version) - 1, limit=1)
    return found[0] if found and found[0].version == int(version) else None


async def _lost(store: EventStore, reference: EventRef) -> CausingEvent:
    stream = StreamName(reference.rpartition("@")[0])
    deleted = await tombstone_of(store, stream)
    words = "its stream was deleted" if deleted is not None else "the log does not have it"
    return CausingEvent(reference=reference, position=None, time=0, type="", words=words)


def _cause(reference: EventRef, told: Followed) -> CausingEvent:
    return CausingEvent(
        reference=reference,
        position=told.position,
        time=told.time,
        type=told.type,
        words=told.words,
        event=told.event,
    )
