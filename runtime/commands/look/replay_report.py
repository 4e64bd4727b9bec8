"""What `refold replay` writes for people: one answer first, and what to do next.

What changed, where it first matters, how many sessions are like it, and commands that work when they are pasted; then
both sides of the first difference, what was compared, and the verdict.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from refold.commands.output import console, counted, json_lines, one_line, shell_word, write_exact, write_paragraph

if TYPE_CHECKING:
    from rich.console import Console

    from refold.replay.core_replay import Divergence
    from refold.replay.kinds_of_difference import ConfigurationChange
    from refold.replay.log_replay import ReplayReport

LINE_CHARACTERS = 2_000
"""After so many characters a line that names a divergence is cut."""

SIDE_CHARACTERS = 2_000
"""A side of a divergence whose JSON is longer is left out, unless it is asked for."""

LINES_SHOWN = 20
"""So many changes and kinds of differences are shown, and the others counted."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What of a command's line its advice repeats."""

    log: str
    options: tuple[str, ...]
    """Those that say what decides: `--agent`, `--deps`, `--kind`, `--level`, with their values."""
    full: bool


def write_report(report: "ReplayReport", missing: Sequence[str], asked: Asked) -> None:
    """Write a report for people."""
    to = console()
    if report.divergence is not None:
        _write_answer(to, report, report.divergence, asked)
    _write_meant(to, report)
    for left_out in report.not_replayed:
        write_paragraph(to, f"not replayed: kind {left_out.kind!r} ({counted(left_out.streams, 'stream')})")
    if report.other_core_versions:
        versions = ", ".join(map(str, report.other_core_versions))
        write_paragraph(
            to,
            f"recorded in part by core version {versions}, today's is {report.core_version}: what they decided "
            "differently by intent shows as a divergence",
        )
    _write_compared(to, report)
    _write_verdict(to, report, missing)


def _write_answer(to: "Console", report: "ReplayReport", first: "Divergence", asked: Asked) -> None:
    for line in _shown(_changed(report)):
        write_paragraph(to, f"changed: {line}", style="bold red")
    write_paragraph(to, f"first: {one_line(str(first), LINE_CHARACTERS)}", style="bold red")
    write_paragraph(to, f"at position {first.position}, in the batch of version {first.batch}")
    kinds = [
        f"{one_line(kind.path, 200)} in {counted(kind.streams, 'stream')}, first {one_line(kind.first, 200)}"
        for kind in report.kinds
    ]
    if len(kinds) > 1 or report.diverged > 1:
        for line in _shown(kinds):
            write_paragraph(to, f"differs: {line}", style="red")
    cut = _write_sides(to, first, full=asked.full)
    for command in _next_commands(first, asked, again=cut or report.streams > 1):
        write_exact(to, f"next: {command}")


def _changed(report: "ReplayReport") -> list[str]:
    """Return what of the configuration changed, or that nothing of it did."""
    if report.level != "decide":
        return []
    if not report.changes:
        return ["nothing of the configuration; so it is code of the agent, or of Refold"]
    several = len({change.agent for change in report.changes}) > 1
    return [_change_words(change, named=several) for change in report.changes]


def _change_words(change: "ConfigurationChange", *, named: bool) -> str:
    said = one_line(str(change), LINE_CHARACTERS)
    owner = f"{one_line(change.agent, 200)}: " if named else ""
    return f"{owner}{said} ({counted(change.sessions, 'session')})"


def _shown(lines: Sequence[str]) -> list[str]:
    more = len(lines) - LINES_SHOWN
    return [*lines[:LINES_SHOWN], *([f"… and {more:,} more; --json has all"] if more > 0 else [])]


def _write_sides(to: "Console", divergence: "Divergence", *, full: bool) -> bool:
    """Write what differs as a whole; return whether it is long, or its words that differ say enough."""
    sides = {"recorded": json_lines(divergence.recorded), "now": json_lines(divergence.now)}
    difference = divergence.difference
    whole_texts = isinstance(difference.left, str) and divergence.recorded == difference.left
    cut = any(len(side) > SIDE_CHARACTERS for side in sides.values()) or (whole_texts and difference.is_long)
    if cut and not full:
        return True
    for name, side in sides.items():
        write_paragraph(to, f"{name}:", style="bold")
        write_paragraph(to, side, indent=2)
    return False


