"""A process with a runtime on a simulated loop, driven from outside step by step, and how such a process ends.

    process = SimulatedProcess(agent, Scenario(acts=(Say(session="alice"),), seed=7))
    process.start()
    process.do(lambda runtime: ask_something_of(runtime))
    process.crash()                                             # The next one runs on the same disk.

`refold.scenarios.simulator` plays a whole scenario; here the caller decides what happens next, and time stands still in
between. The acts of the scenario are not played.

A crash stops the loop between two steps. Tasks that wait then would be collected as garbage some time later, in an
order that cannot be foreseen; `tear_down` therefore cancels them in the order in which they were made, until none is
left. The rules: the store is cut off from the disk before, so that nothing they do counts; and a process that dies is
torn down and followed by the next one before anything else happens.
"""

import asyncio
import gc
import inspect
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from refold.agent_runtime import AgentRuntime
from refold.agents.loading import AgentSource
from refold.events.core.errors import PersistenceError
from refold.scenarios import faults
from refold.scenarios.monitors.monitor import Monitor
from refold.scenarios.plan.scenario import Scenario
from refold.scenarios.plan.world import World
from refold.scenarios.world.agent import simulated_agent
from refold.scenarios.world.loop import Schedule, SeededSchedule, SimulatedLoop, SimulationError, SparseSchedule
from refold.scenarios.world.store import SimulatedStore

TEARDOWN_STEPS_MAX = 200_000
"""Most steps that the tasks of a dead life may take until they have ended."""


class ProcessDied(BaseException):
    """The process is dead: passes through everything."""


def schedule_of(scenario: Scenario, life: int) -> Schedule:
    if scenario.deviations is None:
        return SeededSchedule(scenario.seed * 1_000 + life)
    return SparseSchedule(scenario.deviations if life == 1 else {})


def tear_down(loop: SimulatedLoop, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> bool:
    """End all tasks of a loop and close it; return whether they ended."""
    left = loop.steps + TEARDOWN_STEPS_MAX

    def limit(step: int) -> None:
        if step > left:
            raise ProcessDied

    loop.before_step = limit
    loop.set_exception_handler(_ignore)
    logged = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # What a dead process logs is not seen.
    try:
        while True:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(asyncio.sleep(0))  # What is ready may begin more.
            tasks = sorted(asyncio.all_tasks(loop), key=hash)
            if not tasks:
                if last is not None:
                    loop.run_until_complete(last())
                return True
            begun = [task for task in tasks if _has_begun(task)]  # The others would leave what they were given undone.
            for task in begun:
                task.cancel()
            if begun:
                loop.run_until_complete(asyncio.gather(*begun, return_exceptions=True))
    except (ProcessDied, SimulationError):
        return False
    finally:
        logging.disable(logged)
        loop.close()


def _has_begun(task: asyncio.Task[Any]) -> bool:
    coroutine = task.get_coro()
    return not inspect.iscoroutine(coroutine) or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """See no error of what is left of a dead life."""


T = TypeVar("T")

START_AGAIN_S = 10.0
"""After so many virtual seconds a process is started again that could not open its log."""

STARTS_MAX = 50
"""A process that cannot be started so often in a row never can."""


class SimulatedProcess:
    """One process after the other, on one disk."""

    def __init__(self, agent: AgentSource, scenario: Scenario) -> None:
        self.world = World(scenario)
        self.monitor = Monitor(self.world)
        self._agent = agent
        self._time_s = 0.0
        self._loop: SimulatedLoop | None = None
        self._store: SimulatedStore | None = None
        self._runtime: AgentRuntime | None = None

    def start(self) -> None:
        for _ in range(STARTS_MAX):
            if self._try_to_start():
                return
            self.end()
            self._time_s += START_AGAIN_S
        raise AssertionError(f"the process does not start, in {STARTS_MAX} attempts")

    def do(self, work: Callable[[AgentRuntime], Coroutine[Any, Any, T]]) -> T | None:
        """Return what comes of work on the loop, or None where the process died meanwhile; then the next one runs."""
        assert self._loop is not None
        assert self._runtime is not None
        try:
            return self._loop.run_until_complete(work(self._runtime))
        except ProcessDied:
            self.crash()
            return None

    def begin(self, work: Callable[[AgentRuntime], Coroutine[Any, Any, None]], name: str) -> None:
        """Begin work as a client does; it goes on as time does, as long as the process lives."""
        assert self._loop is not None
        assert self._runtime is not None
        self._loop.create_task(work(self._runtime), name=name)

    def advance(self, seconds: float) -> None:
        self.do(lambda _: asyncio.sleep(seconds))

    def crash(self) -> None:
        self.end()
        self.start()

    def stop(self) -> list[str]:
        """End the process in order, and return the names of the tasks that it leaves, none of them a tool's body."""
        left = self.do(self._close)
        self.end()
        return left or []

    def calm_down(self) -> None:
        self.world.calm = True

    def _try_to_start(self) -> bool:
        self.world.life += 1
        loop = self._loop = SimulatedLoop(schedule_of(self.world.scenario, self.world.life), time_s=self._time_s)
        loop.before_step = self._before_step
        self.world.loop, self.world.dying = loop, False
        self._store = SimulatedStore(self.world, self.monitor)
        agent = simulated_agent(self._agent, self.world, asked=self.monitor.asked, approval=None)
        self._runtime = AgentRuntime(agent, log=self._store, clock=self.world.clock, inbox_poll_s=0)
        try:
            loop.run_until_complete(self._runtime.open())
        except (ProcessDied, PersistenceError):
            return False
        return True

    def _before_step(self, step: int) -> None:
        for fault in self.world.plan.count("step"):
            assert isinstance(fault, faults.CrashAtStep)
            self.world.die()
        if self.world.dying:
            raise ProcessDied

    async def _close(self, runtime: AgentRuntime) -> list[str]:
        await runtime.close()
        for _ in range(100):
            await asyncio.sleep(0)  # Clients are told, and go.
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
        self._store.tear_down()
        for body in self.world.bodies:
            body.running = False
        ended, self._loop, self._runtime = tear_down(self._loop), None, None
        gc.collect()
        assert ended, "what was left of a dead process does not end"


_set_aside_before = False
"""Whether the caller had objects set aside; once seen it is taken for true, since to count a million takes 0.1 s."""


@contextmanager
def manual_gc() -> Generator[None]:
    """Collect no garbage inside but by `gc.collect()`, and then only what was made inside.

    A collection that memory triggers would run finalizers at another step in each process. Objects from before are set
    aside: a walk over all that a test run holds takes a hundred times as long as one over what a life has left.
    """
    global _set_aside_before
    _set_aside_before = _set_aside_before or gc.get_freeze_count() > 0
    collecting = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if not _set_aside_before:
            gc.unfreeze()
        if collecting:
            gc.enable()
