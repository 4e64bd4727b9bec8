"""Real deaths of a real writer: everything it acknowledged is there afterwards, in order, without a gap."""

import subprocess
import sys
from pathlib import Path

import pytest

from refold.events.core.records import first_chain, next_chain
from refold.stores import SQLiteStore, batch

APPENDS_BEFORE_KILLS = (1, 40, 3, 150, 80)

WRITER = """
import asyncio, sys
from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch

async def main():
    store = await SQLiteStore.open(sys.argv[1])
    head = await store.head("session/a")
    version = head.version if head else 0
    while True:
        await store.append([batch("session/a", version, 2), batch("session/b", version, 2)])
        version += 2
        print(version, flush=True)

asyncio.run(main())
"""

DYING_AT = """
import asyncio, os, sys
from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch

def die(point):
    if point == sys.argv[2]:
        os._exit(7)

async def main():
    store = await SQLiteStore.open(sys.argv[1], fault=die)
    await store.append([batch("session/a", 0, 3), batch("session/b", 0)])

asyncio.run(main())
"""


async def check(log: Path, acknowledged: int) -> int:
    """Check both streams from the first event on, and return their version."""
    async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
        heads = await store.list_streams()
        for head in heads:
            events = await store.read_stream(head.stream)
            assert [event.version for event in events] == list(range(1, len(events) + 1))
            chain = first_chain(head.stream)
            for version in range(0, len(events), 2):
                chain = next_chain(chain, batch(head.stream, version, 2))
            assert (head.version, head.chain) == (len(events), chain)
        versions = {head.version for head in heads} or {0}
        assert len(versions) == 1, "both streams were appended in one transaction"
        assert min(versions) >= acknowledged
        return versions.pop()


def killed_after(log: Path, appends: int) -> int:
    """Run a writer, kill it after so many acknowledgements, and return the last version it acknowledged."""
    with subprocess.Popen([sys.executable, "-P", "-c", WRITER, str(log)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(appends)]
        writer.kill()
        said += [line for line in writer.stdout if line.endswith("\n")]
    return int(said[-1])


def dead_at(log: Path, point: str) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", DYING_AT, str(log), point], check=False)
    assert done.returncode == 7


async def test_kill_9_of_a_writer_loses_nothing_that_was_acknowledged(log: Path) -> None:
    found = 0
    for appends in APPENDS_BEFORE_KILLS:
        acknowledged = killed_after(log, appends)
        assert acknowledged >= found + 2 * appends
        found = await check(log, acknowledged)


@pytest.mark.parametrize(("point", "kept"), [("append.begun", 0), ("append.inserted", 0), ("append.committed", 4)])
async def test_a_process_that_dies_at_a_fault_point_leaves_all_or_nothing(log: Path, point: str, kept: int) -> None:
    dead_at(log, point)
    async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
        assert len(await store.read_all()) == kept
        await store.append([batch("session/a", 3 if kept else 0)])
