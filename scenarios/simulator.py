"""Plays a scenario: an agent's real runtime, sessions and tools on a simulated loop, through crashes and restarts.

    report = Simulator(agent).run(Scenario(acts=(Say(session="alice", text="hello"),), faults=(Crash(at_s=1.0),)))
    report.raise_if_broken()

One life of the process after the other runs on a loop of its own. A crash stops the loop between two steps and throws
away everything but the disk; what is left of the old life then learns that it is gone, and nothing it does counts. The
next life opens the same log, and those outside who were told nothing ask again under the same key. After the calm no
fault happens, and everything that was accepted has to end within the scenario's patience.

The agent's provider and approval handler are replaced: answers and decisions come from the scenario's seed.
"""

import asyncio
import gc
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from refold.actors.errors import ActorStopped
from refold.agent import Agent
from refold.agent_runtime import AgentRuntime
from refold.events.codec import RecordedEvent, tag_of
from refold.events.errors import BackpressureShed, CommandRejected, ConfigError, PersistenceError
from refold.events.ids import SessionId, kind_and_identifier, stream_name
from refold.events.payloads import restored, stored_hashes
from refold.events.permission import Allow, Decision, Deny
from refold.events.records import StoredEvent
from refold.events.session_core import SESSION_KIND
from refold.events.session_events import ToolApprovalRequested
from refold.events.session_state import Run
from refold.scenarios import faults
from refold.scenarios.acting import carry_out
from refold.scenarios.burial import Gone, bury
from refold.scenarios.faults import AnyFault
from refold.scenarios.garbage import garbage_by_hand
from refold.scenarios.last_look import last_look
from refold.scenarios.saved_log import save_log
from refold.scenarios.scenario import Abandon, AnyAct, Decide, Say, Scenario, Watch
from refold.scenarios.session_watching import Watching
from refold.scenarios.simulated_agent import AgentSource, simulated_agent
from refold.scenarios.simulated_disk import SimulatedDisk
from refold.scenarios.simulated_loop import Schedule, SeededSchedule, SimulatedLoop, SparseSchedule
from refold.scenarios.simulated_replies import SimulatedReplies
from refold.scenarios.simulated_store import SimulatedStore
from refold.scenarios.simulated_wire import wire_of
from refold.scenarios.simulated_world import Beginning, World
from refold.scenarios.simulation_report import SimulationReport
from refold.scenarios.simulation_watch import SimulationWatch
from refold.stores.memory import InMemoryStore

log = logging.getLogger("refold.scenarios")

LIVES_MAX = 200
"""A process that dies more often than this is not the fault of the plan."""

START_AGAIN_S = 10.0
"""After so many virtual seconds a process is started again that could not open its log."""

LOOK_S = 20.0
"""How often it is looked whether all is over, and whether a run waits for a person, in virtual seconds."""


class Simulator:
    """Plays scenarios with one agent.

    Args:
        agent: what is rehearsed: its configuration, tools, policy and everything but its provider and approval handler;
            of a FallbackProvider, the breakers stay. Or a function that makes it, see `AgentSource`.
    """

    def __init__(self, agent: AgentSource) -> None:
        self._agent = agent

    def run(self, scenario: Scenario, *, beginning: Beginning | None = None) -> SimulationReport:
        """Play one scenario to its end, or to the first promise that is broken.

        Args:
            scenario: what is played.
            beginning: the log that there is before, which is changed; None = an empty one.

        Raises:
            ConfigError: the agent cannot be one of a runtime, or a log that there is before is to be gone on with
                elsewhere than in memory.
        """
        if beginning is not None and scenario.store != "memory":
            raise ConfigError("a log that there is before is gone on with in memory; leave out store='sqlite'")
        return self._played(scenario, beginning)[0]

    def save_log(self, scenario: Scenario, path: str | os.PathLike[str]) -> SimulationReport:
        """Play one scenario and save the log that it leaves, whatever is wrong with it, as an SQLite file.

        `refold show`, `refold replay` and `refold check` open it.

        Args:
            scenario: what is played, once more if need be: it leaves the same log each time.
            path: of the new file; nothing may be there.

        Raises:
            ConfigError: the path names no file that an SQLite log could be made of, or one that is there already.
            PersistenceError: the file cannot be made.
        """
        report, simulation = self._played(scenario)
        if simulation.files is not None:
            simulation.files.save(path)
        else:
            assert isinstance(simulation.world.disk, InMemoryStore)
            asyncio.run(save_log(simulation.world.disk, path))
        return report

    def _played(self, scenario: Scenario, beginning: Beginning | None = None) -> "tuple[SimulationReport, _Simulation]":
        with garbage_by_hand():
            simulation = _Simulation(self._agent, scenario, beginning)
            return simulation.run(), simulation


