"""What a circuit breaker is to do, said once more and more simply, and the machine that compares the two."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from hypothesis.strategies import integers, sampled_from

from refold import CircuitOpen
from refold.actors import ManualClock
from refold.events.core.pure_core import Recorded, evolve_all, plan
from refold.events.kinds import breaker
from refold.resilience import BreakerBackend
from refold.resilience.breaker import BreakerSettings

SETTINGS = BreakerSettings(threshold=2, recovery_us=10_000_000, probe_us=4_000_000)


class Model:
    """A breaker as one would explain it. A call is (cycle, probe), as is who holds the slot."""

    def __init__(self) -> None:
        self.now = 0
        self.cycle = 0
        self.in_a_row = 0
        self.opened: int | None = None
        self.probes = 0
        self.slot: int | None = None
        self.half_open = False

    def begin(self) -> tuple[int, int] | None:
        if self.opened is None:
            return (self.cycle, 0)
        if not self.half_open and self.now < self.opened + 10:
            return None
        if self.slot is not None and self.now < self.slot + 4:
            return None
        self.half_open, self.slot = True, self.now
        self.probes += 1
        return (self.cycle, self.probes)

    def end(self, call: tuple[int, int], end: breaker.CallEnd) -> None:
        if call != (self.cycle, self.probes):
            return
        is_probe = self.opened is not None
        if end == "neither":
            self.slot = None
        elif end == "succeeded":
            self.in_a_row = 0
            if is_probe:
                self._turn(None)
        else:
            self.in_a_row += 1
            if is_probe or self.in_a_row >= 2:
                self._turn(self.now)

    def _turn(self, opened: int | None) -> None:
        self.cycle += 1
        self.opened, self.half_open, self.slot, self.probes = opened, False, None, 0

    @property
    def phase(self) -> str:
        return "closed" if self.opened is None else "half_open" if self.half_open else "open"


class Compared:
    """A backend beside the model; every step is done to both, and what can be seen must agree."""

    def __init__(self, backend: BreakerBackend, clock: ManualClock, name: str) -> None:
        self.backend = backend
        self.clock = clock
        self.name = name
        self.model = Model()
        self.calls: list[tuple[breaker.Permit, tuple[int, int]]] = []

    def begin(self) -> None:
        expected = self.model.begin()
        if expected is None:
            with pytest.raises(CircuitOpen) as refused:
                self.backend.begin(self.name, SETTINGS, self.clock.now_us())
            left_s = refused.value.retry_after_s
            assert refused.value.service == self.name
            assert left_s is not None
            assert 0 < left_s <= 10
        else:
            permit = self.backend.begin(self.name, SETTINGS, self.clock.now_us())
            assert permit is not None
            assert expected == (permit.generation, permit.probe)
            self.calls.append((permit, expected))
        self.agree()

    def end(self, place: int, end: breaker.CallEnd) -> None:
        """End a call, which stays there: it may be said to have ended twice."""
        if self.calls:
            permit, call = self.calls[place % len(self.calls)]
            self.backend.settle(self.name, SETTINGS, permit, end, "no", self.clock.now_us())
            self.model.end(call, end)
        self.agree()

    def wait(self, seconds: int) -> None:
        self.clock.jump(seconds)
        self.model.now += seconds
        self.agree()

    def agree(self) -> None:
        known = self.backend.known(self.name, SETTINGS)
        assert (known.phase, known.generation) == (self.model.phase, self.model.cycle)
        assert known.failures == self.model.in_a_row
        assert (known.probe_since is None) == (self.model.slot is None)


STEPS: dict[str, Callable[[Compared], None]] = {
    "begin": lambda it: it.begin(),
    "last succeeds": lambda it: it.end(-1, "succeeded"),
    "last fails": lambda it: it.end(-1, "failed"),
    "last is cancelled": lambda it: it.end(-1, "neither"),
    "first fails": lambda it: it.end(0, "failed"),
    "first succeeds": lambda it: it.end(0, "succeeded"),
    "wait": lambda it: it.wait(10),
    "wait for the slot": lambda it: it.wait(4),
}
OPENED = ("begin", "last fails", "begin", "last fails")
PROBING = (*OPENED, "wait", "begin")


def lives(prefix: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    """Return all lives that begin so and have so many steps more."""
    return ((*prefix, *rest) for rest in itertools.product(STEPS, repeat=length))


def play_any_life(start: Callable[[], Compared], holds: Callable[[Compared], None] | None = None, **more: Any) -> None:
    """Let hypothesis lead lives of breakers beside the model; after each step it must hold."""

    class Machine(RuleBasedStateMachine):
        compared: Compared

        @initialize()
        def start(self) -> None:
            self.compared = start()

        @rule()
        def begin(self) -> None:
            self.compared.begin()

        @rule(place=integers(-3, -1), end=sampled_from(get_args(breaker.CallEnd)))
        def end(self, place: int, end: breaker.CallEnd) -> None:
            self.compared.end(place, end)

        @rule(seconds=sampled_from([1, 3, 4, 9, 10]))
        def wait(self, seconds: int) -> None:
            self.compared.wait(seconds)

        @invariant()
        def holds(self) -> None:
            if holds is not None:
                holds(self.compared)

    run_state_machine_as_test(Machine, settings=settings(**more))


class OfCore:
    """The core as a backend, and the events that it has decided."""

    blocking = False

    def __init__(self, settings: BreakerSettings = SETTINGS) -> None:
        self.settings = settings
        self.state = settings.begin()
        self.events: list[breaker.BreakerEvent] = []

    def perform(self, command: breaker.BreakerCommand, now_us: int) -> None:
        planned = plan(breaker.BREAKER_CORE, self.state, command, now_us)
        if not isinstance(planned, Recorded):
            self.state = planned.state
            self.events += planned.events

    def begin(self, name: str, settings: BreakerSettings, now_us: int) -> breaker.Permit:
        probe = breaker.asked(self.state, name, now_us)
        permit = breaker.permit_of(self.state, probe)
        if probe is not None:
            self.perform(probe, now_us)
        return permit

    def settle(
        self,
        name: str,
        settings: BreakerSettings,
        permit: breaker.Permit,
        end: breaker.CallEnd,
        error: str,
        now_us: int,
    ) -> None:
        self.perform(breaker.EndCall(permit=permit, end=end, error=error, ended_at=now_us), now_us)

    def known(self, name: str, settings: BreakerSettings) -> breaker.BreakerState:
        return self.state


class InMemory(Compared):
    """The core beside the model."""

    def __init__(self) -> None:
        self.core = OfCore()
        super().__init__(self.core, ManualClock(), "b")


def assert_folds_to_the_live_state(compared: Compared) -> None:
    assert isinstance(compared, InMemory)
    folded = evolve_all(breaker.BREAKER_CORE, compared.core.events, SETTINGS.begin())
    assert folded == compared.core.state
