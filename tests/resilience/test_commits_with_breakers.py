"""Breakers add no commit to a turn: the table of commits holds with all of them switched on."""

from typing import Any

import pytest

from refold import AgentRuntime, Completed, ProviderError, RetryPolicy, ScriptedProvider, say, tool, use
from refold.actors import ManualClock
from refold.providers import FallbackProvider
from refold.resilience import CircuitBreaker
from refold.stores import InMemoryStore
from refold.tools.tool import Tool
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import assert_sound, runtime_of

DOWN = ProviderError("refused", kind="connection", retryable=True)


def weather_of(breaker: CircuitBreaker | None) -> Tool[..., Any]:
    @tool(effect="pure", breaker=breaker, retries=RetryPolicy(), concurrency=1)
    async def weather() -> str:
        """Forecast."""
        return "sunny"

    return weather


async def run_once(runtime: AgentRuntime) -> int:
    """Return how many commits an input, one tool call and the final answer cost."""
    session = await runtime.session("s")
    before = runtime.commits
    assert (await session.send("go")).outcome == Completed()
    return runtime.commits - before


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_run_with_one_tool_call_costs_four_commits(guarded: bool) -> None:
    log = FailingStore(InMemoryStore())
    script = [item for _ in range(3) for item in (use("weather", {}), say("Sunny."))]
    provider: Any = ScriptedProvider(script)
    if guarded:
        provider = FallbackProvider([provider, ScriptedProvider([])])
    tools = [weather_of(CircuitBreaker("weather") if guarded else None)]
    async with runtime_of(log, provider=provider, tools=tools) as runtime:
        assert await run_once(runtime) <= 5, "the first run has the tool defined, in its own stream"
        assert await run_once(runtime) == 4
        assert log.commits_of("session/s") == 8
        assert await run_once(runtime) == 4
    await assert_sound(log)


async def test_transitions_are_appended_beside_the_session_and_not_in_its_commits() -> None:
    log, clock = FailingStore(InMemoryStore()), ManualClock()
    first = ScriptedProvider([DOWN, DOWN, say("back again")])
    second = ScriptedProvider([use("weather", {}), say("Sunny."), say("from the second")])
    breakers = [CircuitBreaker("first", threshold=2, recovery_s=10), CircuitBreaker("second")]
    provider = FallbackProvider([first, second], breakers=breakers)
    tools = [weather_of(CircuitBreaker("weather"))]
    async with runtime_of(log, provider=provider, tools=tools, clock=clock) as runtime:
        await run_once(runtime)
        await clock.settle()
        assert log.commits_of("session/s") == 4
        assert log.commits_of("breaker/first") == 2, "its settings, and that it opened"
        assert (await (await runtime.session("s")).send("again")).text == "from the second"
        assert len(first.requests) == 2
        await clock.advance(10)
        assert (await (await runtime.session("s")).send("again")).text == "back again"
        await clock.settle()
        assert log.commits_of("session/s") == 8, "two answers without a tool more"
        assert log.commits_of("breaker/first") == 4
        assert log.commits_of("breaker/weather") == log.commits_of("breaker/second") == 0
    await assert_sound(log)
