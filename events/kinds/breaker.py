"""A circuit breaker's four functions, and the rules by which it lets calls through.

    closed ──`threshold` failures in a row──> open ──`recovery_us` later──> half open: one probe at a time
      ^                                         ^                                │
      └──────────── the probe succeeds ─────────┼────────────────────────────────┤
                                                └──────── the probe fails ───────┘

The state machine is that of M. Nygard, "Release It!" (2007), "Circuit Breaker". Read `asked` first, which says what a
call may do, then `_ended`, which says what its end means. The rules: the state is what the events add up to, failures
in a row included, and what changes nothing is no event; a call that began in an older cycle (see `Permit.generation`)
changes nothing any more; one probe is under way at a time, and one that does not end in `probe_us` gives up its slot.

Of a circuit that several processes share, another place decides. A `SharedStateSeen` says what this process saw there.
"""

from typing import Literal, TypeAlias, assert_never

import msgspec

from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import CircuitOpen
from refold.events.core.event import SECOND_US, Microseconds
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import KeyedCommand, KeyedEvent, PureCore, Recorded, State
from refold.events.core.records import event_ref
from refold.events.model.configuration import FOLD_VERSION

BREAKER_KIND = "breaker"
"""Kind of a breaker's address and stream."""

LATE_US = 60 * SECOND_US
"""What was seen so long before something else is not late: the clock was set back."""

BreakerPhase: TypeAlias = Literal["closed", "open", "half_open"]

CallEnd: TypeAlias = Literal["succeeded", "failed", "neither"]
"""What the end of a call says about the service; `neither` that of one that was cancelled or died with its process."""

# Events


class BreakerConfigured(KeyedEvent, frozen=True, kw_only=True, tag="breaker.configured.v1"):
    """From here on these are the breaker's settings."""

    threshold: int
    recovery_us: Microseconds
    probe_us: Microseconds


class FailureCounted(KeyedEvent, frozen=True, kw_only=True, tag="breaker.failure_counted.v1"):
    """A call failed, and the circuit stays closed."""

    failures: int
    """How many have failed in a row, this one included."""
    error: str
    """What it said."""


class FailuresCleared(KeyedEvent, frozen=True, kw_only=True, tag="breaker.failures_cleared.v1"):
    """A call succeeded after others had failed; the count begins anew."""


class CircuitOpened(KeyedEvent, frozen=True, kw_only=True, tag="breaker.opened.v1"):
    """Too many calls failed in a row, or a probe did; no call is let through."""

    generation: int
    """Of the cycle that begins."""
    failures: int
    """How many had failed in a row."""
    error: str
    """What the last one said."""
    decided_at: Microseconds
    """Microseconds since the epoch, UTC; the event's own time is that of its recording."""


class ProbeBegun(KeyedEvent, frozen=True, kw_only=True, tag="breaker.probe_begun.v1"):
    """The circuit is half open: one call is let through."""

    generation: int
    probe: int
    """Number of the probe in its cycle, from 1."""
    decided_at: Microseconds
    """Microseconds since the epoch, UTC."""


class ProbeReleased(KeyedEvent, frozen=True, kw_only=True, tag="breaker.probe_released.v1"):
    """A probe was cancelled or died with its process, which says nothing of the service; the next call may be one."""

    generation: int
    probe: int


class CircuitClosed(KeyedEvent, frozen=True, kw_only=True, tag="breaker.closed.v1"):
    """A probe succeeded; every call is let through."""

    generation: int
    """Of the cycle that begins."""
    decided_at: Microseconds
    """Microseconds since the epoch, UTC."""


class SharedStateSeen(KeyedEvent, frozen=True, kw_only=True, tag="breaker.shared_state_seen.v1"):
    """This process saw the circuit so where several processes share it; what happened in between it did not see."""

    phase: BreakerPhase
    generation: int
    probe: int
    probe_since: Microseconds | None = None
    opened_at: Microseconds
    closed_at: Microseconds
    failures: int
    error: str
    seen_at: Microseconds
    """By the clock of that place, microseconds since the epoch, UTC. The other fields are those of `BreakerState`."""


BreakerEvent: TypeAlias = (
    BreakerConfigured
    | FailureCounted
    | FailuresCleared
    | CircuitOpened
    | ProbeBegun
    | ProbeReleased
    | CircuitClosed
    | SharedStateSeen
)
"""Any event of a breaker's stream."""

