"""Record a sample log of a working memory whose texts are looked at; kept here for ever.

See `record.py` for how it is run.
"""

from pathlib import Path

from refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, WorkingMemory, say
from refold.actors import ManualClock


def keeper(working: WorkingMemory | None = None) -> Agent:
    return Agent(
        name="keeper",
        config=AgentConfig(model="m"),
        provider=ScriptedProvider([say("Lisbon."), say("Ten.")]),
        working_memory=working or WorkingMemory(2, scope="agent"),
    )


async def record(log: Path) -> None:
    """Write the log."""
    working = WorkingMemory(2, scope="agent")
    async with AgentRuntime(keeper(working), log=log, clock=ManualClock(), inbox_poll_s=0) as runtime:
        await working.set("city", "Lisbon")
        await working.set("day", "Monday")
        await working.get("city")
        await working.set("hour", "ten")
        session = await runtime.session("alice")
        await session.send("Which city?")
        await session.send("And when?")
