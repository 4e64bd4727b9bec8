"""Metrics for Prometheus, written by its official client: the extra `prometheus`.

A collector turns a snapshot into metric families each time it is asked, so nothing is counted twice and nothing has to
be kept in step. Names and labels follow the client's conventions: counters end in `_total`, and it escapes the labels.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from importlib import import_module
from operator import add
from typing import TYPE_CHECKING, Protocol

from refold.events.core.errors import ConfigError, needed_by
from refold.events.views.metrics_snapshot import MetricsSnapshot
from refold.metrics.live import RuntimeMetrics, SyncMetrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

ANSWER_S = 10.0
"""How long a scrape waits for a runtime's figures, the first one that a thread makes for the log to be counted."""


class Measured(Protocol):
    """An `AgentRuntime` or a `SyncRuntime`."""

    @property
    def metrics(self) -> RuntimeMetrics | SyncMetrics:
        """Figures about all that is in its log."""
        ...


class PrometheusCollector:
    """Gives the figures of one or several runtimes, summed, to a registry: `REGISTRY.register(PrometheusCollector(r))`.

    In the thread of a runtime's own loop nothing can be waited for: until its log has been counted, which making the
    collector begins, a scrape there has `refold_metrics_complete 0` and no figures.

    Args:
        runtimes: open ones, whose logs are different.

    Raises:
        ConfigError: there is none, one has never been open, or the client is not installed.
    """

    def __init__(self, *runtimes: Measured) -> None:
        require_client()
        if not runtimes:
            raise ConfigError("a PrometheusCollector needs a runtime, and got none")
        faces = (runtime.metrics for runtime in runtimes)
        self._metrics = tuple(face.asynchronous if isinstance(face, SyncMetrics) else face for face in faces)
        for metrics in self._metrics:
            metrics.snapshot()

    def describe(self) -> Iterator["Metric"]:
        """Yield the families without figures, so that a registry learns their names and asks no runtime."""
        return families(None)

    def collect(self) -> Iterator["Metric"]:
        """Yield the families with the figures of this moment.

        Raises:
            ActorStopped: a runtime is closed, and had not counted its log.
            AskTimeout: a runtime does not answer.
            PersistenceError: a log cannot be read.
        """
        snapshots = [_of_this_moment(metrics) for metrics in self._metrics]
        known = [snapshot for snapshot in snapshots if snapshot is not None]
        return families(reduce(add, known) if len(known) == len(snapshots) else None)


def _of_this_moment(metrics: RuntimeMetrics) -> MetricsSnapshot | None:
    future = metrics.snapshot()
    if metrics.is_on_loop() and not future.ready():
        return None
    return future.get(timeout=ANSWER_S)


def prometheus_text(snapshot: MetricsSnapshot) -> str:
    """Return a snapshot in Prometheus's text format.

    Raises:
        ConfigError: the client is not installed.
    """
    require_client()
    from prometheus_client import CollectorRegistry, generate_latest

    class Fixed:
        def collect(self) -> Iterator["Metric"]:
            return families(snapshot)

    registry = CollectorRegistry()
    registry.register(Fixed())
    return generate_latest(registry).decode()


def require_client() -> None:
    """Load Prometheus's client; raise ConfigError where it is not installed."""
    with needed_by("metrics for Prometheus", extra="prometheus"):
        import_module("prometheus_client")


