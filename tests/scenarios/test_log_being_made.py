"""The maker of a log dies, the next process opens it, and then the power goes: there is a log, or there is none."""

import asyncio
import random
from pathlib import Path

from refold.scenarios.world.disk_model import DAMAGES, DiskModel
from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch
from tests.scenarios.world.reached_sqlite import SHIM as SHIM  # Skipped without it.
from tests.selfcheck.storage.power_loss import put_files
from tests.selfcheck.storage.recording import LOG_NAME, Entry, Mark, recording


async def recorded_opening(folder: Path) -> list[Entry]:
    """Return what opening a log did to its files, without closing them."""
    with recording(folder, seed="1") as recorder:
        async with await SQLiteStore.open(folder / LOG_NAME, fault=recorder.reached):
            return list(recorder.entries)


def test_a_log_whose_maker_died_at_any_moment_is_whole_whenever_the_power_goes(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "made").mkdir()
    made = asyncio.run(recorded_opening(root / "made"))
    chance, without_wal = random.Random(1), 0
    for dies_after in range(len(made) + 1):
        model = DiskModel()
        for entry in made[:dies_after]:
            assert not isinstance(entry, Mark)
            model.apply(entry)
        left = {name: bytes(content) for name, content in model.image("all", chance).files.items()}
        model.restarted()
        folder = root / f"{dies_after}"
        folder.mkdir()
        put_files(folder, left)
        for entry in asyncio.run(recorded_opening(folder)):
            assert not isinstance(entry, Mark)
            model.apply(entry)
            for damage in DAMAGES:
                names = set(model.image(damage, chance).files)
                assert LOG_NAME in names or f"{LOG_NAME}-wal" not in names, (dies_after, entry, damage)
                without_wal += LOG_NAME not in names
    assert without_wal > 100, "while it was being made"


async def test_the_name_of_a_log_is_on_the_disk_before_anything_is_written_to_it(tmp_path: Path) -> None:
    reached: list[str] = []
    for version in range(2):  # The process that made it may have died before it was.
        reached.clear()
        async with await SQLiteStore.open(tmp_path / "events.db", fault=reached.append) as opened:
            await opened.append([batch("session/a", version)])
        assert reached[:2] == ["opening.folder_synced", "append.begun"]
