"""Logs of every earlier format still open, fold, check and replay; `tests/golden/record.py` makes them."""

import shutil
from pathlib import Path

import msgspec
import pytest

from refold import AgentConfig, AgentRuntime, Completed, ScriptedProvider, say
from refold.events import SESSION_CODEC, fold, history
from refold.log_check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.db"))


def copied(golden: Path, folder: Path) -> Path:
    return Path(shutil.copy(golden, folder / golden.name))


def test_there_are_golden_logs() -> None:
    assert GOLDEN


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_a_golden_log_is_sound(golden: Path, tmp_path: Path) -> None:
    report = await check_log(copied(golden, tmp_path))
    assert report.problems == ()
    assert report.sound


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_a_golden_log_folds_to_the_histories_that_were_recorded_with_it(golden: Path, tmp_path: Path) -> None:
    expected = msgspec.json.decode(golden.with_suffix(".json").read_bytes())
    async with await SQLiteStore.open(copied(golden, tmp_path), read_only=True) as store:
        heads = await store.list_streams(prefix="session/")
        folded = {
            head.stream: history(fold(SESSION_CODEC.decode_all(await store.read_stream(head.stream)))) for head in heads
        }
    assert msgspec.json.decode(msgspec.json.encode(folded)) == expected


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_todays_core_decides_as_a_golden_log_says(golden: Path, tmp_path: Path) -> None:
    report = await replay(copied(golden, tmp_path), level="core")
    report.raise_for_divergence()
    assert report.events > 50


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_a_golden_log_goes_on_under_todays_runtime(golden: Path, tmp_path: Path) -> None:
    log = copied(golden, tmp_path)
    provider = ScriptedProvider([say("Still here.")])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=log) as runtime:
        session = await runtime.session((await runtime.sessions())[0], restore=True)
        before = await session.history()
        result = await session.send("Hello again")
        assert (result.outcome, result.text) == (Completed(), "Still here.")
        assert (await session.history())[: len(before)] == before
    assert (await check_log(log)).problems == ()