def families(snapshot: MetricsSnapshot | None) -> Iterator["Metric"]:
    """Yield the metric families of a snapshot; without figures where there is none."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for name, help_text, gauge in GAUGES:
        yield GaugeMetricFamily(name, help_text, value=None if snapshot is None else gauge(snapshot))
    yield GaugeMetricFamily(
        "refold_metrics_complete", "Whether the log has been counted.", value=0 if snapshot is None else 1
    )
    for name, help_text, labels, samples in COUNTERS:
        family = CounterMetricFamily(name, help_text, labels=labels)
        for values, figure in samples(snapshot) if snapshot is not None else ():
            family.add_metric(values, figure)
        yield family


Samples = Iterator[tuple[tuple[str, ...], float]]
"""The values of the labels, and the figure."""


def _one(field: str) -> Callable[[MetricsSnapshot], Samples]:
    return lambda snapshot: iter([((), getattr(snapshot, field))])


def _live(field: str) -> Callable[[MetricsSnapshot], Samples]:
    return lambda snapshot: iter([((), getattr(snapshot.live, field))] if snapshot.live is not None else [])


def _several(**fields: str) -> Callable[[MetricsSnapshot], Samples]:
    """Return what gives several fields of a snapshot under one label, by its values."""
    return lambda snapshot: (((value,), getattr(snapshot, field)) for value, field in fields.items())


def _by_name(names: str) -> Callable[[MetricsSnapshot], Samples]:
    return lambda snapshot: (((name,), figure) for name, figure in getattr(snapshot, names).items())


def _each(group: str, field: str) -> Callable[[MetricsSnapshot], Samples]:
    """Return what gives one field of each tool, model or agent."""
    return lambda snapshot: (((name,), getattr(counts, field)) for name, counts in getattr(snapshot, group).items())


def _each_several(group: str, **fields: str) -> Callable[[MetricsSnapshot], Samples]:
    """Return what gives several fields of each model or agent, under a second label, by its values."""
    return lambda snapshot: (
        ((name, value), getattr(counts, field))
        for name, counts in getattr(snapshot, group).items()
        for value, field in fields.items()
    )


def _tool_failures(snapshot: MetricsSnapshot) -> Samples:
    for name, counts in snapshot.tools.items():
        for kind, figure in counts.failure_kinds.items():
            yield (name, kind), figure


RUNS_ENDED = {"completed": "runs_completed", "failed": "runs_failed", "cancelled": "runs_cancelled"}
TOKENS = {kind: f"{kind}_tokens" for kind in ("input", "output", "cache_read", "cache_creation")}
MODEL_CALLS = {"answered": "answers", "summarised": "summaries", "failed": "failures"}

GAUGES: tuple[tuple[str, str, Callable[[MetricsSnapshot], float]], ...] = (
    ("refold_active_sessions", "Sessions with an open run.", lambda snapshot: snapshot.active_sessions),
    (
        "refold_backpressure_depth",
        "Inputs that hold a place of this runtime's backpressure.",
        lambda snapshot: snapshot.live.depth if snapshot.live is not None else 0,
    ),
    ("refold_log_position", "Position of the last event that was counted.", lambda snapshot: snapshot.position),
    ("refold_last_event_timestamp_seconds", "Time of that event.", lambda snapshot: snapshot.at / 1_000_000),
)

COUNTERS: tuple[tuple[str, str, tuple[str, ...], Callable[[MetricsSnapshot], Samples]], ...] = (
    ("refold_sessions", "Sessions that were opened.", (), _one("sessions")),
    ("refold_inputs", "Inputs that were accepted.", (), _one("inputs")),
    ("refold_runs_started", "Runs that began.", (), _one("runs_started")),
    ("refold_runs_ended", "Runs that ended, by outcome.", ("outcome",), _several(**RUNS_ENDED)),
    ("refold_run_failures", "Runs that failed, by kind.", ("kind",), _by_name("run_failure_kinds")),
    ("refold_runs_resumed", "Open runs that went on in another process.", (), _one("runs_resumed")),
    ("refold_runs_parked", "Runs that were parked.", (), _one("runs_parked")),
    ("refold_steps", "Answers of models.", (), _one("steps")),
    (
        "refold_model_calls",
        "Model calls that ended, by outcome.",
        ("outcome",),
        _several(answered="steps", failed="model_failures"),
    ),
    ("refold_model_retries", "Model calls that were scheduled again.", (), _one("model_retries")),
    ("refold_tokens", "Tokens of model calls, by kind.", ("kind",), _several(**TOKENS)),
    ("refold_cost", "What the tokens cost, in the currency of the prices.", (), _one("cost")),
    (
        "refold_calls_of_model",
        "Model calls that ended, by model and outcome.",
        ("model", "outcome"),
        _each_several("models", **MODEL_CALLS),
    ),
    (
        "refold_retries_of_model",
        "Model calls that were scheduled again, by model.",
        ("model",),
        _each("models", "retries"),
    ),
    (
        "refold_tokens_of_model",
        "Tokens of model calls, by model and kind.",
        ("model", "kind"),
        _each_several("models", **TOKENS),
    ),
    (
        "refold_cost_of_model",
        "What the tokens cost, by model, in the currency of the prices.",
        ("model",),
        _each("models", "cost"),
    ),
    ("refold_tool_calls", "Tool calls that a model asked for.", ("tool",), _each("tools", "calls")),
    ("refold_tool_retries", "Attempts that failed and were scheduled again.", ("tool",), _each("tools", "retries")),
    ("refold_tool_successes", "Tool calls that the tool answered.", ("tool",), _each("tools", "successes")),
    ("refold_tool_failures", "Tool calls that were answered with an error.", ("tool", "kind"), _tool_failures),
    ("refold_recalls", "Memories that entered a model's context.", (), _one("recalls")),
    ("refold_refused_calls", "Tool calls that an open circuit or a full agent refused.", (), _one("refused_calls")),
    ("refold_agent_sessions", "Sessions, by agent.", ("agent",), _each("agents", "sessions")),
    (
        "refold_agent_runs_ended",
        "Runs that ended, by agent and outcome.",
        ("agent", "outcome"),
        _each_several("agents", **RUNS_ENDED),
    ),
    ("refold_agent_steps", "Answers of models, by agent.", ("agent",), _each("agents", "steps")),
    ("refold_agent_tool_calls", "Tool calls, by agent.", ("agent",), _each("agents", "tool_calls")),
    ("refold_actor_failures", "Failures of actors.", (), _one("actor_failures")),
    ("refold_events", "Events of all streams, by type.", ("type",), _by_name("events")),
    ("refold_sheds", "Inputs that backpressure turned away here.", (), _live("sheds")),
    ("refold_commits", "Transactions of this runtime.", (), _live("commits")),
    ("refold_failed_appends", "Appends that the log refused this runtime.", (), _live("failed_appends")),
    ("refold_shed_commands", "Messages to actors that were turned away here.", (), _live("shed_commands")),
    ("refold_observer_failures", "Times that a subscriber raised here.", (), _live("observer_failures")),
    ("refold_background_restarts", "Times that own work was begun again here.", (), _live("background_restarts")),
)
