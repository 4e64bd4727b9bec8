"""`refold replay LOG`: a log done again with today's code.

What it writes for people is one answer first, and what to do next: what changed, where it first matters, how many
sessions are like it, and commands that work when they are pasted; then both sides of the first difference, what was
compared, and the verdict.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_NOT_COMPARED,
    EXIT_OK,
    AgentOption,
    CommandAnswer,
    DepsOption,
    JsonOption,
    KindOption,
    LogArgument,
    argument,
    command,
    loaded_agent,
    option,
)
from refold.commands.output import (
    Progress,
    all_counted,
    counted,
    json_lines,
    one_line,
    shell_word,
    tell,
    write_exact,
    write_paragraph,
)

if TYPE_CHECKING:
    from rich.console import Console

    from refold.agents.agent import AnyAgent
    from refold.events.model.spending import TreeBudget
    from refold.inspection.kinds import GivenKind
    from refold.replay.comparing import MeantDifferences
    from refold.replay.findings import ConfigurationChange, Divergence, ReplayReport


class LevelName(StrEnum):
    """How much is done again."""

    FOLD = "fold"
    CORE = "core"
    DECIDE = "decide"
    TOOLS = "tools"
    MODEL = "model"
    LIVE = "live"


ASKING = frozenset({LevelName.MODEL, LevelName.LIVE})
"""Levels that ask models."""

LevelOption = Annotated[
    LevelName | None,
    typer.Option(
        help="fold: the state only. core: every decision, compared with the recorded one. decide: also what of "
        "--agent decides, as a dry run. tools: also the bodies of its pure tools, with recorded arguments. model: also "
        "what its model answers today, which costs. live: both. [default: decide with --agent, else core]",
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


ExpectOption = Annotated[
    Path | None, option("--expect", "FILE", "Look past the differences that this file holds, and no others.")
]
WriteExpectOption = Annotated[
    Path | None, option("--write-expect", "FILE", "Look past all differences, and write them into this file.")
]
InFlightOption = Annotated[
    bool, typer.Option("--in-flight", help="Only whether the open runs can go on with --agent; exit code 1: not all.")
]
BudgetOption = Annotated[
    float | None,
    option("--budget", "AMOUNT", "What models may cost in all, in the currency of AgentConfig.prices."),
]
TokensOption = Annotated[int | None, option("--tokens", "N", "At most so many tokens of models.", min=1)]
RequestsOption = Annotated[int | None, option("--requests", "N", "At most so many requests to models.", min=1)]
TryOption = Annotated[
    int | None,
    option("--try", "N", "Try N sessions again with the real model of --agent and recorded results of tools.", min=1),
]
FailIfOption = Annotated[
    list[str] | None,
    option("--fail-if", "RULE", "With --try: exit 1 if it holds, such as 'charge called more'. May be given again."),
]
HtmlOption = Annotated[
    Path | None,
    option("--html", "FILE", "Write the report as one HTML file, too: the sessions that diverge, both sides."),
]


@command
async def replay(
    log: LogArgument,
    session: Annotated[str | None, argument("SESSION", "Only this session.")] = None,
    level: LevelOption = None,
    agent: AgentOption = None,
    deps: DepsOption = None,
    kind: KindOption = None,
    stream: Annotated[str | None, option("--stream", "STREAM", "Only this stream, such as book/ACME.")] = None,
    at: Annotated[int | None, option("--at", "N", "Show the state of --stream after version N.")] = None,
    allow_missing: MissingOption = None,
    ignore: IgnoreOption = None,
    expect: ExpectOption = None,
    write_expect: WriteExpectOption = None,
    in_flight: InFlightOption = False,
    full: Annotated[bool, typer.Option("--full", help="Write long sides of a divergence whole.")] = False,
    jobs: Annotated[int, typer.Option(metavar="N", help="So many processes share the streams.")] = 1,
    budget: BudgetOption = None,
    tokens: TokensOption = None,
    requests: RequestsOption = None,
    try_sessions: TryOption = None,
    fail_if: FailIfOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> int | CommandAnswer:
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

    At level tools the bodies of tools whose effect is pure run again there, with the recorded arguments; all other
    results stay the recorded ones. At level model, the agent's provider is asked what today's agent would ask at each
    place, outside of that process and within --budget or --requests, one of which must be given; its answer is compared
    with the recorded one by kind (model.calls, model.arguments, model.end, model.text) and nothing goes on from it.
    Level live does both.

    JSON: {log, level, streams, batches, events, not_replayed: [{kind, streams}], kinds_without_streams, core_version,
    other_core_versions, diverged, divergences: [{stream, version, batch, position, differs, difference: {path, left,
    right}, recorded, now, core_version}], compared: [{what, compared, differ, not_compared: [{why, times, first}]}],
    tried: [{what, on, place, comparison, times, first}], results: [{tool, effect, today, recorded}], asked: {requests,
    tokens, cost}, sessions, other_agents, kinds: [{differs, path, streams, first, said}], changes: [{agent, path, left,
    right, sessions, first}], accepted: [{path, said, times}], unmet: [{path, said}]}; the first divergence of each
    stream, at level decide of each kind of comparison in it, in order of position. With --at: {stream, version, state}.
    With --in-flight: {log, runs, blocked: [{session, run, call, tool, reason}], other_agents}.
    """
    from refold.commands.run.trial import WantedTrial, tried
    from refold.inspection.export import require_new_file
    from refold.replay.log_replay import replay as replay_log

    if at is not None:
        return await _state(log, stream, kind or [], at)
    if in_flight:
        narrowed = (session, level, stream, kind, ignore, expect, write_expect)
        return await _in_flight(log, agent, narrowed=any(narrowed))
    if html is not None:
        require_new_file(html)  # Before models are paid.
    _tell_bundle(log)
    loaded, depends_on = loaded_agent(agent, deps)
    limits = await _limits((budget, tokens, requests), level, log, loaded, session)
    if _is_trial(try_sessions, fail_if):
        others = any((level, stream, kind, ignore, expect, write_expect))
        wanted = WantedTrial(
            try_sessions or 0, session, limits, fail_if or (), allow_missing or (), html, quiet=as_json
        )
        return await tried(log, loaded, depends_on, jobs, wanted, others)
    given = await _kinds_in(log, kind or [])
    meant = _meant(ignore or [], expect, learn=write_expect is not None)
    with Progress(quiet=as_json) as progress:
        total = await _events_in(log, session, stream) if progress.is_shown else None
        report = await replay_log(
            log,
            level=level.value if level is not None else None,
            session=session,
            stream=stream,
            kinds=given,
            agent=loaded,
            deps=depends_on,
            meant=meant,
            progress=lambda streams, events: progress("events", events, total),
            jobs=jobs,
            budget=limits,
        )
    await _write_files(log, report, write_expect, html)
    options = {"--agent": agent, "--deps": deps, "--level": level, "--budget": budget, "--requests": requests}
    asked = _Asked(str(log), _words({**options, "--tokens": tokens, "--kind": kind or []}), full=full)
    missing = report.missing(allow_missing or ())
    return CommandAnswer(report, lambda to: _write(to, report, missing, asked), _code(report, missing))


