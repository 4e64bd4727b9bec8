"""`refold simulate`: an agent rehearsed, with everything that can go wrong.

The command that `refold.commands.cli` finds by name, since it stands to the right of the runtime. What it writes is in
`refold.scenarios.command.output`, what it plays in `refold.scenarios.sweep`.
"""

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

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
OwnToolsOption = Annotated[
    bool, typer.Option("--own-tools", help="Run the bodies of the agent's own tools, with arguments by chance.")
]


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
    as_json: JsonOption = False,
) -> None:
    """Rehearse an agent: crashes, refusals, hangs and cancels, drawn from seeds, on a clock that costs no time.

    Its sessions run on a simulated loop; answers come from a model that answers by chance, and a stand-in takes the
    place of each tool's body, unless --own-tools is given. What came of a seed depends on nothing else, so --seed
    repeats it exactly. A broken promise is shrunk to the smallest scenario that breaks it, which is shown as Python
    code, and saved together with its log. Exits 1 if a promise is broken.

    With --from, a process is started on each prefix of a recorded log, as if the one that wrote it had died there, and
    must recover; without AGENT it runs an agent that is made of what the log says of it. The log is not changed.

    A function is called for each life of the simulated process, so that nothing is left of what was played before.

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
    if from_log is not None:
        if own_tools and agent is None:
            raise typer.BadParameter("--own-tools with --from needs an AGENT; a log has no tools of its own")
        _run(lambda interruption: _from_log(from_log, agent, boundaries, at, own_tools, save, as_json, interruption))
    if agent is None:
        sample = f"; `python -m refold.scenarios.ready.{ready}` plays it with a sample" if ready is not None else ""
        raise typer.BadParameter(f"name the agent, as module:attribute{sample or ', or a log with --from'}")
    drawing = {"sessions": sessions, "acts": acts, "faults_max": faults, "store": store.value, "wire": wire.value}

    def work(interruption: "Interruption") -> int:
        from refold.scenarios.failure_artifact import check_folder
        from refold.scenarios.sweep import SweepPlan

        if save is not None:
            check_folder(save)
        plan = SweepPlan(agent=agent, own_tools=own_tools, drawing=drawing)
        if seed is not None or scenario is not None or ready is not None:
            return _one(plan, seed, scenario, ready, save, as_json, interruption)
        return _many(plan, first, seeds, time, jobs, save, as_json, interruption)

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
    """Refuse options that would change nothing: who gives one expects something of it.

    Raises:
        typer.BadParameter: there is one.
    """
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
    save: Path | None,
    as_json: bool,
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
        violation = _saved(plan, report, save, name)
    log = None
    if save is not None and (violation is None or violation.unsaved is None):
        log = save / f"{reserved_stem(save, f'{name}-whole', played)}.db"
        with quiet():
            simulator.save_log(played, log)
    write_one(plan, title, again, report, violation, log, repeats=repeats, as_json=as_json)
    return EXIT_FOUND if report.broken else EXIT_OK


def _many(
    plan: "SweepPlan",
    first: int,
    number: int | None,
    time_s: float | None,
    jobs: int | None,
    save: Path | None,
    as_json: bool,
    interruption: "Interruption",
) -> int:
    from refold.actors.kernel.clock import SystemClock
    from refold.scenarios.command.output import progress, write_many
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
    with progress(wanted) as shown, closing(swept(plan, seeds, jobs=processes)) as outcomes:
        try:
            for report in outcomes:
                summary.add(report)
                shown(summary, clock.monotonic_s() - began_s)
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
            violation = _saved(plan, report, save, f"seed-{seed}")
    write_many(plan, first, summary, seconds, violation, repeats=repeats, as_json=as_json)
    return EXIT_FOUND if summary.broken else EXIT_OK


def _from_log(
    path: Path,
    name: str | None,
    most: int,
    at: int | None,
    own_tools: bool,
    save: Path | None,
    as_json: bool,
    interruption: "Interruption",
) -> int:
    import asyncio

    from refold.scenarios.command.crash_output import crash_progress, write_crashes
    from refold.scenarios.command.log_crashes import CrashSummary, boundaries, boundary_at, crashed_everywhere, sampled
    from refold.scenarios.command.log_prefixes import read_recorded_log
    from refold.scenarios.failure_artifact import check_folder, free_stem
    from refold.scenarios.report import save_log
    from refold.scenarios.sweep import SweepPlan

    if save is not None:
        check_folder(save)
    agent = SweepPlan(agent=name, own_tools=own_tools).rehearsed() if name is not None else None
    log = asyncio.run(read_recorded_log(path))
    every = boundaries(log)
    wanted = sampled(every, most) if at is None else boundary_at(every, at)
    summary = CrashSummary()
    with crash_progress(len(wanted)) as shown, suppress(KeyboardInterrupt):  # What was found so far is shown.
        for trial in crashed_everywhere(log, agent, wanted):
            summary.add(trial)
            shown(summary)
            interruption.check()
    saved = None
    if summary.first_broken is not None:
        folder = save or Path(tempfile.mkdtemp(prefix="refold-simulate-"))
        saved = folder / f"{free_stem(folder, f'crashed-at-{summary.first_broken.boundary.position}')}.db"
        asyncio.run(save_log(summary.first_broken.log, saved))
    write_crashes(path, name, own_tools, len(every), summary, saved, as_json=as_json)
    return EXIT_FOUND if summary.broken else EXIT_OK


def _saved(plan: "SweepPlan", report: "SimulationReport", folder: Path | None, name: str) -> "FailureArtifact":
    from refold.scenarios.command.output import live_line
    from refold.scenarios.failure_artifact import save_failure

    with live_line() as show:
        return save_failure(
            plan.simulator(),
            report,
            folder or Path(tempfile.mkdtemp(prefix="refold-simulate-")),
            name,
            agent=plan.agent,
            own_tools=plan.own_tools,
            tried=lambda tries: show(f"{report.broken[0].rule} is broken; smaller scenarios that were tried: {tries}"),
        )
