"""A semantic memory as its user has it: by key, by tag, by likeness."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refold
from refold.memory import SimilarEntry
from tests.memory.conftest import assert_sound, runtime_of


def keys(found: Sequence[SimilarEntry]) -> list[str]:
    return [each.key for each in found]


def test_it_is_a_store_of_texts_by_key() -> None:
    store = refold.SemanticStore()
    store.put("capital", "Lisbon", tags=["place", "place", "fact"])
    store.put("drink", "")
    assert store.get("capital").get() == "Lisbon"
    assert store.get("drink").get() == ""
    assert store.get("food").get() is None
    entry = store.entry("capital").get()
    assert entry is not None
    assert entry.tags == ("place", "fact")
    assert entry.embedding is None
    assert store.entry("food").get() is None
    store.put("capital", "Porto")
    assert store.keys().get() == ["capital", "drink"]
    assert store.remove("capital").get() is True
    assert store.remove("capital").get() is False
    store.clear()
    assert store.keys().get() == []


def test_by_tags_finds_what_has_all_of_them() -> None:
    store = refold.SemanticStore()
    for key, tags in (("a", ["x", "y"]), ("b", ["y"]), ("c", ["y", "x", "z"])):
        store.put(key, key.upper(), tags)
    assert [entry.key for entry in store.by_tags("x", "y").get()] == ["a", "c"]
    assert [entry.key for entry in store.by_tags("y").get()] == ["a", "b", "c"]
    assert [entry.key for entry in store.by_tags("x", "nothing").get()] == []
    assert [entry.key for entry in store.by_tags().get()] == ["a", "b", "c"]
    store.put("a", "A", ["z"])
    assert [entry.key for entry in store.by_tags("z").get()] == ["a", "c"]


def test_looking_into_it() -> None:
    store = refold.SemanticStore()
    assert store.most_common_tag().get() is None
    store.put("b", "two", ["y", "x"], embedding=[1, 0])
    store.put("a", "one", ["x", "y"])
    store.put("c", "two", ["z"], embedding=[0, 1])
    assert store.keys().get() == ["b", "a", "c"]
    assert store.values_column().get() == ["two", "one", "two"]
    assert store.values_column().get().most_common == "two"
    assert store.tags().get() == ["x", "y", "z"]
    assert store.most_common_tag().get() == "x"
    assert (store.count_by_tag("y").get(), store.count_by_tag("none").get()) == (2, 0)
    assert store.with_embedding().get() == ["b", "c"]


def test_case_l01_vectors_without_a_direction_are_refused_and_the_others_are_found_in_order() -> None:
    store = refold.SemanticStore()
    store.put("one", "", embedding=[1, 0])
    store.put("two", "", embedding=[0.5, 0.5])
    with pytest.raises(refold.AgentMemoryError, match="the embedding of 'zero' is zero in every place"):
        store.put("zero", "", embedding=[0, 0])
    with pytest.raises(refold.AgentMemoryError, match="the embedding of 'nan' has nan at place 0"):
        store.put("nan", "", embedding=[math.nan, 1])
    for number in (math.inf, -math.inf, 1e300):
        with pytest.raises(refold.AgentMemoryError, match=r"the embedding of 'inf' has -?inf at place 1"):
            store.put("inf", "", embedding=[1, number])
    with pytest.raises(refold.AgentMemoryError, match="the embedding of 'tiny' is zero in every place"):
        store.put("tiny", "", embedding=[1e-300, 0])
    with pytest.raises(
        refold.AgentMemoryError, match="the embedding of 'three' has 3 numbers where those of the store have 2"
    ):
        store.put("three", "", embedding=[1, 2, 3]).get()
    found = store.similar([1, 0], k=2).get()
    assert keys(found) == ["one", "two"]
    assert found[0].score == 1.0
    assert found[1].score == pytest.approx(math.sqrt(0.5), rel=1e-12)
    with pytest.raises(refold.AgentMemoryError, match="the query has 3 numbers where those of the store have 2"):
        store.similar([1, 2, 3]).get()


def test_equal_likeness_is_told_in_the_order_of_insertion() -> None:
    store = refold.SemanticStore()
    for number in range(300):
        store.put(f"k{number}", "", embedding=[3.0, 4.0, 5.0] if number % 2 else [0.3, 0.4, 0.1 * (number + 9)])
    store.remove("k1")
    store.put("k3", "replaced", embedding=[3.0, 4.0, 5.0])
    found = store.similar([6.0, 8.0, 10.0], k=100).get()
    assert keys(found) == [f"k{number}" for number in range(3, 203, 2)]
    assert {each.score for each in found} == {1.0}


def test_the_threshold_is_included_and_k_may_be_0() -> None:
    store = refold.SemanticStore()
    for key, embedding in (("same", [2, 0]), ("half", [1, 1]), ("right angle", [0, 3]), ("opposite", [-1, 0])):
        store.put(key, "", embedding=embedding)
    assert keys(store.similar([1, 0], k=9).get()) == ["same", "half", "right angle", "opposite"]
    assert keys(store.similar([1, 0], k=9, threshold=0.0).get()) == ["same", "half", "right angle"]
    assert keys(store.similar([1, 0], k=9, threshold=1.0).get()) == ["same"]
    assert keys(store.similar([1, 0], k=9, threshold=1.1).get()) == []
    assert store.similar([1, 0], k=0).get() == []
    assert refold.SemanticStore().similar([1, 0]).get() == []


def test_numbers_as_large_or_small_as_float32_has_them_are_compared() -> None:
    store = refold.SemanticStore()
    store.put("large", "", embedding=[3e38, 3e38])
    store.put("small", "", embedding=[1e-45, 0])
    assert [(each.key, each.score) for each in store.similar([3e38, 3e38]).get()] == [
        ("large", 1.0),
        ("small", pytest.approx(math.sqrt(0.5), rel=1e-7)),
    ]


numbers = st.floats(-4, 4, width=32).map(lambda number: round(number, 1))
vectors = st.lists(numbers, min_size=3, max_size=3).filter(any)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcdef"), st.none() | vectors),
        st.tuples(st.just("remove"), st.sampled_from("abcdef"), st.none()),
    ),
    max_size=20,
)


@given(steps, vectors, st.integers(1, 4))
@settings(deadline=None)
def test_similar_finds_what_a_look_at_every_entry_finds(
    given_steps: list[tuple[str, str, list[float] | None]], query: list[float], k: int
) -> None:
    store = refold.SemanticStore()
    for key in "abc":
        store.put(key, "", embedding=[1.0, float(ord(key) - 97), 2.0])
    for what, key, vector in [("look", "", None), *given_steps]:
        if what == "put":
            store.put(key, "", embedding=vector)
        elif what == "remove":
            store.remove(key)
        found = store.similar(query, k).get()
        assert [(each.key, each.score) for each in found] == plainly_similar(store, query, k)


def plainly_similar(store: refold.SemanticStore, query: list[float], k: int) -> list[tuple[str, float]]:
    """Compare with every entry."""
    ranked = []
    asked = np.array(query, dtype=np.float32).astype(np.float64)
    for place, entry in enumerate(sorted(store.by_tags().get(), key=lambda entry: store.keys().get().index(entry.key))):
        if entry.embedding is not None:
            own = np.frombuffer(entry.embedding, "<f4").astype(np.float64)
            cosine = float((own * asked).sum() / np.sqrt((own * own).sum() * (asked * asked).sum()))
            ranked.append((-max(-1.0, min(1.0, cosine)), place, entry.key))
    return [(key, -negative) for negative, _, key in sorted(ranked)[:k]]


def length_and_vowels(text: str) -> list[float]:
    return [float(len(text)), 1.0 + sum(text.count(vowel) for vowel in "aeiou")]


async def length_and_vowels_later(text: str) -> list[float]:
    await asyncio.sleep(0)
    return length_and_vowels(text)


@pytest.mark.parametrize(
    "embed",
    [length_and_vowels, length_and_vowels_later, lambda text: length_and_vowels_later(text)],
    ids=["plain", "async", "awaitable"],
)
def test_a_store_makes_its_embeddings(embed: object) -> None:
    store = refold.SemanticStore(embed=embed)  # type: ignore[arg-type]
    assert store.embeds
    store.put("before", "aa")

    async def in_a_runtime() -> None:
        async with runtime_of(semantic=store):
            await store.put("in it", "bbb")
            await store.put("given", "aa", embedding=[-1, -1])
            assert keys(await store.similar("bbb", k=1)) == ["in it"]
            await asyncio.to_thread(lambda: store.put("thread", "aaaaa").get())
            assert keys(await asyncio.to_thread(lambda: store.similar("aaaaa", k=1).get())) == ["thread"]

    assert keys(store.similar("aa").get()) == ["before"]
    asyncio.run(in_a_runtime())


async def test_puts_happen_in_the_order_in_which_they_were_asked_for() -> None:
    first_may_end = asyncio.Event()

    async def embed(text: str) -> list[float]:
        if text == "first":
            await first_may_end.wait()
        return [1.0, 2.0]

    store = refold.SemanticStore(embed=embed)
    async with runtime_of(semantic=store):
        first, second = store.put("k", "first"), store.put("k", "second")
        await asyncio.sleep(0)
        first_may_end.set()
        await first
        await second
        assert await store.get("k") == "second"


async def test_what_an_embedding_function_does_wrong_is_said_with_the_key() -> None:
    def fails(text: str) -> list[float]:
        raise ValueError("no model")

    store = refold.SemanticStore(embed=fails)
    with pytest.raises(refold.AgentMemoryError, match="the embedding of 'k' could not be made: ValueError: no model"):
        await store.put("k", "v")
    store = refold.SemanticStore(embed=lambda text: [0.0])
    async with runtime_of(semantic=store):
        with pytest.raises(refold.AgentMemoryError, match="the embedding of 'k' is zero"):
            await store.put("k", "v")
        with pytest.raises(refold.AgentMemoryError, match="the embedding of the query is zero"):
            await store.similar("v")
        assert await store.keys() == []


async def test_under_a_key_an_embedding_is_made_once(tmp_path: Path) -> None:
    made: list[str] = []

    def embed(text: str) -> list[float]:
        made.append(text)
        return [1.0, float(len(made))]

    for _ in range(2):
        store = refold.SemanticStore(embed=embed)
        async with runtime_of(tmp_path / "events.db", semantic=store):
            await store.put("k", "v", command_key="c")
            await store.put("k", "v", command_key="c")
            assert await store.keys() == ["k"]
    assert made == ["v"]


async def test_without_embed_a_key_on_another_content_is_refused() -> None:
    store = refold.SemanticStore()
    async with runtime_of(semantic=store):
        await store.put("k", "v", command_key="c")
        await store.put("k", "v", command_key="c")
        with pytest.raises(refold.CommandRejected, match="used for another command"):
            await store.put("k", "w", command_key="c")


async def test_after_a_restart_everything_is_as_it_was_bit_for_bit(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    random = np.random.default_rng(7)
    given_vectors = random.standard_normal((40, 8)) * 10.0 ** random.integers(-30, 30, (40, 1))
    store = refold.SemanticStore()
    for number, vector in enumerate(given_vectors[:20]):
        store.put(f"k{number}", f"v{number}", ["t"], embedding=vector)
    async with runtime_of(log, semantic=store):
        for number, vector in enumerate(given_vectors[20:], 20):
            await store.put(f"k{number}", f"v{number}", embedding=vector.tolist())
        await store.remove("k3")
        entries, found = await store.by_tags(), await store.similar(given_vectors[9], k=40)
    for entry in entries:
        assert entry.embedding == given_vectors[int(entry.key[1:])].astype("<f4").tobytes()
    again = refold.SemanticStore()
    async with runtime_of(log, semantic=again):
        assert await again.by_tags() == entries
        assert await again.similar(given_vectors[9], k=40) == found
    await assert_sound(log)


async def test_many_entries_are_ready_when_a_runtime_has_them(tmp_path: Path) -> None:
    store = refold.SemanticStore()
    random = np.random.default_rng(3)
    given_vectors = random.standard_normal((2_500, 4))
    for number, vector in enumerate(given_vectors):
        store.put(f"k{number}", f"word{number % 100} v{number}", embedding=vector)
    before = store.similar(given_vectors[77], k=10).get()
    async with runtime_of(semantic=store):
        assert await store.similar(given_vectors[77], k=10) == before
        assert [entry.key for entry in await store.matching("v77 word77", k=2)] == ["k77", "k177"]


def test_words_find_entries_as_well() -> None:
    store = refold.SemanticStore()
    store.put("Anna's drink", "green tea", ["taste"])
    store.put("Bob's drink", "coffee")
    store.put("capital", "Lisbon")
    assert [entry.key for entry in store.matching("the drink of anna").get()] == ["Anna's drink", "Bob's drink"]
    assert [entry.key for entry in store.matching("TASTE").get()] == ["Anna's drink"]
    assert store.matching("zebra").get() == []
    assert store.matching("drink", k=0).get() == []
    for number in range(2_500):
        store.put("capital", f"city{number}")
        if number % 100 == 0:
            assert [entry.value for entry in store.matching("capital").get()] == [f"city{number}"]
    assert store.matching("city3").get() == []
    store.remove("capital")
    assert store.matching("capital").get() == []


async def test_another_dimension_than_that_of_the_log_is_refused_at_the_start(tmp_path: Path) -> None:
    store = refold.SemanticStore(dimension=3)
    store.put("k", "v", embedding=[1, 2, 3])
    async with runtime_of(tmp_path / "events.db", semantic=store):
        pass
    with pytest.raises(refold.AgentMemoryError, match="holds 1 embeddings of 3 numbers, not 2"):
        async with runtime_of(tmp_path / "events.db", semantic=refold.SemanticStore(dimension=2)):
            raise AssertionError
