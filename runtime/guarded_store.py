"""The border to a store that a user brings: a fault of it costs the message at hand and nothing else.

Read `refold.stores.event_store` for what a store promises. The rules: everything that goes wrong in it comes out as a
`PersistenceError` that says what failed, on which stream; nobody waits for it longer than the append timeout; and no
append is begun while the one before it has not ended, since a store has one writer.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from refold.actors.kernel.clock import Clock, SystemClock
from refold.events.core.cleaning import error_words
from refold.events.core.errors import LogFormatError, PersistenceError, StreamDeleted
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch, Snapshot, StoredEvent, StreamHead
from refold.options import Settings
from refold.stores.append_rules import check_limit, check_snapshot
from refold.stores.event_store import EventStore
from refold.stores.memory import InMemoryStore
from refold.stores.sqlite.store import SQLiteStore

T = TypeVar("T")


class _CallOutcome(NamedTuple, Generic[T]):
    """How a call ended: with what it returned, in a tuple of one, or with what it raised."""

    returned: tuple[T] | None
    error: BaseException


_RETURNED = Exception("it returned")


class ContainedStore:
    """An `EventStore` that hands everything on to another one, and keeps its failures within bounds."""

    def __init__(self, store: EventStore, clock: Clock, timeout_s: float | None) -> None:
        """Put a border around a store.

        Args:
            store: what the user brought; it stays theirs to close.
            clock: measures the timeout.
            timeout_s: longest wait for one call; None = the store bounds its waits itself.
        """
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_s
        self._hanging: asyncio.Task[_CallOutcome[list[Appended]]] | None = None

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def contained(self) -> EventStore:
        """The store behind the border."""
        return self._store

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        if self._hanging is not None and not await self._ends(self._hanging):
            raise PersistenceError(f"{self.name}: an earlier append still hangs; nothing was begun")
        self._hanging = self._begin(lambda: self._store.append(batches, payloads))
        gone: asyncio.CancelledError | None = None
        while True:
            try:
                ended = await self._ends(self._hanging)
                break
            except asyncio.CancelledError as error:
                gone = error
        if gone is not None:
            raise gone
        if not ended:
            raise PersistenceError(
                f"{self.name}: the append takes longer than {self._timeout_s:g} s; read the log again before retrying",
                outcome_unknown=True,
            )
        outcome, self._hanging = self._hanging.result(), None
        if outcome.returned is not None:
            return outcome.returned[0]
        if isinstance(
            outcome.error, PersistenceError | StreamDeleted | ValueError | TypeError
        ):  # What the contract allows.
            raise outcome.error
        raise self._failure("the append failed", outcome.error, outcome_unknown=True)

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        check_limit(limit)
        return await self._read_list(
            f"stream {stream!r}",
            lambda: self._store.read_stream(stream, after_version=after_version, limit=limit),
        )

    async def read_all(self, *, after_position: int = 0, limit: int = 1000) -> list[StoredEvent]:
        check_limit(limit)
        return await self._read_list(
            f"what follows position {after_position}",
            lambda: self._store.read_all(after_position=after_position, limit=limit),
        )

    async def head(self, stream: str) -> StreamHead | None:
        return await self._call(f"the end of stream {stream!r} cannot be read", lambda: self._store.head(stream))

    async def list_streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None, with_pending: bool = False
    ) -> list[StreamHead]:
        check_limit(limit)
        return await self._read_list(
            f"the list of the streams {prefix!r}",
            lambda: self._store.list_streams(prefix=prefix, after=after, limit=limit, with_pending=with_pending),
        )

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        return await self._call("payloads cannot be read", lambda: self._store.read_payloads(hashes))

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        check_snapshot(snapshot)
        failed = f"the snapshot of stream {snapshot.stream!r} cannot be kept"
        await self._call(failed, lambda: self._store.save_snapshot(snapshot))

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        failed = f"the snapshot of stream {stream!r} cannot be read"
        return await self._call(failed, lambda: self._store.load_snapshot(stream))

    async def close(self) -> None:
        self.let_go()
        await self._call("it cannot be closed", self._store.close)

    def let_go(self) -> None:
        """Tell an append that hangs that nobody waits for it any more."""
        if self._hanging is not None:
            self._hanging.cancel()

    async def _read_list(self, what: str, read: Callable[[], Awaitable[list[T]]]) -> list[T]:
        found: object = await self._call(f"{what} cannot be read", read)
        if not isinstance(found, list):
            raise PersistenceError(f"{self.name}: {what} cannot be read: it gave {type(found).__name__}, not a list")
        return found

    async def _call(self, failed: str, call: Callable[[], Awaitable[T]]) -> T:
        """Return what `call` returns.

        Args:
            failed: what failed if it does, as the beginning of a sentence.
        """
        task = self._begin(call)
        try:
            if not await self._ends(task):
                raise PersistenceError(f"{self.name}: {failed}: it takes longer than {self._timeout_s:g} s")
        finally:
            task.cancel()
        outcome = task.result()
        if outcome.returned is not None:
            return outcome.returned[0]
        if isinstance(outcome.error, LogFormatError):
            raise outcome.error
        raise self._failure(failed, outcome.error)

    def _failure(self, failed: str, error: BaseException, *, outcome_unknown: bool = False) -> PersistenceError:
        said = str(error) if isinstance(error, PersistenceError) else error_words(error)
        failure = PersistenceError(f"{self.name}: {failed}: {said}", outcome_unknown=outcome_unknown)
        failure.__cause__ = error
        return failure

    def _begin(self, call: Callable[[], Awaitable[T]]) -> "asyncio.Task[_CallOutcome[T]]":
        return asyncio.get_running_loop().create_task(_outcome_of(call), name=f"a call of {self.name}")

    async def _ends(self, task: "asyncio.Task[_CallOutcome[T]]") -> bool:
        """Return whether a call ends in time; it goes on in any case."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(_: object = None) -> None:
            if not waiter.done():
                waiter.set_result(None)

        task.add_done_callback(wake)
        timer = self._clock.call_later(self._timeout_s, wake) if self._timeout_s is not None else None
        try:
            await waiter
        finally:
            task.remove_done_callback(wake)
            if timer is not None:
                timer.cancel()
        return task.done()


async def _outcome_of(call: Callable[[], Awaitable[T]]) -> _CallOutcome[T]:
    """Make a call and keep what it raises, so that not even SystemExit gets any further."""
    try:
        return _CallOutcome((await call(),), _RETURNED)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - The border to user code.
        return _CallOutcome(None, error)


async def opened_store(options: Settings) -> tuple[EventStore, bool]:
    """Return the log, and whether it is the runtime's to close."""
    log = options.log
    if isinstance(log, str | os.PathLike):
        if log == ":memory:":
            return InMemoryStore(), True
        store = await SQLiteStore.open(
            log,
            durability=options.durability,
            wait_for_log_s=options.wait_for_log_s,
            append_timeout_s=options.append_timeout_s,
            allow_shared_folder=options.allow_shared_folder,
        )
        return store, True
    bounded = type(log) in (InMemoryStore, SQLiteStore)
    return ContainedStore(log, options.clock or SystemClock(), None if bounded else options.append_timeout_s), False
