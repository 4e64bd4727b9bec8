"""`refold replay LOG --agent AGENT --try N`: sessions tried again with the agent's real model."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from refold.commands.execution import EXIT_FOUND, EXIT_INTERRUPTED, EXIT_NOT_COMPARED, EXIT_OK, CommandAnswer
from refold.commands.output import Progress, cell, counted, one_line, table, tell, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from refold.agents.agent import AnyAgent
    from refold.events.model.spending import TreeBudget
    from refold.replay.trial.report import TrialReport, TriedSession, TriedSide

PARTS_SHOWN = 6
"""So many differences of a session are shown, and the others counted."""

LINE_CHARACTERS = 500


class WantedTrial(NamedTuple):
    """What of a command's line says what is to be tried, and what is to come of it."""

    sessions: int
    session: str | None
    limits: "TreeBudget | None"
    rules: Sequence[str]
    allow_missing: Sequence[str]
    html: Path | None
    quiet: bool


async def tried(
    log: Path, agent: "AnyAgent | None", deps: object, jobs: int, wanted: WantedTrial, narrowed: bool
) -> CommandAnswer:
    """Try sessions, write what came of it, and return the exit code; `narrowed`: other options were given, too.

    Raises:
        ConfigError: what is wanted makes no sense.
        typer.BadParameter: options do not go together, or there is no limit.
    """
    from refold.replay.trial.page import write_page
    from refold.replay.trial.trial import Trial

    if agent is None or narrowed:
        raise typer.BadParameter("--try needs --agent, and goes with SESSION, --deps, --jobs and its own options")
    if wanted.limits is None:
        raise typer.BadParameter(
            "models are really asked, so --try needs --budget, in the currency of the agent's prices, --tokens or "
            "--requests"
        )
    html = wanted.html
    interrupted = False
    with Progress(quiet=wanted.quiet) as progress:
        trial = Trial(
            agent,
            wanted.limits,
            sessions=wanted.sessions,
            fail_if=wanted.rules,
            deps=deps,
            jobs=jobs,
            progress=lambda done, calls: progress(f"sessions, {counted(calls, 'model call')}", done, wanted.sessions),
        )
        try:
            await trial.run(log, wanted.session)
        except asyncio.CancelledError:  # Ctrl-C: what there is was paid for.
            interrupted = True
    report = trial.report()
    if html is not None:
        await write_page(html, report)
        tell(f"written to {html}")
    missing = [line for line in report.missing() if not any(text in line for text in wanted.allow_missing)]
    code = EXIT_FOUND if report.failed else EXIT_NOT_COMPARED if missing else EXIT_OK
    return CommandAnswer(report, lambda to: _write(to, report, missing), EXIT_INTERRUPTED if interrupted else code)


def _write(to: "Console", report: "TrialReport", missing: Sequence[str]) -> None:
    if report.tried:
        rows = table("SESSION", "#LIKE IT", "OUTCOME", "CALLS", "ARGUMENTS", "ANSWER", "#TOKENS", "#COST", "FROM")
        for each in report.tried:
            rows.add_row(*_cells(each))
        write_table(to, rows)
    for each in report.tried:
        _write_session(to, each)
    for line in missing:
        write_paragraph(to, f"not tried: {one_line(line, LINE_CHARACTERS)}", style="red")
    looked = (
        f"{counted(report.sessions, 'session')} of {one_line(report.agent)}, {counted(report.paths, 'kind')} of path"
    )
    left_out = f"; {counted(report.forks, 'fork')} left out" if report.forks else ""
    same = f"; in {counted(report.unchanged, 'session')} nothing differs" if report.unchanged else ""
    write_paragraph(to, f"{looked}{left_out}{same}")
    write_paragraph(
        to,
        f"{counted(report.calls, 'model call')}, {_tokens(report):,} tokens"
        + (f", {report.cost:.4g}" if report.cost else "")
        + f"; limit: {report.limits}",
    )
    for rule in report.rules:
        style = "red" if rule.holds else ""
        names = f": {', '.join(map(one_line, rule.sessions[:10]))}" if rule.holds and rule.sessions else ""
        said = "fails" if rule.holds else "passes"
        write_paragraph(to, f"{said}: {one_line(rule.rule)} ({rule.words}){names}", style=style)
    write_paragraph(to, _verdict(report), style="bold red" if report.failed else "bold")


def _verdict(report: "TrialReport") -> str:
    if not report.tried:
        return "no session was tried" if report.ended else "nothing differs, so no model was asked"
    differ = sum(
        each.outcome_differs or each.calls_differ or each.arguments_differ or each.answer_differs
        for each in report.tried
    )
    ended = sum(each.status == "ended" for each in report.tried)
    return f"{counted(len(report.tried), 'session')} tried, {ended} to the end; {differ} differ"


def _cells(each: "TriedSession") -> tuple[str, ...]:
    def said(differs: bool) -> str:
        return "differs" if differs else "same" if each.status == "ended" else f"({each.status})"

    then, now = each.then, each.now
    calls = f"{len(then.calls)} -> {len(now.calls)}" if each.calls_differ else "same"
    return (
        cell(each.session),
        f"{each.like:,}",
        said(each.outcome_differs),
        calls,
        "differ" if each.arguments_differ else "same",
        said(each.answer_differs),
        f"{_tokens(then):,} -> {_tokens(now):,}",
        f"{then.cost:.4g} -> {now.cost:.4g}" if then.cost or now.cost else "-",
        cell(each.first, 200),
    )


def _write_session(to: "Console", each: "TriedSession") -> None:
    write_paragraph(to, f"{one_line(each.session)}: path {each.path}: {one_line(each.words, LINE_CHARACTERS)}")
    if each.guessed:
        write_paragraph(to, f"{counted(each.guessed, 'call')} got the result of one with other arguments", indent=2)
    for part in each.parts[:PARTS_SHOWN]:
        write_paragraph(to, f"{part.what}: {one_line(part.words, LINE_CHARACTERS)}", indent=2)
    if each.found > PARTS_SHOWN:
        write_paragraph(to, f"and {each.found - PARTS_SHOWN:,} more", indent=2)


def _tokens(side: "TriedSide | TrialReport") -> int:
    from refold.events.model.spending import total_tokens

    return total_tokens(side.usage)
