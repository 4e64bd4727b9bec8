"""What `refold simulate --from` writes: what sessions were doing when the process died, and verdicts."""

import shlex
from pathlib import Path

from refold.commands.output import console, shell_word, table, write_json, write_paragraph, write_table
from refold.scenarios.command.log_crashes import CrashSummary, CrashTrial
from refold.scenarios.command.output import BROKEN_NEXT, closing_sentence, promises_as_json, write_promises
from refold.scenarios.monitors.monitor import SITUATIONS


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
    write_promises(to, summary, "after")
    if summary.first_broken is not None and saved is not None:
        first = summary.first_broken
        write_paragraph(to, f"\nviolated: {first.broken[0]}", style="bold red")
        write_paragraph(to, "Look into what became of it, or do it again:")
        for command in commands_of(log, agent, own_tools, first, saved):
            write_paragraph(to, command, indent=4)
    if summary.broken:
        then = BROKEN_NEXT
    elif tried.total() < boundaries:
        then = f"next, `--boundaries {boundaries}` tries them all"
    else:
        name = shell_word(agent) if agent is not None else "AGENT"
        then = f"next, `refold simulate {name}` rehearses what this log never met"
    over = f"{tried.total():,} {'boundary' if tried.total() == 1 else 'boundaries'}"
    write_paragraph(to, f"\n{closing_sentence(over, summary.verdicts(), then)}", style="bold")


def commands_of(log: Path, agent: str | None, own_tools: bool, trial: CrashTrial, saved: Path) -> list[str]:
    stream = trial.broken[0].stream.partition("/")[2]
    words = ["--from", str(log), *([agent] if agent is not None else []), "--at", str(trial.boundary.position)]
    return [
        *([f"refold show {shell_word(str(saved))} {shell_word(stream)} --events"] if stream else []),
        f"refold check {shell_word(str(saved))}",
        f"refold simulate {shlex.join(words)}{' --own-tools' if own_tools else ''}",
    ]


def _as_json(
    log: Path, agent: str | None, boundaries: int, summary: CrashSummary, saved: Path | None
) -> dict[str, object]:
    first = summary.first_broken
    return {
        "log": log,
        "agent": agent,
        "boundaries": boundaries,
        "tried": {kind: summary.tried[kind] for kind in ("commit", "effect")},
        "situations": {situation: summary.situations[situation] for situation in SITUATIONS},
        "promises": promises_as_json(summary, "boundaries"),
        "violation": None if first is None else {"boundary": first.boundary, "broken": first.broken, "log": saved},
    }
