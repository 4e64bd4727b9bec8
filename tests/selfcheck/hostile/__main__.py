"""Hostile logs: logs that somebody has changed, damaged or made up, and what Refold makes of them.

    python -m tests.selfcheck.hostile                           1,000 logs, in a minute or two
    ... --count=50000 --seed=7 --processes=2                             more of them, others, on two processors
    ... --sample=events.db                                               besides our samples, changes of this log
    ... --keep=FOLDER                                                    keeps the logs that show a fault
    ... --only=NUMBER                                                    one of the logs, with all that it shows

Each log is a sample with one kind of change (`event_mutations`, `table_mutations`, `byte_mutations`). It is checked,
replayed, shown, measured, exported and taken over by a runtime (`trial`) in a process of its own kind, whose
memory and processor time are measured for each log. It prints what came of the logs of each kind: `refused` (not
opened), `reported` (`refold check` names problems), `sound` (it finds none, since the change means nothing, or was made
with new digests by somebody who knows how), or `fault`; then the faults. It exits with 1 if there are any.
"""

import asyncio
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO, TextIO

import msgspec

from refold.actors.kernel.clock import Clock, SystemClock
from refold.stores.sqlite.file import is_text_log
from tests.selfcheck.hostile.byte_mutations import LINES_FILE_MUTATIONS, SQLITE_FILE_MUTATIONS
from tests.selfcheck.hostile.event_mutations import EVENT_MUTATIONS
from tests.selfcheck.hostile.samples import make_samples
from tests.selfcheck.hostile.table_mutations import TABLE_MUTATIONS, changed_tables, mutate_event
from tests.selfcheck.hostile.trial import Fault, TrialReport, try_log

ROOT = Path(__file__).resolve().parents[3]
"""The top folder: `tests` is found from there."""

MEMORY_MAX = 100 * 1024 * 1024
"""So many bytes may a process grow for one log."""

PROCESSOR_S_MAX = 1.0
"""So much processor time may all that is done with one log take, together."""

SILENCE_S = 60.0
"""A process that says nothing for so long hangs."""

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
    """Of the change."""
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


def one_log(samples: Sequence[Path], folder: Path, seed: int, number: int) -> Outcome:
    """Make one hostile log in an empty folder, use it, measure that, and return what came of it."""
    log, kind, chance = mutated_log(samples, folder, seed, number)
    before, began_s = _begin_measuring(), _processor_s()
    report = try_log(log, chance)
    return _measured(number, kind, report, _peak() - before, _processor_s() - began_s)


def _measured(number: int, kind: str, report: TrialReport, memory: int, processor_s: float) -> Outcome:
    faults = list(map(str, report.faults))
    if memory > MEMORY_MAX:
        faults.append(str(Fault("memory", f"more than {MEMORY_MAX >> 20} MiB")))
    if processor_s > PROCESSOR_S_MAX:
        faults.append(str(Fault("time", f"more than {PROCESSOR_S_MAX:g} s")))
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


def work(samples: Sequence[Path], seed: int, numbers: Iterator[int], out: IO[str]) -> None:
    """Be a process that uses one hostile log after another, and says after each what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _warm_up(samples[0])
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            outcome = one_log(samples, Path(folder), seed, number)
        out.write(msgspec.json.encode(outcome).decode() + "\n")
        out.flush()


def _warm_up(sample: Path) -> None:
    """Use a sound log once: what is loaded for the first log is no cost of that log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(shutil.copy(sample, folder))
        for number in range(WARM_UPS):
            try_log(log, random.Random(number))


