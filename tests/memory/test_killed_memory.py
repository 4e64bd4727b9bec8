"""kill -9 in the middle of remembering: what was acknowledged is there, in order, and the next life goes on from it."""

import signal
import subprocess
import sys
from pathlib import Path

from refold import EpisodicStore, GraphStore, SemanticStore, WorkingMemory
from tests.memory.conftest import assert_sound, runtime_of

REMEMBERS = """
import asyncio, sys
from refold import (
    AgentConfig, AgentRuntime, EpisodicStore, GraphStore, NewEpisode, ScriptedProvider, SemanticStore, WorkingMemory
)
from refold.memory import Entity, Relationship

async def main():
    memory, facts, working = EpisodicStore(capacity=30), SemanticStore(), WorkingMemory(5)
    imported, graph = EpisodicStore("imported"), GraphStore()
    async with AgentRuntime(
        AgentConfig(model="m"), provider=ScriptedProvider([]), memory=memory, semantic=facts, working_memory=working,
        graph=graph, objects=[imported], log=sys.argv[1], durability="normal",
    ):
        for number in range(int(sys.argv[2]), 10_000):
            await memory.add_episode("a", f"tea {number}", number % 7 / 10)
            await memory.recall("a", f"tea {number % 3}", 2)
            await facts.put(f"k{number % 20}", f"v{number}", ["t"], embedding=[1, number] * 150)
            await working.set(f"n{number % 9}", str(number))
            await imported.add_episodes([NewEpisode("a", f"{number} {place}") for place in range(100)])
            name = f"e{number} {await graph.count()}"
            await graph.add_many([Entity(name, "x"), Entity(name + "+", "x"), Relationship(name, "is", name + "+")])
            print(number, flush=True)

asyncio.run(main())
"""


def killed_after(steps: int, log: Path, first: int) -> int:
    """Have a process remember from number `first` on, kill it, and return the last number that it acknowledged."""
    command = [sys.executable, "-P", "-c", REMEMBERS, str(log), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [int(process.stdout.readline()) for _ in range(steps)]
        process.send_signal(signal.SIGKILL)
        seen += [int(line) for line in process.stdout if line.endswith("\n")]
    return seen[-1]


async def test_nothing_acknowledged_is_lost_and_what_was_added_together_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    last = -1
    for life in range(3):
        last = killed_after(12 + life, log, last + 1)
        memory, facts, working = EpisodicStore(capacity=30), SemanticStore(), WorkingMemory(5)
        imported, graph = EpisodicStore("imported"), GraphStore()
        stores = {"memory": memory, "semantic": facts, "working_memory": working, "graph": graph}
        async with runtime_of(log, **stores, objects=[imported]) as runtime:
            stored = await runtime.store.read_stream("memory/main")
            added = [item for item in stored if b"episode_added" in item.data and b"tea" in item.data]
            assert last + 1 <= len(added) <= last + 2 + life
            assert await memory.count("a") == min(30, len(added))
            assert (await working.items()).get(f"n{last % 9}") is not None
            assert await facts.get(f"k{last % 20}") in (f"v{last}", f"v{last + 20}")
            assert (await facts.similar([1, last] * 150, k=1, threshold=0.999)) != []
            count = await imported.count()
            assert count % 100 == 0
            assert count >= 100 * (last + 1)
            found = await graph.facts()
            assert found.entities == 2 * found.relationships >= 2 * (last + 1)
            for store in (memory, facts, working):
                past = await store.at(log)
                assert await past.read(lambda state: state) == await store.read(lambda state: state)
    await assert_sound(log)
