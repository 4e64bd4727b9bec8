"""Power cuts for one seed: a run, every cut in it, and cuts while the store recovers from some of them.

Everything follows from the seed, so that a worker process can do its part alone, and a finding can be made again.
"""

import asyncio
import shutil
import zlib
from pathlib import Path

import msgspec

from refold.stores.sqlite.file import Durability
from tests.selfcheck.storage.power_loss import Cut, LossTally, PowerLosses, fast_folder, recorded_run
from tests.selfcheck.storage.recording import Recording
from tests.selfcheck.storage.reopened_reader import reopened
from tests.selfcheck.storage.tally import Tally, again
from tests.selfcheck.storage.workload import StorageWorkload

REOPEN_ONE_IN = 300
"""Of so many images one is opened with the store, and cut again."""


class PowerLossResult(Tally, kw_only=True):
    """What was found; `problems` are of images that the store could not use."""

    runs: int = 0
    """Whole ones, and not only a moment of one."""
    first: LossTally = msgspec.field(default_factory=LossTally)
    """Of cuts while the store worked."""
    reopened: int = 0
    """How many images were opened, checked and written to with the store."""
    not_usable: int = 0
    """How many of them it could not use as it should."""
    recovering: LossTally = msgspec.field(default_factory=LossTally)
    """Of cuts while it recovered from a cut, or wrote on."""

    @property
    def images(self) -> int:
        """How many images were made and opened in all."""
        return self.first.images + self.recovering.images


def rehearse_power_loss(
    seed: int,
    *,
    share: float = 1.0,
    only: int | None = None,
    durability: Durability = "full",
    syncs: bool = True,
    reopen_one_in: int = REOPEN_ONE_IN,
) -> PowerLossResult:
    """Record a run, cut the power in it, and return what was found; not within a running event loop.

    Args:
        seed: of everything.
        share: of the moments in the first run, drawn; 1 = every operation.
        only: after how many operations to cut the power, and nowhere else; what is drawn there is the same.
        durability: of the store.
        syncs: False = the disk lies about syncs.
        reopen_one_in: of so many images one is opened with the store; only where nothing may be lost.

    Raises:
        ShimUnavailable: see `SQLiteShim.of_process`.
    """
    result = PowerLossResult(runs=int(only is None))
    world = "lying" if not syncs else "power" if durability == "full" else durability
    with fast_folder() as folder, asyncio.Runner() as runner:
        (folder / "run").mkdir()
        (folder / "images").mkdir()
        run = runner.run(recorded_run(folder / "run", StorageWorkload(seed=seed, durability=durability)))
        losses = PowerLosses(run, folder / "images", seed=seed, syncs=syncs, again=lambda at: again(world, seed, at))
        for cut in losses.cut_everywhere(share=share, only=only):
            if world == "power" and _is_drawn(cut, seed, reopen_one_in):
                runner.run(_reopen(cut, run, folder, seed, result))
        result.first = losses.tally
    return result


def _is_drawn(cut: Cut, seed: int, one_in: int) -> bool:
    return zlib.crc32(f"reopen {seed} {cut.at} {cut.damage}".encode()) % one_in == 0


async def _reopen(cut: Cut, run: Recording, folder: Path, seed: int, result: PowerLossResult) -> None:
    """Open an image with the store, and cut the power while it does that."""
    if cut.recovered.step is None:
        return
    opening, images = folder / "again", folder / "images again"
    opening.mkdir()
    images.mkdir()
    where = f"seed {seed}, after operation {cut.at}, damage {cut.damage!r}"
    meet_again = again("power", seed, cut.at)
    opened = await reopened(cut.image.files, run.expected.until(cut.recovered.step), opening, seed=f"{seed} {cut.at}")
    result.reopened += 1
    if opened.problem:
        result.not_usable += 1
        result.report(f"{where}: {opened.problem}{meet_again}")
    name = f"{where}, while it was opened again"
    second = PowerLosses(opened.run, images, seed=seed, name=name, again=lambda _: meet_again)
    for _ in second.cut_everywhere():
        pass
    result.recovering.add(second.tally)
    shutil.rmtree(opening)
    shutil.rmtree(images)
