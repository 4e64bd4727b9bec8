"""What questions about a whole graph are answered with, and what can be counted in one without networkx."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from refold.events.kinds.graph import Entity, Relationship


class GraphCopy(msgspec.Struct, frozen=True):
    """What a graph was at one version, in the form that is carried to the thread that computes."""

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
    """What can be counted in a graph. Lists are in order of ids and names."""

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
