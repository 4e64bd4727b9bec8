"""The breaker's rules: against a simpler model, over all short lives, and by worked examples."""

import itertools
from collections.abc import Iterable

import pytest

from refold import CircuitOpen
from refold.events.core.pure_core import Recorded, plan
from refold.events.kinds.breaker import (
    BREAKER_CORE,
    BeginProbe,
    BreakerCommand,
    BreakerCore,
    BreakerState,
    CloseCircuit,
    ConfigureBreaker,
    OpenCircuit,
    Permit,
    ReleaseProbe,
    asked,
    failed,
)
from refold.scenarios.core_exploration import explore_core
from tests.resilience.breaker_model import (
    OPENED,
    PROBING,
    SETTINGS,
    STEPS,
    InMemory,
    assert_folds_to_the_live_state,
    lives,
    play_any_life,
)


def test_any_life_is_as_the_simple_model_says() -> None:
    play_any_life(InMemory, assert_folds_to_the_live_state)


def test_all_short_lives_are_as_the_simple_model_says() -> None:
    for life in itertools.chain(lives((), 3), lives(OPENED, 3), lives(PROBING, 4)):
        compared = InMemory()
        for step in life:
            STEPS[step](compared)
        assert_folds_to_the_live_state(compared)


def test_in_every_order_of_transitions_the_log_takes_what_is_newer_and_nothing_else() -> None:
    def transitions(state: BreakerState) -> Iterable[BreakerCommand]:
        for generation in (state.generation, state.generation + 1, state.generation + 2):
            yield OpenCircuit(generation=generation, failures=2, error="no", decided_at=1)
            yield CloseCircuit(generation=generation, decided_at=1)
            yield BeginProbe(generation=generation, probe=1, decided_at=1)
            yield ReleaseProbe(generation=generation, probe=state.probe)
        yield ConfigureBreaker(threshold=1, recovery_us=1, probe_us=1)

    def holds(state: BreakerState) -> None:
        assert (state.probe > 0) == (state.phase == "half_open")
        assert state.probe_since is None or state.phase == "half_open"

    found = explore_core(BreakerCore, transitions, holds=holds, commands_max=4)
    assert found.counterexample is None, found.counterexample
    assert found.states > 50


def test_a_lost_transition_leaves_no_gap_that_matters() -> None:
    state = SETTINGS.begin()
    for command in (  # That the circuit closed after the first opening is lost.
        OpenCircuit(generation=1, failures=2, error="no", decided_at=1),
        OpenCircuit(generation=3, failures=2, error="again", decided_at=2),
        CloseCircuit(generation=2, decided_at=3),
    ):
        planned = plan(BREAKER_CORE, state, command, 5)
        if not isinstance(planned, Recorded):
            state = planned.state
    assert (state.phase, state.generation, state.error, state.version) == ("open", 3, "again", 2)


@pytest.mark.parametrize(("now", "left_s"), [(0, 10), (3_000_000, 7), (9_999_999, 0.000001), (-4_000_000, 6)])
def test_an_open_circuit_says_when_it_may_be_tried(now: int, left_s: float) -> None:
    state = SETTINGS.begin()
    state.phase, state.generation, state.opened_at = "open", 1, 50_000_000
    with pytest.raises(CircuitOpen, match="the circuit of 'b' is open") as raised:
        asked(state, "b", 50_000_000 + now)
    assert raised.value.retry_after_s == pytest.approx(left_s)
    assert asked(state, "b", 60_000_000) == BeginProbe(generation=1, probe=1, decided_at=60_000_000)


def test_a_clock_that_was_set_back_keeps_no_circuit_open_for_a_day() -> None:
    state = SETTINGS.begin()
    state.phase, state.generation, state.opened_at = "open", 1, 100_000_000_000
    assert asked(state, "b", 100_000_000_000 - 86_400_000_000) is not None


def test_the_threshold_is_that_of_failures_in_a_row() -> None:
    state = SETTINGS.begin()
    assert failed(state, Permit(0), 1, "no", 7) is None
    assert failed(state, Permit(0), 2, "no", 7) == OpenCircuit(generation=1, failures=2, error="no", decided_at=7)
    assert failed(state, Permit(1), 2, "no", 7) is None
