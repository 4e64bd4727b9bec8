"""Opens what a power cut has left with the store itself, looks through it, writes on, and records all of that.

What was recorded can be cut again (`tests.selfcheck.storage.power_loss`): a second power cut while the log recovers
from the first one, or soon after.
"""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from refold.events.core.errors import PersistenceError
from refold.inspection.check import check_log
from refold.stores.sqlite.store import SQLiteStore
from tests.selfcheck.storage.expected_log import ExpectedLog, row_of
from tests.selfcheck.storage.power_loss import put_files
from tests.selfcheck.storage.recording import LOG_NAME, Mark, Recorder, Recording, recording
from tests.selfcheck.storage.workload import drawn_append

APPENDS_AFTERWARDS = 2


class Reopened(NamedTuple):
    """What the store made of a log after a power cut."""

    problem: str
    """What is wrong; empty if nothing is."""
    run: Recording
    """What it did meanwhile, as far as it came."""


async def reopened(
    files: Mapping[str, bytes | bytearray], expected: ExpectedLog, folder: Path, *, seed: str
) -> Reopened:
    """Open a log, check it, append to it and close it."""
    put_files(folder, files)
    begin = Mark(expected.last, expected.last)
    copies = {name: bytes(content) for name, content in files.items()}
    with recording(folder, begin, seed=f"reopened {seed}") as recorder:
        try:
            problem = await _use(folder / LOG_NAME, expected, recorder, random.Random(f"reopened {seed}"))
        except PersistenceError as error:
            problem = f"the store cannot use the log: {error}"
    return Reopened(problem, Recording(copies, recorder.entries, expected, begin))


async def _use(log: Path, expected: ExpectedLog, recorder: Recorder, chance: random.Random) -> str:
    recorder.asked(expected.opened())
    async with await SQLiteStore.open(log, wait_for_log_s=0, fault=recorder.reached) as store:
        recorder.acknowledged(expected.last)
        found = [row_of(event) for event in await store.read_all(limit=100_000)]
        if found != expected.events():
            return f"the store gives {len(found)} events, which are not the {expected.event_count} that were recovered"
        report = await check_log(store)
        if report.problems_found:
            return f"`check_log` says: {report.problems[0]}"
        damage = await store.find_damage()
        if damage:
            return f"SQLite finds damage: {damage[0]}"
        for _ in range(APPENDS_AFTERWARDS):
            batches, payloads = drawn_append(chance, expected)
            recorder.asked(expected.appended(batches, payloads))
            await store.append(batches, payloads)
            recorder.acknowledged(expected.last)
    return ""
