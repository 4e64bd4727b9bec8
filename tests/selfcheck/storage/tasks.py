"""The rehearsal of storage in pieces that worker processes do, each from its seed alone.

Which pieces there are follows from how much is wanted, and not from how fast they go, so that the same arguments give
the same findings.
"""

import asyncio
import math
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from refold.events.core.errors import ConfigError
from refold.scenarios.sweep import quiet
from refold.stores.sqlite.file import Durability
from tests.selfcheck.storage.disk_errors import DiskErrorRun, ErrorTally, disk_errors, empty
from tests.selfcheck.storage.lost_fsync import SYNCS, TIMES, rehearse_lost_syncs
from tests.selfcheck.storage.power_loss import fast_folder
from tests.selfcheck.storage.power_loss_images import REOPEN_ONE_IN, PowerLossResult, rehearse_power_loss
from tests.selfcheck.storage.properties import StorageFindings
from tests.selfcheck.storage.tally import again

IMAGES_PER_RUN: Final = 3000
"""How many images a run of full durability gives, or some more, with those of its recoveries."""

ERRORS_PER_TASK: Final = 25
ERRORS_PER_SEED: Final = 500
"""Faults that are taken from one seed; each has some hundreds more."""

LOST_SYNCS_SHARE: Final = 0.3
"""Of the moments in a run with failed syncs at which the power is cut."""

BLIND_ONE_IN: Final = 15
"""For so many runs there is one of normal durability and one on a disk that lies; at least one of each."""

BLIND_SHARE_MIN: Final = 0.1
"""Of the moments in such a run; fewer could miss what is there to be seen."""


class CutPower(msgspec.Struct, frozen=True, kw_only=True):
    """Cut the power everywhere in one run."""

    seed: int
    share: float
    durability: Durability = "full"
    syncs: bool = True
    only: int | None = None
    """The one moment; every image of it is then opened with the store, too."""

    def run(self, into: StorageFindings) -> None:
        """Do it, and put what was found where it belongs."""
        found = rehearse_power_loss(
            self.seed,
            share=self.share,
            only=self.only,
            durability=self.durability,
            syncs=self.syncs,
            reopen_one_in=REOPEN_ONE_IN if self.only is None else 1,
        )
        self._of(into).add(found)

    def _of(self, findings: StorageFindings) -> PowerLossResult:
        if not self.syncs:
            return findings.lying
        return findings.power if self.durability == "full" else findings.normal


class FailDisk(msgspec.Struct, frozen=True, kw_only=True):
    """Try some of the faults that a caller can meet."""

    seed: int
    first: int
    count: int

    def run(self, into: StorageFindings) -> None:
        """Do it, and put what was found where it belongs."""
        into.errors.add(asyncio.run(self._tally()))

    async def _tally(self) -> ErrorTally:
        tally = ErrorTally()
        with fast_folder() as folder:
            faults = await disk_errors(folder, self.seed)
            for number, fault in enumerate(faults[self.first : self.first + self.count], self.first):
                found = await DiskErrorRun(empty(folder), seed=self.seed, error=fault).run()
                found.problems = [problem + again("errors", self.seed, number) for problem in found.problems]
                tally.add(found)
        return tally


class LoseSyncs(msgspec.Struct, frozen=True, kw_only=True):
    """Have syncs fail at one place, and cut the power in that run."""

    seed: int
    number: int

    def run(self, into: StorageFindings) -> None:
        """Do it, and put what was found where it belongs."""
        into.forgotten.add(rehearse_lost_syncs(self.seed, self.number, share=LOST_SYNCS_SHARE))


Task: TypeAlias = CutPower | FailDisk | LoseSyncs


def power_tasks(images: int, seed: int) -> Iterator[Task]:
    """Yield what gives about so many images or some more."""
    runs = math.ceil(images / IMAGES_PER_RUN)
    share = min(1.0, images / (runs * IMAGES_PER_RUN)) if runs else 0.0
    for number in range(runs):
        yield CutPower(seed=seed + number, share=share)
        if number % BLIND_ONE_IN == 0:
            blind = max(share, BLIND_SHARE_MIN)
            yield CutPower(seed=seed + number, share=blind, durability="normal")
            yield CutPower(seed=seed + number, share=blind, syncs=False)


def error_tasks(errors: int, seed: int) -> Iterator[Task]:
    """Yield what tries so many faults, and beside them one place in ten where syncs fail before a power cut."""
    for first in range(0, errors, ERRORS_PER_TASK):
        of_seed, place = divmod(first, ERRORS_PER_SEED)
        yield FailDisk(seed=seed + of_seed, first=place, count=min(ERRORS_PER_TASK, errors - first))
    # The ninth place is the first append's; the step has no factor in common with how many there are.
    for number in range(math.ceil(errors / 10)):
        of_seed, place = divmod(number, len(TIMES) * SYNCS)
        yield LoseSyncs(seed=seed + of_seed, number=(8 * len(TIMES) + 5 * place) % (len(TIMES) * SYNCS))


def task_again(words: str) -> Task:
    """Return the piece that words name, as `tally` says.

    Raises:
        ConfigError: they name none.
    """
    match words.split():
        case ["power" | "normal" | "lying" as world, seed, at] if seed.isdecimal() and at.isdecimal():
            durability: Durability = "normal" if world == "normal" else "full"
            return CutPower(seed=int(seed), share=1.0, durability=durability, syncs=world != "lying", only=int(at))
        case ["errors", seed, number] if seed.isdecimal() and number.isdecimal():
            return FailDisk(seed=int(seed), first=int(number), count=1)
        case ["syncs", seed, number] if seed.isdecimal() and number.isdecimal():
            return LoseSyncs(seed=int(seed), number=int(number))
        case _:
            raise ConfigError(
                f"{words!r} names no piece of the rehearsal; take the words from a problem, as 'power 86 44'"
            )


def run_task(task: Task) -> StorageFindings:
    """Do a task in this process and return what it found; what the stores warn of is what is rehearsed."""
    found = StorageFindings()
    with quiet():
        task.run(found)
    return found