class _Worker:
    """A process that uses hostile logs; one that is lost with a log is made anew after it."""

    def __init__(self, samples: Sequence[Path], seed: int, first: int, step: int, count: int) -> None:
        self._samples, self._seed, self._step, self._count = samples, seed, step, count
        self._next = first
        self._process: subprocess.Popen[str] | None = None

    @property
    def stdout(self) -> IO[str]:
        """Where it says what came of its logs."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def finished(self) -> bool:
        """Whether all its logs were used."""
        return self._next >= self._count

    def begin(self) -> None:
        """Make the process."""
        options = [f"--seed={self._seed}", f"--work={self._next},{self._count},{self._step}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.selfcheck.hostile", *options, *map(str, self._samples)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def outcome(self) -> Outcome:
        """Return what came of the log that it has used last, or has been lost with."""
        line = self.stdout.readline()
        if not line:
            line = msgspec.json.encode(self.lost(f"the process ended with {self.end()}")).decode()
        outcome = msgspec.json.decode(line, type=Outcome)
        self._next = outcome.number + self._step
        return outcome

    def lost(self, why: str) -> Outcome:
        """Return the outcome of the log that the process was lost with."""
        return Outcome(number=self._next, kind="?", verdict="fault", faults=(str(Fault("process", why)),))

    def skip(self) -> None:
        """Go on behind the log that the process was lost with."""
        self._next += self._step

    def end(self) -> int:
        """End the process, and return its exit code."""
        assert self._process is not None
        self._process.kill()
        self.stdout.close()
        return self._process.wait()


def outcomes(samples: Sequence[Path], seed: int, count: int, processes: int) -> Iterator[Outcome]:
    """Use so many hostile logs in so many processes, and give what comes of them."""
    with DefaultSelector() as selector:
        for first in range(min(processes, count)):
            worker = _Worker(samples, seed, first, processes, count)
            worker.begin()
            selector.register(worker.stdout, EVENT_READ, worker)
        try:
            while selector.get_map():
                yield from _some_outcomes(selector)
        finally:
            for key in list(selector.get_map().values()):
                key.data.end()


def _some_outcomes(selector: DefaultSelector) -> Iterator[Outcome]:
    ready = selector.select(SILENCE_S)
    if not ready:
        for key in list(selector.get_map().values()):
            worker: _Worker = key.data
            selector.unregister(key.fileobj)
            yield worker.lost(f"nothing for {SILENCE_S:g} s")
            worker.end()
            worker.skip()
            _go_on(selector, worker)
    for key, _ in ready:
        worker = key.data
        outcome = worker.outcome()
        yield outcome
        if outcome.kind == "?" or worker.finished:
            selector.unregister(key.fileobj)
            if not worker.finished:
                _go_on(selector, worker)
            elif outcome.kind != "?":
                worker.end()


def _go_on(selector: DefaultSelector, worker: _Worker) -> None:
    if not worker.finished:
        worker.begin()
        selector.register(worker.stdout, EVENT_READ, worker)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command is asked for."""

    count: int = 1_000
    seed: int = 0
    processes: int = 1
    only: int | None = None
    keep: str | None = None
    sample: tuple[str, ...] = ()
    work: str | None = None
    """For its own processes."""


def _options(arguments: Sequence[str]) -> Options:
    given: dict[str, object] = {"sample": []}
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if name == "sample" or not argument.startswith("--"):
            given["sample"] = [*map(str, given["sample"]), value or argument]  # type: ignore[call-overload]
        else:
            given[name] = value
    unknown = sorted(set(given) - set(Options.__struct_fields__))
    if unknown:
        raise ValueError(f"there is no option --{unknown[0]}")
    return msgspec.convert(given, Options, strict=False)


