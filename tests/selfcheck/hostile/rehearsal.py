"""Hostile logs: logs that were changed, damaged or made up, and what Refold makes of them.

    python -m tests.selfcheck.hostile                           1,000 logs, in a minute or two
    ... --count=50000 --seed=7 --processes=2                             more of them, others, on two processors
    ... --sample=events.db                                               besides our samples, changes of this log
    ... --keep=FOLDER                                                    keeps the logs that show a fault
    ... --only=NUMBER                                                    one of the logs, with all that it shows

Each log is a sample with one kind of change (`event_mutations`, `table_mutations`, `byte_mutations`). It is checked,
replayed, shown, measured, exported and taken over by a runtime (`trial`) in a process of its own kind, whose
memory and processor time are measured for each log. It prints what came of the logs of each kind: `refused` (not
opened), `reported` (`refold check` names problems), `sound` (it finds none, since the change means nothing, or was made
with new digests), or `fault`; then the faults. It exits with 1 if there are any.
"""

import argparse
import asyncio
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TextIO, cast, get_args

import msgspec

from refold.actors.kernel.clock import Clock
from refold.scenarios.workers import WorkerDied, done_in_processes
from refold.stores.sqlite.file import is_text_log
from tests.selfcheck.hostile.byte_mutations import LINES_FILE_MUTATIONS, SQLITE_FILE_MUTATIONS
from tests.selfcheck.hostile.event_mutations import EVENT_MUTATIONS
from tests.selfcheck.hostile.samples import make_samples
from tests.selfcheck.hostile.table_mutations import TABLE_MUTATIONS, changed_tables, mutate_event
from tests.selfcheck.hostile.trial import Fault, TrialReport, Verdict, try_log

MEMORY_MAX = 100 * 1024 * 1024
"""So many bytes may a process grow for one log."""

PROCESSOR_TIMES_MAX = 20
"""So many times the processor time of a sound log may all that is done with one log take, together."""

PROCESSOR_S_MIN = 1.0
"""So much it may take on any machine; a slow one, or one that others use as well, takes longer for a sound log, too."""

SILENCE_S = 60
"""A process that takes so long with one log hangs, and is killed."""

ADDRESS_SPACE = 4 * 1024**3
"""Bytes that a process may map at most, so that a log that wants all memory ends its own process only."""

FAULTS_SHOWN = 40

WARM_UPS = 3

SHARE_OF_LINES = 0.15
"""Of text logs."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one hostile log."""

    number: int
    kind: str
    """Of the change; `?` = the process was lost before it said so."""
    verdict: str
    faults: tuple[str, ...] = ()
    memory: int = 0
    """Bytes that the process grew at most."""
    processor_s: float = 0.0
    uses: int = 0
    refusals: int = 0


TRAPS = ("a trigger", "an index that is dear")
"""Changes after which nothing more can be written."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "sqlite": (
        *(f"event: {name}" for name in EVENT_MUTATIONS),
        *(f"table: {name}" for name in TABLE_MUTATIONS),
        *(f"file: {name}" for name in SQLITE_FILE_MUTATIONS),
    ),
    "lines": tuple(f"lines: {name}" for name in LINES_FILE_MUTATIONS),
}
"""Kinds of changes, by the kind of file."""


def mutated_log(samples: Sequence[Path], folder: Path, seed: int, number: int) -> tuple[Path, str, random.Random]:
    """Make one hostile log in a folder, always the same for a seed and a number.

    Returns:
        Its path, the kind of its change, and the chance that goes on from there.
    """
    chance = random.Random(f"hostile log {number} of {seed}")
    in_lines = chance.random() < SHARE_OF_LINES
    fitting = [path for path in samples if is_text_log(path) == in_lines] or list(samples)
    sample = chance.choice(fitting)
    log = Path(shutil.copy(sample, folder / sample.name))
    kind = chance.choice(KINDS["lines" if is_text_log(log) else "sqlite"])
    mutate(log, kind, chance)
    return log, kind, chance


def mutate(log: Path, kind: str, chance: random.Random) -> None:
    """Change a log in one of the ways of `KINDS`."""
    group, _, name = kind.partition(": ")
    match group:
        case "event":
            changed_tables(log, mutate_event(name), chance, rechain=chance.random() < 0.6)
        case "table":
            rechain = name not in TRAPS and chance.random() < 0.5  # Our own writing would set it off.
            changed_tables(log, TABLE_MUTATIONS[name], chance, rechain=rechain)
        case "file":
            SQLITE_FILE_MUTATIONS[name](log, chance)
        case _:
            LINES_FILE_MUTATIONS[name](log, chance)


def one_log(samples: Sequence[Path], folder: Path, seed: int, number: int, sound_s: float = 0.0) -> Outcome:
    """Make one hostile log in an empty folder, use it, measure that, and return what came of it.

    Args:
        samples: what is changed.
        folder: an empty one.
        seed: of all logs.
        number: of this one.
        sound_s: the processor time that a sound log takes here.
    """
    log, kind, chance = mutated_log(samples, folder, seed, number)
    before, began_s = _begin_measuring(), _processor_s()
    report = try_log(log, chance)
    return _measured(number, kind, report, _peak() - before, _processor_s() - began_s, sound_s)


def _measured(number: int, kind: str, report: TrialReport, memory: int, processor_s: float, sound_s: float) -> Outcome:
    faults = list(map(str, report.faults))
    if memory > MEMORY_MAX:
        faults.append(str(Fault("memory", f"more than {MEMORY_MAX >> 20} MiB")))
    if processor_s > (processor_s_max := max(PROCESSOR_S_MIN, PROCESSOR_TIMES_MAX * sound_s)):
        faults.append(str(Fault("time", f"more than {processor_s_max:.1f} s")))
    return Outcome(
        number=number,
        kind=kind,
        verdict="fault" if faults else report.verdict,
        faults=tuple(faults),
        memory=max(0, memory),
        processor_s=processor_s,
        uses=report.uses,
        refusals=report.refusals,
    )


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _begin_measuring() -> int:
    """Have the peak of this process's memory begin anew, where the system can, and return what it has now."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return _peak()
    return _status("VmRSS") or _peak()


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(name: str) -> int:
    """Return a size in bytes out of the process's status, or 0 where the system has none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def _in_its_process(samples: Sequence[Path], seed: int, number: int) -> Outcome:
    """Use one hostile log in a process that is there for such logs, and that may be lost with it."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sound_s = _warm_up(samples[0])
    signal.alarm(SILENCE_S)  # Kills this process.
    with tempfile.TemporaryDirectory() as folder:
        outcome = one_log(samples, Path(folder), seed, number, sound_s)
    signal.alarm(0)
    return outcome


