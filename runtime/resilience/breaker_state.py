"""Where a breaker's state is kept, and how this process's log follows a state that several processes share.

Read `refold.events.kinds.breaker` first, whose rules hold for each backend: `BreakerMemory` keeps the state of one
process, `refold.resilience.redis_breaker` that of several. A call asks before it begins and tells how it ended; neither
waits for a log.
"""

import threading
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from refold.events.core.event import SECOND_US
from refold.events.core.pure_core import Recorded, plan
from refold.events.kinds.breaker import (
    BREAKER_CORE,
    BeginProbe,
    BreakerCommand,
    BreakerState,
    CloseCircuit,
    OpenCircuit,
    Permit,
    ReleaseProbe,
    asked,
    failed,
    is_current,
    released,
    succeeded,
)

LATE_US = 60 * SECOND_US
"""What was seen so long before something else is not late: the clock was set back."""

CallEnd: TypeAlias = Literal["succeeded", "failed", "neither"]
"""What the end of a call says about the service; `neither` that of one that was cancelled."""


class BreakerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a breaker opens and closes."""

    threshold: int
    """Failures in a row that open it, >= 1."""
    recovery_us: int
    """How long it stays open before a probe is let through, microseconds."""
    probe_us: int
    """How long a probe keeps its slot, microseconds."""

    def begin(self) -> BreakerState:
        return BreakerState(threshold=self.threshold, recovery_us=self.recovery_us, probe_us=self.probe_us)


class KnownState(msgspec.Struct, frozen=True):
    """A breaker's state, and how many calls have failed in a row since it closed, which is not part of it."""

    state: BreakerState
    failures: int


class BreakerBackend(Protocol):
    """Keeps the states of breakers, by name. Any thread may use it."""

    blocking: bool
    """Whether it waits for another process, so that it must not be used on an event loop's own thread."""

    def begin(self, name: str, settings: BreakerSettings, now_us: int) -> Permit | None:
        """Let a call through; None = it is let through, and nothing is to be told of its end.

        Raises:
            CircuitOpen: it may not be made.
        """
        ...

    def settle(
        self, name: str, settings: BreakerSettings, permit: Permit, end: CallEnd, error: str, now_us: int
    ) -> None:
        """Take note of how a call ended."""
        ...

    def known(self, name: str, settings: BreakerSettings) -> KnownState:
        """Return what is known.

        Raises:
            PersistenceError: it cannot be had.
        """
        ...


@runtime_checkable
class SharedBreakerBackend(BreakerBackend, Protocol):
    """A backend whose states others change too, and which tells what it sees of them."""

    def listen(self, name: str, seen: Callable[[BreakerState, int], object]) -> None:
        """Have `seen` called, from any thread, with the state of a breaker and when it was so, whenever it is used.

        Args:
            seen: must return at once; the time is by the clock of the backend, microseconds since the epoch, UTC.
        """
        ...


