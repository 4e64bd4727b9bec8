"""`refold simulate`: an agent rehearsed, with everything that can go wrong.

The command that `refold.commands.cli` finds by name, since it stands to the right of the runtime. What it writes is in
`refold.scenarios.command.output`, what it plays in `refold.scenarios.sweep`.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_INTERRUPTED,
    EXIT_OK,
    JsonOption,
    path_parser,
    run_blocking_command,
)

if TYPE_CHECKING:
    from refold.scenarios.failure_artifact import FailureArtifact
    from refold.scenarios.monitors.monitor import Broken, RuleVerdict
    from refold.scenarios.plan.scenario import Scenario
    from refold.scenarios.report import SimulationReport
    from refold.scenarios.sweep import SweepPlan
    from refold.scenarios.workers import Interruption

SEEDS = 100
"""How many seeds are played if nothing else is said."""

JOBS_MAX = 256
"""So many processes at most."""

ACTS_MAX = 10_000
"""A drawn scenario has at most so many acts, sessions and faults; as `drawn_scenario` says."""

SEEDS_PER_JOB = 25
"""For fewer seeds than this no further process is begun."""


class StoreChoice(StrEnum):
    """Where a log is."""

    MEMORY = "memory"
    SQLITE = "sqlite"


class WireChoice(StrEnum):
    """How the model is reached."""

    NONE = "none"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


AgentArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="AGENT", help="module:attribute of an Agent, or of a function that makes one.", show_default=False
    ),
]
SeedsOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help=f"Play so many seeds. Default: {SEEDS}.", show_default=False)
]
SeedOption = Annotated[
    int | None, typer.Option(metavar="S", help="Play this seed only, and report on it.", show_default=False)
]
TimeOption = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0, help="Play seeds for so many seconds.", show_default=False)
]


_given_path = path_parser("give a path")

ScenarioOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Play the scenario that a file holds as JSON.", show_default=False, parser=_given_path
    ),
]
ReadyOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Play a ready scenario, such as disk_full; `list` shows all.", show_default=False
    ),
]
FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="LOG",
        help="Crash a recorded log at every commit and every effect.",
        show_default=False,
        parser=_given_path,
    ),
]
AtOption = Annotated[
    int | None,
    typer.Option(metavar="POSITION", help="With --from: only the boundaries at this position.", show_default=False),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        metavar="J", min=1, max=JOBS_MAX, help="In so many processes. Default: one for each core.", show_default=False
    ),
]
SessionsOption = Annotated[int, typer.Option(metavar="N", min=1, max=ACTS_MAX, help="Sessions of each scenario.")]
ActsOption = Annotated[
    int, typer.Option(metavar="N", min=1, max=ACTS_MAX, help="Inputs and cancellations of each scenario.")
]
FaultsOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        max=ACTS_MAX,
        help="Most faults of each scenario; a cancel, late messages, and what a wire or a disk does come on top.",
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where logs and scenarios go. Default: a new folder for temporary files, if a promise is broken.",
        show_default=False,
        parser=_given_path,
    ),
]
WireOption = Annotated[WireChoice, typer.Option(help="The provider's protocol, over a simulated network.")]
StoreOption = Annotated[
    StoreChoice, typer.Option(help="Where the log is: in a real SQLite file, the disk fails and loses power too.")
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write what was found as one HTML file, too: the promise, the scenario, the sessions.",
        show_default=False,
        parser=_given_path,
    ),
]
OwnToolsOption = Annotated[
    bool, typer.Option("--own-tools", help="Run the bodies of the agent's own tools, with arguments by chance.")
]


class Told(NamedTuple):
    """Where what was found goes."""

    save: Path | None
    html: Path | None
    as_json: bool

    def check(self) -> None:
        if self.save is not None:
            from refold.scenarios.failure_artifact import check_folder

            check_folder(self.save)
        if self.html is not None:
            from refold.inspection.export import require_new_file

            require_new_file(self.html)


def simulate(
    context: typer.Context,
    agent: AgentArgument = None,
    seeds: SeedsOption = None,
    seed: SeedOption = None,
    time: TimeOption = None,
    first: Annotated[int, typer.Option(metavar="S", help="The first of the seeds.")] = 0,
    scenario: ScenarioOption = None,
    ready: ReadyOption = None,
    from_log: FromOption = None,
    boundaries: Annotated[int, typer.Option(metavar="N", min=1, help="With --from: most of its boundaries.")] = 100,
    at: AtOption = None,
    jobs: JobsOption = None,
    sessions: SessionsOption = 3,
    acts: ActsOption = 8,
    faults: FaultsOption = 6,
    store: StoreOption = StoreChoice.MEMORY,
    wire: WireOption = WireChoice.NONE,
    own_tools: OwnToolsOption = False,
    save: SaveOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rehearse an agent: crashes, refusals, hangs and cancels, drawn from seeds, on a clock that costs no time.

    Its sessions run on a simulated loop; answers come from a model that answers by chance, and a stand-in takes the
    place of each tool's body; --own-tools runs the bodies. What came of a seed depends on nothing else, so --seed
    repeats it exactly. A broken promise is shrunk to the smallest scenario that breaks it, which is shown as Python
    code, and saved together with its log. Exits 1 if a promise is broken. --html writes one file with the page of
    `refold inspect`, in which both are; FILE must not be there yet.

    With --from, a process is started on each prefix of a recorded log, as if the one that wrote it had died there, and
    must recover; without AGENT it runs an agent that is made of what the log says of it. The log is not changed.

    Where AGENT is a function, it is called for each life of the simulated process, so that nothing is left of what was
    played before.

    JSON: {agent, seeds, first, seconds, repeats, refused, lives, steps, events, virtual_s, faults: {NAME: {planned,
    happened, met: {SITUATION: number}}}, promises: {NAME: {verdict, exercised, seeds}}, violation: {broken, scenario,
    original, tries, code, log, file, test}}. With --seed, --scenario or --ready: {report: {scenario, broken,
    exercised, happened, refused, lives, steps, virtual_s, events, operations, outcomes, met, digest}, repeats, log,
    violation}. With --from: {log, agent, boundaries, tried: {commit, effect}, situations: {SITUATION: number},
    promises: {NAME: {verdict, exercised, boundaries}}, violation: {boundary: {kind, position, stream, version},
    broken, log}}. With --ready list: {ready: {NAME: title}}.
    """
    _check_alone(seeds, seed, time, scenario, ready, from_log)
    _check_options(context, seed=seed, scenario=scenario, ready=ready, from_log=from_log)
    if ready == "list":
        run_blocking_command(lambda: _list_ready(as_json))
    told = Told(save, html, as_json)
    if from_log is not None:
        if own_tools and agent is None:
            raise typer.BadParameter("--own-tools with --from needs an AGENT; a log has no tools of its own")
        _run(lambda interruption: _from_log(from_log, agent, boundaries, at, own_tools, told, interruption))
    if agent is None:
        sample = f"; `python -m refold.scenarios.ready.{ready}` plays it with a sample" if ready is not None else ""
        raise typer.BadParameter(f"name the agent, as module:attribute{sample or ', or a log with --from'}")
    drawing = {"sessions": sessions, "acts": acts, "faults_max": faults, "store": store.value, "wire": wire.value}

    def work(interruption: "Interruption") -> int:
        from refold.scenarios.sweep import SweepPlan

        told.check()
        plan = SweepPlan(agent=agent, own_tools=own_tools, drawing=drawing)
        if seed is not None or scenario is not None or ready is not None:
            return _one(plan, seed, scenario, ready, told, interruption)
        return _many(plan, first, seeds, time, jobs, told, interruption)

    _run(work)


