"""A store around another one that fails and hangs where a test wants it to, and counts what is asked of it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from refold import PersistenceError
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch, Snapshot, StoredEvent, StreamHead
from refold.stores import EventStore

When = Literal["before", "after"]
"""Whether something happens to an append before it takes effect, or after."""

MakeError = Callable[[], BaseException]
"""Errors are made anew for each failure, since a raised one remembers where it has been."""

FOR_EVER = 10**9


@dataclass
class Hold:
    """A place at which appends wait."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        self.reached.set()
        await self.gate.wait()

    def let_go(self) -> None:
        self.gate.set()


@dataclass
class AppendFault:
    """What happens to the appends whose numbers are in a range and that are of some stream."""

    first: int
    last: int
    when: When
    what: MakeError | Hold
    of: str
    kind: str = ""

    def meets(self, number: int, batches: Sequence[EncodedBatch]) -> bool:
        concerned = not self.of or any(batch.stream.startswith(self.of) for batch in batches)
        tag = f'"session.{self.kind}.'.encode()
        held = not self.kind or any(tag in event for batch in batches for event in batch.events)
        return self.first <= number <= self.last and concerned and held

    async def happen(self, when: When) -> None:
        if when != self.when:
            return
        if isinstance(self.what, Hold):
            await self.what.wait()
        else:
            raise self.what()


class FailingStore:
    """Hands everything on to the store that it is given, save for the faults that it is told.

    Attributes:
        appends: the streams of each append that was asked for, in order; what failed included.
        commits: the streams of each append that took effect.
        events_read: how many events of each stream were read.
    """

    def __init__(self, store: EventStore) -> None:
        self.inner = store
        self.appends: list[tuple[str, ...]] = []
        self.commits: list[tuple[str, ...]] = []
        self.reads: list[str] = []
        self.events_read: Counter[str] = Counter()
        self._faults: list[AppendFault] = []
        self._off: tuple[int, asyncio.Event] | None = None
        self._held_operation: tuple[int, Hold] | None = None
        self._read_error: MakeError | Hold | None = None
        self._read_of = ""
        self._reads_left = 0

    @property
    def name(self) -> str:
        return f"failing {self.inner.name}"

    # What a test says

    def fail_append(self, number: int, error: MakeError, *, when: When = "before") -> None:
        """Have the append of this number fail; they count from 1."""
        self._faults.append(AppendFault(number, number, when, error, ""))

    def fail_appends(self, error: MakeError, *, when: When = "before", of: str = "", times: int = FOR_EVER) -> None:
        """Have the next appends fail, or those of streams whose names begin with `of`, until `mend`."""
        following = len(self.appends) + 1
        self._faults.append(AppendFault(following, following + times - 1, when, error, of))

    def hold_append(self, number: int, *, when: When = "before") -> Hold:
        """Have the append of this number wait until it is let go."""
        hold = Hold()
        self._faults.append(AppendFault(number, number, when, hold, ""))
        return hold

    def hold_event(self, kind: str) -> Hold:
        """Have appends wait that bring an event of a kind, such as `run_completed`."""
        hold = Hold()
        self._faults.append(AppendFault(1, FOR_EVER, "before", hold, "", kind))
        return hold

    def hold_operation(self, number: int) -> Hold:
        """Have the operation of this number wait, reads and appends alike; they count from 1."""
        hold = Hold()
        self._held_operation = number, hold
        return hold

    def fail_reads(self, error: MakeError | Hold, *, of: str = "", times: int = FOR_EVER) -> None:
        """Have reads of streams whose names begin with `of` fail, so many times or until `mend`."""
        self._read_error, self._read_of, self._reads_left = error, of, times

    def go_off_after(self, commits: int) -> asyncio.Event:
        """Have nothing reach the log after so many more commits, of which the last is not confirmed.

        Returns:
            What is set then.
        """
        self._off = len(self.commits) + commits, asyncio.Event()
        return self._off[1]

    def mend(self) -> None:
        """Let everything succeed from now on."""
        self._faults.clear()
        self._off = None
        self._read_error = None

    def commits_of(self, stream: str) -> int:
        """Return how many transactions held something of a stream."""
        return sum(stream in streams for streams in self.commits)

    # The store

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        streams = tuple(batch.stream for batch in batches)
        self.appends.append(streams)
        await self._operate()
        faults = [fault for fault in self._faults if fault.meets(len(self.appends), batches)]
        for fault in faults:
            await fault.happen("before")
        appended = await self.inner.append(batches, payloads)
        self.commits.append(streams)
        if self._off is not None and len(self.commits) == self._off[0]:
            self.fail_appends(lambda: PersistenceError("the machine is off"))
            self._off[1].set()
            raise PersistenceError("the machine is off")
        for fault in faults:
            await fault.happen("after")
        return appended

    async def _operate(self) -> None:
        if self._held_operation is not None and len(self.appends) + len(self.reads) == self._held_operation[0]:
            await self._held_operation[1].wait()

    async def _reading(self, name: str) -> None:
        self.reads.append(name)
        await self._operate()
        error = self._read_error
        if error is None or not name.startswith(self._read_of) or self._reads_left <= 0:
            return
        self._reads_left -= 1
        if isinstance(error, Hold):
            await error.wait()
        else:
            raise error()

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        await self._reading(stream)
        found = await self.inner.read_stream(stream, after_version=after_version, limit=limit)
        self.events_read[stream] += len(found)
        return found

    async def read_all(self, *, after_position: int = 0, limit: int = 1000) -> list[StoredEvent]:
        await self._reading("all")
        return await self.inner.read_all(after_position=after_position, limit=limit)

    async def head(self, stream: str) -> StreamHead | None:
        await self._reading(stream)
        return await self.inner.head(stream)

    async def list_streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None, with_pending: bool = False
    ) -> list[StreamHead]:
        await self._reading(f"list {prefix}")
        return await self.inner.list_streams(prefix=prefix, after=after, limit=limit, with_pending=with_pending)

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        await self._reading("payloads")
        return await self.inner.read_payloads(hashes)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        await self.inner.save_snapshot(snapshot)

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        await self._reading(stream)
        return await self.inner.load_snapshot(stream)

    async def close(self) -> None:
        await self.inner.close()
