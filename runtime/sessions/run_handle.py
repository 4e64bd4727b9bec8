"""A run as everybody may hold it: found by its id, awaited, cancelled, and read from any place on.

Read `RunHandle` first. It is as light as a `Session`: what is known of the run lies in the log, so a handle may be made
at any time, also after the run has ended, and by any process. The rule: a caller that stops waiting or reading leaves
the run alone.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Literal, Self, TypeAlias

from refold.events.core.cleaning import recorded_reason
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import Json
from refold.events.core.errors import ConfigError, StreamDeleted, quoted
from refold.events.core.ids import RunId, SessionId, stream_name
from refold.events.model.configuration import RunOptions
from refold.events.model.messages import delta_text
from refold.events.session.commands import CancelRun
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.events import (
    InputQueued,
    ModelFailed,
    ModelInterrupted,
    ModelResponded,
    TimerSet,
)
from refold.events.session.state import FinishedRun, SessionKey, SessionState, awaits_person, run_of_input
from refold.publishing.event_bus import EndedRun, EventBus, cancelled_in_queue
from refold.publishing.notifications import Published, RecordedSessionEvent, Streamed
from refold.publishing.subscription import CAPACITY, FollowableSession, ReadEvents, ReadingPlace, Subscription
from refold.sessions.access import SessionAccess
from refold.sessions.inputs import checked_key
from refold.sessions.outcome import Cancelled, Completed, Failed, RunResult, Tripped
from refold.sessions.sent_input import RunEvents, finished_at
from refold.sessions.stream import PartialOutput
from refold.stores.event_store import EventStore
from refold.type_parameters import Out_co

EVENTS_PAGE = 1000
"""How many events are read from the log at once."""


RunState: TypeAlias = Literal["queued", "open", "waiting", "parked", "completed", "failed", "cancelled"]
"""`waiting`: for a person; `parked`: until a person resumes or cancels it; `queued`: for other runs, or its time."""

_WORDS: dict[type, RunState] = {Completed: "completed", Failed: "failed", Tripped: "failed", Cancelled: "cancelled"}


@dataclass(frozen=True)
class RunStatus(Generic[Out_co]):
    """Where a run stands.

    Attributes:
        state: in one word.
        result: how it ended; None while it has not.
    """

    state: RunState
    result: RunResult[Out_co] | None = None


class RunHandle(Generic[Out_co]):
    """One run; get it from `Session.submit`, `Session.run` or `AgentRuntime.run`."""

    def __init__(self, access: SessionAccess, run: RunId) -> None:
        self.session: SessionId = access.session
        self.run = run
        """Its id within the session."""
        self._access = access

    def __repr__(self) -> str:
        return f"RunHandle({self.id!r})"

    @property
    def id(self) -> str:
        """What `AgentRuntime.run` finds it by, in any process: the session's id, a slash, the run's."""
        return f"{self.session}/{self.run}"

    async def result(self) -> RunResult[Out_co]:
        """Return how the run ended, once it has; any number of callers, also long after its end.

        Cancelling the task that awaits this stops the wait and leaves the run alone.

        Raises:
            ActorStopped: the runtime closed before the run ended; it goes on at the next start.
            AskCycle: a tool waits for the run of a session that waits for that tool.
            StreamDeleted: the session was deleted.
            PersistenceError: the log cannot be read.
        """
        access, bus = self._access, self._access.context.event_bus
        async with access.own():
            return await access.result(await self._finished(access, bus))

    async def status(self) -> RunStatus[Out_co]:
        """Return where the run stands now, without waiting for its end.

        Raises:
            StreamDeleted: the session was deleted.
            PersistenceError: the log cannot be read.
        """
        access = self._access
        async with access.own():
            state: RunState | None = await access.read(lambda state: open_state_of(state, self.run))
            if state is not None:
                return RunStatus(state)
            ended = await access.read(lambda state: ended_in(state, self.run)) or await self._ended_in_log()
            if ended is None:  # It began between the two readings.
                return RunStatus("open")
            return ended_status(await access.result(await finished_at(access, ended)))

    async def _finished(self, access: SessionAccess, bus: EventBus) -> FinishedRun:
        # First the follower, then the look at the state. In the other order a run could end between the two, and would
        # be waited for until the runtime closes. A run that has ended in the log may still have a tool at work here
        # (`is_ending`); a caller who has its result can rely on it that nothing of the run acts any more.
        with bus.follow(self.session) as follower:
            bus.await_only(self.session, self.run, follower)
            ended = await access.read(lambda state: ended_in(state, self.run))
            if ended is None and not await access.read(lambda state: is_open_in(state, self.run)):
                ended = await self._ended_in_log()
            if ended is None or bus.is_ending(self.session, self.run):
                over = access.context.tool_waits.begin(access.context.system, self.session)
                try:
                    ended = await follower.ended(self.run)
                finally:
                    over()
        return await finished_at(access, ended)

    async def cancel(self, *, reason: str | None = None) -> None:
        """End the run as cancelled, and return when that is durable; one that has ended stays.

        Raises:
            PersistenceError: it could not be recorded.
        """
        bus, why = self._access.context.event_bus, recorded_reason(reason) if reason is not None else None
        with bus.follow(self.session) as follower:
            performed = await self._access.ask(CancelRun(run=self.run, reason=why))
            if performed.new:
                await follower.ended(self.run)

    def stream(self, after: "str | int" = 0, *, capacity: int = CAPACITY) -> "RunReader":
        """Return an async iterator of what happened in the run, and then of what happens, up to its end.

        It yields as `Session.follow`, of this run only. The answer that is streamed when the reader comes is among it,
        from its beginning; so a client that was cut off goes on with what it does not have.

        Args:
            after: a version of the session, of which everything before is left out; or the `place` of an earlier
                reader, of this process or another one.
            capacity: how many items may wait for the reader, >= 1.

        Raises:
            ConfigError: an argument makes no sense, or the runtime is not open.
            ActorStopped: the runtime is closed.
        """
        self._access.context.require_open()
        is_json = self._access.output_type is not None
        return RunReader(self._access.followed(), self.run, place_of(after), capacity, is_json=is_json)

    async def _ended_in_log(self) -> EndedRun | None:
        return await ended_in_log(self._access.recorded_after, self.session, self.run)


class RunReader:
    """What happens in a run, for one reader; an async iterator and an async context manager.

    Made by `RunHandle.stream`. It ends with the run, or when the runtime closes. Who leaves it changes nothing.
    """

    def __init__(
        self,
        followed: FollowableSession,
        run: RunId,
        start: ReadingPlace,
        capacity: int = CAPACITY,
        *,
        begun: Subscription | None = None,
        is_json: bool = False,
    ) -> None:
        """Begin at the run's input, or behind `start`.

        Args:
            is_json: its answers are JSON values.
            begun: what was begun before the run was known, so that nothing of it is missed; None = nothing.
        """
        self.session: SessionId | None = followed.session
        self._run = run
        self._start = start
        self._events = RunEvents(run)
        self._version, self._asked, self._offset = start.version, start.asked, start.offset
        self._partial = PartialOutput(is_json=is_json)
        self._over = False
        # From the run's beginning, since what an event is about follows from those before it.
        self._subscription = begun or followed.subscribe(
            read=events_from(followed.read, run), capacity=capacity, after_version=input_of(run) - 1, known=start
        )
        if begun is not None:
            begun.go_back(input_of(run) - 1)
        self._subscription.wants = lambda item: not isinstance(item, Streamed) or item.run == run
        if (begin_wait := followed.begin_wait) is not None:
            events = self._events  # Of a run that has begun more may come while it waits for the tool that reads it.
            self._subscription.begin_wait = lambda: begin_wait(may_end=events.is_open)

    @property
    def ended(self) -> EndedRun | None:
        """How the run has ended, once its end was read."""
        return self._events.ended

    @property
    def partial_output(self) -> Json:
        """What there is of the answer that is streamed, as of `RunStream.partial_output`.

        None where this reader begins in the middle of the answer, and in a process that does not know the run's type
        it is the text.
        """
        return self._partial.value

    @property
    def place(self) -> str:
        """Where the reader is: `stream(after=place)` goes on behind the last item, without gap or repetition.

        It is short and has no spaces, such as an `id` of Server-Sent Events.
        """
        return str(ReadingPlace(self._version, self._asked, self._offset))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Published:
        """Return what happened, or happens, next.

        Raises:
            StreamDeleted: the session was deleted before the reader had anything; later, the reader ends.
            PersistenceError: the log cannot be read; ask again.
            CommandRejected: the session turned out to be another user's.
            ActorStopped: the runtime closed before this reader had seen all events; the log has them.
            AskCycle: the run has not begun, and its session waits for the tool that reads.
        """
        while not self._over:
            item = await anext(self._subscription)
            if self._shows(item):
                return item
        raise StopAsyncIteration

    def _shows(self, item: Published) -> bool:
        match item:
            case Streamed():
                self._asked, self._offset = item.asked, item.offset + len(delta_text(item.delta))
                self._partial.see(item)
                return True
            case RecordedEvent():
                about = self._events.include(item.version, item.event)
                if about:
                    self._partial.see(item)
                if self._events.ended is not None:
                    self.close()
                if item.version <= self._start.version:
                    return False
                self._version = item.version
                if isinstance(item.event, ModelResponded | ModelInterrupted | ModelFailed):
                    self._asked = self._offset = 0  # There is nothing left to come back into.
                return about
            case _:
                self._partial.see(item)
                return self._events.is_open

    def close(self) -> None:
        """Leave, any number of times."""
        self._over = True
        self._subscription.close()

    async def aclose(self) -> None:
        """Leave, as `close` does."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def events_from(recorded_after: ReadEvents, run: RunId) -> ReadEvents:
    """Return what reads a session's events, and raises StreamDeleted where the log has not even the input of a run."""

    async def read(session: SessionId, after_version: int, limit: int) -> list[RecordedSessionEvent]:
        page = await recorded_after(session, after_version, limit)
        if not page and after_version < input_of(run):
            raise StreamDeleted(stream_name(SESSION_KIND, session))
        return page

    return read


