"""A process with a runtime on a simulated loop, driven from outside step by step.

    process = SimulatedProcess(agent, Scenario(acts=(Say(session="alice"),), seed=7))
    process.start()
    process.do(lambda runtime: ask_something_of(runtime))
    process.crash()                                             # The next one runs on the same disk.

`refold.scenarios.simulator` plays a whole scenario; here whoever drives decides what happens next, and time stands
still in between. The acts of the scenario are not played. The rule: a process that dies, by order or by a fault, is
buried and followed by the next one before anything else happens.
"""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from refold.agent_runtime import AgentRuntime
from refold.agent_source import AgentSource
from refold.events.errors import PersistenceError
from refold.scenarios import faults
from refold.scenarios.burial import Gone, bury
from refold.scenarios.scenario import Scenario
from refold.scenarios.simulated_agent import simulated_agent
from refold.scenarios.simulated_loop import SeededSchedule, SimulatedLoop, SparseSchedule
from refold.scenarios.simulated_store import SimulatedStore
from refold.scenarios.simulated_world import World
from refold.scenarios.simulation_watch import SimulationWatch

T = TypeVar("T")

START_AGAIN_S = 10.0
"""After so many virtual seconds a process is started again that could not open its log."""

STARTS_MAX = 50
"""A process that cannot be started so often in a row never can."""


class SimulatedProcess:
    """One process after the other, on one disk.

    Args:
        agent: what runs in it.
        scenario: its seed, faults, script and deviations hold.
    """

    def __init__(self, agent: AgentSource, scenario: Scenario) -> None:
        self.world = World(scenario)
        self.watch = SimulationWatch(self.world)
        self._agent = agent
        self._time_s = 0.0
        self._loop: SimulatedLoop | None = None
        self._store: SimulatedStore | None = None
        self._runtime: AgentRuntime | None = None

    def start(self) -> None:
        """Start the process, again and again where it dies of it or its log fails."""
        for _ in range(STARTS_MAX):
            if self._try_to_start():
                return
            self.end()
            self._time_s += START_AGAIN_S
        raise AssertionError(f"the process does not start, in {STARTS_MAX} attempts")

    def do(self, work: Callable[[AgentRuntime], Coroutine[Any, Any, T]]) -> T | None:
        """Return what comes of some work on the loop, or None where the process died meanwhile; then the next one runs.

        Raises:
            Exception: what the work raises.
        """
        assert self._loop is not None
        assert self._runtime is not None
        try:
            return self._loop.run_until_complete(work(self._runtime))
        except Gone:
            self.crash()
            return None

    def begin(self, work: Callable[[AgentRuntime], Coroutine[Any, Any, None]], name: str) -> None:
        """Let somebody outside begin something, which goes on as time does, as long as the process lives."""
        assert self._loop is not None
        assert self._runtime is not None
        self._loop.create_task(work(self._runtime), name=name)

    def advance(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.do(lambda _: asyncio.sleep(seconds))

    def crash(self) -> None:
        """Let the process die, and start the next one."""
        self.end()
        self.start()

    def stop(self) -> list[str]:
        """End the process in order, and return the names of the tasks that it leaves, none of them a tool's body."""
        left = self.do(self._close)
        self.end()
        return left or []

    def calm_down(self) -> None:
        """Let no fault happen any more."""
        self.world.calm = True

    def _try_to_start(self) -> bool:
        scenario = self.world.scenario
        self.world.life += 1
        schedule = (
            SeededSchedule(scenario.seed * 1_000 + self.world.life)
            if scenario.deviations is None
            else SparseSchedule(scenario.deviations if self.world.life == 1 else {})
        )
        loop = self._loop = SimulatedLoop(schedule, time_s=self._time_s)
        loop.before_step = self._before_step
        self.world.loop, self.world.dying = loop, False
        self._store = SimulatedStore(
            self.world.disk, self.world.plan, self.world.die, self.watch.committed, self.watch.seen
        )
        agent = simulated_agent(self._agent, self.world, asked=self.watch.asked, approval=None)
        self._runtime = AgentRuntime(agent, log=self._store, clock=self.world.clock, inbox_poll_s=0)
        try:
            loop.run_until_complete(self._runtime.open())
        except (Gone, PersistenceError):
            return False
        return True

    def _before_step(self, step: int) -> None:
        for fault in self.world.plan.count("step"):
            assert isinstance(fault, faults.CrashAtStep)
            self.world.die()
        if self.world.dying:
            raise Gone

    async def _close(self, runtime: AgentRuntime) -> list[str]:
        await runtime.close()
        for _ in range(100):
            await asyncio.sleep(0)  # Those outside are told, and go.
        if any(body.running for body in self.world.bodies):
            return []
        current = asyncio.current_task()
        return sorted(task.get_name() for task in asyncio.all_tasks() if task is not current)

    def end(self) -> None:
        """Let the process be dead, if there is one, with nothing that follows."""
        if self._loop is None:
            return
        assert self._store is not None
        self._time_s = self._loop.time()
        self._store.bury()
        for body in self.world.bodies:
            body.running = False
        buried, self._loop, self._runtime = bury(self._loop), None, None
        gc.collect()
        assert buried, "what was left of a dead process does not end"
