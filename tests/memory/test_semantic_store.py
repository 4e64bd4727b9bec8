"""A semantic memory as its user has it: by key, by tag, by likeness."""

import asyncio
import hashlib
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refold
from refold.events.core.ids import PayloadHash, StreamName
from refold.events.core.records import EncodedBatch
from refold.events.kinds import semantic as semantic_kind
from refold.events.kinds.indexing import CHANGES_KEPT
from refold.events.model.configuration import payload_hash
from refold.inspection.check import check_log
from refold.inspection.export import export_to_file
from refold.keeping import compact, repair_log
from refold.memory import KnownEntry, SimilarEntry, semantic
from refold.memory.indexes import vectors as vectors_module
from refold.stores import InMemoryStore, SQLiteStore
from refold.stores.jsonl.importing import import_log
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
    with pytest.raises(refold.AgentMemoryError, match="the embedding of 'none' has no numbers"):
        store.put("none", "", embedding=[])
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
        assert [(each.key, each.score) for each in found] == most_similar_of(store.by_tags().get(), query, k)


def most_similar_of(entries: Sequence[KnownEntry], query: list[float], k: int) -> list[tuple[str, float]]:
    """Compare with every entry, given in the order of insertion."""
    ranked = []
    asked = np.array(query, dtype=np.float32).astype(np.float64)
    for place, entry in enumerate(entries):
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


# Blocks of embeddings beside the events

DIMENSION = 300
given_vectors = np.random.default_rng(7).standard_normal((60, DIMENSION)).astype(np.float32)


