"""Figures about agents, folded from the log.

Read `live` first: `AgentRuntime.metrics` gives the figures of a runtime, `read_metrics` those of any log as of any
position. Names load on first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.events.views.metrics_snapshot import AgentCounts as AgentCounts
    from refold.events.views.metrics_snapshot import LiveCounts as LiveCounts
    from refold.events.views.metrics_snapshot import MetricsSnapshot as MetricsSnapshot
    from refold.events.views.metrics_snapshot import ModelCounts as ModelCounts
    from refold.events.views.metrics_snapshot import ToolCounts as ToolCounts
    from refold.events.views.statistics import SessionStatistics as SessionStatistics
    from refold.events.views.steps import Action as Action
    from refold.events.views.steps import Step as Step
    from refold.metrics.live import RuntimeMetrics as RuntimeMetrics
    from refold.metrics.live import SyncMetrics as SyncMetrics
    from refold.metrics.prometheus import PrometheusCollector as PrometheusCollector
    from refold.metrics.prometheus import prometheus_text as prometheus_text
    from refold.metrics.reading import read_metrics as read_metrics
    from refold.metrics.reading import read_statistics as read_statistics
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.events.views.metrics_snapshot": "AgentCounts LiveCounts MetricsSnapshot ModelCounts ToolCounts",
            "refold.events.views.statistics": "SessionStatistics",
            "refold.events.views.steps": "Action Step",
            "refold.metrics.live": "RuntimeMetrics SyncMetrics",
            "refold.metrics.prometheus": "prometheus_text PrometheusCollector",
            "refold.metrics.reading": "read_metrics read_statistics",
        },
    )
