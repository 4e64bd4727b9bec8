"""What `refold simulate` writes: how far it is, tables of what was met and what was kept, and what was broken."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, get_args

from refold.commands.output import cell, console, counted, shell_word, table, write_json, write_paragraph, write_table
from refold.scenarios.failure_artifact import FailureArtifact
from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.monitor import PROMISES, SITUATIONS, Situation, verdict_on
from refold.scenarios.ready import NAMES, ready_scenario
from refold.scenarios.report import SimulationReport
from refold.scenarios.sweep import SweepPlan, SweepSummary

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

COLUMNS: dict[Situation, str] = {
    "model call open": "model call",
    "tool running": "tool",
    "awaiting approval": "approval",
    "retry pending": "retry",
    "queued input": "queued",
    "otherwise": "other",
}
"""How columns are headed whose whole names would make the table too wide."""

ACTS_SHOWN = 50
"""What so many acts came to is shown; of further ones it is counted."""

SEEDS_NAMED = 8
"""So many seeds that break a promise are named."""


@contextmanager
def progress(wanted: int | None) -> Generator[Callable[[SweepSummary, float], None]]:
    """Show on a terminal's stderr how far a sweep is; what is given takes what there is so far, and seconds."""
    with live_line() as show:
        yield lambda summary, seconds: show(progress_words(summary, seconds, wanted))


