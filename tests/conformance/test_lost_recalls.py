"""Recalls that a dying process did not note: the next one finds them in the answers, and counts each once."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from refold import Agent, AgentRuntime, EpisodicStore, PersistenceError, ScriptedProvider, say, subagent, use
from refold.events.core.records import StoredEvent
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, RecallsNoted
from refold.memory import Recalled
from refold.stores import EventStore, InMemoryStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import CONFIG, assert_sound, crash, runtime_of


def remembering(*contents: str, agent: str = "agent", name: str = "main") -> EpisodicStore:
    memory = EpisodicStore(name, scope="agent")
    for content in contents:
        memory.add_episode(agent, content)
    return memory


async def noted_in(log: EventStore) -> list[int]:
    events = RUNTIME_CODEC.decode_all(await log.read_stream(RUNTIME_STREAM))
    return [event.position for event in events if isinstance(event, RecallsNoted)]


async def once_noted(log: EventStore, times: int) -> None:
    async def noted() -> None:
        while len(await noted_in(log)) < times:  # noqa: ASYNC110 - What a reader of the log would do.
            await asyncio.sleep(0)

    await asyncio.wait_for(noted(), 30)


async def recalls_of(memory: EpisodicStore, agent: str = "agent") -> dict[str, int]:
    found: list[Recalled] = await memory.by_importance(agent)
    return {each.content: each.recalls for each in found}


def memory_off(store: FailingStore) -> None:
    store.fail_appends(lambda: PersistenceError("no room for memories"), of="memory/")


async def test_recalls_that_a_crash_lost_are_counted_once_by_the_next_runtime(log: EventStore) -> None:
    store = FailingStore(log)
    memory = remembering("Anna prefers tea.", "The office is closed.")
    runtime = await runtime_of(store, say("Tea."), say("Tea!"), say("Closed."), memory=memory, close_grace_s=0).open()
    session = await runtime.session("alice")
    await session.send("What does Anna drink?")
    memory_off(store)
    await session.send("What did you say about Anna?")
    await (await runtime.session("bob")).send("Is the office closed?")
    await crash(runtime, store)
    for _ in range(2):
        memory = EpisodicStore(scope="agent")
        runtime = await runtime_of(store, say("Tea."), memory=memory, close_grace_s=0).open()
        await once_noted(log, 1)
        assert await recalls_of(memory) == {"Anna prefers tea.": 2, "The office is closed.": 1}
        await runtime.close()
    assert len(await noted_in(log)) == 1
    await assert_sound(log)


async def test_a_runtime_that_dies_while_it_catches_up_leaves_the_rest_to_the_next(memory: InMemoryStore) -> None:
    store = FailingStore(memory)
    runtime = await runtime_of(store, say("1"), memory=remembering("Anna prefers tea."), close_grace_s=0).open()
    memory_off(store)
    await (await runtime.session("alice")).send("Anna?")
    await crash(runtime, store)
    memory_off(store)
    async with runtime_of(store, memory=EpisodicStore("another", scope="agent"), close_grace_s=0):
        pass  # It closes in order, and has noted nothing.
    store.mend()
    again = EpisodicStore(scope="agent")
    async with runtime_of(store, memory=again):
        await once_noted(memory, 1)
        assert await recalls_of(again) == {"Anna prefers tea.": 1}


async def test_a_runtime_without_a_memory_leaves_it_to_the_next(memory: InMemoryStore) -> None:
    store = FailingStore(memory)
    runtime = await runtime_of(store, say("1"), memory=remembering("Anna prefers tea."), close_grace_s=0).open()
    memory_off(store)
    await (await runtime.session("alice")).send("Anna?")
    await crash(runtime, store)
    async with runtime_of(store, say("2")) as runtime:
        await (await runtime.session("alice")).send("And now?")
    again = EpisodicStore(scope="agent")
    async with runtime_of(store, memory=again):
        await once_noted(memory, 1)
        assert await recalls_of(again) == {"Anna prefers tea.": 1}


async def test_each_agents_recalls_are_noted_in_its_own_memory(memory: InMemoryStore) -> None:
    store = FailingStore(memory)

    def agents(*script: object) -> tuple[Agent, EpisodicStore, EpisodicStore]:
        own, others = remembering("go home", agent="boss", name="boss"), remembering("go on", agent="h", name="helper")
        helper = Agent(name="h", config=CONFIG, provider=ScriptedProvider([say("yes")]), memory=others)
        provider = ScriptedProvider([use("h", {"task": "go"}), say("done")])
        return Agent(name="boss", config=CONFIG, provider=provider, memory=own, tools=[subagent(helper)]), own, others

    boss, *_ = agents()
    runtime = await AgentRuntime(boss, log=store, close_grace_s=0).open()
    memory_off(store)
    await (await runtime.session("alice")).send("go")
    await crash(runtime, store)
    boss, own, others = agents()
    async with AgentRuntime(boss, log=store):
        await once_noted(memory, 1)
        assert await recalls_of(own, "boss") == {"go home": 1}
        assert await recalls_of(others, "h") == {"go on": 1}


class CountingStore(InMemoryStore):
    """Counts the events of sessions that are read."""

    events = 0

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        found = await super().read_stream(stream, after_version=after_version, limit=limit)
        self.events += len(found) if stream.startswith("session/") else 0
        return found


async def test_a_session_of_many_lost_recalls_is_folded_once() -> None:
    log = CountingStore()
    store = FailingStore(log)
    memory = remembering("Anna prefers tea.")
    runtime = await runtime_of(store, *[say("Tea.")] * 20, memory=memory, close_grace_s=0).open()
    memory_off(store)
    session = await runtime.session("alice")
    for _ in range(20):
        await session.send("Anna?")
    await crash(runtime, store)
    length, log.events = len(await log.read_stream("session/alice")), 0
    memory = EpisodicStore(scope="agent")
    async with runtime_of(store, memory=memory):
        await once_noted(log, 1)
        assert log.events <= 2 * length
        assert await recalls_of(memory) == {"Anna prefers tea.": 20}


async def test_what_ended_in_order_is_not_read_again(log: EventStore) -> None:
    for _ in range(2):
        async with runtime_of(log, say("Tea."), memory=remembering("Anna prefers tea.")) as runtime:
            await (await runtime.session("alice")).send("Anna?")
    assert await noted_in(log) == []


KILLED = """
import asyncio, os, sys
from refold import AgentConfig, AgentRuntime, EpisodicStore, ScriptedProvider, say