replay.__doc__ = f"""{replay.__doc__}
    With --try, sessions of --agent, one of each kind of path first, go on from before their first difference: the model
    is really asked, within --budget, --tokens or --requests, tools give what was recorded, and what people said is said
    again. Exits 1 where a rule of --fail-if holds, and 4 where a session was not tried to its end. Rules: TOOL called
    more, less, never, at all, with other arguments (or: any tool called …); outcome differs; answer differs; calls
    differ; cost, tokens or turns above N% of then, or above N; session stopped; each also with "in more than N
    sessions", or "in more than N% of sessions". JSON: {{log, agent, wanted, sessions, paths, forks, unchanged,
    not_compared, tried: [{{session, path, like, words, first, at, status, why, then: {{outcomes, answers, calls:
    [{{tool, arguments}}], turns, usage, cost}}, now, guessed, parts: [{{what, left, right, path, words}}], found,
    acts}}], limits, calls, usage, cost, ended, rules: [{{rule, holds, sessions, words}}]}}.
    """


def _code(report: "ReplayReport", missing: Sequence[str]) -> int:
    if report.divergence is not None or report.nothing_replayed:
        return EXIT_FOUND
    return EXIT_NOT_COMPARED if missing else EXIT_OK


def _is_trial(sessions: int | None, rules: list[str] | None) -> bool:
    if sessions is None and rules:
        raise typer.BadParameter("--fail-if goes with --try")
    return sessions is not None


async def _events_in(log: Path, session: str | None, stream: str | None) -> int | None:
    """Return about how many events there are to replay; None where that is not known before they are read."""
    from refold.events.core.errors import RefoldError
    from refold.inspection.log_reading import opened, session_head, stream_head
    from refold.stores.past_state import last_position
    from refold.stores.sqlite.file import is_text_log

    if is_text_log(log):
        return None
    try:
        async with opened(log) as store:
            if session is not None:
                return (await session_head(store, session)).version
            return (await stream_head(store, stream)).version if stream is not None else await last_position(store)
    except RefoldError:  # The replay itself says what is wrong.
        return None


async def _write_files(log: Path, report: "ReplayReport", expected: Path | None, file: Path | None) -> None:
    if expected is not None:
        from refold.replay.comparing import write_expected

        tell(f"{counted(write_expected(expected, report.accepted), 'expected difference')} written to {expected}")
    if file is None:
        return
    from refold.inspection.export import export_to_new_file
    from refold.page.reports import replay_page

    page = await replay_page(log, report.divergences, report.missing())
    await export_to_new_file(file, page.encode())


