"""What model calls take in tokens, what that costs, and how much a run may spend.

Prices are the application's: they change too often to be shipped. Cost is a plain number in the currency of the prices.
"""

from collections.abc import Mapping

import msgspec

from refold.events.core.cleaning import is_finite
from refold.events.core.errors import ConfigError, quoted

PER_TOKENS = 1_000_000
"""Prices are for so many tokens, as providers state them."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens that model calls were counted with."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_creation_tokens=self.cache_creation_tokens + other.cache_creation_tokens,
        )


class RunTotals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run added up to when it ended, as the code that recorded it counted.

    Nothing is decided from it: a replay compares it with what today's code counts.
    """

    turns: int = 0
    tool_calls: int = 0
    """That the model has asked for."""
    usage: Usage = Usage()
    cost: float = 0.0
    digest: str = ""
    """Of the run's messages, its final text, and what the session had used and queued: 16 hexadecimal digits."""


class Price(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model's tokens cost, per million, all in one currency.

    Raises:
        ConfigError: a price is not a number of at least 0.
    """

    input: float
    output: float
    cache_read: float | None = None
    """Input tokens that were read from the provider's cache; None = as `input`."""
    cache_creation: float | None = None
    """Input tokens that were written to the provider's cache; None = as `input`."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            price = getattr(self, field)
            if price is None and field.startswith("cache"):
                continue
            if not _is_amount(price):
                raise ConfigError(f"Price.{field} must be a number of at least 0, not {quoted(price)}")


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much one run may spend; once that is reached, it fails before its next model call or tool call.

    For seconds see `AgentConfig.run_timeout_s`, for model calls `AgentConfig.max_turns`.

    Raises:
        ConfigError: a limit is not a number above 0.
    """

    tokens: int | None = None
    """Of all kinds, as the provider counts them."""
    cost: float | None = None
    """In the currency of the prices."""
    tool_calls: int | None = None
    """That the model may ask for; an answer that asks for more gets none of its calls run."""

    def __post_init__(self) -> None:
        _check_limits(self, (("tokens", True), ("cost", False), ("tool_calls", True)))


class TreeBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much a run and the runs of all sessions below it may spend together.

    It is looked at before each of their model calls, so that what is in flight when it is reached still counts.

    Raises:
        ConfigError: a limit is not a number above 0.
    """

    tokens: int | None = None
    """Of all kinds, as the providers count them."""
    cost: float | None = None
    """In the currency of the prices, which all agents below need too."""
    turns: int | None = None
    """Model calls, a repetition of one not counted."""

    def __post_init__(self) -> None:
        _check_limits(self, (("tokens", True), ("cost", False), ("turns", True)))

    def overspent(self, usage: Usage, cost: float, turns: int) -> str | None:
        """Return which limit is reached and how, in words; None = none is. `turns` has the one that is wanted."""
        tokens = total_tokens(usage)
        if self.tokens is not None and tokens >= self.tokens:
            return f"The budget of {self.tokens:,} tokens is spent: {tokens:,} were used."
        if self.cost is not None and cost >= self.cost:
            return f"The budget of {self.cost:g} for model calls is spent: they have cost {cost:.6g}."
        if self.turns is not None and turns > self.turns:
            return f"The budget of {self.turns:,} model calls is spent."
        return None


def cost_of(usage: Usage, price: Price | None) -> float:
    """Return what `usage` costs; 0 where the price is not known.

    Example:
        >>> cost_of(Usage(input_tokens=1_000, output_tokens=100), Price(input=3, output=15))
        0.0045
    """
    if price is None:
        return 0.0
    cache_read = price.input if price.cache_read is None else price.cache_read
    cache_creation = price.input if price.cache_creation is None else price.cache_creation
    amount = (
        usage.input_tokens * price.input
        + usage.output_tokens * price.output
        + usage.cache_read_tokens * cache_read
        + usage.cache_creation_tokens * cache_creation
    )
    return amount / PER_TOKENS


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """Return the price of a model: of its exact name, else of the longest name that it begins with."""
    if model in prices:
        return prices[model]
    names = [name for name in prices if model.startswith(name)]
    return prices[max(names, key=len)] if names else None


def overspent(budget: Budget | None, usage: Usage, cost: float, tool_calls: int) -> str | None:
    """Return which limit of `budget` is reached and how, in words; None = none is."""
    if budget is None:
        return None
    tokens = total_tokens(usage)
    if budget.tokens is not None and tokens >= budget.tokens:
        return f"The budget of {budget.tokens:,} tokens is spent: the run has used {tokens:,}."
    if budget.cost is not None and cost >= budget.cost:
        return f"The budget of {budget.cost:g} for model calls is spent: the run has cost {cost:.6g}."
    if budget.tool_calls is not None and tool_calls > budget.tool_calls:
        return f"The budget of {budget.tool_calls:,} tool calls is spent: the model has asked for {tool_calls:,}."
    return None


def total_tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens + usage.cache_read_tokens + usage.cache_creation_tokens


def _is_amount(value: object) -> bool:
    return is_finite(value) and value >= 0


def _check_limits(budget: msgspec.Struct, limits: tuple[tuple[str, bool], ...]) -> None:
    for field, whole in limits:
        limit = getattr(budget, field)
        if limit is not None and not (_is_amount(limit) and limit > 0 and (not whole or type(limit) is int)):
            kind = "a whole number" if whole else "a number"
            raise ConfigError(f"{type(budget).__name__}.{field} must be None or {kind} above 0, not {quoted(limit)}")
