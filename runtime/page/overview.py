"""The sessions of a log as the page lists them: read once, and again where events came in since.

What a session cost is in the events that ended its runs, so those of a log are gone through once, in slices.
"""

from typing import Final, Literal, get_args

import msgspec

from refold.events.core.codec import tag_of
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import StreamName
from refold.events.model.messages import Usage
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.state import is_of_person
from refold.inspection.log_reading import kind_of
from refold.inspection.session_view import ListedSession, SessionStatus, list_sessions, listed_session
from refold.stores.event_store import EventStore
from refold.stores.past_state import last_position

SESSIONS_PER_SLICE: Final = 100
EVENTS_PER_SLICE: Final = 2_000

PER_PAGE_MAX: Final = 500

_TERMINAL: Final = frozenset(str(event.__struct_config__.tag) for event in get_args(ev.TerminalEvent))

Order = Literal["recent", "name", "cost", "events"]


class WantedPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the list of sessions is asked for."""

    text: str = ""
    """What the name, the user, the metadata or the first input holds, in upper or lower case."""
    user: str = ""
    """Whose they are; empty = any user's."""
    status: str = ""
    """Which one of them they have, with commas between several; empty = any."""
    order: Order = "recent"
    """The most recent, the dearest or the longest first; or by name."""
    first: int = 0
    """How many are left out before."""
    limit: int = 50


class SessionSpending(msgspec.Struct):
    """What the ended runs of a session came to."""

    runs: int = 0
    cost: float = 0.0
    usage: Usage = Usage()


class ShownSession(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list."""

    listed: ListedSession
    runs: int
    """That have ended; so with the next two."""
    cost: float
    usage: Usage


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the list."""

    sessions: tuple[ShownSession, ...]
    found: int
    """How many there are that fit."""
    total: int
    """How many there are."""
    statuses: dict[str, int]
    """How many of each status there are among those that fit but for their status."""
    complete: bool
    """Whether all were read; else ask again."""
    position: int
    """Of the last event that was read."""
    waiting: int
    """Calls that wait for a person, and questions, of all sessions that were read."""
    uncounted: int
    """Runs whose ends cannot be read, so that what they cost is missing."""


class Sessions:
    """The sessions of a log, as far as they were read."""

    def __init__(self) -> None:
        self.position: int | None = None
        """Events up to here are in what is listed; None = reading has not begun."""
        self._listed: dict[str, ListedSession] = {}
        self._after: str | None = ""
        """The last name that was listed; None = all were."""
        self._spent: dict[StreamName, SessionSpending] = {}
        self._spent_until = 0
        self._uncounted = 0

    async def advance(self, store: EventStore) -> bool:
        """Read a slice more of the log; return whether all of it is read."""
        if self.position is None:
            self.position = await last_position(store)
        if self._after is not None:
            page = await list_sessions(store, limit=SESSIONS_PER_SLICE, after=self._after or None)
            self._listed |= {listed.session: listed for listed in page}
            self._after = page[-1].session if len(page) == SESSIONS_PER_SLICE else None
            return False
        new = await store.read_all(after_position=self.position, limit=EVENTS_PER_SLICE)
        for stream in {event.stream for event in new if kind_of(event.stream) == SESSION_KIND}:
            head = await store.head(stream)
            if head is not None:
                listed = await listed_session(store, head)
                self._listed[listed.session] = listed
        self.position = new[-1].position if new else self.position
        ended = await store.read_all(after_position=self._spent_until, limit=EVENTS_PER_SLICE)
        for event in ended:
            if kind_of(event.stream) == SESSION_KIND and tag_of(event.data) in _TERMINAL:
                try:
                    self._count(event.stream, SESSION_CODEC.decode(event))
                except LogFormatError:  # `refold check` says where.
                    self._uncounted += 1
        self._spent_until = ended[-1].position if ended else self._spent_until
        return len(new) < EVENTS_PER_SLICE and len(ended) < EVENTS_PER_SLICE

    @property
    def waiting(self) -> int:
        """Calls that wait for a person, and questions, of the sessions that were listed."""
        return sum(is_of_person(key) for listed in self._listed.values() for key in listed.pending)

    def _count(self, stream: StreamName, event: ev.SessionEvent) -> None:
        if isinstance(event, ev.TerminalEvent):
            spent = self._spent.setdefault(stream, SessionSpending())
            spent.runs += 1
            if event.totals is not None:
                spent.cost += event.totals.cost
                spent.usage += event.totals.usage

    def shown(
        self,
        wanted: WantedPart,
        *,
        complete: bool = True,
    ) -> Overview:
        """Return one page of those that fit; `complete` says whether all of the log was read."""
        needle = wanted.text.casefold()
        fitting = [
            listed
            for listed in self._listed.values()
            if (not wanted.user or listed.user == wanted.user) and (not needle or needle in _said(listed))
        ]
        counts: dict[str, int] = dict.fromkeys(get_args(SessionStatus), 0)
        for listed in fitting:
            counts[listed.status] += 1
        statuses = frozenset(filter(None, wanted.status.split(",")))
        found = [self._shown(listed) for listed in fitting if not statuses or listed.status in statuses]
        found.sort(key=lambda shown: shown.listed.session)
        match wanted.order:
            case "recent":
                found.sort(key=lambda shown: shown.listed.at, reverse=True)
            case "cost":
                found.sort(key=lambda shown: shown.cost, reverse=True)
            case "events":
                found.sort(key=lambda shown: shown.listed.version, reverse=True)
            case "name":
                pass
        first, limit = max(wanted.first, 0), min(max(wanted.limit, 1), PER_PAGE_MAX)
        return Overview(
            sessions=tuple(found[first : first + limit]),
            found=len(found),
            total=len(self._listed),
            statuses={name: count for name, count in counts.items() if count},
            complete=complete,
            position=self.position or 0,
            waiting=self.waiting,
            uncounted=self._uncounted,
        )

    def children_of(self, session: str) -> list[ListedSession]:
        """Return the sessions that calls in one began, the oldest first, as far as they were read."""
        found = [listed for listed in self._listed.values() if listed.parent == session]
        return sorted(found, key=lambda listed: listed.began_at)

    def forks_of(self, session: str) -> list[ListedSession]:
        """Return the sessions that go on from an event of one, likewise."""
        origin = f"{SESSION_KIND}/{session}@"
        found = [listed for listed in self._listed.values() if (listed.forked_from or "").startswith(origin)]
        return sorted(found, key=lambda listed: listed.began_at)

    def _shown(self, listed: ListedSession) -> ShownSession:
        spent = self._spent.get(StreamName(f"{SESSION_KIND}/{listed.session}"), SessionSpending())
        return ShownSession(listed=listed, **msgspec.structs.asdict(spent))


def _said(listed: ListedSession) -> str:
    said = (listed.session, listed.user or "", listed.first_input, *listed.metadata.values())
    return "\n".join(said).casefold()