class Dying(EpisodicStore):
    def note_recalled(self, ids, key=None):
        if os.environ.get("DIES"):
            os.kill(os.getpid(), 9)
        super().note_recalled(ids, key)

async def main():
    memory = Dying(scope="agent")
    memory.add_episode("agent", "Anna prefers tea.")
    runtime = AgentRuntime(
        AgentConfig(model="m"), provider=ScriptedProvider([say("Tea.")] * 3), memory=memory, log=sys.argv[1]
    )
    async with runtime:
        await (await runtime.session("alice")).send("What does Anna drink?")

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_process_that_is_killed_at_the_worst_moment_loses_no_recall(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    for _ in range(3):
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-P", "-c", KILLED, str(path)], env={"DIES": "1"}, timeout=60
        )
        assert done.returncode == -signal.SIGKILL
    memory = EpisodicStore(scope="agent")
    async with AgentRuntime(CONFIG, provider=ScriptedProvider([]), memory=memory, log=path, inbox_poll_s=0) as runtime:
        await once_noted(runtime.store, 1)
        answers = [item for item in await runtime.store.read_stream("session/alice") if b"model_responded" in item.data]
        assert answers  # A later life may die before it has one, since it catches up.
        assert await recalls_of(memory) == {"Anna prefers tea.": len(answers)}
