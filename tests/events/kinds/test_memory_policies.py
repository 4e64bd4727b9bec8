"""The formulas of forgetting and recalling, by worked examples and by what must hold of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import ConfigError, DecayPolicy, RecallPolicy
from refold.events.kinds.memory_policies import HOUR_US


@pytest.mark.parametrize(
    ("half_life", "age_h", "importance", "expected"),
    [(24, 0, 0.8, 0.8), (24, 24, 0.8, 0.4), (24, 48, 0.8, 0.2), (24, 12, 1.0, math.sqrt(0.5)), (0.5, 1, 1.0, 0.25)],
)
def test_half_of_an_importance_is_left_after_each_half_life(
    half_life: float, age_h: float, importance: float, expected: float
) -> None:
    decay = DecayPolicy.exponential(half_life_hours=half_life)
    assert decay.effective(importance, round(age_h * HOUR_US)) == pytest.approx(expected, rel=1e-15)


def test_without_decay_nothing_is_lost() -> None:
    assert DecayPolicy.none().effective(0.7, 10**18) == 0.7


def test_an_age_before_its_time_is_none() -> None:
    assert DecayPolicy.exponential(1).effective(0.7, -HOUR_US) == 0.7


def test_a_score_by_importance_is_the_effective_importance() -> None:
    assert RecallPolicy.importance().score(0.3, 5 * HOUR_US, 7) == 0.3


@pytest.mark.parametrize(
    ("effective", "idle_h", "recalls", "expected"),
    [
        (0.5, 0, 0, 0.5 + 2 * 1 + 4 * 0),
        (0.5, 1, 1, 0.5 + 2 * 0.995 + 4 * 0.5),
        (0.25, 100, 3, 0.25 + 2 * 0.995**100 + 4 * 0.75),
    ],
)
def test_a_hybrid_score_adds_recency_and_frequency_by_weight(
    effective: float, idle_h: int, recalls: int, expected: float
) -> None:
    policy = RecallPolicy.hybrid(recency_weight=2, frequency_weight=4)
    assert policy.score(effective, idle_h * HOUR_US, recalls) == pytest.approx(expected, rel=1e-15)


ages = st.integers(0, 10**15)
weights = st.floats(0, 100)


@given(st.floats(0, 1), ages, ages, st.floats(0.01, 10_000))
def test_what_is_left_never_grows_with_age(importance: float, age: int, more: int, half_life: float) -> None:
    decay = DecayPolicy.exponential(half_life)
    assert 0 <= decay.effective(importance, age + more) <= decay.effective(importance, age) <= importance


@given(st.floats(0, 1), ages, ages, st.integers(0, 10**6), weights, weights)
def test_a_score_never_grows_with_idle_time_and_never_falls_with_recalls(
    effective: float, idle: int, more: int, recalls: int, recency: float, frequency: float
) -> None:
    policy = RecallPolicy.hybrid(recency, frequency)
    score = policy.score(effective, idle, recalls)
    assert policy.score(effective, idle + more, recalls) <= score <= policy.score(effective, idle, recalls + 1)
    assert effective <= score <= effective + recency + frequency


@pytest.mark.parametrize("hours", [0, -1, math.nan, math.inf])
def test_a_half_life_must_be_above_0(hours: float) -> None:
    with pytest.raises(ConfigError, match="half_life_hours must be a number above 0"):
        DecayPolicy.exponential(hours)


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_weights_must_be_at_least_0(weight: float) -> None:
    with pytest.raises(ConfigError, match="recency_weight must be a number of at least 0"):
        RecallPolicy.hybrid(recency_weight=weight)
    with pytest.raises(ConfigError, match="frequency_weight must be a number of at least 0"):
        RecallPolicy.hybrid(frequency_weight=weight)
