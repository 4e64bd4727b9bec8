"""`refold replay LOG`: a log done again with today's code."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_NOT_COMPARED,
    EXIT_OK,
    JsonOption,
    KindOption,
    LogArgument,
    argument,
    command,
    option,
)
from refold.commands.output import console, counted, one_line, write_json, write_paragraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from refold.agents.agent import AnyAgent
    from refold.inspection.kinds import GivenKind
    from refold.replay.core_replay import Divergence
    from refold.replay.log_replay import Level, ReplayReport


LINE_CHARACTERS = 2_000
"""After so many characters the line that names a divergence is cut; both sides are shown whole below it."""


class LevelName(StrEnum):
    """How much is done again."""

    FOLD = "fold"
    CORE = "core"
    DECIDE = "decide"


_LEVELS: "dict[LevelName, Level]" = {
    LevelName.FOLD: "fold",
    LevelName.CORE: "core",
    LevelName.DECIDE: "decide",
}


@command
async def replay(
    log: LogArgument,
    session: Annotated[str | None, argument("SESSION", "Only this session.")] = None,
    level: Annotated[
        LevelName | None,
        typer.Option(
            help="fold: the state only. core: every decision, compared with the recorded one. decide: also what of "
            "--agent decides, as a dry run. [default: decide with --agent, else core]",
            show_default=False,
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(metavar="AGENT", help="module:attribute of the agent that decides.", show_default=False),
    ] = None,
    deps: Annotated[
        str | None,
        option("--deps", "DEPS", "module:attribute of what --agent depends on here, as Agent(deps=…)."),
    ] = None,
    kind: KindOption = None,
    stream: Annotated[
        str | None, typer.Option(metavar="STREAM", help="Only this stream, such as book/ACME.", show_default=False)
    ] = None,
    at: Annotated[int | None, option("--at", "N", "Show the state of --stream after version N.")] = None,
    allow_missing: Annotated[
        list[str] | None,
        option(
            "--allow-missing",
            "REASON",
            "What need not be compared: a text that is in the line which says so. May be given again.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Replay a log with today's code.

    Exits 1 at a divergence, and shows both sides; and if nothing was replayed, since today's code knows none of the
    kinds of streams in the log. Exits 4 where there is no divergence and not everything could be compared, but for
    what --allow-missing names. Exits 2 where no stream of the log is of a kind that --kind names. At level core the
    events that follow from every recorded stimulus and the effects in flight after it are decided again and compared
    with the recorded ones, field by field: evolve, react and pending. What admit decided is the stimulus; commands
    are not recorded, so a change of admit alone shows nowhere. No model and no tool runs, and of your code only the
    cores that --kind names.

    At level decide, what of --agent decides makes a dry run on what its sessions and those of its subagents recorded:
    configuration, prompt (also a function), tool schemas, offer, recall, context window, middleware, argument checks,
    policy, output type. Code that raises today and did not then is a difference. No provider, tool or network can be
    called, and of what the agent depends on only a plain value is there, unless --deps names what is to be opened; code
    that needs it counts as not compared. What could not be compared is counted, with why; exits 1, too, if nothing was.
    Other streams are decided again as at level core.

    JSON: {log, level, streams, batches, events, not_replayed: [{kind, streams}], kinds_without_streams, core_version,
    other_core_versions, diverged, divergences: [{stream, version, batch, position, differs, difference: {path, left,
    right}, recorded, now, core_version}], compared: [{what, compared, differ, not_compared: [{why, times, first}]}],
    sessions, other_agents}; the first divergence of each stream, at level decide of each kind of comparison in it, in
    order of position. With --at: {stream, version, state}.
    """
    from refold.inspection.log_reading import require_kinds
    from refold.replay.log_replay import replay as replay_log

    if at is not None:
        return await _state(log, stream, kind or [], at, as_json)
    given = _loaded(kind or [])
    await require_kinds(log, given)
    report = await replay_log(
        log,
        level=_LEVELS[level] if level is not None else None,
        session=session,
        stream=stream,
        kinds=given,
        agent=_loaded_agent(agent) if agent is not None else None,
        deps=_loaded_deps(deps) if deps is not None else None,
    )
    missing = report.missing(allow_missing or ())
    if as_json:
        write_json(report)
    else:
        _write_report(report, missing)
    if report.divergence is not None or report.nothing_replayed:
        return EXIT_FOUND
    return EXIT_NOT_COMPARED if missing else EXIT_OK


async def _state(log: Path, stream: str | None, kinds: list[str], at: int, as_json: bool) -> int:
    from refold.events.core.errors import ConfigError
    from refold.inspection.kinds import StreamKind
    from refold.replay.log_replay import state_at

    kind = (stream or "").partition("/")[0]
    core = _loaded(kinds).get(kind)
    if stream is None or core is None or isinstance(core, StreamKind):
        raise ConfigError("--at needs a --stream and the --kind of it; `refold show --at` shows a session")
    state = await state_at(log, stream, core, version=at)
    if as_json:
        write_json({"stream": stream, "version": at, "state": state})
    else:
        write_paragraph(console(), f"{one_line(stream)} after version {at}:", style="bold")
        write_paragraph(console(), _json_lines(state), indent=2)
    return EXIT_OK


def _loaded_agent(name: str) -> "AnyAgent":
    from refold.agents.loading import load_agent

    return load_agent(name)


def _loaded_deps(name: str) -> object:
    from refold.agents.loading import load_deps

    return load_deps(name)


def _loaded(kinds: list[str]) -> "dict[str, GivenKind]":
    if not kinds:
        return {}
    from refold.agents.loading import load_kinds

    return load_kinds(kinds)


def _write_report(report: "ReplayReport", missing: "Sequence[str]") -> None:
    to = console()
    if report.divergence is not None:
        _write_divergence(to, report.divergence)
    for other in report.divergences[1:]:
        write_paragraph(to, f"also {one_line(str(other), LINE_CHARACTERS)}", style="red")
    if report.diverged > len(report.divergences):
        write_paragraph(to, f"… and {report.diverged - len(report.divergences):,} more", style="red")
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
    done = "folded" if report.level == "fold" else "decided again and compared"
    counts = ", ".join(
        (counted(report.streams, "stream"), counted(report.batches, "batch"), counted(report.events, "event"))
    )
    if report.nothing_replayed:
        write_paragraph(to, f"level {report.level}: nothing was replayed", style="bold red")
        return
    verdict = f"divergence in {counted(report.diverged, 'stream')}" if report.diverged else "no divergence"
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


def _write_divergence(to: "Console", divergence: "Divergence") -> None:
    write_paragraph(to, one_line(str(divergence), LINE_CHARACTERS), style="bold red")
    write_paragraph(to, f"at position {divergence.position}, in the batch of version {divergence.batch}")
    for name, side in (("recorded", divergence.recorded), ("now", divergence.now)):
        write_paragraph(to, f"{name}:", style="bold")
        write_paragraph(to, _json_lines(side), indent=2)


def _json_lines(side: object) -> str:
    if side is msgspec.UNSET:
        return "(nothing)"
    return msgspec.json.format(msgspec.json.encode(side), indent=2).decode()
