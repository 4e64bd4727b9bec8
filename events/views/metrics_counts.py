"""The figures of metrics, and the arithmetic of figures: sums over several logs, differences between two moments.

Read `refold.events.views.metrics` for what is counted when. The rules: a figure is a number of things that happened, so
it is never negative and a difference stops at 0; and where something is divided by nothing the answer is None, since
"none of none" is neither a success rate of 0 nor of 1.

What the calls of one model came to, in calls, tokens and money; and what a single event adds to that.

Money is counted in whole billionths of the currency of the prices, each event's by itself, so that a sum is the same
whatever the order, live or from a log, bit for bit. The rule: what a call costs is what the prices of the configuration
in force said then; a call whose model has no price there costs nothing, and is counted as such.
"""

from collections.abc import Mapping
from typing import Self, TypeVar, cast

import msgspec

from refold.events.core.event import Event
from refold.events.model.configuration import AgentConfiguration
from refold.events.model.spending import Price, Usage, cost_of, price_of, total_tokens
from refold.events.session import events as ev

T = TypeVar("T")

NOT_FOUND = "(not found)"
"""Stands for all tools that a model asked for and that did not exist: it makes up any number of names."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Base of structs that hold nothing but figures: integers, and structs or dicts of such."""

    def __add__(self, other: Self) -> Self:
        """Return the sums of two, figure by figure."""
        return added(self, other)

    def delta(self, earlier: Self) -> Self:
        """Return how much each figure has grown since `earlier`; 0 where it has not."""
        return grown(self, earlier)


class ToolCounts(Counts, frozen=True, kw_only=True):
    """What became of one tool's calls. `calls` is `successes`, `failures` and those that have no result yet."""

    calls: int = 0
    """Asked for by a model, whatever became of them."""
    started: int = 0
    """Times that its body may have begun; one of a call that went on after a crash counts again."""
    successes: int = 0
    """Calls that the tool answered."""
    failures: int = 0
    """Calls that were answered with an error: the tool's own, or one that Refold made up, such as `cancelled`."""
    failure_kinds: dict[str, int] = {}
    """The same by `ErrorKind`."""
    abandoned: int = 0
    """Calls that ignored their cancellation past the grace period."""

    @property
    def failure_ratio(self) -> float | None:
        """Failures among the calls that have a result; None where none has."""
        return ratio(self.failures, self.failures + self.successes)

    @property
    def success_ratio(self) -> float | None:
        """Successes among the calls that have a result; None where none has."""
        return ratio(self.successes, self.failures + self.successes)


class AgentCounts(Counts, frozen=True, kw_only=True):
    """What the sessions of one agent did."""

    sessions: int = 0
    runs_started: int = 0
    runs_completed: int = 0
    runs_failed: int = 0
    runs_cancelled: int = 0
    steps: int = 0
    """Answers of its model."""
    tool_calls: int = 0
    tool_failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    cost_nano: int = 0
    """What the tokens cost, in billionths of the currency of the prices."""


class LiveCounts(Counts, frozen=True, kw_only=True):
    """What leaves no event, so that no log knows it: counted since the runtime opened, and gone when it ends."""

    commits: int = 0
    """Transactions that were written."""
    failed_appends: int = 0
    """Appends that the log refused; lost races, which are tried again, are none."""
    shed_commands: int = 0
    """Messages to actors that were turned away because a mailbox was full."""
    observer_failures: int = 0
    """Times that a subscriber raised."""


def ratio(part: int, whole: int) -> float | None:
    """Return `part` divided by `whole`; None where `whole` is 0."""
    return part / whole if whole else None


def added(one: T, other: T) -> T:
    """Return the sum of two integers, or of two structs or dicts of figures, name by name; None counts as nothing."""
    return _combined(one, other, grows=True)


def grown(later: T, earlier: T) -> T:
    """Return by how much `later` is more than `earlier`, at least 0; of a dict, what has not grown is left out."""
    return _combined(later, earlier, grows=False)


def _combined(one: T, other: T, *, grows: bool) -> T:
    if one is None or other is None:
        return other if one is None and grows else one
    if isinstance(one, int):
        second = cast("int", other)
        return cast("T", one + second if grows else max(0, one - second))
    if isinstance(one, Mapping):
        first = cast("Mapping[str, object]", one)
        return cast("T", _combined_dicts(first, cast("Mapping[str, object]", other), grows=grows))
    assert isinstance(one, msgspec.Struct)
    fields = {name: _combined(getattr(one, name), getattr(other, name), grows=grows) for name in one.__struct_fields__}
    return cast("T", type(one)(**fields))


def _combined_dicts(one: Mapping[str, object], other: Mapping[str, object], *, grows: bool) -> dict[str, object]:
    found = dict(one)
    for name, figure in other.items():
        if name in found:
            found[name] = _combined(found[name], figure, grows=grows)
        elif grows:
            found[name] = figure
    return found if grows else {name: figure for name, figure in found.items() if _is_more(figure)}


def _is_more(value: object) -> bool:
    """Tell whether there is a figure above 0 in a difference."""
    if isinstance(value, int):
        return value > 0
    if isinstance(value, Mapping):
        return bool(cast("Mapping[str, object]", value))
    assert isinstance(value, msgspec.Struct)
    return any(_is_more(getattr(value, name)) for name in value.__struct_fields__)


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
        case ev.ModelResponded(model=model, usage=usage):
            return _counted(model, asked, {"calls": 1, "answers": 1}, usage, rates)
        case ev.ContextPrepared(model=model, usage=usage):
            return _counted(model, asked, {"calls": 1, "summaries": 1}, usage, rates)
        case ev.ModelInterrupted(usage=usage):
            return _counted(None, asked, {"interruptions": 1}, usage, rates)
        case ev.ModelFailed():
            return Spent(asked, {"calls": 1, "failures": 1})
        case ev.RetryScheduled():
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