def main(arguments: Sequence[str], out: TextIO, clock: Clock) -> int:
    """Use hostile logs, print what came of them, and return the exit code: 0, 1 for faults, 2 for wrong arguments.

    Args:
        arguments: those of the command line, without the program's name.
        out: where to print.
        clock: tells how long it took.
    """
    try:
        options = _options(arguments)
    except ValueError as error:
        out.write(f"tests.selfcheck.hostile: {error}\n")
        return 2
    if options.work is not None:
        first, count, step = map(int, options.work.split(","))
        work([Path(path) for path in options.sample], options.seed, iter(range(first, count, step)), sys.stdout)
        return 0
    missing = [path for path in options.sample if not Path(path).is_file()]
    if missing:
        out.write(f"tests.selfcheck.hostile: there is no file {missing[0]}; give logs to begin with, or none\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        samples = [*asyncio.run(make_samples(Path(folder))), *map(Path, options.sample)]
        if options.only is not None:
            return _show_one(samples, options, out)
        began_s = clock.monotonic_s()
        tally = _Tally(out, options, samples)
        for outcome in outcomes(samples, options.seed, options.count, options.processes):
            tally.add(outcome)
        tally.write(clock.monotonic_s() - began_s)
        return int(tally.faults > 0)


def _show_one(samples: Sequence[Path], options: Options, out: TextIO) -> int:
    assert options.only is not None
    with tempfile.TemporaryDirectory() as folder:
        _warm_up(samples[0])
        outcome = one_log(samples, Path(folder), options.seed, options.only)
        out.write(json.dumps(msgspec.to_builtins(outcome), indent=2) + "\n")
    return int(bool(outcome.faults))


class _Tally:
    """Counts what came of the logs, by kind of change."""

    def __init__(self, out: TextIO, options: Options, samples: Sequence[Path]) -> None:
        self._out, self._options, self._samples = out, options, samples
        self._counts: dict[str, Counter[str]] = {}
        self._memory: Counter[str] = Counter()
        self._processor_s: dict[str, float] = {}
        self._processor_s_total = 0.0
        self._uses = self._refusals = 0
        self.faults = 0

    def add(self, outcome: Outcome) -> None:
        """Count one log; a fault is shown at once."""
        self._counts.setdefault(outcome.kind, Counter())[outcome.verdict] += 1
        self._memory[outcome.kind] = max(self._memory[outcome.kind], outcome.memory)
        self._processor_s[outcome.kind] = max(self._processor_s.get(outcome.kind, 0.0), outcome.processor_s)
        self._processor_s_total += outcome.processor_s
        self._uses += outcome.uses
        self._refusals += outcome.refusals
        if outcome.faults:
            self.faults += 1
            self._show_fault(outcome)

    def _show_fault(self, outcome: Outcome) -> None:
        if self.faults <= FAULTS_SHOWN:
            self._out.write(f"log {outcome.number} ({outcome.kind}): {'; '.join(outcome.faults)}\n")
            self._out.flush()
        if self._options.keep is not None:
            folder = Path(self._options.keep) / str(outcome.number)
            folder.mkdir(parents=True, exist_ok=True)
            mutated_log(self._samples, folder, self._options.seed, outcome.number)

    def write(self, seconds: float) -> None:
        """Print the table."""
        verdicts = ("refused", "reported", "sound", "fault")
        head = "".join(f"{verdict:>10}" for verdict in verdicts)
        self._out.write(f"{'change':<46}{'logs':>8}{head}{'most MiB':>10}{'most s':>8}\n")
        for kind, counts in sorted(self._counts.items()):
            row = "".join(f"{counts[verdict]:>10,}" for verdict in verdicts)
            most = f"{self._memory[kind] / 2**20:>10.1f}{self._processor_s[kind]:>8.2f}"
            self._out.write(f"{kind:<46}{counts.total():>8,}{row}{most}\n")
        total: Counter[str] = Counter()
        for counts in self._counts.values():
            total.update(counts)
        row = "".join(f"{total[verdict]:>10,}" for verdict in verdicts)
        most = f"{max(self._memory.values()) / 2**20:>10.1f}{max(self._processor_s.values()):>8.2f}"
        self._out.write(f"{'all':<46}{total.total():>8,}{row}{most}\n")
        used = f"{seconds:,.0f} s ({self._processor_s_total:,.0f} s of processor time)"
        self._out.write(
            f"{total.total():,} logs of seed {self._options.seed} in {used}; {self._uses:,} commands and runtimes on "
            f"them, {self._refusals:,} ended with an error of Refold's own; {self.faults:,} logs show a fault\n"
        )


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "120")
    sys.exit(main(sys.argv[1:], sys.stdout, SystemClock()))
