"""Graphs of entities and their relationships: what can happen to one, what is refused, and what it then is.

Read `refold.events.core.pure_core` first, and `refold.memory.graph` for what a user sees. The rule: a graph holds only
what has a meaning for every later question. So a relationship joins two entities that are there, and its weight is a
finite number, zero or more: with a negative one Dijkstra's shortest path would be wrong without saying so.
"""

from collections.abc import Mapping
from typing import Final, assert_never, cast

import msgspec

from refold.events.core.checked_core import CheckedCore
from refold.events.core.cleaning import Unrecordable, clean_json, is_finite
from refold.events.core.content import Json, JsonObject
from refold.events.core.errors import ConfigError, GraphError, quoted
from refold.events.core.ids import checked_identifier
from refold.events.core.pure_core import KeyedCommand, KeyedEvent, PureCore, Recorded, State
from refold.events.model.configuration import FOLD_VERSION

PROPERTIES_BYTES_MAX: Final = 64 * 1024
"""Most bytes that the JSON of one entity's properties may have."""

DEFAULT_WEIGHT: Final = 1.0


class Entity(msgspec.Struct, frozen=True):
    """A thing that a graph knows."""

    id: str
    """1 to 512 UTF-8 bytes; unique in its graph."""
    kind: str
    """What sort of thing it is, such as `"person"`."""
    properties: JsonObject = msgspec.field(default_factory=dict[str, Json])


class Relationship(msgspec.Struct, frozen=True, order=True):
    """A directed edge of a graph; between two entities there is at most one of a kind in each direction."""

    source: str
    """Id of the entity that it leads from."""
    kind: str
    """What the source is to the target, such as `"works_at"`."""
    target: str
    """Id of the entity that it leads to; may be the source."""
    weight: float = DEFAULT_WEIGHT
    """What it costs to follow it: finite, >= 0."""


def edge_words(source: str, kind: str, target: str) -> str:
    """Return how errors name a relationship: `'anna' -likes-> 'tea'`."""
    return f"{source!r} -{kind}-> {target!r}"


class AddEntity(KeyedCommand, frozen=True, kw_only=True):
    """Have an entity in the graph; one that is there gets this kind and these properties, and keeps its relationships.

    Raises:
        GraphError: the id, the kind or the properties cannot be recorded.
    """

    entity: str
    kind: str
    properties: JsonObject = msgspec.field(default_factory=dict[str, Json])

    def __post_init__(self) -> None:
        checked_name(self.entity, "graph entity")
        checked_name(self.kind, "kind of graph entity")
        msgspec.structs.force_setattr(self, "properties", cleaned_properties(self.entity, self.properties))


class RemoveEntity(KeyedCommand, frozen=True, kw_only=True):
    """Take an entity and all its relationships out of the graph."""

    entity: str

    def __post_init__(self) -> None:
        checked_name(self.entity, "graph entity")


class AddRelationship(KeyedCommand, frozen=True, kw_only=True):
    """Have a relationship in the graph; one that is there gets this weight.

    Raises:
        GraphError: an id or the kind cannot be one, or the weight is no finite number >= 0.
    """

    source: str
    kind: str
    target: str
    weight: float = DEFAULT_WEIGHT

    def __post_init__(self) -> None:
        _check_edge(self.source, self.kind, self.target)
        weight = checked_weight(self.weight, edge_words(self.source, self.kind, self.target))
        msgspec.structs.force_setattr(self, "weight", weight)


class RemoveRelationship(KeyedCommand, frozen=True, kw_only=True):
    """Take a relationship out of the graph."""

    source: str
    kind: str
    target: str

    def __post_init__(self) -> None:
        _check_edge(self.source, self.kind, self.target)


GraphCommand = AddEntity | RemoveEntity | AddRelationship | RemoveRelationship


class EntityAdded(KeyedEvent, frozen=True, kw_only=True, tag="graph.entity_added.v1"):
    """The graph has an entity, of this kind and with these properties from here on."""

    entity: str
    kind: str
    properties: JsonObject = msgspec.field(default_factory=dict[str, Json])


class EntityRemoved(KeyedEvent, frozen=True, kw_only=True, tag="graph.entity_removed.v1"):
    """The graph has no such entity any more, and none of its relationships."""

    entity: str
    relationships: int = 0
    """How many went with it."""


class RelationshipAdded(KeyedEvent, frozen=True, kw_only=True, tag="graph.relationship_added.v1"):
    """The graph has a relationship, of this weight from here on."""

    source: str
    kind: str
    target: str
    weight: float = DEFAULT_WEIGHT


class RelationshipRemoved(KeyedEvent, frozen=True, kw_only=True, tag="graph.relationship_removed.v1"):
    """The graph has no such relationship any more."""

    source: str
    kind: str
    target: str


GraphEvent = EntityAdded | EntityRemoved | RelationshipAdded | RelationshipRemoved


class GraphState(State):
    """A graph, found from both ends."""

    entities: dict[str, Entity] = msgspec.field(default_factory=dict[str, Entity])
    outgoing: dict[str, dict[str, dict[str, float]]] = msgspec.field(
        default_factory=dict[str, dict[str, dict[str, float]]]
    )
    """Weights of relationships: by source, target and kind; without empty parts."""
    incoming: dict[str, dict[str, None]] = msgspec.field(default_factory=dict[str, dict[str, None]])
    """The sources of the relationships to each target; without empty parts."""

    def require(self, entity: str) -> None:
        if entity not in self.entities:
            raise GraphError(f"the graph has no entity {shown(entity)}; add it first")


