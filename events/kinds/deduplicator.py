"""A deduplicator's four functions: which keys are at work, and which have a result, until when.

The rules: a key that was claimed is not claimed again before it is released or its time is over; a result stays the
same until its time is over. A claim that outlived its process says that the work was begun, and no more.
"""

from typing import TypeAlias, assert_never

import msgspec

from refold.events.core.checked_core import CheckedCore
from refold.events.core.event import Microseconds
from refold.events.core.pure_core import KeyedCommand, KeyedEvent, PureCore, Recorded, State
from refold.events.model.configuration import FOLD_VERSION

DEDUP_KIND = "dedup"
"""Kind of a deduplicator's address and stream."""


class WorkClaimed(KeyedEvent, frozen=True, kw_only=True, tag="dedup.claimed.v1"):
    """Work under a key begins."""

    work_key: str
    decided_at: Microseconds
    """Microseconds since the epoch, UTC."""
    until: Microseconds
    """When the claim lapses, if nothing follows, microseconds since the epoch, UTC; exclusive."""


class WorkFinished(KeyedEvent, frozen=True, kw_only=True, tag="dedup.finished.v1"):
    """Work under a key has a result."""

    work_key: str
    result: str
    """JSON text."""
    decided_at: Microseconds
    """Microseconds since the epoch, UTC."""
    until: Microseconds
    """How long the result is given, microseconds since the epoch, UTC; exclusive."""


class WorkReleased(KeyedEvent, frozen=True, kw_only=True, tag="dedup.released.v1"):
    """The key is as good as new: the work failed or was cancelled, or a person had it forgotten."""

    work_key: str


DedupEvent: TypeAlias = WorkClaimed | WorkFinished | WorkReleased
"""Any event of a deduplicator's stream."""


class ClaimWork(KeyedCommand, frozen=True, kw_only=True):
    """Claim a key; nothing is recorded where it is taken."""

    work_key: str
    decided_at: int
    until: int


class FinishWork(KeyedCommand, frozen=True, kw_only=True):
    """Give a key its result; nothing is recorded where it has one."""

    work_key: str
    result: str
    decided_at: int
    until: int


class ReleaseWork(KeyedCommand, frozen=True, kw_only=True):
    """Forget a key."""

    work_key: str


DedupCommand: TypeAlias = ClaimWork | FinishWork | ReleaseWork
"""Anything that a deduplicator's stream can be told."""


class DedupEntry(msgspec.Struct, frozen=True):
    """What is known of a key."""

    since: int
    """When it was claimed, or got its result, microseconds since the epoch, UTC."""
    until: int
    """When that is forgotten, microseconds since the epoch, UTC; exclusive."""
    result: str | None = None
    """JSON text; None = it is at work."""


class DedupState(State):
    """All that a deduplicator's events add up to."""

    entries: dict[str, DedupEntry] = msgspec.field(default_factory=dict[str, DedupEntry])
    """By key, the least recently changed first; some of them may be over."""


class DedupCore(PureCore[DedupState, DedupCommand, DedupEvent]):
    """The pure functions of a deduplicator."""

    fold_version = FOLD_VERSION

    def admit(self, state: DedupState, command: DedupCommand) -> DedupEvent | Recorded:
        entry = state.entries.get(command.work_key)
        match command:
            case ClaimWork(work_key=work_key, decided_at=decided_at, until=until):
                if entry is not None and decided_at < entry.until:
                    return Recorded(0)
                return WorkClaimed(work_key=work_key, decided_at=decided_at, until=until)
            case FinishWork(work_key=work_key, result=result, decided_at=decided_at, until=until):
                if entry is not None and entry.result is not None and decided_at < entry.until:
                    return Recorded(0)
                return WorkFinished(work_key=work_key, result=result, decided_at=decided_at, until=until)
            case ReleaseWork(work_key=work_key):
                return Recorded(0) if entry is None else WorkReleased(work_key=work_key)
            case _:
                assert_never(command)

    def evolve(self, state: DedupState, event: DedupEvent) -> DedupState:
        entries = state.entries
        entries.pop(event.work_key, None)
        match event:
            case WorkClaimed(work_key=work_key, decided_at=decided_at, until=until):
                entries[work_key] = DedupEntry(decided_at, until)
            case WorkFinished(work_key=work_key, result=result, decided_at=decided_at, until=until):
                entries[work_key] = DedupEntry(decided_at, until, result)
            case WorkReleased():
                return state
            case _:
                assert_never(event)
        while (oldest := next(iter(entries))) != event.work_key and entries[oldest].until <= event.decided_at:
            del entries[oldest]
        return state


DEDUP_CORE: CheckedCore[DedupState, DedupCommand, DedupEvent] = CheckedCore(DedupCore)
