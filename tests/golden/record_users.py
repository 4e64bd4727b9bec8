"""Record a sample log of two users, each of whom has sessions and memories of his own; kept here for ever.

See `record.py` for how it is run.
"""

from collections.abc import Sequence
from pathlib import Path

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    EpisodicStore,
    ScriptedProvider,
    WorkingMemory,
    memory_tools,
    say,
    use,
)
from refold.actors import ManualClock
from refold.providers.scripted import ScriptItem


def receptionist(script: Sequence[ScriptItem] = ()) -> Agent:
    memory, working = EpisodicStore(capacity=8), WorkingMemory(2, scope=lambda context: context.metadata["desk"])
    return Agent(
        name="receptionist",
        config=AgentConfig(model="m"),
        provider=ScriptedProvider(list(script)),
        tools=memory_tools(episodic=memory, agent="receptionist"),
        memory=memory,
        working_memory=working,
    )


async def record(log: Path) -> None:
    """Write the log."""
    remembers = use("remember", {"content": "The user's room is 4242"})
    agent = receptionist([remembers, say("Noted."), say("Which room?"), say("Room 4242."), say("Hello.")])
    async with AgentRuntime(agent, log=log, clock=ManualClock(), inbox_poll_s=0) as runtime:
        assert isinstance(agent.working_memory, WorkingMemory)
        await agent.working_memory.of(scope="north").set("floor", "4")
        first = await runtime.session("first", user="alice", metadata={"desk": "north"})
        await first.send("My room is 4242")
        bobs = await runtime.session("second", user="bob", metadata={"desk": "south", "lang": "pt"})
        await bobs.send("What is my room?")
        again = await runtime.session("third", user="alice", metadata={"desk": "south"})
        await again.send("What is my room?")
        await again.describe(metadata={"desk": "north", "vip": "yes"})
        await again.send("Hello")
