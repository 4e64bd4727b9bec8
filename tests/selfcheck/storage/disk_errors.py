"""One operation on a disk fails, at each place in turn, once or for ever, and a caller goes on as callers do.

The caller does what the store's contract asks of it: an append that failed with a `PersistenceError` is tried again;
where that ends in a `WrongExpectedVersion`, the first try was in, which may be only where `outcome_unknown` said so.
"""

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import zip_longest
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from refold.events.core.errors import LogFormatError, PersistenceError, WrongExpectedVersion
from refold.scenarios.world import sqlite_shim
from refold.scenarios.world.sqlite_shim import FileOperation, OperationKind, SQLiteShim, Watcher
from refold.stores.append_rules import FaultPoint, no_fault
from refold.stores.sqlite.store import SQLiteStore
from tests.selfcheck.storage.expected_log import ExpectedLog
from tests.selfcheck.storage.recording import LOG_NAME
from tests.selfcheck.storage.recovery_reader import RecoveredLogs
from tests.selfcheck.storage.tally import Tally
from tests.selfcheck.storage.workload import STREAMS, Marks, drawn_append

FAILURES: Final[tuple[tuple[OperationKind, str, int], ...]] = (
    ("read", "EIO", sqlite_shim.IOERR_READ),
    ("write", "EIO", sqlite_shim.IOERR_WRITE),
    ("write", "ENOSPC", sqlite_shim.FULL),
    ("sync", "EIO", sqlite_shim.IOERR_FSYNC),
    ("truncate", "EIO", sqlite_shim.IOERR_TRUNCATE),
    ("open", "EMFILE", sqlite_shim.CANTOPEN),
    ("delete", "EIO", sqlite_shim.IOERR_DELETE),
)
"""What fails, how it is called, and what SQLite makes of it."""

FOR_EVER: Final = 1_000_000_000
"""How often something fails that always does."""

APPENDS: Final = 8

TRIES_MAX: Final = 4
"""How often the caller tries one thing. A fault that comes once is over after the first."""

Opens: TypeAlias = Callable[[Path, FaultPoint], Awaitable[SQLiteStore]]

_Verdict: TypeAlias = Literal["done", "never"]


class DiskError(NamedTuple):
    """A fault of the disk: the nth operation of a kind fails, and so many of the kind in a row."""

    kind: OperationKind
    name: str
    code: int
    nth: int
    times: int = 1

    def __str__(self) -> str:
        more = "" if self.times == 1 else " and ever after" if self.times == FOR_EVER else f", {self.times} times"
        return f"{self.name} at {self.kind} {self.nth}{more}"


class ErrorTally(Tally, kw_only=True):
    """What was found."""

    runs: int = 0
    """Faults that were tried."""
    met: int = 0
    """Runs in which the operation came about, so that it failed."""
    met_once: int = 0
    """Those of them in which it failed only once."""
    told: int = 0
    """Calls of the store that failed with a `PersistenceError`."""
    unknown: int = 0
    """Those of them that left open whether an append was in."""
    unknown_in: int = 0
    """Appends that had failed so and were in."""
    acknowledged: int = 0
    """Appends that were acknowledged."""
    by_kind: Counter[str] = msgspec.field(default_factory=Counter[str])
    """Runs in which it failed, by what failed."""


class FailingDisk:
    """A watcher of the shim that counts operations and makes one fail."""

    def __init__(self, error: DiskError | None, then: Watcher | None = None) -> None:
        self.seen: Counter[OperationKind] = Counter()
        self.failed = 0
        self._error = error
        self._then = then

    def __call__(self, operation: FileOperation) -> int:
        self.seen[operation.kind] += 1
        error = self._error
        if (
            error is not None
            and operation.kind == error.kind
            and error.nth <= self.seen[error.kind] < error.nth + error.times
        ):
            self.failed += 1
            return error.code
        return self._then(operation) if self._then is not None else 0


async def open_store(log: Path, fault: FaultPoint = no_fault) -> SQLiteStore:
    """Open a log for writing, as a runtime does."""
    return await SQLiteStore.open(log, wait_for_log_s=0, fault=fault)


