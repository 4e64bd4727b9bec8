"""A checkpoint after every turn, written beside the runs: `AgentRuntime(..., step_snapshots=FileBackend("steps"))`.

Read `refold.sessions.checkpoint` for the document. The rules: no run waits for a snapshot, and none fails with one.
What a snapshot holds is folded from the log behind the events as they come, so that it is what the session was at that
version, however late it is written. What cannot be written is logged and counted.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.supervision import Background, Begin
from refold.events.core.cleaning import text_of_error
from refold.events.core.content import Message
from refold.events.core.ids import SessionId, StreamName, stream_name
from refold.events.core.pure_core import evolve_all
from refold.events.model.payloads import all_restored, stored_hashes
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.events import RunCancelled, RunCompleted, RunFailed, ToolCallCompleted, ToolCallFailed
from refold.events.session.state import history
from refold.publishing.notifications import RecordedSessionEvent
from refold.sessions.checkpoint import checkpoint_bytes, encode_message, facts_of
from refold.stores.event_store import EventStore
from refold.stores.values.backend import PersistenceBackend, save_in

log = logging.getLogger("refold.snapshots")

WAITING_MAX = 10_000
"""So many ends of turns may wait to be written; beyond them, the newest are left out and counted."""

SESSIONS_KEPT_MAX = 100
"""So many sessions are remembered, so that their next turns cost little."""

EVENTS_PAGE = 1000

_MAY_END_A_TURN = (ToolCallCompleted, ToolCallFailed, RunCompleted, RunFailed, RunCancelled)


def step_key(session: SessionId, version: int) -> str:
    """Return the key of a session's snapshot at a version, such as `session/alice@12`."""
    return f"{stream_name(SESSION_KIND, session)}@{version}"


async def step_versions(backend: PersistenceBackend, session: SessionId | str) -> list[int]:
    """Return the versions at which a backend has snapshots of a session, in order.

    Raises:
        PersistenceError: the backend cannot list its keys.
    """
    prefix = f"{stream_name(SESSION_KIND, SessionId(session))}@"
    rests = [key.removeprefix(prefix) for key in await backend.list_keys(prefix)]
    return sorted(int(rest) for rest in rests if rest.isascii() and rest.isdigit())


