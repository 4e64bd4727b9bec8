"""The readers of one session, or of all sessions, and how they are told what happens.

Few are told at once. A crowd is told in rounds: so many at each turn of the loop, each of everything that has happened
since it was told last; and after a round the loop has three times as long for all else as that took. So a run that
thousands follow goes on beside their reading, and they read several of its events for one waking.

The rule: a reader never sees that it is told late. Before it looks at what it has, or is asked to change what it waits
for, it is told the rest.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias
from weakref import WeakValueDictionary

from refold.events.core.ids import SessionId
from refold.publishing.answers import AnswerSoFar
from refold.publishing.notifications import Progressed, RecordedSessionEvent, Streamed

READERS_AT_ONCE = 64
"""So many readers are told before the loop has another turn; more of them are a crowd."""

PAUSE = 3.0
"""How long the loop has for all else after a round, in times of what that took."""

PAUSE_MAX_S = 0.2

Publication: TypeAlias = Sequence[RecordedSessionEvent] | Streamed | Progressed
"""A batch that has become durable, or what passes by."""

_News: TypeAlias = tuple[SessionId, Publication, AnswerSoFar | None]


class ToldReader(Protocol):
    """Takes what happens."""

    told: int
    """Of the news of its readers, how many it has been told or are from before it; for `Readers`."""

    def put(self, session: SessionId, news: Publication, answer: AnswerSoFar | None) -> None: ...

    def end(self) -> None: ...


class Readers:
    """Those who follow the same, held weakly; who came first is told first."""

    __slots__ = ("_joined", "_joined_for", "_known", "_members", "_news", "_rest", "_round_began_at", "_round_upto")

    def __init__(self) -> None:
        self._members: WeakValueDictionary[int, ToldReader] = WeakValueDictionary()
        self._news: list[_News] = []
        """What not every reader has been told."""
        self._known = 0
        """How many news came before those."""
        self._rest: list[Callable[[], ToldReader | None]] | None = None
        """Whose turn is still to come in the present round, the next one last; None = there is no round."""
        self._joined_for = (0, 0)
        self._joined: Sequence[_News] = ()
        """The news between those two numbers."""
        self._round_upto = 0
        self._round_began_at = 0.0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ToldReader]:
        return iter([*self._members.values()])

    def add(self, reader: ToldReader) -> None:
        reader.told = self._known + len(self._news)
        self._members[id(reader)] = reader

    def drop(self, reader: ToldReader) -> None:
        self._members.pop(id(reader), None)

    def publish(self, session: SessionId, news: Publication, answer: AnswerSoFar | None) -> None:
        """Tell all, now or soon; `answer` is that of which the news is a piece."""
        if self._rest is None and len(self._members) <= READERS_AT_ONCE:
            for reader in self:
                reader.put(session, news, answer)
            return
        self._news.append((session, news, answer))
        if self._rest is None:
            self._begin_round()

    def tell(self, reader: ToldReader) -> None:
        """Tell a reader what it has not been told yet."""
        place = (reader.told, self._known + len(self._news))
        if place[0] == place[1]:
            return
        if self._joined_for != place:  # Most readers have been told as much as the one before.
            self._joined_for, self._joined = place, _joined(self._news[reader.told - self._known :])
        reader.told = place[1]
        for each in self._joined:
            reader.put(*each)

    def _begin_round(self) -> None:
        loop = asyncio.get_running_loop()
        self._rest = [*reversed(self._members.valuerefs())]
        self._round_upto = self._known + len(self._news)
        self._round_began_at = loop.time()
        loop.call_soon(self._tell_some, loop)

    def _tell_some(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._rest is not None
        some = self._rest[: -READERS_AT_ONCE - 1 : -1]
        del self._rest[-READERS_AT_ONCE:]
        try:
            for reference in some:
                reader = reference()
                if reader is not None:
                    self.tell(reader)
        finally:  # Also after a KeyboardInterrupt, or no reader would be told any more.
            loop.call_soon(self._tell_some if self._rest else self._end_round, loop)

    def _end_round(self, loop: asyncio.AbstractEventLoop) -> None:
        del self._news[: self._round_upto - self._known]
        self._known = self._round_upto
        self._joined_for, self._joined = (0, 0), ()
        loop.call_later(min(PAUSE * (loop.time() - self._round_began_at), PAUSE_MAX_S), self._go_on)

    def _go_on(self) -> None:
        self._rest = None
        if self._news:
            self._begin_round()


def _joined(news: Sequence[_News]) -> list[_News]:
    """Return the same with batches that follow on each other as one."""
    joined: list[_News] = []
    for session, published, answer in news:
        before, last, _ = joined[-1] if joined else (None, None, None)
        if session != before or isinstance(published, Streamed | Progressed) or isinstance(last, Streamed | Progressed):
            joined.append((session, published, answer))
        elif last is not None and last[-1].version + 1 == published[0].version:
            joined[-1] = (session, [*last, *published], None)
        else:
            joined.append((session, published, answer))
    return joined
