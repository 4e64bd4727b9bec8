"""Giving a command to a log from a process that does not own it, or to the log itself.

Read `give` first. A command goes into the inbox, where it is durable under its key; then the runtime that owns the log
performs it, or this process, which owns the log for a moment where no runtime does. Only an owner performs, so no
command is performed by two.

What this process performs is recorded through the same pure core, except for a batch that would start a tool's body:
ToolCallStarted says that the body may have begun, so the next runtime would find a call that a crash interrupted. Such
a command waits in the inbox for a runtime, and commands after it are decided as if it were in the log already, so that
of two people who decide about one call the second one is told. A cancellation does not wait: it ends what has not
begun. A session that is not in the log yet waits with all of its commands, since only a runtime has an agent for it.
"""

import logging
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from refold.actors.kernel.clock import Clock, SystemClock
from refold.actors.shell.cooperative import in_turns
from refold.events.core.cleaning import clean_text
from refold.events.core.errors import CommandRejected, ConfigError, LogInUse, PersistenceError
from refold.events.core.ids import RunId, SessionId, stream_name
from refold.events.core.pure_core import Plan, Recorded, evolve_all, noted, plan
from refold.events.core.records import EncodedBatch
from refold.events.model.payloads import recordable, without_secrets
from refold.events.secrets.redaction import Redaction
from refold.events.session.commands import SessionCommand
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.events import CancelRequested, SessionEvent, ToolCallStarted
from refold.events.session.state import SessionState, run_of_input
from refold.inspection.log_reading import Batches, session_head, tombstone_of
from refold.keeping.deletion import OwnedLog, delete_from
from refold.lineage.fork import ForkedLog, fork_session
from refold.providers.http.secrets import redaction_of_environment
from refold.remote.kept_log import kept_open
from refold.remote.mirror import joined_mirror
from refold.remote.protocol import (
    Done,
    Inbox,
    InboxEntry,
    InboxOutcome,
    Refused,
    RowGone,
    checked_queue,
    decoded_outcome,
    encoded_command,
    key_in_session,
    named_content,
    required_key,
    session_command,
)
from refold.remote.rows import (
    NEEDS_RUNTIME,
    GivenRow,
    InboxCancel,
    InboxCommand,
    InboxDecide,
    InboxDelete,
    InboxDescribed,
    InboxFork,
    InboxSend,
    SessionRow,
)
from refold.remote.watching import outcome_within
from refold.sessions.access import NamedUser, require_recorded_fit, require_unredacted
from refold.stores.event_store import EventStore
from refold.stores.sqlite import file as sqlite_file
from refold.stores.sqlite.inbox import InboxBusy, RowName
from refold.stores.sqlite.ownership import log_owner
from refold.stores.sqlite.store import SQLiteStore

_log = logging.getLogger("refold.inbox")

TRY_TO_OWN_S: Final = 0.5
"""After so long it is tried again whether the log can be owned, since its owner may have ended."""

TIMEOUT_S: Final = 10.0
"""How long to wait for a runtime to perform a command."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A command that is in the inbox, and what has come of it."""

    session: SessionId
    key: str
    outcome: InboxOutcome | None
    """None = it is not performed yet, and stays in the inbox."""
    owner: LogInUse | None = None
    """Where it is not performed: the runtime that did not do so in time; None = no runtime owns the log."""
    known: bool = False
    """It had been given before, and its outcome stood in the inbox."""
    directly: bool = False
    """It was tried to perform it here, since no runtime owned the log."""

    @property
    def run(self) -> RunId | None:
        """The run of an input that is in the log."""
        return self.outcome.run if isinstance(self.outcome, Done) else None

    @property
    def why(self) -> str:
        """Why an input still waits, in words."""
        if self.owner is None:
            return "no runtime owns the log; the input waits in the inbox for one"
        return f"{self.owner.by} owns the log and has not taken the input yet; it waits in the inbox"


