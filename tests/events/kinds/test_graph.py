"""Graphs as a core decides them: what is refused, what a change leaves behind, and that both ends agree."""

import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.errors import GraphError
from refold.events.kinds.graph import (
    GRAPH_CORE,
    AddEntity,
    AddRelationship,
    Entity,
    EntityRemoved,
    GraphCommand,
    GraphCore,
    GraphState,
    RemoveEntity,
    RemoveRelationship,
)
from refold.scenarios.core_exploration import explore_core
from tests.events.told_core import ToldCore

names = st.sampled_from("abcd")
kinds = st.sampled_from(["likes", "knows"])
weights = st.sampled_from([0, 1, 0.1, 2.5, 1e300])
commands = st.lists(
    st.one_of(
        st.builds(AddEntity, entity=names, kind=st.sampled_from(["person", "place"])),
        st.builds(RemoveEntity, entity=names),
        st.builds(AddRelationship, source=names, kind=kinds, target=names, weight=weights),
        st.builds(RemoveRelationship, source=names, kind=kinds, target=names),
    ),
    max_size=40,
)


def performed(given_commands: Sequence[GraphCommand]) -> ToldCore[GraphState]:
    """Return the graph that was told those commands, of which it may refuse some."""
    graph = ToldCore[GraphState](GRAPH_CORE)
    for command in given_commands:
        graph.try_to_tell(command)
    return graph


def both_ends_agree(state: GraphState) -> bool:
    forward = {(source, target) for source, targets in state.outgoing.items() for target in targets}
    backward = {(source, target) for target, sources in state.incoming.items() for source in sources}
    rows = [*state.outgoing.values(), *state.incoming.values()]
    cells = [kinds for targets in state.outgoing.values() for kinds in targets.values()]
    ends = {name for pair in forward for name in pair}
    return forward == backward and all(rows) and all(cells) and ends <= set(state.entities)


@given(commands)
def test_whatever_happens_a_graph_is_that_of_a_plain_set_of_edges(given_commands: list[GraphCommand]) -> None:
    entities: dict[str, str] = {}
    edges: dict[tuple[str, str, str], float] = {}
    for command in given_commands:
        match command:
            case AddEntity():
                entities[command.entity] = command.kind
            case RemoveEntity():
                entities.pop(command.entity, None)
                edges = {edge: weight for edge, weight in edges.items() if command.entity not in (edge[0], edge[2])}
            case AddRelationship() if {command.source, command.target} <= set(entities):
                edges[command.source, command.kind, command.target] = command.weight
            case RemoveRelationship():
                edges.pop((command.source, command.kind, command.target), None)
            case _:
                continue
    graph = performed(given_commands)
    state = graph.state
    assert {name: entity.kind for name, entity in state.entities.items()} == entities
    assert {
        (source, kind, target): weight
        for source, targets in state.outgoing.items()
        for target, found in targets.items()
        for kind, weight in found.items()
    } == edges
    assert both_ends_agree(state)
    graph.check_fold()


def moves(state: GraphState) -> Iterator[GraphCommand]:
    for name in ("a", "b"):
        yield AddEntity(entity=name, kind="person")
        yield RemoveEntity(entity=name)
        for other in ("a", "b"):
            yield AddRelationship(source=name, kind="likes", target=other)
            yield RemoveRelationship(source=name, kind="likes", target=other)


def test_every_short_life_of_a_graph_leaves_both_ends_agreed() -> None:
    found = explore_core(GraphCore, moves, holds=both_ends_agree, commands_max=5)
    assert found.counterexample is None


@pytest.mark.parametrize("weight", [-1, -0.0000001, math.nan, math.inf, -math.inf, 10**400, True, "1", None])
def test_a_weight_without_meaning_is_refused_and_the_relationship_named(weight: object) -> None:
    with pytest.raises(GraphError, match=r"the relationship 'anna' -likes-> 'tea' has the weight .*finite number >= 0"):
        AddRelationship(source="anna", kind="likes", target="tea", weight=weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (RemoveEntity(entity="tea"), "no entity 'tea'"),
        (AddRelationship(source="anna", kind="likes", target="tea"), "no entity 'tea' for 'anna' -likes-> 'tea'"),
        (AddRelationship(source="tea", kind="calms", target="anna"), "no entity 'tea' for 'tea' -calms-> 'anna'"),
        (RemoveRelationship(source="anna", kind="likes", target="anna"), "no relationship 'anna' -likes-> 'anna'"),
    ],
)
def test_what_the_graph_does_not_have_is_named(command: GraphCommand, named: str) -> None:
    with pytest.raises(GraphError, match=named):
        performed([AddEntity(entity="anna", kind="person")]).tell(command)


@pytest.mark.parametrize("name", ["", "x" * 513, "é" * 257, "nul\0", "\ud800", None, 7, b"x", ["x"]])
def test_a_name_that_cannot_be_recorded_is_refused(name: object) -> None:
    for make in (
        lambda: AddEntity(entity=name, kind="person"),  # type: ignore[arg-type]
        lambda: AddEntity(entity="anna", kind=name),  # type: ignore[arg-type]
        lambda: RemoveEntity(entity=name),  # type: ignore[arg-type]
        lambda: AddRelationship(source=name, kind="likes", target="tea"),  # type: ignore[arg-type]
        lambda: AddRelationship(source="anna", kind=name, target="tea"),  # type: ignore[arg-type]
        lambda: AddRelationship(source="anna", kind="likes", target=name),  # type: ignore[arg-type]
        lambda: RemoveRelationship(source="anna", kind=name, target="tea"),  # type: ignore[arg-type]
    ):
        with pytest.raises(GraphError):
            make()


@pytest.mark.parametrize("properties", [None, [1], "text", {1: 2}, {"x": math.nan}, {"x": 2**64}, {"x": "y" * 70_000}])
def test_properties_that_cannot_be_recorded_are_refused_and_the_entity_named(properties: object) -> None:
    with pytest.raises(GraphError, match="the properties of entity 'anna'"):
        AddEntity(entity="anna", kind="person", properties=properties)  # type: ignore[arg-type]


def test_properties_are_the_graphs_own() -> None:
    mine = {"tags": ["a"]}
    graph = performed([AddEntity(entity="anna", kind="person", properties=mine)])  # type: ignore[arg-type]
    mine["tags"].append("b")
    assert graph.state.entities["anna"] == Entity("anna", "person", {"tags": ["a"]})


def test_what_is_so_already_is_not_recorded_again_and_a_minus_zero_is_a_zero() -> None:
    entity = AddEntity(entity="anna", kind="person", properties={"a": 1})
    loop = AddRelationship(source="anna", kind="knows", target="anna", weight=-0.0)
    assert math.copysign(1, loop.weight) == 1
    assert len(performed([entity, loop, entity, loop]).events) == 2


def test_what_goes_with_an_entity_is_counted_once() -> None:
    graph = performed(
        [
            AddEntity(entity="a", kind="person"),
            AddEntity(entity="b", kind="person"),
            *[AddRelationship(source=x, kind=k, target=y) for x, k, y in ("akb", "bka", "aka", "alb", "bkb")],
            RemoveEntity(entity="a"),
        ]
    )
    assert graph.events[-1] == EntityRemoved(entity="a", relationships=4, at=graph.at)
