"""Folding a stream from a store: from its snapshot where one may be used, and in steps, so that others have the loop.

A snapshot is a cache. It is used only where its digest is right, it was made by the same FOLD_VERSION for a state of
the same shape, and the batch that it ends with is in the log with the chain that it names. Any other is ignored, and
the stream folded from its first event. So deleting all snapshots, or damaging them, changes time only.

Read `refold.events.core.state_codec` for how a state becomes bytes. `refold check` and replay read no snapshot: they
take `evolve_all` through every event.
"""

import asyncio
import hashlib
import logging
import struct
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from refold.events.core.codec import EventCodec
from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.event import Event
from refold.events.core.ids import EventRef, StreamName
from refold.events.core.pure_core import PureCore, Versioned, evolve_all, keys_of
from refold.events.core.records import Snapshot, StoredEvent, version_in
from refold.events.core.state_codec import Piece, StateCodec
from refold.stores.append_rules import BYTES_MAX
from refold.stores.event_store import EventStore

log = logging.getLogger("refold.stores")

S = TypeVar("S", bound=Versioned)
E = TypeVar("E", bound=Event)

EVENTS_PER_PAGE: Final = 2_000
"""Events that are read at once."""

SNAPSHOTS_FROM: Final = 250
"""Events of a stream for which no snapshot is kept or looked for: they are folded as fast."""

EVENTS_PER_STEP: Final = 500
"""Events that are folded before others have the loop; some milliseconds."""

BYTES_PER_STEP: Final = 512 * 1024
"""Likewise of long events, and of a snapshot."""

_FORMAT: Final = 1
_DIGEST_BYTES: Final = 32
_HEADER_LENGTH: Final = struct.Struct(">I")

Causes = dict[str, tuple[int, int]]
"""The versions of the events that asked for pending work, and of what these go back to, by the key of the work."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot says beside the state."""

    format: int
    shape: bytes
    batch: int
    first: StoredEvent
    causes: Causes
    pieces: tuple[tuple[int, int], ...]
    """The field and the length of each."""


_encode_header = msgspec.msgpack.Encoder().encode
_header_decoder = msgspec.msgpack.Decoder(_Header)


