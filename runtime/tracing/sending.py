"""Spans to the exporters of OpenTelemetry's SDK, from a log that is in use or at rest.

The rules: sending never slows, stops or changes a run. Spans are made from what is recorded, by a task of its own, and
an exporter runs in a thread. What it does not take is told once and left, since the log still has it.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from refold.actors.kernel.clock import Clock, SystemClock
from refold.actors.kernel.supervision import Background
from refold.events.core.errors import RefoldError, needed_by
from refold.inspection.log_reading import ReadableLog, opened
from refold.stores.past_state import last_position
from refold.tracing.reading import read_spans
from refold.tracing.spans import TraceSpan
from refold.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

log = logging.getLogger("refold.tracing")

SPANS_PER_SENDING: Final = 500
SPANS_WAITING_MAX: Final = 10_000
"""So many wait for an exporter that is slow; the oldest are left then."""

SCOPE: Final = "refold"


def current_traceparent() -> str | None:
    """Return where the caller is in a trace of OpenTelemetry, for `session.send(…, traceparent=…)`; None = nowhere.

    Raises:
        ConfigError: OpenTelemetry is not installed; the extra `otel` has it.
    """
    with needed_by("traces", extra="otel"):
        from opentelemetry.trace import get_current_span

    here = get_current_span().get_span_context()
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}" if here.is_valid else None


class SpanSender:
    """Gives spans to an exporter, and their figures to a meter.

    Args:
        exporter: of OpenTelemetry's SDK, such as its `OTLPSpanExporter`; it is shut down by `close`. None = none.
        meter_provider: gets `gen_ai.client.token.usage` and `gen_ai.client.operation.duration`; None = nothing does.
        resource: what the spans are of; None = what the environment says (`OTEL_SERVICE_NAME`).

    Raises:
        ConfigError: OpenTelemetry's SDK is not installed; the extra `otel` has it.
    """

    def __init__(
        self,
        exporter: "SpanExporter | None",
        *,
        meter_provider: "MeterProvider | None" = None,
        resource: "Resource | None" = None,
    ) -> None:
        with needed_by("traces", extra="otel"):
            from opentelemetry.sdk.resources import Resource
        self._exporter = exporter
        self._resource = resource or Resource.create()
        self._tokens = self._durations = None
        if meter_provider is not None:
            meter = meter_provider.get_meter(SCOPE, __version__)
            self._tokens = meter.create_histogram("gen_ai.client.token.usage", unit="{token}")
            self._durations = meter.create_histogram("gen_ai.client.operation.duration", unit="s")

    def send(self, spans: Sequence[TraceSpan]) -> bool:
        """Give spans to the exporter and their figures to the meter, and return whether the exporter took them.

        It takes as long as the exporter does. What that raises is told in the program's log.
        """
        for span in spans:
            self._count(span)
        if self._exporter is None or not spans:
            return True
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            return self._exporter.export([self._readable(span) for span in spans]) is SpanExportResult.SUCCESS
        except Exception:
            log.warning("the exporter of spans failed", exc_info=True)
            return False

    def close(self) -> None:
        """Shut the exporter down."""
        if self._exporter is not None:
            self._exporter.shutdown()

    def _count(self, span: TraceSpan) -> None:
        names = ("gen_ai.operation.name", "gen_ai.request.model", "gen_ai.agent.name", "gen_ai.tool.name", "error.type")
        said = {name: span.attributes[name] for name in names if name in span.attributes}
        if self._durations is not None and said.get("gen_ai.operation.name") != "wait":
            self._durations.record((span.end - span.start) / 1e6, said)
        if self._tokens is not None and said.get("gen_ai.operation.name") == "chat":
            for kind in ("input", "output"):
                tokens = span.attributes.get(f"gen_ai.usage.{kind}_tokens")
                if isinstance(tokens, int):
                    self._tokens.record(tokens, {**said, "gen_ai.token.type": kind})

    def _readable(self, span: TraceSpan) -> "ReadableSpan":
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanKind, Status, StatusCode

        return ReadableSpan(
            name=span.name,
            context=_context(span.trace, span.span),
            parent=_context(span.trace, span.parent) if span.parent is not None else None,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(event.name, event.attributes, timestamp=_nanoseconds(event.at)) for event in span.events],
            kind=SpanKind.CLIENT if span.kind == "client" else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if span.error is not None else Status(StatusCode.UNSET),
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(span.end),
            instrumentation_scope=InstrumentationScope(SCOPE, __version__),
        )


def _nanoseconds(at: int) -> int:
    """Return a time of a log, as far as OpenTelemetry has a number for it."""
    return min(max(at, 0) * 1000, 2**64 - 1)


def _context(trace: str, span: str) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


@asynccontextmanager
async def traced(
    log_file: ReadableLog,
    sender: SpanSender,
    *,
    content: bool = False,
    poll_s: float = 1.0,
    clock: Clock | None = None,
) -> AsyncGenerator[None, None]:
    """Send the spans that end in a log from here on until the block ends, and then those that ended until then.

    A log that is not there yet is waited for, so that it can stand before the runtime:

        async with traced("events.db", SpanSender(OTLPSpanExporter())), AgentRuntime(agent, log="events.db") as runtime:

    Args:
        log_file: the path of the log's file, or an open store; of a runtime in this process or in another one.
        sender: gets the spans; it is closed at the end.
        content: also what people, models and tools said.
        poll_s: seconds between two looks at the log.
        clock: measures them; None = the machine's.
    """
    tracing = _Tracing(log_file, sender, content=content, poll_s=poll_s, clock=clock or SystemClock())
    await tracing.find_place()
    following = Background(f"spans of {log_file}", tracing.follow)
    try:
        yield
    finally:
        await following.stop()
        await tracing.finish()


class _Tracing:
    def __init__(
        self, log_file: ReadableLog, sender: SpanSender, *, content: bool, poll_s: float, clock: Clock
    ) -> None:
        self._log = log_file
        self._sender = sender
        self._content = content
        self._poll_s = poll_s
        self._clock = clock
        self._position = 0
        """Behind it the spans are still to come."""
        self._waiting: list[TraceSpan] = []
        self._left = 0
        self._sending: Background | None = None

    def _is_there(self) -> bool:
        return not isinstance(self._log, str | os.PathLike) or Path(self._log).exists()

    async def find_place(self) -> None:
        """Begin behind what the log holds now."""
        if self._is_there():
            async with opened(self._log) as store:
                self._position = await last_position(store)

    async def follow(self) -> None:
        """Send what ends, until this is cancelled; a log that cannot be read is tried again."""
        while True:
            try:
                if self._is_there():
                    await self._read(follow=True)
            except RefoldError as error:
                log.warning("no spans are made of %s: %s", self._log, error)
            await self._clock.sleep(self._poll_s)

    async def finish(self) -> None:
        """Send what ended until now, and close the sender."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, self._sender.close)
            try:
                if self._is_there():
                    await self._read(follow=False)
            except RefoldError as error:
                log.warning("the last spans of %s are not sent: %s", self._log, error)
            while self._sending is not None:
                await self._sending.wait()

    async def _read(self, *, follow: bool) -> None:
        spans = read_spans(
            self._log,
            after=self._position,
            content=self._content,
            follow=follow,
            poll_s=self._poll_s,
            clock=self._clock,
        )
        async with aclosing(spans):
            async for span in spans:
                self._position = span.position
                self._waiting.append(span)
                if len(self._waiting) > SPANS_WAITING_MAX:
                    self._waiting.pop(0)
                    self._left += 1
                if self._sending is None:
                    self._sending = Background(f"sending of spans of {self._log}", self._send, self._all_sent)

    async def _send(self) -> None:
        """Send what waits; never raise, since nothing else depends on it."""
        while self._waiting:
            spans, self._waiting = self._waiting[:SPANS_PER_SENDING], self._waiting[SPANS_PER_SENDING:]
            taken = False
            try:
                taken = await asyncio.to_thread(self._sender.send, spans)
            finally:
                self._left += 0 if taken else len(spans)
            if self._left:
                log.warning(
                    "%d spans up to position %d of %s were not taken; `refold trace` sends them again",
                    self._left,
                    spans[-1].position,
                    self._log,
                )
                self._left = 0

    def _all_sent(self) -> None:
        self._sending = None
