"""Spans of OpenTelemetry, made from what a log holds.

Read `spans` first: it says which events are which span. `reading` makes them of any log, live or old, and `sending`
gives them to exporters. Names load on first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.tracing.reading import read_spans as read_spans
    from refold.tracing.sending import SpanSender as SpanSender
    from refold.tracing.sending import current_traceparent as current_traceparent
    from refold.tracing.sending import traced as traced
    from refold.tracing.spans import SpanEvent as SpanEvent
    from refold.tracing.spans import TraceSpan as TraceSpan
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.tracing.reading": "read_spans",
            "refold.tracing.sending": "current_traceparent SpanSender traced",
            "refold.tracing.spans": "TraceSpan SpanEvent",
        },
    )
