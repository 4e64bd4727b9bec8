"""The decisions of the three memories: what is kept, what goes, what is refused, and that the log says all of it.

What a user sees of them is in `tests/memory`.
"""

import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import AgentMemoryError, CommandRejected, MemoryId
from refold.events.core.ids import PayloadHash
from refold.events.kinds.episodic import (
    EPISODIC_CORE,
    EVICTED_PER_EVENT,
    AddEpisode,
    ChangeCapacity,
    ClearEpisodes,
    Episodes,
    EpisodesEvicted,
    EpisodicCommand,
    EpisodicCore,
    NoteRecalled,
    memory_id,
)
from refold.events.kinds.semantic import (
    BLOCK_BYTES_MAX,
    SEMANTIC_CORE,
    ChangeDimension,
    ClearEntries,
    Knowledge,
    PutEntry,
    RemoveEntry,
    SemanticCommand,
    SemanticCore,
    in_blocks,
)
from refold.events.kinds.working_memory import (
    FORGOTTEN_PER_EVENT,
    WORKING_CORE,
    ChangeRoom,
    ClearItems,
    ItemsForgotten,
    RemoveItem,
    SetItem,
    WorkingCommand,
    WorkingCore,
)
from refold.events.model.payloads import PayloadRow
from refold.scenarios.core_exploration import explore_core
from tests.events.told_core import ToldCore


class Memory(ToldCore[Episodes]):
    """An episodic memory."""

    def __init__(self, capacity: int | None = None) -> None:
        super().__init__(EPISODIC_CORE)
        if capacity is not None:
            self.tell(ChangeCapacity(capacity=capacity))

    def add(self, importance: float, key: str | None = None) -> MemoryId:
        self.tell(AddEpisode(agent="a", content="it", importance=importance, key=key))
        return memory_id(key, self.state.version)

    @property
    def kept(self) -> list[float]:
        own = self.state.agents.get("a")
        return [self.state.episodes[memory].importance for memory in own.ids] if own is not None else []


