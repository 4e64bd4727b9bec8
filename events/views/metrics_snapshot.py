"""Metrics at one moment: what was counted up to a position of a log, and the rates that follow from it.

Read `refold.events.views.metrics` for what is counted when, and `refold.events.views.metrics_counts` for the
arithmetic. The rule: the figures of a snapshot depend on the events up to its position alone, so the same position
gives the same figures at any time and in any process. `live` is what no log knows.
"""

import math
from collections.abc import Iterable

import msgspec

from refold.events.model.spending import Usage
from refold.events.views.metrics_counts import (
    NANO,
    NOT_FOUND,
    AgentCounts,
    LiveCounts,
    ModelCounts,
    ToolCounts,
    added,
    grown,
    ratio,
)

GAUGES = ("position", "at", "active_sessions")
"""Fields that are a state and not a number of things that happened."""


class MetricsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
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
    """Model calls that were scheduled again."""
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

    def __add__(self, other: "MetricsSnapshot") -> "MetricsSnapshot":
        """Return the sums of two, of which neither has events that the other has too."""
        return msgspec.structs.replace(added(self, other), position=0, at=max(self.at, other.at))

    def delta(self, earlier: "MetricsSnapshot") -> "MetricsSnapshot":
        """Return what happened since `earlier`: every figure stops at 0, and what has not grown is left out of dicts.

        `position`, `at` and `active_sessions` stay those of this snapshot.
        """
        kept = {name: getattr(self, name) for name in GAUGES}
        return msgspec.structs.replace(grown(self, earlier), **kept)

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
    def tool_diversity(self) -> float | None:
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
    def sheds(self) -> int:
        """Tool calls that were turned away because too many were waiting: those of the error kind `shed`."""
        return sum(counts.failure_kinds.get("shed", 0) for counts in self.tools.values())

    @property
    def shed_rate(self) -> float | None:
        """Calls that were turned away among all calls."""
        return ratio(self.sheds, self.tool_calls)

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
    def costliest_model(self) -> str | None:
        """The model that cost most, of several the first by name; None where nothing cost anything."""
        return _first_with_most((name, counts.cost_nano) for name, counts in self.models.items())

    @property
    def run_failure_rate(self) -> float | None:
        """Failed runs among those that have ended."""
        return ratio(self.runs_failed, self.runs_completed + self.runs_failed + self.runs_cancelled)

    @property
    def busiest_agent(self) -> str | None:
        """The agent with most runs, of several the one with most steps, then the first by name; None without runs."""
        return _first_with_most(
            (name, (counts.runs_started, counts.steps) if counts.runs_started else 0)
            for name, counts in self.agents.items()
        )

    def _known_tools(self) -> dict[str, ToolCounts]:
        return {name: counts for name, counts in self.tools.items() if name != NOT_FOUND}

    def _over_tools(self, figure: str) -> int:
        return sum(getattr(counts, figure) for counts in self.tools.values())


DERIVED = (
    "tool_calls",
    "tool_successes",
    "tool_failures",
    "tool_failure_rate",
    "tool_success_rate",
    "most_called_tool",
    "tools_with_failures",
    "failures_per_session",
    "steps_per_tool_call",
    "tool_diversity",
    "sheds",
    "shed_rate",
    "model_calls",
    "cost",
    "costliest_model",
    "run_failure_rate",
    "busiest_agent",
)
"""Names of the properties that follow from the counted figures, as `MetricsSnapshot.derived` lists them."""


def _first_with_most(figures: Iterable[tuple[str, int | tuple[int, ...]]]) -> str | None:
    """Return the name with the greatest figure, the first of several; None where there is no figure above 0."""
    ranked = sorted((name, figure if isinstance(figure, tuple) else (figure,)) for name, figure in figures if figure)
    return max(ranked, key=lambda entry: entry[1])[0] if ranked else None
