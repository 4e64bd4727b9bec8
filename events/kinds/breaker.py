"""A circuit breaker's four functions, and the rules by which it lets calls through.

    closed ──`threshold` failures in a row──> open ──`recovery_us` later──> half open: one probe at a time
      ^                                         ^                                │
      └──────────── the probe succeeds ─────────┼────────────────────────────────┤
                                                └──────── the probe fails ───────┘

The state machine is that of M. Nygard, "Release It!" (2007), "Circuit Breaker". Read `asked` first, which says what a
call may do, then `succeeded`, `failed` and `released`, which say what its end means. The rules: a call that began in an
older cycle (see `Permit.generation`) changes nothing any more; one probe is under way at a time, and one that does not
end in `probe_us` gives up its slot.

Who asks cannot wait for a disk, so a breaker decides on a state in memory, by these functions, and has each transition
recorded behind it. That is why a transition says when it was decided, and why the log takes any that is newer than what
it has: one that was lost, because the disk was full, leaves no gap that matters. A call of a closed circuit is no
transition: it is not in the log, and neither is how many have failed in a row so far.
"""

from typing import Literal, TypeAlias, assert_never

import msgspec

from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import CircuitOpen
from refold.events.core.event import SECOND_US
from refold.events.core.pure_core import KeyedCommand, KeyedEvent, PureCore, Recorded, State
from refold.events.model.configuration import FOLD_VERSION

BREAKER_KIND = "breaker"
"""Kind of a breaker's address and stream."""

BreakerPhase: TypeAlias = Literal["closed", "open", "half_open"]

# Events


class BreakerConfigured(KeyedEvent, frozen=True, kw_only=True, tag="breaker.configured.v1"):
    """From here on these are the breaker's settings."""

    threshold: int
    recovery_us: int
    probe_us: int


class CircuitOpened(KeyedEvent, frozen=True, kw_only=True, tag="breaker.opened.v1"):
    """Too many calls failed in a row, or a probe did; no call is let through."""

    generation: int
    """Of the cycle that begins."""
    failures: int
    """How many had failed in a row."""
    error: str
    """What the last one said."""
    decided_at: int
    """Microseconds since the epoch, UTC; the event's own time is that of its recording."""


class ProbeBegun(KeyedEvent, frozen=True, kw_only=True, tag="breaker.probe_begun.v1"):
    """The circuit is half open: one call is let through."""

    generation: int
    probe: int
    """Number of the probe in its cycle, from 1."""
    decided_at: int
    """Microseconds since the epoch, UTC."""


class ProbeReleased(KeyedEvent, frozen=True, kw_only=True, tag="breaker.probe_released.v1"):
    """A probe was cancelled, which says nothing about the service; the next call may be one."""

    generation: int
    probe: int


class CircuitClosed(KeyedEvent, frozen=True, kw_only=True, tag="breaker.closed.v1"):
    """A probe succeeded; every call is let through."""

    generation: int
    """Of the cycle that begins."""
    decided_at: int
    """Microseconds since the epoch, UTC."""


BreakerEvent: TypeAlias = BreakerConfigured | CircuitOpened | ProbeBegun | ProbeReleased | CircuitClosed
"""Any event of a breaker's stream."""

# Commands: a decision that was made, to be recorded.


class ConfigureBreaker(KeyedCommand, frozen=True, kw_only=True):
    """Take these settings; nothing is recorded where nothing differs."""

    threshold: int
    recovery_us: int
    probe_us: int


class OpenCircuit(KeyedCommand, frozen=True, kw_only=True):
    """See `CircuitOpened`."""

    generation: int
    failures: int
    error: str
    decided_at: int


class BeginProbe(KeyedCommand, frozen=True, kw_only=True):
    """See `ProbeBegun`."""

    generation: int
    probe: int
    decided_at: int


class ReleaseProbe(KeyedCommand, frozen=True, kw_only=True):
    """See `ProbeReleased`."""

    generation: int
    probe: int


class CloseCircuit(KeyedCommand, frozen=True, kw_only=True):
    """See `CircuitClosed`."""

    generation: int
    decided_at: int


BreakerCommand: TypeAlias = ConfigureBreaker | OpenCircuit | BeginProbe | ReleaseProbe | CloseCircuit
"""Anything that a breaker's stream can be told; what is older than its state is ignored."""


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
    closed_at: int = 0
    """When it closed last, microseconds since the epoch, UTC; 0 = it has been closed from the beginning."""
    failures: int = 0
    """How many calls had failed in a row when it opened last."""
    error: str = ""
    """What the last one of them said."""


