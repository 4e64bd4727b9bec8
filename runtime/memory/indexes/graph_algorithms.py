"""What networkx computes about a graph; loaded by the first question that needs it.

Read `refold.memory.graph` first, which says what each answer means. The rule: an answer depends on what is in the graph
alone, not on the order in which it came there, nor on the hash seed of the process. So the nodes that networkx sees are
numbers, the places of the ids in code-point order, and everything is handed to it in that order.

What questions about a whole graph are answered with, and what can be counted without more mathematics.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeVar, cast

import msgspec
import networkx as nx

from refold.events.core.errors import GraphError
from refold.events.kinds.graph import Entity, Relationship, shown


class GraphCopy(msgspec.Struct, frozen=True):
    """What a graph was at one version, as it is carried to the thread that computes."""

    entities: dict[str, str]
    """The kind of each, by id."""
    outgoing: dict[str, dict[str, dict[str, float]]]
    """Weights of relationships: by source, target and kind."""

    def relationships(self) -> Iterator[Relationship]:
        """Yield all, in no order."""
        for source, targets in self.outgoing.items():
            for target, kinds in targets.items():
                for kind, weight in kinds.items():
                    yield Relationship(source, kind, target, weight)


class GraphPath(msgspec.Struct, frozen=True):
    """A way through a graph."""

    entities: tuple[str, ...]
    """From the first to the last, at least one."""
    relationships: tuple[Relationship, ...]
    """That were followed, one fewer than entities."""
    weight: float
    """Sum of theirs."""


class Subgraph(msgspec.Struct, frozen=True):
    """Some entities, and every relationship between two of them."""

    entities: tuple[Entity, ...]
    """By id."""
    relationships: tuple[Relationship, ...]
    """By source, kind and target."""


class GraphFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What can be counted in a graph. Whatever is listed is in order of ids and names."""

    entities: int
    relationships: int
    """Each kind between two entities counts."""
    entity_kinds: Mapping[str, int]
    """How many entities each kind has."""
    relationship_kinds: Mapping[str, int]
    """How many relationships each kind has."""
    self_loops: tuple[Relationship, ...]
    """That lead from an entity to itself."""
    mutual: tuple[tuple[str, str], ...]
    """Pairs of different entities with relationships in both directions, the smaller id first."""
    isolated: tuple[str, ...]
    """Ids of entities without any relationship."""
    degrees: Mapping[str, int]
    """Relationships that lead from or to each entity; a loop counts twice."""
    total_degree: int
    """Sum of the degrees: twice the relationships."""
    mean_degree: float
    """Total degree over entities; 0 where there are none."""
    mean_weight: float
    """Of the relationships; 0 where there are none."""


def facts_of(copy: GraphCopy) -> GraphFacts:
    """Return what can be counted in a graph."""
    relationships = sorted(copy.relationships())
    degrees = dict.fromkeys(sorted(copy.entities), 0)
    for relationship in relationships:
        degrees[relationship.source] += 1
        degrees[relationship.target] += 1
    pairs = [(source, target) for source, targets in copy.outgoing.items() for target in targets if source < target]
    total = 2 * len(relationships)
    return GraphFacts(
        entities=len(degrees),
        relationships=len(relationships),
        entity_kinds=dict(sorted(Counter(copy.entities.values()).items())),
        relationship_kinds=dict(sorted(Counter(relationship.kind for relationship in relationships).items())),
        self_loops=tuple(loop for loop in relationships if loop.source == loop.target),
        mutual=tuple(sorted(pair for pair in pairs if pair[0] in copy.outgoing.get(pair[1], ()))),
        isolated=tuple(entity for entity, degree in degrees.items() if not degree),
        degrees=degrees,
        total_degree=total,
        mean_degree=total / len(degrees) if degrees else 0.0,
        mean_weight=math.fsum(one.weight / len(relationships) for one in relationships),
    )


R = TypeVar("R")

COMMUNITIES_SEED = 0
"""Of the order in which Louvain's method visits entities."""


