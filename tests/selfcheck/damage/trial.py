"""One damage, and what came of it.

All that can be read of the log is compared with what was read before the damage. Where that differs, or a run that was
open would not be resumed, one of three has to say so: the opening, the read, or `refold check`.
"""

import asyncio
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.inspection.check import check_log
from refold.keeping import repair_log
from refold.stores import SQLiteStore, batch
from refold.stores.sqlite.connection import SQLiteConnection
from tests.selfcheck.damage.damages import CLOSED, CRASHED, RUNNING, Damage

T = TypeVar("T")

When = Literal["closed", "crashed", "running"]
DAMAGES: Final[Mapping[When, Mapping[str, Damage]]] = {"closed": CLOSED, "crashed": CRASHED, "running": RUNNING}

Verdict = Literal["refused", "refused while running", "reported", "no effect", "SILENT"]
"""`refused`: by reads, or, where `refold check` finds nothing, by the opening. `reported`: `refold check` names
problems. `no effect`: what is read is what was there before. `SILENT`: none of these."""

Repaired = Literal["whole", "in part", "-"]

LOG_NAME: Final = "events.db"

NO_CONTENT: Final = ("-shm", ".lock", ".bell")
"""Ends of the names of files beside a log that hold nothing of it."""

OTHER_STREAM: Final = "other/after"

REPAIRED_EACH: Final = 4
"""One damaged log in so many is repaired, too."""

