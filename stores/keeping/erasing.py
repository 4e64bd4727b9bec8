"""Whole streams are deleted: their events, snapshots and payloads go, and a tombstone says what they were.

Read `refold.stores.event_store.ErasableLog` first. A tombstone keeps the version and the chain of a stream's end. The
chain covers every batch of the stream, so that who has a copy of it, such as an archive, can prove of each event that
it is the one that was deleted. The rules: a family of streams is deleted in one transaction, so that each of them is
there whole or not at all, however the process ends; a payload goes with the last stream that names it, and stays where
a stream that stays names it; and what fails half-way is completed when it is asked for again.
"""

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence, Set

import msgspec

from refold.events.core.errors import WrongExpectedVersion
from refold.events.core.ids import PayloadHash, StreamName
from refold.events.core.records import StreamHead
from refold.stores.event_store import ErasableLog, EventStore, TellProgress, untold
from refold.stores.forked import own_events
from refold.stores.past_state import last_position

EVENTS_PER_PAGE = 200

EVENTS_PER_TRANSACTION = 1_000
"""Families are deleted together until they have so many events. Appends wait for as long as one of these takes."""

NAMES_SOUGHT_MAX = 32
"""So few names are looked for one by one, which is faster than to find everything that could be a name."""

_NAMES = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")

Family = Sequence[StreamHead]
"""The ends of streams that are deleted together, a session's and its children's for instance."""


class Erased(msgspec.Struct, kw_only=True):
    """What was deleted."""

    families: list[Family] = []
    went_on: list[Family] = []
    """Stay, since something was appended to them meanwhile."""
    events: int = 0
    payloads: int = 0
    shared_payloads: int = 0
    """Stay, since streams that stay name them, too."""


async def erase(
    store: ErasableLog,
    families: Sequence[Family],
    *,
    at: int,
    kept: Collection[PayloadHash] = (),
    seen_to: int | None = None,
    progress: TellProgress = untold,
) -> Erased:
    """Delete families of streams, and the payloads that only they name.

    The log is read once, unless all of their payloads are found to be shared before its end.

    Args:
        store: the log.
        families: no stream stands in two of them.
        at: the time, microseconds since the epoch, UTC.
        kept: payloads that stay in any case.
        seen_to: the position up to which the forks of the families are known; None = they have none.
        progress: called from time to time with how many streams are deleted, and of how many.

    Raises:
        PersistenceError: the log cannot be read or written. What was deleted before stays deleted.
    """
    erased = Erased()
    end = await last_position(store) if seen_to is None else seen_to
    named = [(family, await payloads_of(store, [head.stream for head in family])) for family in families]
    own = {head.stream: await own_events(store, head) for family in families for head in family}
    users = Counter(payload for _, payloads in named for payload in payloads)
    shared = users.keys() & set(kept)
    doomed = {head.stream for family in families for head in family}
    shared |= await _named_beside(store, users.keys() - shared, doomed, end)
    groups = deque(_groups(named))
    while groups:
        group = groups.popleft()
        for _, payloads in group:
            users.subtract(payloads)
        only = {payload for _, payloads in group for payload in payloads if not users[payload]} - shared
        heads = [head for family, _ in group for head in family]
        try:
            erased.payloads += await store.delete_streams(heads, sorted(only), after_position=end, at=at)
        except WrongExpectedVersion:
            for _, payloads in group:
                users.update(payloads)
            if len(group) > 1:  # The others have nothing to do with the one that went on.
                groups.extendleft([each] for each in reversed(group))
            else:
                erased.went_on.append(group[0][0])
            continue
        erased.families += [family for family, _ in group]
        erased.events += sum(own[head.stream] for head in heads)
        progress("streams", sum(map(len, erased.families)), len(own))
    erased.shared_payloads = len(shared)
    return erased


_Named = tuple[Family, set[PayloadHash]]
"""A family, and the payloads that it names."""


def _groups(named: Sequence[_Named]) -> Iterator[list[_Named]]:
    group: list[_Named] = []
    size = 0
    for family, payloads in named:
        group.append((family, payloads))
        size += sum(head.version for head in family)
        if size >= EVENTS_PER_TRANSACTION:
            yield group
            group, size = [], 0
    if group:
        yield group


async def payloads_of(
    store: EventStore, family: Iterable[StreamName], *, until_position: int | None = None
) -> set[PayloadHash]:
    """Return the payloads that the events of streams name, or that these payloads name in turn.

    What events say is not known here, so each text that looks like the name of a payload counts as one.
    """
    found: set[PayloadHash] = set()
    for stream in family:
        version = 0
        while page := await store.read_stream(stream, after_version=version, limit=EVENTS_PER_PAGE):
            found.update(
                name
                for event in page
                if until_position is None or event.position <= until_position
                for name in names_in(event.data)
            )
            version = page[-1].version
    there: set[PayloadHash] = set()
    while found:
        name = found.pop()
        for data in (await store.read_payloads([name])).values():
            there.add(name)
            found.update(set(names_in(data)) - there)
    return there


async def _named_beside(
    store: EventStore, payloads: Set[PayloadHash], doomed: Set[StreamName], until: int
) -> set[PayloadHash]:
    shared: set[PayloadHash] = set()
    wanted = set(payloads)
    position = 0
    while wanted and position < until:
        page = await store.read_all(after_position=position, limit=EVENTS_PER_PAGE)
        if not page:
            break
        others = b"\n".join(event.data for event in page if event.stream not in doomed)
        if len(wanted) <= NAMES_SOUGHT_MAX:
            found = {name for name in wanted if name.encode() in others}
        else:
            found = wanted.intersection(names_in(others))
        shared |= found
        wanted -= found
        position = page[-1].position
    return shared


def names_in(data: bytes) -> list[PayloadHash]:
    """Return each text in an event or a payload that may be the name of a payload."""
    return [PayloadHash(name.decode()) for name in _NAMES.findall(data)]
