"""Plays a scenario: an agent's real runtime, sessions and tools on a simulated loop, through crashes and restarts.

    report = Simulator(agent).run(Scenario(acts=(Say(session="alice", text="hello"),), faults=(Crash(at_s=1.0),)))
    report.raise_if_broken()

One life of the process after the other runs on a loop of its own. A crash stops the loop between two steps and throws
away everything but the disk; what is left of the old life is torn down, and nothing it does counts. The next life opens
the same log, and clients that were told nothing ask again under the same key. After the calm no fault happens, and
everything that was accepted has to end within the scenario's patience. In the end `final_check` looks at the log: is it
whole, and does deciding it again give what it holds?

The agent's provider and approval handler are replaced: answers and decisions come from the scenario's seed.
"""

import asyncio
import gc
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import cast

import msgspec

from refold.actors.agent.compaction import Summarising
from refold.actors.calls.middleware import Middleware
from refold.actors.calls.policy import Allow, Decision, Deny
from refold.agents.agent import AnyAgent, with_subagents
from refold.agents.loading import AgentSource, checked_source
from refold.agents.redact import redaction_of_rules
from refold.events.core.cleaning import error_words
from refold.events.core.codec import tag_of
from refold.events.core.errors import ConfigError, PersistenceError
from refold.events.core.ids import SessionId
from refold.events.core.records import StoredEvent
from refold.events.secrets.redaction import Redaction
from refold.events.session import events as ev
from refold.inspection.check import check_log
from refold.replay.log_replay import replay
from refold.scenarios import faults
from refold.scenarios.monitors.expectations import Watching
from refold.scenarios.monitors.monitor import Monitor
from refold.scenarios.plan.scenario import Cancel, Decide, Scenario, Watch
from refold.scenarios.plan.world import Beginning, World
from refold.scenarios.report import SimulationReport, save_log
from refold.scenarios.wire.providers import SimulatedWire, wire_of
from refold.scenarios.world.agent import simulated_agent
from refold.scenarios.world.disk import SimulatedDisk
from refold.scenarios.world.inbox import SimulatedInbox
from refold.scenarios.world.life import Life, ScenarioProgress, ignore_act, no_network
from refold.scenarios.world.loop import SimulatedLoop
from refold.scenarios.world.model import SimulatedModel
from refold.scenarios.world.process import ProcessDied, manual_gc, schedule_of, tear_down
from refold.scenarios.world.store import SimulatedReplies, SimulatedStore
from refold.stores.event_store import WholeLog
from refold.stores.memory import InMemoryStore


async def final_check(
    world: World, monitor: Monitor, files: SimulatedDisk | None, wire: SimulatedWire | None
) -> Sequence[StoredEvent]:
    """Return all that the log holds, and note what is wrong with it, unless something has been found before.

    Without files, it is read from memory.
    """
    try:
        if files is not None:
            world.disk = await files.open(read_only=True)
        if not monitor.broken:
            await _check(world, monitor, wire)
        return await world.disk.read_all(limit=10**9)
    except PersistenceError as error:
        if not monitor.broken:
            monitor.note("DURABLE", "", f"the log cannot be read any more: {error}")
        return ()


async def _check(world: World, monitor: Monitor, wire: SimulatedWire | None) -> None:
    await monitor.opened()
    monitor.over()
    monitor.exercised.update(("CHECK", "INV6"))
    for problem in (await check_log(world.disk)).problems:
        monitor.note("CHECK", problem.stream, str(problem))
    for divergence in (await replay(world.disk)).divergences:
        if divergence.version > world.recorded.get(divergence.stream, 0):
            monitor.note("INV6", divergence.stream, str(divergence))
    if wire is not None:
        await wire.check_log()
    if monitor.secrets:
        await _check_secrets(world, monitor)


async def _check_secrets(world: World, monitor: Monitor) -> None:
    monitor.exercised.add("SECRET")
    for event in await world.disk.read_all(limit=10**9):
        if monitor.secrets.finds(event.data):
            monitor.note("SECRET", event.stream, f"version {event.version} holds what is to be redacted")
    listed = await cast("WholeLog", world.disk).list_payloads(limit=10**9)
    for name, payload in (await world.disk.read_payloads([item.hash for item in listed])).items():
        if monitor.secrets.finds(payload):
            monitor.note("SECRET", "", f"payload {name[:12]} holds what is to be redacted")


log = logging.getLogger("refold.scenarios")

