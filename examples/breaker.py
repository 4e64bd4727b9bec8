"""Circuit breakers: a service that is down is left alone for a while, and the log tells when and why.

Run it from the top folder:

    python examples/breaker.py && refold show breaker.db breaker/forecast

A tool's breaker answers the model's calls while it is open; the session goes on. The breakers of a `FallbackProvider`
pass over a model provider that is down. Both are on the runtime's log, so what they know survives a restart, and no
turn waits for them. The clock is moved by hand here; leave it out to have the machine's.
"""

import asyncio

from refold import AgentConfig, AgentRuntime, ProviderError, ScriptedProvider, say, tool, use
from refold.actors import ManualClock
from refold.providers import FallbackProvider
from refold.resilience import CircuitBreaker

LOG = "breaker.db"


class Service:
    """A forecast service that is down until it is mended."""

    def __init__(self) -> None:
        self.down = True
        self.calls = 0

    async def forecast(self, city: str) -> str:
        """Return the forecast."""
        self.calls += 1
        if self.down:
            raise ConnectionError("no route to the forecast service")
        return f"{city}: sunny"


def runtime_of(service: Service, clock: ManualClock, second: ScriptedProvider) -> AgentRuntime:
    """Return a runtime whose first provider is down, too."""
    breaker = CircuitBreaker("forecast", threshold=2, recovery_s=60)

    @tool(effect="pure", breaker=breaker)
    async def forecast(city: str) -> str:
        """Forecast for a city."""
        return await service.forecast(city)

    refused = ProviderError("connection refused", kind="connection", retryable=True)
    provider = FallbackProvider(
        [ScriptedProvider([refused] * 9), (second, "the-other-model")],
        breakers=[CircuitBreaker("first-model", threshold=3), CircuitBreaker("second-model")],
    )
    return AgentRuntime(AgentConfig(model="a-model"), provider=provider, tools=[forecast], log=LOG, clock=clock)


async def main() -> None:
    """Let the service fail, restart, and let it come back."""
    service, clock = Service(), ManualClock()
    ask = use("forecast", {"city": "Lisbon"})

    model = ScriptedProvider([ask, ask, ask, say("I cannot tell now.")])
    async with runtime_of(service, clock, model) as runtime:
        session = await runtime.session("alice")
        print("alice is told:", (await session.send("Weather in Lisbon?")).output)
        print("calls that reached the service:", service.calls)

    service.down = False  # It is mended; the breaker cannot know before it has waited.
    model = ScriptedProvider([ask, say("Still not."), ask, say("Sunny.")])
    async with runtime_of(service, clock, model) as runtime:
        session = await runtime.session("alice")
        print("after a restart:", (await session.send("And now?")).output, "calls:", service.calls)
        await clock.advance(60)
        print("a minute later:", (await session.send("And now?")).output, "calls:", service.calls)


if __name__ == "__main__":
    asyncio.run(main())