def _waits_for_its_next_turn(run: Run) -> bool:
    return run.phase == "ready" and run.turns_allowed is not None and run.turns >= run.turns_allowed


class Repetition(msgspec.Struct, frozen=True, eq=False):
    """An act that is delivered a second time."""

    index: int
    """Of the act."""
    due_s: float


class _Simulation:
    def __init__(self, agent: AgentSource, scenario: Scenario, beginning: Beginning | None) -> None:
        self.scenario = scenario
        self.world = World(scenario, beginning)
        self.watch = SimulationWatch(self.world)
        self.world.plan.noticed = self.watch.met
        self.replies = SimulatedReplies(self.world)
        self.wire = wire_of(self.world, self.watch)
        self.files = SimulatedDisk(self.world) if scenario.store == "sqlite" else None
        self._agent = agent
        self._stores: list[SimulatedStore] = []
        """Of the present life, and of processes that live beside it."""
        self.outcomes: dict[int, str] = {}
        self.repetitions: list[Repetition] = []
        """Of acts, still to come."""
        self.watching = {index: Watching(act) for index, act in enumerate(scenario.acts) if isinstance(act, Watch)}
        self.steps = 0
        self.over = False
        self._ended = False
        """Whether the process has come to its end by itself, and its loop is about to stop."""

    def run(self) -> SimulationReport:
        try:
            return self._run()
        finally:
            if self.files is not None:
                self.files.remove()

    def _run(self) -> SimulationReport:
        time_s = 0.0
        while not self.over and not self.watch.broken:
            self.world.life += 1
            if self.world.life > LIVES_MAX:
                self.watch.note("LIVENESS", "", f"the process has died {LIVES_MAX} times")
                break
            time_s = self._live(time_s)
        looking = last_look(self.world, self.watch, self.files, self.wire)
        return self._report(asyncio.run(looking) if self.files is None else self.files.look(looking))

    def _live(self, time_s: float) -> float:
        """Play one life of the process, and return the time at its end."""
        loop = SimulatedLoop(self._schedule(), time_s=time_s)
        loop.before_step = self._before_step
        self.world.loop, self.world.dying = loop, False
        asyncio.set_event_loop(loop)
        if self.files is not None:
            self.files.begin_life()
        try:
            loop.run_until_complete(self._whole_life())
        except Gone:
            log.debug("life %d ended at %.3f s", self.world.life, loop.time())
        except ConfigError:
            raise  # It cannot be simulated, and has broken nothing.
        except Exception as error:  # noqa: BLE001 - The border to the simulated process, whatever it lets out.
            self.watch.note("ERROR", "", f"{type(error).__name__}: {error}")
        finally:
            self.watch.exercised.add("ERROR")
            time_s = loop.time()
            self.steps += loop.steps
            for store in self._stores:
                store.bury()
            self.replies.bury()
            if self.files is not None:
                self.files.end_life()
            loop.before_step = None
            if self.wire is not None and self.world.dying:
                self.wire.network.bury()
            self._bury(loop)
            if self.wire is not None:
                self.wire.check_all_is_closed()
            asyncio.set_event_loop(None)
            gc.collect()
        return time_s

    async def _whole_life(self) -> None:
        self._ended = False
        try:
            if self.files is None or await self.files.starts(self.watch):
                await _Life(self).live()
        finally:
            self._ended = True

    def _before_step(self, step: int) -> None:
        for fault in self.world.plan.count("step"):
            assert isinstance(fault, faults.CrashAtStep)
            self.world.die()
        if (self.world.dying or self.watch.broken) and not self._ended:
            raise Gone

    def _bury(self, loop: SimulatedLoop) -> None:
        """Let what is left of a life end, which it cannot do anything against any more."""
        for body in self.world.bodies:
            body.running = False
        if not bury(loop, self.files.bury if self.files is not None else None) and not self.watch.broken:
            self.watch.note("ERROR", "", "what was left of a dead life does not end")

    def agent(self) -> Agent:
        """Return the agent as the present life has it."""
        has_people = any(isinstance(act, Decide) for act in self.scenario.acts)
        agent = simulated_agent(
            self._agent,
            self.world,
            asked=self.watch.asked,
            approval=None if has_people else self._decide,
            reached=self.wire.provider_of if self.wire is not None else lambda model: model,
        )
        if self.wire is not None:
            self.wire.know(agent)
        return agent

    def store(self) -> SimulatedStore:
        """Return the disk as the present life sees it."""
        self._stores.append(SimulatedStore(self.world.disk, self.world.plan, self.world.die, self.watch.committed))
        return self._stores[-1]

    def _schedule(self) -> Schedule:
        deviations = self.scenario.deviations
        if deviations is None:
            return SeededSchedule(self.scenario.seed * 1_000 + self.world.life)
        return SparseSchedule(deviations if self.world.life == 1 else {})

    async def _decide(self, session: SessionId, request: ToolApprovalRequested) -> Decision:
        chance = self.world.chance(f"approval {session} {request.call}")
        await asyncio.sleep(chance.uniform(0.5, 60.0))
        return Allow(always=chance.random() < 0.2) if chance.random() < 0.7 else Deny(reason="not this one")

    def _report(self, events: Sequence[StoredEvent]) -> SimulationReport:
        digest = hashlib.sha256()
        for event in events:
            digest.update(msgspec.msgpack.encode(event))
        return SimulationReport(
            scenario=self.scenario,
            broken=tuple(self.watch.broken),
            exercised=tuple(sorted(self.watch.exercised)),
            happened=self.world.plan.happened(),
            lives=self.world.life,
            steps=self.steps,
            virtual_s=self.world.now_s(),
            events=len(events),
            event_kinds=dict(sorted(Counter(tag_of(event.data) or "" for event in events).items())),
            times=self.world.plan.times(),
            watched=tuple(watching.seen() for watching in self.watching.values()),
            operations=self.world.plan.operations(),
            outcomes=tuple(self.outcomes.get(index, "") for index in range(len(self.scenario.acts))),
            met=self.watch.meetings.counted(),
            digest=digest.hexdigest(),
        )


