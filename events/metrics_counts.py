"""The figures of metrics, and the arithmetic of figures: sums over several logs, differences between two moments.

Read `refold.events.metrics_fold` for what is counted when. The rules: a figure is a number of things that happened, so
it is never negative and a difference stops at 0; and where something is divided by nothing the answer is None, since
"none of none" is neither a success rate of 0 nor of 1.
"""

from collections.abc import Mapping
from typing import Self, TypeVar, cast

import msgspec

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
