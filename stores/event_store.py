"""The contract of every event store.

Read `refold.events.core.records` first for the shapes. The docstrings below are the contract; the shipped suite in
`refold.stores.conformance` checks them, on our stores and on yours. A store knows no event classes, takes no
decisions and reads no clock. One store object has one writer: the journal calls `append` one at a time; reads
may run at any time, beside an append too, and see only whole, committed batches. `WholeLog` adds what a store gives so
that its whole log can be exported, and `ErasableLog` what it gives so that streams can be deleted: all stores that
Refold brings give both, yours may. A store of many sessions gives `ListedLog` too, so that they are listed quickly, and
one that writes in a thread of its own `AppendsAtOnce`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from refold.events.core.ids import PayloadHash, StreamName
from refold.events.core.records import Appended, EncodedBatch, Snapshot, StoredEvent, StreamHead

TellProgress: TypeAlias = Callable[[str, int, int | None], object]
"""Is told how far long work is, in any thread: what is counted, how many are done, and of how many; None = unknown."""


def untold(what: str, done: int, total: int | None) -> None:
    """Tell nothing of how far work is."""


class EventStore(Protocol):
    """Where batches are kept: append-only streams in one totally ordered log."""

    @property
    def name(self) -> str:
        """What errors call this store: a path, or a word such as `:memory:`."""
        ...

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        """Append all of `batches` and `payloads` in one transaction, or nothing; return where each batch is.

        On return everything is as durable as the store promises. Batches may be of several streams, or several
        of one stream, each then expecting the version that the one before leaves. Batches get increasing
        positions in the order given. A payload that is already stored is not written again, unless damage made other
        bytes of it. Payloads may come without a batch; with neither, nothing happens.

        The append is not interrupted by cancellation: a caller cancelled meanwhile gets CancelledError only
        after the outcome is settled.

        Raises:
            WrongExpectedVersion: a stream is at another version, or there already where a fork begins it, or the log
                lacks what it goes on from; nothing was written.
            StreamDeleted: a stream was deleted (`ErasableLog`), and its name is not used again; nothing was written.
            PersistenceError: the append failed; `outcome_unknown` says whether it may nevertheless be in the log.
            ValueError: a batch has no events, a payload does not hash to its key, or something cannot be stored
                exactly (`refold.stores.append_rules`); nothing was written.
            TypeError: as ValueError, for a value of a wrong type.
        """
        ...

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        """Return the events of one stream with a version greater than `after_version`, oldest first.

        At most `limit` of them, or all. An unknown stream has none. A negative `limit`, here and below, is a
        ValueError. Of a fork (`refold.stores.forked.joined`) the events of its prefix come first, as they lie in the
        log: under the name of the stream that they are of.

        Raises:
            PersistenceError: the log cannot be read; the message names the stream.
        """
        ...

    async def read_all(self, *, after_position: int = 0, limit: int = 1000) -> list[StoredEvent]:
        """Return the events of all streams with a position greater than `after_position`, in order of position."""
        ...

    async def head(self, stream: str) -> StreamHead | None:
        """Return the end of one stream, or None if it has no events."""
        ...

    async def list_streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None, with_pending: bool = False
    ) -> list[StreamHead]:
        """Return the ends of streams in order of their names' code points (which is also UTF-8 byte order).

        Args:
            prefix: only names that begin with it, compared exactly.
            after: only names greater than it (for pages).
            limit: at most so many.
            with_pending: only streams whose last batch left effects in flight; found without reading the log.
        """
        ...

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        """Return the payloads of the given hashes; those that are not stored are missing from the result."""
        ...

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot of a stream, in place of an earlier one; of a stream without events none is kept.

        A snapshot is a cache: losing it costs time only, so this need not wait for the disk.

        Raises:
            PersistenceError: the snapshot could not be written.
            ValueError: something in it cannot be stored exactly.
            TypeError: as ValueError, for a value of a wrong type.
        """
        ...

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        """Return the stream's snapshot, or None. Whether it may be used is for the caller to decide."""
        ...

    async def close(self) -> None:
        """Release everything; a second call changes nothing. Later calls raise PersistenceError."""
        ...