async def ended_in_log(recorded_after: ReadEvents, session: SessionId, run: RunId) -> EndedRun | None:
    """Return how a run ended, read from its input on; None = it has not."""
    version, events = input_of(run) - 1, RunEvents(run)
    while page := await events_from(recorded_after, run)(session, version, EVENTS_PAGE):
        for recorded in page:
            events.include(recorded.version, recorded.event)
            if events.ended is not None:
                return events.ended
        version = page[-1].version
    return None


def ended_status(result: RunResult[Out_co]) -> RunStatus[Out_co]:
    """Return the status of a run that ended so."""
    return RunStatus(_WORDS[type(result.outcome)], result)


def run_id_parts(run_id: str) -> tuple[SessionId, RunId]:
    """Return the session and the run of the id of a run; raise ConfigError if it cannot be one."""
    session, _, run = run_id.rpartition("/") if isinstance(run_id, str) else ("", "", "")
    if not session or not is_run(run):
        raise ConfigError(f"the id of a run is like 'alice/run_3', as `RunHandle.id` says, not {quoted(run_id)}")
    return SessionId(session), RunId(run)


def is_run(run: str) -> bool:
    """Tell whether a text can be the id of a run within its session."""
    return re.fullmatch("run_[1-9][0-9]{0,17}", run) is not None


