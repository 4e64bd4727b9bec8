"""Waiting for what another process does: when to look at its files again, and how a run ended, read from its log.

The log is opened for reading only. The rule: a caller who waits learns why there is no end for now, as where the run
waits for a person, or no runtime owns the log.
"""

import math
import os
from collections.abc import Callable
from typing import Any, Final

import msgspec

from refold.actors.kernel.clock import Clock
from refold.bell.listener import Alarm, listening
from refold.events.core.errors import StreamDeleted
from refold.events.core.ids import RunId, SessionId, ToolCallId, stream_name
from refold.events.core.records import StoredEvent
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.state import FinishedRun, SessionState, calls_awaiting_answer, calls_awaiting_approval
from refold.inspection.log_reading import EVENTS_PER_PAGE
from refold.inspection.session_view import status_of
from refold.publishing.event_bus import EndedRun
from refold.remote.kept_log import ReadLog, kept_open
from refold.sessions.access import NamedUser
from refold.sessions.outcome import RunResult, result_of
from refold.sessions.run_handle import input_of
from refold.sessions.sent_input import RunEvents
from refold.stores.folding import Fold
from refold.stores.sqlite.file import absolute
from refold.stores.sqlite.ownership import log_owner

POLL_S: Final = 0.1
"""Seconds between two looks."""

LOOK_ANYWAY_S: Final = 1.0
"""After so long the log is read though its files do not seem to have changed."""

OWNER_EVERY: Final = 20
"""After so many looks in a row at which nothing is new, it is asked whether a runtime still owns the log."""


class Changes:
    """Tells when files may have changed since they were last read, as far as the file system knows.

    Args:
        signature: what the file system says of the files; it differs after a write.
        clock: times the looks.
        look_anyway_s: after so long a look is due though nothing seems to have changed, since clocks of file systems
            are coarse.
    """

    def __init__(self, signature: Callable[[], object], clock: Clock, look_anyway_s: float) -> None:
        self._signature = signature
        self._clock = clock
        self._look_anyway_s = look_anyway_s
        self._seen: object = None
        self._again = True
        self._looked_at_s = clock.monotonic_s()
        self._alarm = Alarm(clock)

    def expect(self) -> None:
        self._again = True

    def ring(self) -> None:
        """Have a look due, at once: what looks pauses no longer."""
        self._again = True
        self._alarm.ring()

    async def pause(self, seconds: float) -> None:
        """Return after so long, or once it is rung."""
        await self._alarm.wait(seconds)

    def are_due(self) -> bool:
        signature = self._signature()
        changed = signature != self._seen
        now_s = self._clock.monotonic_s()
        due = changed or self._again or now_s - self._looked_at_s >= self._look_anyway_s
        # Another write may have come in the same tick of the file system's clock: so the next look is due, too.
        self._again, self._seen = changed, signature
        if due:
            self._looked_at_s = now_s
        return due


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """Why the end of a run is not awaited any longer."""

    why: str
    calls: tuple[ToolCallId, ...] = ()
    """Calls that wait for approval."""


async def follow_run(
    log: str | os.PathLike[str],
    session: SessionId,
    run: RunId,
    clock: Clock,
    *,
    wait_s: float = math.inf,
    ownerless_s: float = 0,
    owned: bool = False,
    through_stops: bool = False,
    named: NamedUser | None = None,
    output_type: type[object] | None = None,
) -> RunResult[Any] | Stuck:
    """Return how a run ended, once it has, or why that cannot be awaited.

    Args:
        run: an input of it is in the log.
        wait_s: for how long to wait at most.
        ownerless_s: for how long to wait for a runtime to own the log, where none does.
        owned: whether a runtime owned the log just before, as far as the caller knows.
        through_stops: wait on while the run waits for a person, and while no runtime owns the log.
        named: the user who asks, who gets CommandRejected where the session is another's; None = trusted code.
    """
    until_s = clock.monotonic_s() + wait_s
    was_owned = owned or log_owner(log) is not None
    ownerless_since_s: float | None = None
    quiet_looks = 0
    version, events = input_of(run) - 1, RunEvents(run)
    stream = stream_name(SESSION_KIND, session)
    changes = Changes(lambda: signatures(log), clock, LOOK_ANYWAY_S)
    async with kept_open(log) as kept, listening(absolute(log), clock, changes.ring):
        store = kept.store
        while True:
            page: list[StoredEvent] = []
            if changes.are_due():
                page = await store.read_stream(stream, after_version=version, limit=EVENTS_PER_PAGE)
                if not page and await store.head(stream) is None:
                    return Stuck(why=f"session {session!r} was deleted")
                if page and named is not None:
                    await named.require(store)
            for event in SESSION_CODEC.decode_all(page):
                version += 1
                events.include(version, event)
                if events.ended is not None:
                    return await result_of(await finished_run(kept, session, events.ended), store, output_type)
            if page:
                quiet_looks, ownerless_since_s = 0, None
                changes.expect()
                state = await kept.state(session)
                if not through_stops and state.version == version and (stuck := _stuck(state)) is not None:
                    return stuck
                continue
            now_s = clock.monotonic_s()
            quiet_looks += 1
            if quiet_looks % OWNER_EVERY == 0:
                if log_owner(log) is not None:
                    was_owned, ownerless_since_s = True, None
                else:
                    ownerless_since_s = now_s if ownerless_since_s is None else ownerless_since_s
                    if now_s - ownerless_since_s >= ownerless_s and not through_stops:
                        any_more = " any more" if was_owned else ""
                        return Stuck(why=f"no runtime owns the log{any_more}; {run} goes on when one does")
            if now_s >= until_s:
                return Stuck(why=f"{run} has not ended yet")
            await changes.pause(POLL_S)


async def finished_run(kept: ReadLog, session: SessionId, ended: EndedRun) -> FinishedRun:
    """Return how a run ended, from the log where it is not at hand; raise StreamDeleted where that is deleted."""
    found = ended.finished or (await kept.state(session)).last_run
    if found is None or found.version != ended.version:  # Another one has ended since.
        fold = Fold(stream_name(SESSION_KIND, session), SESSION_CORE, SESSION_CODEC)
        await fold.read(kept.store, version=ended.version, sealed=False)
        if not fold.version:
            raise StreamDeleted(fold.stream)
        found = fold.state.last_run
    assert found is not None
    return found


def signatures(log: str | os.PathLike[str]) -> list[tuple[int, int, int] | None]:
    """Return what the file system says of a log's files; it differs after a write."""
    return [_signature(path) for path in (os.fspath(log), f"{os.fspath(log)}-wal")]


def _signature(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _stuck(state: SessionState) -> Stuck | None:
    run = state.run
    if run is None:
        return None
    match status_of(state):
        case "parked":
            return Stuck(why=f"{run.id} is parked; resume or cancel it")
        case "waiting":
            calls = tuple(call.id for call in calls_awaiting_approval(state))
            asked = ", ".join(call.id for call in calls_awaiting_answer(state))
            what = f"waits for an answer to {asked}" if asked else "goes step by step and waits for the next one"
            what = "waits for approval" if calls else what
            return Stuck(why=f"{run.id} {what}", calls=calls)
        case _:
            return None