async def give(
    log: str | os.PathLike[str],
    session: str,
    command: GivenRow,
    *,
    key: str | None = None,
    timeout_s: float = TIMEOUT_S,
    clock: Clock | None = None,
    may_begin: bool = False,
    wait_for_runtime: bool = False,
) -> Given:
    """Give a command to the runtime that owns a log, or to the log itself where none does.

    Args:
        log: the path of a log's file.
        session: a session that is in the log, or that an input which waits in the inbox will begin.
        command: what it is to do.
        key: idempotency key: the same key in a session is the same command; None = a new one.
        timeout_s: how long to wait for the runtime to perform it; afterwards it stays in the inbox. For so long, and
            5 s at least, it is waited for other processes that write there; then the command is not put there.
        clock: None = the machine's.
        may_begin: the session need not be there; the next runtime that owns the log, or the one that does, begins it.
        wait_for_runtime: where only a runtime can perform the command and none owns the log, wait for one.

    Raises:
        ConfigError: there is no such session, or the log is a text log.
        CommandRejected: the key was used for another command.
        PersistenceError: the log or its inbox cannot be used. The command is not in the inbox any more, unless a
            runtime owns the log: then its key tells later what came of it.
    """
    sqlite_file.require_no_text_log(log)
    clock = clock if clock is not None else SystemClock()
    path = sqlite_file.absolute(log)
    key = key if key is not None else uuid.uuid4().hex
    until_s = clock.monotonic_s() + timeout_s
    inbox = Inbox(path, clock, until_s=until_s)
    async with joined_mirror(path, clock) as mirror:
        listener = mirror.listener
        if not may_begin or _owner_of(log) is None:  # Else the owner knows whether the log is one.
            await _require_begun(log, inbox, session, command, may_begin)
        sqlite_file.look_at(path)  # A symbolic link would have its inbox beside itself.
        answer = None
        if _owner_of(log) is not None:
            checked_queue(session, command.command if isinstance(command, InboxDescribed) else command)
            given = encoded_command(command)
            answer = await listener.give(session, required_key(key), given, timeout_s=timeout_s)
            if (outcome := decoded_outcome(answer)) is not None:
                return Given(session=SessionId(session), key=key, outcome=outcome)
        while True:
            try:
                entry = await inbox.put(session, command, key)
            except PersistenceError as error:
                error.outcome_unknown |= answer is not None  # The owner may perform what it was given.
                raise
            listener.ring()
            if entry.outcome is not None:
                return Given(session=entry.session, key=entry.key, outcome=entry.outcome, known=True)
            try:
                return await _performed(log, inbox, entry, until_s, clock, wait_for_runtime)
            except RowGone:  # As after a clock that jumped by weeks; its key tells what came of it.
                if clock.monotonic_s() >= until_s:
                    raise
                await _require_begun(log, inbox, session, command, may_begin)


async def _require_begun(
    log: str | os.PathLike[str], inbox: Inbox, session: str, command: GivenRow, may_begin: bool
) -> None:
    """Return where the log can be read, and has the session, or a command may begin it or delete the rest of it."""
    async with kept_open(log) as kept:
        store = kept.store
        deleted_again = isinstance(command, InboxDelete) and await tombstone_of(store, f"{SESSION_KIND}/{session}")
        if may_begin or deleted_again:
            return
        try:
            await has_begun(store, inbox, session)
        except ConfigError as error:
            if isinstance(command, InboxSend):
                raise ConfigError(f"{error}; `refold send --new` begins one") from None
            raise


async def has_begun(store: EventStore, inbox: Inbox, session: str) -> bool:
    """Tell whether a session is in the log; where it is not, an input that begins it waits in the inbox.

    Raises:
        ConfigError: there is no such session.
    """
    with suppress(ConfigError):
        await session_head(store, session)
        return True
    if await inbox.waiting(clean_text(session)):
        return False
    await session_head(store, session)  # Its input may have been taken meanwhile.
    return True


async def _performed(
    log: str | os.PathLike[str],
    inbox: Inbox,
    entry: InboxEntry,
    until_s: float,
    clock: Clock,
    wait_for_runtime: bool,
) -> Given:
    """Wait until the command is performed, by this process or by the next owner of the log."""
    owner: LogInUse | None = None
    directly = False
    while True:
        if not directly:
            try:
                owner = _owner_of(log)
                if owner is None:
                    outcome = await _performed_here(log, inbox, entry, clock)
                    directly = True  # Only a runtime can perform it from now on.
                    if outcome is not None or not wait_for_runtime:
                        return Given(session=entry.session, key=entry.key, outcome=outcome, directly=True)
            except LogInUse as error:
                owner = error
            except InboxBusy as error:  # The command stays there.
                _log.info("a command to session %s is not performed yet: %s", entry.session, error)
            except PersistenceError as error:
                taken_back = False
                if entry.new:  # No runtime owns the log, so none performs it meanwhile.
                    with suppress(PersistenceError):
                        taken_back = await inbox.take_back(entry)
                error.outcome_unknown |= not taken_back  # What stays may be performed yet.
                raise
        left_s = until_s - clock.monotonic_s()
        if left_s > 0:
            outcome = await outcome_within(inbox, entry, left_s if directly else min(left_s, TRY_TO_OWN_S), clock)
        else:
            outcome = None
            with suppress(InboxBusy):
                outcome = await inbox.outcome(entry)
        if outcome is not None or not left_s > 0:
            return Given(session=entry.session, key=entry.key, outcome=outcome, owner=owner, directly=directly)


