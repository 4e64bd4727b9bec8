"""What a stream that is no session holds: the items of a memory, a graph or a deduplicator, and how a breaker stands.

The stream is folded up to a version; nothing is written.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from refold.events.core.ids import StreamName
from refold.events.core.records import StreamHead
from refold.events.kinds.breaker import BreakerState
from refold.events.kinds.deduplicator import DedupState
from refold.events.kinds.episodic import Episodes
from refold.events.kinds.graph import GraphState
from refold.events.kinds.semantic import Knowledge
from refold.events.kinds.working_memory import Items
from refold.inspection.kinds import KINDS, StreamKind
from refold.inspection.log_reading import kind_of
from refold.inspection.session_view import checked_version
from refold.inspection.times import time_words
from refold.stores.event_store import EventStore
from refold.stores.past_state import past_state


class HeldItem(msgspec.Struct, frozen=True):
    """One thing that a stream holds."""

    name: str
    words: str


class StreamContent(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream held after a version."""

    stream: StreamName
    version: int
    last_version: int
    """What the log had when it was read."""
    content: tuple[HeldItem, ...]


async def stream_content(store: EventStore, head: StreamHead, at: int | None) -> StreamContent | None:
    """Return what a stream holds after a version, None = its last; None where its kind holds nothing that is listed."""
    kind = kind_with_content(head.stream)
    if kind is None:
        return None
    version = checked_version(head, at)
    past = await past_state(store, head.stream, kind.core, kind.codec, version=version)
    items = tuple(HeldItem(name, words) for name, words in held_items(past.state))
    return StreamContent(stream=head.stream, version=version, last_version=head.version, content=items)


def kind_with_content(stream: str) -> StreamKind | None:
    """Return what a stream is read with, where its kind holds something that can be listed."""
    kind = KINDS.get(kind_of(stream))
    listed = Episodes | Knowledge | Items | GraphState | DedupState | BreakerState
    return kind if kind is not None and isinstance(kind.core.initial(), listed) else None


def held_items(state: Any) -> Iterator[tuple[str, str]]:
    """Return what the state of such a stream holds, by name and in words."""
    match state:
        case Episodes(episodes=episodes):
            for episode in episodes.values():
                recalled = f", recalled {episode.recalls} times" if episode.recalls else ""
                yield episode.id, f"{episode.agent}: {episode.content} (importance {episode.importance:g}{recalled})"
        case Knowledge(entries=entries):
            for key, known in entries.items():
                yield key, known.value
        case Items(items=items):
            yield from items.items()
        case GraphState(entities=entities, outgoing=outgoing):
            for entity in entities.values():
                said = f" {_json(entity.properties)}" if entity.properties else ""
                yield entity.id, f"{entity.kind}{said}"
            for source, targets in outgoing.items():
                for target, kinds in targets.items():
                    for kind, weight in kinds.items():
                        yield f"{source} -> {target}", f"{kind} (weight {weight:g})"
        case DedupState(entries=entries):
            for key, entry in entries.items():
                result = entry.result if entry.result is not None else "at work"
                yield key, f"{result} (until {time_words(entry.until)})"
        case BreakerState():
            for name in state.__struct_fields__:
                if name not in ("version", "keys"):
                    yield name, _json(getattr(state, name))
        case _:
            return


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