class GraphCore(PureCore[GraphState, GraphCommand, GraphEvent]):
    """Decides what may happen to a graph."""

    fold_version = FOLD_VERSION

    def admit(self, state: GraphState, command: GraphCommand) -> GraphEvent | Recorded:
        match command:
            case AddEntity(entity=entity, kind=kind, properties=properties):
                if state.entities.get(entity) == Entity(entity, kind, properties):
                    return Recorded(0)
                return EntityAdded(entity=entity, kind=kind, properties=properties)
            case RemoveEntity(entity=entity):
                state.require(entity)
                return EntityRemoved(entity=entity, relationships=_relationships_of(state, entity))
            case AddRelationship(source=source, kind=kind, target=target, weight=weight):
                for entity in (source, target):
                    if entity not in state.entities:
                        edge = edge_words(source, kind, target)
                        raise GraphError(f"the graph has no entity {entity!r} for {edge}; add it first")
                if _weights(state, source, target).get(kind) == weight:
                    return Recorded(0)
                return RelationshipAdded(source=source, kind=kind, target=target, weight=weight)
            case RemoveRelationship(source=source, kind=kind, target=target):
                if kind not in _weights(state, source, target):
                    raise GraphError(f"the graph has no relationship {edge_words(source, kind, target)}")
                return RelationshipRemoved(source=source, kind=kind, target=target)
            case _:
                assert_never(command)

    def evolve(self, state: GraphState, event: GraphEvent) -> GraphState:
        match event:
            case EntityAdded(entity=entity, kind=kind, properties=properties):
                state.entities[entity] = Entity(entity, kind, properties)
            case EntityRemoved(entity=entity):
                del state.entities[entity]
                for target in state.outgoing.pop(entity, {}):
                    _drop(state.incoming, target, entity)
                for source in state.incoming.pop(entity, {}):
                    _drop(state.outgoing, source, entity)
            case RelationshipAdded(source=source, kind=kind, target=target, weight=weight):
                state.outgoing.setdefault(source, {}).setdefault(target, {})[kind] = weight
                state.incoming.setdefault(target, {})[source] = None
            case RelationshipRemoved(source=source, kind=kind, target=target):
                weights = state.outgoing[source][target]
                del weights[kind]
                if not weights:
                    _drop(state.outgoing, source, target)
                    _drop(state.incoming, target, source)
            case _:
                assert_never(event)
        return state


GRAPH_CORE: Final[CheckedCore[GraphState, GraphCommand, GraphEvent]] = CheckedCore(GraphCore)


def checked_name(value: object, what: str) -> str:
    """Return the id of an entity, or a kind, if it can be one."""
    try:
        return checked_identifier(value, what)
    except ConfigError as error:
        raise GraphError(str(error)) from None


def checked_weight(value: object, edge: str) -> float:
    """Return a weight if it can be one."""
    if not (is_finite(value) and value >= 0):
        raise GraphError(
            f"the relationship {edge} has the weight {quoted(value, 40)}; a weight is a finite number >= 0"
        )
    return float(value) + 0.0  # A negative zero becomes a plain one.


def cleaned_properties(entity: str, given: object) -> JsonObject:
    """Return properties as plain JSON that nobody else holds."""
    if not isinstance(given, Mapping):
        raise GraphError(f"the properties of entity {entity!r} must be a mapping, not {type(given).__name__}")
    try:
        cleaned = clean_json(cast("Mapping[str, object]", given))
    except Unrecordable as error:
        raise GraphError(f"the properties of entity {entity!r} cannot be recorded: {error}") from None
    assert isinstance(cleaned, dict)
    size = len(msgspec.json.encode(cleaned))
    if size > PROPERTIES_BYTES_MAX:
        raise GraphError(
            f"the properties of entity {entity!r} have {size:,} bytes of JSON; the limit is {PROPERTIES_BYTES_MAX:,}"
        )
    return cast("JsonObject", cleaned)


def shown(value: object) -> str:
    """Return how an error shows what a caller asked for, however long it is."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else quoted(value, 81)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _check_edge(source: str, kind: str, target: str) -> None:
    checked_name(source, "relationship's source")
    checked_name(kind, "relationship's kind")
    checked_name(target, "relationship's target")


def _weights(state: GraphState, source: str, target: str) -> Mapping[str, float]:
    return state.outgoing.get(source, {}).get(target, {})


def _relationships_of(state: GraphState, entity: str) -> int:
    """Count a loop once."""
    leaving = sum(map(len, state.outgoing.get(entity, {}).values()))
    arriving = sum(len(_weights(state, source, entity)) for source in state.incoming.get(entity, {}))
    return leaving + arriving - len(_weights(state, entity, entity))


def _drop(table: dict[str, dict[str, dict[str, float]]] | dict[str, dict[str, None]], first: str, second: str) -> None:
    """Take an entry out of a table, and the row that it leaves empty; either may be gone already."""
    row = table.get(first, {})
    row.pop(second, None)
    if not row:
        table.pop(first, None)
