import asyncio
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from refold import AgentConfig, AgentRuntime, ScriptedProvider
from refold.stores import EventStore, EventStoreConformance, SQLiteStore


class TestSQLiteStore(EventStoreConformance):
    @pytest.fixture(autouse=True)
    def log(self, tmp_path: Path) -> None:
        self.path = tmp_path / "events.db"

    async def make_store(self) -> EventStore:
        return await SQLiteStore.open(self.path)

    async def reopen_store(self, store: EventStore) -> EventStore:
        await store.close()
        return await SQLiteStore.open(self.path)


@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize("opened", ["owner", "reader", "runtime"])
async def test_an_opening_that_is_cancelled_leaves_no_file_open_and_no_thread(
    tmp_path: Path, opened: str, cancels: int
) -> None:
    log, threads = tmp_path / "events.db", threading.active_count()
    await (await SQLiteStore.open(log)).close()
    for place in count():
        if opened == "runtime":
            runtime = AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), log=log, wait_for_log_s=0)
            opening: asyncio.Task[AgentRuntime | SQLiteStore] = asyncio.ensure_future(runtime.open())
        else:
            opening = asyncio.ensure_future(SQLiteStore.open(log, read_only=opened == "reader", wait_for_log_s=0))
        for _ in range(2**place):
            await asyncio.sleep(0)
        done = opening.done()
        for _ in range(cancels):
            opening.cancel()
            await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await (await opening).close()
        assert threading.active_count() <= threads, f"after {2**place} steps"
        assert open_below(tmp_path) == [], f"after {2**place} steps"
        if done:
            break


def open_below(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open, where the system tells."""
    descriptors = Path("/proc/self/fd")
    found: list[str] = []
    for descriptor in descriptors.iterdir() if descriptors.exists() else ():
        with suppress(OSError):  # That of the listing itself.
            found.append(str(descriptor.readlink()))
    return [name for name in found if name.startswith(str(folder))]