def _check_alone(*given: object) -> None:
    if sum(each is not None for each in given) > 1:
        raise typer.BadParameter(
            "--seeds, --seed, --time, --scenario, --ready and --from say what is played; give one of them"
        )


OF_SWEEPS = ("first", "jobs")
OF_LOGS = ("boundaries", "at")
DRAWN_BY = ("sessions", "acts", "faults", "store", "wire")


def _check_options(
    context: typer.Context, *, seed: int | None, scenario: Path | None, ready: str | None, from_log: Path | None
) -> None:
    """Refuse options that would change nothing: who gives one expects something of it."""
    vain: tuple[str, ...]
    if from_log is not None:
        played, vain = "--from", (*OF_SWEEPS, *DRAWN_BY)
    elif scenario is not None or ready is not None:
        played, vain = "--scenario" if scenario is not None else "--ready", (*OF_SWEEPS, *DRAWN_BY, *OF_LOGS)
    elif seed is not None:
        played, vain = "--seed", (*OF_SWEEPS, *OF_LOGS)
    else:
        played, vain = "seeds", OF_LOGS
    for name in vain:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            says = "belongs to --from" if played == "seeds" else f"says nothing about {played}"
            raise typer.BadParameter(f"--{name} {says}; leave it out")


def _run(work: "Callable[[Interruption], int]") -> NoReturn:
    """Run work that Ctrl-C and SIGTERM end at once, and leave with its exit code or theirs."""

    def run() -> int:
        from refold.scenarios.workers import interruptible

        with interruptible() as interruption:
            try:
                code = work(interruption)
            except KeyboardInterrupt:
                code = EXIT_INTERRUPTED
            return interruption.exit_code or code

    run_blocking_command(run)


