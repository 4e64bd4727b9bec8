"""Metrics at one moment: what was counted up to a position of a log, and the rates that follow from it.

Read `refold.events.views.metrics` for what is counted when. The rules: the figures of a snapshot depend on the events
up to its position alone, so the same position gives the same figures at any time and in any process; `live` is what no
log knows. A figure is a number of things that happened, so it is never negative and a difference stops at 0. Where
something is divided by nothing the answer is None, since "none of none" is neither a success rate of 0 nor of 1.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Self, cast

import msgspec

from refold.events.model.spending import Usage

NANO = 1_000_000_000
"""Billionths in one."""

NOT_FOUND = "(not found)"
"""Stands for all tools that a model asked for and that did not exist: it makes up any number of names."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Base of structs that hold nothing but figures: integers, and structs or dicts of such."""

    def __add__(self, other: Self) -> Self:
        """Return the sums of two, figure by figure."""
        return msgspec.convert(_sum(msgspec.to_builtins(self), msgspec.to_builtins(other)), type(self))

    def delta(self, earlier: Self) -> Self:
        """Return how much each figure has grown since `earlier`; 0 where it has not."""
        return msgspec.convert(_growth(msgspec.to_builtins(self), msgspec.to_builtins(earlier)), type(self))


class ToolCounts(Counts, frozen=True, kw_only=True):
    """What became of one tool's calls. `calls` is `successes`, `failures` and those that have no result yet."""

    calls: int = 0
    """Asked for by a model, with a result or without."""
    started: int = 0
    """Attempts at calls that began; one that a crash interrupted counts again only if a person allowed that."""
    retries: int = 0
    """Pauses scheduled after an attempt that failed; the call has no result by then. A run that ends in a pause makes
    no further attempt, so that `started` may be less than `calls + retries`."""
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

    depth: int = 0
    """Inputs that are queued or run now and hold a place of the runtime's `BackpressureGuard`; 0 where it has none."""
    sheds: int = 0
    """Inputs that found no place there and were turned away."""
    commits: int = 0
    """Transactions that were written."""
    failed_appends: int = 0
    """Appends that the log refused; lost races, which are tried again, are none."""
    shed_commands: int = 0
    """Messages to actors that were turned away because a mailbox was full."""
    observer_failures: int = 0
    """Times that a subscriber raised."""
    background_restarts: int = 0
    """Times that work of the runtime's own ended before its time, and was begun again."""


class ModelCounts(Counts, frozen=True, kw_only=True):
    """What the calls of one model came to."""

    calls: int = 0
    """Calls that ended with an answer, an error or a summary; one that is tried again counts each time."""
    answers: int = 0
    summaries: int = 0
    """Of histories."""
    failures: int = 0
    retries: int = 0
    """Pauses scheduled before the same is asked again; a run that ends in one makes no further call."""
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


GAUGES = ("position", "at", "active_sessions")
"""Fields that are a state and not a number of things that happened."""


