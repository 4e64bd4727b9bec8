"""Syncs that fail and are forgotten: what is acknowledged afterwards survives a power cut."""

import asyncio
from pathlib import Path

import pytest

from refold.events.core.errors import PersistenceError
from refold.scenarios.world import sqlite_shim
from refold.scenarios.world.disk_model import WrittenAgain
from refold.stores import SQLiteStore
from tests.scenarios.world.reached_sqlite import SHIM
from tests.selfcheck.storage import lost_fsync as forgotten_syncs
from tests.selfcheck.storage.disk_errors import DiskError, FailingDisk
from tests.selfcheck.storage.lost_fsync import SYNCS, TIMES, rehearse_lost_syncs
from tests.selfcheck.storage.power_loss import LossTally, PowerLosses
from tests.selfcheck.storage.recording import Recording

AT_THE_FIRST_APPEND = 8 * len(TIMES)
"""Two syncs fail: that of the append, and that of the checkpoint when the log is closed to be opened anew."""


def cut(run: Recording, folder: Path) -> LossTally:
    folder.mkdir()
    losses = PowerLosses(run, folder, seed=1, openings_count=False)
    for _ in losses.cut_everywhere(share=0.2):
        continue
    return losses.tally


def test_an_append_that_was_found_again_after_failed_syncs_survives_a_power_cut() -> None:
    tally = rehearse_lost_syncs(4, AT_THE_FIRST_APPEND, share=0.2)
    assert (tally.lost, tally.damaged, tally.unasked, tally.problems) == (0, 0, 0, [])
    assert tally.images > 50


def test_a_store_that_builds_on_what_it_finds_in_the_wal_is_found(tmp_path: Path) -> None:
    failing = DiskError("sync", "EIO", sqlite_shim.IOERR_FSYNC, 9, 2)
    folder = tmp_path.resolve() / "run"
    folder.mkdir()
    run = asyncio.run(forgotten_syncs.recorded_caller(folder, seed=4, error=failing))
    assert cut(run, tmp_path / "first").lost == 0
    careless = [entry for entry in run.entries if not isinstance(entry, WrittenAgain)]
    assert len(careless) < len(run.entries)
    tally = cut(run._replace(entries=careless), tmp_path / "second")
    assert tally.lost > 0
    assert tally.damaged > 0


async def test_a_new_log_whose_last_change_failed_is_not_there(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    failing = FailingDisk(DiskError("sync", "EIO", sqlite_shim.IOERR_FSYNC, 4))
    with SHIM.attached(tmp_path, failing):
        with pytest.raises(PersistenceError, match="cannot be made"):
            await SQLiteStore.open(log)
        assert not log.exists()
        async with await SQLiteStore.open(log) as store:
            assert await store.read_all() == []
    assert failing.failed == 1


@pytest.mark.slow
def test_syncs_that_fail_anywhere_lose_nothing() -> None:
    total = LossTally()
    for number in range(0, len(TIMES) * SYNCS, 5):
        total.add(rehearse_lost_syncs(1, number, share=0.2))
    assert (total.lost, total.damaged, total.unasked, total.problems) == (0, 0, 0, [])
