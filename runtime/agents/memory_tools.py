"""Memory as tools: what a model calls to remember, to recall and to relate.

    runtime = AgentRuntime(config, provider=provider, memory=memory, tools=memory_tools(episodic=memory))

They are ordinary tools. The rules: a call sees and changes its session's part of a store (`refold.memory.scoped`); and
each change goes to its store under the idempotency key of the call, so a call that is run again after a crash changes
nothing twice.
"""

from collections.abc import Awaitable
from typing import Annotated, Any, Protocol

import msgspec

from refold.actors.calls.recall import seen_in
from refold.actors.calls.tool_context import ToolContext
from refold.events.core.errors import ConfigError
from refold.memory.episodic import EpisodicStore
from refold.memory.semantic import SemanticStore
from refold.tools.tool import Tool, tool

Importance = Annotated[float, msgspec.Meta(ge=0, le=1, description="How much it matters, 0 to 1.")]
Tags = Annotated[list[str], msgspec.Meta(description="Words by which it is found as well.")]
Query = Annotated[str, msgspec.Meta(description="Words that what you look for has.")]
Limit = Annotated[int, msgspec.Meta(ge=1, le=50, description="At most so many.")]
Key = Annotated[str, msgspec.Meta(min_length=1, description="Names the fact; what was known under it is replaced.")]
EpisodeKey = Annotated[
    str | None,
    msgspec.Meta(description="For a fact: its name; what was known under it is replaced. Leave it out for an event."),
]
Name = Annotated[str, msgspec.Meta(min_length=1)]
Weight = Annotated[float, msgspec.Meta(ge=0, description="What it costs to follow the relationship.")]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class RelationStore(Protocol):
    """What `relate` needs of a graph; a `GraphStore` is one."""

    def get(self, entity: str, /) -> Awaitable[object | None]: ...

    def add_entity(self, entity: str, /, *, key: str | None = None) -> Awaitable[object]: ...

    def add_relationship(
        self, source: str, kind: str, target: str, /, weight: float = 1.0, *, key: str | None = None
    ) -> Awaitable[object]: ...


def memory_tools(
    *,
    episodic: EpisodicStore | None = None,
    semantic: SemanticStore | None = None,
    graph: RelationStore | None = None,
    agent: str = "agent",
) -> list[Tool[..., Any]]:
    """Return the tools by which a model uses the stores: `remember` and `recall`, and `relate` where there is a graph.

    With an episodic store `remember` adds an episode; with a semantic one it puts a fact under a key; with both, the
    key decides. `recall` finds episodes that share words with the query, and facts by likeness where the store makes
    embeddings, else by words. `relate` adds the entities that are not there. Give the stores to the runtime as well.

    Args:
        episodic: what happened.
        semantic: what is known.
        graph: what is related to what.
        agent: whose episodes they are.

    Raises:
        ConfigError: there is no store.
    """
    if episodic is None and semantic is None and graph is None:
        raise ConfigError("memory_tools needs a store: episodic, semantic or graph")
    tools: list[Tool[..., Any]] = []
    if episodic is not None and semantic is not None:
        tools.append(_remember_either(episodic, semantic, agent))
    elif episodic is not None:
        tools.append(_remember_episode(episodic, agent))
    elif semantic is not None:
        tools.append(_remember_fact(semantic))
    if episodic is not None or semantic is not None:
        tools.append(_recall(episodic, semantic, agent))
    if graph is not None:
        tools.append(_relate(graph))
    return tools


def _remember_episode(episodic: EpisodicStore, agent: str) -> Tool[..., Any]:
    @tool(effect="idempotent")
    async def remember(
        ctx: ToolContext[Any],
        content: Text,
        importance: Importance = 0.5,
        tags: Tags = [],  # noqa: B006 - not changed
    ) -> str:
        """Remember something for later."""
        await seen_in(episodic, ctx.session_context).add_episode(
            agent, content, importance, _words(tags), key=_key(ctx)
        )
        return "Remembered."

    return remember


def _remember_fact(semantic: SemanticStore) -> Tool[..., Any]:
    @tool(effect="idempotent")
    async def remember(ctx: ToolContext[Any], key: Key, content: str, tags: Tags = []) -> str:  # noqa: B006
        """Remember a fact for later."""
        await seen_in(semantic, ctx.session_context).put(key, content, _words(tags), command_key=_key(ctx))
        return "Remembered."

    return remember


def _remember_either(episodic: EpisodicStore, semantic: SemanticStore, agent: str) -> Tool[..., Any]:
    @tool(effect="idempotent")
    async def remember(
        ctx: ToolContext[Any],
        content: Text,
        key: EpisodeKey = None,
        importance: Importance = 0.5,
        tags: Tags = [],  # noqa: B006 - not changed
    ) -> str:
        """Remember something for later: an event, or, under a key, a fact."""
        if key:
            await seen_in(semantic, ctx.session_context).put(key, content, _words(tags), command_key=_key(ctx))
        else:
            await seen_in(episodic, ctx.session_context).add_episode(
                agent, content, importance, _words(tags), key=_key(ctx)
            )
        return "Remembered."

    return remember


def _recall(episodic: EpisodicStore | None, semantic: SemanticStore | None, agent: str) -> Tool[..., Any]:
    @tool(tier="observe", effect="idempotent")
    async def recall(ctx: ToolContext[Any], query: Query, limit: Limit = 5) -> dict[str, object]:
        """Look for what was remembered."""
        found: dict[str, object] = {}
        if semantic is not None:
            known = seen_in(semantic, ctx.session_context)
            facts = await (known.similar(query, limit) if known.embeds else known.matching(query, limit))
            found["facts"] = [{"key": fact.key, "value": fact.value, "tags": list(fact.tags)} for fact in facts]
        if episodic is not None:
            memory = seen_in(episodic, ctx.session_context)
            episodes = [each for each in await memory.look(agent, query, limit) if each.shared_words]
            memory.note_recalled([each.id for each in episodes], key=_key(ctx))
            found["episodes"] = [
                {"content": each.content, "importance": round(each.importance, 3), "tags": list(each.tags)}
                for each in episodes
            ]
        return found

    return recall


def _relate(graph: RelationStore) -> Tool[..., Any]:
    @tool(effect="idempotent")
    async def relate(
        ctx: ToolContext[Any], source: Name, relationship: Name, target: Name, weight: Weight = 1.0
    ) -> str:
        """Remember how one thing is related to another."""
        own = seen_in(graph, ctx.session_context)
        for place, entity in (("source", source), ("target", target)):
            if await own.get(entity) is None:
                await own.add_entity(entity, key=f"{_key(ctx)} {place}")
        await own.add_relationship(source, relationship, target, weight, key=_key(ctx))
        return f"Remembered: {source} {relationship} {target}."

    return relate


def _key(ctx: ToolContext[Any]) -> str:
    return f"call {ctx.idempotency_key}"


def _words(tags: list[str]) -> list[str]:
    return [tag for tag in tags if tag]
