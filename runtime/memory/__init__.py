"""What agents remember and know: episodes, facts, working memory and graphs, each a stream on the log.

Names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.agents.memory_tools import memory_tools as memory_tools
    from refold.events.core.errors import AgentMemoryError as AgentMemoryError
    from refold.events.core.errors import GraphError as GraphError
    from refold.events.core.ids import MemoryId as MemoryId
    from refold.events.kinds.graph import Entity as Entity
    from refold.events.kinds.graph import Relationship as Relationship
    from refold.events.kinds.memory_policies import DecayPolicy as DecayPolicy
    from refold.events.kinds.memory_policies import RecallPolicy as RecallPolicy
    from refold.memory.episodic import EpisodicStore as EpisodicStore
    from refold.memory.graph import GraphStore as GraphStore
    from refold.memory.indexes.graph_algorithms import GraphFacts as GraphFacts
    from refold.memory.indexes.graph_algorithms import GraphPath as GraphPath
    from refold.memory.indexes.graph_algorithms import Subgraph as Subgraph
    from refold.memory.items import KnownEntry as KnownEntry
    from refold.memory.items import NewEntry as NewEntry
    from refold.memory.items import NewEpisode as NewEpisode
    from refold.memory.items import Recalled as Recalled
    from refold.memory.items import SimilarEntry as SimilarEntry
    from refold.memory.semantic import SemanticStore as SemanticStore
    from refold.memory.working import WorkingMemory as WorkingMemory

__all__ = [
    "AgentMemoryError",
    "DecayPolicy",
    "Entity",
    "EpisodicStore",
    "GraphError",
    "GraphFacts",
    "GraphPath",
    "GraphStore",
    "KnownEntry",
    "MemoryId",
    "NewEntry",
    "NewEpisode",
    "RecallPolicy",
    "Recalled",
    "Relationship",
    "SemanticStore",
    "SimilarEntry",
    "Subgraph",
    "WorkingMemory",
    "memory_tools",
]

_HOMES = {
    "AgentMemoryError": "refold.events.core.errors",
    "DecayPolicy": "refold.events.kinds.memory_policies",
    "Entity": "refold.events.kinds.graph",
    "EpisodicStore": "refold.memory.episodic",
    "GraphError": "refold.events.core.errors",
    "GraphFacts": "refold.memory.indexes.graph_algorithms",
    "GraphPath": "refold.memory.indexes.graph_algorithms",
    "GraphStore": "refold.memory.graph",
    "KnownEntry": "refold.memory.items",
    "MemoryId": "refold.events.core.ids",
    "NewEntry": "refold.memory.items",
    "NewEpisode": "refold.memory.items",
    "RecallPolicy": "refold.events.kinds.memory_policies",
    "Recalled": "refold.memory.items",
    "Relationship": "refold.events.kinds.graph",
    "SemanticStore": "refold.memory.semantic",
    "SimilarEntry": "refold.memory.items",
    "Subgraph": "refold.memory.indexes.graph_algorithms",
    "WorkingMemory": "refold.memory.working",
    "memory_tools": "refold.agents.memory_tools",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
