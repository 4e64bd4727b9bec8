"""A working memory as its user has it."""

from pathlib import Path

from refold import WorkingMemory
from tests.memory.conftest import assert_sound, runtime_of


def test_the_one_set_longest_ago_goes_and_looking_changes_nothing() -> None:
    working = WorkingMemory(2)
    working.set("a", "1")
    working.set("b", "2")
    assert working.get("a").get() == "1"
    working.set("c", "3")
    assert working.items().get() == {"b": "2", "c": "3"}
    working.set("b", "4")
    working.set("d", "5")
    assert list(working.items().get().items()) == [("b", "4"), ("d", "5")]
    assert working.get("a").get() is None
    assert working.remove("b").get() is True
    assert working.remove("b").get() is False
    working.clear()
    assert working.items().get() == {}


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
            assert await working.get("before") == ("🦜 \ufffd" if capacity == 3 else None)
    await assert_sound(log)