class Mathematics:
    """A graph as networkx sees it; any number of threads may ask it, and nobody changes it.

    Args:
        copy: of the graph.
    """

    def __init__(self, copy: GraphCopy) -> None:
        self.ids = sorted(copy.entities)
        self.places = {entity: place for place, entity in enumerate(self.ids)}
        self._outgoing = copy.outgoing
        self.graph: nx.DiGraph[int] = nx.DiGraph()
        """One edge from an entity to another, with the least `weight` and the `number` of their relationships."""
        self.graph.add_nodes_from(range(len(self.ids)))
        self.graph.add_edges_from(
            (place, self.places[target], {"weight": min(kinds.values()), "number": len(kinds)})
            for place, source in enumerate(self.ids)
            for target, kinds in sorted(copy.outgoing.get(source, {}).items())
        )

    def bfs(self, start: str) -> tuple[str, ...]:
        """Return what can be reached, nearest first."""
        first = self._place(start)
        return self._named([first, *(reached for _, reached in nx.bfs_edges(self.graph, first))])

    def dfs(self, start: str) -> tuple[str, ...]:
        """Return what can be reached, each way to its end before the next is begun."""
        return self._named(nx.dfs_preorder_nodes(self.graph, self._place(start)))

    def shortest_path(self, source: str, target: str) -> GraphPath | None:
        """Return the way of least weight, by Dijkstra's algorithm; None = there is none."""
        try:
            length, places = nx.single_source_dijkstra(self.graph, self._place(source), self._place(target))
        except nx.NetworkXNoPath:
            return None
        entities = self._named(places)
        followed = tuple(self._least(*pair) for pair in pairwise(entities))
        assert not isinstance(length, dict)  # As it is where no target is given.
        return GraphPath(entities, followed, float(length))

    def transitive_closure(self) -> dict[str, tuple[str, ...]]:
        """Return for each entity those that can be reached from it by one relationship or more."""
        closure = nx.transitive_closure(self.graph, reflexive=False)
        return self._by_id(lambda place: self._named(sorted(closure[place])))

    def degree_centrality(self) -> dict[str, float]:
        """Return the degree of each entity over the number of the others."""
        every: nx.MultiDiGraph[int] = nx.MultiDiGraph()
        every.add_nodes_from(self.graph)
        for source, target, number in self._edges():
            every.add_edges_from([(source, target)] * number)
        return self._by_id(nx.degree_centrality(every).__getitem__)

    def betweenness_centrality(self) -> dict[str, float]:
        """Return on which share of the ways between two others, shortest by relationships, each entity lies."""
        return self._by_id(nx.betweenness_centrality(self.graph).__getitem__)

    def communities(self) -> tuple[tuple[str, ...], ...]:
        """Return a partition of the entities by Louvain's method, largest first."""
        either_way: nx.Graph[int] = nx.Graph()
        either_way.add_nodes_from(self.graph)
        for source, target, number in self._edges():
            known = either_way.get_edge_data(source, target, {"number": 0})
            either_way.add_edge(source, target, number=known["number"] + number)
        found = nx.community.louvain_communities(either_way, weight="number", seed=COMMUNITIES_SEED)
        named = [self._named(sorted(community)) for community in found]
        return tuple(sorted(named, key=lambda community: (-len(community), community)))

    def has_cycle(self) -> bool:
        """Tell whether some entity can be reached from itself."""
        return not nx.is_directed_acyclic_graph(self.graph)

    def find_cycle(self) -> tuple[Relationship, ...] | None:
        """Return relationships that lead round in a circle; None = there are none."""
        try:
            found = cast("list[tuple[int, ...]]", nx.find_cycle(self.graph))  # pyright: ignore[reportUnknownMemberType]
        except nx.NetworkXNoCycle:
            return None
        return tuple(self._least(self.ids[edge[0]], self.ids[edge[1]]) for edge in found)

    def _edges(self) -> Iterator[tuple[int, int, int]]:
        """Yield the ends of each edge, and how many relationships it stands for."""
        for source, target, known in self.graph.edges(data=True):
            yield source, target, known["number"]

    def _place(self, entity: str) -> int:
        place = self.places.get(entity)
        if place is None:
            raise GraphError(f"the graph has no entity {shown(entity)}")
        return place

    def _named(self, places: Iterable[int]) -> tuple[str, ...]:
        return tuple([self.ids[place] for place in places])

    def _by_id(self, value: Callable[[int], R]) -> dict[str, R]:
        return {entity: value(place) for place, entity in enumerate(self.ids)}

    def _least(self, source: str, target: str) -> Relationship:
        kinds = self._outgoing[source][target]
        kind = min(kinds, key=lambda name: (kinds[name], name))
        return Relationship(source, kind, target, kinds[kind])