class DiskErrorRun:
    """A caller of the store who meets one fault."""

    def __init__(
        self, folder: Path, *, seed: int, error: DiskError | None, appends: int = APPENDS, opens: Opens = open_store
    ) -> None:
        self.tally = ErrorTally(runs=1)
        self.disk = FailingDisk(error)
        self._log = folder / LOG_NAME
        self._folder = folder
        self._error = error
        self._where = f"seed {seed}, {error}"
        self._chance = random.Random(f"disk errors {seed}")
        self._appends = appends
        self._opens = opens
        self._marks: Marks | None = None
        self._fault: FaultPoint = no_fault
        self._expected = ExpectedLog()
        self._acknowledged = 0
        """The last step that has to be in the log."""

    async def run(self) -> ErrorTally:
        """Do everything, open the log again on a sound disk, and return what was found."""
        with SQLiteShim.of_process().attached(self._folder, self.disk, reads=True):
            await self.use()
        if self._error is not None and self.disk.failed:
            self.tally.met = 1
            self.tally.met_once = int(self._error.times == 1)
            self.tally.by_kind[f"{self._error.kind} {self._error.name}"] += 1
        await self._look_at_what_is_left()
        return self.tally

    async def use(self, marks: Marks | None = None, fault: FaultPoint = no_fault) -> ExpectedLog:
        """Be the caller, on a disk that is attached already, and return what the log must hold."""
        self._marks, self._fault = marks, fault
        await self._use()
        return self._expected

    async def _use(self) -> None:
        opened: list[SQLiteStore] = []

        async def open_it() -> None:
            opened.append(await self._opens(self._log, self._fault))

        if await self._try("opening", open_it) == "never":
            return
        (store,) = opened
        try:
            for number in range(self._appends):
                if await self._append(store) == "never":
                    return
                if number == self._appends // 2:
                    await self._try("opening anew", store.reopen)
                await self._try("reading", lambda: store.read_stream(STREAMS[0]))
        finally:
            try:
                await store.close()
            except PersistenceError as error:
                self.tally.note("typed", f"{self._where}: closing raises {error!r}")

    async def _append(self, store: SQLiteStore) -> _Verdict:
        before = self._expected.last
        batches, payloads = drawn_append(self._chance, self._expected)
        after = self._expected.appended(batches, payloads)
        if self._marks is not None:
            self._marks.asked(after)
        may_be_in = False
        for _ in range(TRIES_MAX):
            try:
                await store.append(batches, payloads)
            except WrongExpectedVersion as error:
                if not may_be_in:
                    self.tally.note("outcome", f"{self._where}: an append that was told to be out is in: {error}")
                self.tally.unknown_in += 1
            except PersistenceError as error:
                self._told(error)
                may_be_in = may_be_in or error.outcome_unknown
                continue
            self.tally.acknowledged += 1
            self._acknowledged = after
            if self._marks is not None:
                self._marks.acknowledged(after)
            return "done"
        self._note_if_once("an append")
        if not may_be_in:
            self._expected = self._expected.until(before)
        return "never"

    async def _try(self, what: str, work: Callable[[], Awaitable[object]]) -> _Verdict:
        for _ in range(TRIES_MAX):
            try:
                await work()
            except PersistenceError as error:
                self._told(error)
            else:
                return "done"
        self._note_if_once(what)
        return "never"

    def _told(self, error: PersistenceError) -> None:
        self.tally.told += 1
        self.tally.unknown += error.outcome_unknown
        if isinstance(error, LogFormatError):
            self.tally.note("typed", f"{self._where}: a failing disk is told as damage of the log: {error}")

    def _note_if_once(self, what: str) -> None:
        if self._error is None or self._error.times == 1:
            self.tally.note("goes-on", f"{self._where}: {what} still fails at try {TRIES_MAX}")

    async def _look_at_what_is_left(self) -> None:
        """Open the log on a sound disk, as the store and as plain SQLite, and compare it with what must be there."""
        try:
            async with await SQLiteStore.open(self._log, wait_for_log_s=0) as store:
                damage = await store.find_damage()
        except PersistenceError as error:
            self.tally.note("clean", f"{self._where}: the log cannot be opened on a sound disk: {error}")
            return
        if damage:
            self.tally.note("clean", f"{self._where}: SQLite finds damage: {damage[0]}")
        recovered = RecoveredLogs(self._expected, openings_count=False).read(self._log, asked=self._expected.last)
        if recovered.step is None:
            self.tally.note("clean", f"{self._where}: {recovered.problem}")
        elif recovered.step > self._acknowledged:
            self.tally.unknown_in += 1
        elif recovered.step < self._acknowledged:
            self.tally.note(
                "kept", f"{self._where}: step {self._acknowledged} was acknowledged, and the log is at {recovered.step}"
            )


async def disk_errors(folder: Path, seed: int, *, appends: int = APPENDS) -> list[DiskError]:
    """Return every fault that a caller with this seed can meet, in an order drawn from it, the kinds taking turns."""
    alone = DiskErrorRun(folder, seed=seed, error=None, appends=appends)
    await alone.run()
    chance = random.Random(f"order of disk errors {seed}")
    kinds: list[list[DiskError]] = []
    for kind, name, code in FAILURES:
        for times in (1, FOR_EVER):
            faults = [DiskError(kind, name, code, nth, times) for nth in range(1, alone.disk.seen[kind] + 1)]
            chance.shuffle(faults)
            kinds.append(faults)
    return [fault for turn in zip_longest(*kinds) for fault in turn if fault is not None]


def empty(folder: Path) -> Path:
    """Remove the files in a folder, and return it."""
    for name in os.listdir(folder):
        os.unlink(folder / name)
    return folder
