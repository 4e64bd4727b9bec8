"""Recalls that a dying process did not note: the next one finds them in the answers, and counts each once."""

import asyncio

from refold import Agent, AgentRuntime, EpisodicStore, PersistenceError, ScriptedProvider, say, subagent, use
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, RecallsNoted
from refold.memory import Recalled
from refold.stores import EventStore, InMemoryStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import CONFIG, crash, dying, opened, runtime_of

TEA = "Anna prefers tea."


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


async def lose(log: EventStore, times: int = 1) -> None:
    """Leave a log with so many recalls that its process, which died then, has not noted."""
    store = FailingStore(log)
    async with dying(store, *[say("Tea.")] * times, memory=remembering(TEA)) as (_, session):
        memory_off(store)
        for _ in range(times):
            await session.send("Anna?")


async def assert_counted(log: EventStore, times: int = 1) -> None:
    """Check that the next runtime counts them."""
    memory = EpisodicStore(scope="agent")
    async with runtime_of(log, memory=memory):
        await once_noted(log, 1)
        assert await recalls_of(memory) == {TEA: times}


async def test_recalls_that_a_crash_lost_are_counted_once_by_the_next_runtime(log: EventStore) -> None:
    store, memory = FailingStore(log), remembering(TEA, "The office is closed.")
    async with dying(store, say("Tea."), say("Tea!"), say("Closed."), memory=memory) as (runtime, session):
        await session.send("What does Anna drink?")
        memory_off(store)
        await session.send("What did you say about Anna?")
        await (await runtime.session("bob")).send("Is the office closed?")
    for _ in range(2):
        memory = EpisodicStore(scope="agent")
        async with runtime_of(log, memory=memory, close_grace_s=0):
            await once_noted(log, 1)
            assert await recalls_of(memory) == {TEA: 2, "The office is closed.": 1}
    assert len(await noted_in(log)) == 1


async def test_a_runtime_that_dies_while_it_catches_up_leaves_the_rest_to_the_next(memory: InMemoryStore) -> None:
    await lose(memory)
    store = FailingStore(memory)
    memory_off(store)
    async with runtime_of(store, memory=EpisodicStore("another", scope="agent"), close_grace_s=0):
        pass  # It closes in order, and has noted nothing.
    await assert_counted(memory)


async def test_a_runtime_without_a_memory_leaves_it_to_the_next(memory: InMemoryStore) -> None:
    await lose(memory)
    async with opened(memory, say("2")) as (_, session):
        await session.send("And now?")
    await assert_counted(memory)


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


async def test_a_session_of_many_lost_recalls_is_folded_once() -> None:
    log = FailingStore(InMemoryStore())
    await lose(log, times=20)
    length = len(await log.read_stream("session/s"))
    log.events_read.clear()
    await assert_counted(log, times=20)
    assert log.events_read["session/s"] <= 2 * length


async def test_what_ended_in_order_is_not_read_again(log: EventStore) -> None:
    for _ in range(2):
        async with opened(log, say("Tea."), memory=remembering(TEA)) as (_, session):
            await session.send("Anna?")
    assert await noted_in(log) == []