class MetricsSnapshot(Counts, frozen=True, kw_only=True):
    """Figures about everything in a log up to one position.

    `+` sums those of several logs, and of several runtimes therefore. Rates are None where they would divide by 0.
    """

    position: int = 0
    """Of the last event that was counted; 0 = none was, or this is a sum."""
    at: int = 0
    """Time of that event, in microseconds since the epoch, UTC; of a sum the latest."""
    sessions: int = 0
    """Sessions that were opened."""
    active_sessions: int = 0
    """Sessions that have an open run at this moment; parked and waiting ones too."""
    inputs: int = 0
    """Inputs that were accepted, those for a later time when that came."""
    runs_started: int = 0
    runs_completed: int = 0
    runs_failed: int = 0
    runs_cancelled: int = 0
    runs_resumed: int = 0
    """Times that an open run went on in another process."""
    runs_parked: int = 0
    """Times that a run was parked."""
    run_failure_kinds: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Failed runs by `RunFailureKind`."""
    steps: int = 0
    """Complete answers of models: each begins a step (see `refold.events.views.steps`)."""
    model_requests: int = 0
    """Model calls that were wanted: one per turn."""
    model_failures: int = 0
    """Model calls that ended with an error; one that is tried again counts each time."""
    model_retries: int = 0
    """Pauses scheduled before the same is asked again, see `ModelCounts.retries`."""
    model_interruptions: int = 0
    """Half answers that were paid for and never came."""
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    cost_nano: int = 0
    """What the tokens cost, in billionths of the currency of the prices (`AgentConfig.prices`, those in force at each
    call); 0 for tokens of models without a price, see `ModelCounts.unpriced`."""
    compactions: int = 0
    """Times that a summary took the place of the oldest messages."""
    recalls: int = 0
    """Memories that entered a model's context."""
    approvals_requested: int = 0
    approvals_allowed: int = 0
    approvals_denied: int = 0
    late_results: int = 0
    """Results of calls that had been answered before."""
    runtimes_started: int = 0
    runtimes_closed: int = 0
    """Of those, the ones that ended in order."""
    actor_failures: int = 0
    actors_stopped: int = 0
    """Of those, the failures after which the actor stays stopped."""
    tools: dict[str, ToolCounts] = msgspec.field(default_factory=dict[str, ToolCounts])
    """By the tool's name, in order of names; calls of tools that did not exist are under `(not found)`, which counts in
    all sums and is no tool where tools are compared."""
    agents: dict[str, AgentCounts] = msgspec.field(default_factory=dict[str, AgentCounts])
    """By the agent's name, in order of names."""
    models: dict[str, ModelCounts] = msgspec.field(default_factory=dict[str, ModelCounts])
    """By the name of the model that answered, where the provider says, else of the one that was asked; in order."""
    events: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """All events of all streams by their type, those of kinds that Refold does not know too; in order of types."""
    unreadable_events: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Those of Refold's own that this version cannot read, and that were left out above, by type."""
    live: LiveCounts | None = None
    """What leaves no event; None where this was read from a log."""

    # Only figures of one class are added; that `other` is of this class, as `Self` says, is no narrower.
    def __add__(self, other: Self) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the sums of two, of which neither has events that the other has too."""
        return msgspec.structs.replace(super().__add__(other), position=0, at=max(self.at, other.at))

    def delta(self, earlier: Self) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return what happened since `earlier`: every figure stops at 0, and what has not grown is left out of dicts.

        `position`, `at` and `active_sessions` stay those of this snapshot.
        """
        kept = {name: getattr(self, name) for name in GAUGES}
        live = self.live
        if live is not None and earlier.live is not None:
            live = msgspec.structs.replace(live.delta(earlier.live), depth=live.depth)
        return msgspec.structs.replace(super().delta(earlier), live=live, **kept)

    def recorded(self) -> "MetricsSnapshot":
        """Return what the log knows: the same without `live`."""
        return msgspec.structs.replace(self, live=None)

    def to_json(self) -> str:
        """Return all figures as one JSON object; the rates are under `derived`."""
        document = {**msgspec.to_builtins(self), "derived": self.derived()}
        return msgspec.json.encode(document).decode()

    def derived(self) -> dict[str, object]:
        """Return every figure that follows from the counted ones, by name."""
        return {
            **{name: getattr(self, name) for name in DERIVED},
            "failure_ratios": {name: counts.failure_ratio for name, counts in self.tools.items()},
        }

    # Tools

    @property
    def tool_calls(self) -> int:
        """Calls of all tools."""
        return self._over_tools("calls")

    @property
    def tool_retries(self) -> int:
        """Pauses scheduled before another attempt at a call."""
        return self._over_tools("retries")

    @property
    def tool_successes(self) -> int:
        """Calls that a tool answered."""
        return self._over_tools("successes")

    @property
    def tool_failures(self) -> int:
        """Calls that were answered with an error."""
        return self._over_tools("failures")

    @property
    def tool_failure_rate(self) -> float | None:
        """Failures among all calls that have a result."""
        return ratio(self.tool_failures, self.tool_failures + self.tool_successes)

    @property
    def tool_success_rate(self) -> float | None:
        """Successes among all calls that have a result."""
        return ratio(self.tool_successes, self.tool_failures + self.tool_successes)

    @property
    def most_called_tool(self) -> str | None:
        """The tool with most calls, of several the first by name; None where none was called."""
        return _first_with_most((name, counts.calls) for name, counts in self._known_tools().items())

    @property
    def tools_with_failures(self) -> tuple[str, ...]:
        """Tools with a call that was answered with an error, in order of names."""
        return tuple(sorted(name for name, counts in self._known_tools().items() if counts.failures))

    @property
    def failures_per_session(self) -> float | None:
        """Failed tool calls per session."""
        return ratio(self.tool_failures, self.sessions)

    @property
    def steps_per_tool_call(self) -> float | None:
        """Steps per tool call."""
        return ratio(self.steps, self.tool_calls)

    @property
    def tool_diversity(self) -> int:
        """How many different tools were called."""
        return sum(counts.calls > 0 for counts in self._known_tools().values())

    @property
    def tool_entropy(self) -> float | None:
        """How evenly the calls are spread over the tools, in bits: 0 = all go to one, log2(n) = n are called alike.

        Shannon's entropy (C. E. Shannon, A Mathematical Theory of Communication, 1948, section 6):
        H = -sum(p * log2(p)) over the tools, p being a tool's share of all calls. None where nothing was called.
        """
        calls = [counts.calls for counts in self._known_tools().values() if counts.calls]
        if not calls:
            return None
        shares = [number / sum(calls) for number in calls]
        return abs(math.fsum(share * math.log2(share) for share in shares))

    @property
    def refused_calls(self) -> int:
        """Tool calls that an open circuit refused, or a subagent with no room: those of the error kind `shed`."""
        return sum(counts.failure_kinds.get("shed", 0) for counts in self.tools.values())

    @property
    def shed_rate(self) -> float | None:
        """Inputs that backpressure turned away, among them and the accepted ones; None where only a log was read."""
        return ratio(self.live.sheds, self.live.sheds + self.inputs) if self.live is not None else None

    # Runs, models and agents

    @property
    def model_calls(self) -> int:
        """Model calls that ended with an answer or an error."""
        return self.steps + self.model_failures

    @property
    def usage(self) -> Usage:
        """Tokens of all model calls, half answers and summaries too."""
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cache_read_tokens=self.cache_read_tokens,
            cache_creation_tokens=self.cache_creation_tokens,
        )

    @property
    def cost(self) -> float:
        """What all tokens cost, in the currency of the prices."""
        return self.cost_nano / NANO

    @property
    def busiest_agent(self) -> str | None:
        """The agent with most tool calls, of several the one with most steps, then runs, then the first by name.

        None without runs.
        """
        return _first_with_most(
            (name, (counts.tool_calls, counts.steps, counts.runs_started) if counts.runs_started else 0)
            for name, counts in self.agents.items()
        )

    def _known_tools(self) -> dict[str, ToolCounts]:
        return {name: counts for name, counts in self.tools.items() if name != NOT_FOUND}

    def _over_tools(self, figure: str) -> int:
        return sum(getattr(counts, figure) for counts in self.tools.values())