class _Life:
    """One life of the process, and those outside who speak to it.

    Args:
        simulation: what it is part of.
        beside: whether another process lives that had the log before.
    """

    def __init__(self, simulation: _Simulation, *, beside: bool = False) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._watch = simulation.watch
        self._beside = beside
        self._store = simulation.store()
        self._ending: asyncio.Event = asyncio.Event()
        self._taken_over = False
        self._acts: list[asyncio.Task[None]] = []

    async def live(self) -> None:
        """Run the process until it ends in order, or all is over."""
        simulation, world = self._simulation, self._world
        loop = asyncio.get_running_loop()
        for fault in world.plan.timed():
            loop.call_at(max(fault.at_s, loop.time()), self._timed, fault)
        runtime = AgentRuntime(simulation.agent(), log=self._store, clock=world.clock, inbox_poll_s=0)
        try:
            await runtime.open()
        except PersistenceError:  # As a process that cannot start, and is started again.
            await asyncio.sleep(START_AGAIN_S)
            return
        simulation.replies.serve(runtime.system)
        waiting = {index: act for index, act in enumerate(simulation.scenario.acts) if index not in simulation.outcomes}
        acts = [loop.create_task(self._act(runtime, index, act), name=f"act {index}") for index, act in waiting.items()]
        self._acts.extend(acts)
        for repetition in simulation.repetitions:
            self._begin_repetition(runtime, repetition)
        everything: asyncio.Task[Any] = loop.create_task(self._all_over(runtime, self._acts), name="all over")
        ending: asyncio.Task[Any] = loop.create_task(self._ending.wait(), name="the order to end")
        try:
            await asyncio.wait([everything, ending], return_when=asyncio.FIRST_COMPLETED)
            if self._taken_over:
                everything.cancel()
                for task, act in zip(acts, waiting.values(), strict=True):
                    if isinstance(act, Watch):  # Somebody follows the session on, where it goes on.
                        task.cancel()
                world.life += 1
                if simulation.files is None or await simulation.files.taken_over(self._watch):
                    await _Life(simulation, beside=True).live()
            elif everything.done():
                everything.result()
                simulation.over = True
        finally:
            await runtime.close()
        outside: tuple[asyncio.Task[Any], ...] = (*self._acts, everything, ending)
        for task in outside:
            task.cancel()
        await asyncio.gather(*outside, return_exceptions=True)
        if simulation.files is not None and not self._beside:
            await simulation.files.close(self._watch)
        self._check_nothing_is_left()

    def _check_nothing_is_left(self) -> None:
        current = asyncio.current_task()
        left = sorted(task.get_name() for task in asyncio.all_tasks() if task is not current)
        if left and not self._beside and not self._world.dying and not any(body.running for body in self._world.bodies):
            self._watch.note("INV7", "", f"a closed runtime leaves tasks: {', '.join(left)}")

    def _timed(self, fault: AnyFault) -> None:
        if self._world.is_calm() or self._world.dying or self._world.plan.has_happened(fault):
            return
        self._world.plan.note(fault)
        match fault:
            case faults.Crash():
                self._world.die()
            case faults.Close():
                self._ending.set()
            case faults.ClockJumps(seconds=seconds):
                self._world.clock.jump(seconds)
            case faults.SecondRuntime():
                if self._simulation.files is None:  # A real store finds out by itself.
                    self._store.fence()
                self._taken_over = True
                self._ending.set()
            case faults.NetworkSplit():
                if self._simulation.wire is not None:
                    self._simulation.wire.network.split(fault)
            case _:
                raise AssertionError(f"{fault} has no moment")

    async def _act(self, runtime: AgentRuntime, index: int, act: AnyAct) -> None:
        await asyncio.sleep(max(0.0, act.at_s - self._world.now_s()))
        if index not in self._simulation.outcomes and not isinstance(act, Watch):
            for fault in self._world.plan.count("input", [act.session]):
                assert isinstance(fault, faults.DuplicateInput)
                repetition = Repetition(index, self._world.now_s() + fault.after_s)
                self._simulation.repetitions.append(repetition)
                self._begin_repetition(runtime, repetition)
        if index not in self._simulation.outcomes:
            outcome = await self._insisting(runtime, act, index)
            if outcome is not None:
                self._simulation.outcomes[index] = outcome

    async def _insisting(self, runtime: AgentRuntime, act: AnyAct, index: int) -> str | None:
        """Return what an act comes to, however often it has to be tried; None = the process ends."""
        while True:
            try:
                key, watching = f"{self._world.keys}act {index}", self._simulation.watching.get(index)
                return await carry_out(act, key, runtime, self._world, self._watch, watching)
            except (PersistenceError, BackpressureShed):
                await asyncio.sleep(1.0)
            except ActorStopped:
                if self._ending.is_set():
                    return None
                await asyncio.sleep(1.0)
            except CommandRejected:
                return "refused"

    def _begin_repetition(self, runtime: AgentRuntime, repetition: Repetition) -> None:
        name = f"act {repetition.index} again"
        self._acts.append(asyncio.get_running_loop().create_task(self._repeat(runtime, repetition), name=name))

    async def _repeat(self, runtime: AgentRuntime, repetition: Repetition) -> None:
        """Do again what somebody does, as a network does that delivers a message twice."""
        await asyncio.sleep(max(0.0, repetition.due_s - self._world.now_s()))
        act = self._simulation.scenario.acts[repetition.index]
        if isinstance(act, Abandon):
            act = Say(session=act.session, text=act.text)
        told, left = await self._insisting(runtime, act, repetition.index) is not None, self._simulation.repetitions
        if told and repetition in left:  # Another process may have been told too.
            left.remove(repetition)

    async def _all_over(self, runtime: AgentRuntime, acts: Sequence[asyncio.Task[None]]) -> None:
        """Return when nothing is open any more; somebody sees to runs that wait for a person."""
        scenario = self._simulation.scenario
        while True:
            for task in acts:
                if task.done():
                    task.result()
            open_now = await self._open_streams()
            if all(task.done() for task in acts) and open_now == []:
                break
            if self._world.now_s() > scenario.calm_s + scenario.patience_s:
                waiting = [f"act {index}" for index, task in enumerate(acts) if not task.done()]
                not_over = f"not over in time; waiting: {', '.join(waiting)}"
                self._watch.note("LIVENESS", ", ".join(open_now or ()), not_over)
            if self._world.is_calm():
                await self._resume_what_waits(runtime, open_now or ())
            await asyncio.sleep(LOOK_S)
        # So that no fault of the plan hits who only looks.
        await asyncio.sleep(max(0.0, scenario.calm_s - self._world.now_s()))
        self._watch.exercised.add("LIVENESS")
        for session_id in self._watch.changed():
            await self._compare(runtime, session_id)

    async def _open_streams(self) -> list[str] | None:
        """Return the streams in which something is in flight, or None if the disk does not let us see."""
        try:
            heads = await self._world.disk.list_streams(prefix=f"{SESSION_KIND}/", with_pending=True)
        except PersistenceError:
            return None
        return [head.stream for head in heads]

    async def _resume_what_waits(self, runtime: AgentRuntime, open_now: Sequence[str]) -> None:
        waiting = (kind_and_identifier(stream)[1] for stream in open_now)
        for session_id in dict.fromkeys((*self._simulation.scenario.sessions(), *waiting)):
            session = await runtime.session(session_id)
            run = (await session.state_at()).run
            if run is not None and (run.parked or _waits_for_its_next_turn(run)):
                await session.resume()
            if runtime.agent.approval is None:
                for asked in await session.approvals():
                    await session.decide(asked.call, allow=False)

    async def _compare(self, runtime: AgentRuntime, session_id: str) -> None:
        """Compare what a session shows, and what those see who follow it, with what its log adds up to."""
        session = await runtime.session(session_id)
        self._watch.exercised.update(("INV6", "FOLLOW"))
        state, stream = await session.state_at(), stream_name(SESSION_KIND, SessionId(session_id))
        payloads = await self._world.disk.read_payloads(stored_hashes(state.messages))
        if await session.history() != [restored(message, payloads) for message in state.messages]:
            self._watch.note("INV6", stream, "the history that is shown is not what the log adds up to")
        async with session.follow(after_version=0) as followed:
            followed.end()  # What happens from now on is not waited for.
            seen = [item.version async for item in followed if isinstance(item, RecordedEvent)]
        if seen != list(range(1, state.version + 1)):
            self._watch.note("FOLLOW", stream, f"who follows the session from its beginning sees the versions {seen}")
