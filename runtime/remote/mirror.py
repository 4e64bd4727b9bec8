"""What happens in a log whose owner is another process, told here in the order in which it is told there.

A guest has a mirror for its own bus. All others who wait in one event loop for what happens in a log share one, with
its connection to the owner and its looks at the files: `follow_run`, the readers of a connection, and commands. The
rules: an event is told only when it was read from the log; where the owner cannot be heard, the log is looked at again
and again; and who waits for the end of a run learns why there is none for now, as where it waits for a person, or no
runtime owns the log.
"""

import asyncio
import logging
import math
import os
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from refold.actors.kernel.clock import Clock, SystemClock
from refold.actors.kernel.supervision import Background
from refold.bell.frames import Durable, Hello, News, Noted, Piece, Report
from refold.bell.listener import Alarm, Listener
from refold.events.core.codec import tag_of
from refold.events.core.errors import LogFormatError, PersistenceError, StreamDeleted
from refold.events.core.ids import RunId, SessionId, StreamName, ToolCallId, kind_and_identifier, stream_name
from refold.events.core.records import StoredEvent
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.state import SessionState, calls_awaiting_answer, calls_awaiting_approval
from refold.inspection.log_reading import tombstone_of
from refold.inspection.session_view import status_of
from refold.publishing.event_bus import EventBus
from refold.publishing.notifications import Progressed, Streamed
from refold.publishing.subscription import ANSWER_OVER
from refold.remote.kept_log import PAGE, HeldLog, ReadLog, held_log
from refold.remote.watching import LOOK_ANYWAY_S, POLL_S, Changes, signatures, stir_watches
from refold.sessions.access import NamedUser
from refold.sessions.outcome import RunResult, result_of
from refold.sessions.run_handle import RunStatus, ended_in, ended_in_log, ended_status, open_state_of
from refold.stores.sqlite.file import absolute, require_no_text_log
from refold.stores.sqlite.inbox import InboxFile
from refold.stores.sqlite.ownership import log_owner
from refold.stores.sqlite.sides import LogReplaced

log = logging.getLogger("refold.runtime")

OWNERLESS_S: Final = 2.0
"""For so long a log may have no owner while it goes from one to the next."""

OVERS_MAX: Final = 10_000
"""Sessions of which it is known when their last answer was over."""

OVER_TAGS: Final = frozenset(str(kind.__struct_config__.tag) for kind in ANSWER_OVER)

Begin = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], Background]
"""Given a name and what makes the work, begins work beside the actors."""