_Events = dict[str, list[tuple[int, bytes]]]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one damage."""

    number: int
    when: When
    damage: str
    verdict: Verdict
    repaired: Repaired = "-"
    fault: str = ""


class Contents(msgspec.Struct, frozen=True):
    """All that can be read of a log."""

    streams: _Events
    log: list[tuple[str, int, int, bytes]]
    heads: list[tuple[str, int, bytes]]
    open_runs: list[tuple[str, tuple[str, ...]]]
    payloads: dict[str, bytes]

    def without(self, stream: str) -> "Contents":
        return Contents(
            {name: events for name, events in self.streams.items() if name != stream},
            [event for event in self.log if event[0] != stream],
            [head for head in self.heads if head[0] != stream],
            self.open_runs,
            self.payloads,
        )


class DirectWorker:
    """Does all work where it is asked for: a thread for each of thousands of openings would cost the most."""

    name = "the loop's thread"

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is given to the asker
            future.set_exception(error)
        return future

    def put(self, work: Callable[[], object]) -> None:
        work()

    def end(self) -> None:
        """End, for which there is nothing to do."""

    def join(self) -> None:
        """Return: there is no thread."""


async def connect(uri: str) -> SQLiteConnection:
    return await SQLiteConnection.open(uri, DirectWorker())


async def contents(store: SQLiteStore) -> Contents:
    heads = await store.list_streams()
    streams = {str(head.stream): [(e.version, e.data) for e in await store.read_stream(head.stream)] for head in heads}
    listed = await store.list_payloads(limit=1000)
    payloads = await store.read_payloads([payload.hash for payload in listed])
    return Contents(
        streams,
        [(event.stream, event.version, event.position, event.data) for event in await store.read_all()],
        [(head.stream, head.version, head.chain) for head in heads],
        [(head.stream, head.pending) for head in await store.list_streams(with_pending=True)],
        {str(name): data for name, data in payloads.items()},
    )


async def read(log: Path) -> Contents:
    async with await SQLiteStore.open(log, read_only=True, connect=connect) as store:
        return await contents(store)


def files_of(log: Path) -> list[Path]:
    """Return the files that hold a log, which are not all that lie there while it is open."""
    return [file for file in sorted(log.parent.glob(f"{log.name}*")) if not file.name.endswith(NO_CONTENT)]


def laid(files: Sequence[Path], folder: Path) -> Path:
    """Copy a log's files into a folder, which is made if it is not there, and return the log's path there."""
    folder.mkdir(exist_ok=True)
    for file in files:
        shutil.copyfile(file, folder / file.name)
    return folder / LOG_NAME


async def tried(number: int, when: When, damage: str, files: Sequence[Path], before: Contents, folder: Path) -> Outcome:
    """Damage a copy of a log and judge what comes of it.

    Args:
        files: of the log as it was left.
        before: what can be read of it.
        folder: an empty one.
    """
    chance = random.Random(f"{when} {damage} {number}")
    log = laid(files, folder)
    refused, expected = False, [before]
    if when == "running":
        refused, expected, log = await _running(log, damage, chance, before)
    else:
        DAMAGES[when][damage](log, chance)
    verdict = await verdict_on(log, expected)
    if verdict == "no effect" and refused:
        verdict = "refused while running"
    repaired: Repaired = "-"
    fault = ""
    if verdict in ("refused", "reported") and number % REPAIRED_EACH == 0:
        repaired, fault = await repair_of(log, expected)
    return Outcome(number=number, when=when, damage=damage, verdict=verdict, repaired=repaired, fault=fault)


async def _running(
    log: Path, damage: str, chance: random.Random, before: Contents
) -> tuple[bool, list[Contents], Path]:
    """Damage a log that is open, append to it, and return whether that was refused, what may be read, and the files."""
    refused = False
    store = await SQLiteStore.open(log, connect=connect)
    # A stream of its own for each: one whose outcome is not known may be there or not.
    acknowledged: list[str] = []
    unknown: list[str] = []
    try:
        for number in range(3):
            await store.append([batch(f"other/before{number}", 0, 2)])
            acknowledged.append(f"other/before{number}")
        RUNNING[damage](log, chance)
        for number in range(4):
            stream = f"other/after{number}"
            try:
                await store.append([batch(stream, 0, 2)])
            except PersistenceError as error:
                refused = True
                unknown += [stream] if error.outcome_unknown else []
            else:
                acknowledged.append(stream)
        if chance.randrange(2):  # It is killed.
            log = laid(files_of(log), log.with_name("crashed"))
    finally:
        try:
            await store.close()
        except PersistenceError:
            refused = True
    appended = {name: [(v, b'{"type":"test.v1","n":%d}' % v) for v in (1, 2)] for name in acknowledged + unknown}
    expected: list[Contents] = []
    for there in range(2 ** len(unknown)):
        gone = {name for place, name in enumerate(unknown) if there >> place & 1}
        streams = {name: events for name, events in appended.items() if name not in gone}
        expected.append(
            Contents({**before.streams, **streams}, before.log, before.heads, before.open_runs, before.payloads)
        )
    return refused, expected, log


def _agrees(found: Contents, expected: Contents) -> bool:
    """Tell whether nothing of a log is missing or changed; what was appended since has any position."""
    if (found.streams, found.open_runs, found.payloads) != (expected.streams, expected.open_runs, expected.payloads):
        return False
    heads = {name: len(events) for name, events in expected.streams.items()}
    in_order = sorted((stream, version, data) for stream, version, _, data in found.log)
    return (
        {name: version for name, version, _ in found.heads} == heads
        and found.log[: len(expected.log)] == expected.log
        and in_order == sorted((name, *event) for name, events in expected.streams.items() for event in events)
    )


async def verdict_on(log: Path, expected: list[Contents]) -> Verdict:
    reported = refused = False
    found: Contents | None = None
    try:
        async with await SQLiteStore.open(log, read_only=True, connect=connect) as store:
            reported = not (await check_log(store)).sound
            found = await contents(store)
    except PersistenceError:
        refused = True
    if found is None or refused:
        return "refused"
    if reported:
        return "reported"
    if not await _can_go_on(laid(files_of(log), log.with_name("opened"))):
        return "refused"
    return "no effect" if any(_agrees(found, one) for one in expected) else "SILENT"


async def _can_go_on(log: Path) -> bool:
    """Tell whether the log opens and takes more."""
    try:
        async with await SQLiteStore.open(log, connect=connect) as store:
            await store.append([batch(OTHER_STREAM, 0, 30)])
    except PersistenceError:
        return False
    return True


async def repair_of(log: Path, expected: list[Contents]) -> tuple[Repaired, str]:
    """Repair a log, and return what was saved, and what is wrong with that."""
    before = {file: file.read_bytes() for file in log.parent.glob("events.db*") if file.is_file()}
    new = log.with_name("repaired.db")
    try:
        report = await repair_log(log, new)
    except LogFormatError as error:
        return "-", "" if "is empty" in str(error) else f"repair refuses: {error}"
    if {file: file.read_bytes() for file in log.parent.glob("events.db*") if file.is_file()} != before:
        return "in part", "repair changed the damaged log"
    async with await SQLiteStore.open(new, read_only=True, connect=connect) as store:
        checked = await check_log(store)
    if not checked.sound:
        return "in part", f"what was saved is not sound: {checked.problems[0]}"
    if not await _can_go_on(new):
        return "in part", "what was saved does not open"
    saved = (await read(new)).without(OTHER_STREAM)
    for one in expected:
        if all(one.streams.get(name, [])[: len(events)] == events for name, events in saved.streams.items()):
            whole = saved.streams == one.streams and saved.payloads == one.payloads
            if not whole and report.complete and len(expected) == 1:
                return "in part", "repair does not say that something is lost"
            if whole:
                return "whole", ""
            return "in part", ""
    return "in part", "what was saved is not what was there"
