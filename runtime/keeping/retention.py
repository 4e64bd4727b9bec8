"""Keeping sessions for a time: those whose last event is older are archived, if that is asked for, and deleted.

    await runtime.retain(timedelta(days=90), archive="archives")        # Beside runs of other sessions.
    await retain("events.db", timedelta(days=90))                       # Where no runtime owns the log.

Read `refold.keeping.deletion` first. A session is judged together with those that its calls began: all of them must
have ended and be old enough, with no command waiting for them in the inbox, and they go together. The rules: nothing is
deleted before its archive is on the disk, was read again from there, and holds every stream up to the very end that is
deleted; and what a process that died has left to do is done by the next call.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from refold.actors.kernel.clock import Clock
from refold.context import RuntimeContext
from refold.events.core.errors import ConfigError, LogFormatError, PersistenceError
from refold.events.core.ids import SessionId, StreamName, kind_and_identifier
from refold.events.core.records import StreamHead
from refold.events.kinds.scopes import names_of, part_in
from refold.events.session.core import SESSION_KIND
from refold.inspection.session_view import ListedSession, list_sessions
from refold.keeping.deletion import (
    NamedIn,
    OwnedLog,
    forget_rows,
    is_open,
    let_go,
    mentions,
    owned,
    owned_by,
    parts_of,
    sessions_in,
    wipe,
)
from refold.stores.event_store import ErasableLog, TellProgress, untold
from refold.stores.forked import forks_in, own_events
from refold.stores.keeping.erasing import erase
from refold.stores.past_state import last_position
from refold.stores.sqlite.file import absolute
from refold.stores.sqlite.store import SQLiteStore

EndedStatus: TypeAlias = Literal["completed", "failed", "cancelled", "idle"]
"""How the last run of a session ended; `idle` = it never had one."""

ENDED: Final[tuple[EndedStatus, ...]] = ("completed", "failed", "cancelled", "idle")

ARCHIVE_SUFFIX: Final = ".jsonl.gz"


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted since it was too old, or would be."""

    until: int
    """Sessions whose last event is not after that, microseconds since the epoch, UTC."""
    dry_run: bool
    """Nothing was changed."""
    sessions: tuple[SessionId, ...]
    """In order of their names, without those that their calls began."""
    streams: int = 0
    events: int = 0
    payloads: int = 0
    archive: str | None = None
    """The file in which they are; `refold import` makes a log of it."""
    went_on: tuple[SessionId, ...] = ()
    """Stay, since something was appended to them meanwhile."""
    damaged: tuple[SessionId, ...] = ()
    """Old enough or not, they stay, since they cannot be read; `refold check` says why, `refold delete` deletes one."""
    checkpoints: int = 0
    commands: int = 0
    named_in: tuple[NamedIn, ...] = ()
    wiped: bool = True
    """As in `Deletion`."""


async def retain(
    log: str | os.PathLike[str],
    older_than: timedelta,
    *,
    statuses: Collection[EndedStatus] = ENDED,
    archive: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    wait_for_log_s: float = 0.0,
    allow_shared_folder: bool = False,
    clock: Clock | None = None,
    progress: TellProgress = untold,
) -> Retention:
    """Delete the sessions of a log that ended long ago; no runtime may own the log.

    Args:
        log: path of the log's file.
        older_than: how long ago the last event of each must be.
        statuses: only those whose last run ended so.
        archive: folder for a file, `<log>-<time>.jsonl.gz`, that holds what is deleted; None = there is none.
        dry_run: change nothing, and return what would be deleted.
        wait_for_log_s: how long to wait for a runtime to release the log.
        allow_shared_folder: as for `SQLiteStore.open`.
        clock: says what time it is; None = the machine's.
        progress: called from time to time with what is counted, how many are done, and of how many.

    Raises:
        ConfigError: the age is negative, a status is none of `ENDED`, or the folder is none.
        LogInUse: a runtime owns the log; ask that, by `AgentRuntime.retain`.
        PersistenceError: the log cannot be read or written, or the archive cannot be; what is in no archive was not
            deleted.
    """
    async with await SQLiteStore.open(
        log, read_only=dry_run, wait_for_log_s=wait_for_log_s, allow_shared_folder=allow_shared_folder
    ) as store:
        owner = owned(store, log, clock, allow_shared_folder)
        return await retain_in_log(owner, older_than, statuses, archive, dry_run=dry_run, progress=progress)


