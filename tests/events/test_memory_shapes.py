"""The recorded shapes of memories, as logs hold them: each is read for ever."""

import pytest

from refold import MemoryId
from refold.events.core.checked_core import CheckedCore
from refold.events.core.event import Event
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import CommandKey
from refold.events.core.records import StoredEvent
from refold.events.kinds.episodic import (
    EPISODIC_CORE,
    CapacityChanged,
    EpisodeAdded,
    EpisodesCleared,
    EpisodesEvicted,
    EpisodesRecalled,
)
from refold.events.kinds.semantic import SEMANTIC_CORE, DimensionChanged, EntriesCleared, EntryPut, EntryRemoved
from refold.events.kinds.working_memory import (
    WORKING_CORE,
    ItemRemoved,
    ItemsCleared,
    ItemSet,
    ItemsForgotten,
    RoomChanged,
)

SHAPES: list[tuple[CheckedCore, str, Event]] = [  # type: ignore[type-arg]
    (
        EPISODIC_CORE,
        '{"type":"memory.episode_added.v1","command":{"key":"k","digest":"d"},"agent":"a","id":"episode-1",'
        '"content":"tea","importance":0.5,"tags":["t"]}',
        EpisodeAdded(
            agent="a",
            id=MemoryId("episode-1"),
            content="tea",
            importance=0.5,
            tags=("t",),
            command=CommandKey("k", "d"),
        ),
    ),
    (
        EPISODIC_CORE,
        '{"type":"memory.episodes_evicted.v1","episodes":["episode-1"]}',
        EpisodesEvicted(episodes=(MemoryId("episode-1"),)),
    ),
    (
        EPISODIC_CORE,
        '{"type":"memory.episodes_recalled.v1","episodes":["episode-1"]}',
        EpisodesRecalled(episodes=(MemoryId("episode-1"),)),
    ),
    (EPISODIC_CORE, '{"type":"memory.episodes_cleared.v1","agent":"a"}', EpisodesCleared(agent="a")),
    (EPISODIC_CORE, '{"type":"memory.episodes_cleared.v1"}', EpisodesCleared()),
    (EPISODIC_CORE, '{"type":"memory.capacity_changed.v1","capacity":3}', CapacityChanged(capacity=3)),
    (EPISODIC_CORE, '{"type":"memory.capacity_changed.v1"}', CapacityChanged()),
    (
        SEMANTIC_CORE,
        '{"type":"knowledge.entry_put.v1","name":"k","value":"v","tags":["t"],"embedding":"AACAPwAAAEA="}',
        EntryPut(name="k", value="v", tags=("t",), embedding=b"\x00\x00\x80?\x00\x00\x00@"),
    ),
    (SEMANTIC_CORE, '{"type":"knowledge.entry_removed.v1","name":"k"}', EntryRemoved(name="k")),
    (SEMANTIC_CORE, '{"type":"knowledge.entries_cleared.v1"}', EntriesCleared()),
    (SEMANTIC_CORE, '{"type":"knowledge.dimension_changed.v1","dimension":2}', DimensionChanged(dimension=2)),
    (WORKING_CORE, '{"type":"working.item_set.v1","name":"n","value":"v"}', ItemSet(name="n", value="v")),
    (WORKING_CORE, '{"type":"working.items_forgotten.v1","names":["n"]}', ItemsForgotten(names=("n",))),
    (WORKING_CORE, '{"type":"working.item_removed.v1","name":"n"}', ItemRemoved(name="n")),
    (WORKING_CORE, '{"type":"working.items_cleared.v1"}', ItemsCleared()),
    (WORKING_CORE, '{"type":"working.room_changed.v1","capacity":2}', RoomChanged(capacity=2)),
]


@pytest.mark.parametrize(("core", "text", "event"), SHAPES, ids=[text[9:40] for _, text, _ in SHAPES])
def test_each_shape_is_written_and_read(core: CheckedCore, text: str, event: Event) -> None:  # type: ignore[type-arg]
    stored = StoredEvent(position=1, stream=StreamName("a/b"), version=1, batch=1, at=0, data=text.encode())
    assert core.codec.decode(stored) == event
    assert core.codec.encode(event) == text.encode()


def test_every_tag_is_among_them() -> None:
    tags = {text.split('"')[3] for _, text, _ in SHAPES}
    assert tags == {*EPISODIC_CORE.codec.tags, *SEMANTIC_CORE.codec.tags, *WORKING_CORE.codec.tags}