def _next_commands(first: "Divergence", asked: Asked, *, again: bool) -> list[str]:
    """Return what tells more of a divergence, as lines for a shell."""
    kind, _, name = first.stream.partition("/")
    place = name if kind == "session" else first.stream
    if first.differs in ("request", "recall", "summary"):
        looked_at = ["show", "--request", str(first.batch)]
    else:
        looked_at = ["show", "--events", "--at", str(first.version)]
    commands = [_pasted(*looked_at, operands=(asked.log, place))]
    if again:
        operands = (asked.log, name) if kind == "session" else (asked.log,)
        only = [] if kind == "session" else ["--stream", first.stream]
        commands.append(_pasted("replay", *asked.options, *only, "--full", operands=operands))
    if first.differs in ("input", "answer", "call", "result"):
        hooks = ["--hooks"] if first.differs in ("call", "result") else []
        pairs = zip(asked.options[::2], asked.options[1::2], strict=True)
        code = [word for pair in pairs if pair[0] in ("--agent", "--deps") for word in pair]
        commands.append(_pasted("debug", *code, "--at", str(first.batch), *hooks, operands=(asked.log, name)))
    if "--agent" in asked.options:
        meant = _pasted("replay", *asked.options, "--write-expect", "expected.json", operands=(asked.log,))
        commands.append(f"{meant}  # where all of this is meant")
    return commands


def _pasted(*words: str, operands: Sequence[str]) -> str:
    """Return a command of Refold's for a shell; an operand that begins as an option does is none."""
    name, *options = words
    apart = ["--"] if any(operand.startswith("-") for operand in operands) else []
    in_order = [*options, *apart, *operands] if apart else [*operands, *options]
    return " ".join(map(shell_word, ["refold", name, *in_order]))


def _write_meant(to: "Console", report: "ReplayReport") -> None:
    lines = [
        f"{one_line(each.path, 200)}: {one_line(each.said, LINE_CHARACTERS)} ({each.times:,} times)"
        for each in report.accepted
    ]
    for line in _shown(lines):
        write_paragraph(to, f"meant: {line}")
    for line in _shown([one_line(f"{each.path}: {each.said or '*'}", LINE_CHARACTERS) for each in report.unmet]):
        write_paragraph(to, f"expected, and does not occur any more: {line}", style="red")


def _write_compared(to: "Console", report: "ReplayReport") -> None:
    for name, count in report.other_agents.items():
        write_paragraph(to, f"not replayed: {counted(count, 'session')} of the agent {one_line(name)!r}")
    for each in report.compared:
        line = f"{each.what}: {each.compared:,} compared, {each.differ:,} differ"
        write_paragraph(to, line, style="red" if each.differ else "")
        for missed in each.not_compared:
            write_paragraph(
                to, f"{missed.times:,} not compared, first {one_line(missed.first)}: {one_line(missed.why)}", indent=2
            )
    if report.tried:
        write_paragraph(to, "your code tried to act, which was refused:", style="bold")
    for tried in report.tried:
        what = one_line(f"{tried.what} {tried.on}".strip())
        where = f"at {one_line(tried.place)}" if tried.place else "from Refold's own code"
        times = f"{counted(tried.times, 'time')}, first for the {tried.comparison} of {one_line(tried.first)}"
        write_paragraph(to, f"{what}, {where} ({times})", style="red", indent=2)


def _write_verdict(to: "Console", report: "ReplayReport", missing: Sequence[str]) -> None:
    done = "folded" if report.level == "fold" else "decided again and compared"
    counts = ", ".join(
        (counted(report.streams, "stream"), counted(report.batches, "batch"), counted(report.events, "event"))
    )
    if report.nothing_replayed:
        write_paragraph(to, f"level {report.level}: nothing was replayed", style="bold red")
        return
    verdict = f"divergence in {counted(report.diverged, 'stream')}" if report.diverged else "no divergence"
    verdict += " but what is meant" if report.accepted and not report.diverged else ""
    if missing and not report.diverged:
        verdict = "no divergence in what was compared"
    write_paragraph(
        to, f"level {report.level}: {verdict}: {counts} {done}", style="bold red" if report.diverged else "bold"
    )
    if missing and not report.diverged:
        write_paragraph(
            to, f"not everything was compared ({counted(len(missing), 'reason')}); --allow-missing accepts one"
        )
    if report.sessions and report.level != "decide":
        write_paragraph(to, "your agent's code was not looked at; give --agent module:attribute")