async def remembered(log: Any, store: refold.SemanticStore, count: int = 40) -> None:
    """Have a log in which half of the facts came together, and half alone."""
    entries = [refold.NewEntry(f"k{n}", f"v{n}", ("t",), given_vectors[n]) for n in range(count)]
    async with runtime_of(log, semantic=store):
        await store.put_many(entries[: count // 2])
        for entry in entries[count // 2 :]:
            await store.put(entry.key, entry.value, entry.tags, entry.embedding)
        await store.put("k3", "replaced", embedding=given_vectors[count])
        await store.remove("k5")


async def answers(store: refold.SemanticStore) -> list[Any]:
    similar = [await store.similar(query, k=50) for query in given_vectors[:5]]
    entries = await store.by_tags()
    for entry in entries:
        number = 40 if entry.key == "k3" else int(entry.key[1:])
        assert entry.embedding == given_vectors[number].tobytes()
        assert await store.entry(entry.key) == entry
    return [similar, entries, await store.with_embedding(), await store.matching("v7 replaced")]


async def answers_of(log: Path) -> list[Any]:
    store = refold.SemanticStore()
    async with runtime_of(log, semantic=store):
        return await answers(store)


async def test_embeddings_lie_in_blocks_that_go_wherever_their_log_goes(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    await remembered(log, refold.SemanticStore())
    expected = await answers_of(log)
    assert [len(found) for found in (expected[0][0], expected[1])] == [39, 39]
    async with await SQLiteStore.open(log, read_only=True) as store:
        sizes = Counter(each.size for each in await store.list_payloads(limit=100))
        assert {size: count for size, count in sizes.items() if size > 1000} == {24_000: 1, 1_200: 21}
        assert b'"embedding"' not in b"".join([each.data for each in await store.read_all()])
        await store.back_up(tmp_path / "backup.db")
    await export_to_file(log, tmp_path / "text.jsonl")
    with (tmp_path / "text.jsonl").open("rb") as text:
        await import_log(text, "text", tmp_path / "imported.db")
    await export_to_file(log, tmp_path / "part.jsonl", streams=["knowledge/main"])
    with (tmp_path / "part.jsonl").open("rb") as text:
        await import_log(text, "part", tmp_path / "part.db")
    assert (await repair_log(log, tmp_path / "saved.db")).complete
    for copy in ("backup.db", "imported.db", "part.db", "saved.db"):
        assert await answers_of(tmp_path / copy) == expected
    await compact(log)
    assert await answers_of(log) == expected
    past = await refold.SemanticStore().at(log)
    assert await answers(past) == expected
    await assert_sound(log)


async def test_a_log_takes_little_more_than_its_embeddings(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((1_000, 384)).astype(np.float32)
    store = refold.SemanticStore()
    async with runtime_of(tmp_path / "events.db", semantic=store):
        await store.put_many([refold.NewEntry(f"k{number}", "v", (), row) for number, row in enumerate(rows)])
    assert (tmp_path / "events.db").stat().st_size < 1.3 * rows.nbytes


async def test_a_log_with_embeddings_in_its_events_goes_on_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, new = tmp_path / "old.db", tmp_path / "new.db"

    def given_before() -> refold.SemanticStore:
        store = refold.SemanticStore()
        store.put_many([refold.NewEntry(f"k{n}", f"v{n}", ("t",), given_vectors[n]) for n in range(5)])
        return store

    async def lived(path: Path) -> None:
        await remembered(path, given_before())
        store = refold.SemanticStore()
        async with runtime_of(path, semantic=store):
            await store.put("k9", "v", embedding=given_vectors[9], command_key="c")

    with monkeypatch.context() as old:
        old.setattr(semantic, "in_blocks", lambda commands: (commands, {}))
        await lived(log)
    await lived(new)
    assert await answers_of(log) == await answers_of(new)
    store = given_before()  # As a program that gives its facts at each start.
    async with runtime_of(log, semantic=store) as runtime:
        await store.put("k9", "v", embedding=given_vectors[9], command_key="c")
        with pytest.raises(refold.CommandRejected, match="used for another command"):
            await store.put("k9", "v", embedding=given_vectors[8], command_key="c")
        head = await runtime.store.head(store.stream)
        assert head is not None
        assert head.version == 5 + 40 + 2 + 1
        await store.put("k50", "v", embedding=given_vectors[50])
        assert [each.key for each in await store.similar(given_vectors[50], k=1)] == ["k50"]
        assert len((await answers(store))[1]) == 40
    await assert_sound(log)


async def test_a_users_embeddings_are_gone_with_the_user_and_what_others_have_stays(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    store = refold.SemanticStore()
    rows = [refold.NewEntry(f"k{number}", "secret1", (), row) for number, row in enumerate(given_vectors[:20])]

    def traces() -> list[bool]:
        data = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
        return [given_vectors[number].tobytes()[:600] in data for number in (1, 30)]  # Across no page.

    async with runtime_of(log, semantic=store, redact=[re.compile("secret[0-9]")]) as runtime:
        for user in ("ann", "bob"):
            await store.of(user=user).put_many(rows)
        await store.of(user="ann").put("own", "v", embedding=given_vectors[30])
        assert traces() == [True, True]
        await runtime.delete_user("ann")
        assert traces() == [True, False]
        [nearest] = await store.of(user="bob").similar(given_vectors[1], k=1)
        assert (nearest.key, nearest.value) == ("k1", "[redacted]")
        await runtime.delete_user("bob")
        assert traces() == [False, False]
    await assert_sound(log)


@pytest.mark.parametrize(
    ("damage", "problem", "prepared_from"),
    [
        ("DELETE FROM payloads WHERE length(data) > 9999", "is missing", 1),
        ("UPDATE payloads SET data = randomblob(length(data)) WHERE length(data) > 9999", "is damaged", 1),
        ("UPDATE payloads SET data = x'00' WHERE length(data) > 9999", "is damaged", 10_000),
    ],
)
async def test_a_damaged_block_is_told_of_and_nothing_is_found_by_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: str,
    problem: str,
    prepared_from: int,
) -> None:
    log = tmp_path / "events.db"
    await remembered(log, refold.SemanticStore())
    with closing(sqlite3.connect(log)) as connection, connection:
        connection.execute(damage)
    told = [each.message for each in (await check_log(log)).problems]
    assert any(problem in message or "is not what was stored" in message for message in told)
    monkeypatch.setattr(semantic, "PREPARED_FROM", prepared_from)
    store = refold.SemanticStore()
    async with runtime_of(log, semantic=store):
        assert (problem in caplog.text) == (prepared_from == 1)
        for question in (lambda: store.similar(given_vectors[0]), lambda: store.by_tags(), lambda: store.entry("k1")):
            with pytest.raises(refold.LogFormatError, match=problem):
                await question()
        assert (await store.get("k1"), len(await store.keys())) == ("v1", 39)
        await store.put_many([refold.NewEntry(f"k{n}", f"v{n}", (), given_vectors[n + 1]) for n in range(20)])
        assert (await store.similar(given_vectors[7], k=1))[0].key == "k6"  # No entry needs the block any more.
        await store.put_many([refold.NewEntry(f"k{n}", f"v{n}", (), given_vectors[n]) for n in range(20)])
        assert (await store.similar(given_vectors[7], k=1))[0].key == "k7"  # The block is written anew.
    assert (await check_log(log)).problems == ()


@pytest.mark.parametrize(
    ("events", "numbers", "problem"),
    [
        (['"vector":["HASH",0,2]', '"vector":["HASH",1,2]'], 2, ""),
        (['"vector":["HASH",0,0]'], 2, "no numbers"),
        (['"embedding":""'], 2, "no numbers"),
        (['"vector":["HASH",-1,2]'], 2, "is damaged"),
        (['"vector":["HASH",4,2]'], 2, "is damaged"),
        (['"vector":["HASH",0,3]'], 3, "is damaged"),
        (['"vector":["HASH",0,2]', '"vector":["HASH",0,4]'], 4, "has rows of 2, not 4"),
        (['"vector":["HASH",0,2]', '"embedding":"AACAPwAAAEAAAIA/"'], 3, "has rows of 2, not 3"),
        (['"embedding":"AACAPwAAAEAAAIA/"', '"vector":["HASH",0,2]'], 2, "other numbers than the 2"),
        (['"vector":["HASH",3,2]'], 2, "the embedding of 'k0' in the log has no direction"),
        (['"vector":["HASH",2,2]'], 2, "the embedding of 'k0' in the log has no direction"),
    ],
)
async def test_places_that_no_command_gives_are_refused_by_who_reads_them(
    events: list[str], numbers: int, problem: str
) -> None:
    data = np.array([[1, 2], [3, 4], [math.nan, 1], [0, 0]], dtype="<f4").tobytes()
    name = hashlib.sha256(data).hexdigest()
    log = InMemoryStore()
    encoded = [
        b'{"type":"knowledge.entry_put.v1","name":"k%d","value":"v",%s}' % (number, said.replace("HASH", name).encode())
        for number, said in enumerate(events)
    ]
    batch = EncodedBatch(stream=StreamName("knowledge/main"), expected_version=0, at=1, events=tuple(encoded))
    await log.append([batch], {PayloadHash(name): data})
    store = refold.SemanticStore()
    async with runtime_of(log, semantic=store):
        with pytest.raises(refold.LogFormatError, match=problem) if problem else nullcontext():
            assert [each.key for each in await store.similar([1.0] * numbers, k=1)] == ["k1"]
        assert await store.get("k0") == "v"


@pytest.mark.parametrize(("entries", "refused"), [(20, False), (200, True)])
async def test_a_small_log_that_names_one_large_embedding_often_takes_no_memory_without_end(
    entries: int, refused: bool
) -> None:
    data = np.ones(512 * 1024, dtype="<f4").tobytes()
    name = hashlib.sha256(data).hexdigest()
    said = '{"type":"knowledge.entry_put.v1","name":"k%d","value":"v","vector":["%s",0,524288]}'
    encoded = tuple((said % (number, name)).encode() for number in range(entries))
    log = InMemoryStore()
    batch = EncodedBatch(stream=StreamName("knowledge/main"), expected_version=0, at=1, events=encoded)
    await log.append([batch], {PayloadHash(name): data})
    store = refold.SemanticStore()
    async with runtime_of(log, semantic=store):
        with pytest.raises(refold.LogFormatError, match="199 entries in the log name") if refused else nullcontext():
            assert [each.key for each in await store.similar([1.0] * 512 * 1024, k=1)] == ["k0"]
        assert len(await store.keys()) == entries


async def test_what_changed_is_all_that_is_read_and_no_index_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "events.db"
    await remembered(log, refold.SemanticStore())
    store = refold.SemanticStore()
    async with runtime_of(log, semantic=store) as runtime:
        read: list[int] = []
        inner = runtime.store.read_payloads

        async def counted(names: Iterable[Any]) -> dict[Any, bytes]:
            found = await inner(names)
            read.extend(map(len, found.values()))
            return found

        monkeypatch.setattr(runtime.store, "read_payloads", counted)
        await store.similar(given_vectors[0])
        assert sum(read) == 4 * DIMENSION * (20 + 20 + 1 - 1 + 1)
        same = [refold.NewEntry("k1", "v", (), row) for row in given_vectors]
        without = [refold.NewEntry("k2", f"{number}") for number in range(2 * CHANGES_KEPT)]
        for change, query, nearest, expected in (
            (lambda: store.put("new", "v", embedding=given_vectors[50]), 50, "new", 1),
            (lambda: store.remove("k1"), 50, "new", 0),
            (lambda: store.put("new", "w", embedding=given_vectors[51]), 51, "new", 1),
            (lambda: store.put_many(same), 59, "k1", len(same)),
            (lambda: store.put_many(without), 51, "new", 0),
            (lambda: store.put("k2", "v", embedding=given_vectors[2]), 2, "k2", 1),
        ):
            await change()
            read.clear()
            assert (await store.similar(given_vectors[query], k=1))[0].key == nearest
            assert sum(read) == 4 * DIMENSION * expected


async def test_a_block_that_many_events_name_in_turn_is_read_and_looked_through_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, looked_through = refold.SemanticStore(), list[int]()

    def counted(data: bytes) -> PayloadHash:
        looked_through.append(len(data))
        return payload_hash(data)

    monkeypatch.setattr(vectors_module, "payload_hash", counted)
    async with runtime_of(semantic=store):
        for number in range(30):
            await store.put(f"k{number}", "v", embedding=given_vectors[number % 2])
        assert [each.key for each in await store.similar(given_vectors[1], k=15)] == [f"k{n}" for n in range(1, 30, 2)]
    assert looked_through == [4 * DIMENSION] * 2


@pytest.mark.parametrize("seed", range(3))
async def test_similar_in_small_parts_finds_what_a_look_at_every_entry_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors_module, "PART_BYTES", 4 * 3 * 5)
    monkeypatch.setattr(semantic_kind, "BLOCK_BYTES_MIN", 1 + 11 * seed)
    monkeypatch.setattr(semantic_kind, "BLOCK_BYTES_MAX", 4 * 3 * 4)
    random = Random(seed)
    store = refold.SemanticStore()

    def vector() -> list[float]:
        scale = random.choice([1.0, 1.0, 1e-25, 1e30])
        return [scale * random.choice([-2, -1, 1, 3]) for _ in range(3)]

    async with runtime_of(semantic=store):
        for _ in range(60):
            keys_of = [f"k{random.randrange(25)}" for _ in range(random.randrange(1, 9))]
            match random.randrange(8):
                case 0 | 1:
                    await asyncio.gather(*(store.remove(key) for key in keys_of))
                case 2:
                    await store.put(keys_of[0], "without")
                case 3 if random.random() < 0.2:
                    await store.clear()
                case _:
                    await store.put_many([refold.NewEntry(key, "v", (), vector()) for key in keys_of])
            query, k = vector(), random.randrange(1, 30)
            found = await store.similar(query, k)
            entries = await store.by_tags()
            assert [(each.key, each.score) for each in found] == most_similar_of(entries, query, k)
