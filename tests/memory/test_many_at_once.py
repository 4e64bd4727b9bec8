"""Many additions at once: one message, one commit, all of them or nothing, before a runtime and in one."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold import (
    AgentMemoryError,
    EpisodicStore,
    GraphError,
    GraphStore,
    NewEntry,
    NewEpisode,
    SemanticStore,
)
from refold.events import CommandRejected
from refold.memory import Entity, Relationship
from tests.memory.conftest import assert_sound, runtime_of


def episodes_of(*contents: str) -> list[NewEpisode]:
    return [NewEpisode("a", content, number / 100) for number, content in enumerate(contents)]


async def test_episodes_that_are_added_together_are_one_commit_and_the_same_as_one_by_one(tmp_path: Path) -> None:
    together, single = EpisodicStore("together", capacity=80), EpisodicStore("single", capacity=80)
    episodes = [NewEpisode("a" if number % 3 else "b", f"tea {number}", 0.5, (f"t{number}",)) for number in range(200)]
    log = tmp_path / "events.db"
    async with runtime_of(log, objects=[together, single]) as runtime:
        before = runtime.commits
        ids = await together.add_episodes(episodes)
        assert runtime.commits == before + 1
        one_by_one = [
            await single.add_episode(each.agent, each.content, each.importance, each.tags) for each in episodes
        ]
        assert ids == one_by_one
        for agent in ("a", "b"):
            assert await together.contents(agent) == await single.contents(agent)
        assert await together.count() == 147
        found = await together.recall("a", "t199", 1)
        assert (found[0].content, found[0].id) == ("tea 199", ids[199])
    await assert_sound(log)


async def test_facts_and_graphs_take_many_in_one_commit() -> None:
    facts, graph = SemanticStore(), GraphStore()
    async with runtime_of(semantic=facts, graph=graph) as runtime:
        before = runtime.commits
        await facts.put_many([NewEntry(f"k{number % 7}", f"v{number}", ("t",), [1, number]) for number in range(300)])
        people = [Entity(f"p{number}", "person", {"n": number}) for number in range(200)]
        knows = [Relationship(f"p{number}", "knows", f"p{number + 1}", 0.5) for number in range(199)]
        assert await graph.add_many([*people, *knows, people[0]]) == 399
        assert runtime.commits == before + 2
        assert await facts.keys() == [f"k{number}" for number in range(7)]
        assert await facts.get("k5") == "v299"
        assert [each.key for each in await facts.similar([1, 299], k=1)] == ["k5"]
        path = await graph.shortest_path("p0", "p199")
        assert path is not None
        assert path.weight == 99.5


async def test_nothing_is_added_where_one_cannot_be_and_the_error_names_it(tmp_path: Path) -> None:
    memory, facts, graph = EpisodicStore(), SemanticStore(), GraphStore()
    log = tmp_path / "events.db"

    async def refused(live: bool) -> None:
        with pytest.raises(AgentMemoryError, match=r"episodes\[1\]: the importance of an episode of 'a' must be"):
            memory.add_episodes([NewEpisode("a", "x"), NewEpisode("a", "y", 1.5)])
        with pytest.raises(AgentMemoryError, match=r"episodes\[1\] must be a NewEpisode, not \('a', 'y'\)"):
            memory.add_episodes([NewEpisode("a", "x"), ("a", "y")])  # type: ignore[list-item]
        with pytest.raises(AgentMemoryError, match="episodes must be several NewEpisode, not 'abc'"):
            memory.add_episodes("abc")  # type: ignore[arg-type]
        with pytest.raises(AgentMemoryError, match=r"episodes\[0\]: the tags of an episode"):
            memory.add_episodes([NewEpisode("a", "x", 0.5, "tags")])  # type: ignore[arg-type]
        with pytest.raises(AgentMemoryError, match=r"entries\[2\]: the embedding of 'three' is zero"):
            facts.put_many([NewEntry("one", "1"), NewEntry("two", "2"), NewEntry("three", "3", (), [0, 0])])
        with pytest.raises(AgentMemoryError, match=r"entries\[1\]: the embedding of 'b' has 3 numbers where"):
            await facts.put_many([NewEntry("a", "1", (), [1, 2]), NewEntry("b", "2", (), [1, 2, 3])])
        with pytest.raises(GraphError, match=r"items\[2\]: the graph has no entity 'z' for 'x' -likes-> 'z'"):
            await graph.add_many([Entity("x", "person"), Entity("y", "tea"), Relationship("x", "likes", "z")])
        with pytest.raises(GraphError, match=r"items\[1\]: the relationship 'x' -likes-> 'y' has the weight nan"):
            await graph.add_many([Entity("x", "person"), Relationship("x", "likes", "y", float("nan"))])
        with pytest.raises(GraphError, match=r"items\[0\]: a graph holds Entity and Relationship, not 'x'"):
            await graph.add_many(["x"])  # type: ignore[list-item]
        assert (await memory.count(), await facts.keys(), await graph.count()) == (0, [], 0), live

    await refused(False)
    async with runtime_of(log, memory=memory, semantic=facts, graph=graph) as runtime:
        await refused(True)
        assert [head.stream for head in await runtime.store.list_streams() if head.stream.endswith("/main")] == []
        assert await memory.add_episodes([]) == []
        assert await memory.add_episodes(episodes_of("after")) != []


async def test_a_refusal_before_a_runtime_leaves_what_was_given_before_and_its_keys(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    for start in range(2):
        graph = GraphStore()
        graph.add_many([Entity("a", "x"), Entity("a", "y")])
        if start == 0:  # What is refused must not change under which keys the rest is known.
            with pytest.raises(GraphError):
                graph.add_many([Entity("a", "x"), Entity("b", "x"), Relationship("a", "is", "c")]).get()
        assert [(each.id, each.kind) for each in graph.entities().get()] == [("a", "y")]
        graph.add_many([Entity("a", "x"), Entity("b", "x"), Relationship("a", "is", "b")])
        async with runtime_of(log, graph=graph) as runtime:
            assert [(each.id, each.kind) for each in await graph.entities()] == [("a", "x"), ("b", "x")]
            assert len(await runtime.store.read_stream("graph/main")) == 5


async def test_a_key_makes_an_import_count_once(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    calls: list[str] = []

    def embed(text: str) -> list[float]:
        calls.append(text)
        return [float(len(text)), 1]

    for _ in range(2):
        memory, facts, graph = EpisodicStore(), SemanticStore(embed=embed), GraphStore()
        async with runtime_of(log, memory=memory, semantic=facts, graph=graph):
            ids = await memory.add_episodes(episodes_of("one", "two"), key="import 1")
            await facts.put_many([NewEntry("k", "value"), NewEntry("l", "other value")], command_key="import 1")
            await graph.add_many([Entity("a", "x"), Relationship("a", "is", "a")], key="import 1")
            assert [(each.content, each.id) for each in await memory.look("a", "one two")] == [
                ("two", ids[1]),
                ("one", ids[0]),
            ]
            with pytest.raises(CommandRejected, match=r"episodes\[1\]: the key 'import 1 1' was used for another"):
                await memory.add_episodes(episodes_of("one", "three"), key="import 1")
            assert await memory.count() == 2
    assert calls == ["value", "other value"]


async def test_embeddings_of_many_are_made_in_order_and_all_or_nothing() -> None:
    async def embed(text: str) -> list[float]:
        await asyncio.sleep(0)
        if text == "bad":
            raise ValueError("no words")
        return [float(len(text)), 1]

    facts = SemanticStore(embed=embed)
    async with runtime_of(semantic=facts):
        await facts.put_many([NewEntry(f"k{number}", "x" * number) for number in range(1, 30)])
        assert [each.key for each in await facts.similar("x" * 29, k=1)] == ["k29"]
        with pytest.raises(AgentMemoryError, match="the embedding of 'b' could not be made: ValueError: no words"):
            await facts.put_many([NewEntry("a", "good"), NewEntry("b", "bad"), NewEntry("c", "good")])
        assert len(await facts.keys()) == 29


async def test_threads_add_many_while_the_runtime_works() -> None:
    memory = EpisodicStore()

    def work(agent: str) -> None:
        for batch in range(5):
            memory.add_episodes([NewEpisode(agent, f"{batch} {number}") for number in range(60)]).get(timeout=30)

    async with runtime_of(memory=memory):
        await asyncio.gather(*(asyncio.to_thread(work, f"agent {number}") for number in range(4)))
        for number in range(4):
            expected = [f"{batch} {place}" for batch in range(5) for place in range(60)]
            assert list(await memory.contents(f"agent {number}")) == expected


async def test_a_large_import_gives_the_loop_back_and_others_wait_for_all_of_it() -> None:
    memory = EpisodicStore()
    async with runtime_of(memory=memory):
        adding = asyncio.ensure_future(_awaited(lambda: memory.add_episodes(episodes_of(*["x"] * 100) * 20)))
        turns = 0
        while not adding.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 20
        counting = memory.count()
        assert (await counting, len(await adding)) == (2_000, 2_000)


async def test_an_import_that_is_cancelled_is_whole_or_not_there(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    memory = EpisodicStore()
    async with runtime_of(log, memory=memory):
        for steps in (0, 1, 3, 9, 30):
            adding = asyncio.ensure_future(_awaited(lambda: memory.add_episodes(episodes_of(*["x"] * 100) * 3)))
            for _ in range(steps):
                await asyncio.sleep(0)
            adding.cancel()
            assert await memory.count() % 300 == 0
    await assert_sound(log)


def test_threads_before_a_runtime_do_not_mix_what_they_give() -> None:
    graph = GraphStore()
    refusals: list[GraphError] = []

    def work(name: str) -> None:
        for number in range(10):
            graph.add_many([Entity(f"{name}{number}", "x"), Entity(f"{name}{number}+", "x")])
            try:
                graph.add_many([Entity(f"no {name}{number}", "x"), Relationship("a", "is", "nobody")]).get()
            except GraphError as error:
                refusals.append(error)

    threads = [threading.Thread(target=work, args=(f"t{number} ",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (graph.count().get(), len(refusals)) == (60, 30)


async def _awaited(call: Callable[[], Any]) -> Any:
    return await call()
