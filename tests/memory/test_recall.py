"""Recall among many: the arrays beside the state give what a look at every episode gives, however the state changed."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold import DecayPolicy, EpisodicStore, MemoryId, RecallPolicy
from refold.actors import EventSourcedSystem, ManualClock
from refold.events.kinds.episodic import Episode, Episodes
from refold.events.kinds.indexing import CHANGES_KEPT, words_of
from refold.memory import Recalled
from refold.memory.indexes.words import best

VOCABULARY = ["tea", "cat", "sun", "Tea", "café"]


def plainly_recalled(store: EpisodicStore, state: Episodes, agent: str, query: str, limit: int) -> list[MemoryId]:
    """Recall by looking at every episode."""
    now, words = store.now_us(), words_of(query)
    ranked: list[tuple[int, float, int, MemoryId]] = []
    for episode in state.episodes.values():
        if episode.agent == agent:
            shared = len(words & words_of(" ".join((episode.content, *episode.tags))))
            ranked.append((-shared, -plain_score(store, episode, now), episode.number, episode.id))
    matching = [each for each in ranked if each[0]] or ranked
    return [each[3] for each in sorted(matching)[:limit]]


def plain_score(store: EpisodicStore, episode: Episode, now: int) -> float:
    effective = store.decay.effective(episode.importance, now - episode.at)
    return store.recall_policy.score(effective, now - (episode.recalled_at or episode.at), episode.recalls)


def ids(found: Sequence[Recalled]) -> list[MemoryId]:
    return [each.id for each in found]


contents = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=3).map(" ".join)
agents = st.sampled_from(["a", "b"])
steps = st.one_of(
    st.tuples(st.just("add"), agents, contents, st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    st.tuples(st.just("recall"), agents, contents, st.integers(0, 3)),
    st.tuples(st.just("clear"), agents),
    st.tuples(st.just("wait"), st.integers(1, 48)),
)


@given(
    st.lists(steps, max_size=25),
    st.none() | st.integers(1, 4),
    st.sampled_from([DecayPolicy.none(), DecayPolicy.exponential(24)]),
    st.sampled_from([RecallPolicy.importance(), RecallPolicy.hybrid(0.5, 0.25)]),
)
@settings(deadline=None)
def test_recall_finds_what_a_look_at_every_episode_finds(
    given_steps: list[tuple[object, ...]], capacity: int | None, decay: DecayPolicy, policy: RecallPolicy
) -> None:
    clock = ManualClock()
    store = EpisodicStore(capacity=capacity, decay=decay, recall=policy, clock=clock)
    for step in given_steps:
        match step:
            case ("add", str() as agent, str() as content, float() as importance):
                store.add_episode(agent, content, importance)
            case ("recall", str() as agent, str() as query, int() as limit):
                expected = store.read(lambda state, *given: None)
                expected.get()
                plain: list[MemoryId] = store.read(
                    lambda state, agent=agent, query=query, limit=limit: plainly_recalled(  # type: ignore[misc]
                        store, state, agent, query, limit
                    )
                ).get()
                assert ids(store.recall(agent, query, limit).get()) == plain
            case ("clear", str() as agent):
                store.clear(agent)
                assert store.recall(agent, "tea").get() == []
            case ("wait", int() as hours):
                clock.jump(hours * 3_600)
            case _:
                raise AssertionError(step)
        assert capacity is None or all(store.count(agent).get() <= capacity for agent in "ab")


def test_the_index_follows_more_changes_than_are_remembered() -> None:
    store = EpisodicStore(capacity=1_500)
    store.add_episode("a", "tea first", 1.0)
    assert len(store.look("a", "tea", 10).get()) == 1
    for number in range(2 * CHANGES_KEPT + 100):
        store.add_episode("a", f"coffee n{number}", number % 7 / 10)
    assert [each.content for each in store.look("a", "tea", 10).get()] == ["tea first"]
    for query in ("coffee", "n2000", "n3", "zebra"):
        plain: list[MemoryId] = store.read(
            lambda state, query=query: plainly_recalled(store, state, "a", query, 20)  # type: ignore[misc]
        ).get()
        assert ids(store.look("a", query, 20).get()) == plain
    for number in range(1_600):  # One by one, looked at between, so that rows are left behind and renumbered.
        store.add_episode("a", f"milk m{number}", 0.9)
        if number % 40 == 0:
            assert [each.content for each in store.look("a", f"m{number}").get()] == [f"milk m{number}"]
    plain = store.read(lambda state: plainly_recalled(store, state, "a", "milk tea", 30)).get()
    assert ids(store.look("a", "milk tea", 30).get()) == plain


def test_looks_from_before_and_after_agree_with_a_new_object() -> None:
    clock = ManualClock()
    looked = EpisodicStore(clock=clock)
    for number in range(50):
        looked.add_episode("a", f"tea {number % 5} {'green' * (number % 2)}", number % 3 / 10)
        looked.recall("a", f"{number % 5}", 2).get()
    fresh = EpisodicStore(clock=clock)
    fresh._before = looked._before
    for query in ("tea", "green 1", "4", ""):
        assert looked.look("a", query, 20).get() == fresh.look("a", query, 20).get()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), max_size=30),
    st.integers(0, 12),
)
def test_the_best_are_those_that_sorting_all_gives(given_rows: list[tuple[int, float]], count: int) -> None:
    primary = np.array([row[0] for row in given_rows], dtype=np.int64)
    score = np.array([row[1] for row in given_rows], dtype=np.float64)
    expected = sorted(range(len(given_rows)), key=lambda place: (-primary[place], -score[place], place))[:count]
    assert best(primary, score, count).tolist() == expected


@pytest.mark.parametrize("hours", [0, 1, 24, 1_000])
def test_effective_importance_is_that_of_the_formula(hours: int) -> None:
    clock = ManualClock()
    store = EpisodicStore(decay=DecayPolicy.exponential(24), recall=RecallPolicy.hybrid(2, 3), clock=clock)
    memory_id = store.add_episode("a", "tea", 0.8).get()
    store.note_recalled([memory_id])
    clock.jump(hours * 3_600)
    found = store.look("a", "tea").get()[0]
    assert found.importance == pytest.approx(0.8 * 0.5 ** (hours / 24), rel=1e-12)
    assert found.score == pytest.approx(found.importance + 2 * 0.995**hours + 3 * 0.5, rel=1e-12)


async def test_many_episodes_are_ready_when_a_runtime_has_them() -> None:
    store = EpisodicStore()
    for number in range(2_200):
        store.add_episode("a" if number % 20 else "b", f"tea n{number % 50}", number % 9 / 10)
    before = {query: store.look("a", query, 20).get() for query in ("n7", "tea", "zebra")}
    async with EventSourcedSystem() as system:
        await store.attach(system.host)
        assert {query: ids(await store.look("a", query, 20)) for query in before} == {
            query: ids(found) for query, found in before.items()
        }
        added = await store.add_episode("a", "n7 tea", 1.0)
        assert ids(await store.look("a", "n7 tea", 1)) == [added]
        assert len(await store.look("b", "tea", 1_000)) == 110
