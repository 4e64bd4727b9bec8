"""A graph of entities and their relationships, on the log.

    graph = GraphStore()
    graph.add_entity("anna", "person", {"born": 1990})
    graph.add_entity("lisbon", "city")
    graph.add_relationship("anna", "lives_in", "lisbon", weight=1.5)
    async with AgentRuntime(config, provider=provider, graph=graph):
        await graph.shortest_path("anna", "lisbon")

Read `refold.memory.stream_object` for how it lives before and in a runtime, `refold.events.kinds.graph` for what is
refused, and `refold.memory.indexes.graph_algorithms` for what networkx computes.

What every answer follows: relationships have a direction. Several kinds may lead from one entity to another; each
counts in degrees, communities and facts, and a path takes the one of least weight. A weight is what it costs to follow
a relationship, so it decides which path is shortest and nothing else. An answer depends on what is in the graph alone:
results without an order of their own come by id, in code-point order.

The rule: a question about the whole graph is computed off the loop: where it is awaited in a thread of its own, by
`get()` in the caller's. What that costs the loop is a copy of the graph, about 30 ms for 50,000 relationships, and
only where the graph has changed since the last such question.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar, cast, get_args

import msgspec

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.reply import ActorFuture
from refold.actors.shell.messages import Performed
from refold.events.core.checked_core import CheckedCore
from refold.events.core.content import JsonObject
from refold.events.core.errors import CommandRejected, GraphError
from refold.events.kinds.graph import (
    DEFAULT_WEIGHT,
    GRAPH_CORE,
    AddEntity,
    AddRelationship,
    Entity,
    GraphCommand,
    GraphEvent,
    GraphState,
    Relationship,
    RemoveEntity,
    RemoveRelationship,
    checked_name,
    shown,
)
from refold.events.kinds.scopes import GRAPH_KIND
from refold.memory.graph_facts import GraphCopy, GraphFacts, GraphPath, Subgraph, facts_of
from refold.memory.items import key_of_item
from refold.memory.scoped import Scope, ScopedObject

if TYPE_CHECKING:
    from refold.actors.kernel.ref import ActorRef
    from refold.memory.indexes.graph_algorithms import Mathematics

R = TypeVar("R")

Direction = Literal["out", "in", "both"]
"""Which relationships of an entity are meant: those that lead from it, those that lead to it, or either."""

_encode: Final = msgspec.msgpack.Encoder().encode
_copy_decoder: Final = msgspec.msgpack.Decoder(GraphCopy)
_entities_decoder: Final = msgspec.msgpack.Decoder(tuple[Entity, ...])
_subgraph_decoder: Final = msgspec.msgpack.Decoder(Subgraph)


class GraphStore(ScopedObject[GraphState, GraphCommand, GraphEvent]):
    """Entities, and typed, weighted, directed relationships between them.

    Every method returns an `ActorFuture`: await it on the loop, call its `get()` elsewhere, or leave it. What is
    refused is the future's error, a `GraphError` that names the entity or the relationship; nothing is recorded then.

    Args:
        name: of the graph; its stream is `"graph/<name>"`.
        scope: whose graph a session's tools see; see `EpisodicStore`.
        clock: tells the time before a runtime has the graph; None = the machine's.

    Raises:
        ConfigError: the name cannot be one.
    """

    kind: ClassVar[str] = GRAPH_KIND
    core: ClassVar[CheckedCore[GraphState, GraphCommand, GraphEvent]] = GRAPH_CORE

    def __init__(self, name: str = "main", clock: Clock | None = None, *, scope: Scope = "user") -> None:
        super().__init__(name, scope, clock)
        self._known: tuple[ActorRef | None, int, Mathematics] | None = None
        """Whose state the last question was about, its version, and what networkx made of it."""

    def held(self, state: GraphState) -> int:
        return _entity_count(state)

    # Changes

    def add_entity(
        self,
        entity: str,
        kind: str = "entity",
        properties: Mapping[str, object] | None = None,
        *,
        key: str | None = None,
    ) -> ActorFuture[bool]:
        """Have an entity in the graph, and return whether that changed it.

        One that is there gets this kind and these properties, and keeps its relationships.

        Args:
            entity: its id, 1 to 512 UTF-8 bytes.
            kind: what sort of thing it is, 1 to 512 UTF-8 bytes.
            properties: JSON, at most 64 KiB.
            key: idempotency key.

        Raises:
            GraphError: the id, the kind or the properties cannot be recorded.
        """
        given = cast("JsonObject", properties if properties is not None else {})  # Which the command makes it.
        return self._changed(lambda: AddEntity(entity=entity, kind=kind, properties=given, key=key))

    def add_relationship(
        self, source: str, kind: str, target: str, weight: float = DEFAULT_WEIGHT, *, key: str | None = None
    ) -> ActorFuture[bool]:
        """Have a relationship in the graph, and return whether that changed it; one that is there gets this weight.

        Args:
            source: id of the entity that it leads from.
            kind: what the source is to the target.
            target: id of the entity that it leads to; may be the source.
            weight: what it costs to follow it: finite, >= 0.
            key: idempotency key.

        Raises:
            GraphError: the graph lacks one of the entities, or the weight is negative or not finite.
        """
        return self._changed(lambda: AddRelationship(source=source, kind=kind, target=target, weight=weight, key=key))

    def add_many(self, items: Iterable[Entity | Relationship], *, key: str | None = None) -> ActorFuture[int]:
        """Have entities and relationships in the graph, all of them or none, and return how many changed it.

        They take one message and one transaction, whose disk others wait for too: give some thousands at a time.

        Args:
            items: in order; a relationship may join entities that come before it.
            key: idempotency key of all of them.

        Raises:
            GraphError: one of the items cannot be recorded, or joins an entity that the graph lacks; names it.
        """
        commands: list[GraphCommand] = []
        if not isinstance(items, Iterable):
            return _failed(GraphError(f"items must be several Entity and Relationship, not {shown(items)}"))
        try:
            for place, item in enumerate(items):
                try:
                    commands.append(_added(item, key_of_item(key, place)))
                except CommandRejected as error:
                    error.name_item(f"items[{place}]")
                    raise
        except GraphError as error:
            return _failed(error)
        return self.perform_each(commands, "items", lambda _, performed: performed.new).map(sum)

    def remove_entity(self, entity: str, *, key: str | None = None) -> ActorFuture[bool]:
        """Take an entity and all its relationships out of the graph; False = that was done under this key before.

        Raises:
            GraphError: the graph has no such entity.
        """
        return self._changed(lambda: RemoveEntity(entity=entity, key=key))

    def remove_relationship(self, source: str, kind: str, target: str, *, key: str | None = None) -> ActorFuture[bool]:
        """Take a relationship out of the graph; False = that was done under this key before.

        Raises:
            GraphError: the graph has no such relationship.
        """
        return self._changed(lambda: RemoveRelationship(source=source, kind=kind, target=target, key=key))

    # What is in it

    def count(self) -> ActorFuture[int]:
        """Return how many entities there are."""
        return self.read(_entity_count)

    def count_now(self) -> int | None:
        """Return at once how many entities there are, those on their way to the log included; on the loop only.

        None = that is not known, since the graph's actor failed and has not read its log again.
        """
        return self.glance(_entity_count)

    def get(self, entity: str) -> ActorFuture[Entity | None]:
        """Return an entity; None = the graph has none of that id."""
        return self.read(lambda state: state.entities.get(checked_name(entity, "graph entity")))

    def entities(self, kind: str | None = None) -> ActorFuture[tuple[Entity, ...]]:
        """Return all entities, or those of a kind."""

        def ordered(found: bytes) -> tuple[Entity, ...]:
            every = _entities_decoder.decode(found)
            return tuple(sorted([one for one in every if kind in (None, one.kind)], key=attrgetter("id")))

        return self.read(lambda state: _encode(list(state.entities.values()))).map_in_thread(ordered)

    def relationships(
        self, source: str | None = None, target: str | None = None, kind: str | None = None
    ) -> ActorFuture[tuple[Relationship, ...]]:
        """Return the relationships from a source, to a target and of a kind, by source, kind and target.

        Args:
            source: id of the entity that they lead from; None = any.
            target: id of the entity that they lead to; None = any.
            kind: None = any.

        Raises:
            GraphError: the graph has no such entity.
        """

        def found(state: GraphState) -> bytes:
            for entity in (source, target):
                if entity is not None:
                    state.require(checked_name(entity, "graph entity"))
            return _encode(GraphCopy({}, _between(state, source, target)))

        def ordered(found: bytes) -> tuple[Relationship, ...]:
            every = _copy_decoder.decode(found).relationships()
            return tuple(sorted([one for one in every if kind in (None, one.kind)]))

        return self.read(found).map_in_thread(ordered)

    def neighbours(self, entity: str, direction: Direction = "both") -> ActorFuture[tuple[str, ...]]:
        """Return the ids of those that a relationship joins to an entity; itself, where one leads back to it.

        Raises:
            GraphError: the graph has no such entity, or there is no such direction.
        """

        def found(state: GraphState) -> tuple[str, ...]:
            if direction not in get_args(Direction):
                raise GraphError(f"a direction is one of {', '.join(get_args(Direction))}, not {shown(direction)}")
            state.require(checked_name(entity, "graph entity"))
            after = state.outgoing.get(entity, {}) if direction != "in" else {}
            before = state.incoming.get(entity, {}) if direction != "out" else {}
            return tuple(sorted({*after, *before}))

        return self.read(found)

    def subgraph(self, entities: Iterable[str]) -> ActorFuture[Subgraph]:
        """Return some entities, and every relationship between two of them.

        Raises:
            GraphError: the graph lacks one of the entities.
        """
        if not isinstance(entities, Iterable):
            return _failed(GraphError(f"a subgraph is one of several entities, not of {shown(entities)}"))
        wanted = tuple(entities)

        def found(state: GraphState) -> bytes:
            for entity in wanted:
                state.require(checked_name(entity, "graph entity"))
            inside = {entity: state.entities[entity] for entity in sorted(wanted)}
            between = [
                Relationship(source, kind, target, weight)
                for source in inside
                for target, kinds in state.outgoing.get(source, {}).items()
                if target in inside
                for kind, weight in kinds.items()
            ]
            return _encode(Subgraph(tuple(inside.values()), tuple(sorted(between))))

        return self.read(found).map_in_thread(_subgraph_decoder.decode)

    def facts(self) -> ActorFuture[GraphFacts]:
        """Return what can be counted: kinds, degrees, loops, pairs, isolated entities."""
        return self.read(copied).map_in_thread(lambda content: facts_of(_copy_decoder.decode(content)))

    # Questions to networkx

    def bfs(self, start: str) -> ActorFuture[tuple[str, ...]]:
        """Return the ids of what can be reached from an entity, itself first, breadth first.

        Raises:
            GraphError: the graph has no such entity.
        """
        return self._computed(lambda graph: graph.bfs(start), start)

    def dfs(self, start: str) -> ActorFuture[tuple[str, ...]]:
        """Return the ids of what can be reached from an entity, itself first, depth first.

        Raises:
            GraphError: the graph has no such entity.
        """
        return self._computed(lambda graph: graph.dfs(start), start)

    def shortest_path(self, source: str, target: str) -> ActorFuture[GraphPath | None]:
        """Return the way of least total weight (Dijkstra 1959); None = no relationships lead there.

        Raises:
            GraphError: the graph lacks one of the entities.
        """
        return self._computed(lambda graph: graph.shortest_path(source, target), source, target)

    def transitive_closure(self) -> ActorFuture[dict[str, tuple[str, ...]]]:
        """Return for each entity the ids of those that can be reached from it by one relationship or more.

        The answer grows with the square of the entities.
        """
        return self._computed(lambda graph: graph.transitive_closure())

    def degree_centrality(self) -> ActorFuture[dict[str, float]]:
        """Return for each entity its relationships, in and out, over the number of other entities; 1 for a lone one."""
        return self._computed(lambda graph: graph.degree_centrality())

    def betweenness_centrality(self) -> ActorFuture[dict[str, float]]:
        """Return for each entity the share of shortest paths between two others that pass through it (Brandes 2001).

        Paths are compared by how many relationships they follow. It takes time in proportion to entities times
        relationships: minutes for 10,000 and 50,000.
        """
        return self._computed(lambda graph: graph.betweenness_centrality())

    def communities(self) -> ActorFuture[tuple[tuple[str, ...], ...]]:
        """Return a partition of the entities into groups with many relationships inside, the largest first.

        By Louvain's method (Blondel et al. 2008) with a fixed seed, so that one graph has one partition. Relationships
        count equally, in each direction and with any weight. A graph without such groups takes longest: half a minute
        for 10,000 entities and 50,000 relationships.
        """
        return self._computed(lambda graph: graph.communities())

    def has_cycle(self) -> ActorFuture[bool]:
        """Tell whether relationships lead from some entity back to it."""
        return self._computed(lambda graph: graph.has_cycle())

    def find_cycle(self) -> ActorFuture[tuple[Relationship, ...] | None]:
        """Return relationships that lead in a circle, each from where the last one ends; None = there are none."""
        return self._computed(lambda graph: graph.find_cycle())

    def _changed(self, command: Callable[[], GraphCommand]) -> ActorFuture[bool]:
        try:
            return self.perform(command()).map(_is_new)
        except GraphError as error:
            return _failed(error)

    def _computed(self, compute: Callable[["Mathematics"], R], *entities: str) -> ActorFuture[R]:
        known, ref = self._known, self._ref
        known_version = known[1] if known is not None and known[0] is ref else -1

        def question(state: GraphState) -> tuple[int, bytes | None]:
            for entity in entities:
                state.require(checked_name(entity, "graph entity"))
            known_now = state.version == known_version and self._ref is ref  # No runtime took it meanwhile.
            return state.version, None if known_now else copied(state)

        def answer(found: tuple[int, bytes | None]) -> R:
            from refold.memory.indexes.graph_algorithms import Mathematics

            version, content = found
            if content is None:
                assert known is not None  # Or no version would have been known.
                return compute(known[2])
            mathematics = Mathematics(_copy_decoder.decode(content))
            self._known = (ref, version, mathematics)
            return compute(mathematics)

        return self.read(question).map_in_thread(answer)

    def _forget_derived(self) -> None:
        self._known = None


def _added(item: object, key: str | None) -> GraphCommand:
    if isinstance(item, Entity):
        return AddEntity(entity=item.id, kind=item.kind, properties=item.properties, key=key)
    if isinstance(item, Relationship):
        return AddRelationship(source=item.source, kind=item.kind, target=item.target, weight=item.weight, key=key)
    raise GraphError(f"a graph holds Entity and Relationship, not {shown(item)}")


def _entity_count(state: GraphState) -> int:
    return len(state.entities)


def _is_new(performed: Performed) -> bool:
    return performed.new


def _failed(error: GraphError) -> ActorFuture[Any]:
    future: ActorFuture[Any] = ActorFuture()
    future.settle(error=error)
    return future


def copied(state: GraphState) -> bytes:
    """Return a copy of a graph that costs little to make and nothing to hand over."""
    return _encode(GraphCopy({entity.id: entity.kind for entity in state.entities.values()}, state.outgoing))


def _between(state: GraphState, source: str | None, target: str | None) -> dict[str, dict[str, dict[str, float]]]:
    """Return the weights of some relationships by source, target and kind."""
    if target is None:
        return state.outgoing if source is None else {source: state.outgoing.get(source, {})}
    sources = state.incoming.get(target, {})
    return {one: {target: state.outgoing[one][target]} for one in sources if source in (None, one)}
