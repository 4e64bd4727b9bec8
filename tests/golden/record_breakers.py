"""Record a sample log of what circuit breakers find, by themselves and where processes share one; kept here for ever.

See `record.py` for how it is run.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from refold import Agent, AgentConfig, AgentRuntime, ProviderError, ScriptedProvider, say, tool, use
from refold.actors import ManualClock
from refold.events.kinds.breaker import BreakerState, CallEnd, Permit
from refold.providers import FallbackProvider
from refold.providers.scripted import ScriptItem
from refold.resilience import CircuitBreaker
from refold.resilience.breaker import BreakerSettings

DOWN = ProviderError("refused", kind="connection", retryable=True)


class Elsewhere:
    """Keeps a state as another process would leave it."""

    blocking = False

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.state = BreakerState()
        self.seen: Callable[[BreakerState, int], object] | None = None

    def listen(self, name: str, seen: Callable[[BreakerState, int], object]) -> None:
        self.seen = seen

    def begin(self, name: str, settings: BreakerSettings, now_us: int) -> Permit | None:
        assert self.seen is not None
        self.seen(self.state, self.clock.now_us())
        return Permit(self.state.generation)

    def settle(
        self, name: str, settings: BreakerSettings, permit: Permit, end: CallEnd, error: str, now_us: int
    ) -> None:
        self.state.failures, self.state.error = self.state.failures + 1, error
        self.begin(name, settings, now_us)

    def known(self, name: str, settings: BreakerSettings) -> BreakerState:
        return self.state


def forecaster(shared: CircuitBreaker | None = None) -> Agent:
    errors: list[Exception] = [ConnectionError("no route"), ConnectionError("no route \N{WHITE SMILING FACE}")]
    errors += [ConnectionError("still none")] * 3

    @tool(effect="pure", breaker=CircuitBreaker("weather", threshold=2, recovery_s=10))
    async def weather(city: str) -> str:
        """Forecast."""
        if city == "Lisbon" and errors:
            raise errors.pop(0)
        return "sunny"

    script = [item for city in ("Lisbon", "Porto", "Lisbon", "Lisbon") for item in _asked(city)]
    script += [
        use("weather", {"city": "Lisbon"}),
        use("weather", {"city": "Lisbon"}),
        say("No idea."),
        *_asked("Porto"),
    ]
    return Agent(
        name="forecaster",
        config=AgentConfig(model="m"),
        provider=FallbackProvider(
            [ScriptedProvider([DOWN] * 20), ScriptedProvider(script)],
            breakers=[CircuitBreaker("first", threshold=3, recovery_s=1_000), CircuitBreaker("second")],
        ),
        tools=[weather],
        objects=[shared or CircuitBreaker("shared")],
    )


def _asked(city: str) -> list[ScriptItem]:
    return [use("weather", {"city": city}), say(f"That was {city}.")]


async def record(log: Path) -> None:
    """Write the log."""
    clock = ManualClock()
    shared = CircuitBreaker("shared", backend=Elsewhere(clock))
    async with AgentRuntime(forecaster(shared), log=log, clock=clock, inbox_poll_s=0) as runtime:
        session = await runtime.session("alice")
        for _ in range(5):
            await session.send("How will the weather be?")
            await clock.advance(1)
        await clock.advance(20)
        await session.send("And now?")
        with suppress(OSError):
            async with shared.guard():
                raise OSError("gone")
        await shared.read(lambda state: state)
