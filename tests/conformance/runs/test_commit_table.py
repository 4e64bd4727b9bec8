"""A turn costs as many appends of its session's stream with everything switched on as it does with nothing."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

import refold
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch
from refold.providers import FallbackProvider
from refold.providers.scripted import ScriptedAnswer
from refold.resilience import CircuitBreaker
from refold.stores import InMemoryStore, MemoryBackend

SKILL = """---
name: tea
description: How tea is made.
---
Boil water.
"""


class Watching(refold.Middleware):
    """Is asked about everything and changes nothing."""


@refold.tool(breaker=CircuitBreaker("weather"), concurrency=2)
async def weather(city: str) -> str:
    return f"{city}: sunny"


class CountingStore(InMemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.waits = 0
        """Appends that a session waits for."""
        self.reports = 0
        """Appends of requests in flight, which nothing waits for."""
        self.reported = asyncio.Event()

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        own = [batch.events[0] for batch in batches if batch.stream.startswith("session/")]
        in_flight = bool(own) and all(b'"session.request_built.v1"' in first for first in own)
        self.reports += in_flight
        self.waits += bool(own) and not in_flight
        appended = await super().append(batches, payloads)
        if in_flight:
            self.reported.set()
        return appended


@pytest.mark.parametrize("shaped", [True, False])
async def test_a_request_in_flight_is_appended_after_its_call_has_begun_and_costs_the_turn_no_wait(
    shaped: bool,
) -> None:
    store, asked = CountingStore(), list[int]()

    async def slow(request: refold.ModelRequest) -> ScriptedAnswer:
        asked.append(store.reports)
        if shaped:
            await store.reported.wait()
            store.reported.clear()
        return refold.say("Sunny.") if len(asked) == 2 else refold.use("weather", {"city": "Lisbon"})

    async with refold.AgentRuntime(
        refold.AgentConfig(model="m"),
        provider=refold.ScriptedProvider([slow, slow]),
        tools=[weather],
        context=refold.TokenWindow(10_000) if shaped else None,
        log=store,
    ) as runtime:
        assert (await (await runtime.session("alice")).send("Lisbon?")).outcome == refold.Completed()
    assert (store.waits, store.reports, asked) == (4, 2 * shaped, [0, int(shaped)])


async def test_an_input_one_tool_and_a_final_answer_are_four_appends_with_everything_switched_on() -> None:
    memory, facts = (
        refold.EpisodicStore(decay=refold.DecayPolicy.exponential(half_life_hours=24), scope="agent"),
        refold.SemanticStore(scope="agent"),
    )
    memory.add_episode("agent", "Anna lives in Lisbon", importance=0.9)
    store = CountingStore()
    provider = refold.ScriptedProvider([refold.use("weather", {"city": "Lisbon"}), refold.say("Sunny.")])
    async with refold.AgentRuntime(
        refold.AgentConfig(model="m", streaming=True),
        provider=FallbackProvider([provider, (refold.ScriptedProvider([]), "other")]),
        tools=[weather, *refold.memory_tools(episodic=memory, semantic=facts)],
        memory=memory,
        semantic=facts,
        working_memory=refold.WorkingMemory(8, scope="agent"),
        graph=refold.GraphStore(scope="agent"),
        middleware=[Watching()],
        context=refold.TokenWindow(10_000),
        skills=[refold.Skill.parse(SKILL)],
        step_snapshots=MemoryBackend(),
        log=store,
    ) as runtime:
        before = await runtime.metrics.snapshot()
        session = await runtime.session("alice")
        assert (await session.send("How is the weather where Anna lives, in Lisbon?")).outcome == refold.Completed()
        figures = (await runtime.metrics.snapshot()).delta(before)
        assert (figures.runs_completed, figures.recalls) == (1, 2)  # It entered both requests.
        assert (await session.statistics()).memory_hits == 2
        assert "Anna lives in Lisbon" in provider.requests[0].system_prompt
        assert store.waits == 4
