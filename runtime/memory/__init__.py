"""What agents remember and know: episodes, facts, working memory and graphs, each a stream on the log.

Read `stream_object` first: how such an object lives on the log. Names load on first use.
"""

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
    from refold.memory.graph_facts import GraphFacts as GraphFacts
    from refold.memory.graph_facts import GraphPath as GraphPath
    from refold.memory.graph_facts import Subgraph as Subgraph
    from refold.memory.items import KnownEntry as KnownEntry
    from refold.memory.items import NewEntry as NewEntry
    from refold.memory.items import NewEpisode as NewEpisode
    from refold.memory.items import Recalled as Recalled
    from refold.memory.items import SimilarEntry as SimilarEntry
    from refold.memory.scoped import Scope as Scope
    from refold.memory.semantic import SemanticStore as SemanticStore
    from refold.memory.working import WorkingMemory as WorkingMemory
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.agents.memory_tools": "memory_tools",
            "refold.events.core.errors": "AgentMemoryError GraphError",
            "refold.events.core.ids": "MemoryId",
            "refold.events.kinds.graph": "Entity Relationship",
            "refold.events.kinds.memory_policies": "DecayPolicy RecallPolicy",
            "refold.memory.episodic": "EpisodicStore",
            "refold.memory.graph": "GraphStore",
            "refold.memory.graph_facts": "GraphFacts GraphPath Subgraph",
            "refold.memory.items": "KnownEntry NewEntry NewEpisode Recalled SimilarEntry",
            "refold.memory.scoped": "Scope",
            "refold.memory.semantic": "SemanticStore",
            "refold.memory.working": "WorkingMemory",
        },
    )
