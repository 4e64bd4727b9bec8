"""The kinds of streams that today's code can read, and what each of them is read with.

A stream's kind is what stands before the first slash of its name. Adding a kind of Refold's own means adding a line to
`KINDS`; callers add those of their own cores. Streams of other kinds (a user's actors whose core was not given, a newer
Refold) are named in reports and never silently skipped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from refold.events.core.checked_core import CheckedCore
from refold.events.core.codec import EventCodec
from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.event import Event
from refold.events.core.ids import StreamName, kind_and_identifier
from refold.events.core.pure_core import PureCore, Versioned, evolve_all
from refold.events.core.records import StoredEvent
from refold.events.kinds.breaker import BREAKER_CORE, BREAKER_KIND
from refold.events.kinds.deduplicator import DEDUP_CORE, DEDUP_KIND
from refold.events.kinds.episodic import EPISODIC_CORE
from refold.events.kinds.graph import GRAPH_CORE
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_CORE, RUNTIME_STREAM
from refold.events.kinds.scopes import GRAPH_KIND, KNOWLEDGE_KIND, MEMORY_KIND, WORKING_KIND
from refold.events.kinds.semantic import SEMANTIC_CORE
from refold.events.kinds.tool import TOOL_CODEC, TOOL_CORE, TOOL_KIND
from refold.events.kinds.working_memory import WORKING_CORE
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.invariants import SessionChecker, Violation

EventReader = Callable[[StoredEvent], tuple[Event, Sequence[Violation]]]
"""Returns the event in a stored one, the next of its stream, and the invariants that it breaks; or raises
LogFormatError where it cannot be decoded."""

S = TypeVar("S", bound=Versioned)
E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class StreamKind:
    """What streams of one kind are read with."""

    core: PureCore[Any, Any, Any]
    """Decides their events."""
    codec: EventCodec[Any]
    """Reads their events."""
    invariants: Callable[[StreamName], Callable[[Any], Sequence[Violation]]] | None = None
    """Begins the check of one stream's invariants; the check is given each event. None = there are none."""

    def reader(self, stream: StreamName) -> EventReader:
        """Begin the reading of one stream from its first event."""
        check = self.invariants(stream) if self.invariants is not None else None

        def read(stored: StoredEvent) -> tuple[Event, Sequence[Violation]]:
            event = self.codec.decode(stored)
            return event, check(event) if check is not None else ()

        return read


class _FoldCheck(Generic[S, E]):
    """Folds one stream, and says where that fails first."""

    def __init__(self, stream: StreamName, core: PureCore[S, Any, E]) -> None:
        self._stream = stream
        self._core = core
        self._state: S | None = core.initial()
        self._version = 0

    def observe(self, event: E) -> Sequence[Violation]:
        """Return what is wrong with one more event; nothing more after the first fault."""
        self._version += 1
        if self._state is None:
            return ()
        try:
            self._state = evolve_all(self._core, (event,), self._state)
        except LogFormatError as error:
            self._state = None
            return (Violation("INV6", self._stream, self._version, f"it cannot be folded: {error.__cause__}"),)
        return ()


def _folded_kind(core: CheckedCore[Any, Any, Any]) -> StreamKind:
    return StreamKind(core, core.codec, lambda stream: _FoldCheck(stream, core).observe)


KINDS: Mapping[str, StreamKind] = MappingProxyType(
    {
        SESSION_KIND: StreamKind(SESSION_CORE, SESSION_CODEC, lambda stream: SessionChecker(stream).observe),
        TOOL_KIND: StreamKind(TOOL_CORE, TOOL_CODEC),
        GRAPH_KIND: _folded_kind(GRAPH_CORE),
        BREAKER_KIND: _folded_kind(BREAKER_CORE),
        DEDUP_KIND: _folded_kind(DEDUP_CORE),
        MEMORY_KIND: _folded_kind(EPISODIC_CORE),
        KNOWLEDGE_KIND: _folded_kind(SEMANTIC_CORE),
        WORKING_KIND: _folded_kind(WORKING_CORE),
        kind_and_identifier(RUNTIME_STREAM)[0]: StreamKind(RUNTIME_CORE, RUNTIME_CODEC),
    }
)
"""Every kind that today's code knows, by name."""

GivenKind = type[PureCore[Any, Any, Any]] | PureCore[Any, Any, Any] | StreamKind
"""A kind as callers give it: a core, as a class or an instance, or a `StreamKind`."""


def kinds_with(given: Mapping[str, GivenKind] | None) -> Mapping[str, StreamKind]:
    """Return `KINDS` and those that a caller gives, by name.

    Raises:
        ConfigError: a name cannot be one or is Refold's own, or the types of a core cannot work.
    """
    if not given:
        return KINDS
    for name in given:
        if not name or "/" in name:
            raise ConfigError(f"{name!r} cannot be a kind of stream; use a word without a slash, such as 'book'")
        if name in KINDS:
            raise ConfigError(f"the kind {name!r} is Refold's own and needs no core")
    return {**KINDS, **{name: _kind_of(kind) for name, kind in given.items()}}


def _kind_of(given: GivenKind) -> StreamKind:
    if isinstance(given, StreamKind):
        return given
    return _folded_kind(CheckedCore[Any, Any, Any](given))
