"""Following sessions as they go on: every event once and in order, and what passes by as far as there is room.

The rules: a slow reader slows nobody; what waits for it never exceeds its capacity; what passes by and finds no room
is counted and reported; and events that find no room are read from the log when their turn comes, with no gap.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self

import msgspec

from refold.actors.kernel.errors import ActorStopped
from refold.events.core.errors import ConfigError, PersistenceError, quoted
from refold.events.core.ids import SessionId
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import ModelFailed, ModelResponded, RunCancelled, RunCompleted, RunFailed
from refold.publishing.answers import AnswerSoFar
from refold.publishing.notifications import Missed, Progressed, Published, RecordedSessionEvent, Streamed
from refold.publishing.readers import Publication
from refold.stores.event_store import EventStore

CAPACITY = 1000
"""How many items wait for a reader, where nothing else is said."""

PAGE = 1000
"""At most so many events are read from the log at once."""

ANSWER_OVER = (ModelResponded, ModelFailed, RunCompleted, RunFailed, RunCancelled)
"""Events behind which nothing comes of an answer that was asked for before."""

ReadEvents = Callable[[SessionId, int, int], Awaitable[list[RecordedSessionEvent]]]
"""Given a session, a version and a limit, returns the next events after that version."""

Admit = Callable[[Published | None], Awaitable[None]]
"""Given an item that comes next, raises where its reader may not have it; None = something that was missed."""


class BeginWait(Protocol):
    """Takes note that a reader of a run waits, and returns what ends that.

    Raises AskCycle where the reader would wait for itself, unless what it waits for may come before that ends.
    """

    def __call__(self, *, may_end: bool) -> Callable[[], None]: ...


class Publisher(Protocol):
    """Who puts items into subscriptions."""

    def add(self, subscription: "Subscription") -> None:
        """Put into it what happens from now on; it is held weakly."""
        ...

    def drop(self, subscription: "Subscription") -> None: ...

    def tell(self, subscription: "Subscription") -> None:
        """Put into it what has happened, where that is still to come."""
        ...

    def answer_so_far(self, session: SessionId) -> AnswerSoFar | None:
        """Return the answer that is streamed in a session now, if there is one."""
        ...


class FollowableSession(msgspec.Struct, frozen=True):
    """A session as its readers reach it."""

    session: SessionId
    publisher: Publisher
    read: ReadEvents
    admit: Admit | None = None
    """None = its readers may have all."""
    begin_wait: BeginWait | None = None
    """None = nothing is noted."""

    def subscribe(
        self,
        *,
        read: ReadEvents | None = None,
        capacity: int = CAPACITY,
        after_version: int | None = None,
        known: "ReadingPlace | None" = None,
    ) -> "Subscription":
        """Begin to take what happens there; see `Subscription`. `read` takes the place of the session's own."""
        return Subscription(
            self.publisher,
            read or self.read,
            self.session,
            capacity=capacity,
            after_version=after_version,
            known=known,
            admit=self.admit,
        )


class ReadingPlace(msgspec.Struct, frozen=True):
    """How far a reader has come in a session; as text `version`, or `version.asked.offset` within an answer."""

    version: int = 0
    """Of the last event."""
    asked: int = 0
    """Version of the event that wants the answer of which the last piece was; 0 = there was none since."""
    offset: int = 0
    """How many characters of that answer it has."""

    def __str__(self) -> str:
        return f"{self.version}.{self.asked}.{self.offset}" if self.asked else str(self.version)


class _Behind:
    """What of one session is to be read from the log."""

    __slots__ = ("after", "open_ended", "upto")

    def __init__(self, after: int, upto: int, *, open_ended: bool) -> None:
        self.after = after
        self.upto = upto
        self.open_ended = open_ended
        """Whether the log may have more than is known of, events from before the subscription."""