def _owner_of(log: str | os.PathLike[str]) -> LogInUse | None:
    """Return who owns the log, where that is another process: one of this process may be gone with its loop."""
    owner = log_owner(sqlite_file.absolute(log))
    if owner is None or owner.pid == os.getpid():
        return None
    return LogInUse(str(log), pid=owner.pid, host=owner.host)


async def _performed_here(
    log: str | os.PathLike[str], inbox: Inbox, entry: InboxEntry, clock: Clock
) -> InboxOutcome | None:
    """Own the log for a moment, and perform what waits for the session, in order; return what came of a row.

    What needs a runtime stays in the inbox.

    Raises:
        LogInUse: a runtime owns the log.
        PersistenceError: the log or the inbox cannot be read or written.
    """
    outcomes: dict[RowName, InboxOutcome] = {}
    async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
        try:
            while await _Round(store, inbox, entry.session, clock, outcomes).perform():
                pass
        except PersistenceError as error:
            # What was refused and cannot be noted is decided anew by who performs it, perhaps when it is allowed.
            if isinstance(outcomes.get(entry.name), Refused | None):
                raise
            _log.warning("what was done in session %s is found under its key the next time: %s", entry.session, error)
        return outcomes.get(entry.name) or await inbox.outcome(entry)


class _Round:
    """One pass over the rows of a session."""

    def __init__(
        self,
        store: SQLiteStore,
        inbox: Inbox,
        session: SessionId,
        clock: Clock,
        outcomes: dict[RowName, InboxOutcome],
    ) -> None:
        self._store = store
        self._inbox = inbox
        self._session = session
        self._clock = clock
        self._outcomes = outcomes
        """What came of rows, whether it could be noted in the inbox or not."""
        self._redaction = redaction_of_environment()
        self._ahead = False
        """The state is ahead of the log by commands that wait for a runtime."""

    async def perform(self) -> bool:
        """Perform what can be; return whether another pass may do more, after a cancellation overtook others."""
        waiting = await self._inbox.waiting(self._session)
        for entry in waiting:
            if isinstance(entry.command, InboxDelete):  # It takes the others along, wherever it stands.
                await self._finish(entry, await self._of_whole_session(entry, entry.command))
                return True
        state = await session_state(self._store, self._session)
        if state.version == 0:
            return False
        for entry in waiting:
            if self._ahead and isinstance(entry.command, InboxCancel):
                state = await session_state(self._store, self._session)
                self._ahead = False
                await self._perform_one(state, entry)
                return True
            state = await self._perform_one(state, entry)
        return False

    async def _finish(self, entry: InboxEntry, outcome: InboxOutcome) -> None:
        self._outcomes[entry.name] = outcome
        await self._inbox.finish(entry, outcome)

    async def _of_whole_session(self, entry: InboxEntry, command: InboxDelete | InboxFork) -> InboxOutcome:
        store, clock = self._store, self._clock
        try:
            if isinstance(command, InboxDelete):
                owned = OwnedLog(store=store, inbox=self._inbox.file, clock=clock)
                cancel, forks = command.cancel, command.forks
                return await delete_from(owned, self._session, cancel=cancel, forks=forks)
            await NamedUser(self._session, entry.describes).require(store)
            log = ForkedLog(store=store, append=store.append, redaction=self._redaction, now_us=clock.now_us())
            made = await fork_session(log, self._session, command.wanted)
        except (CommandRejected, ConfigError) as error:
            return Refused(message=str(error))
        return Done(version=made.version, new=bool(made.stored))

    async def _perform_one(self, state: SessionState, entry: InboxEntry) -> SessionState:
        """Perform a row on `state`, which is used up, and return the state after it."""
        if isinstance(entry.command, Refused | InboxDelete) or entry.command is None:
            refusal = (
                entry.command if isinstance(entry.command, Refused) else Refused(message="the row holds no command")
            )
            await self._finish(entry, refusal)
            return state
        if isinstance(entry.command, NEEDS_RUNTIME):
            return state
        version = state.version
        outcome: InboxOutcome
        if isinstance(entry.command, InboxFork):
            await self._finish(entry, await self._of_whole_session(entry, entry.command))
            return state
        try:
            if state.configuration is None and isinstance(entry.command, InboxSend):
                raise CommandRejected(f"no agent has ever run in session {self._session!r}; begin with `refold run`")
            named = await named_content(self._store, self._session, entry.command)
            command, payloads = session_command(entry.command, key_in_session(state.keys, entry.key), named)
            changed, kept = await in_turns(without_secrets(self._redaction, [command], payloads))
            command = changed[0]
            now_us, described, first = self._clock.now_us(), entry.describes, list[EncodedBatch]()
            if described is not None:
                require_unredacted(described, self._redaction)
                said, batch = decided(state, self._session, described, now_us, self._redaction)
                first = [] if isinstance(said, Recorded) else [batch]
            await require_recorded_fit(self._store, state, command)
            planned, batch = decided(state, self._session, command, now_us, self._redaction)
            if isinstance(planned, Recorded) and first and self._ahead:
                return state
            if isinstance(planned, Recorded):
                if first:
                    await self._store.append(first)
                outcome = await done(self._store, self._session, entry.command, planned.version, new=False)
            elif self._ahead or _needs_runtime(entry.command, planned.events):
                self._ahead = True
                return planned.state
            else:
                await self._store.append([*first, batch], kept)
                state = planned.state
                recorded = version + 1 + sum(len(each.events) for each in first)
                outcome = await done(self._store, self._session, entry.command, recorded, new=True)
        except (CommandRejected, ConfigError) as error:
            outcome = Refused(message=str(error))
            if state.version != version:  # It was decided, and cannot be encoded.
                state = await session_state(self._store, self._session)
        await self._finish(entry, outcome)
        return state


