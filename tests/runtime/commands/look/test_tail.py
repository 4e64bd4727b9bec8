"""`refold tail` of a log that a writer has open; what it shows of one that nobody writes is in the transcripts."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from refold.stores import SQLiteStore, batch
from tests.runtime.command_line import run, started
from tests.runtime.log_builder import LogBuilder, log_of


def test_json_says_what_show_says(log_file: Path) -> None:
    items = [json.loads(line) for line in run("tail", log_file, "alice", "--no-follow", "--json").stdout.splitlines()]
    assert items == json.loads(run("show", log_file, "alice", "--events", "--json").stdout)["events"][-10:]


def test_what_a_batch_goes_back_to_is_told_of_each_of_its_events(tmp_path: Path) -> None:
    async def build(builder: LogBuilder) -> None:
        await builder.store.append([batch("order/7", 0, 3, correlation="session/a@1", causation="session/a@9")])

    path = log_of(tmp_path / "events.db", build)
    for number in (3, 2, 1):
        lines = run("tail", path, "--no-follow", "--json", "-n", number).stdout.splitlines()
        said = [(item["correlation"], item["causation"]) for item in map(json.loads, lines)]
        assert said == [("session/a@1", "session/a@9"), *[("session/a@1", "order/7@1")] * 2][-number:]


@pytest.mark.slow
def test_a_live_log_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await SQLiteStore.open(tmp_path / "live.db") as store:
            builder = LogBuilder(store)
            await builder.open_session("alice")
            with started("tail", tmp_path / "live.db", "--json", "-n", 1000) as tail:
                assert tail.stdout is not None
                assert tail.stderr is not None
                seen: list[int] = []
                for number in range(3):
                    count = len(await store.read_all())
                    while len(seen) < count:
                        line = await asyncio.to_thread(tail.stdout.readline)
                        seen.append(json.loads(line)["position"])
                    await builder.open(f"session {number}")
                tail.send_signal(signal.SIGINT)
                rest = await asyncio.to_thread(tail.stdout.read)
                seen += [json.loads(line)["position"] for line in rest.splitlines()]
                assert await asyncio.to_thread(tail.wait) == 130
                assert await asyncio.to_thread(tail.stderr.read) == ""
            assert seen == list(range(1, len(seen) + 1))

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_it_at_the_next_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await SQLiteStore.open(tmp_path / "live.db") as store:
            builder = LogBuilder(store)
            await builder.open("alice")
            with started("tail", tmp_path / "live.db") as tail:
                assert tail.stdout is not None
                assert tail.stderr is not None
                await asyncio.to_thread(tail.stdout.readline)
                tail.stdout.close()
                number = 0
                while tail.poll() is None:
                    await builder.open(f"session {number}")
                    number += 1
                assert tail.returncode == 141
                assert await asyncio.to_thread(tail.stderr.read) == ""

    asyncio.run(scenario())