def _list_ready(as_json: bool) -> int:
    from refold.scenarios.command.output import write_ready

    write_ready(as_json=as_json)
    return EXIT_OK


def _one(
    plan: "SweepPlan",
    seed: int | None,
    file: Path | None,
    ready: str | None,
    told: Told,
    interruption: "Interruption",
) -> int:
    from refold.scenarios.command.output import drawing_words, write_one
    from refold.scenarios.failure_artifact import read_scenario, reserved_stem
    from refold.scenarios.ready import for_any_agent
    from refold.scenarios.sweep import quiet, quietly
    from refold.scenarios.world.loop import SimulationError

    simulator = plan.simulator()
    played: Scenario
    title, again = "the scenario", None
    if file is not None:
        name, played = file.stem, read_scenario(file)
    elif ready is not None:
        name, played = ready.replace("-", "_"), for_any_agent(ready)
        title, again = name, f"--ready {name}"
    else:
        seed = seed or 0
        name, played = f"seed-{seed}", plan.scenario(seed)
        title, again = f"seed {seed}", f"--seed {seed}{drawing_words(plan)}"
    report = quietly(simulator, played)
    interruption.check()
    violation = None
    repeats = quietly(simulator, played).digest == report.digest
    interruption.check()
    if report.broken and not repeats:
        raise SimulationError(plan.not_repeated(title))
    if report.broken:
        violation = _saved(plan, report, told.save, name, quiet=told.as_json)
    log = None
    if told.save is not None and (violation is None or violation.unsaved is None):
        log = told.save / f"{reserved_stem(told.save, f'{name}-whole', played)}.db"
        with quiet():
            simulator.save_log(played, log)
    write_one(plan, title, again, report, violation, log, repeats=repeats, as_json=told.as_json)
    _write_page(told.html, plan, title, again, report.verdicts(), report.broken, violation, log)
    return EXIT_FOUND if report.broken else EXIT_OK