class Mirror:
    """Tells a bus of this process what the owner of a log tells in its own.

    Args:
        log: path of the log, absolute.
        reading: the log; its store may be another one later, of the same log.
        bus: is told what happens in the sessions that are followed there.
        noted: called when the inbox may have outcomes.
        position: what is behind it in the log is told.
    """

    def __init__(
        self,
        log: Path,
        reading: ReadLog,
        clock: Clock,
        bus: EventBus,
        background: Begin,
        *,
        noted: Callable[[], object],
        position: int,
    ) -> None:
        self.bus = bus
        self.clock = clock
        self.reading = reading
        self.users = 0
        """Those who share it."""
        self.gone = Alarm(clock)
        """Rings when an owner was heard and is not any more."""
        self.listener = Listener(log, clock, self._hear, self._lost, partial(reading.is_news, "bell"))
        self._log = log
        self._noted = noted
        self.position: int = position
        """Up to where it has told."""
        self._over: OrderedDict[SessionId, int] = OrderedDict()
        """By session: version of the last event behind which nothing comes of an answer asked for before."""
        self._owner = ""
        self._lock = asyncio.Lock()
        self._changes = Changes(lambda: signatures(log), clock)
        self._waiting: dict[SessionId, list[Alarm]] = {}
        self._work = [background("bell", self.listener.listen), background("look at the shared log", self._look)]

    @contextmanager
    def news_of(self, session: SessionId) -> Generator[Alarm]:
        """Give an alarm that rings as soon as something new of a session is in the log."""
        news, waiting = Alarm(self.clock), self._waiting.setdefault(session, [])
        waiting.append(news)
        try:
            yield news
        finally:
            waiting.remove(news)
            if not waiting:
                del self._waiting[session]

    def end(self) -> None:
        """Tell nothing more."""
        for part in self._work:
            part.end()

    async def stop(self) -> None:
        for part in self._work:
            await part.stop()

    def has_owner(self) -> bool:
        """Tell whether a runtime owns the log; raises PersistenceError."""
        return self.listener.hears or log_owner(self._log) is not None

    async def _hear(self, frame: News) -> None:
        match frame:
            case Hello(owner=owner, position=position):
                if owner != self._owner:
                    self.bus.forget_answers()
                self._owner = owner
                await self.catch_up(position)
                self._noted()
            case Durable(position=position):
                await self.catch_up(position)
            case Noted():
                self._noted()
            case Piece():
                if frame.asked > self._over.get(frame.session, 0):
                    piece = Streamed(
                        session=frame.session,
                        run=frame.run,
                        turn=frame.turn,
                        asked=frame.asked,
                        offset=frame.offset,
                        delta=frame.delta,
                    )
                    self.bus.mirrored(piece, since=frame.since, number=frame.number, so_far=frame.so_far)
            case Report():
                self.bus.reported(Progressed(session=frame.session, call=frame.call, report=frame.report))

    def _lost(self) -> None:
        self.gone.ring()
        self._changes.ring()
        self._noted()

    async def _look(self) -> None:
        """Look at the log where nothing is heard, and now and then where something is."""
        while True:
            await self._changes.pause(LOOK_ANYWAY_S if self.listener.hears else POLL_S)
            if not self._changes.are_due():
                continue
            try:
                await self.catch_up(None)
                for session in self.bus.followed_sessions():
                    if await tombstone_of(self.reading.store, stream_name(SESSION_KIND, session)) is not None:
                        self.bus.session_deleted(session)
            except PersistenceError as error:
                self.complain(error)
                if isinstance(error, LogReplaced):  # Nothing more will be told of the one that was followed.
                    self.bus.close(str(error))
                    self.bus.end()

    def complain(self, error: PersistenceError) -> None:
        if self.reading.is_news("files", error):
            log.warning("the shared log %s: %s", self._log, error)

    async def catch_up(self, position: int | None) -> None:
        """Tell what the log has up to a position, or up to its end, that was not told yet."""
        async with self._lock:
            while position is None or self.position < position:
                page = await self.reading.store.read_all(after_position=self.position, limit=PAGE)
                wanted = page if position is None else [event for event in page if event.position <= position]
                for (stream, _), batch in groupby(wanted, key=lambda event: (event.stream, event.batch)):
                    events = list(batch)
                    await self._publish(stream, events)
                    self.position = events[-1].position
                if len(wanted) < PAGE:
                    return

    async def _publish(self, stream: StreamName, events: list[StoredEvent]) -> None:
        kind, identifier = kind_and_identifier(stream)
        if kind != SESSION_KIND:
            return
        session = SessionId(identifier)
        for news in self._waiting.get(session, ()):
            news.ring()
        over = [event.version for event in events if tag_of(event.data) in OVER_TAGS]
        if not self.bus.is_followed(session):
            if over:
                self.bus.answer_over(session)
        else:
            try:
                recorded = (
                    SESSION_CODEC.recorded(events)
                    if events[0].version == events[0].batch
                    else await self.reading.recorded_after(session, events[0].version - 1, len(events))
                )
                state = await self.reading.folded.session(self.reading.store, stream)
            except (LogFormatError, StreamDeleted) as error:
                self.bus.session_failed(session, str(error))
                return
            self.bus.recorded(session, recorded)
            self.bus.settled(session, state)
        if over:
            self._over[session] = over[-1]
            self._over.move_to_end(session)
            if len(self._over) > OVERS_MAX:
                self._over.popitem(last=False)


class JoinedMirror(msgspec.Struct, frozen=True):
    """A mirror of a log that is open for reading, for one of those who share them."""

    held: HeldLog
    mirror: Mirror
    mirrors: dict[object, Mirror]
    name: object

    def leave(self) -> None:
        """Be told nothing more."""
        self.mirror.users -= 1
        if not self.mirror.users:
            del self.mirrors[self.name]
            self.mirror.end()
        self.held.release()