class BreakerMemory:
    """The state of one breaker in this process.

    Args:
        record: is given each transition, in order; from any thread, and it must return at once.
    """

    blocking = False

    def __init__(self, settings: BreakerSettings, record: Callable[[BreakerCommand], object]) -> None:
        self.state = settings.begin()
        self.failures = 0
        """How many calls have failed in a row while the circuit was closed; lost with the process."""
        self._record = record
        self._lock = threading.Lock()

    def begin(self, name: str, settings: BreakerSettings, now_us: int) -> Permit:
        with self._lock:
            self._decide(asked(self.state, name, now_us), now_us)
            return Permit(self.state.generation, self.state.probe)

    def settle(
        self, name: str, settings: BreakerSettings, permit: Permit, end: CallEnd, error: str, now_us: int
    ) -> None:
        with self._lock:
            if not is_current(self.state, permit):
                return
            if end == "neither":
                self._decide(released(self.state, permit), now_us)
            elif end == "succeeded":
                self.failures = 0
                self._decide(succeeded(self.state, permit, now_us), now_us)
            else:
                self.failures = (self.state.failures if permit.probe else self.failures) + 1
                self._decide(failed(self.state, permit, self.failures, error, now_us), now_us)

    def known(self, name: str, settings: BreakerSettings) -> KnownState:
        with self._lock:
            return KnownState(msgspec.structs.replace(self.state), self.failures)

    def take_up(self, logged: BreakerState, now_us: int) -> None:
        """Go on from what a log says; where that is closed, and this is not, the circuit opens there as well."""
        with self._lock:
            own, self.state = self.state, logged
            if own.phase == "closed" or logged.phase != "closed":
                self.failures = self.failures if own.phase == logged.phase else 0
                return
            again = OpenCircuit(
                generation=logged.generation + 1, failures=own.failures, error=own.error, decided_at=own.opened_at
            )
            self._decide(again, now_us)

    def _decide(self, command: BreakerCommand | None, now_us: int) -> None:
        if command is None:
            return
        planned = plan(BREAKER_CORE, self.state, command, now_us)
        assert not isinstance(planned, Recorded), f"{command} is not newer than {self.state}"
        self.state = planned.state
        if self.state.phase != "half_open":
            self.failures = 0 if self.state.phase == "closed" else self.state.failures
        self._record(command)


class ObservedTransitions:
    """The transitions of one shared breaker that this process sees, for its log.

    A process sees the shared state whenever it asks or tells something. What the log has of it and what is seen differ
    by transitions, of which the last ones are known: when it opened and why, which probe has the slot, when it closed.
    What is seen late is left out if something newer is known already; and a shared state that begins anew, since the
    server was emptied, begins a new cycle on the log.

    Args:
        logged: what the log says, whose settings it keeps.
        record: is given each transition that the log lacks, in order; from any thread, and it must return at once.
    """

    def __init__(self, logged: BreakerState, record: Callable[[BreakerCommand], object]) -> None:
        self._state = msgspec.structs.replace(logged)
        self._record = record
        self._lock = threading.Lock()
        self._seen_at = 0
        self._earlier = 0
        """So many more cycles has the log than the shared state, which began anew."""

    def seen(self, shared: BreakerState, at: int) -> None:
        """Have recorded what the log lacks.

        Args:
            at: when it was so, by the clock of the backend, microseconds since the epoch, UTC.
        """
        with self._lock:
            if self._seen_at - LATE_US < at < self._seen_at:
                return
            behind = self._state.generation - (shared.generation + self._earlier)
            if behind > 0:
                if at == self._seen_at:
                    return
                self._earlier += behind + (0 if shared.phase == self._state.phase == "closed" else 1)
            self._seen_at = at
            for command in _lacking(self._state, shared, shared.generation + self._earlier):
                planned = plan(BREAKER_CORE, self._state, command, at)
                if not isinstance(planned, Recorded):
                    self._state = planned.state
                    self._record(command)


def _lacking(known: BreakerState, shared: BreakerState, generation: int) -> list[BreakerCommand]:
    """Return the transitions from one state to the other, as far as they are known.

    Args:
        generation: of the shared state, as the log counts.
    """
    lacking: list[BreakerCommand] = []
    if generation > known.generation:
        is_closed = shared.phase == "closed"
        opened = generation - 1 if is_closed else generation
        if shared.opened_at and opened > known.generation:
            lacking.append(
                OpenCircuit(
                    generation=opened, failures=shared.failures, error=shared.error, decided_at=shared.opened_at
                )
            )
        if is_closed:
            lacking.append(CloseCircuit(generation=generation, decided_at=shared.closed_at))
    same_cycle = generation == known.generation
    if shared.phase == "half_open" and shared.probe_since is not None:
        lacking.append(BeginProbe(generation=generation, probe=shared.probe, decided_at=shared.probe_since))
    elif shared.phase == "half_open" and same_cycle and shared.probe == known.probe and known.probe_since is not None:
        lacking.append(ReleaseProbe(generation=generation, probe=shared.probe))
    return lacking
