"""Memory as tools of a model."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.events.session.events import ToolCallCompleted, ToolCallFailed


class Relations:
    """A graph of the least kind that `relate` needs."""

    def __init__(self) -> None:
        self.entities: dict[str, str | None] = {}
        self.relationships: list[tuple[object, ...]] = []

    async def get(self, entity: str, /) -> str | None:
        return entity if entity in self.entities else None

    async def add_entity(self, entity: str, /, *, key: str | None = None) -> None:
        self.entities[entity] = key

    async def add_relationship(
        self, source: str, kind: str, target: str, /, weight: float = 1.0, *, key: str | None = None
    ) -> None:
        self.relationships.append((source, kind, target, weight, key))


async def results_of(calls: list[tuple[str, dict[str, Any]]], **stores: Any) -> list[Any]:
    """Have a model make calls one after another, and return what it was told."""
    script = [refold.use(name, arguments, id=f"toolu_{number}") for number, (name, arguments) in enumerate(calls)]
    provider = refold.ScriptedProvider([*script, refold.say("Done.")])
    objects = [store for store in stores.values() if not isinstance(store, Relations | str)]
    told: list[Any] = []
    async with refold.AgentRuntime(
        refold.AgentConfig(model="m"),
        provider=provider,
        tools=refold.memory_tools(**stores),
        objects=objects,
        inbox_poll_s=0,
    ) as runtime:
        session = await runtime.session("s")
        await session.send("Go on.")
        async for recorded in session.events():
            match recorded.event:
                case ToolCallCompleted(content=content) | ToolCallFailed(content=content):
                    told.append("".join(getattr(block, "text", "") for block in content))
        for store in objects:  # While the runtime has it.
            told.append(await store.read(lambda state: state))
    return told


async def test_what_a_model_remembers_it_recalls() -> None:
    memory = refold.EpisodicStore(scope="agent")
    remembered, recalled, nothing, state = await results_of(
        [
            ("remember", {"content": "Anna prefers tea", "importance": 0.8, "tags": ["drink", ""]}),
            ("recall", {"query": "what does ANNA drink"}),
            ("recall", {"query": "zebra"}),
        ],
        episodic=memory,
    )
    assert remembered == "Remembered."
    assert json.loads(recalled) == {"episodes": [{"content": "Anna prefers tea", "importance": 0.8, "tags": ["drink"]}]}
    assert json.loads(nothing) == {"episodes": []}
    assert [(each.agent, each.recalls) for each in state.episodes.values()] == [("agent", 1)]


async def test_with_both_stores_the_key_decides() -> None:
    memory, facts = refold.EpisodicStore(scope="agent"), refold.SemanticStore(scope="agent")
    told = await results_of(
        [
            ("remember", {"content": "Lisbon", "key": "capital of Portugal"}),
            ("remember", {"content": "Anna was in Portugal"}),
            ("recall", {"query": "portugal"}),
        ],
        episodic=memory,
        semantic=facts,
        agent="anna",
    )
    assert json.loads(told[2]) == {
        "facts": [{"key": "capital of Portugal", "value": "Lisbon", "tags": []}],
        "episodes": [{"content": "Anna was in Portugal", "importance": 0.5, "tags": []}],
    }
    assert list(told[3].agents) == ["anna"]


async def test_a_store_of_facts_finds_them_by_likeness_where_it_can() -> None:
    facts = refold.SemanticStore(embed=lambda text: [float(len(text)), 1.0], scope="agent")
    told = await results_of(
        [
            ("remember", {"key": "a", "content": "aaaa"}),
            ("remember", {"key": "b", "content": "bbbbbbbbb"}),
            ("recall", {"query": "cccccccc", "limit": 1}),
        ],
        semantic=facts,
    )
    assert json.loads(told[2]) == {"facts": [{"key": "b", "value": "bbbbbbbbb", "tags": []}]}


async def test_relating_adds_what_is_not_there() -> None:
    graph = Relations()
    graph.entities["anna"] = "before"
    told = await results_of(
        [("relate", {"source": "anna", "relationship": "lives in", "target": "lisbon", "weight": 2})], graph=graph
    )
    assert told == ["Remembered: anna lives in lisbon."]
    assert graph.entities["anna"] == "before"
    assert list(graph.entities) == ["anna", "lisbon"]
    source, kind, target, weight, key = graph.relationships[0]
    assert (source, kind, target, weight) == ("anna", "lives in", "lisbon", 2)
    assert key is not None
    assert key != graph.entities["lisbon"]


async def test_a_graph_on_the_log_is_related_in() -> None:
    graph = refold.GraphStore(scope="agent")
    arguments = {"source": "anna", "relationship": "lives in", "target": "lisbon"}
    told = await results_of([("relate", arguments), ("relate", {**arguments, "weight": 3})], graph=graph)
    assert told[:2] == ["Remembered: anna lives in lisbon."] * 2
    assert told[2].outgoing == {"anna": {"lisbon": {"lives in": 3.0}}}


@pytest.mark.parametrize(
    "arguments", [{"content": "x", "importance": 1.5}, {"content": ""}, {"content": "x", "importance": "NaN"}, {}]
)
async def test_what_cannot_be_remembered_is_told_to_the_model(arguments: dict[str, Any]) -> None:
    told, state = await results_of([("remember", arguments)], episodic=refold.EpisodicStore(scope="agent"))
    assert "were refused" in told
    assert state.episodes == {}


async def test_what_the_store_refuses_is_told_to_the_model() -> None:
    facts = refold.SemanticStore(embed=lambda text: [0.0], scope="agent")
    told, state = await results_of([("remember", {"key": "k", "content": "v"})], semantic=facts)
    assert "the embedding of 'k' is zero in every place" in told
    assert state.entries == {}


def test_without_a_store_there_are_no_tools() -> None:
    with pytest.raises(refold.ConfigError, match="memory_tools needs a store"):
        refold.memory_tools()
    tools = refold.memory_tools(episodic=refold.EpisodicStore(scope="agent"), graph=Relations())
    assert [(tool.name, tool.spec.effect) for tool in tools] == [
        ("remember", "idempotent"),
        ("recall", "idempotent"),
        ("relate", "idempotent"),
    ]
    assert [tool.name for tool in refold.memory_tools(graph=Relations())] == ["relate"]


DIES_AFTER_REMEMBERING = """
import asyncio, os, sys
from refold import AgentConfig, AgentRuntime, EpisodicStore, ScriptedProvider, memory_tools, say, use
from refold.stores import SQLiteStore

