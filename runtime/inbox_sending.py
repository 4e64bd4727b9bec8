"""Giving a command to a log from outside of the runtime that owns it, if any does.

The command goes into the inbox first, so that it is durable under its key; then whoever can perform it does: the
runtime that owns the log, or this process, which owns the log for a moment where no runtime does. Both look into the
same file, and only the owner performs, so there is no moment in which two do.
"""

import os
import uuid
from typing import Final

import msgspec

from refold.actors.clock import Clock, SystemClock
from refold.events.cleaning import clean_text
from refold.events.errors import ConfigError, LogInUse, PersistenceError
from refold.events.ids import SessionId
from refold.inbox import Inbox, InboxCommand, InboxEntry, InboxOutcome
from refold.inbox_direct import perform_directly
from refold.inbox_watching import outcome_within
from refold.log_reading import opened, session_head
from refold.stores import sqlite_file
from refold.stores.event_store import EventStore
from refold.stores.log_ownership import log_owner
from refold.stores.opening import open_log

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
    directly: bool = False
    """No runtime owned the log when it was tried to perform it without one."""


async def give(
    log: str | os.PathLike[str],
    session: str,
    command: InboxCommand,
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
        key: idempotency key: the same key in a session is the same command, whoever performs it; None = a new one.
        timeout_s: how long to wait for the runtime to perform it; afterwards it stays in the inbox.
        clock: None = the machine's.
        may_begin: the session need not be there; the next runtime that owns the log, or the one that does, begins it.
        wait_for_runtime: where nobody but a runtime can perform the command and none owns the log, wait for one.

    Raises:
        ConfigError: there is no such session.
        CommandRejected: the key was used for another command, or somebody took the command back.
        PersistenceError: the log or its inbox cannot be used. The command is not in the inbox any more, unless a
            runtime owns the log: then its key tells later what came of it.
    """
    clock = clock if clock is not None else SystemClock()
    inbox = Inbox(sqlite_file.absolute(log), clock)
    async with opened(log) as store:
        if not may_begin:
            await _require_session(store, inbox, session)
    sqlite_file.look_at(sqlite_file.absolute(log))  # A symbolic link would have its inbox beside itself.
    entry = await inbox.put(session, command, key if key is not None else uuid.uuid4().hex)
    if entry.outcome is not None:
        return Given(session=entry.session, key=entry.key, outcome=entry.outcome)
    return await _performed(log, inbox, entry, timeout_s, clock, wait_for_runtime)


async def _require_session(store: EventStore, inbox: Inbox, session: str) -> None:
    """Raise ConfigError unless there is a session, or will be."""
    try:
        await session_head(store, session)
    except ConfigError:
        if not await inbox.file.waiting(clean_text(session)):
            raise


async def _performed(
    log: str | os.PathLike[str],
    inbox: Inbox,
    entry: InboxEntry,
    timeout_s: float,
    clock: Clock,
    wait_for_runtime: bool,
) -> Given:
    """Wait until the command is performed, by whoever comes to own the log."""
    until_s = clock.monotonic_s() + timeout_s
    owner: LogInUse | None = None
    directly = False
    while True:
        if not directly:
            try:
                owner = _owner_of(log)
                if owner is None:
                    given = await _performed_here(log, inbox, entry, clock)
                    if given.outcome is not None or not wait_for_runtime:
                        return given
                    directly = True  # Whoever performs it from now on is a runtime.
            except LogInUse as error:
                owner = error
            except PersistenceError:
                if entry.new:  # Nobody else owns the log, so nobody performs it meanwhile.
                    await inbox.file.take_back(entry.name)
                raise
        left_s = until_s - clock.monotonic_s()
        if left_s > 0:
            outcome = await outcome_within(inbox, entry, left_s if directly else min(left_s, TRY_TO_OWN_S), clock)
        else:
            outcome = await inbox.outcome(entry)
        if outcome is not None or not left_s > 0:
            return Given(session=entry.session, key=entry.key, outcome=outcome, owner=owner, directly=directly)


def _owner_of(log: str | os.PathLike[str]) -> LogInUse | None:
    """Return who owns the log, where that is another process: one of this process may be gone with its loop."""
    owner = log_owner(sqlite_file.absolute(log))
    if owner is None or owner.pid == os.getpid():
        return None
    return LogInUse(str(log), pid=owner.pid, host=owner.host)


async def _performed_here(log: str | os.PathLike[str], inbox: Inbox, entry: InboxEntry, clock: Clock) -> Given:
    """Own the log for a moment, and perform what waits for the session.

    Raises:
        LogInUse: a runtime owns it.
    """
    async with await open_log(log, wait_for_log_s=0) as store:
        await perform_directly(store, inbox, entry.session, clock)
        outcome = await inbox.outcome(entry)
        return Given(session=entry.session, key=entry.key, outcome=outcome, directly=True)
