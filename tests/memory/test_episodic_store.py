"""An episodic memory as its user has it: before, in and between runtimes."""

import math
from pathlib import Path

import pytest

import refold
from refold.actors import ManualClock
from refold.events.kinds.episodic import AddEpisode, NoteRecalled
from refold.memory import Recalled
from tests.memory.conftest import assert_sound, runtime_of

HOUR_S = 3_600


def texts(found: list[Recalled]) -> list[str]:
    return [each.content for each in found]


def test_the_most_shared_words_come_first_then_importance_then_insertion() -> None:
    memory = refold.EpisodicStore()
    for content, importance in (
        ("Anna drinks green tea", 0.2),
        ("Anna has a cat", 0.9),
        ("Bob drinks TEA", 0.9),
        ("Anna's tea is cold", 0.9),
        ("Anna's tea is hot", 0.9),
        ("Lisbon is sunny", 1.0),
    ):
        memory.add_episode("agent", content, importance)
    found = memory.recall("agent", "anna? TEA!", 10).get()
    assert texts(found) == [
        "Anna's tea is cold",
        "Anna's tea is hot",
        "Anna drinks green tea",
        "Anna has a cat",
        "Bob drinks TEA",
    ]
    assert [each.shared_words for each in found] == [2, 2, 2, 1, 1]
    assert [each.score for each in found] == [0.9, 0.9, 0.2, 0.9, 0.9]
    assert texts(memory.recall("agent", "anna tea", 2).get()) == texts(found)[:2]


@pytest.mark.parametrize("query", ["zebra", "", "?!"])
def test_where_no_word_is_shared_the_most_important_come(query: str) -> None:
    memory = refold.EpisodicStore()
    for content, importance in (("low", 0.1), ("high", 0.9), ("first of two", 0.5), ("second of two", 0.5)):
        memory.add_episode("agent", content, importance)
    found = memory.recall("agent", query, 3).get()
    assert texts(found) == ["high", "first of two", "second of two"]
    assert {each.shared_words for each in found} == {0}


def test_tags_are_words_too() -> None:
    memory = refold.EpisodicStore()
    memory.add_episode("agent", "prefers green tea", tags=["Drink", "Drink"])
    memory.add_episode("agent", "something else", 1.0)
    found = memory.recall("agent", "drink").get()
    assert texts(found) == ["prefers green tea"]
    assert found[0].tags == ("Drink",)


def test_looking_counts_nothing_and_recalling_counts() -> None:
    memory = refold.EpisodicStore()
    memory.add_episode("agent", "tea")
    for _ in range(2):
        assert memory.look("agent", "tea").get()[0].recalls == 0
    assert memory.recall("agent", "tea").get()[0].recalls == 0
    assert memory.look("agent", "tea").get()[0].recalls == 1
    memory.recall("agent", "tea", 0).get()
    assert memory.look("agent", "tea").get()[0].recalls == 1


def test_agents_do_not_see_each_other() -> None:
    memory = refold.EpisodicStore(capacity=1)
    memory.add_episode("a", "tea of a")
    memory.add_episode("b", "tea of b")
    assert texts(memory.recall("a", "tea").get()) == ["tea of a"]
    assert memory.recall("nobody", "tea").get() == []
    assert memory.agents().get() == ["a", "b"]
    memory.clear("a")
    assert memory.recall("a", "tea").get() == []
    assert (memory.count("a").get(), memory.count("b").get(), memory.count().get()) == (0, 1, 1)
    memory.clear()
    assert memory.agents().get() == []


