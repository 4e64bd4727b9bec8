"""Power cuts at every operation of a recorded run, with every damage, and what the log is after each of them.

    recording = await recorded_run(folder, StorageWorkload(seed=7))
    losses = PowerLosses(recording, folder, seed=7)
    for _ in losses.cut_everywhere():
        ...
    print(losses.tally)

Read `refold.scenarios.world.disk_model` for what a power cut leaves, and `recovery_reader` for how it is read.
An image that is made of the same as one that was looked at is not looked at again; what had been acknowledged at that
moment is still judged.
"""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from refold.scenarios.world.disk_model import DAMAGES, DiskDamage, DiskImage, DiskModel
from tests.selfcheck.storage.recording import FILE_NAMES, LOG_NAME, NOTHING_YET, Mark, Recording, recording
from tests.selfcheck.storage.recovery_reader import Recovered, RecoveredLogs
from tests.selfcheck.storage.tally import Tally
from tests.selfcheck.storage.workload import StorageWorkload, WorkOnLog


class LossTally(Tally, kw_only=True):
    """What was found in images."""

    cuts: int = 0
    """Moments and damages that were judged."""
    images: int = 0
    """Files after a power cut that were made and opened, no two made of the same in one run; about one in thirty is
    still equal to another, byte for byte."""
    lost: int = 0
    """Judged moments at which an acknowledged step was missing."""
    steps_lost_max: int = 0
    unasked: int = 0
    """Judged moments at which the log held what had not been asked for."""
    damaged: int = 0
    """Images that could not be opened, or held something else than some step's log."""
    not_acknowledged: int = 0
    """Judged moments at which something was in the log that had not been acknowledged, which is as it should be."""
    by_damage: Counter[str] = msgspec.field(default_factory=Counter[str])


class Cut(NamedTuple):
    """An image that was looked at."""

    at: int
    """After how many entries of the recording the power went off."""
    damage: DiskDamage
    image: DiskImage
    mark: Mark
    recovered: Recovered


