"""Real processes that write a log and are killed at any moment, and what the log holds after each death.

A writer is forked, writes as fast as it can, and says in a pipe what was acknowledged to it; after a drawn time it is
killed with SIGKILL, which no code of ours can notice. Then the log is opened as a restart would do it, looked through,
and the next writer goes on with it. A writer appends to several streams at once through a journal; whole runtimes are
killed in `tests/conformance/killed_process`.
"""

import asyncio
import os
import random
import select
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from refold.actors.shell.journal import Journal
from refold.events.core.errors import PersistenceError
from refold.events.core.records import first_chain, next_chain
from refold.inspection.check import check_log
from refold.stores.sample_batches import batch
from refold.stores.sqlite.store import SQLiteStore
from tests.selfcheck.storage.disk_errors import empty
from tests.selfcheck.storage.recording import LOG_NAME
from tests.selfcheck.storage.tally import Tally
from tests.selfcheck.storage.workload import STREAMS, checkpoint_every

KILLS_PER_LOG: Final = 10

OPENING_S: Final = 0.05
"""One writer in four is killed within so many seconds after it was forked, mostly while it opens the log."""

WRITING_S: Final = 0.05
"""The others are killed within so many seconds after the first acknowledgement."""

FIRST_WORD_S: Final = 20.0
"""Longest wait for that."""

Say: TypeAlias = Callable[[str, int], None]
"""Says in the pipe what was acknowledged: the version of a stream."""


class Writer(NamedTuple):
    """A kind of writer."""

    name: str
    write: Callable[[Path, Mapping[str, int], Say], Coroutine[None, None, None]]
    """Writes to a log for ever; it is given the versions of the streams that are there already."""
    find: Callable[[Path], Coroutine[None, None, tuple[Counter[str], str]]]
    """Returns the versions of the streams, and what is wrong with the log; empty if nothing is."""


class KillTally(Tally, kw_only=True):
    """What was found."""

    kills: int = 0
    silent: int = 0
    """Writers that were killed before anything had been acknowledged to them."""
    acknowledged: int = 0
    """Events that had been acknowledged."""
    lost: int = 0
    """How many of those were missing."""
    beyond: int = 0
    """Kills after which more was there than had been acknowledged, which is as it should be."""


def kill_writers(folder: Path, *, seed: int, kills: int, writer: Writer) -> KillTally:
    """Kill so many writers of logs in a folder, and return what was found; not within a running event loop."""
    tally = KillTally()
    chance = random.Random(f"kills {writer.name} {seed}")
    log = folder / LOG_NAME
    there: Counter[str] = Counter()
    for number in range(kills):
        if number % KILLS_PER_LOG == 0:
            empty(folder)
            there = Counter()
        said = _killed(writer, log, there, chance)
        tally.kills += 1
        tally.silent += not said
        where = f"seed {seed}, {writer.name} {number + 1}"
        try:
            found, problem = asyncio.run(writer.find(log))
        except PersistenceError as error:
            tally.note("clean", f"{where}: the log cannot be opened: {error}")
            there = Counter()
            continue
        if problem:
            tally.note("clean", f"{where}: {problem}")
        for name, count in said.items():
            tally.acknowledged += count - there[name]
        for name in sorted(said.keys() | there.keys()):
            must = said[name] if name in said else there[name]
            if found[name] < must:
                tally.lost += must - found[name]
                tally.note("kept", f"{where}: {must} of {name} was acknowledged, and {found[name]} is there")
        tally.beyond += any(found[name] > max(said[name], there[name]) for name in found)
        there = found
    return tally


def _killed(writer: Writer, log: Path, there: Mapping[str, int], chance: random.Random) -> Counter[str]:
    """Fork a writer, kill it some time later, and return the last number that it said of each name."""
    while_opening, share = chance.random() < 0.25, chance.random()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Of threads that do not run in the child: it begins a loop of its own and waits for nothing of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _be_writer(writer, log, there, writing)
    os.close(writing)
    if not while_opening:
        select.select([reading], [], [], FIRST_WORD_S)
    threading.Event().wait(share * (OPENING_S if while_opening else WRITING_S))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().decode().splitlines(keepends=True)
    if not os.WIFSIGNALED(status):
        raise RuntimeError(f"a writer ended by itself with {status}: {lines[-3:]}")
    said: Counter[str] = Counter()
    for line in lines:
        if line.endswith("\n"):
            name, _, number = line.rpartition(" ")
            said[name] = int(number)
    return said


def _be_writer(writer: Writer, log: Path, there: Mapping[str, int], pipe: int) -> None:
    """Write until killed, in a forked child; never return."""

    def say(name: str, number: int) -> None:
        os.write(pipe, f"{name} {number}\n".encode())

    try:
        asyncio.run(writer.write(log, there, say))
    finally:
        os._exit(1)


async def write_streams(log: Path, there: Mapping[str, int], say: Say) -> None:
    """Append to all streams at once, for ever."""
    async with await SQLiteStore.open(log) as store:
        await checkpoint_every(store, 30)
        journal = Journal(store)

        async def write(stream: str) -> None:
            version = there.get(stream, 0)
            while True:
                count = _batch_size(version)
                await journal.append([batch(stream, version, count)])
                version += count
                say(stream, version)

        await asyncio.gather(*map(write, STREAMS))


async def found_streams(log: Path) -> tuple[Counter[str], str]:
    """Return the versions of all streams of a log, and what is wrong with them."""
    found: Counter[str] = Counter()
    async with await SQLiteStore.open(log) as store:
        report = await check_log(store)
        if report.problems_found:
            return found, f"`check_log` says: {report.problems[0]}"
        for head in await store.list_streams():
            events = await store.read_stream(head.stream)
            found[head.stream] = head.version
            version, chain = 0, first_chain(head.stream)
            given: list[bytes] = []
            while version < head.version:
                appended = batch(head.stream, version, _batch_size(version))
                chain = next_chain(chain, appended)
                given += appended.events
                version += len(appended.events)
            if [event.data for event in events] != given or (head.version, head.chain) != (version, chain):
                return found, f"stream {head.stream!r} at version {head.version} is not what was appended"
    return found, ""


def _batch_size(version: int) -> int:
    return 1 + version % 3


STORE_WRITER: Final = Writer("store", write_streams, found_streams)