def test_looking_into_it() -> None:
    clock = ManualClock()
    memory = refold.EpisodicStore(decay=refold.DecayPolicy.exponential(1), clock=clock)
    memory.add_episode("a", "one", 1.0)
    clock.jump(HOUR_S)
    for content, importance in (("two", 0.5), ("three", 0.7), ("three", 0.1)):
        memory.add_episode("a", content, importance)
    assert memory.contents("a").get() == ["one", "two", "three", "three"]
    assert memory.contents("a").get().most_common == "three"
    assert memory.contents("b").get() == []
    by_importance = memory.by_importance("a").get()
    assert texts(by_importance) == ["three", "one", "two", "three"]
    assert [each.importance for each in by_importance] == [0.7, 0.5, 0.5, 0.1]
    assert texts(memory.more_important_than("a", 0.5).get()) == ["three"]
    assert memory.more_important_than("b", 0).get() == []
    assert len(memory.more_important_than("a", -math.inf).get()) == 4


async def test_it_is_the_same_before_in_and_after_a_runtime(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    ids: list[refold.MemoryId] = []
    for round_number in range(2):
        memory = refold.EpisodicStore(capacity=3)
        ids.append(memory.add_episode("agent", "tea", 0.8).get())
        memory.add_episode("agent", "coffee", 0.4)
        async with runtime_of(log, memory=memory):
            assert await memory.count("agent") == 2 + round_number
            if not round_number:
                assert await memory.add_episode("agent", "milk", 0.6, key="k") == await memory.add_episode(
                    "agent", "milk", 0.6, key="k"
                )
                assert (await memory.recall("agent", "tea"))[0].id == ids[0]
            found = await memory.look("agent", "tea")
            assert [(each.id, each.recalls) for each in found] == [(ids[0], 1)]
    assert ids[0] == ids[1]
    await assert_sound(log)


async def test_another_capacity_is_recorded_and_takes_effect(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    memory = refold.EpisodicStore()
    for number in range(5):
        memory.add_episode("agent", f"tea {number}", number / 10)
    async with runtime_of(log, memory=memory):
        assert await memory.count("agent") == 5
    for _ in range(2):
        memory = refold.EpisodicStore(capacity=2)
        async with runtime_of(log, memory=memory) as runtime:
            assert list(await memory.contents("agent")) == ["tea 3", "tea 4"]
            stored = await runtime.store.read_stream("memory/main")
    assert [item.data.split(b'"')[3] for item in stored[5:]] == [
        b"memory.capacity_changed.v1",
        b"memory.episodes_evicted.v1",
    ]


async def test_nobody_waits_for_recall_counts_and_a_key_counts_once() -> None:
    memory = refold.EpisodicStore()
    async with runtime_of(memory=memory):
        memory_id = await memory.add_episode("agent", "tea")
        for _ in range(3):
            memory.note_recalled([memory_id, refold.MemoryId("gone")], "turn 1")
        memory.note_recalled([], "turn 2")
        assert (await memory.look("agent", "tea"))[0].recalls == 1
    memory.note_recalled([memory_id], "turn 3")  # The runtime is closed; nothing is raised.


async def test_a_recall_and_its_count_are_one(tmp_path: Path) -> None:
    memory = refold.EpisodicStore(capacity=1)
    async with runtime_of(memory=memory):
        await memory.add_episode("agent", "tea", 0.1)
        recalled = memory.recall("agent", "tea", key="r")
        added = memory.add_episode("agent", "more tea", 0.9)
        assert texts(await recalled) == ["tea"]
        await added
        assert texts(await memory.look("agent", "tea")) == ["more tea"]


def test_plain_code_waits_by_get() -> None:
    memory = refold.EpisodicStore()
    with runtime_of(memory=memory):
        memory.add_episode("agent", "tea")
        assert texts(memory.recall("agent", "tea").get()) == ["tea"]


async def test_after_a_refused_command_the_memory_goes_on() -> None:
    memory = refold.EpisodicStore()
    async with runtime_of(memory=memory):
        with pytest.raises(refold.AgentMemoryError, match="from 0 to 1"):
            await memory.perform(AddEpisode(agent="agent", content="it", importance=math.nan))
        assert (await memory.perform(NoteRecalled(episodes=()))).new is False
        await memory.add_episode("agent", "tea")
        assert await memory.count() == 1
