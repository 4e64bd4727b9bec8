"""Processes killed with SIGKILL while they write: what was acknowledged is there; and a writer that lies is found."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from refold.stores import SQLiteStore
from refold.stores.sample_batches import batch
from tests.selfcheck.storage.killed_writers import (
    STORE_WRITER,
    Say,
    Writer,
    found_streams,
    kill_writers,
)


def test_kill_9_of_writers_of_streams_loses_nothing_acknowledged(tmp_path: Path) -> None:
    tally = kill_writers(tmp_path, seed=1, kills=4, writer=STORE_WRITER)
    assert (tally.kills, tally.lost, tally.broken, tally.problems) == (4, 0, {}, [])
    assert tally.acknowledged > 0
    assert tally.silent < 4


async def acknowledge_first(log: Path, there: Mapping[str, int], say: Say) -> None:
    async with await SQLiteStore.open(log) as store:
        version = there.get("order/1", 0)
        while True:
            say("order/1", version + 1_000)
            await store.append([batch("order/1", version, 1 + version % 3)])
            version += 1 + version % 3


async def write_something_else(log: Path, there: Mapping[str, int], say: Say) -> None:
    async with await SQLiteStore.open(log) as store:
        await store.append([batch("order/1", 0, 2)])
        say("order/1", 2)
        await asyncio.Event().wait()


def test_an_acknowledgement_before_the_append_is_found(tmp_path: Path) -> None:
    tally = kill_writers(tmp_path, seed=2, kills=2, writer=Writer("hasty", acknowledge_first, found_streams))
    assert tally.lost > 0
    assert "was acknowledged, and" in tally.problems[0]


def test_a_log_with_something_else_than_was_appended_is_found(tmp_path: Path) -> None:
    tally = kill_writers(tmp_path, seed=2, kills=1, writer=Writer("other", write_something_else, found_streams))
    assert tally.broken["clean"] == 1
