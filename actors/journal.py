"""The journal: the one way in which batches reach the store, with group commit.

While a transaction is being written, the batches that arrive wait and share the next one, so that a hundred sessions
pay for one wait for the disk and not for a hundred. The rules: an append is acknowledged only after its transaction is
durable; a batch that is refused never costs the others that shared its transaction; and an idle journal has no task.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from refold.actors.kernel.supervision import Background
from refold.actors.snapshots import Snapshots
from refold.events.core.errors import LogInUse, PersistenceError, StreamDeleted, WrongExpectedVersion
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch
from refold.events.secrets.redaction import NOTHING_SECRET, Redaction
from refold.stores.event_store import EventStore

GROUP_BATCHES_MAX = 512
"""Most batches of one transaction; the next ones wait for the next."""

GROUP_BYTES_MAX = 8 * 1024 * 1024
"""A transaction takes no further batch once it holds so many bytes of events and payloads."""


class JournalObserver(Protocol):
    """Sees what becomes of appends. It must return at once, and never raise."""

    def written(self, batches: Sequence[EncodedBatch], appended: Sequence[Appended]) -> None:
        """See batches that have just become durable, and where each is; in order of position, and each once."""
        ...

    def not_written(self, batches: Sequence[EncodedBatch], failure: PersistenceError) -> None:
        """See batches of one append that failed; `failure.outcome_unknown` says whether they may be durable."""
        ...


class _Waiting:
    """One append that waits for its turn, and what comes of it."""

    __slots__ = ("appended", "batches", "failure", "payloads", "wake")

    def __init__(self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes]) -> None:
        self.batches = batches
        self.payloads = payloads
        self.appended: list[Appended] | None = None
        self.failure: PersistenceError | StreamDeleted | None = None
        self.wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled(self) -> bool:
        return self.appended is not None or self.failure is not None

    def settle(self, appended: list[Appended] | None, failure: PersistenceError | StreamDeleted | None = None) -> None:
        if self.settled():
            return
        self.appended, self.failure = appended, failure
        if not self.wake.done() and not self.wake.get_loop().is_closed():  # Nobody can be woken on a closed loop.
            self.wake.set_result(None)


class Journal:
    """Appends on behalf of all actors of a runtime; used on one event loop.

    Args:
        store: where the batches go. The journal is its only writer.
        redaction: knows what must not be in the log; all who append take it out first.
    """

    def __init__(self, store: EventStore, redaction: Redaction = NOTHING_SECRET) -> None:
        self.store = store
        self.redaction = redaction
        self.commits = 0
        """Transactions that were written."""
        self.observer: JournalObserver | None = None
        """Is told what becomes of every append."""
        self.lost = False
        """Whether an append was refused since another runtime has the log."""
        self.snapshots: Snapshots | None = None
        """Keeps the states that are folded from the store; None = none are kept or used."""
        self._waiting: deque[_Waiting] = deque()
        self._writer: Background | None = None
        self._group: list[_Waiting] = []
        """What is being written."""
        self._closed = False
        self._end_of_loop: AsyncGenerator[None] | None = None

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        """Append all of `batches`, or none of them, and return where each is, once that is durable.

        A caller that is cancelled meanwhile gets CancelledError only after the outcome is known.

        Raises:
            WrongExpectedVersion: a stream moved on; nothing of `batches` was written.
            StreamDeleted: a stream was deleted; nothing of `batches` was written.
            PersistenceError: see `EventStore.append`.
        """
        if self._closed:
            raise PersistenceError(f"the runtime of {self.store.name} is closed; nothing more can be appended")
        loop = asyncio.get_running_loop()
        if self._end_of_loop is None:
            self._end_of_loop = self._ended_with_loop()
            await anext(self._end_of_loop)
        entry = _Waiting(batches, payloads or {})
        self._waiting.append(entry)
        if self._writer is None:
            self._writer = Background("journal", self._write, self._all_written)
        cancelled: asyncio.CancelledError | None = None
        while not entry.settled():
            try:
                await entry.wake
            except asyncio.CancelledError as error:
                cancelled = error
                entry.wake = loop.create_future()  # The cancellation took the other one with it.
        if cancelled is not None:
            raise cancelled
        if entry.failure is not None:
            raise entry.failure
        assert entry.appended is not None
        return entry.appended

    async def close(self) -> None:
        """Wait for the appends that were accepted, and accept no more. The store stays open."""
        self._closed = True
        if self._end_of_loop is not None:
            await self._end_of_loop.aclose()
        await self._written()

    async def _written(self) -> None:
        while self._writer is not None:
            await self._writer.wait()

    async def _ended_with_loop(self) -> AsyncGenerator[None]:
        """Wait for what was accepted, where nobody closes this and the loop ends, which closes its generators."""
        try:
            yield
        finally:
            self._closed = True
            await self._written()

    async def _write(self) -> None:
        try:
            while self._waiting:
                self._group = self._next_group()
                await self._write_group(self._group)
        finally:
            for entry in self._group:  # Settled, unless other code has cancelled this, or the loop is torn down.
                failed = f"the work on {self.store.name} was cancelled by other code"
                entry.settle(None, PersistenceError(failed, outcome_unknown=True))

    def _all_written(self) -> None:
        self._writer = None

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        count = size = 0
        while self._waiting and count < GROUP_BATCHES_MAX and size < GROUP_BYTES_MAX:
            entry = self._waiting.popleft()
            group.append(entry)
            count += len(entry.batches)
            size += sum(len(event) for batch in entry.batches for event in batch.events)
            size += sum(map(len, entry.payloads.values()))
        return group

    async def _write_group(self, group: list[_Waiting]) -> None:
        batches = [batch for entry in group for batch in entry.batches]
        payloads = {name: data for entry in group for name, data in entry.payloads.items()}
        try:
            appended = await self.store.append(batches, payloads)
            if not isinstance(appended, list) or len(appended) != len(batches):
                raise RuntimeError(f"it did not say where {len(batches)} batches are")
        except (WrongExpectedVersion, StreamDeleted, ValueError, TypeError) as error:
            # The store refused before it wrote anything. It does not say whose batch it refused, and the others in the
            # group have nothing to do with it: they are written one by one, at the price of a transaction each.
            if len(group) == 1:
                if isinstance(error, StreamDeleted):
                    group[0].settle(None, error)
                else:
                    self._fail(group, self._failure(error, outcome_unknown=False))
                return
            for entry in group:
                await self._write_group([entry])
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # A store is user code: its errors end at those who wait, and nothing says whether the group was written.
            # To write any of it again could write it twice; each actor reads its stream instead.
            writer = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and writer is not None and writer.cancelling():
                raise
            self._fail(group, self._failure(error, outcome_unknown=True))
        else:
            self.commits += 1
            if self.observer is not None:
                self.observer.written(batches, appended)
            start = 0
            for entry in group:
                end = start + len(entry.batches)
                entry.settle(appended[start:end])
                start = end

    def _fail(self, group: Sequence[_Waiting], failure: PersistenceError) -> None:
        self.lost |= isinstance(failure, LogInUse)
        for entry in group:
            if self.observer is not None:
                self.observer.not_written(entry.batches, failure)
            entry.settle(None, failure)

    def _failure(self, error: BaseException, *, outcome_unknown: bool) -> PersistenceError:
        if isinstance(error, PersistenceError):
            return error
        failure = PersistenceError(
            f"the store {self.store.name} failed: {type(error).__name__}: {error}", outcome_unknown=outcome_unknown
        )
        failure.__cause__ = error
        return failure
