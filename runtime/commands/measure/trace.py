"""`refold trace LOG [SESSION]`: what took how long, as spans; to a collector of OpenTelemetry too."""

from collections.abc import Mapping
from contextlib import ExitStack, aclosing, closing
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import EXIT_FOUND, EXIT_OK, JsonOption, LogArgument, argument, command, option
from refold.commands.output import cell, console, counted, table, tell, write_json, write_paragraph, write_table
from refold.inspection.times import duration_words

if TYPE_CHECKING:
    from refold.tracing import SpanSender, TraceSpan

SPANS_PER_SENDING = 500

BAR = 24
"""Characters of the bar that shows when a span was."""


@command
async def trace(
    log: LogArgument,
    session: Annotated[str | None, argument("SESSION", "One session; without, all.")] = None,
    otlp: Annotated[str | None, option("--otlp", "URL", "Send them to a collector, such as http://host:4318.")] = None,
    after: Annotated[int, option("--after", "POSITION", "Only those that ended behind this position.", min=0)] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for those to come.")] = False,
    content: Annotated[bool, typer.Option("--content", help="Also what people, models and tools said.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Show what took how long: runs, model calls, tools, waits for people; or send that as spans by OTLP over HTTP.

    Names follow OpenTelemetry's conventions for generative AI. The same log gives the same spans each time, so what was
    sent twice is one trace. The request headers that a collector wants come from OTEL_EXPORTER_OTLP_HEADERS, the
    service's name from OTEL_SERVICE_NAME. Exit code 1: the collector did not take all.

    JSON: one line for each span: {trace, span, parent, name, kind, start, end, position, attributes: {NAME: value},
    events: [{name, at, attributes}], error}; times are microseconds since the epoch.
    """
    if follow and otlp is None and not as_json:
        raise typer.BadParameter("--follow goes with --otlp or --json")
    from refold.inspection.log_reading import opened, session_head
    from refold.tracing import read_spans

    waiting: list[TraceSpan] = []
    sent = lost = 0
    with ExitStack() as stack:
        sender = stack.enter_context(closing(_sender(otlp))) if otlp is not None else None
        async with opened(log) as store:
            if session is not None:
                await session_head(store, session)
            spans = read_spans(store, after=after, session=session, content=content, follow=follow)
            async with aclosing(spans):
                async for span in spans:
                    if as_json:
                        write_json(span)
                    if not follow or sender is not None:
                        waiting.append(span)
                    if sender is not None and (follow or len(waiting) == SPANS_PER_SENDING):
                        sent, lost, waiting = sent + len(waiting), lost + _send(sender, waiting), []
        if sender is not None:
            sent, lost = sent + len(waiting), lost + _send(sender, waiting)
            tell(f"{counted(sent, 'span')} sent" + (f", of which {lost:,} were not taken" if lost else ""))
        elif not as_json:
            _write(waiting)
    return EXIT_FOUND if lost else EXIT_OK


def _send(sender: "SpanSender", spans: "list[TraceSpan]") -> int:
    """Send spans; return how many were not taken."""
    return 0 if sender.send(spans) else len(spans)


def _sender(url: str) -> "SpanSender":
    from refold.events.core.errors import needed_by
    from refold.tracing import SpanSender

    with needed_by("traces", extra="otel"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"--otlp is the URL of a collector, such as http://host:4318, not {url!r}")
    endpoint = url if url.endswith("/v1/traces") else f"{url.rstrip('/')}/v1/traces"
    return SpanSender(OTLPSpanExporter(endpoint=endpoint))


def _write(spans: "list[TraceSpan]") -> None:
    """Write the spans of each trace as a tree, in order of their beginnings, with a bar to scale."""
    if not spans:
        write_paragraph(console(), "no span has ended")
        return
    known = {(span.trace, span.span): span for span in spans}
    lines = [(_line(span, known), span) for span in spans]
    rows = table("SPAN", "#TIME", "WHEN", "ERROR")
    for line, span in sorted(lines, key=lambda each: (each[0][-1].start, each[1].trace, each[1].start, -each[1].end)):
        root, depth = line[-1], len(line) - 1
        first, last = (_place(at, root) for at in (span.start, span.end))
        bar = " " * min(first, BAR - 1) + "━" * max(1, last - first)
        session = span.attributes["gen_ai.conversation.id"]
        name = "│ " * (depth - 1) + f"└ {span.name}" if depth else f"{span.name} ({session})"
        rows.add_row(cell(name, 60), duration_words(span.end - span.start), bar.ljust(BAR), cell(span.error or ""))
    write_table(console(), rows)


def _line(span: "TraceSpan", known: "Mapping[tuple[str, str], TraceSpan]") -> "list[TraceSpan]":
    """Return a span and those above it; callers say what is above a run, so that a log may have a circle of them."""
    line = [span]
    while span.parent is not None and (above := known.get((span.trace, span.parent))) and above not in line:
        span = above
        line.append(span)
    return line


def _place(at: int, root: "TraceSpan") -> int:
    """Return where in the bar of a root a time is; a run may outlive what its caller says is above it."""
    return round(min(max((at - root.start) / (root.end - root.start or 1), 0), 1) * BAR)