class DiesBeforeTheResult:
    '''The log of a machine that loses its power when the tool has done its work and before its result is recorded.'''

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)

    async def append(self, batches, payloads=None):
        if any(b"tool_call_completed" in data for batch in batches for data in batch.events):
            os._exit(9)
        return await self.store.append(batches, payloads)

async def main():
    memory = EpisodicStore(scope="agent")
    provider = ScriptedProvider([use("remember", {"content": "Anna prefers tea"}), say("Done.")])
    async with await SQLiteStore.open(sys.argv[1]) as store:
        async with AgentRuntime(
            AgentConfig(model="m"), provider=provider, memory=memory, tools=memory_tools(episodic=memory),
            log=DiesBeforeTheResult(store),
        ) as runtime:
            await (await runtime.session("s")).send("Remember it.")

asyncio.run(main())
"""


async def test_a_crash_after_remembering_does_not_remember_twice(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    died = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", DIES_AFTER_REMEMBERING, str(log))
    assert await died.wait() == 9
    before = await refold.EpisodicStore(scope="agent").at(log)
    assert list(await before.contents("agent")) == ["Anna prefers tea"]
    memory = refold.EpisodicStore(scope="agent")
    async with refold.AgentRuntime(
        refold.AgentConfig(model="m"),
        provider=refold.ScriptedProvider([refold.say("Done."), refold.say("Yes.")]),
        memory=memory,
        tools=refold.memory_tools(episodic=memory),
        log=log,
        inbox_poll_s=0,
    ) as runtime:
        session = await runtime.session("s")
        assert (await session.send("And now?")).text == "Yes."  # After the run that goes on by itself.
        assert list(await memory.contents("agent")) == ["Anna prefers tea"]
        texts = [
            getattr(block, "text", "")
            async for recorded in session.events()
            if isinstance(recorded.event, ToolCallCompleted)
            for block in recorded.event.content
        ]
        assert texts == ["Remembered."]