def input_of(run: RunId) -> int:
    """Return the version of the event that accepted the input of a run."""
    return int(run.removeprefix("run_"))


def place_of(after: str | int) -> ReadingPlace:
    """Return the place that a version or the text of a place names, or raise ConfigError."""
    text = after if isinstance(after, str) else quoted(after) if type(after) is int else ""
    parts = text.split(".")
    if len(parts) in (1, 3) and all(part.isascii() and part.isdecimal() and len(part) < 19 for part in parts):
        return ReadingPlace(*map(int, parts))
    raise ConfigError(f"a place is a version, or what `RunReader.place` says, not {quoted(after)}")


def ended_in(state: SessionState, run: RunId) -> EndedRun | None:
    """Return how a run ended, where that is at hand."""
    found: FinishedRun | None = state.last_run if state.last_run is not None and state.last_run.run == run else None
    if found is not None:
        return EndedRun(found.version, found)
    for queued in state.queue:
        if queued.run == run and queued.cancelled:
            return EndedRun(queued.version, cancelled_in_queue(run, queued.version))
    for record in state.keys.values():
        if record.run == run and record.terminal and record.finished is not None:
            return EndedRun(record.terminal, record.finished)
        if record.run == run and record.cancelled:
            return EndedRun(record.cancelled, cancelled_in_queue(run, record.cancelled))
    return None


def open_state_of(state: SessionState, run: RunId) -> RunState | None:
    """Return where a run stands that has not ended; None = it has, or is another's."""
    if not is_open_in(state, run) or ended_in(state, run) is not None:
        return None
    if state.run is None or state.run.id != run:
        return "queued"
    if state.run.parked:
        return "parked"
    return "waiting" if awaits_person(state.run, state.turn) else "open"


def is_open_in(state: SessionState, run: RunId) -> bool:
    """Tell whether a run is under way, or its input waits."""
    waiting = [queued.run for queued in state.queue] + [run_of_input(entry.version) for entry in state.scheduled]
    return run in waiting or (state.run is not None and state.run.id == run)


async def known_run(
    store: EventStore,
    session: SessionId,
    run: RunId | str | None,
    key: str | None,
    recorded: Callable[[str], SessionKey | None],
) -> tuple[RunId, RunOptions | None]:
    """Return the id of a run that is named by it, or by the key of its input, and the options of its input.

    Args:
        store: the log.
        session: whose it is.
        run: its id, or None.
        key: instead of it, the key of its input.
        recorded: returns what the session has under a key.
    """
    if (run is None) == (key is None):
        raise ConfigError("give either the id of a run or the key of its input")
    if key is not None:
        record = recorded(checked_key(key) or "")
        if record is None or record.run is None:
            raise ConfigError(f"session {session!r} has no input with the key {quoted(key)}")
        run = record.run
    if isinstance(run, str) and is_run(run):
        stream = stream_name(SESSION_KIND, session)
        page = await store.read_stream(stream, after_version=input_of(RunId(run)) - 1, limit=1)
        match SESSION_CODEC.decode_all(page):
            case [(InputQueued(joins=None, scheduled=0) | TimerSet(every=None)) as event]:
                return RunId(run), event.options
            case _:
                pass
    raise ConfigError(
        f"session {session!r} has no run {quoted(run)}; a reminder that comes again has one for each time"
    )