class Subscription:
    """Yields what happens in one session, or in all: `async for item in subscription`.

    Made by `Session.follow` and `AgentRuntime.follow`, from which moment it sees everything. Of a session, events
    come in the order of their versions, each once; between sessions no order is promised. It ends when the runtime
    closes. Leave it by `async with`, or by `close`; one that nobody holds any more goes by itself.
    """

    def __init__(
        self,
        publisher: Publisher,
        read: ReadEvents,
        session: SessionId | None,
        *,
        capacity: int = CAPACITY,
        after_version: int | None = None,
        known: ReadingPlace | None = None,
        admit: Admit | None = None,
    ) -> None:
        """Begin to take what happens.

        Args:
            publisher: who puts it in.
            read: reads the log.
            session: None = all.
            capacity: how many items may wait for the reader, >= 1.
            after_version: begin in the log, after this version; None = from now on.
            known: what the reader has had of an answer that is still streamed, perhaps.
            admit: awaited before each item; None = the reader may have all.
        """
        self._known = known or ReadingPlace()
        self._admit = admit
        self.session = session
        """The session that it follows; None = all."""
        self.wants: Callable[[Streamed | Progressed], bool] | None = None
        """What passes by and is of no interest is not counted as missed; None = everything is of interest."""
        self.begin_wait: Callable[[], Callable[[], None]] | None = None
        """Called when nothing is there and the reader begins to wait; it returns what ends that. None = nothing is."""
        self.told = 0
        """See `ToldReader`."""
        self._closed = True
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ConfigError(
                f"the capacity of a subscription must be a number of items above 0, not {quoted(capacity)}"
            )
        self._publisher = publisher
        self._read = read
        self._capacity = capacity
        self._items: deque[Published] = deque()
        self._reserved = 0
        self._missed = 0
        self._behind: dict[SessionId, _Behind] = {}
        self._first: int | None = None
        """Version of the first event that was put in as it became durable, of one session."""
        self._taken: int | None = None
        """Up to which version events are in the queue, or were yielded, of one session."""
        self._answered = 0
        """Version of the last event read from the log that ended an answer; what it ended may be told still."""
        self._owes_answer = False
        """Whether the answer that is streamed now comes next, since the reader began in the log."""
        self._held: AnswerSoFar | None = None
        """The answer of which pieces wait until the reader, who began in the log, has come so far."""
        self.joined = 0
        """So many pieces came within others, of an answer that had begun when the reader came so far."""
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._busy = False
        if after_version is not None:
            self._check_start(after_version)
            self._begin_after(after_version)
        self._closed = False
        publisher.add(self)

    def _check_start(self, after_version: int) -> None:
        if self.session is None:
            raise ConfigError("versions are of one session each; give after_version with a session only")
        if isinstance(after_version, bool) or not isinstance(after_version, int) or after_version < 0:
            raise ConfigError(f"after_version must be a version, or 0 for the beginning, not {quoted(after_version)}")

    def restart(self, after_version: int) -> None:
        """Forget what waits, and go on after a version of the session, from the log as far as it goes."""
        self._publisher.tell(self)
        self._begin_after(after_version)
        self._wake()

    def _begin_after(self, after_version: int) -> None:
        assert self.session is not None
        self._items.clear()
        self._missed = 0
        self._held = self._publisher.answer_so_far(self.session)
        self._taken = after_version
        self._behind[self.session] = _Behind(after_version, after_version, open_ended=True)

    def go_back(self, version: int) -> None:
        """Yield everything after a version of the session, also from before the subscription."""
        self._publisher.tell(self)
        if self._first is None or self._first > version + 1:
            self.restart(version)

    def expect(self, version: int) -> None:
        """Take note that the session's log goes as far as `version`, whether or not that was published."""
        assert self.session is not None
        self._publisher.tell(self)
        behind = self._behind.get(self.session)
        if behind is not None:
            behind.upto = max(behind.upto, version)
        elif self._taken is not None and self._taken < version:
            self._behind[self.session] = _Behind(self._taken, version, open_ended=False)
        self._wake()

    def put(self, session: SessionId, news: Publication, answer: AnswerSoFar | None) -> None:
        """Take a batch that has become durable, or what passes by, if there is room.

        Args:
            answer: of which what passes by is a piece.
        """
        if self._ended or self._closed:
            return
        if isinstance(news, Streamed | Progressed):
            self._put_passing(news, answer)
        elif (
            session not in self._behind
            and not self._missed
            and (self.session is None or self._taken is None or news[0].version == self._taken + 1)
            and len(self._items) + self._reserved + len(news) <= self._capacity
        ):
            self._items.extend(news)
            self._first = news[0].version if self._first is None else self._first
            self._taken = news[-1].version
        else:
            for recorded in news:
                self._put_event(session, recorded)
        self._wake()

    def _put_event(self, session: SessionId, recorded: RecordedSessionEvent) -> None:
        version, before = recorded.version, recorded.version - 1
        if self.session is not None and self._taken is not None:
            if version <= self._taken:
                return
            before = self._taken
        self._first = version if self._first is None else self._first
        behind = self._behind.get(session)
        if behind is not None:
            behind.upto = max(behind.upto, version)
        elif before == version - 1 and self._has_room():
            self._append(recorded)
            self._taken = version
        else:
            self._behind[session] = _Behind(before, version, open_ended=False)

    def _put_passing(self, item: Streamed | Progressed, answer: AnswerSoFar | None) -> None:
        if self.wants is not None and not self.wants(item):
            return
        if isinstance(item, Streamed) and item.asked < self._answered:
            return
        behind = self._behind.get(item.session)
        if isinstance(item, Streamed) and (self._owes_answer or (behind is not None and behind.open_ended)):
            self._hold(answer)
            return  # It is part of the answer so far, which comes behind what is read from the log.
        if item.session in self._behind or not self._has_room():
            self._missed += 1
        else:
            self._append(item)

    def end(self) -> None:
        """Take nothing more; what waits is still yielded, but no part of an answer that the reader is not at yet."""
        self._publisher.tell(self)
        self._ended = True
        self._owes_answer = False
        self._hold(None)
        self._wake()

    def close(self) -> None:
        """Leave: nothing more is taken or yielded. Any number of times."""
        if not self._closed:
            self._closed = True
            self._items.clear()
            self._behind.clear()
            self._held = None
            self._publisher.drop(self)
            self._wake()

    async def aclose(self) -> None:
        """Leave, as `close` does."""
        self.close()

    def __del__(self) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Published:
        """Return the next item; cancelling this loses nothing.

        Raises:
            PersistenceError: the log cannot be read; ask again.
            ActorStopped: the runtime closed before this reader had seen all events; the log has them.
            ConfigError: another task waits for the next item already.
            CommandRejected: the session turned out to be another user's.
        """
        if self._items and self._admit is None and not self._busy:
            return self._items.popleft()
        item = await self.take(_never)
        if item is None:
            raise StopAsyncIteration
        return item

    async def take(self, enough: Callable[[], bool]) -> Published | None:
        """Return the next item, or None where there is none and none will come, or `enough` says so."""
        if self._busy:
            raise ConfigError("another task reads this subscription already; make one for each reader")
        self._busy = True
        try:
            while not self._closed:
                if not self._items:
                    self._publisher.tell(self)
                if self._admit is not None and (self._items or self._missed):
                    first = self._items[0] if self._items else None
                    await self._admit(first)
                    if first is not (self._items[0] if self._items else None):  # It began anew meanwhile.
                        continue
                if self._items:
                    return self._items.popleft()
                if self._missed:
                    count, self._missed = self._missed, 0
                    return Missed(count)
                if self._behind:
                    await self._catch_up()
                elif self._owes_answer:
                    self._take_answer()
                elif self._ended or enough():
                    return None
                else:
                    await self._wait()
            return None
        finally:
            self._busy = False
            self._reader = None

    async def _wait(self) -> None:
        over = self.begin_wait() if self.begin_wait is not None else None
        try:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        finally:
            if over is not None:
                over()

    def _has_room(self) -> bool:
        return len(self._items) + self._reserved + (1 if self._missed else 0) < self._capacity

    def _append(self, item: Published) -> None:
        if self._missed:
            self._items.append(Missed(self._missed))
            self._missed = 0
        self._items.append(item)

    async def _catch_up(self) -> None:
        """Read the next page of a session that is behind; what comes meanwhile finds that much less room."""
        session, behind = next(iter(self._behind.items()))
        wanted = self._capacity if behind.open_ended else min(self._capacity, behind.upto - behind.after)
        limit = self._reserved = min(wanted, PAGE)
        known = behind.upto
        try:
            page = await self._read(session, behind.after, limit)
            self._publisher.tell(self)  # Pieces of an answer come before the event that ends it, which may be read.
        except (ActorStopped, PersistenceError) as error:
            if self._ended:
                raise self._too_late(session, behind.after) from error
            raise
        finally:
            self._reserved = 0
        if self._behind.get(session) is not behind:  # It was closed or began anew meanwhile.
            return
        self._items.extend(page)
        if page:
            behind.after = page[-1].version
            if self.session is not None:
                self._taken = behind.after
                self._answered = max(
                    [self._answered, *(it.version for it in page if isinstance(it.event, ANSWER_OVER))]
                )
        if len(page) < limit:
            self._owes_answer = self._owes_answer or (behind.open_ended and not self._ended)
            behind.open_ended = False
        caught_up = behind.after >= behind.upto and not behind.open_ended
        if caught_up or (not page and known > behind.after):  # Or the log has lost what was published.
            del self._behind[session]

    def _hold(self, answer: AnswerSoFar | None) -> None:
        """Hold back the pieces of an answer; those of another one that is over by now are missed."""
        over, self._held = self._held, answer
        if over is not None and over is not answer and self._is_wanted(over):
            self._missed += over.count_after(self._known_of(over))

    def _take_answer(self) -> None:
        """Put in what the reader does not know of the answer that is streamed now."""
        self._owes_answer = False
        answer = self._publisher.answer_so_far(self.session) if self.session is not None else None
        self._hold(answer)
        self._held = None
        if answer is not None and answer.asked > self._answered and self._is_wanted(answer):
            known = self._known_of(answer)
            pieces = list(answer.after(known))
            self.joined += answer.count_after(known) - len(pieces)
            for piece in pieces:
                self._append(piece)

    def _is_wanted(self, answer: AnswerSoFar) -> bool:
        return self.wants is None or all(map(self.wants, answer.after(0)))

    def _known_of(self, answer: AnswerSoFar) -> int:
        """Return how many characters of an answer the reader has had."""
        known = self._known
        return known.offset if known.asked == answer.asked and known.version >= answer.since else 0

    def _too_late(self, session: SessionId, after: int) -> ActorStopped:
        self.close()
        why = f"the runtime closed before its reader had caught up; the log has what comes after version {after}"
        return ActorStopped(f"session/{session}", why)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _never() -> bool:
    return False


async def read_recorded(
    store: EventStore, stream: str, *, after_version: int, limit: int
) -> list[RecordedSessionEvent]:
    """Return the next `limit` events of a session's stream, or those there are."""
    page = await store.read_stream(stream, after_version=after_version, limit=limit)
    if not page or page[0].version == page[0].batch:
        return SESSION_CODEC.recorded(page)
    before = page[0].batch - 1  # What a batch goes back to is in its first event.
    first = await store.read_stream(stream, after_version=before, limit=1)
    return SESSION_CODEC.recorded([*first, *page])[len(first) :]
