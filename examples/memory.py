"""An agent that remembers between runs; it needs no key and no network. Run it from the folder above this one, twice.

    python examples/memory.py

What happened (episodes), what is known (facts) and what it has in mind (working memory) live in `memory.db` beside the
sessions, each as a stream of events. The second run recalls what the first one remembered; at the end it looks at what
the memory held when it had only one episode. Its model plays a script.
"""

import asyncio

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    DecayPolicy,
    EpisodicStore,
    RecallPolicy,
    ScriptedProvider,
    SemanticStore,
    WorkingMemory,
    memory_tools,
    say,
    use,
)

LOG = "memory.db"


def letters(text: str) -> list[float]:
    """Return how often each letter is in a text: a small embedding that needs no model."""
    lower = text.casefold()
    return [1.0, *(float(lower.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz")]


memory = EpisodicStore(
    decay=DecayPolicy.exponential(half_life_hours=24 * 30),
    recall=RecallPolicy.hybrid(recency_weight=0.2, frequency_weight=0.2),
    capacity=10_000,
    scope="agent",
)
facts = SemanticStore(embed=letters, scope="agent")
working = WorkingMemory(8, scope="agent")

# Before a runtime has them, they are filled like plain objects; the log takes what it does not have yet.
memory.add_episode("agent", "Anna visited Lisbon in May", importance=0.6, tags=["travel"])
facts.put("capital of Portugal", "Lisbon", tags=["geography"])
working.set("language", "English")

agent = Agent(
    config=AgentConfig(model="scripted"),
    provider=ScriptedProvider(
        [
            use("remember", {"content": "Anna prefers green tea", "importance": 0.9, "tags": ["taste"]}),
            use("recall", {"query": "What does Anna like? Tea?", "limit": 2}),
            say("Anna likes green tea."),
        ]
    ),
    tools=memory_tools(episodic=memory, semantic=facts),
    memory=memory,
    semantic=facts,
    working_memory=working,
)


async def main() -> None:
    """Run the agent once and look at its memories."""
    async with AgentRuntime(agent, log=LOG) as runtime:
        session = await runtime.session()
        print((await session.send("What does Anna like?")).output)
        await working.set("last question", "What does Anna like?")

        for episode in await memory.recall("agent", "anna tea", limit=2):
            print(f"{episode.score:.2f}  {episode.content}  (recalled {episode.recalls} times before)")
        print((await facts.similar("Lisboa", k=1))[0].key)
        print(await working.prompt_text())

        then = await memory.at(runtime.store, version=2)  # The capacity, and one episode.
        print(f"once: {list(await then.contents('agent'))}")


if __name__ == "__main__":
    asyncio.run(main())
