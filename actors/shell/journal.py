"""The journal: the one way in which batches reach the store, with group commit.

While a transaction is being written, the batches that arrive wait and share the next one, so that a hundred sessions
pay for one wait for the disk and not for a hundred. The rules: an append is acknowledged only after its transaction is
durable; a batch that is refused never costs the others that shared its transaction; and an idle journal has no task.
Where the store can begin an append by itself, a busy journal has none either: what the writing thread tells the loop
settles the group.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Protocol, cast

from refold.actors.kernel.supervision import Background
from refold.actors.shell.snapshots import Snapshots
from refold.events.core.cleaning import error_words
from refold.events.core.errors import LogInUse, PersistenceError, StreamDeleted, WrongExpectedVersion
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch
from refold.events.secrets.redaction import NOTHING_SECRET, Redaction
from refold.stores.event_store import AppendsAtOnce, EventStore

log = logging.getLogger("refold.actors")

GROUP_BATCHES_MAX = 512
"""Most batches of one transaction; the next ones wait for the next."""

GROUP_BYTES_MAX = 8 * 1024 * 1024
"""A transaction takes no further batch once it holds so many bytes of events and payloads."""


class JournalObserver(Protocol):
    """Sees what becomes of appends. It must return at once, and never raise."""

    counts: bool
    """Whether it is to be told of what is written."""

    def written(self, batches: Sequence[EncodedBatch], appended: Sequence[Appended]) -> None:
        """See batches that have just become durable, and where each is; in order of position, and each once."""
        ...

    def not_written(self, batches: Sequence[EncodedBatch], failure: PersistenceError) -> None:
        """See batches of one append that failed; `failure.outcome_unknown` says whether they may be durable."""
        ...


class _Waiting:
    """One append that waits for its turn, and what comes of it."""

    __slots__ = ("batches", "outcome", "payloads", "wake")

    def __init__(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes], wake: "asyncio.Future[None]"
    ) -> None:
        self.batches = batches
        self.payloads = payloads
        self.outcome: list[Appended] | PersistenceError | StreamDeleted | None = None
        """None until it is known."""
        self.wake = wake

    def settle(self, outcome: list[Appended] | PersistenceError | StreamDeleted) -> None:
        if self.outcome is not None:
            return
        self.outcome = outcome
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
        """Whether another runtime has the log, since when every append is refused."""
        self.on_lost: Callable[[], object] | None = None
        """Called once when that is so."""
        self.position = 0
        """Of the last event that was written here."""
        self.snapshots: Snapshots | None = None
        """Keeps the states that are folded from the store; None = none are kept or used."""
        self._waiting: deque[_Waiting] = deque()
        self._alone: deque[_Waiting] = deque()
        """What comes before those, each in a transaction of its own: one of them was refused when they shared one."""
        self._begins = hasattr(store, "begin_append")
        """Whether the store can begin an append by itself."""
        self._writer: Background | None = None
        """Writes where it cannot, or has to wait for something first."""
        self._group: list[_Waiting] = []
        """Whose batches are being written."""
        self._batches: list[EncodedBatch] = []
        """Those of the group, in order."""
        self._busy = False
        """Whether something is written, or is about to be."""
        self._idle: asyncio.Future[None] | None = None
        """Done when that is over, where it is waited for."""
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
            if self.lost:
                raise LogInUse(self.store.name, pid=None, host=None)
            raise PersistenceError(f"the runtime of {self.store.name} is closed; nothing more can be appended")
        loop = asyncio.get_running_loop()
        if self._end_of_loop is None:
            self._end_of_loop = self._ended_with_loop()
            await anext(self._end_of_loop)
        entry = _Waiting(batches, payloads or {}, loop.create_future())
        self._waiting.append(entry)
        if not self._busy:
            self._busy = True
            if self._begins:
                loop.call_soon(self._go_on)  # What others append in this turn of the loop shares the transaction.
            else:
                self._begin_writer()
        # A caller that left now would fold its stream while the batch is on its way to the file. The fold would lack
        # it, and the actor would answer, and begin work, by a state that the log contradicts a moment later.
        cancelled: asyncio.CancelledError | None = None
        while (outcome := entry.outcome) is None:
            try:
                await entry.wake
            except asyncio.CancelledError as error:
                cancelled = error
                entry.wake = loop.create_future()  # The cancellation took the other one with it.
        if cancelled is not None:
            raise cancelled
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def close(self) -> None:
        """Wait for the appends that were accepted, and accept no more. The store stays open."""
        self._closed = True
        if self._end_of_loop is not None:
            await self._end_of_loop.aclose()
        await self._written()

    async def _written(self) -> None:
        while self._busy:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle])

    async def _ended_with_loop(self) -> AsyncGenerator[None]:
        """Wait for what was accepted, where nobody closes this and the loop ends, which closes its generators."""
        try:
            yield
        finally:
            self._closed = True
            await self._written()

    def _go_on(self) -> None:
        while self._waiting or self._alone:
            payloads = self._take_group()
            try:
                begun = cast("AppendsAtOnce", self.store).begin_append(self._batches, payloads, self._told)
            except BaseException as error:  # noqa: BLE001 - those who wait get it
                self._conclude(error)
                continue
            if not begun:
                self._begin_writer()
            return
        self._rest()

    def _told(self, outcome: list[Appended] | BaseException) -> None:
        try:
            self._conclude(outcome)
        finally:
            self._go_on()
        if isinstance(outcome, KeyboardInterrupt):
            raise outcome

    def _begin_writer(self) -> None:
        self._writer = Background("journal", self._write, self._rest)

    async def _write(self) -> None:
        try:
            while self._group or self._waiting or self._alone:
                payloads = _payloads(self._group) if self._group else self._take_group()
                outcome: list[Appended] | BaseException
                try:
                    outcome = await self.store.append(self._batches, payloads)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    writer = asyncio.current_task()
                    if isinstance(error, asyncio.CancelledError) and writer is not None and writer.cancelling():
                        raise
                    outcome = error
                self._conclude(outcome)
        finally:
            if self._group:  # Other code has cancelled this, or the loop is torn down.
                failed = f"the work on {self.store.name} was cancelled by other code"
                self._conclude(PersistenceError(failed, outcome_unknown=True))

    def _rest(self) -> None:
        self._busy, self._writer = False, None
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def _take_group(self) -> dict[PayloadHash, bytes]:
        # Those of a refused group go before what came later: a breaker appends without waiting for its last append, and
        # its version 6 would be refused where it overtakes version 5.
        if self._alone:
            self._group = [self._alone.popleft()]
        else:
            count = size = 0
            while self._waiting and count < GROUP_BATCHES_MAX and size < GROUP_BYTES_MAX:
                entry = self._waiting.popleft()
                self._group.append(entry)
                count += len(entry.batches)
                for batch in entry.batches:
                    size += sum(map(len, batch.events))
                size += sum(map(len, entry.payloads.values()))
        self._batches = [batch for entry in self._group for batch in entry.batches]
        return _payloads(self._group)

    def _conclude(self, outcome: list[Appended] | BaseException) -> None:
        """Tell those who wait for the group what has come of it."""
        group, batches, self._group = self._group, self._batches, []
        if not isinstance(outcome, BaseException) and (not isinstance(outcome, list) or len(outcome) != len(batches)):
            outcome = RuntimeError(f"it did not say where {len(batches)} batches are")
        if isinstance(outcome, WrongExpectedVersion | StreamDeleted | ValueError | TypeError):
            # The store refused before it wrote anything. It does not say whose batch it refused, and the others in the
            # group have nothing to do with it: they are written one by one, at the price of a transaction each.
            if len(group) > 1:
                self._alone.extend(group)
            elif isinstance(outcome, StreamDeleted):
                group[0].settle(outcome)
            else:
                self._fail(group, self._failure(outcome, outcome_unknown=False))
            return
        if isinstance(outcome, BaseException):
            # A store is user code: its errors end at those who wait, and nothing says whether the group was written.
            # To write any of it again could write it twice; each actor reads its stream instead.
            self._fail(group, self._failure(outcome, outcome_unknown=True))
            return
        self.commits += 1
        if outcome:
            self.position = outcome[-1].position + len(batches[-1].events) - 1
        try:
            if self.observer is not None and self.observer.counts:
                self.observer.written(batches, outcome)
        finally:
            start = 0
            for entry in group:
                end = start + len(entry.batches)
                entry.settle(outcome[start:end])
                start = end

    def _fail(self, group: Sequence[_Waiting], failure: PersistenceError) -> None:
        if isinstance(failure, LogInUse):
            self.lose()
        for entry in group:
            if self.observer is not None:
                self.observer.not_written(entry.batches, failure)
            entry.settle(failure)

    def lose(self) -> None:
        """Take note that another runtime has the log."""
        if not self.lost:
            self.lost = True
            if self.on_lost is not None:
                self.on_lost()

    def _failure(self, error: BaseException, *, outcome_unknown: bool) -> PersistenceError:
        if isinstance(error, PersistenceError):
            return error
        failure = PersistenceError(
            f"the store {self.store.name} failed: {error_words(error)}", outcome_unknown=outcome_unknown
        )
        failure.__cause__ = error
        return failure


def _payloads(group: Sequence[_Waiting]) -> dict[PayloadHash, bytes]:
    return {name: data for entry in group if entry.payloads for name, data in entry.payloads.items()}