async def retain_in(
    context: RuntimeContext,
    older_than: timedelta,
    statuses: Collection[EndedStatus],
    archive: str | os.PathLike[str] | None,
    *,
    dry_run: bool,
) -> Retention:
    """Delete old sessions of a runtime that is open on this event loop; as `retain`, beside all else."""
    log = owned_by(context)
    checkpoints = 0

    async def forget(streams: Sequence[StreamName]) -> None:
        nonlocal checkpoints
        checkpoints += await let_go(context, streams, deleted=True)

    retention = await retain_in_log(log, older_than, statuses, archive, dry_run=dry_run, forget=forget)
    return msgspec.structs.replace(retention, checkpoints=checkpoints)


async def retain_in_log(
    log: OwnedLog,
    older_than: timedelta,
    statuses: Collection[EndedStatus],
    archive: str | os.PathLike[str] | None,
    *,
    dry_run: bool,
    forget: Callable[[Sequence[StreamName]], Awaitable[None]] | None = None,
    progress: TellProgress = untold,
) -> Retention:
    """Delete old sessions where nothing works for them, as `retain`; `forget` is called with what was deleted."""
    _check(older_than, statuses, archive)
    until = log.clock.now_us() - older_than // timedelta(microseconds=1)
    waiting = frozenset(await log.inbox.sessions_waiting()) if log.inbox is not None else frozenset[str]()
    seen_to = await last_position(log.store)
    families, roots, damaged = await _due(log.store, until, statuses, waiting)

    def begun(families: Sequence[Sequence[StreamHead]]) -> tuple[SessionId, ...]:
        """Return the sessions that no call began."""
        return tuple(session for family in families for session in sessions_in(family) if session in roots)

    retention = Retention(until=until, dry_run=dry_run, sessions=begun(families), damaged=damaged)
    if dry_run or not families:
        heads = [head for family in families for head in family]
        return msgspec.structs.replace(
            retention,
            streams=len(heads),
            events=sum([await own_events(log.store, head) for head in heads]),
            wiped=dry_run or await wipe(log),  # An earlier process may have died before that.
        )
    kept_in = await _archived(log, families, Path(archive), progress) if archive is not None else None
    names = {head.stream for family in families for head in family}
    named_in = await mentions(log.store, names)
    erased = await erase(log.store, families, at=log.clock.now_us(), kept=log.kept, seen_to=seen_to, progress=progress)
    gone = [head.stream for family in erased.families for head in family]
    if forget is not None:
        await forget(gone)
    return msgspec.structs.replace(
        retention,
        sessions=begun(erased.families),
        streams=len(gone),
        events=erased.events,
        payloads=erased.payloads,
        archive=kept_in,
        went_on=begun(erased.went_on),
        commands=await forget_rows(log, sessions_in(gone)),
        named_in=named_in,
        wiped=await wipe(log),
    )


def _check(older_than: timedelta, statuses: Collection[EndedStatus], archive: str | os.PathLike[str] | None) -> None:
    if older_than < timedelta(0):
        raise ConfigError(f"sessions cannot be older than a time to come; give an age of 0 or more, not {older_than}")
    for status in statuses:
        if status not in ENDED:
            raise ConfigError(f"{status!r} is no status of a session that has ended; those are {', '.join(ENDED)}")
    if archive is not None and not Path(archive).is_dir():
        raise ConfigError(f"{os.fspath(archive)} is no folder; make it first, for the archives")