def _needs_runtime(command: InboxCommand, events: Sequence[SessionEvent]) -> bool:
    """Tell whether a runtime must perform a command: it begins a tool's body, or a tool must read its arguments."""
    unread = isinstance(command, InboxDecide) and command.input is not None
    return unread or any(isinstance(event, ToolCallStarted) for event in events)


def decided(
    state: SessionState, session: SessionId, command: SessionCommand, now_us: int, redaction: Redaction
) -> tuple[Plan[SessionState, SessionEvent] | Recorded, EncodedBatch]:
    """Return what a session's core decides, where no runtime owns the log, and its batch; the state is used up."""
    version, encoded = state.version, list[bytes]()

    def recorded(event: SessionEvent) -> SessionEvent:
        event, data = recordable(redaction, SESSION_CODEC, event)
        encoded.append(data)
        return event

    at = max(now_us, state.at)
    before = tuple(effect.key for effect in SESSION_CORE.pending(state))
    planned = plan(SESSION_CORE, state, redaction.command(command), at, recorded)
    batch = EncodedBatch(
        stream=stream_name(SESSION_KIND, session),
        expected_version=version,
        at=at,
        events=tuple(encoded),
        pending=() if isinstance(planned, Recorded) else noted(SESSION_CORE.pending(planned.state), before),
    )
    return planned, batch


async def session_state(store: EventStore, session: SessionId) -> SessionState:
    state = SESSION_CORE.initial()
    async for batch in Batches(store, f"{SESSION_KIND}/{session}"):
        state = evolve_all(SESSION_CORE, SESSION_CODEC.decode_all(batch), state)
    return state


async def done(
    store: EventStore, session: SessionId, command: SessionRow, version: int, new: bool, run: RunId | None = None
) -> Done:
    """Return the outcome of a command that became the event at `version`, or nothing at all where that is 0."""
    if run is None and version and isinstance(command, InboxSend):
        run = run_of_input(version)
    elif version and isinstance(command, InboxCancel):
        stored = await store.read_stream(stream_name(SESSION_KIND, session), after_version=version - 1, limit=1)
        events = SESSION_CODEC.decode_all(stored)
        run = next((event.run for event in events if isinstance(event, CancelRequested)), None)
    return Done(version=version, new=new, run=run)
