"""What is outside the simulated process and outlives it: the disk, time, what tools have done, and who waits for what.

The rules: the world is told of everything that can be seen from outside, such as a tool's body that runs or a caller
who is told an outcome, and it draws what chance decides from the scenario's seed under a name, so that one more
draw in one place changes nothing in another.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from refold.actors.kernel.clock import Timer
from refold.events.core.errors import ProviderError
from refold.events.core.ids import AgentId, SessionId
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest, ModelResponse
from refold.scenarios.plan.fault_plan import FaultPlan
from refold.scenarios.plan.scenario import Scenario
from refold.stores.event_store import EventStore
from refold.stores.memory import InMemoryStore

EPOCH_US = 1_750_000_000_000_000
"""The wall clock when a simulation begins, in microseconds since the epoch."""


SIGNS = " \N{EN DASH} é🙂"
"""Stands behind texts on the wire, so that there are characters of two, three and four bytes to be cut."""

OnAnswer: TypeAlias = Callable[[ModelRequest, int, ModelResponse | ProviderError | None, bool], object]


class Body(msgspec.Struct, eq=False):
    """A tool's body that runs, or ran."""

    session: SessionId
    call: str
    tool: ToolSpec
    agent: AgentId = AgentId("")
    """Whose tool it is: each agent has its own, with limits of its own."""
    running: bool = True
    ignores_cancellation: bool = False
    life: int = 1
    """Of the process that runs it."""
    is_subagent: bool = False
    """Whether another session carries it out, whose own work has a time of grace to end in."""
    concurrency: int | None = None
    """Most bodies of its tool that may run at once."""
    limited_per_session: bool = False
    """Whether that counts for each session by itself."""
    arguments: dict[str, object] = {}
    """With which it was begun, as its tool reads them."""
    returned: bool = False
    """Whether it brought something, a result or a failure of its own, instead of being cancelled."""
    ended_s: float | None = None
    """When it came to its end, in virtual seconds; None = it runs, or its process was gone before."""


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """What there is before a simulation begins: a process that is not simulated has died and left it."""

    log: InMemoryStore
    """Is gone on with, and changed."""
    at_us: int
    """The wall clock then, in microseconds since the epoch."""
    versions: dict[str, int] = {}
    """The version of each stream in it, up to where other code may have decided."""
    begun: tuple[Body, ...] = ()
    """Tools' bodies that have begun, and maybe ended, by what the log says; none of them runs."""


class World:
    """The outside of one simulation."""

    def __init__(self, scenario: Scenario, beginning: Beginning | None = None) -> None:
        self.scenario = scenario
        self.disk: EventStore = beginning.log if beginning is not None else InMemoryStore()
        """The log, without the faults of the plan; of an SQLite file as the present life has it open."""
        self.epoch_us = beginning.at_us if beginning is not None else EPOCH_US
        """The wall clock when it begins."""
        self.recorded = beginning.versions if beginning is not None else dict[str, int]()
        """The version that each stream has by then."""
        self.keys = f"after {sum(self.recorded.values())} events: " if self.recorded else ""
        """How the keys of acts begin, which the log may not have from elsewhere."""
        self.plan = FaultPlan(scenario.faults, self.is_calm, self.now_s)
        self.life = 0
        """Number of the process's present life, from 1."""
        self.calm = False
        """Whether nothing goes wrong any more, also where the scenario has more faults."""
        self.dying = False
        """Whether the process is gone, and its loop is about to stop."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.bodies: list[Body] = list(beginning.begun) if beginning is not None else []
        self.on_body: Callable[[Body], object] = lambda body: None
        """Told of each body that begins."""
        self.on_ask: Callable[[ModelRequest, int, int], object] = lambda request, life, place: None
        """Told of each model call, in which life of the process, and which of the agent's models."""
        self.on_said: Callable[[ModelRequest, ModelResponse], object] = lambda request, answer: None
        """Told of each answer that a model is about to give, however it is brought to the process."""
        self.on_answer: OnAnswer = lambda request, life, said, begun: None
        """Told of the end of each model call: what was said or failed, None where it was cancelled, and whether a piece
        of an answer had come before."""
        self.clock = SimulatedClock(self)
        self._draws: Counter[str] = Counter()

    def now_s(self) -> float:
        """Return virtual seconds since the simulation began."""
        return self.loop.time() if self.loop is not None else 0.0

    def die(self) -> None:
        self.dying = True

    def is_calm(self) -> bool:
        return self.calm or self.now_s() >= self.scenario.calm_s

    def chance(self, name: str) -> random.Random:
        """Return a source of chance for one purpose: each time another one for the same name, the same in each run."""
        self._draws[name] += 1
        return random.Random(f"{self.scenario.seed} {name} {self._draws[name]}")

    def running_bodies(self, session: str) -> list[Body]:
        """Return the bodies of a session's tools that run now, in the process that has the log."""
        return [body for body in self.bodies if body.running and body.session == session and body.life == self.life]


class SimulatedClock:
    """The clock of a simulated process: the loop's time, and a wall clock that faults may set."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set_by_us = 0

    def now_us(self) -> int:
        return self._world.epoch_us + round(self._world.now_s() * 1_000_000) + self._set_by_us

    def monotonic_s(self) -> float:
        return self._world.now_s()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative."""
        self._set_by_us += round(seconds * 1_000_000)
