"""What `refold simulate --from` writes: what sessions were doing when the process died, and verdicts."""

import shlex
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from refold.commands.output import console, shell_word, table, write_json, write_paragraph, write_table
from refold.scenarios.command.log_crashes import CrashSummary
from refold.scenarios.command.output import SEEDS_NAMED, live_line
from refold.scenarios.monitors.monitor import PROMISES, SITUATIONS


@contextmanager
def crash_progress(wanted: int) -> Generator[Callable[[CrashSummary], None]]:
    """Show on a terminal's stderr how far it is; what is given takes what there is so far."""
    with live_line() as show:
        yield lambda summary: show(crash_words(summary, wanted))


def crash_words(summary: CrashSummary, wanted: int) -> str:
    broken = f", broken: {', '.join(summary.broken)}" if summary.broken else ""
    return f"{summary.tried.total():,} of {wanted:,} boundaries{broken}"


def write_crashes(
    log: Path,
    agent: str | None,
    own_tools: bool,
    boundaries: int,
    summary: CrashSummary,
    saved: Path | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        write_json(_as_json(log, agent, boundaries, summary, saved))
        return
    to = console()
    tried = summary.tried
    write_paragraph(
        to,
        f"{tried.total():,} of {boundaries:,} boundaries: the process died {tried['commit']:,} times after a commit, "
        f"and {tried['effect']:,} times more while what was in flight was done again",
        style="bold",
    )
    whose = f"the agent is {agent}" if agent is not None else "the agent is made of what the log says of it"
    write_paragraph(to, f"{whose}; {'its own tools ran' if own_tools else 'stand-ins took the places of its tools'}\n")
    rows = table("#BOUNDARIES", "THE SESSION")
    for situation in SITUATIONS:
        rows.add_row(f"{summary.situations[situation]:,}", situation)
    write_table(to, rows)
    write_paragraph(to, "")
    rows = table("PROMISE", "VERDICT", "#EXERCISED", "#VIOLATED", "WHAT IT SAYS")
    for rule, verdict in summary.verdicts().items():
        figures = (f"{summary.exercised[rule]:,}", f"{len(summary.broken.get(rule, ())):,}")
        rows.add_row(rule, verdict, *figures, PROMISES[rule])
    write_table(to, rows)
    for rule, places in summary.broken.items():
        named = ", ".join(f"{place.stream}@{place.version} ({place.kind})" for place in places[:SEEDS_NAMED])
        more = f" and {len(places) - SEEDS_NAMED:,} more" if len(places) > SEEDS_NAMED else ""
        write_paragraph(to, f"{rule} is violated after {named}{more}", style="red")
    if summary.first_broken is not None and saved is not None:
        first = summary.first_broken
        write_paragraph(to, f"\nviolated: {first.broken[0]}", style="bold red")
        stream = first.broken[0].stream.partition("/")[2]
        words = ["--from", str(log), *([agent] if agent is not None else []), "--at", str(first.boundary.position)]
        commands = [
            *([f"refold show {shell_word(str(saved))} {shell_word(stream)} --events"] if stream else []),
            f"refold check {shell_word(str(saved))}",
            f"refold simulate {shlex.join(words)}{' --own-tools' if own_tools else ''}",
        ]
        write_paragraph(to, "Look into what became of it, or do it again:")
        for command in commands:
            write_paragraph(to, command, indent=4)


def _as_json(
    log: Path, agent: str | None, boundaries: int, summary: CrashSummary, saved: Path | None
) -> dict[str, object]:
    first = summary.first_broken
    return {
        "log": str(log),
        "agent": agent,
        "boundaries": boundaries,
        "tried": {kind: summary.tried[kind] for kind in ("commit", "effect")},
        "situations": {situation: summary.situations[situation] for situation in SITUATIONS},
        "promises": {
            rule: {"verdict": verdict, "exercised": summary.exercised[rule], "boundaries": summary.broken.get(rule, [])}
            for rule, verdict in summary.verdicts().items()
        },
        "violation": None
        if first is None
        else {"boundary": first.boundary, "broken": first.broken, "log": str(saved) if saved is not None else None},
    }