def vector(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def row(payload: str) -> PayloadRow:
    return PayloadRow(PayloadHash(payload), 0, 2)


def known(*commands: SemanticCommand) -> Knowledge:
    return ToldCore[Knowledge](SEMANTIC_CORE, *commands).state


def sets(names: Sequence[str]) -> list[SetItem]:
    return [SetItem(name=name, value=name.upper()) for name in names]


# What goes


def test_the_least_important_goes_and_of_several_the_oldest() -> None:
    memory = Memory(capacity=2)
    memory.add(0.9)
    oldest = memory.add(0.5)
    events = memory.tell(AddEpisode(agent="a", content="it", importance=0.5))
    assert events[1:] == [EpisodesEvicted(episodes=(oldest,), at=memory.at)]
    assert memory.kept == [0.9, 0.5]


def test_a_smaller_capacity_takes_from_those_that_are_there() -> None:
    memory = Memory()
    for number in range(EVICTED_PER_EVENT + 10):
        memory.add(number % 10 / 10)
    events = memory.tell(ChangeCapacity(capacity=3))
    assert [len(event.episodes) for event in events if isinstance(event, EpisodesEvicted)] == [EVICTED_PER_EVENT, 7]
    assert memory.kept == [0.9] * 3
    memory.tell(ChangeCapacity(capacity=None))
    memory.add(0.0)
    assert memory.kept == [0.9, 0.9, 0.9, 0.0]


@given(st.lists(st.floats(0, 1), unique=True, min_size=1, max_size=12), st.integers(1, 6), st.randoms())
def test_what_is_kept_does_not_depend_on_the_order_of_insertion(
    importances: list[float], capacity: int, random: Random
) -> None:
    for order in (importances, random.sample(importances, len(importances))):
        memory = Memory(capacity)
        for importance in order:
            memory.add(importance)
        assert sorted(memory.kept, reverse=True) == sorted(importances, reverse=True)[:capacity]


def test_recalls_are_counted_and_those_of_episodes_that_are_gone_are_not() -> None:
    memory = Memory()
    one, gone = memory.add(0.5), memory.add(0.1)
    memory.tell(ChangeCapacity(capacity=1))
    memory.tell(NoteRecalled(episodes=(one, gone, one)))
    memory.tell(NoteRecalled(episodes=(one,)))
    episode = memory.state.episodes[one]
    assert (episode.recalls, episode.recalled_at) == (2, memory.at)
    assert memory.tell(NoteRecalled(episodes=(gone,))) == []


def test_an_id_comes_from_the_key_or_else_from_the_version() -> None:
    memory = Memory()
    assert memory.add(0.5) == "episode-1"
    keyed = memory.add(0.5, key="k")
    assert keyed in memory.state.episodes
    assert keyed != memory.add(0.5, key="another")
    memory.add(0.5, key="k")
    assert len(memory.state.episodes) == 3
    with pytest.raises(CommandRejected, match="used for another command"):
        memory.add(0.6, key="k")


@given(st.lists(st.sampled_from("abcdef"), max_size=30), st.integers(1, 4))
def test_those_items_stay_that_were_set_last(names: Sequence[str], capacity: int) -> None:
    working = ToldCore[Any](WORKING_CORE, ChangeRoom(capacity=capacity), *sets(names))
    assert list(working.state.items) == list(dict.fromkeys(reversed(names)))[:capacity][::-1]


def test_less_room_takes_the_oldest_items() -> None:
    names = [f"n{number}" for number in range(FORGOTTEN_PER_EVENT + 5)]
    working = ToldCore[Any](WORKING_CORE, *sets(names), ChangeRoom(capacity=2))
    assert list(working.state.items) == names[-2:]
    forgotten = [len(event.names) for event in working.events if isinstance(event, ItemsForgotten)]
    assert forgotten == [FORGOTTEN_PER_EVENT, 3]


# Embeddings


def test_all_embeddings_have_one_dimension() -> None:
    put = PutEntry(name="a", value="v", embedding=vector(1, 2))
    with pytest.raises(AgentMemoryError, match="the embedding of 'b' has 3 numbers where those of the store have 2"):
        known(put, PutEntry(name="b", value="v", embedding=vector(1, 2, 3)))
    with pytest.raises(AgentMemoryError, match="the embedding of 'a' has 2 numbers where those of the store have 5"):
        known(ChangeDimension(dimension=5), put)
    with pytest.raises(AgentMemoryError, match="holds 1 embeddings of 2 numbers, not 3"):
        known(put, ChangeDimension(dimension=3))
    assert known(put, ChangeDimension(dimension=2), ClearEntries()).dimension == 2
    state = known(put, PutEntry(name="b", value="v", embedding=vector(3, 4)), RemoveEntry(name="a"))
    assert (state.dimension, state.embedded) == (2, 1)


@pytest.mark.parametrize(
    "between", [[], [RemoveEntry(name="a")], [ClearEntries()], [PutEntry(name="a", value="without")]], ids=str
)
def test_where_the_last_embedding_goes_the_next_has_any_dimension(between: list[SemanticCommand]) -> None:
    one, other = (PutEntry(name="a", value="v", embedding=vector(*numbers)) for numbers in ((1, 2), (1, 2, 3)))
    state = known(one, *between, other)
    assert (state.dimension, state.embedded) == (3, 1)


def test_embeddings_of_a_message_lie_in_blocks_of_one_length_and_are_the_same_command() -> None:
    puts = [PutEntry(name=f"n{number}", value="v", embedding=vector(*range(1, 33))) for number in range(10)]
    given = [*puts[:6], ClearEntries(), PutEntry(name="none", value="v"), *puts[6:]]
    assert in_blocks(given[:5]) == (given[:5], {})  # 640 bytes stay where they are.
    placed, blocks = in_blocks([*given, PutEntry(name="other", value="v", embedding=vector(1, 2))])
    assert [len(data) for data in blocks.values()] == [1280, 8]
    for command in placed:
        if isinstance(command, PutEntry) and isinstance(place := command.vector, PayloadRow):
            size = 4 * place.numbers
            assert blocks[place.payload][place.row * size :][:size] == command.embedding
    assert [msgspec.structs.replace(each, vector=msgspec.UNSET) for each in placed if isinstance(each, PutEntry)] == [
        *(each for each in given if isinstance(each, PutEntry)),
        PutEntry(name="other", value="v", embedding=vector(1, 2)),
    ]
    large = [PutEntry(name=f"n{number}", value="v", embedding=bytes(BLOCK_BYTES_MAX // 2)) for number in range(5)]
    assert [len(data) // BLOCK_BYTES_MAX for data in in_blocks(large)[1].values()] == [1, 0]  # The same rows, once.
    keyed = PutEntry(name="k", value="v", embedding=vector(1, 2), key="c")
    told = ToldCore[Knowledge](SEMANTIC_CORE, keyed, msgspec.structs.replace(keyed, vector=row("x")))
    assert len(told.events) == 1


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        (PayloadRow(PayloadHash("x"), -1, 2), "has no numbers"),
        (PayloadRow(PayloadHash("x"), 0, 0), "has no numbers"),
        (PayloadRow(PayloadHash("x"), 0, 3), "has 3 numbers where those of the store have 2"),
    ],
)
def test_a_place_that_cannot_be_that_of_the_embedding_is_refused(place: PayloadRow, problem: str) -> None:
    with pytest.raises(AgentMemoryError, match=problem):
        known(PutEntry(name="k", value="v", embedding=vector(1, 2), vector=place))


# What is refused, and what is nothing new

EPISODE = AddEpisode(agent="a", content="it", importance=0.5)


@pytest.mark.parametrize(
    ("core", "command", "problem"),
    [
        *(
            (EPISODIC_CORE, AddEpisode(agent="a", content="it", importance=importance), "must be a number from 0 to 1")
            for importance in (math.nan, math.inf, -0.1, 1.1, 10**400)
        ),
        (EPISODIC_CORE, AddEpisode(agent="", content="it", importance=0.5), "needs the name of an agent"),
        (EPISODIC_CORE, AddEpisode(agent="a", content="", importance=0.5), "of 'a' needs a text"),
        (EPISODIC_CORE, AddEpisode(agent="a", content="it", importance=0.5, tags=("",)), "tags of an episode of 'a'"),
        (EPISODIC_CORE, ChangeCapacity(capacity=0), "at least 1 episode, not 0"),
        (SEMANTIC_CORE, PutEntry(name="", value="v"), "needs a text as its key"),
        (SEMANTIC_CORE, PutEntry(name="k", value="v", tags=("",)), "the tags of 'k'"),
        (SEMANTIC_CORE, PutEntry(name="k", value="v", embedding=vector(0, 0)), "of 'k' is zero in every place"),
        (SEMANTIC_CORE, PutEntry(name="k", value="v", embedding=b"abc"), "the embedding of 'k' has no numbers"),
        (SEMANTIC_CORE, ChangeDimension(dimension=0), "at least 1, not 0"),
        (WORKING_CORE, SetItem(name="", value="v"), "needs a text"),
        (WORKING_CORE, ChangeRoom(capacity=0), "at least 1"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_changes_nothing(core: Any, command: object, problem: str) -> None:
    told = ToldCore[Any](core)
    with pytest.raises(AgentMemoryError, match=problem):
        told.tell(command)
    assert told.state == core.initial()


def test_what_changes_nothing_is_not_recorded() -> None:
    assert ToldCore(EPISODIC_CORE, ClearEpisodes(), ClearEpisodes(agent="a")).events == []
    assert ToldCore(SEMANTIC_CORE, RemoveEntry(name="a"), ClearEntries(), ChangeDimension(dimension=None)).events == []
    assert ToldCore(WORKING_CORE, ClearItems(), RemoveItem(name="a")).events == []
    assert len(ToldCore(WORKING_CORE, ChangeRoom(capacity=3), ChangeRoom(capacity=3)).events) == 1


# Any life

agents = st.sampled_from(["a", "b"])
tags = st.lists(st.sampled_from(["x", "y"]), max_size=2).map(tuple)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = st.lists(numbers, min_size=2, max_size=2).filter(any).map(lambda given: vector(*given))
episodic_commands: st.SearchStrategy[EpisodicCommand] = st.one_of(
    st.builds(
        AddEpisode,
        agent=agents,
        content=st.text(min_size=1, max_size=4),
        importance=st.sampled_from([0.0, 0.1, 0.5, 1.0]) | st.floats(0, 1),
        key=st.none() | st.sampled_from(["k1", "k2"]),
        tags=tags,
    ),
    st.builds(
        NoteRecalled, episodes=st.lists(st.integers(1, 12).map(lambda n: memory_id(None, n)), max_size=3).map(tuple)
    ),
    st.builds(ClearEpisodes, agent=st.none() | agents),
    st.builds(ChangeCapacity, capacity=st.none() | st.integers(1, 4)),
)
names = st.sampled_from(["a", "b", "c"])
semantic_commands: st.SearchStrategy[SemanticCommand] = st.one_of(
    st.builds(PutEntry, name=names, value=st.text(max_size=3), tags=tags, embedding=st.none() | vectors),
    st.builds(PutEntry, name=names, value=st.text(max_size=3), vector=st.builds(row, st.sampled_from("xy"))),
    st.builds(RemoveEntry, name=names),
    st.builds(ClearEntries),
)


@given(st.lists(episodic_commands, max_size=25))
def test_a_capacity_is_never_exceeded(commands: list[EpisodicCommand]) -> None:
    memory = Memory()
    for command in commands:
        memory.try_to_tell(command)
        state = memory.state
        assert all(state.capacity is None or len(own.ids) <= state.capacity for own in state.agents.values())
        assert sum(len(own.ids) for own in state.agents.values()) == len(state.episodes)
    memory.check_fold()


@given(st.lists(semantic_commands, max_size=20))
def test_entries_are_found_by_their_tags_and_embeddings_are_counted(commands: list[SemanticCommand]) -> None:
    told = ToldCore[Knowledge](SEMANTIC_CORE, *commands)
    state = told.state
    assert state.embedded == sum(known.embedded for known in state.entries.values())
    used = Counter(known.block for known in state.entries.values() if known.block)
    assert {number: block.entries for number, block in state.blocks.items()} == used
    tagged = {(tag, name) for tag, tagged_names in state.tagged.items() for name in tagged_names}
    assert tagged == {(tag, name) for name, known in state.entries.items() for tag in known.tags}
    assert all(state.tagged.values())
    told.check_fold()


def episodic_moves(state: Episodes) -> list[EpisodicCommand]:
    return [
        EPISODE,
        AddEpisode(agent="a", content="it", importance=0.9, key="k"),
        AddEpisode(agent="b", content="it", importance=0.5),
        NoteRecalled(episodes=tuple(state.episodes)[:1]),
        ClearEpisodes(agent="a"),
        ClearEpisodes(),
        ChangeCapacity(capacity=1),
        ChangeCapacity(capacity=0),
    ]


def semantic_moves(state: Knowledge) -> list[SemanticCommand]:
    return [
        PutEntry(name="a", value="1", tags=("x",), embedding=vector(1, 0)),
        PutEntry(name="a", value="2", embedding=vector(1, 0, 0)),
        PutEntry(name="b", value="3", tags=("x", "y"), key="k"),
        PutEntry(name="b", value="4", vector=row("x")),
        RemoveEntry(name="a"),
        ClearEntries(),
        ChangeDimension(dimension=2),
    ]


def working_moves(state: object) -> list[WorkingCommand]:
    return [*sets("abc"), RemoveItem(name="a"), ClearItems(), ChangeRoom(capacity=1), ChangeRoom(capacity=2)]


@pytest.mark.parametrize(
    ("core", "moves", "commands_max", "states"),
    [
        (EpisodicCore, episodic_moves, 3, 50),
        pytest.param(EpisodicCore, episodic_moves, 4, 100, marks=pytest.mark.slow),
        (SemanticCore, semantic_moves, 4, 50),
        (WorkingCore, working_moves, 4, 29),
    ],
)
def test_every_short_life_holds(core: Any, moves: Callable[[Any], Any], commands_max: int, states: int) -> None:
    found = explore_core(core, moves, commands_max=commands_max)
    assert found.counterexample is None, found.counterexample
    assert found.states > states
