"""What tokens cost, and when a budget is spent."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.errors import ConfigError
from refold.events.model.configuration import AgentConfig
from refold.events.model.spending import Budget, Price, Usage, cost_of, overspent, price_of, total_tokens

SONNET = Price(input=3, output=15, cache_read=0.3, cache_creation=3.75)

counts = st.integers(0, 10**9)
usages = st.builds(
    Usage, input_tokens=counts, output_tokens=counts, cache_read_tokens=counts, cache_creation_tokens=counts
)


def test_a_worked_example() -> None:
    usage = Usage(input_tokens=1_000, output_tokens=200, cache_read_tokens=10_000, cache_creation_tokens=2_000)
    assert cost_of(usage, SONNET) == pytest.approx(0.003 + 0.003 + 0.003 + 0.0075)
    assert cost_of(usage, Price(input=3, output=15)) == pytest.approx(0.039 + 0.003)
    assert cost_of(usage, None) == 0
    assert total_tokens(usage) == 13_200


@given(usages, usages)
def test_costs_add_up_and_more_tokens_never_cost_less(one: Usage, other: Usage) -> None:
    both = cost_of(one + other, SONNET)
    assert both == pytest.approx(cost_of(one, SONNET) + cost_of(other, SONNET))
    assert both >= max(cost_of(one, SONNET), cost_of(other, SONNET))


def test_a_price_is_that_of_the_name_or_of_the_longest_name_it_begins_with() -> None:
    prices = {"claude": SONNET, "claude-opus": Price(input=15, output=75), "gpt": Price(input=1, output=2)}
    assert price_of("claude", prices) is SONNET
    assert price_of("claude-opus-4-6", prices) is prices["claude-opus"]
    assert price_of("claude-sonnet", prices) is SONNET
    assert price_of("llama", prices) is None
    assert price_of("claude", {}) is None


@pytest.mark.parametrize(
    ("budget", "spent"),
    [
        (None, None),
        (Budget(), None),
        (Budget(tokens=1_001), None),
        (Budget(tokens=1_000), "The budget of 1,000 tokens is spent: the run has used 1,000."),
        (Budget(cost=0.011), None),
        (Budget(cost=0.01), "The budget of 0.01 for model calls is spent: the run has cost 0.01."),
        (Budget(tool_calls=3), None),
        (Budget(tool_calls=2), "The budget of 2 tool calls is spent: the model has asked for 3."),
    ],
)
def test_a_budget_is_spent_when_its_limit_is_reached(budget: Budget | None, spent: str | None) -> None:
    assert overspent(budget, Usage(input_tokens=600, output_tokens=400), 0.01, 3) == spent


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "1"])
@pytest.mark.parametrize("field", ["tokens", "cost", "tool_calls"])
def test_a_limit_that_cannot_be_one_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Budget\.{field} must be"):
        Budget(**{field: value})


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "1", None])
@pytest.mark.parametrize("field", ["input", "output"])
def test_a_price_that_cannot_be_one_is_refused(field: str, value: Any) -> None:
    fields: dict[str, Any] = {"input": 1, "output": 1, field: value}
    with pytest.raises(ConfigError, match=rf"Price\.{field} must be"):
        Price(**fields)


def test_a_budget_for_cost_needs_a_price() -> None:
    with pytest.raises(ConfigError, match="prices has none for 'gpt'"):
        AgentConfig(model="gpt", budget=Budget(cost=1), prices={"claude": SONNET})
    AgentConfig(model="claude-4", budget=Budget(cost=1), prices={"claude": SONNET})
