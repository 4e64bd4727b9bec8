"""What agents remember and know: episodes, facts, working memory and graphs, each a stream on the log.

Names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.events.errors import GraphError as GraphError
    from refold.events.graph_core import Entity as Entity
    from refold.events.graph_core import Relationship as Relationship
    from refold.memory.graph import GraphStore as GraphStore
    from refold.memory.graph_answers import GraphFacts as GraphFacts
    from refold.memory.graph_answers import GraphPath as GraphPath
    from refold.memory.graph_answers import Subgraph as Subgraph

__all__ = [
    "Entity",
    "GraphError",
    "GraphFacts",
    "GraphPath",
    "GraphStore",
    "Relationship",
    "Subgraph",
]

_HOMES = {
    "Entity": "refold.events.graph_core",
    "GraphError": "refold.events.errors",
    "GraphFacts": "refold.memory.graph_answers",
    "GraphPath": "refold.memory.graph_answers",
    "GraphStore": "refold.memory.graph",
    "Relationship": "refold.events.graph_core",
    "Subgraph": "refold.memory.graph_answers",
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
