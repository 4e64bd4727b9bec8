"""The kinds of streams that today's code can read, and what each of them is read with.

A stream's kind is what stands before the first slash of its name. Adding a kind means adding a line to `KINDS`;
streams of other kinds (a user's own actors, a newer Refold) are named in reports and never silently skipped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Never, TypeVar

from refold.events.codec import EventCodec
from refold.events.core import Core
from refold.events.event import Event
from refold.events.ids import StreamName, kind_and_identifier
from refold.events.invariants import SessionChecker, Violation
from refold.events.records import StoredEvent
from refold.events.runtime_core import RUNTIME_CODEC, RUNTIME_CORE
from refold.events.runtime_events import RUNTIME_STREAM
from refold.events.session_core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.tool_core import TOOL_CODEC, TOOL_CORE, TOOL_KIND
from refold.stream_replay import CoreReplay, StreamReplay

EventReader = Callable[[StoredEvent], tuple[Event, Sequence[Violation]]]
"""Returns the event in a stored one, the next of its stream, and the invariants that it breaks; or raises
LogFormatError where it cannot be decoded."""

S = TypeVar("S")
E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class StreamKind:
    """What streams of one kind are read with."""

    reader: Callable[[StreamName], EventReader]
    """Begins the reading of one stream from its first event."""
    replay: Callable[[StreamName], StreamReplay]
    """Begins the replay of one stream."""


def stream_kind(
    core: Core[S, Never, E],
    codec: EventCodec[E],
    invariants: Callable[[StreamName], Callable[[E], Sequence[Violation]]] | None = None,
) -> StreamKind:
    """Return a kind of streams.

    Args:
        core: decides their events.
        codec: reads their events.
        invariants: begins the check of one stream's invariants; the check is given each event. None = there are none.
    """

    def reader(stream: StreamName) -> EventReader:
        broken = invariants(stream) if invariants is not None else _nothing_broken

        def read(stored: StoredEvent) -> tuple[Event, Sequence[Violation]]:
            event = codec.decode(stored)
            return event, broken(event)

        return read

    return StreamKind(reader=reader, replay=lambda stream: CoreReplay(stream, core, codec))


def _nothing_broken(event: Event) -> Sequence[Violation]:
    return ()


KINDS: Mapping[str, StreamKind] = MappingProxyType(
    {
        SESSION_KIND: stream_kind(SESSION_CORE, SESSION_CODEC, lambda stream: SessionChecker(stream).observe),
        TOOL_KIND: stream_kind(TOOL_CORE, TOOL_CODEC),
        kind_and_identifier(RUNTIME_STREAM)[0]: stream_kind(RUNTIME_CORE, RUNTIME_CODEC),
    }
)
"""Every kind that today's code knows, by name."""