async def _in_flight(log: Path, agent: str | None, *, narrowed: bool) -> CommandAnswer:
    from refold.agents.loading import load_agent
    from refold.replay.open_runs import in_flight

    if narrowed:
        raise typer.BadParameter("--in-flight looks at all open runs; it goes with LOG, --agent and --json alone")
    if agent is None:
        raise typer.BadParameter("--in-flight needs the --agent that is to go on")
    report = await in_flight(log, agent=load_agent(agent))

    def write(to: "Console") -> None:
        for each in report.blocked:
            words = f"{one_line(each.session)} {each.run or ''}: {one_line(each.reason, 1_000)}"
            write_paragraph(to, words, style="red")
        for name, count in report.other_agents.items():
            write_paragraph(to, f"not looked at: {counted(count, 'open run')} of the agent {one_line(name)!r}")
        runs = counted(report.runs, "open run")
        verdict = f"{runs}: all can go on" if not report.blocked else f"{runs}: not all can go on as they would have"
        write_paragraph(to, verdict, style="bold red" if report.blocked else "bold")

    return CommandAnswer(report, write, EXIT_FOUND if report.blocked else EXIT_OK)


def _words(options: Mapping[str, object]) -> list[str]:
    """Return options as words of a command's line; those that were not given are left out."""
    words: list[str] = []
    for name, given in options.items():
        values = cast("list[object]", given) if isinstance(given, list) else [given]
        words += [word for value in values if value is not None for word in (name, f"{value}")]
    return words


async def _limits(
    given: tuple[float | None, int | None, int | None],
    level: LevelName | None,
    log: Path,
    agent: "AnyAgent | None",
    session: str | None,
) -> "TreeBudget | None":
    """Return how much models may take, and tell how often they would be asked, before they are.

    Raises:
        BadParameter: they would be, and nothing says how often they may.
    """
    from refold.events.model.spending import TreeBudget
    from refold.replay.answers.asked import model_requests

    budget, tokens, requests = given
    has_limit = any(each is not None for each in given)
    limits = TreeBudget(cost=budget, tokens=tokens, turns=requests) if has_limit else None
    if level not in ASKING or agent is None:
        return limits
    found = await model_requests(log, agent=agent, session=session)
    cost = f" and cost {found.cost:.6g}" if found.cost else ""
    unpriced = f" ({found.unpriced:,} have no price)" if found.unpriced else ""
    asked = f"{counted(found.requests, 'request')} of {counted(found.sessions, 'session')}"
    then = f"{asked} to models: they took {found.tokens:,} tokens{cost} when they were recorded{unpriced}"
    if limits is None:
        amount = f"--budget {found.cost:.2g} or " if found.cost else ""
        raise typer.BadParameter(f"{then}; say how much they may take now: {amount}--requests {max(found.requests, 1)}")
    tell(then)
    return limits


def _tell_bundle(log: Path) -> None:
    """Tell of a bundle what it is of, and which agent replays it."""
    from refold.replay.manifest import read_manifest
    from refold.stores.sqlite.file import is_bundle

    if not is_bundle(log):
        return
    manifest = read_manifest(log)
    with_agent = f", made with --agent {manifest.agent}" if manifest.agent is not None else ""
    names = ", ".join(dict.fromkeys(f"{each.agent} of refold {each.refold}" for each in manifest.recorded_with))
    tell(f"bundle of session {manifest.session}, recorded with {names}{with_agent}")


def _meant(ignored: Sequence[str], expected: Path | None, *, learn: bool) -> "MeantDifferences":
    from refold.replay.comparing import MeantDifferences

    if learn and expected is not None:
        raise typer.BadParameter("--write-expect writes all differences; leave --expect out")
    if expected is not None:
        return MeantDifferences.read(expected, ignored=ignored)
    return MeantDifferences(ignored=tuple(ignored), learn=learn)


async def _state(log: Path, stream: str | None, kinds: list[str], at: int) -> CommandAnswer:
    from refold.events.core.errors import ConfigError
    from refold.inspection.kinds import StreamKind
    from refold.replay.log_replay import state_at

    kind = (stream or "").partition("/")[0]
    core = _loaded(kinds).get(kind)
    if stream is None or core is None or isinstance(core, StreamKind):
        raise ConfigError("--at needs a --stream and the --kind of it; `refold show --at` shows a session")
    state = await state_at(log, stream, core, version=at)

    def write(to: "Console") -> None:
        write_paragraph(to, f"{one_line(stream)} after version {at}:", style="bold")
        write_paragraph(to, json_lines(state), indent=2)

    return CommandAnswer({"stream": stream, "version": at, "state": state}, write)


