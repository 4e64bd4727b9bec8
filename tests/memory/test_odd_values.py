"""Texts and numbers that are none are refused wherever they are given, and strange ones found as they were kept."""

import math
from collections.abc import Callable
from typing import Any

import pytest

import refold
from refold.events import CommandRejected
from refold.events.core.cleaning import Unrecordable
from tests.memory.conftest import runtime_of

STRANGE = ["a\ud800b", "a\0b", "e\u0301", "\u202eabc\u05d0", "\ufeffx", "a\r\n\u2028b", " ", "👩‍👩‍👧"]
NO_TEXTS: list[Any] = [5, b"x", ["x"], {"a": 1}, object()]

Stores = tuple[refold.EpisodicStore, refold.SemanticStore, refold.WorkingMemory, refold.GraphStore]


async def in_and_before_a_runtime(check: Callable[[Stores], Any]) -> None:
    for live in (False, True):
        stores = (
            refold.EpisodicStore(),
            refold.SemanticStore(embed=lambda text: [1.0, len(text)]),
            refold.WorkingMemory(3),
            refold.GraphStore(),
        )
        memory, facts, working, graph = stores
        if live:
            async with runtime_of(memory=memory, semantic=facts, working_memory=working, graph=graph):
                await check(stores)
        else:
            await check(stores)


@pytest.mark.parametrize("text", STRANGE)
async def test_what_is_kept_under_a_strange_text_is_found_by_it(text: str) -> None:
    async def check(stores: Stores) -> None:
        memory, facts, working, _ = stores
        await memory.add_episode(text, "tea", tags=[text])
        assert [each.content for each in await memory.recall(text, "tea")] == ["tea"]
        assert [each.content for each in await memory.look(text, text)] == ["tea"]
        assert (await memory.count(text), list(await memory.contents(text))) == (1, ["tea"])
        assert len(await memory.by_importance(text)) == len(await memory.more_important_than(text, 0)) == 1
        await memory.clear(text)
        assert await memory.count() == 0
        await facts.put(text, text, tags=[text])
        entry = await facts.entry(text)
        assert entry is not None
        assert entry.value == await facts.get(text)
        assert [each.key for each in await facts.by_tags(text)] == [entry.key]
        assert await facts.count_by_tag(text) == 1
        assert await facts.remove(text)
        await working.set(text, text)
        assert await working.get(text) is not None
        assert await working.remove(text)

    await in_and_before_a_runtime(check)


async def test_large_texts_come_back_as_they_were_and_too_large_ones_are_refused() -> None:
    async def check(stores: Stores) -> None:
        memory, facts, _, _ = stores
        large = "ウ🦜é\x00" * 50_000
        await memory.add_episode("агент", large, tags=["größe"])
        await memory.add_episode("агент", "cut \ud83d here")
        assert list(await memory.contents("агент")) == [large, "cut \ufffd here"]
        assert [each.content for each in await memory.recall("агент", "GRÖSSE")] == [large]
        await facts.put("ключ\n", large, ["größe"])
        await facts.put("cut \ud83d", "\ud83d")
        assert await facts.get("ключ\n") == large
        assert await facts.get("cut \ufffd") == await facts.get("cut \ud83d") == "\ufffd"
        with pytest.raises(Unrecordable, match="an event may have"):
            await memory.add_episode("агент", "x" * 2_000_000)
        with pytest.raises(Unrecordable, match="an event may have"):
            await facts.put("k", "x" * 2_000_000)
        assert (await memory.count(), await facts.keys()) == (2, ["ключ\n", "cut \ufffd"])

    await in_and_before_a_runtime(check)


