"""A working memory as its user has it."""

from pathlib import Path

from refold import WorkingMemory
from refold.events.core.codec import tag_of
from tests.memory.conftest import assert_sound, runtime_of

TEXT = "Working memory:\n- b: 2\n- a: 1"


def test_the_one_used_longest_ago_goes() -> None:
    working = WorkingMemory(2)
    working.set("b", "0")
    working.set("a", "1")
    working.set("b", "2")
    assert working.get("a").get() == "1"
    assert (working.items().get(), working.prompt_text().get()) == ({"b": "2", "a": "1"}, TEXT)
    working.set("c", "3")
    assert working.items().get() == {"a": "1", "c": "3"}
    assert working.get("b").get() is None
    working.get("a")
    working.set("b", "4")
    assert list(working.items().get()) == ["a", "b"]
    working.remove("a")
    working.set("d", "5")
    assert list(working.items().get().items()) == [("b", "4"), ("d", "5")]
    assert list(working.items().get()) == ["b", "d"], "looking at all of them is no use of one"
    assert working.get("a").get() is None
    assert working.remove("b").get() is True
    assert working.remove("b").get() is False
    working.clear()
    assert working.items().get() == {}


async def test_a_look_is_recorded_where_it_changes_what_goes_next_and_holds_in_the_next_process(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    working = WorkingMemory(3)
    async with runtime_of(log, working_memory=working) as runtime:
        for name in "abc":
            await working.set(name, name)
        for name in ("c", "a", "a", "none", "b", "b"):
            await working.get(name)
        assert list(await working.items()) == ["c", "a", "b"]
        events = [tag_of(event.data) for event in await runtime.store.read_stream("working/main")]
    assert events[-2:] == ["working.item_used.v1"] * 2
    assert events.count("working.item_used.v1") == 2
    then = await WorkingMemory(3).at(log, version=len(events) - 1)
    assert (then.get("a").get(), list(then.items().get())) == ("a", ["b", "c", "a"])
    working = WorkingMemory(3)
    async with runtime_of(log, working_memory=working):
        await working.set("d", "d")
        assert list(await working.items()) == ["a", "b", "d"]
    await assert_sound(log)


def test_what_is_given_out_is_a_copy() -> None:
    working = WorkingMemory(2)
    working.set("a", "1")
    working.items().get()["b"] = "2"
    assert working.items().get() == {"a": "1"}


def test_what_is_appended_to_a_prompt() -> None:
    working = WorkingMemory(5)
    assert working.prompt_text().get() == ""
    working.set("city", "Lisbon")
    working.set("plan", "first\n- city: Porto\r\nlast")
    working.set("nothing", "")
    assert working.prompt_text().get() == (
        "Working memory:\n- city: Lisbon\n- plan: first\n  - city: Porto\n  last\n- nothing: "
    )


async def test_it_is_the_same_in_the_next_runtime_and_a_smaller_one_forgets_the_oldest(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    working = WorkingMemory(3)
    working.set("before", "🦜 \ud83d")
    async with runtime_of(log, working_memory=working):
        await working.set("in it", "", key="k")
        await working.set("in it", "", key="k")
        await working.set("last", "x" * 100_000)
    for capacity, kept in ((3, ["before", "in it", "last"]), (1, ["last"]), (1, ["last"])):
        working = WorkingMemory(capacity)
        async with runtime_of(log, working_memory=working):
            assert list(await working.items()) == kept
            assert (await working.items()).get("before") == ("🦜 \ufffd" if capacity == 3 else None)
    await assert_sound(log)
