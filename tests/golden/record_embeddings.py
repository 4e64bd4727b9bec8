"""Record a sample log of a semantic memory whose embeddings lie in blocks, on 8 KiB pages; kept here for ever.

See `record.py` for how it is run. `tests/test_golden_logs.py` asks the memory again.
"""

from pathlib import Path

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    NewEntry,
    ScriptedProvider,
    SemanticStore,
    memory_tools,
    say,
    use,
)
from refold.actors import ManualClock

FACTS = ("tea is green", "coffee is black", "rain falls", "the sky is blue", "Lisbon is white")


def embedding(text: str) -> list[float]:
    """Return 96 numbers that float32 has exactly, so that they are the same on every machine."""
    return [(ord(text[place % len(text)]) * (place + 3) % 17 - 7.5) / 8 for place in range(96)]


def librarian(facts: SemanticStore | None = None) -> Agent:
    facts = facts or SemanticStore(scope="agent", embed=embedding)
    return Agent(
        name="librarian",
        config=AgentConfig(model="m"),
        provider=ScriptedProvider([use("recall", {"query": "tea is green"}), say("Green."), say("Good bye.")]),
        tools=memory_tools(semantic=facts),
        semantic=facts,
    )


async def record(log: Path) -> None:
    """Write the log: facts that came together, one that came alone, changed ones and some that nothing has any more."""
    facts = SemanticStore(scope="agent", embed=embedding)
    async with AgentRuntime(librarian(facts), log=log, clock=ManualClock(), inbox_poll_s=0) as runtime:
        await facts.put_many([NewEntry(f"k{number}", fact, ("fact",)) for number, fact in enumerate(FACTS)])
        await facts.put("alone", "snow is white")
        await facts.put_many([NewEntry(f"gone{number}", fact) for number, fact in enumerate(FACTS[:3])])
        await facts.put_many([NewEntry("k1", "coffee is brown"), *(NewEntry(f"m{n}", f"more {n}") for n in range(3))])
        for number in range(3):
            await facts.remove(f"gone{number}")
        await facts.remove("m0")
        session = await runtime.session("alice")
        await session.send("What is tea like?")
        await session.send("Thank you.")
