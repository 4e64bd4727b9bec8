"""Deleting a session: what was said in it cannot be read any more, in the log or beside it.

    await runtime.delete("alice")                       # Beside runs of other sessions.
    await delete_session("events.db", "alice")          # Where no runtime owns the log.

Read `refold.stores.keeping.erasing` first. With a session go the sessions that its calls began, their snapshots, the
payloads that only they name, its parts of memories, their checkpoints of turns and their commands in the inbox. Then
the WAL is brought into the file and emptied: SQLite overwrites what is deleted with zeros there (`secure_delete`). The
rules: a session with an open run is refused, unless its runs are cancelled first; a child goes with its parent only;
and what other streams keep of a session stays, such as the memories of its user and of the agent, but is named.
"""

import asyncio
import os
import re
from collections.abc import Collection, Iterable, Sequence, Set
from contextlib import suppress
from typing import Final, cast

import msgspec

from refold.actors.agent.subsession import children_prefix, parent_of
from refold.actors.kernel.clock import Clock, SystemClock
from refold.actors.shell.messages import read_state
from refold.context import RuntimeContext
from refold.events.core.errors import CommandRejected, ConfigError
from refold.events.core.ids import (
    PayloadHash,
    SessionId,
    StreamName,
    checked_identifier,
    kind_and_identifier,
    stream_name,
)
from refold.events.core.pure_core import Wait
from refold.events.core.records import StreamHead
from refold.events.kinds.scopes import (
    GRAPH_KIND,
    KNOWLEDGE_KIND,
    MEMORY_KIND,
    WORKING_KIND,
    PartKind,
    names_of,
    part_in,
)
from refold.events.session.core import SESSION_CORE, SESSION_KIND
from refold.events.session.state import SessionState
from refold.guarded_store import ContainedStore
from refold.inspection.log_reading import Streams, kind_of, session_head, tombstones
from refold.inspection.session_view import ListedSession, list_sessions, listed_session
from refold.sessions.access import cancel_runs_of
from refold.sessions.people import sessions_below
from refold.stores.event_store import ErasableLog, EventStore
from refold.stores.forked import forks_in
from refold.stores.keeping.erasing import EVENTS_PER_PAGE, erase
from refold.stores.keeping.remains import remains, traces_of
from refold.stores.past_state import last_position
from refold.stores.sqlite.file import absolute
from refold.stores.sqlite.inbox import InboxFile
from refold.stores.sqlite.store import SQLiteStore

OPEN: Final = frozenset({"open", "waiting", "parked"})
"""The statuses of sessions whose run has not ended."""

WIPE_TRIES: Final = 30
"""So often it is tried to empty the WAL, which other processes keep full while they read the log."""

WIPE_PAUSE_S: Final = 0.1

FORKS_NAMED_MAX: Final = 10

VERSIONS_NAMED_MAX: Final = 100
"""Of so many events of one stream the versions are named."""

_AFTER_THE_RUN: Final = "Delete it when the run has ended, in the program that sent its input or a task that awaits it"

# A memory tool's key is that of its call (`refold.agents.memory_tools`); other events name a stream, or an event of it.
_NAMED = re.compile(
    rb'"call ((?:[^"\\]|\\.)*)/call_\d+_\d+(?: \w+)?"|"' + SESSION_KIND.encode() + rb'/((?:[^"\\]|\\.)*?)(?:@\d+)?"'
)


class NamedIn(msgspec.Struct, frozen=True, kw_only=True):
    """Events of another stream that a deleted session led to, or that name it; they stay."""

    stream: StreamName
    events: int
    versions: tuple[int, ...]
    """Of the first `VERSIONS_NAMED_MAX` of them."""