class AppendsAtOnce(EventStore, Protocol):
    """An event store that begins an append without a coroutine, so that nobody needs a task to wait for it."""

    def begin_append(
        self,
        batches: Sequence[EncodedBatch],
        payloads: Mapping[PayloadHash, bytes],
        done: Callable[[list[Appended] | BaseException], object],
    ) -> bool:
        """Begin to append; later, the loop calls `done` with what `append` would return or raise.

        What is wrong with the arguments, or that the store is closed, is raised at once.

        Returns:
            False where something has to be waited for first: nothing was begun, and `append` is to be called.
        """
        ...


class ListedLog(EventStore, Protocol):
    """An event store that gives what a list of its streams tells about many of them in one read."""

    async def read_outlines(self, streams: Sequence[str], *, first: int, tag: str) -> list[list[StoredEvent]]:
        """Return of each stream its first events, its last one, and in between the last of a type, in their order.

        Args:
            streams: their names; one without events has none.
            first: so many from the beginning.
            tag: of the type of which the last one is wanted.

        Raises:
            PersistenceError: the log cannot be read.
        """
        ...

    async def streams_with(self, beginning: bytes) -> list[StreamName]:
        """Return, in order, the streams that have an event whose JSON begins so, and goes on in ASCII.

        Raises:
            PersistenceError: the log cannot be read.
        """
        ...


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of a deleted stream was."""

    position: int
    stream: StreamName
    version: int
    chain: bytes
    at: int
    """Microseconds since the epoch, UTC: when it was deleted."""


class ListedPayload(msgspec.Struct, frozen=True):
    """A payload in a list of those that a log keeps."""

    hash: PayloadHash
    size: int
    """About how many bytes it has, so that small ones can be read together."""


class WholeLog(EventStore, Protocol):
    """An event store that can be asked for everything that it keeps, page by page."""

    async def list_payloads(self, *, after: str = "", limit: int) -> list[ListedPayload]:
        """Return at most `limit` payloads whose hashes are greater than `after`, in order of the hashes.

        Raises:
            PersistenceError: the log cannot be read.
        """
        ...

    async def removed_position(self) -> int:
        """Return the highest position that was ever removed, so that it is not used again; 0 = none."""
        ...

    async def list_tombstones(self, *, after_position: int = 0, limit: int) -> list[Tombstone]:
        """Return at most `limit` tombstones with a greater position, in its order."""
        ...


class ErasableLog(WholeLog, Protocol):
    """An event store from which whole streams can be deleted; see `refold.stores.keeping.erasing`."""

    async def find_tombstone(self, stream: str) -> Tombstone | None:
        """Return what a deleted stream was, or None if no stream of that name was deleted.

        Raises:
            PersistenceError: the log cannot be read.
        """
        ...

    async def delete_streams(
        self, streams: Sequence[StreamHead], payloads: Iterable[PayloadHash], *, after_position: int, at: int
    ) -> int:
        """Delete streams with their snapshots, and payloads, in one transaction; return how many payloads went.

        Of each stream a tombstone stays. What is left out of `payloads` stays, and so does a payload that an event of
        another stream names which stands behind `after_position`: what is before it, the caller has looked at.

        Args:
            streams: their ends, as the caller has seen them.
            payloads: that only these streams name.
            at: when they are deleted, microseconds since the epoch, UTC.

        Raises:
            WrongExpectedVersion: a stream has another end, or one that stays was made a fork of it behind
                `after_position`; nothing was deleted.
            PersistenceError: it failed; `outcome_unknown` says whether they may nevertheless be deleted.
        """
        ...

    async def empty_wal(self) -> bool:
        """Bring what was written into the log's own file, and empty what lies beside it; return whether it is empty.

        It is not while another process reads the log at an earlier moment; then try again.

        Raises:
            PersistenceError: it failed.
        """
        ...
