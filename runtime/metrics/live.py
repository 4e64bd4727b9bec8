"""The metrics of a runtime: those of its whole log at this moment, also of what was recorded before it opened.

Read `refold.events.views.metrics` for what is counted. The rules: nothing is counted until a snapshot is taken, so
opening a runtime on a large log costs nothing; then the log is read once, page by page, and what the journal writes is
counted as it comes, without a wait; and the figures are at every moment those that the log gives up to the same
position. So positions are followed: where one is missing, the log is read from there.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.reply import ActorFuture
from refold.actors.kernel.supervision import Background
from refold.context import RuntimeContext
from refold.events.core.errors import PersistenceError, WrongExpectedVersion
from refold.events.core.ids import StreamName
from refold.events.core.records import Appended, EncodedBatch, stored_events
from refold.events.views.metrics import MetricsState, count_all, snapshot
from refold.events.views.metrics_snapshot import LiveCounts, MetricsSnapshot

log = logging.getLogger("refold.metrics")

EVENTS_PER_PAGE: Final = 500
"""So many events are counted in one go, before others get their turn on the loop."""

BATCHES_WAITING_MAX: Final = 64
"""After so many batches what was written is counted, also if no one asks."""

STREAMS_NAMED_MAX: Final = 1_000
"""Of so many streams failed appends are kept by name."""


class RuntimeMetrics:
    """Figures about all that is in a runtime's log; get it from `AgentRuntime.metrics`.

    Args:
        context: returns what is open, or raises ConfigError before anything is.
    """

    def __init__(self, context: Callable[[], RuntimeContext]) -> None:
        self._context = context
        self._state = MetricsState()
        self.counts = False
        """Whether `_state` and `_waiting` are all that the log holds."""
        self._waiting: list[tuple[EncodedBatch, Appended]] = []
        self._reading: Background | None = None
        self._asked: list[ActorFuture[MetricsSnapshot]] = []
        self._ended = False
        self._failed_appends = 0
        self._failed_streams: dict[StreamName, int] = {}

    def snapshot(self) -> ActorFuture[MetricsSnapshot]:
        """Return the figures of this moment: `await` it on the loop, `.get()` it in any other thread.

        The first snapshot reads the whole log, in pages between which everything else goes on; later ones are there at
        once. After the runtime's end they are those of its end, if one was asked for before.

        Raises:
            ConfigError: the runtime has never been open.
            ActorStopped: as the outcome: the runtime is closed, and had not counted its log.
            PersistenceError: as the outcome: the log cannot be read.
        """
        loop = self._context().system.loop
        future: ActorFuture[MetricsSnapshot] = ActorFuture(loop)
        if asyncio._get_running_loop() is loop:
            self._answer(future)
            return future
        try:
            loop.call_soon_threadsafe(self._answer, future)
        except RuntimeError:  # The loop is closed, and nothing changes any more.
            self._ended = True
            self._answer(future)
        return future

    def is_on_loop(self) -> bool:
        """Return whether this is the thread of the runtime's own loop, where nothing can be waited for."""
        return asyncio._get_running_loop() is self._context().system.loop

    def failed_appends_of(self, stream: StreamName) -> int:
        """Return how many appends of a stream the log has refused since the runtime opened."""
        return self._failed_streams.get(stream, 0)

    # For the journal

    def written(self, batches: Sequence[EncodedBatch], appended: Sequence[Appended]) -> None:
        """Take what has just become durable."""
        before = len(self._waiting)
        self._waiting.extend(zip(batches, appended, strict=True))
        if before < BATCHES_WAITING_MAX <= len(self._waiting):
            self._context().system.loop.call_soon(self._count_waiting)

    def not_written(self, batches: Sequence[EncodedBatch], failure: PersistenceError) -> None:
        """Take note of an append that failed, and that may be in the log nevertheless."""
        if isinstance(failure, WrongExpectedVersion):
            return
        self._failed_appends += 1
        for stream in dict.fromkeys(batch.stream for batch in batches):
            if stream in self._failed_streams or len(self._failed_streams) < STREAMS_NAMED_MAX:
                self._failed_streams[stream] = self._failed_streams.get(stream, 0) + 1
        if failure.outcome_unknown:
            self.counts = False

    # For the runtime

    def log_lost(self) -> None:
        """Take note that another process writes the log: what it holds is read from it."""
        self.counts = False

    def end(self) -> None:
        """Count what was written last, and read nothing more: the log is about to be closed."""
        self._count_waiting()
        self._ended = True
        if self._reading is not None:
            self._reading.end()

    # Counting

    def _answer(self, future: ActorFuture[MetricsSnapshot]) -> None:
        self._count_waiting()
        if self.counts:
            future.settle(self._now())
        elif self._ended:
            future.settle(error=self._over())
        else:
            self._asked.append(future)
            if self._reading is None:
                self._reading = self._context().system.background("count the log", self._read, self._read_all)

    def _count_waiting(self) -> None:
        """Count what the journal wrote, as far as nothing is missing in between."""
        if not self.counts:
            self._waiting.clear()
            return
        waiting, self._waiting = self._waiting, []
        self.counts = False  # What is left out below is read from the log.
        for batch, place in waiting:
            if place.position > self._state.position + 1:
                return
            if place.position == self._state.position + 1:  # Else it was read from the log.
                count_all(self._state, stored_events(batch, place.position))
        self.counts = True

    async def _read(self) -> None:
        """Read what the log holds beyond what was counted, and answer those who asked."""
        try:
            await self._catch_up()
        except PersistenceError as error:
            log.warning("the metrics of %s cannot be counted: %s", self._context().store.name, error)
            self._settle(error)
        else:
            self._settle()

    def _read_all(self) -> None:
        self._reading = None
        self._settle(self._over())  # Those who still wait: the runtime has ended.

    async def _catch_up(self) -> None:
        store = self._context().store
        while True:
            page = await store.read_all(after_position=self._state.position, limit=EVENTS_PER_PAGE)
            count_all(self._state, page)
            if not page or (len(page) < EVENTS_PER_PAGE and self._state.position >= self._context().journal.position):
                # Without a wait since the comparison: from here on the journal tells the rest, where it writes the log.
                self.counts = self._context().journal.observer is self
                return

    def _settle(self, error: BaseException | None = None) -> None:
        asked, self._asked = self._asked, []
        for future in asked:
            future.settle(self._now() if error is None else None, error)

    def _over(self) -> ActorStopped:
        return ActorStopped("runtime/log", "it is closed, and had not counted its log; `refold metrics` does")

    def _now(self) -> MetricsSnapshot:
        context = self._context()
        guard = context.settings.backpressure
        live = LiveCounts(
            depth=guard.depth if guard is not None else 0,
            sheds=guard.shed if guard is not None else 0,
            commits=context.journal.commits,
            failed_appends=self._failed_appends,
            shed_commands=context.system.sheds,
            observer_failures=context.event_bus.failures,
            background_restarts=context.system.supervisor.background_restarts,
        )
        return snapshot(self._state, live)


class SyncMetrics:
    """The same for threads; get it from `SyncRuntime.metrics`."""

    def __init__(self, metrics: RuntimeMetrics) -> None:
        self.asynchronous = metrics

    def snapshot(self) -> MetricsSnapshot:
        """Return the figures of this moment. This blocks the calling thread; see `RuntimeMetrics.snapshot`.

        Raises:
            WouldDeadlock: this is the loop's own thread.
            ActorStopped: the runtime is closed, and had not counted its log.
            PersistenceError: the log cannot be read.
        """
        return self.asynchronous.snapshot().get()
