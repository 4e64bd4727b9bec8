"""What a breaker is set to, and what it asks where another place than this process keeps its state.

Read `refold.events.kinds.breaker` first, whose rules hold for each backend; `refold.resilience.redis_breaker` is one. A
call asks before it begins and tells how it ended.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import msgspec

from refold.events.kinds.breaker import BreakerState, CallEnd, Permit


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

    def known(self, name: str, settings: BreakerSettings) -> BreakerState:
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
