"""Power cuts of the real store: nothing acknowledged is lost; and what would lose or damage something is seen."""

import asyncio
from pathlib import Path

import pytest

from refold.scenarios.world.disk_model import FolderSynced
from refold.scenarios.world.sqlite_shim import FileOperation
from tests.scenarios.world.reached_sqlite import SHIM as SHIM  # Skipped without it.
from tests.selfcheck.storage.power_loss import LossTally, PowerLosses, recorded_run
from tests.selfcheck.storage.power_loss_images import PowerLossResult, rehearse_power_loss
from tests.selfcheck.storage.recording import Mark, Recording
from tests.selfcheck.storage.workload import StorageWorkload


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return asyncio.run(recorded_run(tmp_path_factory.mktemp("run").resolve(), StorageWorkload(seed=5, steps=10)))


def cut(run: Recording, folder: Path, *, share: float = 0.3, syncs: bool = True) -> LossTally:
    losses = PowerLosses(run, folder, seed=1, syncs=syncs)
    for _ in losses.cut_everywhere(share=share):
        continue
    return losses.tally


def test_no_acknowledged_append_is_lost_and_every_log_is_whole(run: Recording, tmp_path: Path) -> None:
    tally = cut(run, tmp_path)
    assert (tally.lost, tally.damaged, tally.unasked, tally.problems) == (0, 0, 0, [])
    assert tally.cuts >= tally.images > 100
    assert tally.not_acknowledged > 0, "a commit may be durable before anybody is told"
    assert set(tally.by_damage) >= {"none", "all", "subset", "torn_head", "torn_tail", "garbage", "zeros"}


def test_an_acknowledgement_before_the_commit_is_found(run: Recording, tmp_path: Path) -> None:
    early = [Mark(entry.asked, entry.asked) if isinstance(entry, Mark) else entry for entry in run.entries]
    tally = cut(run._replace(entries=early), tmp_path, share=0.1)
    assert tally.lost > 0
    assert "was acknowledged, and the log is as after step" in tally.problems[0]


def test_a_commit_before_anybody_asked_is_found(run: Recording, tmp_path: Path) -> None:
    marks = [entry for entry in run.entries if isinstance(entry, Mark)]
    late = [Mark(max(entry.asked - 1, 0), 0) if isinstance(entry, Mark) else entry for entry in run.entries]
    assert len(marks) > 10
    assert cut(run._replace(entries=late), tmp_path, share=0.1).unasked > 0


def test_a_write_that_goes_missing_is_found(run: Recording, tmp_path: Path) -> None:
    writes = [
        index
        for index, entry in enumerate(run.entries)
        if isinstance(entry, FileOperation) and entry.kind == "write" and entry.path.endswith("-wal") and entry.offset
    ]
    missing = writes[len(writes) // 2]
    tally = cut(run._replace(entries=[*run.entries[:missing], *run.entries[missing + 1 :]]), tmp_path)
    assert tally.lost + tally.damaged > 0


def test_a_wal_without_its_log_is_found(run: Recording, tmp_path: Path) -> None:
    forgotten = [entry for entry in run.entries if not isinstance(entry, FolderSynced)]
    assert len(forgotten) < len(run.entries)
    tally = cut(run._replace(entries=forgotten), tmp_path, share=1.0)
    assert tally.damaged > 0
    assert all("events.db-wal is there without its log" in problem for problem in tally.problems)


def test_normal_durability_loses_the_end_and_damages_nothing(tmp_path: Path) -> None:
    result = rehearse_power_loss(5, durability="normal", share=0.1)
    assert result.first.lost > 0
    assert (result.first.damaged, result.first.unasked) == (0, 0)


def test_a_disk_that_lies_about_syncs_damages_the_log(run: Recording, tmp_path: Path) -> None:
    assert cut(run, tmp_path, share=0.1, syncs=False).damaged > 0


def test_what_is_left_is_opened_with_the_store_and_cut_again_and_a_seed_finds_the_same_twice() -> None:
    first = rehearse_power_loss(3, share=0.02, reopen_one_in=12)
    assert first.reopened > 0
    assert first.recovering.images > 30
    assert (first.not_usable, first.problems, first.recovering.problems) == (0, [], [])
    assert rehearse_power_loss(3, share=0.02, reopen_one_in=12) == first


@pytest.mark.slow
def test_every_cut_of_some_runs() -> None:
    total = PowerLossResult()
    for seed in range(2):
        total.add(rehearse_power_loss(seed))
    assert total.images > 4_000
    for tally in (total.first, total.recovering):
        assert (tally.lost, tally.damaged, tally.unasked, tally.problems) == (0, 0, 0, [])
    assert (total.not_usable, total.problems) == (0, [])
