"""The rehearsal of storage: power cuts, failing disks and killed processes, with the store that runtimes use.

    python -m tests.selfcheck.storage                         a look, in about a minute
    python -m tests.selfcheck.storage --images 310000 --errors 1000 --kills 500 --seed 7
    python -m tests.selfcheck.storage --only 'power 86 44'    one piece again, as a problem names it
    ... --json                                                              everything that was counted

Read `tests.selfcheck.storage.properties` for what is judged, `power_loss` for the cuts, `disk_errors` for the faults
and `killed_writers` for the kills. It exits with 1 if a promise is violated. Where SQLite cannot be reached from
outside, only the kills are done, and the rest is told as not exercised.
"""

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from types import UnionType
from typing import Annotated, NamedTuple

import msgspec
import typer

from refold.actors.kernel.clock import Clock, SystemClock
from refold.events.core.errors import ConfigError
from refold.scenarios.world.sqlite_shim import ShimUnavailable, SQLiteShim
from tests.selfcheck.storage.properties import Judgement, StorageFindings
from tests.selfcheck.storage.tasks import (
    CutPower,
    FailDisk,
    KillWriters,
    LoseSyncs,
    Task,
    error_tasks,
    kill_tasks,
    power_tasks,
    run_task,
    task_again,
)

PROGRESS_EVERY_S = 1.0


class StorageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` gives."""

    seed: int
    jobs: int
    images: int
    """After power cuts, all of them opened, no two made of the same in one run."""
    cuts: int
    """Moments and damages that were judged; some leave an image that was looked at already."""
    power_seconds: float
    images_per_second: float
    images_per_cpu_second: float
    """For each second of a processor: on a busy machine `jobs` of them may be far from what one second gives."""
    error_seconds: float
    kill_seconds: float
    judgements: Sequence[Judgement]
    problems: Sequence[str]
    findings: StorageFindings
    not_exercised_because: str = ""
    """Why there were no power cuts and no failing disk, if that could not be done."""


class Stage(NamedTuple):
    """Tasks of one kind, and what is counted while they run."""

    name: str
    tasks: Sequence[Task]
    counted: Callable[[StorageFindings], int]
    wanted: int


def rehearse_storage(
    *,
    images: int,
    errors: int,
    kills: int,
    seed: int,
    jobs: int,
    clock: Clock,
    progress: Callable[[str], object],
    only: str | None = None,
) -> StorageReport:
    """Do everything and return what was found; not within a running event loop.

    Raises:
        ConfigError: `only` names no piece.
    """
    reason, piece = "", task_again(only) if only is not None else None
    if piece is not None:
        images, errors, kills, jobs = 0, 0, 0, 1
    try:
        SQLiteShim.of_process()
    except ShimUnavailable as error:
        reason, images, errors = str(error), 0, 0
        if not isinstance(piece, KillWriters):
            piece = None
    findings = StorageFindings()
    stages = (
        Stage("power cuts: images", _with(piece, CutPower, power_tasks(images, seed)), _images, images),
        Stage("failing disk: faults", _with(piece, FailDisk | LoseSyncs, error_tasks(errors, seed)), _faults, errors),
        Stage("kill -9: processes", _with(piece, KillWriters, kill_tasks(kills, seed)), _kills, kills),
    )
    power_s, error_s, kill_s = (_run(stage, findings, jobs, clock, progress) for stage in stages)
    parts = (findings.power, findings.normal, findings.lying)
    cpu_s = sum(part.cpu_s for part in parts)
    return StorageReport(
        seed=seed,
        jobs=jobs,
        images=findings.images,
        cuts=sum(part.first.cuts + part.recovering.cuts for part in parts),
        power_seconds=round(power_s, 2),
        images_per_second=round(findings.images / power_s, 1) if power_s else 0.0,
        images_per_cpu_second=round(findings.images / cpu_s, 1) if cpu_s else 0.0,
        error_seconds=round(error_s, 2),
        kill_seconds=round(kill_s, 2),
        judgements=findings.judgements(),
        problems=findings.all_problems(),
        findings=findings,
        not_exercised_because=reason,
    )


def _with(piece: Task | None, kind: type[Task] | UnionType, tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks of a stage, and the piece if it is of its kind."""
    return [*tasks, *([piece] if piece is not None and isinstance(piece, kind) else ())]


def _images(found: StorageFindings) -> int:
    return found.images


def _faults(found: StorageFindings) -> int:
    return found.errors.runs


def _kills(found: StorageFindings) -> int:
    return found.kills.kills


def _run(stage: Stage, findings: StorageFindings, jobs: int, clock: Clock, progress: Callable[[str], object]) -> float:
    """Run the tasks of a stage, add what they find, and return how many seconds it took."""
    if not stage.tasks:
        return 0.0
    began = told = clock.monotonic_s()
    for found in _results(stage.tasks, jobs):
        findings.add(found)
        now = clock.monotonic_s()
        if now - told >= PROGRESS_EVERY_S:
            told = now
            done = stage.counted(findings)
            progress(f"{stage.name} {done:,} of {stage.wanted:,}, {done / (now - began):,.0f}/s")
    return clock.monotonic_s() - began


def _results(tasks: Iterable[Task], jobs: int) -> Iterator[StorageFindings]:
    if jobs == 1:
        yield from map(run_task, tasks)
        return
    # New interpreters: nothing of this process is inherited, least of all what SQLite knows of open files.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=jobs, mp_context=context, initializer=be_quiet) as workers:
        for done in as_completed([workers.submit(run_task, task) for task in tasks]):
            yield done.result()


def be_quiet() -> None:
    """Keep to itself what the stores warn of, which is what is rehearsed."""
    logging.getLogger("refold").setLevel(logging.CRITICAL)


def as_text(report: StorageReport) -> Iterator[str]:
    """Yield the lines of a report."""
    found = report.findings
    power, again, errors, kills = found.power, found.power.recovering, found.errors, found.kills
    if report.not_exercised_because:
        yield f"no power cuts and no failing disk: {report.not_exercised_because}"
    if report.images:
        yield (
            f"power cuts: {report.images:,} images of {report.cuts:,} cuts in {report.power_seconds:,.1f} s = "
            f"{report.images_per_second:,.0f}/s ({report.images_per_second * 60:,.0f} a minute, and "
            f"{report.images_per_cpu_second:,.0f} for each second of a processor); {power.reopened:,} opened with the "
            f"store, {again.images:,} of second cuts while it did that"
        )
    if errors.runs:
        yield (
            f"failing disk: {errors.runs:,} faults in {report.error_seconds:,.1f} s; {errors.told:,} errors told, "
            f"{errors.unknown:,} with an unknown outcome; {errors.acknowledged:,} appends acknowledged; "
            f"{found.forgotten.images:,} images of power cuts after failed syncs"
        )
    if kills.kills:
        yield (
            f"kill -9: {kills.kills:,} processes in {report.kill_seconds:,.1f} s ({kills.silent:,} before the first "
            f"acknowledgement); {kills.acknowledged:,} events acknowledged, {kills.lost:,} lost; "
            f"after {kills.beyond:,} more was there than was acknowledged"
        )
    yield ""
    yield f"{'promise':<17}{'verdict':<15}{'judged':>12}  what it says"
    for judgement in report.judgements:
        yield f"{judgement.promise:<17}{judgement.verdict:<15}{judgement.judged:>12,}  {judgement.says}"
    if report.problems:
        yield ""
        yield from report.problems


def command(
    images: Annotated[int, typer.Option(help="Images of power cuts, about.", min=0)] = 20_000,
    errors: Annotated[int, typer.Option(help="Faults of a disk.", min=0)] = 200,
    kills: Annotated[int, typer.Option(help="Processes to kill.", min=0)] = 60,
    seed: Annotated[int, typer.Option(help="What everything is drawn from.")] = 1,
    jobs: Annotated[int, typer.Option(help="Worker processes; 0 = one for each core.", min=0)] = 0,
    only: Annotated[str | None, typer.Option(help="One piece again, in the words that a problem names it by.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON document.")] = False,
) -> None:
    """Cut the power, fail the disk and kill processes under the real store, and say which of its promises hold."""
    be_quiet()
    is_terminal = sys.stderr.isatty()

    def progress(line: str) -> None:
        sys.stderr.write(f"\r{line:<79}" if is_terminal else f"{line}\n")
        sys.stderr.flush()

    try:
        report = rehearse_storage(
            images=images,
            errors=errors,
            kills=kills,
            seed=seed,
            jobs=jobs or os.cpu_count() or 1,
            clock=SystemClock(),
            progress=progress,
            only=only,
        )
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    if is_terminal:
        sys.stderr.write(f"\r{'':<79}\r")
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        typer.echo("\n".join(as_text(report)))
    if any(judgement.verdict == "violated" for judgement in report.judgements):
        raise typer.Exit(1)