@contextmanager
def live_line() -> Generator[Callable[[str], None]]:
    """Show a line on a terminal's stderr, which is gone at the end; what is given takes what it says now."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    to = Console(stderr=True, highlight=False)
    if not to.is_terminal:
        yield lambda words: None
        return
    with Live(console=to, refresh_per_second=8, transient=True) as live:
        yield lambda words: live.update(Text(words, no_wrap=True))


def progress_words(summary: SweepSummary, seconds: float, wanted: int | None) -> str:
    seeds = f"{summary.seeds:,}" if wanted is None else f"{summary.seeds:,} of {wanted:,}"
    broken = f", broken: {', '.join(summary.broken)}" if summary.broken else ""
    return (
        f"{seeds} seeds, {summary.seeds / max(seconds, 0.001):.1f} a second, {counted_lives(summary.lives)}, "
        f"{counted(summary.happened.total(), 'fault')}{broken}"
    )


def counted_lives(lives: int) -> str:
    return f"{lives:,} {'life' if lives == 1 else 'lives'}"


def write_many(
    plan: SweepPlan,
    first: int,
    summary: SweepSummary,
    seconds: float,
    violation: FailureArtifact | None,
    *,
    repeats: bool,
    as_json: bool,
) -> None:
    if as_json:
        write_json(_many_as_json(plan, first, summary, seconds, violation, repeats))
        return
    to = console()
    faults = f"{summary.happened.total():,} of {counted(summary.planned.total(), 'planned fault')} happened"
    write_paragraph(
        to,
        f"{counted(summary.seeds, 'seed')} from {first} in {seconds:.1f} s "
        f"({summary.seeds / max(seconds, 0.001):.1f} a second): {counted_lives(summary.lives)}, {faults}, "
        f"{counted(summary.events, 'event')}, {duration_words(summary.virtual_s)} of virtual time",
        style="bold",
    )
    write_paragraph(to, tools_words(plan))
    repeated = summary.first is None or repeats
    _write_doubts(to, sorted(summary.refused), None if repeated else plan.not_repeated(f"seed {first}"))
    write_paragraph(to, "")
    _write_coverage(to, summary)
    write_paragraph(to, "")
    _write_promises(to, summary)
    if violation is not None:
        again = f"--seed {summary.first_broken.scenario.seed}{drawing_words(plan)}" if summary.first_broken else None
        _write_failure(to, plan, violation, again)
    elif summary.first_broken is not None:
        write_paragraph(
            to, f"\nseed {summary.first_broken.scenario.seed}: {summary.first_broken.broken[0]}", style="bold red"
        )


def write_one(
    plan: SweepPlan,
    title: str,
    again: str | None,
    report: SimulationReport,
    violation: FailureArtifact | None,
    log: "Path | None",
    *,
    repeats: bool,
    as_json: bool,
) -> None:
    """Write what came of one scenario.

    Args:
        plan: says whose it is.
        title: what the scenario is called.
        again: the options that play it again; None = there are none but those of the file that it is saved in.
        report: what came of it.
        violation: what it is shrunk to, if a promise is broken.
        log: where its log lies, if it was to be saved.
        repeats: whether it gave the same log the second time.
        as_json: for programs.
    """
    if as_json:
        saved = str(log) if log is not None else None
        write_json({"report": report, "repeats": repeats, "log": saved, "violation": violation})
        return
    to = console()
    write_paragraph(
        to,
        f"{title}: {counted_lives(report.lives)}, "
        f"{counted(report.steps, 'step')}, {counted(report.events, 'event')}, "
        f"{duration_words(report.virtual_s)} of virtual time",
        style="bold",
    )
    write_paragraph(to, tools_words(plan))
    write_paragraph(to, f"the log's digest is {report.digest}")
    _write_doubts(to, report.refused, None if repeats else plan.not_repeated(title))
    write_paragraph(to, "")
    _write_acts(to, report)
    happened = list(map(id, report.happened))
    if report.scenario.faults:
        write_paragraph(to, "")
        rows = table("HAPPENED", "FAULT")
        for fault in report.scenario.faults:
            rows.add_row("yes" if id(fault) in happened else "no", cell(repr(fault), 100))
        write_table(to, rows)
    write_paragraph(to, "")
    broken = [item.rule for item in report.broken]
    rows = table("PROMISE", "VERDICT", "WHAT IT SAYS")
    for rule, says in PROMISES.items():
        rows.add_row(rule, verdict_on(rule, broken=broken, exercised=report.exercised), says)
    write_table(to, rows)
    if violation is not None:
        _write_failure(to, plan, violation, again)
    if log is not None:
        write_paragraph(to, f"\nits log: {log}")


def _write_doubts(to: "Console", refused: Sequence[str], not_repeated: str | None) -> None:
    """Write what makes a rehearsal say less than it seems to."""
    if refused:
        write_paragraph(
            to,
            f"refused: {'; '.join(refused)}. A simulation has nothing outside, so what needs it is not rehearsed",
            style="yellow",
        )
    if not_repeated is not None:
        write_paragraph(to, not_repeated, style="yellow")


def _write_acts(to: "Console", report: SimulationReport) -> None:
    rows = table("#AT", "SESSION", "ACT", "OUTCOME")
    acts = sorted(zip(report.scenario.acts, report.outcomes, strict=True), key=lambda it: it[0].at_s)
    for act, outcome in acts[:ACTS_SHOWN]:
        rows.add_row(f"{act.at_s:.2f}", cell(act.session), type(act).__name__, outcome or "none")
    write_table(to, rows)
    if acts[ACTS_SHOWN:]:
        outcomes = Counter(outcome or "none" for _, outcome in acts[ACTS_SHOWN:])
        counts = ", ".join(f"{outcome} {times:,}" for outcome, times in sorted(outcomes.items()))
        write_paragraph(to, f"and {counted(len(acts) - ACTS_SHOWN, 'further act')}: {counts}")


def write_ready(*, as_json: bool) -> None:
    """Write which ready scenarios there are, each with the first line of its story."""
    titles = {name: (ready_scenario(name).__doc__ or "").partition("\n")[0] for name in NAMES}
    if as_json:
        write_json({"ready": titles})
        return
    rows = table("NAME", "WHAT HAPPENS")
    for name, title in titles.items():
        rows.add_row(name, title)
    write_table(console(), rows)


def _write_coverage(to: "Console", summary: SweepSummary) -> None:
    """Write which faults met sessions doing what; a pair that never met shows as 0."""
    rows = table("FAULT", "#PLANNED", "#HAPPENED", *map(_column, SITUATIONS))
    for name in sorted(summary.planned):
        met = (f"{summary.met[name, situation]:,}" for situation in SITUATIONS)
        rows.add_row(name, f"{summary.planned[name]:,}", f"{summary.happened[name]:,}", *met)
    write_table(to, rows)
    never = sorted({kind.__name__ for kind in get_args(AnyFault)} - set(summary.planned))
    if never:
        write_paragraph(to, f"never planned: {', '.join(never)}")


def _column(situation: Situation) -> str:
    return f"#{COLUMNS.get(situation, situation).upper()}"


def _write_promises(to: "Console", summary: SweepSummary) -> None:
    rows = table("PROMISE", "VERDICT", "#EXERCISED", "#VIOLATED", "WHAT IT SAYS")
    for rule, verdict in summary.verdicts().items():
        figures = (f"{summary.exercised[rule]:,}", f"{len(summary.broken.get(rule, ())):,}")
        rows.add_row(rule, verdict, *figures, PROMISES.get(rule, ""))
    write_table(to, rows)
    for rule, seeds in summary.broken.items():
        named = ", ".join(map(str, seeds[:SEEDS_NAMED]))
        more = f" and {len(seeds) - SEEDS_NAMED:,} more" if len(seeds) > SEEDS_NAMED else ""
        write_paragraph(to, f"{rule} is violated by seed {named}{more}", style="red")


def _write_failure(to: "Console", plan: SweepPlan, violation: FailureArtifact, again: str | None) -> None:
    agent, options = shell_word(plan.agent), options_words(plan)
    acts, faults = len(violation.scenario.acts), len(violation.scenario.faults)
    write_paragraph(to, f"\nviolated: {violation.broken}", style="bold red")
    write_paragraph(
        to,
        f"This scenario is enough: {counted(acts, 'act')} of {len(violation.original.acts)}, "
        f"{counted(faults, 'fault')} of {len(violation.original.faults)} "
        f"({violation.tries} smaller ones were tried).\n",
    )
    write_paragraph(to, violation.code, indent=4)
    if violation.unsaved is not None:
        write_paragraph(to, f"not all of it is saved: {violation.unsaved}", style="red")
    write_paragraph(to, "Look into it:")
    stream = violation.broken.stream.partition("/")[2]
    commands: list[str] = []
    if violation.log is not None:
        log = shell_word(violation.log)
        commands += [f"refold check {log}", f"refold replay {log}"]
        commands += [f"refold show {log} {shell_word(stream)} --events"] if stream else []
    commands += [
        *([f"refold simulate {agent} --scenario {shell_word(violation.file)}{options}"] if violation.file else []),
        *([f"refold simulate {agent} {again}{options}"] if again is not None else []),
    ]
    if violation.test is not None:
        commands.append(f"python -m pytest {shell_word(violation.test)}")
    for command in commands:
        write_paragraph(to, command, indent=4)


def tools_words(plan: SweepPlan) -> str:
    if plan.own_tools:
        return "the bodies of the agent's own tools ran"
    return "stand-ins took the places of the tools' bodies; --own-tools runs them"


def options_words(plan: SweepPlan) -> str:
    """Return the options, beside those of the drawing, that repeat what was played."""
    return " --own-tools" if plan.own_tools else ""


DRAWING_OPTIONS: dict[str, tuple[str, object]] = {
    "sessions": ("--sessions", 3),
    "acts": ("--acts", 8),
    "faults_max": ("--faults", 6),
    "store": ("--store", "memory"),
    "wire": ("--wire", "none"),
}
"""The option and its default for each thing that scenarios are drawn by."""


def drawing_words(plan: SweepPlan) -> str:
    """Return the options that draw the same scenarios."""
    given = ((*DRAWING_OPTIONS[name], value) for name, value in plan.drawing.items())
    return "".join(f" {option} {value}" for option, default, value in given if value != default)


def duration_words(seconds: float) -> str:
    """Return a time in the largest unit of which there is at least one."""
    for unit, size in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _many_as_json(
    plan: SweepPlan, first: int, summary: SweepSummary, seconds: float, violation: FailureArtifact | None, repeats: bool
) -> dict[str, object]:
    return {
        "agent": plan.agent,
        "seeds": summary.seeds,
        "first": first,
        "seconds": round(seconds, 3),
        "repeats": repeats,
        "refused": sorted(summary.refused),
        "lives": summary.lives,
        "steps": summary.steps,
        "events": summary.events,
        "virtual_s": summary.virtual_s,
        "faults": {
            name: {
                "planned": summary.planned[name],
                "happened": summary.happened[name],
                "met": {situation: summary.met[name, situation] for situation in SITUATIONS},
            }
            for name in sorted(summary.planned)
        },
        "promises": {
            rule: {"verdict": verdict, "exercised": summary.exercised[rule], "seeds": summary.broken.get(rule, [])}
            for rule, verdict in summary.verdicts().items()
        },
        "violation": violation,
    }