async def join_mirror(log: str | os.PathLike[str], clock: Clock) -> JoinedMirror:
    """Return a mirror of a log, which an event loop has once; who gets it leaves it. Raises as `kept_open`.

    Raises:
        ConfigError: it is a text log, which has no owner.
    """
    require_no_text_log(log)
    path = absolute(log)
    held = await held_log(path)
    # Every connection has a clock of its own, and those of the machine tell the same.
    mirrors, name = _mirrors.setdefault(held, {}), SystemClock if type(clock) is SystemClock else id(clock)
    try:
        position = 0 if name in mirrors else await held.store.end_position()
    except BaseException:
        held.release()
        raise
    mirror = mirrors.get(name)
    if mirror is None:
        noted = partial(stir_watches, InboxFile(path).path)
        mirror = mirrors[name] = Mirror(path, held.log, clock, EventBus(), Background, noted=noted, position=position)
    mirror.users += 1
    return JoinedMirror(held, mirror, mirrors, name)


_mirrors: WeakKeyDictionary[HeldLog, dict[object, Mirror]] = WeakKeyDictionary()


@asynccontextmanager
async def joined_mirror(log: str | os.PathLike[str], clock: Clock) -> AsyncGenerator[Mirror]:
    """Give a mirror of a log as long as the block lasts; see `join_mirror`."""
    joined = await join_mirror(log, clock)
    try:
        yield joined.mirror
    finally:
        joined.leave()


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """Why the end of a run is not awaited any longer."""

    why: str
    calls: tuple[ToolCallId, ...] = ()
    """Calls that wait for approval."""


async def follow_run(
    mirror: Mirror,
    session: SessionId,
    run: RunId,
    *,
    wait_s: float = math.inf,
    ownerless_s: float = OWNERLESS_S,
    owned: bool = False,
    through_stops: bool = False,
    named: NamedUser | None = None,
    output_type: type[object] | None = None,
) -> RunResult[Any] | Stuck:
    """Return how a run ended, once it has, or why that cannot be awaited.

    Args:
        mirror: joined by the caller.
        run: an input of it is in the log.
        wait_s: for how long to wait at most.
        ownerless_s: for how long to wait for a runtime to own the log, where none does.
        owned: whether a runtime owned the log just before, as far as the caller knows.
        through_stops: wait on while the run waits for a person, and while no runtime owns the log.
        named: the user who asks, who gets CommandRejected where the session is another's; None = trusted code.
    """
    clock, kept = mirror.clock, mirror.reading
    until_s, ownerless_since_s, seen = clock.monotonic_s() + wait_s, math.inf, -1
    with mirror.news_of(session) as news:
        came = True
        while True:
            now_s = clock.monotonic_s()
            # Asked before the log is read, which has all that one who left wrote.
            if through_stops or mirror.has_owner():
                owned, ownerless_since_s = True, math.inf
            else:  # What came may be of a process that had the log for a moment.
                ownerless_since_s = now_s if came else min(now_s, ownerless_since_s)
            if came or await kept.version(session) != seen:  # Of more sessions than are kept a state is read anew.
                state = await kept.state(session)
                seen = state.version
                if named is not None:
                    named.check(state.user)
                stuck = stuck_run(state) if not through_stops else None  # At once, since the state goes on.
                try:
                    status = await run_status(kept, state, session, run, output_type)
                except StreamDeleted:
                    return Stuck(why=f"session {session!r} was deleted")
                if status.result is not None:
                    return status.result
                if stuck is not None:
                    return stuck
            if now_s - ownerless_since_s >= ownerless_s:
                any_more = " any more" if owned else ""
                return Stuck(why=f"no runtime owns the log{any_more}; {run} goes on when one does")
            if now_s >= until_s:
                return Stuck(why=f"{run} has not ended yet")
            came = await news.wait(min(LOOK_ANYWAY_S, until_s - now_s))


async def run_status(
    kept: ReadLog, state: SessionState, session: SessionId, run: RunId, output_type: type[object] | None
) -> RunStatus[Any]:
    """Return where a run stands in the state that its session has now; raise StreamDeleted where that is deleted."""
    if (now := open_state_of(state, run)) is not None:
        return RunStatus(now)
    ended = ended_in(state, run) or await ended_in_log(kept.recorded_after, session, run)
    if ended is None:  # It began between the two readings.
        return RunStatus("open")
    finished = ended.finished or (await kept.state_at(session, ended.version)).last_run
    assert finished is not None
    return ended_status(await result_of(finished, kept.store, output_type))


def stuck_run(state: SessionState) -> Stuck | None:
    """Return what the open run of a session waits for that a person must do; None = it goes on with a runtime."""
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
