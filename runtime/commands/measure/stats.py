"""`refold stats LOG [SESSION]`: what sessions thought, did and saw, and how they went."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from refold.commands.execution import CommandAnswer, JsonOption, LogArgument, argument, command, option
from refold.commands.measure.metrics import cost_words, models_table
from refold.commands.output import NAME_CHARACTERS, cell, counted, one_line, table, write_paragraph, write_table
from refold.inspection.times import duration_words

if TYPE_CHECKING:
    from rich.console import Console

    from refold.metrics import SessionStatistics, Step

TEXT_CHARACTERS = 300
"""After so many characters a thought, an action or an observation is cut."""

DERIVED = ("thoughts", "actions", "observations")


@command
async def stats(
    log: LogArgument,
    session: Annotated[str | None, argument("SESSION", "One session; without, all.")] = None,
    at: Annotated[int | None, option("--at", "N", "As it was after version N of the session.")] = None,
    as_json: JsonOption = False,
) -> CommandAnswer:
    """Show the steps of a session: what was thought, done and seen; or how all sessions of a log went.

    JSON: {session, version, steps: [{run, turn, thought, actions: [{call, tool, input, observation, kind, ended_at,
    attempts}], answer, rejected, started_at, answered_at, ended_at, failed}], inputs, runs_started, runs_completed,
    runs_failed, runs_cancelled, final_answer, duration_s, usage, memory_hits, models: {NAME: {calls, ..., cost_nano}},
    cost, retries, thoughts, actions, observations, tool_calls, failed_tool_calls, successful_steps}; the last three are
    numbers, and `retries` is how often a tool call was tried again.
    Without SESSION {log, sessions: [{session, version, steps, ...}]}, where `steps` is a number too and texts are left
    out, and a session that cannot be read has {session, error}. Times are microseconds since the epoch.
    """
    if session is None and at is not None:
        raise typer.BadParameter("--at is a version of one session; name the session")
    return await (_session(log, session, at) if session is not None else _sessions(log))


async def _session(log: Path, session: str, at: int | None) -> CommandAnswer:
    from refold.metrics import read_statistics

    statistics = await read_statistics(log, session, at=at)
    texts = {name: list(getattr(statistics, name)) for name in DERIVED}
    steps = [_step_document(step) for step in statistics.steps]
    document = {"session": session, **_figures(statistics), "steps": steps, **texts}
    return CommandAnswer(document, lambda to: _write(to, statistics))


async def _sessions(log: Path) -> CommandAnswer:
    from refold.events.core.errors import LogFormatError
    from refold.inspection.log_reading import Streams, opened
    from refold.metrics import read_statistics

    documents: list[dict[str, object]] = []
    rows = table("SESSION", "#RUNS", "#STEPS", "#CALLS", "#FAILED", "#TOKENS IN", "#TOKENS OUT", "#COST", "OPEN FOR")
    async with opened(log) as store:
        async for head in Streams(store, prefix="session/"):
            session = head.stream.removeprefix("session/")
            try:
                statistics = await read_statistics(store, session)
            except LogFormatError as error:
                documents.append({"session": session, "error": str(error)})
                rows.add_row(cell(session, NAME_CHARACTERS), *[""] * 7, "damaged; `refold check` says where")
            else:
                documents.append({"session": session, **_figures(statistics)})
                rows.add_row(cell(session, NAME_CHARACTERS), *_cells(statistics))
    return CommandAnswer(
        {"log": log, "sessions": documents},
        lambda to: write_table(to, rows) if documents else to.print("the log has no sessions"),
    )


def _figures(statistics: "SessionStatistics") -> dict[str, object]:
    """Return what can be said of a session without its texts."""
    fields = {name: getattr(statistics, name) for name in statistics.__struct_fields__ if name != "append_errors"}
    numbers = ("steps", "tool_calls", "failed_tool_calls", "successful_steps")
    figures = {"cost": statistics.cost, "retries": statistics.retries}
    return {**fields, **figures, **{name: len(getattr(statistics, name)) for name in numbers}}


def _step_document(step: "Step") -> dict[str, object]:
    return {**msgspec.structs.asdict(step), "ended_at": step.ended_at, "failed": step.failed}


def _cells(statistics: "SessionStatistics") -> list[str]:
    usage = statistics.usage
    figures = (
        statistics.runs_started,
        len(statistics.steps),
        len(statistics.tool_calls),
        len(statistics.failed_tool_calls),
        usage.input_tokens,
        usage.output_tokens,
    )
    return [
        *(f"{figure:,}" for figure in figures),
        cost_words(statistics.cost),
        duration_words(int(statistics.duration_s * 1_000_000)),
    ]


def _write(to: "Console", statistics: "SessionStatistics") -> None:
    from refold.inspection.summaries import usage_words

    for step in statistics.steps:
        _write_step(to, step)
    runs = (
        f"{counted(statistics.runs_started, 'run')}: {statistics.runs_completed:,} completed, "
        f"{statistics.runs_failed:,} failed, {statistics.runs_cancelled:,} cancelled; "
        f"open for {duration_words(int(statistics.duration_s * 1_000_000))}"
    )
    calls = f"{counted(len(statistics.tool_calls), 'tool call')}, {len(statistics.failed_tool_calls):,} failed"
    if statistics.retries:
        calls += f", {statistics.retries:,} retried"
    write_paragraph(to, runs, style="bold")
    write_paragraph(to, f"{counted(len(statistics.steps), 'step')}, {calls}; {usage_words(statistics.usage)}")
    if statistics.cost or len(statistics.models) > 1:
        write_table(to, models_table(statistics.models))
    if statistics.final_answer is not None:
        write_paragraph(to, f"answer: {one_line(statistics.final_answer, TEXT_CHARACTERS)}")


def _write_step(to: "Console", step: "Step") -> None:
    took = "" if step.duration_s is None else f"  {duration_words(int(step.duration_s * 1_000_000))}"
    write_paragraph(to, f"{step.run} turn {step.turn}{took}", style="bold")
    if step.thought:
        write_paragraph(to, f"thought: {one_line(step.thought, TEXT_CHARACTERS)}", indent=2)
    for action in step.actions:
        write_paragraph(to, f"action: {one_line(action.text, TEXT_CHARACTERS)}", indent=2)
        seen = "(none yet)" if action.observation is None else one_line(action.observation, TEXT_CHARACTERS)
        failed = f" ({action.kind})" if action.kind is not None else ""
        if action.attempts > 1:
            failed += f" (attempt {action.attempts})"
        write_paragraph(to, f"observation{failed}: {seen}", indent=2)
    if step.answer:
        write_paragraph(to, f"answer: {one_line(step.answer, TEXT_CHARACTERS)}", indent=2)
    if step.rejected:
        write_paragraph(to, f"rejected: {one_line(step.rejected, TEXT_CHARACTERS)}", indent=2)
