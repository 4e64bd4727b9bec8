"""`refold replay LOG`: a log done again with today's code."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_NOT_COMPARED,
    EXIT_OK,
    AgentOption,
    DepsOption,
    JsonOption,
    KindOption,
    LogArgument,
    argument,
    command,
    option,
)
from refold.commands.look.replay_report import Asked, write_report
from refold.commands.output import Progress, console, counted, json_lines, one_line, tell, write_json, write_paragraph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from refold.agents.agent import AnyAgent
    from refold.inspection.kinds import GivenKind
    from refold.replay.log_replay import Level, ReplayReport
    from refold.replay.meant import MeantDifferences


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


LevelOption = Annotated[
    LevelName | None,
    typer.Option(
        help="fold: the state only. core: every decision, compared with the recorded one. decide: also what of "
        "--agent decides, as a dry run. [default: decide with --agent, else core]",
        show_default=False,
    ),
]
MissingOption = Annotated[
    list[str] | None,
    option(
        "--allow-missing",
        "REASON",
        "What need not be compared: a text that is in the line which says so. May be given again.",
    ),
]
IgnoreOption = Annotated[
    list[str] | None,
    option(
        "--ignore",
        "PATH",
        "Look past differences at this path and below it, such as request.system_prompt; [] stands for all places of "
        "an array, * for any name. May be given again.",
    ),
]


@command
async def replay(
    log: LogArgument,
    session: Annotated[str | None, argument("SESSION", "Only this session.")] = None,
    level: LevelOption = None,
    agent: AgentOption = None,
    deps: DepsOption = None,
    kind: KindOption = None,
    stream: Annotated[
        str | None, typer.Option(metavar="STREAM", help="Only this stream, such as book/ACME.", show_default=False)
    ] = None,
    at: Annotated[int | None, option("--at", "N", "Show the state of --stream after version N.")] = None,
    allow_missing: MissingOption = None,
    ignore: IgnoreOption = None,
    expect: Annotated[
        Path | None, option("--expect", "FILE", "Look past the differences that this file holds, and no others.")
    ] = None,
    write_expect: Annotated[
        Path | None, option("--write-expect", "FILE", "Look past all differences, and write them into this file.")
    ] = None,
    in_flight: Annotated[
        bool,
        typer.Option("--in-flight", help="Only whether the open runs can go on with --agent; exit code 1: not all."),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Write long sides of a divergence whole.")] = False,
    jobs: Annotated[int, typer.Option(metavar="N", help="So many processes share the streams.")] = 1,
    as_json: JsonOption = False,
) -> int:
    """Replay a log with today's code.

    Exits 1 at a divergence, and shows both sides; and if nothing was replayed, since today's code knows none of the
    kinds of streams in the log. Exits 4 where there is no divergence and not everything could be compared, but for
    what --allow-missing names. A difference that is meant, by --ignore or --expect, is looked past, and the comparison
    goes on behind it; what FILE expects and does not occur any more is told. Exits 2 where no stream of the log is of
    a kind that --kind names. At level core the events that follow from every recorded stimulus and the effects in
    flight after it are decided again and compared with the recorded ones, field by field: evolve, react and pending.
    Commands are not recorded; of a session they are made again from the stimuli, for admit. No model and no tool runs,
    and of your code only the cores that --kind names.

    At level decide, what of --agent decides makes a dry run on what its sessions and those of its subagents recorded:
    configuration, prompt (also a function), tool schemas, offer, recall, context window, middleware, argument checks,
    policy, output type. Code that raises today and did not then is a difference. It runs in a process of its own, in
    which it can write nothing and reach nothing; what it tried is listed with its place. No provider and no tool can be
    called, and of what the agent depends on only a plain value is there, unless --deps names what is to be opened; code
    that needs it counts as not compared. What could not be compared is counted, with why; exits 1, too, if nothing was.
    Other streams are decided again as at level core.

    JSON: {log, level, streams, batches, events, not_replayed: [{kind, streams}], kinds_without_streams, core_version,
    other_core_versions, diverged, divergences: [{stream, version, batch, position, differs, difference: {path, left,
    right}, recorded, now, core_version}], compared: [{what, compared, differ, not_compared: [{why, times, first}]}],
    tried: [{what, on, place, comparison, times, first}], sessions, other_agents, kinds: [{differs, path, streams,
    first, said}], changes: [{agent, path, left, right, sessions, first}], accepted: [{path, said, times}],
    unmet: [{path, said}]}; the first divergence of each stream, at level decide of each kind of comparison in it, in
    order of position. With --at: {stream, version, state}.
    With --in-flight: {log, runs, blocked: [{session, run, call, tool, reason}], other_agents}.
    """
    from refold.inspection.log_reading import require_kinds
    from refold.replay.log_replay import replay as replay_log

    if at is not None:
        return await _state(log, stream, kind or [], at, as_json)
    if in_flight:
        narrowed = (session, level, stream, kind, ignore, expect, write_expect)
        return await _in_flight(log, agent, as_json, narrowed=any(narrowed))
    _tell_bundle(log)
    given = _loaded(kind or [])
    await require_kinds(log, given)
    if write_expect is not None and expect is not None:
        raise typer.BadParameter("--write-expect writes all differences; leave --expect out")
    meant = _meant(ignore or [], expect, learn=write_expect is not None)
    progress = Progress()
    report = await replay_log(
        log,
        level=_LEVELS[level] if level is not None else None,
        session=session,
        stream=stream,
        kinds=given,
        agent=_loaded_agent(agent) if agent is not None else None,
        deps=_loaded_deps(deps) if deps is not None else None,
        meant=meant,
        progress=progress,
        jobs=jobs,
    )
    progress.done()
    if write_expect is not None:
        _write_expected(write_expect, report)
    options = {"--agent": agent, "--deps": deps, "--level": level.value if level is not None else None}
    told = [word for name, value in options.items() if value is not None for word in (name, value)]
    told += [word for value in kind or [] for word in ("--kind", value)]
    asked = Asked(log=str(log), options=tuple(told), full=full)
    return _tell(report, report.missing(allow_missing or ()), asked, as_json=as_json)


def _tell(report: "ReplayReport", missing: "Sequence[str]", asked: Asked, *, as_json: bool) -> int:
    if as_json:
        write_json(report)
    else:
        write_report(report, missing, asked)
    if report.divergence is not None or report.nothing_replayed:
        return EXIT_FOUND
    return EXIT_NOT_COMPARED if missing else EXIT_OK


async def _in_flight(log: Path, agent: str | None, as_json: bool, *, narrowed: bool) -> int:
    from refold.replay.open_runs import in_flight

    if narrowed:
        raise typer.BadParameter("--in-flight looks at all open runs; it goes with LOG, --agent and --json alone")
    if agent is None:
        raise typer.BadParameter("--in-flight needs the --agent that is to go on")
    report = await in_flight(log, agent=_loaded_agent(agent))
    if as_json:
        write_json(report)
        return EXIT_FOUND if report.blocked else EXIT_OK
    to = console()
    for each in report.blocked:
        write_paragraph(to, f"{one_line(each.session)} {each.run or ''}: {one_line(each.reason, 1_000)}", style="red")
    for name, count in report.other_agents.items():
        write_paragraph(to, f"not looked at: {counted(count, 'open run')} of the agent {one_line(name)!r}")
    runs = counted(report.runs, "open run")
    verdict = f"{runs}: all can go on" if not report.blocked else f"{runs}: not all can go on as they would have"
    write_paragraph(to, verdict, style="bold red" if report.blocked else "bold")
    return EXIT_FOUND if report.blocked else EXIT_OK


def _tell_bundle(log: Path) -> None:
    """Tell of a bundle what it is of, and which agent replays it."""
    from refold.replay.manifest import is_bundle, read_manifest

    if not is_bundle(log):
        return
    manifest = read_manifest(log)
    with_agent = f", made with --agent {manifest.agent}" if manifest.agent is not None else ""
    names = ", ".join(dict.fromkeys(f"{each.agent} of refold {each.refold}" for each in manifest.recorded_with))
    tell(f"bundle of session {manifest.session}, recorded with {names}{with_agent}")


def _meant(ignored: "Sequence[str]", expected: Path | None, *, learn: bool) -> "MeantDifferences":
    from refold.replay.meant import MeantDifferences

    if expected is not None:
        return MeantDifferences.read(expected, ignored=ignored)
    return MeantDifferences(ignored=tuple(ignored), learn=learn)


def _write_expected(path: Path, report: "ReplayReport") -> None:
    from refold.replay.meant import write_expected

    number = write_expected(path, report.accepted)
    tell(f"{counted(number, 'expected difference')} written to {path}")


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
        write_paragraph(console(), json_lines(state), indent=2)
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
