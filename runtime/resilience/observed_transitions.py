"""Transitions of a breaker whose state others change too: what this process learns of them, for its log.

Whoever shares a breaker sees its state whenever it asks or tells something. What the log has of it and what is seen
differ by transitions, of which the last ones are known: when it opened and why, which probe has the slot, when it
closed. The rules: what is seen late is left out if something newer is known already; and a shared state that begins
anew, since the server was emptied, begins a new cycle on the log.
"""

import threading
from collections.abc import Callable

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
    ReleaseProbe,
)

LATE_US = 60 * SECOND_US
"""What was seen so long before something else is not late: the clock was set back."""


class LearnedTransitions:
    """What one process learns about one breaker.

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
            at: when it was so, by the clock of whoever keeps it, microseconds since the epoch, UTC.
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