async def _kinds_in(log: Path, kinds: list[str]) -> "dict[str, GivenKind]":
    given = _loaded(kinds)
    if given:
        from refold.inspection.log_reading import require_kinds

        await require_kinds(log, given)
    return given


def _loaded(kinds: list[str]) -> "dict[str, GivenKind]":
    if not kinds:
        return {}
    from refold.agents.loading import load_kinds

    return load_kinds(kinds)


LINE_CHARACTERS = 2_000
"""After so many characters a line that names a divergence is cut."""

SIDE_CHARACTERS = 2_000
"""A side of a divergence whose JSON is longer is left out, unless it is asked for."""

SIDE_LINES = 20
"""One that has more lines likewise."""

LINES_SHOWN = 20
"""So many changes and kinds of differences are shown, and the others counted."""


WITHOUT_AGENT = frozenset({"fold", "core"})
"""Levels that look at no agent's code."""


class _Asked(NamedTuple):
    """What of a command's line its advice repeats."""

    log: str
    options: list[str]
    """Those that say what decides: `--agent`, `--deps`, `--kind`, `--level`, with their values."""
    full: bool


def _write(to: "Console", report: "ReplayReport", missing: Sequence[str], asked: _Asked) -> None:
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


def _write_answer(to: "Console", report: "ReplayReport", first: "Divergence", asked: _Asked) -> None:
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
    bodies = any(results.today for results in report.results)
    for line in _next_commands(first, asked, again=cut or report.streams > 1, bodies=bodies):
        write_exact(to, f"next: {line}")


def _changed(report: "ReplayReport") -> list[str]:
    """Return what of the configuration changed, or that nothing of it did."""
    if report.level in WITHOUT_AGENT:
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
    long = any(len(side) > SIDE_CHARACTERS or side.count("\n") >= SIDE_LINES for side in sides.values())
    cut = long or (whole_texts and difference.is_long)
    if cut and not full:
        return True
    for name, side in sides.items():
        write_paragraph(to, f"{name}:", style="bold")
        write_paragraph(to, side, indent=2)
    return False


def _next_commands(first: "Divergence", asked: _Asked, *, again: bool, bodies: bool) -> list[str]:
    """Return what tells more of a divergence, as lines for a shell; `bodies`: whether bodies of tools ran."""
    kind, _, name = first.stream.partition("/")
    place = name if kind == "session" else first.stream
    if first.differs in ("request", "recall", "summary", "model"):
        looked_at = ["show", "--request", str(first.batch)]
    else:
        looked_at = ["show", "--events", "--at", str(first.version)]
    commands = [_pasted(*looked_at, operands=(asked.log, place))]
    if again:
        operands = (asked.log, name) if kind == "session" else (asked.log,)
        only = [] if kind == "session" else ["--stream", first.stream]
        commands.append(_pasted("replay", *asked.options, *only, "--full", operands=operands))
    if first.differs in ("input", "answer", "call", "result"):
        body: list[list[str]] = (
            [[]] if first.differs in ("input", "answer") or (bodies and first.differs == "result") else []
        )
        hooks = [["--hooks"]] if first.differs in ("call", "result") else []
        pairs = zip(asked.options[::2], asked.options[1::2], strict=True)
        code = [word for pair in pairs if pair[0] in ("--agent", "--deps") for word in pair]
        commands += [
            _pasted("debug", *code, "--at", str(first.batch), *step, operands=(asked.log, name))
            for step in (*body, *hooks)
        ]
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
    for results in report.results:
        came = f"{results.today:,} by the body of today, {results.recorded:,} as recorded"
        kind = "gone" if results.effect is None else f"effect {results.effect}"
        write_paragraph(to, f"results of {one_line(results.tool)} ({kind}): {came}", indent=2)
    if report.asked is not None:
        tokens = f"{report.asked.tokens:,} tokens"
        cost = f", which cost {report.asked.cost:.6g}" if report.asked.cost else ""
        write_paragraph(to, f"models were asked {counted(report.asked.requests, 'time')}: {tokens}{cost}")
    if report.tried:
        write_paragraph(to, "your code tried to act, which was refused:", style="bold")
    for tried in report.tried:
        what = one_line(f"{tried.what} {tried.on}".strip())
        where = f"at {one_line(tried.place)}" if tried.place else "from Refold's own code"
        times = f"{counted(tried.times, 'time')}, first for the {tried.comparison} of {one_line(tried.first)}"
        write_paragraph(to, f"{what}, {where} ({times})", style="red", indent=2)


def _write_verdict(to: "Console", report: "ReplayReport", missing: Sequence[str]) -> None:
    done = "folded" if report.level == "fold" else "decided again and compared"
    counts = all_counted(report, "stream", "batch", "event")
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
    if report.sessions and report.level in WITHOUT_AGENT:
        write_paragraph(to, "your agent's code was not looked at; give --agent module:attribute")