DERIVED = (
    "tool_calls",
    "tool_retries",
    "tool_successes",
    "tool_failures",
    "tool_failure_rate",
    "tool_success_rate",
    "most_called_tool",
    "tools_with_failures",
    "failures_per_session",
    "steps_per_tool_call",
    "tool_diversity",
    "tool_entropy",
    "refused_calls",
    "shed_rate",
    "model_calls",
    "cost",
    "busiest_agent",
)
"""Names of the properties that follow from the counted figures, as `MetricsSnapshot.derived` lists them."""


def _first_with_most(figures: Iterable[tuple[str, int | tuple[int, ...]]]) -> str | None:
    """Return the name with the greatest figure, the first of several; None where there is no figure above 0."""
    ranked = sorted((name, figure if isinstance(figure, tuple) else (figure,)) for name, figure in figures if figure)
    return max(ranked, key=lambda entry: entry[1])[0] if ranked else None


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _sum(one: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums of figures by name, as plain values; None counts as nothing."""
    for name, figure in other.items():
        mine = one.get(name)
        if mine is None:
            one[name] = figure
        elif figure is not None:
            one[name] = _sum(cast("dict[str, Any]", mine), figure) if isinstance(mine, dict) else mine + figure
    return one


def _growth(later: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return by how much figures are more than before, as plain values; what has not grown is left out."""
    grown: dict[str, Any] = {}
    for name, figure in later.items():
        before = earlier.get(name)
        if isinstance(figure, dict):
            more: Any = _growth(cast("dict[str, Any]", figure), before or {})
        else:
            more = max(0, (figure or 0) - (before or 0))
        if more:
            grown[name] = more
    return grown