@pytest.mark.parametrize("given", NO_TEXTS, ids=lambda given: type(given).__name__)
async def test_what_is_no_text_is_refused_by_every_method(given: Any) -> None:
    async def check(stores: Stores) -> None:
        memory, facts, working, graph = stores
        await graph.add_entity("e")
        asked: dict[str, Callable[[], Any]] = {
            "agent": lambda: memory.add_episode(given, "x"),
            "content": lambda: memory.add_episode("a", given),
            "key": lambda: memory.add_episode("a", "x", key=given),
            "recall": lambda: memory.recall(given, "x"),
            "query": lambda: memory.recall("a", given),
            "count": lambda: memory.count(given),
            "contents": lambda: memory.contents(given),
            "by_importance": lambda: memory.by_importance(given),
            "clear": lambda: memory.clear(given),
            "note": lambda: memory.note_recalled([given]),
            "put": lambda: facts.put(given, "x"),
            "value": lambda: facts.put("k", given),
            "command key": lambda: facts.put("k", "x", embedding=[1, 2], command_key=given),
            "get": lambda: facts.get(given),
            "remove": lambda: facts.remove(given),
            "by_tags": lambda: facts.by_tags(given),
            "count_by_tag": lambda: facts.count_by_tag(given),
            "matching": lambda: facts.matching(given),
            "set": lambda: working.set(given, "x"),
            "set to": lambda: working.set("x", given),
            "working get": lambda: working.get(given),
            "working remove": lambda: working.remove(given),
            "entity": lambda: graph.add_entity(given),
            "graph key": lambda: graph.add_entity("f", key=given),
            "graph get": lambda: graph.get(given),
            "direction": lambda: graph.neighbours("e", given),
        }
        refused: dict[str, type[Exception]] = {}
        for name, ask in asked.items():
            try:
                await ask()
            except CommandRejected as error:
                refused[name] = type(error)
        assert refused.keys() == asked.keys()
        assert set(refused.values()) == {refold.AgentMemoryError, refold.GraphError, CommandRejected}
        assert (await memory.count(), await facts.keys(), await working.items(), await graph.count()) == (0, [], {}, 1)

    await in_and_before_a_runtime(check)


@pytest.mark.parametrize("given", [None, 5, object()], ids=lambda given: type(given).__name__)
async def test_what_is_not_several_is_refused(given: Any) -> None:
    async def check(stores: Stores) -> None:
        memory, facts, _, graph = stores
        asked: tuple[Callable[[], Any], ...] = (
            lambda: memory.add_episode("a", "x", tags=given),
            lambda: memory.add_episodes([refold.NewEpisode("a", "x", 0.5, given)]),
            lambda: memory.add_episodes(given),
            lambda: memory.note_recalled(given),
            lambda: facts.put("k", "x", tags=given),
            lambda: facts.put_many(given),
            lambda: graph.add_many(given),
            lambda: graph.subgraph(given),
        )
        for ask in asked:
            with pytest.raises((refold.AgentMemoryError, refold.GraphError)):
                await ask()

    await in_and_before_a_runtime(check)


async def test_a_threshold_may_be_larger_than_any_float() -> None:
    async def check(stores: Stores) -> None:
        memory, facts, _, _ = stores
        await memory.add_episode("a", "x", 0.5)
        await facts.put("k", "x", embedding=[1, 0])
        for beyond in (10**400, math.inf):
            assert await memory.more_important_than("a", beyond) == []
            assert len(await memory.more_important_than("a", -beyond)) == 1
            assert await facts.similar([1, 0], threshold=beyond) == []
            assert len(await facts.similar([1, 0], threshold=-beyond)) == 1

    await in_and_before_a_runtime(check)


async def test_ten_thousand_tags_are_tags() -> None:
    async def check(stores: Stores) -> None:
        memory, facts, _, _ = stores
        tags = [f"tag{number}" for number in range(10_000)]
        await memory.add_episode("a", "x", tags=tags)
        assert [each.shared_words for each in await memory.look("a", "tag17 tag9999 tag10000")] == [2]
        await facts.put("k", "x", tags=tags)
        assert [each.key for each in await facts.by_tags(*tags)] == ["k"]

    await in_and_before_a_runtime(check)


