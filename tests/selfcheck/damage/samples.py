"""A small log with nearly all that a log can hold, as it is after an orderly end and after a crash."""

import shutil
from pathlib import Path

from refold.stores import SQLiteStore, batch
from refold.stores.sample_batches import payload
from tests.selfcheck.damage.trial import files_of, laid
from tests.selfcheck.hostile.samples import make_samples


async def make_sample(folder: Path) -> tuple[list[Path], list[Path]]:
    """Make the log, and return its files after an orderly end, and after a crash."""
    (folder / "hostile").mkdir()
    log = Path(shutil.copyfile((await make_samples(folder / "hostile"))[0], folder / "events.db"))
    async with await SQLiteStore.open(log) as store:
        for number in range(20):
            await store.append([batch("other/long", number * 8, 8, pending=("work:1",) if number == 19 else ())])
        await store.append([batch("other/large", 0, 2)], payload(b"large content " * 2000))
        crashed = laid(files_of(log), folder / "crashed")
    closed = laid(files_of(log), folder / "closed")
    return files_of(closed), files_of(crashed)