class BreakerCore(PureCore[BreakerState, BreakerCommand, BreakerEvent]):
    """The pure functions of a breaker."""

    fold_version = FOLD_VERSION

    def admit(self, state: BreakerState, command: BreakerCommand) -> BreakerEvent | Recorded:
        match command:
            case ConfigureBreaker(threshold=threshold, recovery_us=recovery_us, probe_us=probe_us):
                if (threshold, recovery_us, probe_us) == (state.threshold, state.recovery_us, state.probe_us):
                    return Recorded(0)
                return BreakerConfigured(threshold=threshold, recovery_us=recovery_us, probe_us=probe_us)
            case OpenCircuit(generation=generation, failures=failures, error=error, decided_at=decided_at):
                if generation <= state.generation:
                    return Recorded(0)
                return CircuitOpened(generation=generation, failures=failures, error=error, decided_at=decided_at)
            case BeginProbe(generation=generation, probe=probe, decided_at=decided_at):
                if (generation, probe) <= (state.generation, state.probe):
                    return Recorded(0)
                return ProbeBegun(generation=generation, probe=probe, decided_at=decided_at)
            case ReleaseProbe(generation=generation, probe=probe):
                if (generation, probe) != (state.generation, state.probe) or state.probe_since is None:
                    return Recorded(0)
                return ProbeReleased(generation=generation, probe=probe)
            case CloseCircuit(generation=generation, decided_at=decided_at):
                if generation <= state.generation:
                    return Recorded(0)
                return CircuitClosed(generation=generation, decided_at=decided_at)
            case _:
                assert_never(command)

    def evolve(self, state: BreakerState, event: BreakerEvent) -> BreakerState:
        match event:
            case BreakerConfigured(threshold=threshold, recovery_us=recovery_us, probe_us=probe_us):
                state.threshold, state.recovery_us, state.probe_us = threshold, recovery_us, probe_us
            case CircuitOpened(generation=generation, failures=failures, error=error, decided_at=decided_at):
                state.phase, state.generation, state.probe, state.probe_since = "open", generation, 0, None
                state.failures, state.error, state.opened_at = failures, error, decided_at
            case ProbeBegun(generation=generation, probe=probe, decided_at=decided_at):
                state.phase, state.generation, state.probe, state.probe_since = (
                    "half_open",
                    generation,
                    probe,
                    decided_at,
                )
            case ProbeReleased():
                state.probe_since = None
            case CircuitClosed(generation=generation, decided_at=decided_at):
                state.phase, state.generation, state.probe, state.probe_since = "closed", generation, 0, None
                state.closed_at = decided_at
            case _:
                assert_never(event)
        return state


BREAKER_CORE: CheckedCore[BreakerState, BreakerCommand, BreakerEvent] = CheckedCore(BreakerCore)

# The rules


class Permit(msgspec.Struct, frozen=True):
    """A call that was let through."""

    generation: int
    """The cycle in which it was; when another one has begun, its end means nothing any more."""
    probe: int = 0
    """Its number as a probe; 0 = the circuit was closed."""


def asked(state: BreakerState, service: str, now: int) -> BeginProbe | None:
    """Return what is to be recorded so that a call may be made at `now`; None = it may, and there is nothing.

    An open circuit lets the first call through as a probe once `recovery_us` has passed since it opened; while a probe
    has the slot, at most `probe_us` since it began, none follows. (Time that was set back counts as time passed, by
    however much it was set back, so that no circuit stays open for the rest of a day.)

    Args:
        state: as it is now.
        service: the breaker's name, for the error.
        now: microseconds since the epoch, UTC.

    Raises:
        CircuitOpen: it may not.
    """
    if state.phase == "closed":
        return None
    left = state.recovery_us - abs(now - state.opened_at) if state.phase == "open" else 0
    if state.probe_since is not None:
        left = state.probe_us - abs(now - state.probe_since)
    if left > 0:
        raise CircuitOpen(service, retry_after_s=left / SECOND_US)
    return BeginProbe(generation=state.generation, probe=state.probe + 1, decided_at=now)


def is_current(state: BreakerState, permit: Permit) -> bool:
    """Tell whether the end of a call still means something: no other cycle, and no other probe, has begun since."""
    return (permit.generation, permit.probe) == (state.generation, state.probe)


def succeeded(state: BreakerState, permit: Permit, now: int) -> CloseCircuit | None:
    """Return what follows from a call that succeeded: that of a probe closes the circuit."""
    if not permit.probe or not is_current(state, permit):
        return None
    return CloseCircuit(generation=state.generation + 1, decided_at=now)


def failed(state: BreakerState, permit: Permit, failures: int, error: str, now: int) -> OpenCircuit | None:
    """Return what follows from a call that failed: the last of `threshold` in a row opens it, and so does a probe.

    Args:
        state: as it is now.
        permit: of the call.
        failures: how many have failed in a row, this one included.
        error: what it said.
        now: microseconds since the epoch, UTC.
    """
    if not is_current(state, permit) or not (permit.probe or failures >= state.threshold):
        return None
    return OpenCircuit(generation=state.generation + 1, failures=failures, error=error, decided_at=now)


def released(state: BreakerState, permit: Permit) -> ReleaseProbe | None:
    """Return what follows from a call that was cancelled, which says nothing: a probe gives up its slot."""
    if not permit.probe or not is_current(state, permit) or state.probe_since is None:
        return None
    return ReleaseProbe(generation=permit.generation, probe=permit.probe)