def _many(
    plan: "SweepPlan",
    first: int,
    number: int | None,
    time_s: float | None,
    jobs: int | None,
    told: Told,
    interruption: "Interruption",
) -> int:
    from refold.actors.kernel.clock import SystemClock
    from refold.commands.output import Progress
    from refold.scenarios.command.output import drawing_words, progress_words, write_many
    from refold.scenarios.sweep import SweepSummary, quietly, swept
    from refold.scenarios.world.loop import SimulationError

    clock, summary = SystemClock(), SweepSummary()
    began_s = clock.monotonic_s()
    seeds: Iterable[int] = range(first, first + (number or SEEDS))
    if time_s is not None:
        seeds = itertools.takewhile(lambda _: clock.monotonic_s() < began_s + time_s, itertools.count(first))
    wanted = None if time_s is not None else number or SEEDS
    cores = os.cpu_count() or 1
    processes = jobs or (cores if wanted is None else min(cores, max(1, wanted // SEEDS_PER_JOB)))
    with Progress(quiet=told.as_json) as progress, closing(swept(plan, seeds, jobs=processes)) as outcomes:
        try:
            for report in outcomes:
                summary.add(report)
                progress(progress_words(summary), summary.seeds, wanted)
                interruption.check()
        except KeyboardInterrupt:  # What was found so far is shown.
            outcomes.close()
    seconds = clock.monotonic_s() - began_s
    violation, repeats = None, True
    again = summary.first_broken or summary.first
    if again is not None and interruption.exit_code is None:
        seed = again.scenario.seed
        report = quietly(plan.simulator(), again.scenario)
        interruption.check()
        repeats = report.digest == again.digest
        if summary.broken and not repeats:
            raise SimulationError(plan.not_repeated(f"seed {seed}"))
        if summary.broken:
            violation = _saved(plan, report, told.save, f"seed-{seed}", quiet=told.as_json)
    write_many(plan, first, summary, seconds, violation, repeats=repeats, as_json=told.as_json)
    found = summary.first_broken
    title = f"{summary.seeds:,} seeds from {first}" if found is None else f"seed {found.scenario.seed}"
    repeat = f"--seed {found.scenario.seed}{drawing_words(plan)}" if found is not None else None
    _write_page(told.html, plan, title, repeat, summary.verdicts(), found.broken if found else (), violation)
    return EXIT_FOUND if summary.broken else EXIT_OK


def _from_log(
    path: Path,
    name: str | None,
    most: int,
    at: int | None,
    own_tools: bool,
    told: Told,
    interruption: "Interruption",
) -> int:
    import asyncio

    from refold.commands.output import Progress
    from refold.scenarios.command.crash_output import commands_of, write_crashes
    from refold.scenarios.command.log_crashes import CrashSummary, boundaries, boundary_at, crashed_everywhere, sampled
    from refold.scenarios.command.log_prefixes import read_recorded_log
    from refold.scenarios.command.output import broken_words
    from refold.scenarios.failure_artifact import free_stem
    from refold.scenarios.report import save_log
    from refold.scenarios.sweep import SweepPlan

    told.check()
    agent = SweepPlan(agent=name, own_tools=own_tools).rehearsed() if name is not None else None
    log = asyncio.run(read_recorded_log(path))
    every = boundaries(log)
    wanted = sampled(every, most) if at is None else boundary_at(every, at)
    summary = CrashSummary()
    with Progress(quiet=told.as_json) as progress, suppress(KeyboardInterrupt):  # What was found so far is shown.
        for trial in crashed_everywhere(log, agent, wanted):
            summary.add(trial)
            progress(f"boundaries{broken_words(summary.broken)}", summary.tried.total(), len(wanted))
            interruption.check()
    saved = None
    if summary.first_broken is not None:
        folder = told.save or Path(tempfile.mkdtemp(prefix="refold-simulate-"))
        saved = folder / f"{free_stem(folder, f'crashed-at-{summary.first_broken.boundary.position}')}.db"
        asyncio.run(save_log(summary.first_broken.log, saved))
    write_crashes(path, name, own_tools, len(every), summary, saved, as_json=told.as_json)
    if told.html is not None:
        from refold.scenarios.command.page import report_of, write_page

        first = summary.first_broken
        broken = first.broken if first is not None else ()
        title = f"Crashes of {path}"
        commands: list[str] = []
        if first is not None and saved is not None:
            title = f"Crash of {path} at {first.boundary}"
            commands = commands_of(path, name, own_tools, first, saved)
        report = report_of(title, summary.verdicts(), broken, commands=commands)
        write_page(told.html, report, saved, broken[0].stream if broken else "")
    return EXIT_FOUND if summary.broken else EXIT_OK


def _write_page(
    file: Path | None,
    plan: "SweepPlan",
    title: str,
    again: str | None,
    verdicts: "Mapping[str, RuleVerdict]",
    broken: "Sequence[Broken]",
    violation: "FailureArtifact | None",
    log: Path | None = None,
) -> None:
    """Write the page, if one is wanted; it shows the sessions of what is enough to break the promise, or of `log`."""
    if file is None:
        return
    from refold.scenarios.command.output import commands_of
    from refold.scenarios.command.page import report_of, write_page

    commands = commands_of(plan, violation, again) if violation is not None else ()
    report = report_of(f"{plan.agent}, {title}", verdicts, broken, violation=violation, commands=commands)
    if violation is None:
        write_page(file, report, log)
    else:
        write_page(file, report, violation.log, violation.broken.stream)


def _saved(
    plan: "SweepPlan", report: "SimulationReport", folder: Path | None, name: str, *, quiet: bool
) -> "FailureArtifact":
    from refold.commands.output import Progress
    from refold.scenarios.failure_artifact import save_failure

    with Progress(quiet=quiet) as progress:
        return save_failure(
            plan.simulator(),
            report,
            folder or Path(tempfile.mkdtemp(prefix="refold-simulate-")),
            name,
            agent=plan.agent,
            own_tools=plan.own_tools,
            tried=lambda tries: progress(f"smaller scenarios tried, since {report.broken[0].rule} is broken", tries),
        )