@cache
def _warm_up(sample: Path) -> float:
    """Use a sound log, since what is loaded for the first log is no cost of that log, and return its processor time."""
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(shutil.copy(sample, folder))
        for number in range(WARM_UPS):
            began_s = _processor_s()
            try_log(log, random.Random(number))
            took.append(_processor_s() - began_s)
    return max(took[1:])


def outcomes(samples: Sequence[Path], seed: int, count: int, processes: int) -> Iterator[Outcome]:
    """Use hostile logs in processes, and yield what comes of them, in order; others follow those that are lost."""
    lost: dict[int, str] = {}
    number = 0
    while number < count:
        left = (other for other in range(number, count) if other not in lost)
        try:
            for outcome in done_in_processes(partial(_in_its_process, samples, seed), left, processes):
                yield outcome
                number = outcome.number + 1
        except WorkerDied as died:
            lost[cast("int", died.task)] = died.how()
        else:
            number = count
    for number, how in lost.items():
        fault = Fault("process", f"the process {how}")
        yield Outcome(number=number, kind="?", verdict="fault", faults=(str(fault),))


def main(arguments: Sequence[str], out: TextIO, clock: Clock) -> int:
    """Use hostile logs, print what came of them, and return the exit code: 0, or 1 for faults.

    Raises:
        SystemExit: the arguments are wrong.
    """
    parser = argparse.ArgumentParser("tests.selfcheck.hostile")
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--sample", type=Path, action="append", default=[])
    options = parser.parse_args(arguments)
    if missing := [path for path in options.sample if not path.is_file()]:
        parser.error(f"there is no file {missing[0]}; give logs to begin with, or none")
    with tempfile.TemporaryDirectory() as folder:
        samples = [*asyncio.run(make_samples(Path(folder))), *options.sample]
        if options.only is not None:
            return _show_one(samples, options.seed, options.only, out)
        began_s, found, faulty = clock.monotonic_s(), list[Outcome](), 0
        for outcome in outcomes(samples, options.seed, options.count, options.processes):
            found.append(outcome)
            if not outcome.faults:
                continue
            faulty += 1
            if faulty <= FAULTS_SHOWN:
                out.write(f"log {outcome.number} ({outcome.kind}): {'; '.join(outcome.faults)}\n")
                out.flush()
            if options.keep is not None:
                kept = options.keep / str(outcome.number)
                kept.mkdir(parents=True, exist_ok=True)
                mutated_log(samples, kept, options.seed, outcome.number)
    _print_table(found, out)
    used = (
        f"{clock.monotonic_s() - began_s:,.0f} s ({sum(each.processor_s for each in found):,.0f} s of processor time)"
    )
    out.write(
        f"{len(found):,} logs of seed {options.seed} in {used}; {sum(each.uses for each in found):,} commands and "
        f"runtimes on them, {sum(each.refusals for each in found):,} ended with an error of Refold's own; "
        f"{faulty:,} logs show a fault\n"
    )
    return int(faulty > 0)


def _show_one(samples: Sequence[Path], seed: int, number: int, out: TextIO) -> int:
    with tempfile.TemporaryDirectory() as folder:
        outcome = one_log(samples, Path(folder), seed, number, _warm_up(samples[0]))
    out.write(json.dumps(msgspec.to_builtins(outcome), indent=2) + "\n")
    return int(bool(outcome.faults))


def _print_table(found: Sequence[Outcome], out: TextIO) -> None:
    verdicts = get_args(Verdict)
    out.write(f"{'change':<46}{'logs':>8}{''.join(f'{word:>10}' for word in verdicts)}{'most MiB':>10}{'most s':>8}\n")
    for kind in (*sorted({outcome.kind for outcome in found}), "all"):
        of_kind = [outcome for outcome in found if kind in (outcome.kind, "all")]
        counts = Counter(outcome.verdict for outcome in of_kind)
        most = f"{max(each.memory for each in of_kind) / 2**20:>10.1f}{max(each.processor_s for each in of_kind):>8.2f}"
        out.write(f"{kind:<46}{len(of_kind):>8,}{''.join(f'{counts[word]:>10,}' for word in verdicts)}{most}\n")
