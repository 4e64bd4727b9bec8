"""The breaker's rules: against a simpler model, over all short lives, and by worked examples."""

import itertools
from collections.abc import Iterable
from typing import get_args

import pytest

from refold import CircuitOpen
from refold.events.core.ids import StreamName
from refold.events.kinds import breaker
from refold.scenarios.core_exploration import explore_core
from tests.resilience.breaker_model import (
    OPENED,
    PROBING,
    SETTINGS,
    STEPS,
    InMemory,
    OfCore,
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


def test_in_every_order_of_commands_the_state_is_one_that_can_be() -> None:
    def commands(state: breaker.BreakerState) -> Iterable[breaker.BreakerCommand]:
        for permit in (
            breaker.Permit(state.generation, state.probe),
            breaker.Permit(state.generation),
            breaker.Permit(state.generation + 1),
        ):
            yield from (
                breaker.EndCall(permit=permit, end=end, error="no", ended_at=1) for end in get_args(breaker.CallEnd)
            )
        yield breaker.BeginProbe(generation=state.generation, probe=state.probe + 1, decided_at=1)
        yield breaker.TakeUp(failures=1, error="no", opened_at=0)
        yield breaker.TakeUp(failures=2, error="no", opened_at=1)
        yield breaker.ConfigureBreaker(threshold=3, recovery_us=1, probe_us=1)

    def holds(state: breaker.BreakerState) -> None:
        assert (state.probe > 0) == (state.phase == "half_open")
        assert state.probe_since is None or state.phase == "half_open"
        assert (state.opened > 0) == (state.opened_at > 0)
        assert state.failures < 5 or state.phase != "closed"

    found = explore_core(breaker.BreakerCore, commands, holds=holds, commands_max=4)
    assert found.counterexample is None, found.counterexample
    assert found.states > 50


@pytest.mark.parametrize(("now", "left_s"), [(0, 10), (3_000_000, 7), (9_999_999, 0.000001), (-4_000_000, 6)])
def test_an_open_circuit_says_when_it_may_be_tried(now: int, left_s: float) -> None:
    state = SETTINGS.begin()
    state.phase, state.generation, state.opened_at, state.opened = "open", 1, 50_000_000, 3
    with pytest.raises(CircuitOpen, match="the circuit of 'b' is open after repeated failures; call again") as raised:
        breaker.asked(state, "b", 50_000_000 + now)
    assert raised.value.retry_after_s == pytest.approx(left_s)
    assert raised.value.opened is None
    with pytest.raises(CircuitOpen, match=r"failures, since breaker/b@3; call") as raised:
        breaker.asked(state, "b", 50_000_000 + now, stream=StreamName("breaker/b"))
    assert raised.value.opened == "breaker/b@3"
    assert breaker.asked(state, "b", 60_000_000) == breaker.BeginProbe(generation=1, probe=1, decided_at=60_000_000)


def test_a_clock_that_was_set_back_keeps_no_circuit_open_for_a_day() -> None:
    state = SETTINGS.begin()
    state.phase, state.generation, state.opened_at = "open", 1, 100_000_000_000
    assert breaker.asked(state, "b", 100_000_000_000 - 86_400_000_000) is not None


def seen(at: int, **fields: object) -> breaker.NoteSharedState:
    """Return what is told of a shared state that opened once, but for these fields."""
    state: dict[str, object] = {
        "phase": "open",
        "generation": 1,
        "probe": 0,
        "opened_at": 100_000_000,
        "closed_at": 0,
        "failures": 2,
        "error": "no route",
    }
    return breaker.NoteSharedState(seen=breaker.SharedStateSeen(seen_at=at, **{**state, **fields}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "phases"),
    [
        pytest.param([seen(1, phase="closed", generation=0, opened_at=0, failures=0, error="")], [], id="nothing new"),
        pytest.param([seen(101_000_000), seen(102_000_000)], ["open"], id="the same again"),
        pytest.param(
            [seen(101_000_000), seen(112_000_000, phase="closed", generation=2), seen(103_000_000)],
            ["open", "closed"],
            id="what comes late is not news",
        ),
        pytest.param(
            [seen(101_000_000, phase="half_open", probe=1), seen(101_000_000)],
            ["half_open"],
            id="of one moment the later cycle or probe counts",
        ),
        pytest.param(
            [seen(900_000_000), seen(101_000_000, phase="closed", generation=2)],
            ["open", "closed"],
            id="a clock that was set back is believed",
        ),
        pytest.param(
            [seen(101_000_000), seen(102_000_000, phase="closed", generation=0, failures=1)],
            ["open", "closed"],
            id="a server that was emptied begins anew",
        ),
    ],
)
def test_of_a_shared_state_what_is_news_is_recorded(told: list[breaker.NoteSharedState], phases: list[str]) -> None:
    core = OfCore()
    for command in told:
        core.perform(command, command.seen.seen_at)
    assert [event.phase for event in core.events if isinstance(event, breaker.SharedStateSeen)] == phases
    assert core.state.phase == (phases[-1] if phases else "closed")
    assert core.state.opened == (1 if phases else 0)
