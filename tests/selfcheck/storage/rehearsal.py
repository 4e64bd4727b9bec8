"""The rehearsal of storage: power cuts and failing disks, with the store that runtimes use.

    python -m tests.selfcheck.storage                         a look, in about a minute
    ... --images=310000 --errors=1000 --seed=7 --jobs=2                    more of it, others, on two processors
    ... --only='power 86 44'                                  one piece again, as a problem names it

Read `tests.selfcheck.storage.properties` for what is judged, `power_loss` for the cuts and `disk_errors` for the
faults. It exits with 1 if a promise is violated. Where SQLite cannot be reached from outside, it says so and does
nothing.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import TextIO

from refold.events.core.errors import ConfigError
from refold.scenarios.workers import done_in_processes
from refold.scenarios.world.sqlite_shim import ShimUnavailable, SQLiteShim
from tests.selfcheck.storage.properties import StorageFindings
from tests.selfcheck.storage.tasks import Task, error_tasks, power_tasks, run_task, task_again


def rehearse_storage(tasks: Sequence[Task], jobs: int = 1) -> StorageFindings:
    """Do the tasks, in so many processes, and return what was found; not within a running event loop.

    Raises:
        ShimUnavailable: see `SQLiteShim.of_process`.
    """
    findings = StorageFindings()
    for found in map(run_task, tasks) if jobs == 1 else done_in_processes(run_task, iter(tasks), jobs):
        findings.add(found)
    return findings


def as_text(found: StorageFindings) -> Iterator[str]:
    """Yield the lines of a report."""
    power, errors = found.power, found.errors
    yield (
        f"{found.images:,} images of {found.cuts:,} power cuts; {power.reopened:,} opened with the store, "
        f"{power.recovering.images:,} images of second cuts while it did that"
    )
    yield (
        f"{errors.runs:,} faults of a disk; {errors.told:,} errors told, {errors.unknown:,} with an unknown outcome; "
        f"{errors.acknowledged:,} appends acknowledged; {found.forgotten.images:,} images of power cuts after failed "
        "syncs"
    )
    yield f"\n{'promise':<17}{'verdict':<15}{'judged':>12}  what it says"
    for judgement in found.judgements():
        yield f"{judgement.promise:<17}{judgement.verdict:<15}{judgement.judged:>12,}  {judgement.says}"
    yield from found.all_problems()


def main(arguments: Sequence[str], out: TextIO) -> int:
    """Cut the power and fail the disk under the real store, print what came of it, and return the exit code.

    Raises:
        SystemExit: the arguments are wrong.
    """
    parser = argparse.ArgumentParser("tests.selfcheck.storage")
    parser.add_argument("--images", type=int, default=20_000, help="of power cuts, about")
    parser.add_argument("--errors", type=int, default=200, help="faults of a disk")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", help="one piece again, in the words that a problem names it by")
    options = parser.parse_args(arguments)
    tasks = [*power_tasks(options.images, options.seed), *error_tasks(options.errors, options.seed)]
    if options.only is not None:
        try:
            tasks = [task_again(options.only)]
        except ConfigError as error:
            parser.error(str(error))
    try:
        SQLiteShim.of_process()
    except ShimUnavailable as error:
        out.write(f"nothing is rehearsed: {error}\n")
        return 0
    found = rehearse_storage(tasks, options.jobs)
    out.writelines(f"{line}\n" for line in as_text(found))
    return int(any(judgement.verdict == "violated" for judgement in found.judgements()))
