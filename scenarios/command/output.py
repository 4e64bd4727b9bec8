"""What `refold simulate` writes: tables of what was met and what was kept, and what was broken."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from refold.commands.output import cell, console, counted, shell_word, table, write_json, write_paragraph, write_table
from refold.scenarios.command.log_crashes import CrashSummary
from refold.scenarios.failure_artifact import FailureArtifact
from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.monitor import PROMISES, SITUATIONS, RuleVerdict, Situation
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
    "awaiting answer": "answer",
    "retry pending": "retry",
    "queued input": "queued",
    "otherwise": "other",
}
"""How columns are headed whose whole names would make the table too wide."""

VERDICT_WORDS: dict[RuleVerdict, str] = {"hold": "holds"}
"""What a verdict is called beside the name of its promise."""

ACTS_SHOWN = 50
"""What so many acts came to is shown; of further ones it is counted."""

SEEDS_NAMED = 8
"""So many seeds that break a promise are named."""


def progress_words(summary: SweepSummary) -> str:
    return (
        f"seeds, {counted_lives(summary.lives)}, {counted(summary.happened.total(), 'fault')}"
        f"{broken_words(summary.broken)}"
    )


def broken_words(broken: Collection[str]) -> str:
    return f", broken: {', '.join(broken)}" if broken else ""


NAMES_SHOWN = 6
"""So many names stand in one sentence; further ones are counted."""


def closing_sentence(
    over: str, verdicts: Mapping[str, RuleVerdict], then: str, *, faults_without: Sequence[str] = ()
) -> str:
    """Return what held, what is violated, what was not exercised, and what to do next."""
    rules: dict[RuleVerdict, list[str]] = {"hold": [], "violated": [], "not exercised": []}
    for rule, verdict in verdicts.items():
        rules[verdict].append(rule)
    left_out = rules["not exercised"] + [f"the fault {name}" for name in faults_without]
    said = [f"{len(rules['hold'])} of {counted(len(verdicts), 'promise')} held"]
    for names, words in ((rules["violated"], "violated"), (left_out, "not exercised")):
        if names:
            said.append(f"{_listed(names)} {'was' if len(names) == 1 else 'were'} {words}")
    if not left_out:
        said.append("nothing was left out")
    return f"In {over}, {', '.join(said[:-1])}{',' if len(said) > 2 else ''} and {said[-1]}; {then}."


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:NAMES_SHOWN], *([f"{len(names) - NAMES_SHOWN} more"] if len(names) > NAMES_SHOWN else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


BROKEN_NEXT = "find the cause with the commands above, then play it again until it holds"


def _next_sweep(plan: SweepPlan, summary: SweepSummary) -> str:
    if summary.broken:
        return BROKEN_NEXT
    again = f"refold simulate {shell_word(plan.agent)}{options_words(plan)}{drawing_words(plan)}"
    more = " --store sqlite" if plan.drawing.get("store", "memory") == "memory" else ""
    more += " --wire openai" if plan.drawing.get("wire", "none") == "none" else ""
    if more:
        own = "" if plan.own_tools else ", and --own-tools runs the bodies of your tools, where that is safe"
        return f"next, `{again}{more}` plays more of what this left out{own}"
    if "not exercised" in summary.verdicts().values():
        return f"next, `{again} --seeds {max(10 * summary.seeds, 100)}` plays more"
    return f"next, let `{again}` run with your tests"


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
    write_promises(to, summary, "by seed")
    if violation is not None:
        again = f"--seed {summary.first_broken.scenario.seed}{drawing_words(plan)}" if summary.first_broken else None
        _write_failure(to, plan, violation, again)
    elif summary.first_broken is not None:
        write_paragraph(
            to, f"\nseed {summary.first_broken.scenario.seed}: {summary.first_broken.broken[0]}", style="bold red"
        )
    never = sorted(set(summary.planned) - set(+summary.happened))
    then = _next_sweep(plan, summary)
    said = closing_sentence(counted(summary.seeds, "seed"), summary.verdicts(), then, faults_without=never)
    write_paragraph(to, f"\n{said}", style="bold")


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
    """Write what came of one scenario; `again` holds the options that play it again."""
    if as_json:
        write_json({"report": report, "repeats": repeats, "log": log, "violation": violation})
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
    rows = table("PROMISE", "VERDICT", "WHAT IT SAYS")
    verdicts = report.verdicts()
    for rule, verdict in verdicts.items():
        rows.add_row(rule, VERDICT_WORDS.get(verdict, verdict), PROMISES[rule])
    write_table(to, rows)
    if violation is not None:
        _write_failure(to, plan, violation, again)
    if log is not None:
        write_paragraph(to, f"\nits log: {log}")
    others = f"refold simulate {shell_word(plan.agent)}{options_words(plan)}{drawing_words(plan)}"
    then = BROKEN_NEXT if report.broken else f"next, `{others}` plays many others"
    write_paragraph(to, f"\n{closing_sentence(title, verdicts, then)}", style="bold")


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
    titles = {name: (ready_scenario(name).__doc__ or "").partition("\n")[0] for name in NAMES}
    if as_json:
        write_json({"ready": titles})
        return
    rows = table("NAME", "WHAT HAPPENS")
    for name, title in titles.items():
        rows.add_row(name, title)
    write_table(console(), rows)


def _write_coverage(to: "Console", summary: SweepSummary) -> None:
    """Write which faults met sessions doing what; a pair that never met shows as 0, in a narrow terminal not at all."""
    rows = table("FAULT", "#PLANNED", "#HAPPENED", *map(_column, SITUATIONS))
    for name in sorted(summary.planned):
        met = (f"{summary.met[name, situation]:,}" for situation in SITUATIONS)
        rows.add_row(name, f"{summary.planned[name]:,}", f"{summary.happened[name]:,}", *met)
    write_table(to, rows, without="0")
    never = sorted({kind.__name__ for kind in get_args(AnyFault)} - set(summary.planned))
    if never:
        write_paragraph(to, f"never planned: {', '.join(never)}")


def _column(situation: Situation) -> str:
    return f"#{COLUMNS.get(situation, situation).upper()}"


def write_promises(to: "Console", summary: SweepSummary | CrashSummary, by: str) -> None:
    """Write the verdict on each promise, and `by` what it is violated."""
    rows = table("PROMISE", "VERDICT", "#EXERCISED", "#VIOLATED", "WHAT IT SAYS")
    for rule, verdict in summary.verdicts().items():
        figures = (f"{summary.exercised[rule]:,}", f"{len(summary.broken.get(rule, ())):,}")
        rows.add_row(rule, VERDICT_WORDS.get(verdict, verdict), *figures, PROMISES.get(rule, ""))
    write_table(to, rows)
    for rule, places in summary.broken.items():
        named = ", ".join(map(str, places[:SEEDS_NAMED]))
        more = f" and {len(places) - SEEDS_NAMED:,} more" if len(places) > SEEDS_NAMED else ""
        write_paragraph(to, f"{rule} is violated {by} {named}{more}", style="red")


def promises_as_json(summary: SweepSummary | CrashSummary, places: str) -> dict[str, object]:
    return {
        rule: {"verdict": verdict, "exercised": summary.exercised[rule], places: summary.broken.get(rule, [])}
        for rule, verdict in summary.verdicts().items()
    }


def _write_failure(to: "Console", plan: SweepPlan, violation: FailureArtifact, again: str | None) -> None:
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
    for command in commands_of(plan, violation, again):
        write_paragraph(to, command, indent=4)


def commands_of(plan: SweepPlan, violation: FailureArtifact, again: str | None) -> list[str]:
    agent, options = shell_word(plan.agent), options_words(plan)
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
    return commands


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
        "promises": promises_as_json(summary, "seeds"),
        "violation": violation,
    }
