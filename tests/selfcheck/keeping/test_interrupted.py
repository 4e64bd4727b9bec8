"""Deleting, keeping, archiving and compacting, interrupted: a few moments; `-m tests.selfcheck.keeping` tries all."""

from pathlib import Path

import pytest

from tests.selfcheck.keeping.interrupted import (
    CASES,
    WORKS,
    Moment,
    Original,
    cancelled_at,
    full_disk_at,
    killed_at,
    moments_of,
    original,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return original(tmp_path_factory.mktemp("keeping") / "original")


@pytest.mark.parametrize("share", [1 / 3, pytest.param(2 / 3, marks=pytest.mark.slow)], ids=["early", "late"])
@pytest.mark.parametrize(("name", "moment"), CASES)
def test_kill_9_leaves_whole_sessions_and_the_next_call_completes_it(
    log: Original, tmp_path: Path, name: str, moment: Moment, share: float
) -> None:
    work, folder = WORKS[name], tmp_path / "log"
    count = moments_of(log, folder, work, moment)
    assert count > 3
    killed_at(log, folder, work, moment, round(share * count))


@pytest.mark.parametrize("name", WORKS)
def test_a_full_disk_is_told_and_leaves_whole_sessions(log: Original, tmp_path: Path, name: str) -> None:
    for nth in (2, 12):
        full_disk_at(log, tmp_path / "log", WORKS[name], nth)


@pytest.mark.parametrize("name", WORKS)
def test_cancellation_leaves_whole_sessions(log: Original, tmp_path: Path, name: str) -> None:
    for step in (7, 90):
        cancelled_at(log, tmp_path / "log", WORKS[name], step)
