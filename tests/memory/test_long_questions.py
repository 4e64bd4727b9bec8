"""Questions about much give the loop back between their steps, and find what they would find at once."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import refold
from refold.actors import ManualClock
from refold.events.model.cooperative import ITEMS_PER_STEP
from refold.memory import Entity, Relationship
from refold.scenarios.world.loop import SimulatedLoop
from tests.memory.conftest import runtime_of

MANY = 5 * ITEMS_PER_STEP


def filled(clock: ManualClock | None = None) -> tuple[refold.EpisodicStore, refold.SemanticStore]:
    memory = refold.EpisodicStore(
        decay=refold.DecayPolicy.exponential(1), recall=refold.RecallPolicy.hybrid(1, 1), clock=clock
    )
    memory.add_episodes([refold.NewEpisode("a", f"tea {number}", number % 97 / 97, ("t",)) for number in range(MANY)])
    facts = refold.SemanticStore(clock=clock)
    facts.put_many(
        [refold.NewEntry(f"k{number}", f"v {number % 5}", ("t",), [1, number % 50]) for number in range(MANY)]
    )
    return memory, facts


def questions(memory: refold.EpisodicStore, facts: refold.SemanticStore) -> dict[str, Callable[[], Any]]:
    return {
        "recall": lambda: memory.recall("a", "tea", MANY),
        "look": lambda: memory.look("a", "17", MANY),
        "by_importance": lambda: memory.by_importance("a"),
        "more_important_than": lambda: memory.more_important_than("a", 0.1),
        "contents": lambda: memory.contents("a"),
        "similar": lambda: facts.similar([1, 7], k=MANY),
        "matching": lambda: facts.matching("v 3", k=MANY),
        "by_tags": lambda: facts.by_tags("t"),
        "all entries": lambda: facts.by_tags(),
        "keys": lambda: facts.keys(),
        "values_column": lambda: facts.values_column(),
        "with_embedding": lambda: facts.with_embedding(),
    }


async def turns_during(call: Callable[[], Awaitable[Any]]) -> tuple[int, Any]:
    """Return how often others had the loop until an answer came, and the answer."""

    async def asked() -> Any:
        return await call()

    asking = asyncio.ensure_future(asked())
    turns = 0
    while not asking.done():
        await asyncio.sleep(0)
        turns += 1
    return turns, asking.result()


async def test_the_loop_is_everybodys_between_the_steps_of_a_question_and_answers_are_the_same() -> None:
    clock = ManualClock()
    before, live = filled(clock), filled(clock)
    async with runtime_of(memory=live[0], semantic=live[1], clock=clock):
        few = questions(refold.EpisodicStore(), refold.SemanticStore())
        least = max([(await turns_during(few[name]))[0] for name in ("look", "keys", "by_tags")])
        for name, question in questions(*live).items():
            turns, answer = await turns_during(question)
            assert answer == questions(*before)[name]().get(), name
            assert turns >= least + len(answer) // ITEMS_PER_STEP - 1, name


async def test_changes_come_after_a_question_that_was_asked_before_them() -> None:
    memory, _ = filled()
    async with runtime_of(memory=memory):
        looking = memory.look("a", "tea", MANY)
        clearing = memory.clear()
        adding = memory.add_episode("a", "tea again")
        again = memory.look("a", "tea", MANY)
        await clearing
        await adding
        assert len(await looking) == MANY
        assert [each.content for each in await again] == ["tea again"]


async def test_a_question_that_is_given_up_leaves_the_next_one_right() -> None:
    memory, facts = filled()
    async with runtime_of(memory=memory, semantic=facts):
        await memory.add_episodes([refold.NewEpisode("a", f"later {number}") for number in range(MANY)])
        for steps in (1, 3, 6):
            asking = asyncio.ensure_future(asyncio.wait_for(_future(memory.look("a", "later", 3)), 30))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
        assert len(await memory.look("a", "later", 2 * MANY)) == MANY
        assert len(await memory.look("a", "tea", 2 * MANY)) == MANY


async def _future(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


LOADS = """
import asyncio, sys
from refold import AgentConfig, AgentRuntime, EpisodicStore, ScriptedProvider, SemanticStore

class Watching:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            import threading
            print(threading.current_thread() is threading.main_thread())

async def main():
    sys.meta_path.insert(0, Watching())
    store = {{"{parameter}": {store}()}}
    print("numpy" in sys.modules)
    async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), **store):
        print("numpy" in sys.modules)

asyncio.run(main())
"""


@pytest.mark.parametrize(("parameter", "store"), [("memory", "EpisodicStore"), ("semantic", "SemanticStore")])
def test_numpy_is_loaded_in_a_thread_before_a_runtime_is_open(parameter: str, store: str) -> None:
    program = LOADS.format(parameter=parameter, store=store)
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False", "True"]


def test_a_loop_without_threads_asks_large_stores_as_well() -> None:
    async def program() -> tuple[list[str], list[str], tuple[str, ...]]:
        memory, facts = filled()
        graph = refold.GraphStore()
        embedding = refold.SemanticStore("embedding", embed=lambda text: [1.0, float(len(text))])
        async with runtime_of(memory=memory, semantic=facts, graph=graph, objects=[embedding]):
            found = [each.content for each in await memory.recall("a", "2345", 1)]
            await embedding.put("k", "value")
            similar = [each.key for each in await embedding.similar("other", k=1)]
            await graph.add_many([Entity("a", "x"), Entity("b", "x"), Relationship("a", "is", "b")])
            return found, similar, await graph.bfs("a")

    loop = SimulatedLoop()
    try:
        assert loop.run_until_complete(program()) == (["tea 2345"], ["k"], ("a", "b"))
        steps = loop.steps
        loop.run_until_complete(program())
        assert loop.steps == 2 * steps
    finally:
        loop.close()
