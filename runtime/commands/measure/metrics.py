"""`refold metrics LOG`: figures about everything in a log, as of any position."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from refold.commands.execution import EXIT_OK, CommandAnswer, JsonOption, LogArgument, command, option
from refold.commands.output import cell, counted, safe_lines, table, write_paragraph, write_table
from refold.inspection.times import time_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from refold.metrics import MetricsSnapshot, ModelCounts


@command
async def metrics(
    log: LogArgument,
    at: Annotated[int | None, option("--at", "POSITION", "As it was after that event of the log.")] = None,
    as_json: JsonOption = False,
    prometheus: Annotated[bool, typer.Option("--prometheus", help="Write Prometheus's text format.")] = False,
) -> int | CommandAnswer:
    """Count what is in a log: sessions, runs, steps, tool calls, tokens, by tool and by agent.

    The figures are folded from the log's events, so they are those that the runtime's own metrics showed at that
    moment. What leaves no event, such as an append that failed, is not among them.

    JSON: {position, at, sessions, active_sessions, inputs, runs_started, runs_completed, runs_failed, runs_cancelled,
    ..., cost_nano, tools: {NAME: {calls, successes, failures, failure_kinds, ...}}, agents: {NAME: {sessions,
    runs_started, ...}}, models: {NAME: {calls, answers, failures, retries, input_tokens, ..., cost_nano}}, events:
    {TYPE: number}, derived: {tool_calls, tool_failure_rate, most_called_tool, tool_diversity, cost, ...}}. A rate that
    would divide by 0 is null. `cost_nano` is in billionths of the currency of the agent's prices, `at` in microseconds
    since the epoch.
    """
    if as_json and prometheus:
        raise typer.BadParameter("--json and --prometheus are two formats; give one of them")
    from refold.metrics import read_metrics

    if prometheus:
        from refold.metrics.prometheus import prometheus_text, require_client

        require_client()
        typer.echo(safe_lines(prometheus_text(await read_metrics(log, at=at))).encode(), nl=False)
        return EXIT_OK
    snapshot = await read_metrics(log, at=at)
    return CommandAnswer(msgspec.Raw(snapshot.to_json().encode()), lambda to: _write(to, snapshot))


def _write(to: "Console", snapshot: "MetricsSnapshot") -> None:
    when = f", {time_words(snapshot.at)}" if snapshot.at else ""
    write_paragraph(to, f"up to position {snapshot.position:,}{when}", style="bold")
    for what, figures in _overview(snapshot):
        write_paragraph(to, f"{what:<10}{figures}")
    for rows in (models_table(snapshot.models), _tools(snapshot), _agents(snapshot), _events(snapshot)):
        if rows.row_count:
            write_paragraph(to, "")
            write_table(to, rows)
    for kind, number in snapshot.unreadable_events.items():
        write_paragraph(to, f"not counted, since this version cannot read them: {counted(number, kind + ' event')}")


def _overview(snapshot: "MetricsSnapshot") -> list[tuple[str, str]]:
    from refold.inspection.summaries import usage_words

    runs = (
        f"{snapshot.runs_started:,} started, {snapshot.runs_completed:,} completed, {snapshot.runs_failed:,} failed, "
        f"{snapshot.runs_cancelled:,} cancelled"
    )
    calls = (
        f"{snapshot.tool_calls:,}, {snapshot.tool_failures:,} failed ({share_words(snapshot.tool_failure_rate)}), "
        f"{snapshot.refused_calls:,} refused, {snapshot.tool_retries:,} retried"
    )
    return [
        ("sessions", f"{snapshot.sessions:,}, {snapshot.active_sessions:,} active"),
        ("runs", runs),
        ("steps", f"{snapshot.steps:,}"),
        ("models", f"{counted(snapshot.model_calls, 'call')}, {snapshot.model_failures:,} failed"),
        ("tokens", usage_words(snapshot.usage)),
        *((("cost", cost_words(snapshot.cost)),) if snapshot.cost_nano else ()),
        ("tools", calls),
        ("recalls", f"{snapshot.recalls:,}"),
    ]


def models_table(models: "Mapping[str, ModelCounts]") -> "Table":
    rows = table("MODEL", "#CALLS", "#FAILED", "#RETRIED", "#TOKENS IN", "#TOKENS OUT", "#CACHED", "#COST")
    for name, counts in models.items():
        figures = (
            counts.calls,
            counts.failures,
            counts.retries,
            counts.input_tokens,
            counts.output_tokens,
            counts.cache_read_tokens,
        )
        known = bool(counts.cost_nano) or not counts.unpriced
        cost = cost_words(counts.cost) if known else "-"
        rows.add_row(cell(name, 40), *(f"{figure:,}" for figure in figures), cost)
    return rows


def cost_words(cost: float) -> str:
    """Return an amount of money, whose currency only the application knows."""
    return f"{cost:,.6f}".rstrip("0").rstrip(".") if cost else "0"


def _tools(snapshot: "MetricsSnapshot") -> "Table":
    rows = table("TOOL", "#CALLS", "#RETRIED", "#SUCCEEDED", "#FAILED", "#RATIO", "ERRORS")
    for name, counts in snapshot.tools.items():
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in counts.failure_kinds.items())
        figures = (counts.calls, counts.retries, counts.successes, counts.failures)
        shown = (f"{figure:,}" for figure in figures)
        rows.add_row(cell(name, 40), *shown, share_words(counts.failure_ratio), cell(kinds))
    return rows


def _agents(snapshot: "MetricsSnapshot") -> "Table":
    rows = table("AGENT", "#SESSIONS", "#RUNS", "#FAILED", "#STEPS", "#TOOL CALLS", "#TOKENS OUT")
    for name, counts in snapshot.agents.items():
        figures = (
            counts.sessions,
            counts.runs_started,
            counts.runs_failed,
            counts.steps,
            counts.tool_calls,
            counts.output_tokens,
        )
        rows.add_row(cell(name, 40), *(f"{figure:,}" for figure in figures))
    return rows


def _events(snapshot: "MetricsSnapshot") -> "Table":
    rows = table("EVENT", "#NUMBER")
    for kind, number in snapshot.events.items():
        rows.add_row(cell(kind, 60), f"{number:,}")
    return rows


def share_words(share: float | None) -> str:
    """Return a ratio in per cent, or a dash where there is none."""
    return "-" if share is None else f"{share:.1%}"
