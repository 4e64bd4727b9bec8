"""Small inputs that broke other systems on SQLite, with the right answers."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refold.actors import Journal
from refold.events.core.errors import LogInUse, WrongExpectedVersion
from refold.stores import SQLiteStore, batch


async def whole_versions(log: Path) -> list[int]:
    """Return the versions in stream `session/a` of a file in which SQLite finds no damage."""
    async with await SQLiteStore.open(log) as store:
        assert await store.find_damage() == []
        return [event.version for event in await store.read_stream("session/a")]


async def test_case_f01_two_sessions_write_while_others_read_and_nobody_is_locked_out(log: Path) -> None:
    async with (
        await SQLiteStore.open(log) as store,
        await SQLiteStore.open(log, read_only=True) as first_reader,
        await SQLiteStore.open(log, read_only=True) as second_reader,
    ):
        journal = Journal(store)

        async def write(stream: str) -> None:
            for version in range(50):
                await journal.append([batch(stream, version)])

        async def read(reader: SQLiteStore) -> int:
            seen = 0
            while seen < 100:
                events = await reader.read_all(limit=1000)
                assert len(events) >= seen
                seen = len(events)
            return seen

        results = await asyncio.gather(write("session/a"), write("session/b"), read(first_reader), read(second_reader))
        await journal.close()
    assert results[2] == results[3] == 100


ENDS_WITH_WORK_QUEUED = """
import asyncio, sys
from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch

async def main():
    store = await SQLiteStore.open(sys.argv[1])
    asyncio.ensure_future(store.append([batch("session/a", 0)]))
    await asyncio.sleep(0)

asyncio.run(main())
"""


def test_case_f12_a_loop_that_ends_with_a_statement_queued_leaves_no_error_and_a_sound_log(log: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", ENDS_WITH_WORK_QUEUED, str(log)], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "Event loop is closed" not in ended.stderr
    assert asyncio.run(whole_versions(log)) in ([], [1])


OPENS_FOR_WRITING = """
import asyncio, sys
from refold.stores import SQLiteStore

asyncio.run(SQLiteStore.open(sys.argv[1], wait_for_log_s=0))
"""


async def test_case_f15_a_second_process_is_kept_out_and_a_lost_wal_leaves_a_sound_prefix(
    tmp_path: Path, log: Path
) -> None:
    async with await SQLiteStore.open(log) as store:
        for version in range(5):
            await store.append([batch("session/a", version)])
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", OPENS_FOR_WRITING, str(log), stderr=asyncio.subprocess.PIPE
        )
        _, errors = await other.communicate()
        assert b"is in use by process" in errors
        with pytest.raises(LogInUse):
            await SQLiteStore.open(log, wait_for_log_s=0)
        without_wal = Path(shutil.copy(log, tmp_path / "without-wal.db"))
    prefix = await whole_versions(without_wal)
    assert prefix == [1, 2, 3, 4, 5][: len(prefix)]
    assert await whole_versions(log) == [1, 2, 3, 4, 5]


async def test_case_f16_beginning_a_stream_again_never_overwrites_it(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("session/a", 0, 3)])
        before = await store.head("session/a")
    async with await SQLiteStore.open(log) as store:
        with pytest.raises(WrongExpectedVersion) as caught:
            await store.append([batch("session/a", 0)])
        assert (caught.value.expected, caught.value.actual) == (0, 3)
        assert await store.head("session/a") == before
        assert len(await store.read_stream("session/a")) == 3
