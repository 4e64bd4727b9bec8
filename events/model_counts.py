"""What the calls of one model came to, in calls, tokens and money; and what a single event adds to that.

Money is counted in whole billionths of the currency of the prices, each event's by itself, so that a sum is the same
whatever the order, live or from a log, bit for bit. The rule: what a call costs is what the prices of the configuration
in force said then; a call whose model has no price there costs nothing, and is counted as such.
"""

from collections.abc import Mapping

import msgspec

from refold.events.configuration import AgentConfiguration
from refold.events.event import Event
from refold.events.metrics_counts import Counts
from refold.events.session_events import (
    ContextPrepared,
    ModelFailed,
    ModelInterrupted,
    ModelResponded,
    RetryScheduled,
)
from refold.events.spending import Price, Usage, cost_of, price_of, total_tokens

UNKNOWN_MODEL = "(unknown)"
"""Stands for the model of a call of which the log does not say which configuration was in force."""

NANO = 1_000_000_000
"""Billionths in one."""

NANO_MAX = 10**15
"""No single event is taken to cost more, so that sums stay integers that every reader of JSON knows."""


class ModelCounts(Counts, frozen=True, kw_only=True):
    """What the calls of one model came to."""

    calls: int = 0
    """Calls that ended with an answer, an error or a summary; one that is tried again counts each time."""
    answers: int = 0
    summaries: int = 0
    """Of histories."""
    failures: int = 0
    retries: int = 0
    """Calls that were scheduled again."""
    interruptions: int = 0
    """Half answers and summaries that were paid for and could not be used."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    unpriced: int = 0
    """Events with tokens of which no price was known."""
    cost_nano: int = 0
    """What the tokens cost, in billionths of the currency of the prices."""

    @property
    def cost(self) -> float:
        """What the tokens cost, in the currency of the prices."""
        return self.cost_nano / NANO

    @property
    def usage(self) -> Usage:
        """Tokens of all kinds."""
        return Usage(**{name: getattr(self, name) for name in Usage.__struct_fields__})


class Rates(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a configuration says of models and money."""

    model: str
    prices: dict[str, Price] = {}


class Spent(msgspec.Struct, frozen=True):
    """What one event adds."""

    model: str
    figures: dict[str, int]
    """By the names of `ModelCounts`."""


def rates_of(configuration: AgentConfiguration) -> Rates:
    """Return what a configuration says of models and money."""
    return Rates(configuration.model, configuration.prices)


def spent(event: Event, rates: Rates | None) -> Spent | None:
    """Return what an event of a session adds to the figures of which model; None = nothing to any.

    Args:
        event: the next one of a session.
        rates: in force in it; None = that is not known.
    """
    asked = rates.model if rates is not None else UNKNOWN_MODEL
    match event:
        case ModelResponded(model=model, usage=usage):
            return _counted(model, asked, {"calls": 1, "answers": 1}, usage, rates)
        case ContextPrepared(model=model, usage=usage):
            return _counted(model, asked, {"calls": 1, "summaries": 1}, usage, rates)
        case ModelInterrupted(usage=usage):
            return _counted(None, asked, {"interruptions": 1}, usage, rates)
        case ModelFailed():
            return Spent(asked, {"calls": 1, "failures": 1})
        case RetryScheduled():
            return Spent(asked, {"retries": 1})
        case _:
            return None


def nano_cost(usage: Usage, price: Price) -> int:
    """Return what tokens cost, in billionths, rounded to the nearest.

    Example:
        >>> nano_cost(Usage(input_tokens=1_000, output_tokens=100), Price(input=3, output=15))
        4500000
    """
    return round(min(cost_of(usage, price) * NANO, NANO_MAX))


def _counted(answered: str | None, asked: str, figures: Mapping[str, int], usage: Usage, rates: Rates | None) -> Spent:
    """Return figures with the tokens and what they cost: by the price of the model that answered, else of the asked."""
    counted = dict(figures)
    if total_tokens(usage):
        counted |= {name: tokens for name in usage.__struct_fields__ if (tokens := getattr(usage, name))}
        prices = rates.prices if rates is not None else {}
        price = (price_of(answered, prices) if answered is not None else None) or price_of(asked, prices)
        if price is None:
            counted["unpriced"] = 1
        elif cost := nano_cost(usage, price):
            counted["cost_nano"] = cost
    return Spent(answered or asked, counted)
