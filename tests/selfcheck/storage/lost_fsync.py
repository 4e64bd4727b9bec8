"""Syncs that fail for a while, a store that goes on, and then a power cut.

A system that could not write something to the disk says so once, at the next sync, and from then on treats it as
written. What a store then finds in its own file is not on the disk, and what it builds upon that is gone with it
(see `refold.stores.sqlite.rewrite`). So one sync, or a few in a row, fail here at each place in turn; the caller goes
on as callers do (`tests.selfcheck.storage.disk_errors`), and the power is cut at the operations of the whole run.
"""

import asyncio
from pathlib import Path
from typing import Final

from refold.scenarios.world import sqlite_shim
from refold.scenarios.world.disk_model import SyncFailed
from refold.scenarios.world.sqlite_shim import FileOperation
from tests.selfcheck.storage.disk_errors import DiskError, DiskErrorRun, FailingDisk
from tests.selfcheck.storage.power_loss import LossTally, PowerLosses, fast_folder
from tests.selfcheck.storage.recording import NOTHING_YET, Recorder, Recording, recording
from tests.selfcheck.storage.tally import again

TIMES: Final = (2, 1, 3, 5)
"""How many syncs in a row fail. Two hit both an append and the checkpoint when the log is closed after it."""

SYNCS: Final = 24
"""At so many places syncs fail, the first ones while the log is made; every run has about twice as many."""


class _LossyDisk(FailingDisk):
    """Says of a sync that it failed, and writes down that it did."""

    def __init__(self, error: DiskError, recorder: Recorder) -> None:
        super().__init__(error, recorder)
        self._recorder = recorder

    def __call__(self, operation: FileOperation) -> int:
        code = super().__call__(operation)
        if code:
            self._recorder.entries.append(SyncFailed(operation.handle))
        return code


def rehearse_lost_syncs(seed: int, number: int, *, share: float = 1.0) -> LossTally:
    """Have syncs fail at one place, cut the power in that run, and return what was found; not within a running loop.

    Args:
        seed: of what is appended.
        number: which place and how many syncs, from 0; every number is another one for a while.
        share: of the moments at which the power is cut, drawn; 1 = all.

    Raises:
        ShimUnavailable: see `SQLiteShim.of_process`.
    """
    place, kind = divmod(number, len(TIMES))
    error = DiskError("sync", "EIO", sqlite_shim.IOERR_FSYNC, 1 + place % SYNCS, TIMES[kind])
    with fast_folder() as folder:
        (folder / "run").mkdir()
        (folder / "images").mkdir()
        run = asyncio.run(recorded_caller(folder / "run", seed=seed, error=error))
        name = f"seed {seed}, {error}, then a power cut"
        meet_again = again("syncs", seed, number)
        losses = PowerLosses(
            run, folder / "images", seed=seed, name=name, again=lambda _: meet_again, openings_count=False
        )
        for _ in losses.cut_everywhere(share=share):
            continue
        return losses.tally


async def recorded_caller(folder: Path, *, seed: int, error: DiskError) -> Recording:
    """Return a recorded run of a caller who meets a fault, on a new log in an empty folder."""
    caller = DiskErrorRun(folder, seed=seed, error=error)
    with recording(folder, seed=f"sqlite {seed}", through=lambda recorder: _LossyDisk(error, recorder)) as recorder:
        expected = await caller.use(recorder, recorder.reached)
    return Recording({}, recorder.entries, expected, NOTHING_YET)
