"""Real deaths of a writer of JSON Lines: everything it acknowledged is there afterwards, in order, without a gap."""

import subprocess
import sys
from pathlib import Path

import pytest

from refold.events.core.records import first_chain, next_chain
from refold.stores import JsonLinesStore
from refold.stores.sample_batches import batch

APPENDS_BEFORE_KILLS = (1, 40, 3, 150, 80)

WRITER = """
import asyncio, sys
from refold.stores import JsonLinesStore
from refold.stores.sample_batches import batch, payload

async def main():
    store = await JsonLinesStore.open(sys.argv[1])
    head = await store.head("session/a")
    version = head.version if head else 0
    while True:
        batches = [batch("session/a", version, 2), batch("session/b", version, 2)]
        await store.append(batches, payload(b"%d" % version))
        version += 2
        print(version, flush=True)

asyncio.run(main())
"""

DYING_AT = """
import asyncio, os, sys
from refold.stores import JsonLinesStore
from refold.stores.sample_batches import batch

def die(point):
    if point == sys.argv[2]:
        os._exit(7)

async def main():
    store = await JsonLinesStore.open(sys.argv[1], fault=die)
    await store.append([batch("session/a", 0, 3), batch("session/b", 0)])

asyncio.run(main())
"""


async def check(log: Path, acknowledged: int) -> int:
    """Check both streams from the first event on, and return their version."""
    async with await JsonLinesStore.open(log, wait_for_log_s=0) as store:
        heads = await store.list_streams()
        for head in heads:
            events = await store.read_stream(head.stream)
            assert [event.version for event in events] == list(range(1, len(events) + 1))
            chain = first_chain(head.stream)
            for version in range(0, len(events), 2):
                chain = next_chain(chain, batch(head.stream, version, 2))
            assert (head.version, head.chain) == (len(events), chain)
        versions = {head.version for head in heads} or {0}
        assert len(versions) == 1, "both streams were appended in one call"
        assert min(versions) >= acknowledged
        assert len(await store.list_payloads(limit=10_000)) == min(versions) // 2
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


@pytest.mark.slow
async def test_kill_9_of_a_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    found = 0
    for appends in APPENDS_BEFORE_KILLS:
        acknowledged = killed_after(log, appends)
        assert acknowledged >= found + 2 * appends
        found = await check(log, acknowledged)


@pytest.mark.parametrize(("point", "kept"), [("append.begun", 0), ("append.inserted", 0), ("append.committed", 4)])
async def test_a_process_that_dies_at_a_fault_point_leaves_all_or_nothing(
    tmp_path: Path, point: str, kept: int
) -> None:
    log = tmp_path / "events.jsonl"
    dead_at(log, point)
    async with await JsonLinesStore.open(log, wait_for_log_s=0) as store:
        assert len(await store.read_all()) == kept
        await store.append([batch("session/a", 3 if kept else 0)])


FULL_DISK = """
import asyncio, resource, signal, sys
from refold.events.core.errors import PersistenceError
from refold.stores import JsonLinesStore
from refold.stores.sample_batches import batch, payload

async def main():
    async with await JsonLinesStore.open(sys.argv[1]) as store:
        await store.append([batch("session/a", 0)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, resource.RLIM_INFINITY))
        try:
            await store.append([batch("session/a", 1), batch("session/b", 0)], payload(b"x" * 10_000))
        except PersistenceError as error:
            print("refused", error.outcome_unknown, flush=True)
        assert len(await store.read_all()) == 1
        await store.append([batch("session/a", 1)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await store.append([batch("session/a", 2)], payload(b"x" * 10_000))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
asyncio.run(main())
"""


async def test_an_append_for_which_there_is_no_room_leaves_nothing_and_the_log_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    assert said_by(FULL_DISK, log) == "refused False\n"
    async with await JsonLinesStore.open(log, wait_for_log_s=0) as store:
        assert [event.version for event in await store.read_all()] == [1, 2, 3]


def said_by(program: str, log: Path) -> str:
    done = subprocess.run([sys.executable, "-P", "-c", program, str(log)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