# Commands


class ConfigureBreaker(KeyedCommand, frozen=True, kw_only=True):
    """Take these settings; nothing is recorded where nothing differs."""

    threshold: int
    recovery_us: int
    probe_us: int


class BeginProbe(KeyedCommand, frozen=True, kw_only=True):
    """Let a call through as a probe; see `asked`."""

    generation: int
    probe: int
    decided_at: int


class EndCall(KeyedCommand, frozen=True, kw_only=True):
    """Take note of how a call ended that was let through."""

    permit: "Permit"
    end: CallEnd
    error: str = ""
    """What it said, where it failed."""
    ended_at: int
    """Microseconds since the epoch, UTC."""


class TakeUp(KeyedCommand, frozen=True, kw_only=True):
    """Go on with what happened before the breaker had a log, where the log does not know worse."""

    failures: int
    error: str
    opened_at: int
    """When the circuit opened, microseconds since the epoch, UTC; 0 = it was closed."""


class NoteSharedState(KeyedCommand, frozen=True, kw_only=True):
    """Take note of what was seen, where it is news."""

    seen: SharedStateSeen


BreakerCommand: TypeAlias = ConfigureBreaker | BeginProbe | EndCall | TakeUp | NoteSharedState
"""Anything that a breaker can be told; what changes nothing is not recorded."""


class Permit(msgspec.Struct, frozen=True):
    """A call that was let through."""

    generation: int
    """The cycle in which it was; when another one has begun, its end means nothing any more."""
    probe: int = 0
    """Its number as a probe; 0 = the circuit was closed."""


class BreakerState(State):
    """All that a breaker's events add up to."""

    threshold: int = 5
    """Failures in a row that open it, >= 1."""
    recovery_us: int = 30 * SECOND_US
    """How long it stays open before a probe is let through, microseconds."""
    probe_us: int = 60 * SECOND_US
    """How long a probe keeps its slot, microseconds."""
    phase: BreakerPhase = "closed"
    generation: int = 0
    """Number of the cycle: it grows whenever the circuit opens or closes."""
    probe: int = 0
    """Number of the last probe of this cycle; 0 = there was none."""
    probe_since: int | None = None
    """When the probe began that has the slot, microseconds since the epoch, UTC; None = the slot is free."""
    opened_at: int = 0
    """When it opened last, microseconds since the epoch, UTC; 0 = never."""
    opened: int = 0
    """Version of the event that opened it last; 0 = none did."""
    closed_at: int = 0
    """When it closed last, microseconds since the epoch, UTC; 0 = it has been closed from the beginning."""
    failures: int = 0
    """How many calls have failed in a row: since it closed, or those that opened it."""
    error: str = ""
    """What the last one that failed said."""
    seen_at: int = 0
    """When the shared state was seen last, microseconds since the epoch, UTC; 0 = never."""


SHARED_FIELDS = ("phase", "generation", "probe", "probe_since", "opened_at", "closed_at", "failures", "error")
"""What a state has in common with what is seen of one that processes share."""


