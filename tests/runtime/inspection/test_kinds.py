"""Replay and check of kinds of actors that are the application's own, in Python; the transcripts show the commands."""

import asyncio
from pathlib import Path

import pytest

from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import ConfigError, DivergenceError
from refold.inspection.check import check_log
from refold.inspection.kinds import StreamKind
from refold.replay import NotReplayed, replay, state_at
from tests.runtime.sample_tills import LaterEmptied, TillCore


@pytest.fixture
def log(samples: Path) -> Path:
    return samples / "tills.db"


async def test_the_report_names_kinds_without_a_core_and_cores_without_a_stream(log: Path) -> None:
    assert (await replay(log)).not_replayed == (NotReplayed(kind="till", streams=2),)
    cores = {"till": TillCore, "tlil": TillCore, "book": TillCore}
    for report in (await replay(log, kinds=cores), await check_log(log, kinds=cores)):
        assert report.kinds_without_streams == ("book", "tlil")
    assert (await replay(log, stream="till/b", kinds=cores)).kinds_without_streams == ("book", "tlil")
    for report in (await replay(log, kinds={"till": TillCore}), await check_log(log)):
        assert report.kinds_without_streams == ()


async def test_a_divergence_of_a_kind_of_ones_own_is_raised(log: Path) -> None:
    report = await replay(log, kinds={"till": LaterEmptied})
    with pytest.raises(DivergenceError, match="till/a"):
        report.raise_for_divergence()


@pytest.mark.parametrize("kind", ["session", "", "till/a"])
async def test_a_name_that_cannot_be_a_kind_of_ones_own_is_refused(log: Path, kind: str) -> None:
    for look in (replay, check_log):
        with pytest.raises(ConfigError, match="kind"):
            await look(log, kinds={kind: TillCore})


def test_a_kind_with_a_core_and_a_codec_of_its_own_can_be_given_too(log: Path) -> None:
    checked = CheckedCore(TillCore)
    report = asyncio.run(replay(log, stream="till/a", kinds={"till": StreamKind(checked, checked.codec)}))
    assert (report.divergence, report.events) == (None, 4)


@pytest.mark.parametrize(("version", "amount"), [(0, 0), (1, 60), (2, 110), (3, 0), (4, 5), (None, 5)])
async def test_the_state_after_any_version_can_be_seen(log: Path, version: int | None, amount: int) -> None:
    state = await state_at(log, "till/a", TillCore, version=version)
    assert (state.amount, state.version) == (amount, 4 if version is None else version)