class Fold(Generic[S, E]):
    """A stream's state on its way through the stream's events, and what else follows from them."""

    def __init__(self, stream: str, core: PureCore[S, Any, E], codec: EventCodec[E]) -> None:
        self.stream = StreamName(stream)
        self.state: S = core.initial()
        self.at = 0
        """Of the last event, microseconds since the epoch; 0 = there is none yet."""
        self.first: StoredEvent | None = None
        """Of the stream."""
        self.causes: Causes = {}
        self.fresh = 0
        """Events behind the snapshot that it began with."""
        self.fresh_bytes = 0
        self.snapshot_bytes = 0
        """Length of that snapshot; 0 = it began with the first event."""
        self.ignored = ""
        """Why a snapshot that was there was not used; empty = there was none, or it was."""
        self._core, self._codec = core, codec
        self._batch = 0
        self._chain = b""

    @property
    def version(self) -> int:
        return self._core.version(self.state)

    async def read(
        self,
        store: EventStore,
        *,
        snapshots_from: int | None = SNAPSHOTS_FROM,
        version: int | None = None,
        position: int | None = None,
        after: int | None = None,
        sealed: bool = True,
    ) -> list[StoredEvent]:
        """Fold what the store has, which must be nothing yet, and return the events behind the version `after`.

        Args:
            snapshots_from: a snapshot is looked for where the stream has at least so many events; None = never.
            version: the last to be folded, if there are so many; None = all.
            position: that of the last to be folded; None = wherever they are.
            after: None = none is returned; else no snapshot of a later version is used.
            sealed: whether a long history in the state may stay encoded until it is looked at.
        """
        returned: list[StoredEvent] = []
        most = EVENTS_PER_PAGE if snapshots_from is None else min(snapshots_from, EVENTS_PER_PAGE)
        while True:
            reached = self.version
            # A damaged log may name a version below 0.
            room = most if version is None else max(min(most, version - reached), 0)
            page = await store.read_stream(self.stream, after_version=reached, limit=room)
            if most < EVENTS_PER_PAGE:  # A short stream costs one read, since no snapshot is looked for.
                limits = (version, position, after)
                if len(page) == most and (later := await self._from_snapshot(store, *limits, sealed=sealed)):
                    page, room, reached = later, EVENTS_PER_PAGE, self.version
                most = EVENTS_PER_PAGE
            over = len(page) < room
            new = page if not page or page[0].version > reached else [item for item in page if item.version > reached]
            wanted = new if version is position is None else [i for i in new if _is_wanted(i, version, position)]
            await self.advance(wanted)
            if after is not None:
                returned += [item for item in wanted if item.version > after]
            if over or len(wanted) < len(new) or (version is not None and self.version >= version):
                return returned

    async def advance(self, stored: Sequence[StoredEvent]) -> None:
        """Fold the next events, in order; give the loop back between many."""
        if self.first is None and stored:
            self.first = stored[0]
        begin = size = 0
        for place, item in enumerate(stored, 1):
            size += len(item.data)
            if place == len(stored) or place - begin >= EVENTS_PER_STEP or size >= BYTES_PER_STEP:
                if self.fresh:
                    await asyncio.sleep(0)
                self._evolve(stored[begin:place])
                self.fresh += place - begin
                self.fresh_bytes += size
                begin, size = place, 0

    def _evolve(self, stored: Sequence[StoredEvent]) -> None:
        try:
            self.state = evolve_all(self._core, map(self._codec.decode, stored), self.state)
        except LogFormatError as error:
            raise LogFormatError(f"stream {self.stream}: {error}") from error.__cause__
        self.at = stored[-1].at
        firsts = [item for item in stored if item.version == item.batch]
        if firsts:
            self._batch, self._chain = firsts[-1].batch, firsts[-1].chain or b""
            self.causes = _causes_behind(self.causes, firsts)

    # Snapshots

    async def _from_snapshot(
        self, store: EventStore, version: int | None, position: int | None, after: int | None, *, sealed: bool
    ) -> list[StoredEvent] | None:
        """Take the state of the snapshot, if it may be used, and return the first events from its last batch on."""
        codec = state_codec(self._core)
        if codec is None:
            return None
        try:
            snapshot = await store.load_snapshot(self.stream)
        except PersistenceError as error:  # The events say whether the log can be read.
            return self._ignore(str(error))
        if snapshot is None or any(limit is not None and limit < snapshot.version for limit in (version, after)):
            return None
        if (snapshot.stream, snapshot.fold_version) != (self.stream, self._core.fold_version):
            return self._ignore("another fold made it")
        header = await _checked(snapshot, codec.shape)
        if header is None or not 1 <= header.batch <= snapshot.version:
            return self._ignore("it is damaged, or of a state with other fields")
        page = await store.read_stream(self.stream, after_version=header.batch - 1, limit=EVENTS_PER_PAGE)
        if not _ends_there(page, snapshot, header.batch):
            return self._ignore("the log has other events")
        end = page[snapshot.version - header.batch]
        if position is not None and position < end.position:
            return None
        state = await _decoded(codec, snapshot, header, sealed=sealed)
        if state is None or self._core.version(state) != snapshot.version:
            return self._ignore("its state cannot be read")
        self.state, self.first, self.at = state, header.first, end.at
        self.causes, self._batch, self._chain = header.causes, header.batch, snapshot.chain
        self.snapshot_bytes = len(snapshot.state)
        return page

    def _ignore(self, why: str) -> list[StoredEvent] | None:
        self.ignored = why
        log.info("the snapshot of %s is ignored, and all its events are folded: %s", self.stream, why)
        return None

    async def snapshot(self) -> Snapshot | None:
        """Return a snapshot of what is folded, up to the end of a batch; None where none can be kept."""
        codec = state_codec(self._core)
        if codec is None or self.first is None:
            return None
        pieces: list[Piece] = []
        size = since = 0
        try:
            for piece in codec.pieces(self.state):
                pieces.append(piece)
                size += len(piece[1])
                since += len(piece[1])
                if size > BYTES_MAX // 2:
                    return None
                if since >= BYTES_PER_STEP:
                    since = 0
                    await asyncio.sleep(0)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, TypeError, ValueError):
            return None
        header = _encode_header(
            _Header(
                format=_FORMAT,
                shape=codec.shape,
                batch=self._batch,
                first=self.first,
                causes=self.causes,
                pieces=tuple([(place, len(data)) for place, data in pieces]),
            )
        )
        body = b"".join((_HEADER_LENGTH.pack(len(header)), header, *(data for _, data in pieces)))
        made = Snapshot(
            stream=self.stream,
            version=self.version,
            chain=self._chain,
            fold_version=self._core.fold_version,
            state=body,
        )
        digest = await _digest(made, memoryview(body))
        return msgspec.structs.replace(made, state=digest + body)


