"""Snapshots: the states of streams that have grown long are kept, so that opening them folds only the rest.

An actor says how much its stream has grown (`Snapshots.consider`), and waits for nothing. One task at a time folds the
stream from its last snapshot, apart from that actor, and puts the new one in its place. So a snapshot is of what the
log says and never of what is only in memory. It may fail to be written, and be lost; only the time that opening takes
shows it. See `refold.stores.folding` for when one is used.
"""

import logging
from typing import Any, Final

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.supervision import Background, Begin
from refold.events.core.codec import EventCodec
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import PureCore
from refold.stores.event_store import EventStore
from refold.stores.folding import Fold

log = logging.getLogger("refold.actors")

SNAPSHOT_EVERY: Final = 1_000
"""Events after which a stream's state is kept again."""

GROWTH: Final = 8
"""A snapshot of many bytes is written again once its stream has grown by this part of them. So what is written of
snapshots, all in all, is at most so many times what is appended."""

RESTING: Final = 4
"""A stream whose actor goes is kept after this part of the events after which it is kept while the actor lives; a
shorter stream has no snapshot."""


class Growth:
    """How much has been appended to a stream since its last snapshot."""

    __slots__ = ("bytes", "events", "snapshot_bytes")

    def __init__(self, events: int = 0, size: int = 0, snapshot_bytes: int = 0) -> None:
        self.events = events
        self.bytes = size
        self.snapshot_bytes = snapshot_bytes
        """Length of that snapshot; 0 = there is none."""

    def add(self, events: int, size: int) -> None:
        self.events += events
        self.bytes += size


class Snapshots:
    """Keeps the states of a log's streams.

    Args:
        store: the log.
        every: events after which a stream's state is kept again, at least 1.
    """

    def __init__(self, store: EventStore, every: int = SNAPSHOT_EVERY, begin: Begin = Background) -> None:
        self._store = store
        self._background = begin
        self._every = every
        self.used_from = max(1, every // RESTING)
        """Events of a stream for which a snapshot may be there."""
        self._waiting: dict[StreamName, tuple[PureCore[Any, Any, Any], EventCodec[Any], Growth]] = {}
        self._writing: Background | None = None
        self._closed = False
        self.written = 0
        self.failed = 0
        """Could not be made or written."""
        self.ignored = 0
        """Were there and did not fit the log or the code, when an actor was made."""

    def consider(
        self,
        stream: StreamName,
        core: PureCore[Any, Any, Any],
        codec: EventCodec[Any],
        growth: Growth,
        *,
        resting: bool,
    ) -> None:
        """Have a stream's state kept, if the stream has grown enough since the last snapshot; return at once.

        All that counts in `growth` is in the log. A state is resting where it is about to leave memory, and no more
        events will come soon.
        """
        every = self._every
        due = growth.events >= every and growth.bytes * GROWTH >= growth.snapshot_bytes
        if resting and growth.events >= self.used_from:
            due = growth.events >= every or growth.bytes * GROWTH >= growth.snapshot_bytes
        if not due or not core.fold_version or self._closed:
            return
        growth.events = growth.bytes = 0
        self._waiting[stream] = (core, codec, growth)
        if self._writing is None:
            self._writing = self._background("snapshots", self._write, self._written_all)

    async def close(self, clock: Clock, grace_s: float) -> None:
        """Write what waits, for at most `grace_s` seconds, and take no more."""
        self._closed = True
        writing = self._writing
        if writing is None:
            return
        timer = clock.call_later(grace_s, writing.end) if grace_s > 0 else None
        try:
            if timer is None:
                writing.end()
            await writing.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _written_all(self) -> None:
        self._writing = None

    async def _write(self) -> None:
        while self._waiting:
            stream = next(iter(self._waiting))
            core, codec, growth = self._waiting.pop(stream)
            try:
                await self._keep(stream, core, codec, growth)
            except Exception as error:  # noqa: BLE001 - The border to a store, or to a core, of the user's.
                self.failed += 1
                log.info("the state of %s is not kept: %s", stream, error)

    async def _keep(
        self, stream: StreamName, core: PureCore[Any, Any, Any], codec: EventCodec[Any], growth: Growth
    ) -> None:
        fold = Fold(stream, core, codec)
        await fold.read(self._store, snapshots_from=self.used_from)
        snapshot = await fold.snapshot()
        if snapshot is not None:
            await self._store.save_snapshot(snapshot)
            growth.snapshot_bytes = len(snapshot.state)
            self.written += 1