class Deletion(msgspec.Struct, frozen=True, kw_only=True, tag="deleted"):
    """What was deleted, and what stays."""

    session: SessionId
    streams: tuple[StreamName, ...]
    """The session's, those of the sessions that its calls began, and the parts of memories that belong to it."""
    deleted_before: bool = False
    """They had been deleted before, as by this command for an owner that then lost the log; `streams` and `events` are
    what the log says of that, and what was left to do is done now."""
    events: int = 0
    payloads: int = 0
    shared_payloads: int = 0
    """Stay, since other sessions name them, too."""
    checkpoints: int = 0
    """Checkpoints of turns that were deleted from the runtime's `step_snapshots`."""
    commands: int = 0
    """That were removed from the inbox."""
    named_in: tuple[NamedIn, ...] = ()
    wiped: bool = True
    """Whether nothing of it stands in the WAL any more. It does as long as another process reads the log at an earlier
    moment; the end of the runtime, or deleting once more, wipes it."""
    traces: tuple[str, ...] = ()
    """Digests that lay beside its events, which `refold.stores.keeping.remains` looks for in the log's files."""
    remains: tuple[str, ...] | None = None
    """Files in which some of them stand still, where this SQLite does not overwrite; None = that was not looked at."""


class UserDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted of a user."""

    user: str
    sessions: tuple[Deletion, ...]
    """Those of the user, without those that their calls began, which went with them."""
    streams: tuple[StreamName, ...]
    """The parts of memories that were the user's."""
    events: int
    """In those."""
    wiped: bool


class OwnedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log that this process may change."""

    store: ErasableLog
    inbox: InboxFile | None
    """None = the log is no file."""
    clock: Clock
    kept: Collection[PayloadHash] = ()
    """Payloads that stay, also where only deleted events name them."""


async def delete_session(
    log: str | os.PathLike[str],
    session: str,
    *,
    cancel: bool = False,
    forks: bool = False,
    wait_for_log_s: float = 0.0,
    allow_shared_folder: bool = False,
    clock: Clock | None = None,
) -> Deletion:
    """Delete a session from a log that no runtime owns.

    Args:
        log: path of the log's file.
        session: its name.
        cancel: delete it although a run is open, which then never goes on.
        forks: delete its forks with it, and theirs.
        wait_for_log_s: how long to wait for a runtime to release the log.
        allow_shared_folder: as for `SQLiteStore.open`.
        clock: stamps the tombstone; None = the machine's.

    Raises:
        ConfigError: the log has no such session.
        CommandRejected: a run is open, the session belongs to another one, or it has forks.
        LogInUse: a runtime owns the log; ask it, by `AgentRuntime.delete` or `refold delete`.
        PersistenceError: the log cannot be read or written; what was begun is completed by the next call.
    """
    async with await SQLiteStore.open(
        log, wait_for_log_s=wait_for_log_s, allow_shared_folder=allow_shared_folder
    ) as store:
        deletion = await delete_from(owned(store, log, clock, allow_shared_folder), session, cancel=cancel, forks=forks)
    return await looked_for(log, deletion)


async def looked_for(log: str | os.PathLike[str], deletion: Deletion) -> Deletion:
    """Return a deletion that says in which files of a log traces of it remain; raises as `remains`."""
    left = await asyncio.to_thread(remains, absolute(log), deletion.traces)
    return msgspec.structs.replace(deletion, remains=tuple(left))


def owned_by(context: RuntimeContext) -> OwnedLog:
    """Return the log of an open runtime as it can be deleted from; raises as `owned`."""
    settings = context.settings
    log = owned(context.store, settings.log, context.system.clock, settings.allow_shared_folder)
    return msgspec.structs.replace(log, kept=context.configured_payloads())


def owned(store: EventStore, log: object, clock: Clock | None, allow_shared_folder: bool) -> OwnedLog:
    """Return an open log as it can be deleted from; `log` is what a user named it by, such as `":memory:"`."""
    whole = store.contained if isinstance(store, ContainedStore) else store
    if not hasattr(whole, "delete_streams"):
        raise ConfigError(
            f"nothing can be deleted from the store {store.name}: it lacks the methods of "
            "refold.stores.event_store.ErasableLog"
        )
    inbox: InboxFile | None = None
    if isinstance(log, str | os.PathLike) and log != ":memory:":
        path = absolute(cast("str | os.PathLike[str]", log))
        inbox = InboxFile(path, allow_shared_folder=allow_shared_folder)
    return OwnedLog(store=cast("ErasableLog", whole), inbox=inbox, clock=clock or SystemClock())


async def delete_from(log: OwnedLog, session: str, *, cancel: bool, forks: bool = False) -> Deletion:
    """Delete a session where nothing works for it; raises as `delete_session`, also where it went on meanwhile."""
    name = SessionId(checked_identifier(session, "session id"))
    if await log.store.find_tombstone(stream_name(SESSION_KIND, name)) is not None:
        return await _completed(log, await _deleted_before(log.store, name))
    seen_to = await last_position(log.store)
    family = await family_of(log.store, name, forks=forks)
    if not cancel:
        await _require_ended(log.store, family)
    family += await parts_of(log.store, "session", sessions_in(family))
    names = {head.stream for head in family}
    named_in, traces = await mentions(log.store, names), await traces_of(log.store, family)
    erased = await erase(log.store, [family], at=log.clock.now_us(), kept=log.kept, seen_to=seen_to)
    if erased.went_on:
        raise CommandRejected(f"session {name!r} went on while it was to be deleted; try again")
    deletion = Deletion(
        session=name,
        streams=tuple(head.stream for head in family),
        events=erased.events,
        payloads=erased.payloads,
        shared_payloads=erased.shared_payloads,
        named_in=named_in,
        traces=traces,
    )
    return await _completed(log, deletion)


async def forget_in(context: RuntimeContext, session: str) -> None:
    """Let go of what memory holds of a session; as `AgentRuntime.forget`."""
    stream = stream_name(SESSION_KIND, SessionId(checked_identifier(session, "session id")))
    if stream not in context.system.live():
        return
    ref = context.system.ref(stream)
    if waited := await read_state(ref, _goes_on):
        raise CommandRejected(f"session {session!r} cannot be forgotten while it waits for {waited[0]}")
    await ref.stop(block=False)


def _goes_on(state: SessionState) -> list[str]:
    """Return the keys of what ends by itself, or by an actor that a handler asks."""
    return [effect.key for effect in SESSION_CORE.pending(state) if type(effect) is not Wait]


async def delete_in(context: RuntimeContext, session: str, *, cancel: bool, forks: bool = False) -> Deletion:
    """Delete a session of a runtime that is open on this event loop; as `delete_from`, beside all else."""
    log = owned_by(context)
    name = SessionId(checked_identifier(session, "session id"))
    stream = stream_name(SESSION_KIND, name)
    try:
        if await log.store.find_tombstone(stream) is None:
            family = await family_of(log.store, name, forks=forks)
            sessions = sessions_in(family)
            if cancel:
                _require_no_tool_of(context, sessions)
                for each in sessions:
                    await cancel_runs_of(context, each, "the session is deleted")
            else:
                await _require_ended(log.store, family)
            await let_go(context, [head.stream for head in (*family, *await parts_of(log.store, "session", sessions))])
        deletion = await delete_from(log, name, cancel=cancel, forks=forks)
    except (CommandRejected, ConfigError):
        if await log.store.find_tombstone(stream) is None:
            raise
        deletion = await delete_from(log, name, cancel=cancel, forks=forks)  # Others have deleted it meanwhile.
    # What came for it meanwhile has found it deleted, or was before it.
    return msgspec.structs.replace(deletion, checkpoints=await let_go(context, deletion.streams, deleted=True))


def _require_no_tool_of(context: RuntimeContext, sessions: Iterable[SessionId]) -> None:
    """Raise AskCycle in a tool whose run is to be cancelled: that would cancel the tool, and the deletion with it."""
    for each in sessions:
        context.tool_waits.require_not_cancelled_with(context.system, each, _AFTER_THE_RUN)


async def delete_user_in(context: RuntimeContext, user: str, *, cancel: bool) -> UserDeletion:
    """Delete all sessions of a user, and the user's parts of memories, in a runtime that is open here.

    Where that is refused, what was deleted before stays deleted; what was begun is completed by the next call.
    """
    log = owned_by(context)
    listed = await list_sessions(log.store, user=checked_identifier(user, "user"))
    names = {each.session for each in listed}
    if cancel:
        _require_no_tool_of(context, names)
    roots = [each.session for each in listed if each.parent not in names]
    sessions: list[Deletion] = []
    for session in roots:  # One that is a fork of another has gone with that.
        if await log.store.find_tombstone(stream_name(SESSION_KIND, session)) is None:
            sessions.append(await delete_in(context, session, cancel=cancel, forks=True))
    if log.inbox is not None:  # An earlier process may have died before it had forgotten those of a session.
        left = await log.inbox.sessions_waiting(performed=True)
        deleted = [name for name in left if await log.store.find_tombstone(stream_name(SESSION_KIND, SessionId(name)))]
        await forget_rows(log, deleted)
    parts = await parts_of(log.store, "user", [user])
    await let_go(context, [head.stream for head in parts])
    erased = await erase(log.store, [parts] if parts else [], at=log.clock.now_us(), kept=log.kept)
    if erased.went_on:
        raise CommandRejected("the user went on while all of it was to be deleted; try again")
    streams = tuple(head.stream for head in parts)
    wiped = await wipe(log)
    return UserDeletion(user=user, sessions=tuple(sessions), streams=streams, events=erased.events, wiped=wiped)


async def let_go(context: RuntimeContext, streams: Sequence[StreamName], *, deleted: bool = False) -> int:
    """Have nothing of streams in memory, and nobody wait for a run of a session that was deleted.

    Return how many checkpoints of deleted sessions were forgotten.
    """
    sessions = sessions_in(streams) if deleted else []
    for session in sessions:
        context.event_bus.session_deleted(session)
        context.dependencies.forget(session)
    live = context.system.live()
    for stream in streams:
        if stream in live:
            await context.system.ref(stream).stop(block=False)
    return await context.forget_steps(sessions) if sessions else 0


def sessions_in(streams: Sequence[StreamHead | StreamName]) -> list[SessionId]:
    """Return those of some streams that are sessions, by their ids."""
    names = [each if isinstance(each, str) else each.stream for each in streams]
    return [SessionId(kind_and_identifier(name)[1]) for name in names if kind_of(name) == SESSION_KIND]


async def parts_of(store: EventStore, kind: PartKind, owners: Iterable[str]) -> list[StreamHead]:
    """Return the ends of the streams of all parts of memories that belong to some sessions, or to some users."""
    names, found = names_of(owners), list[StreamHead]()
    for memories in (MEMORY_KIND, KNOWLEDGE_KIND, WORKING_KIND, GRAPH_KIND):
        async for head in Streams(store, prefix=f"{memories}/"):
            part = part_in(kind_and_identifier(head.stream)[1])
            if part is not None and part.kind == kind and (part.hashed, part.owner) in names:
                found.append(head)
    return found


async def family_of(store: EventStore, session: SessionId, *, forks: bool) -> list[StreamHead]:
    """Return the ends of the streams of a session, first, and of all that its calls began; raises CommandRejected."""
    head = await session_head(store, session)
    parent = await parent_of(store, session)
    if parent is not None and await store.head(stream_name(SESSION_KIND, parent)) is not None:
        raise CommandRejected(f"session {session!r} was begun by a call in session {parent!r} and goes with that one")
    family = [head, *await children_of(store, session)]
    while following := await _forks_of(store, family):
        if not forks:
            named = ", ".join(repr(kind_and_identifier(each.stream)[1]) for each in following[:FORKS_NAMED_MAX])
            raise CommandRejected(
                f"session {session!r} has forks, which begin with its events: {named}; delete them first, or with it"
            )
        for each in following:
            family += [each, *await children_of(store, SessionId(kind_and_identifier(each.stream)[1]))]
    return family


async def _forks_of(store: EventStore, family: Sequence[StreamHead]) -> list[StreamHead]:
    """Return the ends of the streams that go on from one of some streams, without those themselves."""
    names = {head.stream for head in family}
    forks = [fork async for fork in forks_in(store, prefix=f"{SESSION_KIND}/")]
    wanted = [fork.stream for fork in forks if fork.origin.stream in names and fork.stream not in names]
    return [head for head in [await store.head(stream) for stream in wanted] if head is not None]


async def children_of(store: EventStore, session: SessionId) -> list[StreamHead]:
    """Return the ends of the streams of all sessions that calls in a session began, and calls in those."""
    found = [await store.head(stream_name(SESSION_KIND, child)) async for child in sessions_below(store, session)]
    return [head for head in found if head is not None]


async def _require_ended(store: EventStore, family: Sequence[StreamHead]) -> None:
    for head in family:
        if is_open(listed := await listed_session(store, head)):
            raise CommandRejected(
                f"session {listed.session!r} has a run that has not ended ({listed.status}); cancel it first, or "
                "delete it with cancel=True (on the command line --cancel)"
            )


def is_open(listed: ListedSession) -> bool:
    """Tell whether something is to go on in a session: a run, or an input for a later time."""
    return listed.status in OPEN or bool(listed.pending)


async def mentions(store: EventStore, streams: Set[StreamName]) -> tuple[NamedIn, ...]:
    """Return where other streams than sessions name some sessions, or keep what calls in them gave."""
    found: list[NamedIn] = []
    async for head in Streams(store):
        if kind_of(head.stream) == SESSION_KIND or head.stream in streams:
            continue
        versions: list[int] = []
        version = 0
        while page := await store.read_stream(head.stream, after_version=version, limit=EVENTS_PER_PAGE):
            for event in page:
                causes = [StreamName((ref or "").rpartition("@")[0]) for ref in (event.causation, event.correlation)]
                if not streams.isdisjoint([*causes, *_named_streams(event.data)]):
                    versions.append(event.version)
            version = page[-1].version
        if versions:
            kept = tuple(versions[:VERSIONS_NAMED_MAX])
            found.append(NamedIn(stream=head.stream, events=len(versions), versions=kept))
    return tuple(found)


def _named_streams(data: bytes) -> list[StreamName]:
    names: list[StreamName] = []
    for called, named in _NAMED.findall(data):
        with suppress(msgspec.MsgspecError):  # It may only look like a name.
            names.append(stream_name(SESSION_KIND, msgspec.json.decode(b'"' + (called or named) + b'"', type=str)))
    return names


async def _deleted_before(store: ErasableLog, session: SessionId) -> Deletion:
    """Return what tombstones say of a deletion: the session's stream, and those that went with it.

    Streams with very long names are not all found.
    """
    own = stream_name(SESSION_KIND, session)
    below = stream_name(SESSION_KIND, children_prefix(session))
    events, streams = 0, list[StreamName]()
    async for each in tombstones(store):
        if each.stream == own or each.stream.startswith(below) or _is_part_of(each.stream, session):
            events += each.version
            streams += [each.stream] if each.stream != own else []
    return Deletion(session=session, streams=(own, *streams), deleted_before=True, events=events)


def _is_part_of(stream: StreamName, session: SessionId) -> bool:
    part = part_in(kind_and_identifier(stream)[1])
    return part is not None and part.kind == "session" and (part.hashed, part.owner) in names_of([session])


async def _completed(log: OwnedLog, deletion: Deletion) -> Deletion:
    """Do what comes after the transaction, again where an earlier process died before it."""
    commands = await forget_rows(log, sessions_in(deletion.streams))
    wiped = await wipe(log)
    return msgspec.structs.replace(deletion, commands=commands, wiped=wiped)


async def forget_rows(log: OwnedLog, sessions: Sequence[str]) -> int:
    """Remove what was asked of deleted sessions from the inbox, except deletions, whose askers wait for the outcome."""
    of_deletions = b'{"type":"delete'  # The tags of `InboxDelete` and of `Deletion` begin so.
    return await log.inbox.forget(sessions, kept=of_deletions) if log.inbox is not None else 0


async def wipe(log: OwnedLog) -> bool:
    """Empty the WAL, waiting a while for readers; return whether it is empty."""
    for _ in range(WIPE_TRIES):
        if await log.store.empty_wal():
            return True
        await log.clock.sleep(WIPE_PAUSE_S)
    return False