def causes_after(before: Causes, pending: Sequence[str], version: int, correlation: EventRef | None) -> Causes:
    """Return which events asked for the work that is pending after a batch, given the version of its stimulus.

    A user's core names work by a key alone. The log has the keys that were pending after each batch, so the batch
    after which a key is there for the first time is the one that asked for it, live and after a restart.
    """
    origin = version_in(correlation) if correlation is not None else version
    return {key: before.get(key, (version, origin)) for key in keys_of(pending)}


def _causes_behind(before: Causes, firsts: Sequence[StoredEvent]) -> Causes:
    """Return the same after several batches, of each of which the first event is given.

    What is pending at their end was asked for by the first batch from which on it always was; so the last are enough.
    What names no event is an error in all of them.
    """
    for first in firsts:
        if first.correlation is not None:
            version_in(first.correlation)
    asked = frozenset(keys_of(firsts[-1].pending or ()))
    begin = len(firsts)
    while begin and not asked.isdisjoint(firsts[begin - 1].pending or ()):
        begin -= 1
    causes: Causes = {} if begin else before
    for first in firsts[begin:]:
        causes = causes_after(causes, first.pending or (), first.version, first.correlation)
    return causes


def state_codec(core: PureCore[S, Any, Any]) -> StateCodec[S] | None:
    return _codec_of(type(core.initial())) if core.fold_version else None


@lru_cache(maxsize=256)
def _codec_of(state_type: type[S]) -> StateCodec[S] | None:
    try:
        return StateCodec(state_type)
    except (TypeError, NameError, AttributeError, RecursionError):  # A user's class that cannot be read back.
        return None


def _is_wanted(item: StoredEvent, version: int | None, position: int | None) -> bool:
    return (version is None or item.version <= version) and (position is None or item.position <= position)


def _ends_there(page: Sequence[StoredEvent], snapshot: Snapshot, batch: int) -> bool:
    """Tell whether the log has the batch that a snapshot ends with, given the events from that batch's first on."""
    length = snapshot.version - batch + 1
    if not page or page[0].version != batch or page[0].chain != snapshot.chain or len(page) < length:
        return False
    behind = page[length] if length < len(page) else None
    return all(item.batch == batch for item in page[:length]) and (behind is None or behind.batch != batch)


async def _slices(body: memoryview) -> AsyncIterator[memoryview]:
    for first in range(0, len(body), BYTES_PER_STEP):
        if first:
            await asyncio.sleep(0)
        yield body[first : first + BYTES_PER_STEP]


async def _digest(snapshot: Snapshot, body: memoryview) -> bytes:
    said = (snapshot.stream, snapshot.version, snapshot.chain, snapshot.fold_version)
    digest = hashlib.sha256(_encode_header(said))
    async for part in _slices(body):
        digest.update(part)
    return digest.digest()


async def _checked(snapshot: Snapshot, shape: bytes) -> _Header | None:
    """Return the header of a snapshot; None = it is damaged, or made by other code."""
    body = memoryview(snapshot.state)[_DIGEST_BYTES:]
    if await _digest(snapshot, body) != snapshot.state[:_DIGEST_BYTES]:
        return None
    try:
        (length,) = _HEADER_LENGTH.unpack_from(body)
        header = _header_decoder.decode(body[_HEADER_LENGTH.size : _HEADER_LENGTH.size + length])
    except (struct.error, msgspec.MsgspecError, UnicodeError):
        return None
    return header if (header.format, header.shape) == (_FORMAT, shape) else None


async def _decoded(codec: StateCodec[S], snapshot: Snapshot, header: _Header, *, sealed: bool) -> S | None:
    body = memoryview(snapshot.state)
    (length,) = _HEADER_LENGTH.unpack_from(body, _DIGEST_BYTES)
    begin = _DIGEST_BYTES + _HEADER_LENGTH.size + length
    pieces: list[Piece] = []
    for place, size in header.pieces:
        pieces.append((place, body[begin : begin + size]))
        begin += size
    state: S | None = None
    since = 0
    try:
        for place, state in enumerate(codec.decoding(pieces, sealed=sealed)):  # noqa: B007 - the last one is the state
            since += header.pieces[place][1] if place < len(pieces) else 0
            if since >= BYTES_PER_STEP:
                since = 0
                await asyncio.sleep(0)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, LookupError, TypeError, ValueError):
        return None
    return state