class PowerLosses:
    """Cuts the power in a recorded run.

    Args:
        run: what was recorded.
        folder: an empty folder for images, best in memory.
        seed: of what the damages leave open.
        syncs: False = the disk lies about syncs.
        name: what problems are told under; None = the seed.
        again: returns, for a moment, what is added to its problems: how to meet them again.
        openings_count: whether a log has to have been opened as often as is expected.
    """

    def __init__(
        self,
        run: Recording,
        folder: Path,
        *,
        seed: int,
        syncs: bool = True,
        name: str | None = None,
        again: Callable[[int], str] = lambda at: "",
        openings_count: bool = True,
    ) -> None:
        self.tally = LossTally()
        self._run = run
        self._folder = ImageFolder(folder)
        self._name = name or f"seed {seed}"
        self._again = again
        self._seed = seed
        self._syncs = syncs
        self._logs = RecoveredLogs(run.expected, openings_count=openings_count)
        self._known: dict[tuple[object, ...], Recovered] = {}

    def cut_everywhere(self, *, share: float = 1.0, only: int | None = None) -> Iterator[Cut]:
        """Yield each image that had not been met before, after it was judged.

        What is drawn at a moment follows from the seed and the moment alone, whichever others are looked at.

        Args:
            share: of the moments, drawn; 1 = all.
            only: the one moment to look at, as in `Cut.at`; None = all.
        """
        model, mark = DiskModel(self._run.files, syncs=self._syncs), self._run.begin
        drawn = random.Random(f"share {self._seed}")
        for at, entry in enumerate(self._run.entries, 1):
            if isinstance(entry, Mark):
                mark = entry
            else:
                model.apply(entry)
            if (share < 1 and drawn.random() >= share) or only not in (None, at):
                continue
            yield from self._cut_at(at, model, mark)

    def _cut_at(self, at: int, model: DiskModel, mark: Mark) -> Iterator[Cut]:
        chance = random.Random(f"power loss {self._seed} {at}")
        for damage in DAMAGES if not model.is_certain else DAMAGES[:1]:
            image = model.image(damage, chance)
            key = image.key
            known = self._known.get(key)
            if known is None:
                recovered = self._known[key] = self._look_at(image, mark, damage)
            else:
                recovered = known
            self._judge(recovered, mark, at, damage)
            if known is None:
                yield Cut(at, damage, image, mark, recovered)

    def _look_at(self, image: DiskImage, mark: Mark, damage: DiskDamage) -> Recovered:
        recovered = self._recovered(image, mark)
        self.tally.images += 1
        self.tally.by_damage[damage] += 1
        if recovered.step is None:
            self.tally.damaged += 1
        return recovered

    def _recovered(self, image: DiskImage, mark: Mark) -> Recovered:
        if LOG_NAME not in image.parts:
            left = [name for name in (f"{LOG_NAME}-wal", f"{LOG_NAME}-journal") if name in image.parts]
            return (
                Recovered(None, f"{left[0]} is there without its log, which no store opens") if left else Recovered(0)
            )
        return self._logs.read(self._folder.put(image), asked=mark.asked)

    def _judge(self, recovered: Recovered, mark: Mark, at: int, damage: DiskDamage) -> None:
        tally = self.tally
        tally.cuts += 1
        step = recovered.step
        if step is None:
            self._note(at, damage, recovered.problem)
        elif step < mark.acknowledged:
            tally.lost += 1
            tally.steps_lost_max = max(tally.steps_lost_max, mark.acknowledged - step)
            self._note(at, damage, f"step {mark.acknowledged} was acknowledged, and the log is as after step {step}")
        elif step > mark.asked:
            tally.unasked += 1
            self._note(at, damage, f"the log is as after step {step}, and only step {mark.asked} had been asked for")
        elif step > mark.acknowledged:
            tally.not_acknowledged += 1

    def _note(self, at: int, damage: DiskDamage, problem: str) -> None:
        where = f"{self._name}, after operation {at}, damage {damage!r}"
        self.tally.report(f"{where}: {problem}{self._again(at)}")


class ImageFolder:
    """A folder in which one image after another is put in place, as far as it differs from the one before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / LOG_NAME
        self._paths = {name: os.fspath(folder / name) for name in FILE_NAMES}
        self._parts: dict[str, tuple[object, ...]] = {}

    def put(self, image: DiskImage) -> Path:
        """Write the files of an image, and return the path of its log."""
        for name, path in self._paths.items():
            part = image.parts.get(name)
            is_there = name in self._parts
            if is_there and name != LOG_NAME:
                is_there = os.path.exists(path)  # SQLite removes a WAL without content when it closes the log.
            if part is None:
                self._parts.pop(name, None)
                if is_there:
                    os.unlink(path)
            elif not is_there or part != self._parts[name]:
                write_file(path, image.content(name))
                self._parts[name] = part
        return self._log


def write_file(path: str, content: bytes | bytearray) -> None:
    """Write a whole file, in place if it is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(descriptor, content)
        assert written == len(content)
        os.ftruncate(descriptor, written)
    finally:
        os.close(descriptor)


def put_files(folder: Path, files: Mapping[str, bytes | bytearray]) -> None:
    """Write files into a folder under their names."""
    for name, content in files.items():
        write_file(os.fspath(folder / name), content)


async def recorded_run(folder: Path, workload: StorageWorkload) -> Recording:
    """Play a workload on a new log in an empty folder and return what was recorded.

    Raises:
        ShimUnavailable: see `SQLiteShim.of_process`.
    """
    with recording(folder, seed=f"sqlite {workload.seed}") as recorder:
        expected = await WorkOnLog(folder / LOG_NAME, workload, recorder, recorder.reached).play()
    return Recording({}, recorder.entries, expected, NOTHING_YET)


@contextmanager
def fast_folder() -> Generator[Path]:
    """Give an empty folder, in memory where there is such a place, and remove it afterwards."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where, prefix="refold-rehearsal-") as folder:
        yield Path(folder).resolve()
