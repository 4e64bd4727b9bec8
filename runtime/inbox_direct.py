"""Commands to a log that no runtime owns: they are recorded by whoever gives them, through the same pure core.

A batch that would start a tool's body is not recorded here. ToolCallStarted says that the body may have begun, and the
next runtime would find a call that a crash interrupted; so such a command waits in the inbox for a runtime that has
the tools. It has been decided all the same: commands after it are decided as if it were in the log already, so that of
two people who decide about one call the second one is told. A cancellation does not wait: it ends what has not begun.
A session that is not in the log yet waits with all of its commands: only a runtime has an agent to begin it with.
"""

from refold.actors.clock import Clock
from refold.events.core import Plan, Recorded, evolve_all, plan
from refold.events.errors import CommandRejected
from refold.events.ids import PayloadHash, SessionId, StreamName, stream_name
from refold.events.records import EncodedBatch
from refold.events.session_core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session_events import SessionEvent, ToolCallStarted
from refold.events.session_state import SessionState
from refold.inbox import Cancel, Inbox, InboxEntry, InboxOutcome, Refused, Send, done, key_in_session, session_command
from refold.stores.event_store import EventStore


async def perform_directly(store: EventStore, inbox: Inbox, session: SessionId, clock: Clock) -> None:
    """Perform a session's rows in order, as far as that can be done without a runtime; those that cannot, stay.

    Args:
        store: the log, owned by the caller.
        inbox: of that log.
        session: whose rows.
        clock: what stamps events.

    Raises:
        PersistenceError: the log or the inbox cannot be read or written; a row that was recorded and not noted in the
            inbox is found under its key the next time.
    """
    while await _Round(store, inbox, session, clock).perform():
        pass


class _Round:
    """One pass over the rows of a session."""

    def __init__(self, store: EventStore, inbox: Inbox, session: SessionId, clock: Clock) -> None:
        self._store = store
        self._inbox = inbox
        self._session = session
        self._stream: StreamName = stream_name(SESSION_KIND, session)
        self._clock = clock
        self._ahead = False
        """The state is ahead of the log by commands that wait for a runtime."""

    async def perform(self) -> bool:
        """Perform what can be; return whether another pass may do more, after a cancellation overtook others."""
        state = await self._durable_state()
        if state.version == 0:
            return False
        for entry in await self._inbox.waiting(self._session):
            if self._ahead and isinstance(entry.command, Cancel):
                state = await self._durable_state()
                self._ahead = False
                await self._perform_one(state, entry)
                return True
            state = await self._perform_one(state, entry)
        return False

    async def _perform_one(self, state: SessionState, entry: InboxEntry) -> SessionState:
        """Perform a row on `state`, which is used up, and return the state after it."""
        if isinstance(entry.command, Refused) or entry.command is None:
            await self._inbox.finish(entry, entry.command or Refused(message="the row holds no command"))
            return state
        version = state.version
        outcome: InboxOutcome
        try:
            if state.configuration is None and isinstance(entry.command, Send):
                raise CommandRejected(f"no agent has ever run in session {self._session!r}; begin with `refold run`")
            command, payloads = session_command(entry.command, key_in_session(state.keys, entry.key))
            planned = plan(SESSION_CORE, state, command, max(self._clock.now_us(), state.at))
            if isinstance(planned, Recorded):
                outcome = await done(self._store, self._session, entry.command, planned.version, new=False)
            elif self._ahead or any(isinstance(event, ToolCallStarted) for event in planned.events):
                self._ahead = True
                return planned.state
            else:
                await self._append(planned, version, payloads)
                state = planned.state
                outcome = await done(self._store, self._session, entry.command, version + 1, new=True)
        except CommandRejected as error:
            outcome = Refused(message=str(error))
            if state.version != version:  # It was decided, and cannot be encoded.
                state = await self._durable_state()
        await self._inbox.finish(entry, outcome)
        return state

    async def _append(
        self, planned: Plan[SessionState, SessionEvent], version: int, payloads: dict[PayloadHash, bytes]
    ) -> None:
        batch = EncodedBatch(
            stream=self._stream,
            expected_version=version,
            at=planned.events[0].at,
            events=tuple(SESSION_CODEC.encode(event) for event in planned.events),
            pending=tuple(effect.key for effect in SESSION_CORE.pending(planned.state)),
        )
        await self._store.append([batch], payloads)

    async def _durable_state(self) -> SessionState:
        stored = await self._store.read_stream(self._stream)
        return evolve_all(SESSION_CORE, SESSION_CODEC.decode_all(stored))