class StepSnapshots:
    """Writes them for one runtime, which begins and closes it."""

    def __init__(self, backend: PersistenceBackend) -> None:
        self.backend = backend
        self.written = 0
        """Snapshots that the backend has taken."""
        self.failed = 0
        """Snapshots that could not be made or written; the log says why."""
        self.missed = 0
        """Snapshots that were left out, since too many were waiting."""
        self._sessions: OrderedDict[StreamName, FollowedSession] = OrderedDict()
        self._forgotten: set[StreamName] = set()
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Queue[RecordedSessionEvent | None] = asyncio.Queue()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._under_way: RecordedSessionEvent | None = None
        self._writing: Background | None = None
        self._over = asyncio.Event()

    def begin(
        self,
        store: EventStore,
        subscribe: Callable[[Callable[[RecordedSessionEvent], object]], Callable[[], None]],
        background: Begin,
    ) -> None:
        self._over = asyncio.Event()
        self._unsubscribe = subscribe(self._see)
        self._writing = background("write step snapshots", lambda: self._work(store), self._over.set)

    async def close(self, clock: Clock, grace_s: float) -> None:
        """Write what waits, for at most `grace_s` seconds; what is left then is counted as missed.

        A backend that does not end when it is cancelled then gets as long again.
        """
        self._unsubscribe()
        writing, self._writing = self._writing, None
        if writing is None:
            return
        self._waiting.put_nowait(None)
        timers = [clock.call_later(grace_s, writing.end), clock.call_later(2 * grace_s, self._over.set)]
        try:
            await self._over.wait()
        finally:
            writing.end()
            for timer in timers:
                timer.cancel()
        left = sum(recorded is not None for recorded in self._left()) + (self._under_way is not None)
        self.missed += left
        if left:
            log.warning("%d snapshots of turns are not written: %s takes too long", left, self.backend.name)

    async def forget(self, sessions: Sequence[SessionId]) -> int:
        """Delete the checkpoints of sessions, which were deleted, and return how many there were."""
        deleted = 0
        self._forgotten.update(stream_name(SESSION_KIND, session) for session in sessions)
        async with self._turn:  # What is being written is there then, and nothing more comes.
            for session in sessions:
                self._sessions.pop(stream_name(SESSION_KIND, session), None)
                for version in await step_versions(self.backend, session):
                    await self.backend.delete(step_key(session, version))
                    deleted += 1
        return deleted

    def _left(self) -> list[RecordedSessionEvent | None]:
        return [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]

    def _see(self, recorded: RecordedSessionEvent) -> None:
        if not isinstance(recorded.event, _MAY_END_A_TURN):
            return
        if self._waiting.qsize() >= WAITING_MAX:
            self.missed += 1
            return
        self._waiting.put_nowait(recorded)

    async def _work(self, store: EventStore) -> None:
        while (recorded := self._under_way or await self._waiting.get()) is not None:
            self._under_way = recorded  # It is written again, where this is cancelled; `close` counts what is left.
            try:
                async with self._turn:
                    await self._write(store, recorded)
            except Exception as error:  # The border to a backend of the user's.
                self.failed += 1
                log.warning(
                    "the snapshot of %s at version %d is not written to %s: %s",
                    recorded.stream,
                    recorded.version,
                    self.backend.name,
                    text_of_error(error),
                    exc_info=error,
                )
            self._under_way = None

    async def _write(self, store: EventStore, recorded: RecordedSessionEvent) -> None:
        if recorded.stream in self._forgotten:
            return
        # In doubt, nothing is kept of a session that was half followed.
        followed = self._sessions.pop(recorded.stream, None) or FollowedSession(recorded.stream)
        if followed.state.version >= recorded.version:  # It stands in the batch of one that was seen before.
            document = None
        else:
            await followed.fold(store, recorded)
            document = await followed.document(store) if followed.state.turn is None else None
        self._sessions[recorded.stream] = followed
        if len(self._sessions) > SESSIONS_KEPT_MAX:
            self._sessions.popitem(last=False)
        if document is not None:
            await save_in(self.backend, step_key(followed.session, followed.state.version), document)
            self.written += 1


class FollowedSession:
    """What is known of one session, so that the next turn costs its own events and messages, and no others."""

    def __init__(self, stream: StreamName) -> None:
        self.session = SessionId(stream.removeprefix(f"{SESSION_KIND}/"))
        self.state = SESSION_CORE.initial()
        self._stream = stream
        self._chain = b""
        self._encoded: list[bytes] = []
        """The messages of the history, as far as they were written before."""
        self._last: Message | None = None
        """The last of them."""

    async def fold(self, store: EventStore, recorded: RecordedSessionEvent) -> None:
        over = False
        while not over:
            page = await store.read_stream(self._stream, after_version=self.state.version, limit=EVENTS_PAGE)
            wanted = [event for event in page if event.version <= recorded.version or event.batch == recorded.batch]
            self.state = evolve_all(SESSION_CORE, SESSION_CODEC.decode_all(wanted), self.state)
            self._chain = next((event.chain for event in reversed(wanted) if event.chain is not None), self._chain)
            over = len(wanted) < len(page) or len(page) < EVENTS_PAGE

    async def document(self, store: EventStore) -> bytes:
        messages = history(self.state)
        known = len(self._encoded)
        if known > len(messages) or (known and messages[known - 1] is not self._last):  # The history began anew.
            self._encoded = []
        new = messages[len(self._encoded) :]
        hashes = stored_hashes(new)
        payloads = await store.read_payloads(hashes) if hashes else {}
        self._encoded += [encode_message(message) for message in all_restored(new, payloads)]
        self._last = messages[-1] if messages else None
        return checkpoint_bytes(facts_of(self.state, self.session, self._chain.hex()), self._encoded)
