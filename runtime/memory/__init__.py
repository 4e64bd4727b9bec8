"""What agents remember and know: episodes, facts, working memory and graphs, each a stream on the log.

Names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.events.errors import AgentMemoryError as AgentMemoryError
    from refold.events.errors import GraphError as GraphError
    from refold.events.graph_core import Entity as Entity
    from refold.events.graph_core import Relationship as Relationship
    from refold.events.ids import MemoryId as MemoryId
    from refold.events.memory_policies import DecayPolicy as DecayPolicy
    from refold.events.memory_policies import RecallPolicy as RecallPolicy
    from refold.memory.episodic import EpisodicStore as EpisodicStore
    from refold.memory.graph import GraphStore as GraphStore
    from refold.memory.graph_answers import GraphFacts as GraphFacts
    from refold.memory.graph_answers import GraphPath as GraphPath
    from refold.memory.graph_answers import Subgraph as Subgraph
    from refold.memory.new_items import NewEntry as NewEntry
    from refold.memory.new_items import NewEpisode as NewEpisode
    from refold.memory.recalled import KnownEntry as KnownEntry
    from refold.memory.recalled import Recalled as Recalled
    from refold.memory.recalled import SimilarEntry as SimilarEntry
    from refold.memory.semantic import SemanticStore as SemanticStore
    from refold.memory.tools import memory_tools as memory_tools
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
    "AgentMemoryError": "refold.events.errors",
    "DecayPolicy": "refold.events.memory_policies",
    "Entity": "refold.events.graph_core",
    "EpisodicStore": "refold.memory.episodic",
    "GraphError": "refold.events.errors",
    "GraphFacts": "refold.memory.graph_answers",
    "GraphPath": "refold.memory.graph_answers",
    "GraphStore": "refold.memory.graph",
    "KnownEntry": "refold.memory.recalled",
    "MemoryId": "refold.events.ids",
    "NewEntry": "refold.memory.new_items",
    "NewEpisode": "refold.memory.new_items",
    "RecallPolicy": "refold.events.memory_policies",
    "Recalled": "refold.memory.recalled",
    "Relationship": "refold.events.graph_core",
    "SemanticStore": "refold.memory.semantic",
    "SimilarEntry": "refold.memory.recalled",
    "Subgraph": "refold.memory.graph_answers",
    "WorkingMemory": "refold.memory.working",
    "memory_tools": "refold.memory.tools",
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
