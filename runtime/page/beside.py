"""What memories, graphs and breakers held while a session went on.

Which part of a memory a session may have seen is in its name (`refold.events.kinds.scopes`); breakers are the log's.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec

from refold.events.core.errors import LogFormatError
from refold.events.core.ids import StreamName, kind_and_identifier
from refold.events.core.pure_core import evolve_all
from refold.events.kinds.breaker import BREAKER_KIND
from refold.events.kinds.scopes import GRAPH_KIND, KNOWLEDGE_KIND, MEMORY_KIND, WORKING_KIND, names_of, part_in
from refold.inspection.log_reading import EVENTS_PER_PAGE, Streams, kind_of
from refold.lineage.content import held_items, kind_with_content
from refold.stores.event_store import EventStore

KINDS_BESIDE: Final = (WORKING_KIND, MEMORY_KIND, KNOWLEDGE_KIND, GRAPH_KIND, BREAKER_KIND)

STREAMS_MAX: Final = 50
"""So many streams are shown beside a session."""

COMPARED_MAX: Final = 300_000
"""So many items of a stream are compared to find what its events changed; then only its last state is told."""

WORDS_MAX: Final = 2_000


class HeldChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a stream holds differently from a position on."""

    version: int
    position: int
    now: dict[str, str] = {}
    """In words, by name."""
    gone: tuple[str, ...] = ()


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream held, change by change."""

    stream: StreamName
    kind: str
    version: int
    changes: tuple[HeldChange, ...]
    complete: bool
    """Whether each change is told; else the last one tells what many events changed."""
    damage: str = ""


async def streams_beside(store: EventStore, session: str, user: str | None) -> list[StreamName]:
    """Return the streams that a session may have used, in order of kinds and names; at most `STREAMS_MAX`."""
    owners = {"session": names_of([session]), "user": names_of([user] if user is not None else [])}
    found: list[StreamName] = []
    for kind in KINDS_BESIDE:
        async for head in Streams(store, prefix=f"{kind}/"):
            part = part_in(kind_and_identifier(head.stream)[1])
            if part is None or (part.hashed, part.owner) in owners.get(part.kind, ()):
                found.append(head.stream)
                if len(found) == STREAMS_MAX:
                    return found
    return found


async def held(store: EventStore, stream: StreamName) -> Held:
    """Return what a stream held, from its first event on; where one is damaged, what it held before."""
    kind = kind_with_content(stream)
    changes: list[HeldChange] = []
    version, compared, damage = 0, 0, ""
    state = kind.core.initial() if kind is not None else None
    before: dict[str, str] = {}
    while kind is not None and not damage:
        page = await store.read_stream(stream, after_version=version, limit=EVENTS_PER_PAGE)
        for place, stored in enumerate(page, 1):
            try:
                state = evolve_all(kind.core, (kind.codec.decode(stored),), state)
            except LogFormatError as error:
                damage = str(error)
                break
            version = stored.version
            if compared <= COMPARED_MAX or place == len(page):
                now = dict(_in_words(held_items(state)))
                compared += len(now)
                changes += _changes(before, now, version, stored.position)
                before = now
                await asyncio.sleep(0)
        if len(page) < EVENTS_PER_PAGE:
            break
    return Held(
        stream=stream,
        kind=kind_of(stream),
        version=version,
        changes=tuple(changes),
        complete=compared <= COMPARED_MAX,
        damage=damage,
    )


def _in_words(items: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, words in items:
        yield name, words if len(words) <= WORDS_MAX else f"{words[:WORDS_MAX]}…"


def _changes(before: dict[str, str], now: dict[str, str], version: int, position: int) -> Iterator[HeldChange]:
    changed = {name: words for name, words in now.items() if before.get(name) != words}
    gone = tuple([name for name in before if name not in now])
    if changed or gone:
        yield HeldChange(version=version, position=position, now=changed, gone=gone)
