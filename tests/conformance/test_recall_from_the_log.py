"""Recall from the memories that live on the log themselves: what entered, that it is counted, and that nobody waits."""

from refold import AgentConfig, AgentRuntime, EpisodicStore, ScriptedProvider, WorkingMemory, say, tool, use
from refold.events.session.events import ModelResponded
from refold.stores import EventStore
from tests.conformance.sessions import events_of, opened, requests_of
from tests.conformance.test_context import assert_rebuilt


@tool(tier="observe", effect="pure")
async def look() -> str:
    return "seen"


async def test_episodes_and_the_working_memory_enter_the_prompt_and_each_recall_counts_once_a_run(
    log: EventStore,
) -> None:
    memory, working = EpisodicStore(scope="agent"), WorkingMemory(4, scope="agent")
    known = memory.add_episode("agent", "Anna prefers tea.").get()
    memory.add_episode("agent", "The office is closed.")
    memory.add_episode("other", "Anna prefers coffee.")
    working.set("city", "Lisbon")
    config = AgentConfig(model="m", system_prompt="Be brief.", max_memory_recalls=1)
    script = [use("look", {}), say("Tea."), say("Tea again.")]
    async with opened(log, *script, tools=[look], config=config, memory=memory, working_memory=working) as (
        runtime,
        session,
    ):
        await session.send("What does Anna drink?")
        requests = requests_of(runtime)
        assert "Anna prefers tea." in requests[0].system_prompt
        assert "office" not in requests[0].system_prompt
        assert "coffee" not in requests[0].system_prompt
        assert "- city: Lisbon" in requests[0].system_prompt
        (found,) = await memory.look("agent", "anna", 1)
        assert (found.id, found.recalls) == (known, 1)
        await session.send("And what does Anna drink now?")
        (found,) = await memory.look("agent", "anna", 1)
        assert found.recalls == 2
        for answered in await events_of(session, ModelResponded):
            assert answered.request.recalled == (known,)
        await assert_rebuilt(log, "s", requests)
    async with AgentRuntime(
        config, provider=ScriptedProvider([]), log=log, memory=EpisodicStore(scope="agent")
    ) as runtime:
        assert isinstance(runtime.agent.memory, EpisodicStore)
        (found,) = await runtime.agent.memory.look("agent", "anna", 1)
        assert found.recalls == 2