class BreakerCore(PureCore[BreakerState, BreakerCommand, BreakerEvent]):
    """The pure functions of a breaker."""

    fold_version = FOLD_VERSION

    def admit(self, state: BreakerState, command: BreakerCommand) -> BreakerEvent | Recorded:
        match command:
            case ConfigureBreaker(threshold=threshold, recovery_us=recovery_us, probe_us=probe_us):
                if (threshold, recovery_us, probe_us) == (state.threshold, state.recovery_us, state.probe_us):
                    return Recorded(0)
                return BreakerConfigured(threshold=threshold, recovery_us=recovery_us, probe_us=probe_us)
            case BeginProbe(generation=generation, probe=probe, decided_at=decided_at):
                if state.phase == "closed" or (generation, probe) <= (state.generation, state.probe):
                    return Recorded(0)
                return ProbeBegun(generation=generation, probe=probe, decided_at=decided_at)
            case EndCall():
                return _ended(state, command) or Recorded(0)
            case TakeUp(failures=failures, error=error, opened_at=opened_at):
                if state.phase != "closed" or not (opened_at or failures > state.failures):
                    return Recorded(0)
                if not opened_at:
                    return FailureCounted(failures=failures, error=error)
                generation = state.generation + 1
                return CircuitOpened(generation=generation, failures=failures, error=error, decided_at=opened_at)
            case NoteSharedState(seen=seen):
                is_news = any(getattr(state, field) != getattr(seen, field) for field in SHARED_FIELDS)
                return seen if is_news and not _is_late(state, seen) else Recorded(0)
            case _:
                assert_never(command)

    def evolve(self, state: BreakerState, event: BreakerEvent) -> BreakerState:
        match event:
            case BreakerConfigured(threshold=threshold, recovery_us=recovery_us, probe_us=probe_us):
                state.threshold, state.recovery_us, state.probe_us = threshold, recovery_us, probe_us
            case FailureCounted(failures=failures, error=error):
                state.failures, state.error = failures, error
            case FailuresCleared():
                state.failures = 0
            case CircuitOpened(generation=generation, failures=failures, error=error, decided_at=decided_at):
                state.phase, state.generation, state.probe, state.probe_since = "open", generation, 0, None
                state.failures, state.error, state.opened_at = failures, error, decided_at
                state.opened = state.version
            case ProbeBegun(generation=generation, probe=probe, decided_at=decided_at):
                state.phase, state.generation, state.probe = "half_open", generation, probe
                state.probe_since = decided_at
            case ProbeReleased():
                state.probe_since = None
            case CircuitClosed(generation=generation, decided_at=decided_at):
                state.phase, state.generation, state.probe, state.probe_since = "closed", generation, 0, None
                state.failures, state.closed_at = 0, decided_at
            case SharedStateSeen():
                if event.phase != "closed" and (state.phase == "closed" or event.opened_at != state.opened_at):
                    state.opened = state.version
                for field in SHARED_FIELDS:
                    setattr(state, field, getattr(event, field))
                state.seen_at = event.seen_at
            case _:
                assert_never(event)
        return state


BREAKER_CORE: CheckedCore[BreakerState, BreakerCommand, BreakerEvent] = CheckedCore(BreakerCore)

# The rules


def asked(state: BreakerState, service: str, now: int, *, stream: StreamName | None = None) -> BeginProbe | None:
    """Return what is to be recorded so that a call may be made at `now`; None = it may, and there is nothing.

    An open circuit lets the first call through as a probe once `recovery_us` has passed since it opened; while a probe
    has the slot, at most `probe_us` since it began, none follows. (Time that was set back counts as time passed, by
    however much it was set back, so that no circuit stays open for the rest of a day.)

    Raises:
        CircuitOpen: it may not.
    """
    if state.phase == "closed":
        return None
    left = state.recovery_us - abs(now - state.opened_at) if state.phase == "open" else 0
    if state.probe_since is not None:
        left = state.probe_us - abs(now - state.probe_since)
    if left > 0:
        opened = event_ref(stream, state.opened) if stream is not None and state.opened else None
        raise CircuitOpen(service, retry_after_s=left / SECOND_US, opened=opened)
    return BeginProbe(generation=state.generation, probe=state.probe + 1, decided_at=now)


def permit_of(state: BreakerState, probe: BeginProbe | None) -> Permit:
    return Permit(state.generation) if probe is None else Permit(probe.generation, probe.probe)


def _ended(state: BreakerState, command: EndCall) -> BreakerEvent | None:
    """Return what follows from the end of a call; None = nothing.

    The last of `threshold` failures in a row opens the circuit, and so does that of a probe, whose success closes it.
    A call that was cancelled, or whose process died, says nothing: a probe gives up its slot.
    """
    permit, now = command.permit, command.ended_at
    if (permit.generation, permit.probe) != (state.generation, state.probe):
        return None
    match command.end:
        case "neither":
            if state.probe_since is None:
                return None
            return ProbeReleased(generation=permit.generation, probe=permit.probe)
        case "succeeded":
            if permit.probe:
                return CircuitClosed(generation=state.generation + 1, decided_at=now)
            return FailuresCleared() if state.failures else None
        case "failed":
            failures = state.failures + 1
            if not (permit.probe or failures >= state.threshold):
                return FailureCounted(failures=failures, error=command.error)
            generation = state.generation + 1
            return CircuitOpened(generation=generation, failures=failures, error=command.error, decided_at=now)
        case _:
            assert_never(command.end)


def _is_late(state: BreakerState, seen: SharedStateSeen) -> bool:
    if seen.seen_at == state.seen_at:
        return (seen.generation, seen.probe) < (state.generation, state.probe)
    return state.seen_at - LATE_US < seen.seen_at < state.seen_at
