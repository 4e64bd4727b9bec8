"""Figures about agents, folded from the log.

`AgentRuntime.metrics` gives those of a runtime, `read_metrics` those of any log as of any position. Names load on first
use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.events.views.metrics_counts import AgentCounts as AgentCounts
    from refold.events.views.metrics_counts import LiveCounts as LiveCounts
    from refold.events.views.metrics_counts import ModelCounts as ModelCounts
    from refold.events.views.metrics_counts import ToolCounts as ToolCounts
    from refold.events.views.metrics_snapshot import MetricsSnapshot as MetricsSnapshot
    from refold.events.views.statistics import SessionStatistics as SessionStatistics
    from refold.events.views.steps import Action as Action
    from refold.events.views.steps import Step as Step
    from refold.metrics.live import RuntimeMetrics as RuntimeMetrics
    from refold.metrics.live import SyncMetrics as SyncMetrics
    from refold.metrics.prometheus import PrometheusCollector as PrometheusCollector
    from refold.metrics.prometheus import prometheus_text as prometheus_text
    from refold.metrics.reading import read_metrics as read_metrics
    from refold.metrics.reading import read_statistics as read_statistics

__all__ = [
    "Action",
    "AgentCounts",
    "LiveCounts",
    "MetricsSnapshot",
    "ModelCounts",
    "PrometheusCollector",
    "RuntimeMetrics",
    "SessionStatistics",
    "Step",
    "SyncMetrics",
    "ToolCounts",
    "prometheus_text",
    "read_metrics",
    "read_statistics",
]

_HOMES = {
    "Action": "refold.events.views.steps",
    "AgentCounts": "refold.events.views.metrics_counts",
    "LiveCounts": "refold.events.views.metrics_counts",
    "MetricsSnapshot": "refold.events.views.metrics_snapshot",
    "ModelCounts": "refold.events.views.metrics_counts",
    "PrometheusCollector": "refold.metrics.prometheus",
    "RuntimeMetrics": "refold.metrics.live",
    "SessionStatistics": "refold.events.views.statistics",
    "Step": "refold.events.views.steps",
    "SyncMetrics": "refold.metrics.live",
    "ToolCounts": "refold.events.views.metrics_counts",
    "prometheus_text": "refold.metrics.prometheus",
    "read_metrics": "refold.metrics.reading",
    "read_statistics": "refold.metrics.reading",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
