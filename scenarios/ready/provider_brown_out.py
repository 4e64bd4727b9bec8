"""Provider brown-out with a breaker: the first provider fails for a while, and is left alone.

An agent has two providers, the first behind a circuit breaker. For 60 seconds every call of the first one fails,
while people go on speaking to four sessions.

Promised: a failed call is answered by the second provider, so callers do not notice. After three failures in a row the
circuit opens, and the first provider is not asked for 20 seconds; then one call is let through as a probe, again and
again, until one succeeds and the circuit closes.

Look at `event_kinds`: `breaker.opened.v1`, `breaker.probe_begun.v1` and `breaker.closed.v1`; at
`operations["model"]`, which counts both providers; and at `times`, how few of its failures a caller waited for.
An agent with a single provider needs a `RetryPolicy`.
"""

from refold.agents.agent import Agent
from refold.events.model.configuration import AgentConfig
from refold.providers.fallback import FallbackProvider
from refold.providers.scripted import ScriptedProvider
from refold.resilience.breaker import CircuitBreaker
from refold.scenarios.faults import ProviderBrownOut
from refold.scenarios.plan.scenario import Answer, Say, Scenario
from refold.scenarios.ready.playing import main, player


def agent() -> Agent:
    """Return an agent with two providers; the simulator puts simulated models in their places, behind the breaker."""
    first, second = ScriptedProvider([]), ScriptedProvider([])
    breaker = CircuitBreaker("first", threshold=3, recovery_s=20.0)
    provider = FallbackProvider([first, second], breakers=[breaker, None])
    return Agent(config=AgentConfig(model="sample"), provider=provider)


def scenario() -> Scenario:
    """Return what people say every two seconds, and the brown-out from second 10 to second 70."""
    return Scenario(
        acts=tuple(Say(session=f"s{number % 4}", at_s=2.0 * number, text="And now?") for number in range(60)),
        faults=(ProviderBrownOut(at_s=10.0, for_s=60.0, place=1),),
        script=(Answer(text="All is well."),),
    )


play = player(scenario, agent)

if __name__ == "__main__":
    main(__doc__, play)
