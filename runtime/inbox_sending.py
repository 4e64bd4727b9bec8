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
from refold.events.errors import LogInUse, PersistenceError
from refold.events.ids import SessionId
from refold.inbox import Inbox, InboxCommand, InboxEntry, InboxOutcome
from refold.inbox_direct import perform_directly
from refold.log_reading import opened, session_head
from refold.stores import sqlite_file
from refold.stores.sqlite_store import SQLiteStore

POLL_S: Final = 0.1
"""Seconds between two looks for the outcome."""

TRY_TO_OWN_EVERY: Final = 5
"""At every so manieth look it is tried whether the log can be owned, since its owner may have ended."""

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
    """No runtime owned the log."""


async def give(
    log: str | os.PathLike[str],
    session: str,
    command: InboxCommand,
    *,
    key: str | None = None,
    timeout_s: float = TIMEOUT_S,
    clock: Clock | None = None,
) -> Given:
    """Give a command to the runtime that owns a log, or to the log itself where none does.

    Args:
        log: the path of a log's file.
        session: a session that is in the log.
        command: what it is to do.
        key: idempotency key: the same key in a session is the same command, whoever performs it; None = a new one.
        timeout_s: how long to wait for the runtime to perform it; afterwards it stays in the inbox.
        clock: None = the machine's.

    Raises:
        ConfigError: the log has no such session.
        CommandRejected: the key was used for another command, or somebody took the command back.
        PersistenceError: the log or its inbox cannot be used. The command is not in the inbox any more, unless a
            runtime owns the log: then its key tells later what came of it.
    """
    clock = clock if clock is not None else SystemClock()
    async with opened(log) as store:
        await session_head(store, session)
    sqlite_file.look_at(sqlite_file.absolute(log))  # A symbolic link would have its inbox beside itself.
    inbox = Inbox(sqlite_file.absolute(log), clock)
    entry = await inbox.put(session, command, key if key is not None else uuid.uuid4().hex)
    if entry.outcome is not None:
        return Given(session=entry.session, key=entry.key, outcome=entry.outcome)
    return await _performed(log, inbox, entry, timeout_s, clock)


async def _performed(
    log: str | os.PathLike[str], inbox: Inbox, entry: InboxEntry, timeout_s: float, clock: Clock
) -> Given:
    """Wait until the command is performed, by whoever comes to own the log."""
    until_s = clock.monotonic_s() + timeout_s
    owner: LogInUse | None = None
    looks = 0
    while True:
        if looks % TRY_TO_OWN_EVERY == 0:
            try:
                return await _performed_here(log, inbox, entry, clock)
            except LogInUse as error:
                owner = error
            except PersistenceError:
                if entry.new:  # Nobody else owns the log, so nobody performs it meanwhile.
                    await inbox.file.take_back(entry.name)
                raise
        outcome = await inbox.outcome(entry)
        if outcome is not None or not clock.monotonic_s() < until_s:
            return Given(session=entry.session, key=entry.key, outcome=outcome, owner=owner)
        looks += 1
        await clock.sleep(POLL_S)


async def _performed_here(log: str | os.PathLike[str], inbox: Inbox, entry: InboxEntry, clock: Clock) -> Given:
    """Own the log for a moment, and perform what waits for the session.

    Raises:
        LogInUse: a runtime owns it.
    """
    async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
        await perform_directly(store, inbox, entry.session, clock)
        outcome = await inbox.outcome(entry)
        return Given(session=entry.session, key=entry.key, outcome=outcome, directly=True)