async def test_a_key_of_a_command_is_a_text_that_can_be_recorded() -> None:
    async def check(stores: Stores) -> None:
        memory, _, _, graph = stores
        with pytest.raises(CommandRejected, match=r"the key 'a\\ud800' holds a lone surrogate"):
            await memory.add_episode("a", "x", key="a\ud800")
        with pytest.raises(CommandRejected, match="a key must be a text, not 5"):
            await graph.add_entity("a", key=5)  # type: ignore[arg-type]

    await in_and_before_a_runtime(check)


memory, facts, working = refold.EpisodicStore(), refold.SemanticStore(), refold.WorkingMemory(1)
NO_CAPACITY = "capacity of a memory must be a whole number of at least 1"

REFUSED_SETTINGS: list[tuple[Callable[[Any], object], Any, str]] = [
    *((lambda given: refold.EpisodicStore(capacity=given), given, NO_CAPACITY) for given in (0, -1, 1.5, True)),
    *((refold.WorkingMemory, given, NO_CAPACITY) for given in (0, -1, 1.5, True, None)),
    (lambda given: refold.EpisodicStore(decay=given), 24, "needs a DecayPolicy, not 24"),
    *(
        (lambda given: refold.SemanticStore(dimension=given), given, "embeddings must be a whole number of at least 1")
        for given in (0, -1, 2.0, True)
    ),
    (lambda given: refold.SemanticStore(embed=given), "model", "embed must be a function, not str"),
    (
        lambda given: refold.Agent(
            config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([]), memory=given
        ),
        refold.WorkingMemory(1),
        r"Agent\.memory must be a store of the kind 'memory'",
    ),
]

REFUSED_CALLS: list[tuple[Callable[[Any], object], Any, str]] = [
    *(
        (lambda given: memory.add_episode("agent", "it", given), given, "must be a number from 0 to 1")
        for given in (math.nan, -0.001, 1.001, "high", None)
    ),
    *(
        (lambda given: memory.recall("agent", "tea", given), given, "limit must be a whole number of at least 0")
        for given in (-1, 1.5, True, "3")
    ),
    (lambda given: memory.look("agent", given), 3, "a query must be a text, not 3"),
    (lambda given: memory.more_important_than("agent", given), math.nan, "importance cannot be compared to nan"),
    (lambda given: memory.add_episode("agent", "it", tags=given), "tag", "tags .* 'agent' must be several texts"),
    (lambda given: memory.add_episode("agent", given), "", "needs a text, not ''"),
    (lambda given: working.set(given, "v"), "", "needs a text as a key, not ''"),
    (lambda given: working.set("k", given), 3, "keeps texts, and 'k' is 3"),
    *(
        (lambda given: facts.similar([1, 0], k=given), given, "k must be a whole number of at least 0")
        for given in (-1, 1.5, True)
    ),
    (lambda given: facts.similar([1, 0], threshold=given), math.nan, "a cosine cannot be compared to nan"),
    (facts.similar, "text", "has no `embed`, so a query must be an embedding"),
    (facts.similar, [0, 0], "the embedding of the query is zero"),
    (facts.similar, [math.nan, 1], "has nan at place 0"),
    (facts.similar, [], "has no numbers"),
    (facts.similar, [[1, 0]], "one vector of numbers"),
    (facts.similar, ["a", "b"], "must be a vector of numbers"),
    (facts.matching, [1.0], "a query must be a text"),
    (lambda given: facts.put("k", given), 3, "the value of 'k' must be a text, not 3"),
    (lambda given: facts.put(given, "v"), "", "needs a text as its key, not ''"),
]


@pytest.mark.parametrize(("call", "given", "problem"), REFUSED_SETTINGS)
def test_what_is_no_setting_is_refused(call: Callable[[Any], object], given: Any, problem: str) -> None:
    with pytest.raises(refold.ConfigError, match=problem):
        call(given)


@pytest.mark.parametrize(("call", "given", "problem"), REFUSED_CALLS)
def test_what_cannot_be_kept_or_asked_is_refused_at_the_call(
    call: Callable[[Any], object], given: Any, problem: str
) -> None:
    with pytest.raises(refold.AgentMemoryError, match=problem):
        call(given)
    assert (memory.count().get(), facts.keys().get(), working.items().get()) == (0, [], {})
