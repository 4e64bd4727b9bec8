"""What networkx computes about a graph; loaded by the first question that needs it.

Read `refold.memory.graph` first, which says what each answer means. The rule: an answer depends on what is in the graph
alone, not on the order in which it came there, nor on the hash seed of the process. So the nodes that networkx sees are
numbers, the places of the ids in code-point order, and everything is handed to it in that order.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TypeVar, cast

import networkx as nx

from refold.events.core.errors import GraphError
from refold.events.kinds.graph import Relationship, shown
from refold.memory.graph_facts import GraphCopy, GraphPath

R = TypeVar("R")

COMMUNITIES_SEED = 0
"""Of the order in which Louvain's method visits entities."""


class Mathematics:
    """A graph as networkx sees it; any number of threads may ask it, and nobody changes it."""

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
        first = self._place(start)
        return self._named([first, *(reached for _, reached in nx.bfs_edges(self.graph, first))])

    def dfs(self, start: str) -> tuple[str, ...]:
        return self._named(nx.dfs_preorder_nodes(self.graph, self._place(start)))

    def shortest_path(self, source: str, target: str) -> GraphPath | None:
        try:
            length, places = nx.single_source_dijkstra(self.graph, self._place(source), self._place(target))
        except nx.NetworkXNoPath:
            return None
        entities = self._named(places)
        followed = tuple(self._least(*pair) for pair in pairwise(entities))
        assert not isinstance(length, dict)  # It is one where no target is given.
        return GraphPath(entities, followed, float(length))

    def transitive_closure(self) -> dict[str, tuple[str, ...]]:
        closure = nx.transitive_closure(self.graph, reflexive=False)
        return self._by_id(lambda place: self._named(sorted(closure[place])))

    def degree_centrality(self) -> dict[str, float]:
        every: nx.MultiDiGraph[int] = nx.MultiDiGraph()
        every.add_nodes_from(self.graph)
        for source, target, number in self._edges():
            every.add_edges_from([(source, target)] * number)
        return self._by_id(nx.degree_centrality(every).__getitem__)

    def betweenness_centrality(self) -> dict[str, float]:
        return self._by_id(nx.betweenness_centrality(self.graph).__getitem__)

    def communities(self) -> tuple[tuple[str, ...], ...]:
        either_way: nx.Graph[int] = nx.Graph()
        either_way.add_nodes_from(self.graph)
        for source, target, number in self._edges():
            known = either_way.get_edge_data(source, target, {"number": 0})
            either_way.add_edge(source, target, number=known["number"] + number)
        found = nx.community.louvain_communities(either_way, weight="number", seed=COMMUNITIES_SEED)
        named = [self._named(sorted(community)) for community in found]
        return tuple(sorted(named, key=lambda community: (-len(community), community)))

    def has_cycle(self) -> bool:
        return not nx.is_directed_acyclic_graph(self.graph)

    def find_cycle(self) -> tuple[Relationship, ...] | None:
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
