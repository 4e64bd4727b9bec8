"""Where a breaker's state is kept: what a `CircuitBreaker` asks of it, and the one in this process's memory.

Read `refold.events.kinds.breaker` first, whose rules hold for each of them. `refold.resilience.redis_breaker` keeps the
state of several processes. A call asks before it begins and tells how it ended; neither waits for a log.
"""

import threading
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from refold.events.core.pure_core import Recorded, plan
from refold.events.kinds.breaker import (
    BREAKER_CORE,
    BreakerCommand,
    BreakerState,
    OpenCircuit,
    Ticket,
    asked,
    failed,
    is_current,
    released,
    succeeded,
)

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
        """Return the state before the first call."""
        return BreakerState(threshold=self.threshold, recovery_us=self.recovery_us, probe_us=self.probe_us)


class KnownState(msgspec.Struct, frozen=True):
    """A breaker's state, and how many calls have failed in a row since it closed, which is not part of it."""

    state: BreakerState
    failures: int


class BreakerBackend(Protocol):
    """Keeps the states of breakers, by name. Any thread may use it."""

    blocking: bool
    """Whether it waits for somebody outside, so that it must not be used on an event loop's own thread."""

    def begin(self, name: str, settings: BreakerSettings, now_us: int) -> Ticket | None:
        """Let a call through; None = it is let through, and nothing is to be told of its end.

        Raises:
            CircuitOpen: it may not be made.
        """
        ...

    def settle(
        self, name: str, settings: BreakerSettings, ticket: Ticket, end: CallEnd, error: str, now_us: int
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
            seen: must return at once; the time is that of whoever keeps the state, microseconds since the epoch, UTC.
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

    def begin(self, name: str, settings: BreakerSettings, now_us: int) -> Ticket:
        """Let a call through."""
        with self._lock:
            self._decide(asked(self.state, name, now_us), now_us)
            return Ticket(self.state.generation, self.state.probe)

    def settle(
        self, name: str, settings: BreakerSettings, ticket: Ticket, end: CallEnd, error: str, now_us: int
    ) -> None:
        """Take note of how a call ended."""
        with self._lock:
            if not is_current(self.state, ticket):
                return
            if end == "neither":
                self._decide(released(self.state, ticket), now_us)
            elif end == "succeeded":
                self.failures = 0
                self._decide(succeeded(self.state, ticket, now_us), now_us)
            else:
                self.failures = (self.state.failures if ticket.probe else self.failures) + 1
                self._decide(failed(self.state, ticket, self.failures, error, now_us), now_us)

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
        """Do what was decided, and have it recorded."""
        if command is None:
            return
        planned = plan(BREAKER_CORE, self.state, command, now_us)
        assert not isinstance(planned, Recorded), f"{command} is not newer than {self.state}"
        self.state = planned.state
        if self.state.phase != "half_open":
            self.failures = 0 if self.state.phase == "closed" else self.state.failures
        self._record(command)
