"""One life of a simulated process: the real runtime, and those outside who speak to it and insist on an answer.

Read `refold.scenarios.simulator` first. A life ends in order, by a crash that stops its loop, or when all is over.

What a client does, once, and its outcome; see `refold.scenarios.plan.scenario` for the acts.

The rule: what a client is told is checked before anything else happens.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.shell.messages import Later, teller
from refold.agent_runtime import AgentRuntime
from refold.agents.agent import AnyAgent, with_subagents
from refold.events.core.codec import RecordedEvent
from refold.events.core.errors import AgentLoopError, BackpressureShed, CommandRejected, PersistenceError
from refold.events.core.ids import SessionId, kind_and_identifier, stream_name
from refold.events.model.payloads import all_restored, stored_hashes
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import Run, SessionState
from refold.scenarios import faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.expectations import Watching
from refold.scenarios.monitors.monitor import Monitor, marked, marks_in
from refold.scenarios.plan.scenario import (
    Abandon,
    AnswerKind,
    AnyAct,
    Cancel,
    Clear,
    Decide,
    Post,
    Respond,
    Say,
    Scenario,
    Watch,
)
from refold.scenarios.plan.world import World
from refold.scenarios.world.disk import SimulatedDisk
from refold.scenarios.world.inbox import SimulatedInbox
from refold.scenarios.world.model import arguments_for, misfit_for, value_for
from refold.scenarios.world.store import SimulatedReplies, SimulatedStore
from refold.sessions.outcome import RunResult
from refold.sessions.session import Session

START_AGAIN_S = 10.0
"""After so many virtual seconds a process is started again that could not open its log."""

ASK_S = 25.0
"""Appends that take less, together, are no reason not to answer a client."""

LOOK_S = 20.0
"""How often it is looked whether all is over, and whether a run waits for a person, in virtual seconds."""


async def _is_taken(doing: Awaitable[object]) -> bool:
    """Return whether what a person does is not refused: it may not fit, and its call may have ended."""
    try:
        await doing
    except CommandRejected:
        return False
    return True


def _waits_for_its_next_turn(run: Run) -> bool:
    return run.phase == "ready" and run.turns_allowed is not None and run.turns >= run.turns_allowed


def _goes_on_by_itself(state: SessionState) -> bool:
    run, turn = state.run, state.turn
    waits = turn is not None and bool(turn.awaiting)
    return run is not None and not (run.parked or waits or _waits_for_its_next_turn(run))


def _said_of(task: asyncio.Task[Any]) -> str:
    runs = getattr(task.get_coro(), "__qualname__", None)
    return f"{task.get_name()} ({runs})" if runs else task.get_name()


def ignore_act(index: int) -> None:
    """Begin nothing: no process is open."""


class Repetition(msgspec.Struct, frozen=True, eq=False):
    """An act that is delivered a second time."""

    index: int
    """Of the act."""
    due_s: float


def no_network(split: faults.NetworkSplit) -> None:
    """Split nothing: the model is an object of the process."""


@dataclass(kw_only=True)
class ScenarioProgress:
    """How far a scenario has been played: what one life of the process hands on to the next."""

    scenario: Scenario
    world: World
    monitor: Monitor
    replies: SimulatedReplies
    inbox: SimulatedInbox
    files: SimulatedDisk | None
    """What the log lies on; None = it is in memory."""
    agent: Callable[[], AnyAgent]
    """Makes the agent of a life."""
    store: Callable[[], SimulatedStore]
    """Makes the store of a life."""
    split: Callable[[faults.NetworkSplit], object] = no_network
    """Splits the network between the process and its model."""
    acts: list[AnyAct]
    """Those of the scenario, and behind them those that faults have brought."""
    watching: dict[int, Watching]
    """What the acts that follow a session have seen, by their place."""
    on_act: Callable[[int], object] = ignore_act
    """Has the present life, once it is open, begin an act that a fault has brought; the next ones know of it."""
    outcomes: dict[int, str] = field(default_factory=dict[int, str])
    """How acts have ended, by their place."""
    tried: set[int] = field(default_factory=set[int])
    """Acts of clients that ask once only, and have."""
    asked: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """The place of the act that answers a question, by its session and its id there."""
    repetitions: list[Repetition] = field(default_factory=list[Repetition])
    """Of acts, still to come."""
    over: bool = False
    """Whether all is over."""


class Life:
    """One life of the process, and those outside who speak to it."""

    def __init__(self, progress: ScenarioProgress, *, beside: bool = False) -> None:
        self._progress = progress
        self._world = progress.world
        self._number = progress.world.life
        self._monitor = progress.monitor
        self._beside = beside
        self._store = progress.store()
        self._ending: asyncio.Event = asyncio.Event()
        self._taken_over = False
        self._runtime: AgentRuntime | None = None
        """Once it is open."""
        self._acts: list[asyncio.Task[None]] = []

    async def live(self) -> None:
        progress, world = self._progress, self._world
        loop = asyncio.get_running_loop()
        for fault in world.plan.timed():
            loop.call_at(max(fault.at_s, loop.time()), self._timed, fault)
        runtime = AgentRuntime(
            progress.agent(),
            log=self._store,
            clock=world.clock,
            inbox_poll_s=0,
            passivate_after_s=progress.scenario.passivate_after_s,
            snapshot_every=progress.scenario.snapshot_every,
        )
        try:
            await runtime.open()
        except (PersistenceError, AskTimeout) as error:  # As a process that cannot start, and is started again.
            self._require_excuse(error)
            await asyncio.sleep(START_AGAIN_S)
            return
        self._runtime = runtime
        progress.replies.serve(runtime.system)
        reader = progress.inbox.reader(runtime)
        runtime.subscribe(partial(self._monitor.effects.published, self._number))
        waiting = {index: act for index, act in enumerate(progress.acts) if index not in progress.outcomes}
        acts = [self._begin_act(runtime, index) for index in waiting]
        progress.on_act = partial(self._begin_act, runtime)
        for repetition in progress.repetitions:
            self._begin_repetition(runtime, repetition)
        everything: asyncio.Task[Any] = loop.create_task(self._all_over(runtime, self._acts), name="all over")
        ending: asyncio.Task[Any] = loop.create_task(self._ending.wait(), name="the order to end")
        try:
            await asyncio.wait([everything, ending], return_when=asyncio.FIRST_COMPLETED)
            if self._taken_over:
                everything.cancel()
                for task, act in zip(acts, waiting.values(), strict=True):
                    if isinstance(act, Watch):  # The client goes on following the session.
                        task.cancel()
                world.life += 1
                if progress.files is None or await progress.files.taken_over(self._monitor):
                    await Life(progress, beside=True).live()
            elif everything.done():
                everything.result()
                progress.over = True
        finally:
            progress.on_act = ignore_act
            await reader.stop()
            await runtime.close()
        outside: tuple[asyncio.Task[Any], ...] = (*self._acts, everything, ending)
        for task in outside:
            task.cancel()
        await asyncio.gather(*outside, return_exceptions=True)
        if progress.files is not None and not self._beside:
            await progress.files.close(self._monitor)
        self._check_nothing_is_left()

    def _check_nothing_is_left(self) -> None:
        current = asyncio.current_task()
        left = sorted(_said_of(task) for task in asyncio.all_tasks() if task is not current)
        if left and not self._beside and not self._world.dying and not any(body.running for body in self._world.bodies):
            self._monitor.note("INV7", "", f"a closed runtime leaves tasks: {', '.join(left)}")

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
                if self._progress.files is None:  # A real store finds out by itself.
                    self._store.fence()
                self._taken_over = True
                self._ending.set()
            case faults.NetworkSplit():
                self._progress.split(fault)
            case faults.SessionFails(session=session):
                if self._runtime is not None:
                    teller(self._runtime.system.ref(stream_name(SESSION_KIND, SessionId(session))), Later("fail"))()
            case _:
                raise AssertionError(f"{fault} has no moment")

    def _begin_act(self, runtime: AgentRuntime, index: int) -> asyncio.Task[None]:
        act = self._progress.acts[index]
        task = asyncio.get_running_loop().create_task(self._act(runtime, index, act), name=f"act {index}")
        self._acts.append(task)
        return task

    async def _act(self, runtime: AgentRuntime, index: int, act: AnyAct) -> None:
        await asyncio.sleep(max(0.0, act.at_s - self._world.now_s()))
        if index not in self._progress.outcomes and not isinstance(act, Watch):
            for fault in self._world.plan.count("input", [act.session]):
                assert isinstance(fault, faults.DuplicateInput)
                repetition = Repetition(index, self._world.now_s() + fault.after_s)
                self._progress.repetitions.append(repetition)
                self._begin_repetition(runtime, repetition)
        if isinstance(act, Say) and not act.insists:
            if index in self._progress.tried:
                self._progress.outcomes[index] = "not told"
            self._progress.tried.add(index)
        if index not in self._progress.outcomes:
            outcome = await self._insisting(runtime, act, index)
            if outcome is not None:
                self._progress.outcomes[index] = outcome

    async def _insisting(self, runtime: AgentRuntime, act: AnyAct, index: int) -> str | None:
        """Return what an act comes to, however often it has to be tried; None = the process ends."""
        while True:
            try:
                return await self._carried_out(runtime, act, index)
            except (PersistenceError, BackpressureShed, AskTimeout) as error:
                self._require_excuse(error)
                if isinstance(act, Say) and not act.insists:
                    await self._look(runtime, act.session)
                    return "not told"
                await asyncio.sleep(1.0)
            except ActorStopped:
                if self._ending.is_set():
                    return None
                await asyncio.sleep(1.0)
            except (CommandRejected, AgentLoopError):  # By the session, or by a hook of the agent's own.
                return "refused"

    async def _carried_out(self, runtime: AgentRuntime, act: AnyAct, index: int) -> str:
        """Return what an act comes to: the name of its run's outcome, or `done`."""
        world, monitor, key = self._world, self._monitor, f"{self._world.keys}act {index}"
        if isinstance(act, Post):
            return await self._progress.inbox.asked(act, key, world.clock)
        session, since_s = await runtime.session(act.session), world.now_s()
        match act:
            case Say(text=text, times=times):
                monitor.sending(act.session, key)
                try:
                    result = await session.send(marked(act.session, text * times), key=key)
                finally:
                    monitor.not_sending(act.session, key)
                return await self._told(act, result, key, since_s)
            case Cancel():
                await session.cancel(key=key)
            case Abandon(text=text, after_s=after_s):
                sending = asyncio.ensure_future(session.send(marked(act.session, text), key=key))
                done, _ = await asyncio.wait([sending], timeout=after_s)
                if not done:
                    sending.cancel()
                    await asyncio.wait([sending])
                if not sending.cancelled():
                    return await self._told(act, sending.result(), key, since_s)
                monitor.effects.results.given_up(act.session, key)
            case Decide():
                await self._decide(act, key, session, runtime)
            case Respond(how=how):
                await self._respond(how, key, session)
            case Clear():
                await session.clear(key=key)
                await monitor.cleared(act.session, key)
            case Watch():
                watching = self._progress.watching[index]
                monitor.exercised.add("FOLLOW")
                await watching.follow(session, max(0.0, act.at_s + act.for_s - world.now_s()))
                for problem in watching.problems:
                    monitor.note("FOLLOW", stream_name(SESSION_KIND, session.id), problem)
        return "done"

    async def _decide(self, act: Decide, key: str, session: Session[Any], runtime: AgentRuntime) -> None:
        for waiting in await session.approvals():
            arguments: dict[str, Any] | None = None
            if act.allow and act.edit:
                agents = with_subagents(runtime.agent)
                spec = next(tool.spec for agent in agents for tool in agent.all_tools() if tool.name == waiting.tool)
                arguments = arguments_for(spec, random.Random(f"{key} {waiting.call}"))
                self._monitor.effects.results.decided(waiting.session, waiting.call, allowed=True, arguments=arguments)
            deciding = partial(session.decide, waiting.call, allow=act.allow, key=f"{key} {waiting.call}")
            if arguments is None or not await _is_taken(deciding(arguments=arguments)):
                await deciding()

    async def _respond(self, how: AnswerKind, key: str, session: Session[Any]) -> None:
        for asked in await session.questions(below=False):
            schema, stream = asked.answer_schema, stream_name(SESSION_KIND, session.id)
            misfit = misfit_for(schema) if how == "misfits" else None
            if misfit is not None and await _is_taken(session.answer(asked, misfit)):
                self._monitor.note("EVIDENCE", stream, f"an answer to {asked.id} is taken that does not fit its schema")
            # An act that is tried again gives the same answer under the same key.
            value = value_for(schema, random.Random(f"{self._world.scenario.seed} {key} {asked.id}"))
            answers = [] if how == "error" else [(value, None)]
            for answer, error in (*answers, (None, "nobody knows")):
                self._monitor.effects.results.gives(session.id, asked.id, answer if error is None else error)
                if await _is_taken(session.answer(asked, answer, error=error, key=f"{key} {asked.id}")):
                    await self._monitor.answered_question(session.id, asked.id)
                    break

    async def _told(self, act: AnyAct, result: RunResult, key: str, since_s: float) -> str:
        await self._monitor.look_for(act.session, result)
        self._monitor.told(act.session, result, self._number, key=key, since_s=since_s)
        return type(result.outcome).__name__

    async def _look(self, runtime: AgentRuntime, session_id: str) -> None:
        """Look at a session after an error: what it shows is in the log."""
        try:
            shown = await (await runtime.session(session_id)).history()
        except (PersistenceError, AskTimeout, ActorStopped, CommandRejected):
            return
        known = self._monitor.state_of(session_id)
        said = sum(len(marks_in(message.content)) for message in shown)
        recorded = sum(len(marks_in(message.content)) for message in known.messages) if known is not None else 0
        if said > recorded:
            what = f"{said} inputs are shown, of which the log has {recorded}"
            self._monitor.note("INV6", stream_name(SESSION_KIND, SessionId(session_id)), what)

    def _require_excuse(self, error: Exception) -> None:
        """Raise an error that a client was not answered in time, unless the log was slow for as long."""
        happened = self._world.plan.happened()
        slow_s = sum(fault.seconds for fault in happened if isinstance(fault, faults.AppendIsSlow))
        if isinstance(error, AskTimeout) and slow_s < ASK_S:
            raise error

    def _begin_repetition(self, runtime: AgentRuntime, repetition: Repetition) -> None:
        name = f"act {repetition.index} again"
        self._acts.append(asyncio.get_running_loop().create_task(self._repeat(runtime, repetition), name=name))

    async def _repeat(self, runtime: AgentRuntime, repetition: Repetition) -> None:
        """Repeat what a client does, as a network does that delivers a message twice."""
        await asyncio.sleep(max(0.0, repetition.due_s - self._world.now_s()))
        act = self._progress.acts[repetition.index]
        if isinstance(act, Abandon):
            act = Say(session=act.session, text=act.text)
        told, left = await self._insisting(runtime, act, repetition.index) is not None, self._progress.repetitions
        if told and repetition in left:  # Another process may have been told too.
            left.remove(repetition)

    async def _all_over(self, runtime: AgentRuntime, acts: Sequence[asyncio.Task[None]]) -> None:
        """Return when nothing is open any more; runs that wait for a person get a decision."""
        scenario = self._progress.scenario
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
                self._monitor.note("LIVENESS", ", ".join(open_now or ()), not_over)
            if any("forgive" in (runtime.system.unreachable_because(stream) or "") for stream in open_now or ()):
                self._ending.set()  # A session that failed too often stays stopped until the process starts again.
            self._have_questions_answered(runtime)
            if self._world.is_calm():
                await self._resume_what_waits(runtime, open_now or ())
            await asyncio.sleep(LOOK_S)
        # So that no fault of the plan hits who only looks.
        await asyncio.sleep(max(0.0, scenario.calm_s - self._world.now_s()))
        self._monitor.exercised.add("LIVENESS")
        for session_id in self._monitor.changed():
            await self._compare(runtime, session_id)

    def _have_questions_answered(self, runtime: AgentRuntime) -> None:
        """Bring an act for each question that is open and that none answers yet."""
        progress, has_people = self._progress, any(isinstance(act, Respond) for act in self._progress.scenario.acts)
        for question in self._monitor.questions() if not has_people or self._world.is_calm() else ():
            place = progress.asked.get(question)
            if place is not None and place not in progress.outcomes:
                continue
            chance = self._world.chance(f"answer {question}")
            at_s = self._world.now_s() + chance.uniform(0.5, 60.0)
            ways: tuple[AnswerKind, ...] = ("fits", "fits", "misfits", "error")
            progress.asked[question] = len(progress.acts)
            progress.acts.append(Respond(session=question[0], at_s=at_s, how=chance.choice(ways)))
            self._begin_act(runtime, progress.asked[question])

    async def _open_streams(self) -> list[str] | None:
        """Return the streams in which something is in flight, or None if the disk does not let us see."""
        try:
            heads = await self._world.disk.list_streams(prefix=f"{SESSION_KIND}/", with_pending=True)
        except PersistenceError:
            return None
        return [head.stream for head in heads]

    async def _resume_what_waits(self, runtime: AgentRuntime, open_now: Sequence[str]) -> None:
        waiting = (kind_and_identifier(stream)[1] for stream in open_now)
        for session_id in dict.fromkeys((*self._progress.scenario.sessions(), *waiting)):
            known = self._monitor.state_of(session_id)
            if known is not None and (known.run is None or _goes_on_by_itself(known)):
                continue  # To look at the session would wake it, which may be what it lacks.
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
        self._monitor.exercised.update(("INV6", "FOLLOW"))
        state, stream = await session.state_at(), stream_name(SESSION_KIND, SessionId(session_id))
        payloads = await self._world.disk.read_payloads(stored_hashes(state.messages))
        if await session.history() != all_restored(state.messages, payloads):
            self._monitor.note("INV6", stream, "the history that is shown is not what the log adds up to")
        async with session.follow(after_version=0) as followed:
            followed.end()  # What happens from now on is not waited for.
            seen = [item.version async for item in followed if isinstance(item, RecordedEvent)]
        if seen != list(range(1, state.version + 1)):
            self._monitor.note("FOLLOW", stream, f"who follows the session from its beginning sees the versions {seen}")