LIVES_MAX = 200
"""A process that dies more often than this is not the fault of the plan."""


class Simulation:
    """One scenario being played, life after life."""

    def __init__(self, agent: AgentSource, scenario: Scenario, beginning: Beginning | None) -> None:
        self.scenario = scenario
        self.world = World(scenario, beginning)
        self.monitor = Monitor(self.world)
        self.world.plan.noticed = self.monitor.met
        self.replies = SimulatedReplies(self.world)
        self.wire = wire_of(self.world, self.monitor)
        self.files = SimulatedDisk(self.world) if scenario.store == "sqlite" else None
        self.world.on_body = self.monitor.effects.begun
        self.world.on_ask = self.monitor.asking
        self.world.on_said = self.monitor.said
        self.world.on_answer = self.monitor.answered
        self._agent = agent
        self._stores: list[SimulatedStore] = []
        """Of the present life, and of processes that live beside it."""
        self.progress = ScenarioProgress(
            scenario=scenario,
            world=self.world,
            monitor=self.monitor,
            replies=self.replies,
            inbox=SimulatedInbox(self.world, self.monitor),
            files=self.files,
            agent=self.agent,
            store=self.store,
            split=self.wire.network.split if self.wire is not None else no_network,
            acts=list(scenario.acts),
            watching={index: Watching(act) for index, act in enumerate(scenario.acts) if isinstance(act, Watch)},
        )
        self.refused: set[str] = set()
        self.steps = 0
        self._ended = False
        """Whether the process has come to its end by itself, and its loop is about to stop."""

    def run(self) -> SimulationReport:
        try:
            return self._run()
        finally:
            self.progress.inbox.close()
            if self.files is not None:
                self.files.remove()

    def _run(self) -> SimulationReport:
        time_s = 0.0
        while not self.progress.over and not self.monitor.broken:
            self.world.life += 1
            if self.world.life > LIVES_MAX:
                self.monitor.note("LIVENESS", "", f"the process has died {LIVES_MAX} times")
                break
            time_s = self._live(time_s)
        looking = final_check(self.world, self.monitor, self.files, self.wire)
        return self._report(asyncio.run(looking) if self.files is None else self.files.look(looking))

    def _live(self, time_s: float) -> float:
        loop = SimulatedLoop(schedule_of(self.scenario, self.world.life), time_s=time_s)
        loop.before_step = self._before_step
        loop.on_refused = self.refused.add
        self.world.loop, self.world.dying = loop, False
        self.progress.on_act = ignore_act
        asyncio.set_event_loop(loop)
        if self.files is not None:
            self.files.begin_life()
        try:
            loop.run_until_complete(self._whole_life())
        except ProcessDied:
            log.debug("life %d ended at %.3f s", self.world.life, loop.time())
        except ConfigError:
            raise  # It cannot be simulated, and has broken nothing.
        except Exception as error:  # noqa: BLE001 - The border of the simulated process, for every error it lets out.
            self.monitor.note("ERROR", "", error_words(error))
        finally:
            self.monitor.exercised.add("ERROR")
            time_s = loop.time()
            self.monitor.effects.life_over(self.world.life)
            self.steps += loop.steps
            for store in self._stores:
                store.tear_down()
            self.replies.tear_down()
            if self.files is not None:
                self.files.end_life()
            loop.before_step = loop.on_refused = None
            if self.wire is not None and self.world.dying:
                self.wire.network.tear_down()
            self._tear_down(loop)
            if self.wire is not None:
                self.wire.check_all_is_closed()
            asyncio.set_event_loop(None)
            gc.collect()
        return time_s

    async def _whole_life(self) -> None:
        self._ended = False
        try:
            if self.files is None or await self.files.starts(self.monitor):
                await Life(self.progress).live()
        finally:
            self._ended = True

    def _before_step(self, step: int) -> None:
        for fault in self.world.plan.count("step"):
            if isinstance(fault, faults.CancelAtStep):
                self.progress.acts.append(Cancel(session=fault.session))
                self.progress.on_act(len(self.progress.acts) - 1)
            else:
                assert isinstance(fault, faults.CrashAtStep)
                self.world.die()
        if (self.world.dying or self.monitor.broken) and not self._ended:
            raise ProcessDied

    def _tear_down(self, loop: SimulatedLoop) -> None:
        """Let what is left of a life end, which it cannot do anything against any more."""
        for body in self.world.bodies:
            body.running = False
        if not tear_down(loop, self.files.tear_down if self.files is not None else None) and not self.monitor.broken:
            self.monitor.note("ERROR", "", "what was left of a dead life does not end")

    def agent(self) -> AnyAgent:
        has_people = any(isinstance(act, Decide) for act in self.scenario.acts)
        agent = simulated_agent(
            self._agent,
            self.world,
            asked=self.monitor.asked,
            approval=None if has_people else self._decide,
            reached=self.wire.provider_of if self.wire is not None else lambda model: model,
        )
        self.monitor.shows_all = agent.context is None and not agent.middleware and agent.config.protocol == "native"
        self.monitor.summary_prompt = agent.context.prompt if isinstance(agent.context, Summarising) else None
        results, all_agents = self.monitor.effects.results, with_subagents(agent)
        self.monitor.secrets = Redaction(others=[redaction_of_rules(each.redact) for each in all_agents])
        redacted = bool(self.monitor.secrets)
        results.as_said = not redacted and not any(map(_changes_answers, all_agents))
        results.results_as_brought = not redacted and not any(_has_hook(each, "on_tool_result") for each in all_agents)
        results.fails_by_itself = not any(each.middleware or each.output_type or each.context for each in all_agents)
        results.one_model = isinstance(agent.provider, SimulatedModel)
        return agent

    def store(self) -> SimulatedStore:
        self._stores.append(SimulatedStore(self.world, self.monitor))
        return self._stores[-1]

    async def _decide(self, session: SessionId, request: ev.ToolApprovalRequested) -> Decision | None:
        chance = self.world.chance(f"approval {session} {request.call}")
        life = self.world.life
        await asyncio.sleep(chance.uniform(0.5, 60.0))
        if life == self.world.life:  # A process that has lost the log to another one does not know.
            self.monitor.still_asked(session, request.call)
        always = chance.random() < 0.2
        allowed = chance.random() < 0.7
        if allowed and self.world.chance(f"edit {session} {request.call}").random() < 0.15:
            # By a command and not by the handler's answer, so that what is refused can be said again.
            self.progress.acts.append(Decide(session=session, edit=True))
            self.progress.on_act(len(self.progress.acts) - 1)
            return None
        self.monitor.effects.results.decided(session, request.call, allowed=allowed)
        return Allow(always=always) if allowed else Deny(reason="not this one")

    def _report(self, events: Sequence[StoredEvent]) -> SimulationReport:
        digest = hashlib.sha256()
        for event in events:
            digest.update(msgspec.msgpack.encode(event))
        return SimulationReport(
            scenario=self.scenario,
            broken=tuple(self.monitor.broken),
            exercised=tuple(sorted(self.monitor.exercised)),
            happened=self.world.plan.happened(),
            refused=tuple(sorted(self.refused)),
            lives=self.world.life,
            steps=self.steps,
            virtual_s=self.world.now_s(),
            events=len(events),
            event_kinds=dict(sorted(Counter(tag_of(event.data) or "" for event in events).items())),
            times=self.world.plan.times(),
            watched=tuple(watching.seen() for watching in self.progress.watching.values()),
            operations=self.world.plan.operations(),
            outcomes=tuple(self.progress.outcomes.get(index, "") for index in range(len(self.scenario.acts))),
            met=self.monitor.fault_coverage.counted(),
            digest=digest.hexdigest(),
        )


def _changes_answers(agent: AnyAgent) -> bool:
    return agent.config.protocol != "native" or _has_hook(agent, "on_post_llm")


def _has_hook(agent: AnyAgent, hook: str) -> bool:
    return any(getattr(type(each), hook) is not getattr(Middleware, hook) for each in agent.middleware)


class Simulator:
    """Plays scenarios with one agent.

    Args:
        agent: what is rehearsed: its configuration, tools, policy and everything but its provider and approval handler;
            of a FallbackProvider, the breakers stay. Or a plain function that makes it, called for each life of the
            process; an agent whose own parts remember what the log does not know needs one.

    Raises:
        ConfigError: it is neither.
    """

    def __init__(self, agent: AgentSource) -> None:
        self._agent = checked_source(agent, "what is to be simulated")

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
        """Play one scenario and save the log that it leaves, right or wrong, as an SQLite file.

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

    def _played(self, scenario: Scenario, beginning: Beginning | None = None) -> tuple[SimulationReport, Simulation]:
        with manual_gc():
            simulation = Simulation(self._agent, scenario, beginning)
            return simulation.run(), simulation