async def _due(
    store: ErasableLog, until: int, statuses: Collection[EndedStatus], waiting: Collection[str]
) -> tuple[list[list[StreamHead]], Collection[SessionId], tuple[SessionId, ...]]:
    """Return the families of which every session has ended, none of them after a time; and the damaged sessions.

    Between them stand the sessions that no call began. A family has its forks with it.

    Args:
        waiting: sessions with commands that wait in the inbox, and will go on.
    """
    listed = {each.session: each for each in await list_sessions(store)}
    families: dict[SessionId, list[ListedSession]] = {}
    for each in listed.values():
        families.setdefault(_root(each, listed), []).append(each)
    due: list[list[StreamHead]] = []
    for root, family in families.items():
        if listed[root].status not in statuses or not all(
            _has_ended(each, until) and each.session not in waiting for each in family
        ):
            continue
        others = [each.session for each in family if each.session != root]
        heads = [await store.head(f"{SESSION_KIND}/{session}") for session in (root, *others)]
        due.append([head for head in heads if head is not None])
    due = await _with_forks(store, due)
    owners = {named: family for family in due for named in names_of(sessions_in(family))}
    for part in await parts_of(store, "session", [each for family in due for each in sessions_in(family)]):
        owner = part_in(kind_and_identifier(part.stream)[1])
        assert owner is not None
        owners[owner.hashed, owner.owner].append(part)
    return due, families.keys(), tuple(each.session for each in listed.values() if each.status == "damaged")


async def _with_forks(store: ErasableLog, due: list[list[StreamHead]]) -> list[list[StreamHead]]:
    """Return families each with those of its forks, and without those of which a fork is still to be kept."""
    forks = [fork async for fork in forks_in(store, prefix=f"{SESSION_KIND}/")] if due else []
    while True:
        places = {head.stream: place for place, family in enumerate(due) for head in family}
        for fork in forks:
            origin, own = places.get(fork.origin.stream), places.get(fork.stream)
            if origin is None or origin == own:
                continue
            if own is None:
                due = [family for place, family in enumerate(due) if place != origin]
            else:
                both = due[origin] + due[own]
                due = [family for place, family in enumerate(due) if place not in (origin, own)] + [both]
            break
        else:
            return due


def _root(session: ListedSession, listed: dict[SessionId, ListedSession]) -> SessionId:
    """Return the session at whose calls it all began, as far as those are in the log."""
    met = {session.session}
    parent = session.parent
    while parent is not None and parent in listed and parent not in met:
        met.add(parent)
        session = listed[parent]
        parent = session.parent
    return session.session


def _has_ended(session: ListedSession, until: int) -> bool:
    return session.status in ENDED and not is_open(session) and session.at <= until


async def _archived(
    log: OwnedLog, families: Sequence[Sequence[StreamHead]], folder: Path, progress: TellProgress
) -> str:
    """Write streams into a new file, read that from the disk, and return its name if it holds all of them."""
    name = "memory" if log.inbox is None else log.inbox.path.name.removesuffix(".inbox")
    await asyncio.to_thread(_remove_unfinished, folder, name)
    time = datetime.fromtimestamp(log.clock.now_us() / 1e6, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = absolute(folder / f"{name}-{time}{ARCHIVE_SUFFIX}")
    heads = [head for family in families for head in family]
    from refold.inspection.export import export_to_file

    await export_to_file(log.store, path, streams=[head.stream for head in heads], progress=progress)
    try:
        wrong = await asyncio.to_thread(_lacking, path, heads)
    except LogFormatError as error:
        wrong = str(error)
    if wrong:
        path.unlink()
        raise PersistenceError(f"the archive {path} is not what was written: {wrong}; nothing was deleted")
    return str(path)


def _lacking(archive: Path, heads: Sequence[StreamHead]) -> str:
    """Return what is wrong with an archive of streams; empty if nothing is.

    Of a stream that is appended to meanwhile it may hold more; such a one is not deleted.
    """
    from refold.stores.jsonl.check import find_damage

    found, damage = find_damage(archive)
    if damage:
        return damage[0].message
    for head in heads:
        version, chain = found.streams.get(head.stream, (0, b""))
        if version < head.version or (version == head.version and chain != head.chain):
            return f"it lacks {head.stream}"
    return ""


def _remove_unfinished(folder: Path, log: str) -> None:
    """Remove what a process has left that died while it archived; one that archives now fails, and deletes nothing."""
    from refold.inspection.export import UNFINISHED

    for path in folder.iterdir():
        if path.name.startswith(f"{log}-") and path.name.endswith(ARCHIVE_SUFFIX + UNFINISHED):
            path.unlink(missing_ok=True)
