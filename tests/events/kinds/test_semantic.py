"""A semantic memory's decisions: what is known, and which embeddings can be."""

import math
import struct
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import AgentMemoryError
from refold.events.core.contract import Recorded, evolve_all, plan
from refold.events.core.ids import StreamName
from refold.events.core.records import StoredEvent
from refold.events.kinds.semantic import (
    SEMANTIC_CORE,
    ChangeDimension,
    ClearEntries,
    Knowledge,
    PutEntry,
    RemoveEntry,
    SemanticCommand,
    SemanticCore,
)
from refold.scenarios.core_exploration import explore_core

encode = msgspec.msgpack.Encoder().encode


def vector(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def live(*commands: SemanticCommand) -> tuple[Knowledge, list[StoredEvent]]:
    state, log = Knowledge(), list[StoredEvent]()
    for command in commands:
        planned = plan(SEMANTIC_CORE, state, command, 1_750_000_000_000_000)
        if isinstance(planned, Recorded):
            continue
        state = planned.state
        for event in planned.events:
            version, data = len(log) + 1, SEMANTIC_CORE.codec.encode(event)
            stream = StreamName("knowledge/k")
            log.append(StoredEvent(position=version, stream=stream, version=version, batch=version, at=0, data=data))
    return state, log


def test_a_key_keeps_its_place_when_its_value_is_replaced() -> None:
    state, _ = live(
        PutEntry(name="a", value="1", tags=("x", "y")),
        PutEntry(name="b", value="2", tags=("x",)),
        PutEntry(name="a", value="3", tags=("x", "x")),
    )
    assert list(state.entries) == ["a", "b"]
    assert [known.number for known in state.entries.values()] == [1, 2]
    assert state.entries["a"].value == "3"
    assert state.entries["a"].tags == ("x",)
    assert {tag: sorted(names) for tag, names in state.tagged.items()} == {"x": ["a", "b"]}


@pytest.mark.parametrize(
    ("embedding", "problem"),
    [
        (vector(0, 0), "the embedding of 'k' is zero in every place"),
        (vector(0.0, -0.0), "is zero in every place"),
        (vector(math.nan, 1), "the embedding of 'k' has nan at place 0"),
        (vector(1, math.inf), "has inf at place 1"),
        (vector(1, -math.inf), "has -inf at place 1"),
        (b"", "has no numbers"),
        (b"abc", "has no numbers"),
    ],
)
def test_case_l01_an_embedding_without_a_direction_is_refused(embedding: bytes, problem: str) -> None:
    with pytest.raises(AgentMemoryError, match=problem):
        live(PutEntry(name="k", value="v", embedding=embedding))


def test_all_embeddings_have_one_dimension() -> None:
    put = PutEntry(name="a", value="v", embedding=vector(1, 2))
    with pytest.raises(AgentMemoryError, match="the embedding of 'b' has 3 numbers where those of the store have 2"):
        live(put, PutEntry(name="b", value="v", embedding=vector(1, 2, 3)))
    with pytest.raises(AgentMemoryError, match="the embedding of 'a' has 2 numbers where those of the store have 5"):
        live(ChangeDimension(dimension=5), put)
    with pytest.raises(AgentMemoryError, match="holds 1 embeddings of 2 numbers, not 3"):
        live(put, ChangeDimension(dimension=3))
    state, _ = live(put, ChangeDimension(dimension=2), ClearEntries())
    assert state.dimension == 2


def test_where_the_last_embedding_goes_the_next_has_any_dimension() -> None:
    one, other = vector(1, 2), vector(1, 2, 3)
    for between in (
        [],
        [RemoveEntry(name="a")],
        [ClearEntries()],
        [PutEntry(name="a", value="without")],
    ):
        state, _ = live(
            PutEntry(name="a", value="v", embedding=one),
            *between,
            PutEntry(name="a", value="v", embedding=other),
        )
        assert state.dimension == 3
        assert state.embedded == 1


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (PutEntry(name="", value="v"), "needs a text as its key"),
        (PutEntry(name="k", value="v", tags=("",)), "the tags of 'k'"),
        (ChangeDimension(dimension=0), "at least 1, not 0"),
    ],
)
def test_what_cannot_be_known_is_refused(command: SemanticCommand, problem: str) -> None:
    with pytest.raises(AgentMemoryError, match=problem):
        live(command)


def test_what_changes_nothing_is_not_recorded() -> None:
    assert live(RemoveEntry(name="a"), ClearEntries(), ChangeDimension(dimension=None))[1] == []


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = st.lists(numbers, min_size=2, max_size=2).filter(any).map(lambda given: vector(*given))
names = st.sampled_from(["a", "b", "c"])
commands = st.one_of(
    st.builds(
        PutEntry,
        name=names,
        value=st.text(max_size=3),
        tags=st.lists(st.sampled_from(["x", "y"]), max_size=2).map(tuple),
        embedding=st.none() | vectors,
    ),
    st.builds(RemoveEntry, name=names),
    st.builds(ClearEntries),
)


@given(st.lists(commands, max_size=20))
def test_the_folded_state_is_the_live_one_bit_for_bit(given_commands: Sequence[SemanticCommand]) -> None:
    state, log = live(*given_commands)
    folded = evolve_all(SEMANTIC_CORE, SEMANTIC_CORE.codec.decode_all(log))
    assert folded == state
    assert encode(folded) == encode(state)
    assert state.embedded == sum(known.embedding is not None for known in state.entries.values())
    tagged = {(tag, name) for tag, tagged_names in state.tagged.items() for name in tagged_names}
    assert tagged == {(tag, name) for name, known in state.entries.items() for tag in known.tags}
    assert all(state.tagged.values())


def test_every_short_life_holds() -> None:
    def tried(state: Knowledge) -> list[SemanticCommand]:
        return [
            PutEntry(name="a", value="1", tags=("x",), embedding=vector(1, 0)),
            PutEntry(name="a", value="2", embedding=vector(1, 0, 0)),
            PutEntry(name="b", value="3", tags=("x", "y"), key="k"),
            RemoveEntry(name="a"),
            ClearEntries(),
            ChangeDimension(dimension=2),
        ]

    found = explore_core(SemanticCore, tried, commands_max=4)
    assert found.counterexample is None, found.counterexample
    assert found.states > 50
