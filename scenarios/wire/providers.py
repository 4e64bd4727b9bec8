"""How the agents of a simulation reach their models over a network: the product's own providers, and what they promise.

Beside what every simulation promises: no connection is left open that is not used (INV7), no key gets into the log
(SECRET), and every failure is of a known kind (TYPED).
"""

import math
from collections import Counter
from typing import TYPE_CHECKING

from refold.actors.calls.protocols import Provider
from refold.events.core.errors import AgentLoopError
from refold.events.core.ids import kind_and_identifier
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.events import ModelFailed
from refold.scenarios.monitors.monitor import Monitor
from refold.scenarios.plan.world import World
from refold.scenarios.world.model import SimulatedModel

if TYPE_CHECKING:
    from refold.providers.http.settings import HttpOptions
    from refold.scenarios.wire.messages import Wire

OWN_CODE = f"{AgentLoopError.__name__}: "
"""So begins a failure of the agent's own code, such as its middleware, of which a wire knows nothing."""


def wire_of(world: World, monitor: Monitor) -> "SimulatedWire | None":
    """Return the wire of a simulation; None = its models are objects of the process."""
    wire = world.scenario.wire
    return None if wire == "none" else SimulatedWire(world, monitor, wire)


class SimulatedWire:
    """The network of one simulation, and who speaks over it."""

    def __init__(self, world: World, monitor: Monitor, wire: "Wire") -> None:
        from refold.scenarios.wire.network import SimulatedNetwork

        self._world = world
        self._monitor = monitor
        self._wire: Wire = wire
        self.network = SimulatedNetwork(world)
        self._owed: Counter[tuple[str, bool]] = Counter()
        """Failures that the host has caused."""

    def provider_of(self, model: SimulatedModel) -> Provider:
        """Return a provider of the product whose host answers as a simulated model does."""
        from refold.providers.anthropic.provider import AnthropicProvider
        from refold.providers.http.settings import HttpLimits
        from refold.providers.openai.provider import OpenAIProvider
        from refold.scenarios.wire.host import BODY_BYTES_MAX, KEY, LINE_CHARACTERS_MAX, SimulatedHost

        host = SimulatedHost(
            self._world,
            model,
            self._wire,
            refused=lambda reason: self._monitor.note("INV0", "", reason),
            owed=lambda kind, retryable: self._owed.update([(kind, retryable)]),
            hurried=lambda reason: self._monitor.note("EFFECTS", "", reason),
        )
        options: HttpOptions = {
            "transport": lambda: self.network.transport_to(host),
            "limits": HttpLimits(body_bytes_max=BODY_BYTES_MAX, event_characters_max=LINE_CHARACTERS_MAX),
        }
        if self._wire == "openai":
            return OpenAIProvider(api_key=KEY, base_url="http://127.0.0.1/v1", environment={}, **options)
        return AnthropicProvider(api_key=KEY, base_url="http://127.0.0.1", environment={}, **options)

    def check_all_is_closed(self) -> None:
        self._monitor.exercised.add("INV7")
        for reason in self.network.reasons:
            self._monitor.note("INV7", "", reason)
        if self.network.connections:
            self._monitor.note("INV7", "", f"{len(self.network.connections)} connections outlive their process")
        self.network.tear_down()

    async def check_log(self) -> None:
        from refold.scenarios.wire.host import KEY

        self._monitor.exercised.update(("SECRET", "TYPED"))
        told: Counter[tuple[str, bool]] = Counter()
        for event in await self._world.disk.read_all(limit=10**9):
            if KEY.encode() in event.data:
                self._monitor.note("SECRET", event.stream, f"version {event.version} holds the provider's key")
            before = self._world.recorded.get(event.stream, 0)
            if kind_and_identifier(event.stream)[0] != SESSION_KIND or event.version <= before:
                continue
            match SESSION_CODEC.decode(event):
                case ModelFailed(kind="unknown" | "agent_loop", message=message) if not message.startswith(OWN_CODE):
                    self._monitor.note("TYPED", event.stream, f"version {event.version} is of no kind: {message}")
                case ModelFailed(kind="agent_loop"):  # The agent's own code failed, and no host.
                    pass
                case ModelFailed(kind=kind, retryable=retryable, message=message):
                    told[kind, retryable] += 1
                    if told[kind, retryable] > self._caused(kind, retryable):
                        word = "retryable" if retryable else "final"
                        self._monitor.note("TYPED", event.stream, f"no host failed so ({kind}, {word}): {message}")
                case _:
                    pass

    def _caused(self, kind: str, retryable: bool) -> float:
        """Return how many failures of a kind there can be in the log at most."""
        if kind == "malformed":
            return self._owed[kind, True] + self._owed[kind, False]
        on_the_way = retryable and kind in ("connection", "timeout")
        return math.inf if on_the_way else self._owed[kind, retryable]
