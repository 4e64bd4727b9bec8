"""The runtime: an agent with its subagents, one log, and the actors that work for their sessions.

Read `refold.sessions.session` for what a session can do, `refold.actors.agent.session` for the actor behind it, and
`AgentRuntime` for every setting. The rules: a runtime owns its log from `async with` to its end; whatever happens in
between, the log says where every run stands, and the next runtime goes on from there.
"""

import asyncio
import logging
import os
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, overload

from refold.actors.calls.middleware import Hooks
from refold.actors.calls.protocols import Provider
from refold.actors.effects import EffectsInFlight, Envelope, read_state
from refold.actors.event_sourced import EventSourcedActor
from refold.actors.hosting import Host
from refold.actors.journal import Journal
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.kernel.ref import ActorRef
from refold.actors.kernel.supervision import ActorFailure
from refold.actors.kernel.system import ActorSystem, ended_without_fail
from refold.actors.thread_pool import ThreadPool
from refold.agents.agent import Agent, AgentParts, agent_of, parts_and_rest
from refold.agents.skill import Skill, checked_skills
from refold.events.core.cleaning import clean_text
from refold.events.core.contract import Wait
from refold.events.core.errors import BackpressureShed, CommandRejected, ConfigError, PersistenceError, RefoldError
from refold.events.core.ids import RunId, SessionId, checked_identifier, kind_and_identifier, stream_name
from refold.events.core.records import StreamHead
from refold.events.kinds.runtime import (
    RUNTIME_CODEC,
    RUNTIME_CORE,
    RUNTIME_STREAM,
    ActorFailed,
    RuntimeClosed,
    RuntimeStarted,
)
from refold.events.model.configuration import CORE_VERSION, AgentConfig, CodeIdentity
from refold.events.session.commands import CancelRun
from refold.events.session.core import SESSION_KIND
from refold.events.session.react import pending
from refold.events.session.state import SessionState, is_scheduled
from refold.guarded_store import ContainedStore
from refold.lifecycle import ended_in_order, note_lost_recalls, opened_store, protect_from_children, resume_open_runs
from refold.metrics.live import RuntimeMetrics
from refold.options import RuntimeOptions, checked_options
from refold.remote.owner import InboxReader, reader_of
from refold.running_agents import LateTools, RunningAgents
from refold.sessions.event_bus import SessionHub, Subscriber
from refold.sessions.notifications import Recorded
from refold.sessions.reads import read_recorded
from refold.sessions.session import Session
from refold.sessions.subscription import CAPACITY, Subscription
from refold.sessions.turn_checkpoints import StepSnapshots
from refold.stores.event_store import EventStore
from refold.version import __version__

if TYPE_CHECKING:
    from refold.sync.runtime import SyncRuntime


class RuntimeArguments(AgentParts, RuntimeOptions, total=False):
    """All that `AgentRuntime` takes by keyword beside an `AgentConfig` and its provider."""


class AgentRuntime:
    """Runs an agent's sessions on one log; use it as `async with AgentRuntime(...) as runtime`.

    Where no event loop runs, `with AgentRuntime(...) as runtime` gives a `SyncRuntime`, on a loop of its own.

    Args:
        agent: the agent's configuration, or a whole `Agent`.
        provider: what answers model requests; with an `AgentConfig` only.
        options: those below, all of them optional; times are in seconds. With an `AgentConfig` also the rest of an
            agent, such as `tools`: see `Agent`.
        log: where events go: a path, `":memory:"`, or an open event store, which its owner closes; default
            `":memory:"`, which ends with the runtime.
        durability: `full` (default): what was acknowledged survives power loss. `normal`: it survives a crash of the
            process.
        wait_for_log_s: how long to wait for another runtime to release the log; default 30.
        append_timeout_s: after how long an append counts as hanging; default 30.
        inbox_poll_s: how often a runtime whose log is a file looks for commands of other processes; default 0.2, 0 =
            never.
        auto_resume: whether runs that an earlier process left open go on by themselves; default True, else
            `Session.resume`.
        app_version: the application's own version, recorded with each run; default None.
        deps: given to tools as `ToolContext.deps`; default None.
        cancel_grace_s: how long a cancelled effect may take to end before it is abandoned; default 5.
        close_grace_s: how long `close` waits for running effects to reach the log; default 5.
        ask_timeout_s: after how long an unanswered ask fails; default 30.
        mailbox_capacity: most messages that may wait for one actor, such as a session; what comes then is shed; default
            10,000.
        passivate_after_s: how long a session is idle before it leaves memory; its next message reads it from the log
            again; default 60, None = it stays.
        live_max: most actors in memory before idle sessions are let go, longest idle first; default 10,000, None = any
            number.
        tool_threads: most synchronous tools that run at once; default 32.
        subagent_depth_max: most levels of subagents below a session, whose calls begin children of children; default 5,
            0 = none.
        restarts_max: restarts of a failing actor within `restart_window_s` before it is stopped; default 5.
        restart_window_s: the seconds in which restarts are counted; default 60.
        clock: where time comes from; default None, the machine's.
        session_ids: makes the ids of sessions that are opened without one; default None, random UUIDs.
        on_failure: called with each failure of an actor; default None.
        step_snapshots: where a checkpoint goes after every turn; default None, nowhere.

    Raises:
        ConfigError: something is missing or cannot work.
    """

    log = logging.getLogger("refold.runtime")

    @overload
    def __init__(self, agent: AgentConfig, *, provider: Provider, **options: Unpack[RuntimeArguments]) -> None: ...
    @overload
    def __init__(self, agent: Agent, **options: Unpack[RuntimeOptions]) -> None: ...
    def __init__(
        self,
        agent: AgentConfig | Agent | None = None,
        *,
        provider: Provider | None = None,
        **options: Unpack[RuntimeArguments],
    ) -> None:
        parts, rest = parts_and_rest(options)
        self.agent = agent_of(agent, provider, parts)
        self.options = checked_options(rest)
        self.hub = SessionHub()
        self.metrics = RuntimeMetrics(self)
        self._pool = ThreadPool(self.options.tool_threads, name="refold-tool")
        self._approval_pool = ThreadPool(self.options.tool_threads, name="refold-approval")
        self._agents = RunningAgents(self.agent, self._pool)
        self.agents = self._agents.agents
        self.tools = self._agents.main.tools
        self._in_flight = EffectsInFlight()
        snapshots = self.options.step_snapshots
        self.step_snapshots = StepSnapshots(snapshots) if snapshots is not None else None
        self._store: EventStore | None = None
        self._system: ActorSystem | None = None
        self._journal: Journal | None = None
        self._owns_store = False
        self._entered = False
        self._closing: asyncio.Task[None] | None = None
        self._resuming: asyncio.Task[None] | None = None
        self._late: LateTools | None = None
        self._inbox: InboxReader | None = None

    @property
    def store(self) -> EventStore:
        """The log.

        Raises:
            ConfigError: the runtime is not open.
        """
        if self._store is None:
            raise ConfigError("the runtime is not open; use it inside `async with`, or `with`")
        return self._store

    @property
    def system(self) -> ActorSystem:
        """The actors.

        Raises:
            ConfigError: the runtime is not open.
        """
        if self._system is None:
            raise ConfigError("the runtime is not open; use it inside `async with`, or `with`")
        return self._system

    @property
    def host(self) -> Host:
        """Hosts event-sourced actors beside the sessions, on the same log: `await runtime.host("book", OrderBook)`.

        Raises:
            ConfigError: the runtime is not open.
        """
        system = self.system  # Raises where the runtime is not open.
        assert self._journal is not None
        return Host(system, self._journal, self._in_flight, self.options.cancel_grace_s)

    @property
    def skills(self) -> tuple[Skill, ...]:
        """The agent's skills, in name order."""
        return checked_skills(self.agent.skills)

    @property
    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closing is not None

    @property
    def commits(self) -> int:
        """Transactions that were written to the log since the runtime opened."""
        return self._journal.commits if self._journal is not None else 0

    @property
    def has_hooks(self) -> bool:
        """Whether any of its agents has middleware."""
        return any(found.hooks is not None for found in self._agents)

    def hooks_of(self, agent: str | None) -> Hooks | None:
        """Return the middleware of an agent, by its name; None = of the main one, whose sessions users begin."""
        return (self._agents.main if agent is None else self._agents[agent]).hooks

    def require_open(self) -> None:
        """Do nothing while the runtime takes commands.

        Raises:
            ConfigError: it has never been open, or belongs to another event loop or the parent process.
            ActorStopped: it is closed or closing.
        """
        system = self.system  # Raises where the runtime has never been open.
        if os.getpid() != self._pid:
            raise ConfigError("this process was forked from the runtime's; open another log here")
        if asyncio._get_running_loop() is not system.loop:  # None in a thread without one.
            raise ConfigError("this runtime lives on another event loop; use it there, or what its `with` gives")
        if self._closing is not None:
            raise ActorStopped(RUNTIME_STREAM, "the runtime is closed; open a new one on the same log")

    async def tools_in_force(self) -> None:
        """Return when the tools that were registered or removed so far are so for every input that is sent now."""
        if self._late is not None:
            await self._late.in_force()

    async def open(self) -> Self:
        """Open the runtime where no block can hold it, as in a notebook, and return it; `close` ends it.

        Raises:
            ConfigError: it has been open already.
            LogInUse: another runtime has the log.
            PersistenceError: the log cannot be opened, read or written.
            AskTimeout: the log takes too long to write.
        """
        return await self.__aenter__()

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ConfigError("this runtime has been open already; make another one")
        self._entered = True
        self._pid = os.getpid()
        protect_from_children(asyncio.get_running_loop())
        try:
            self._store, self._owns_store = await opened_store(self.options)
            await self._start(self._store)
        except BaseException:
            await self._release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> "SyncRuntime":
        from refold.sync.runtime import SyncRuntime

        face = SyncRuntime(self)
        self._face = face
        return face

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._face.close()

    async def _start(self, store: EventStore) -> None:
        options = self.options
        self._system = ActorSystem(
            clock=options.clock,
            ask_timeout_s=options.ask_timeout_s,
            restarts_max=options.restarts_max,
            restart_window_s=options.restart_window_s,
            close_grace_s=options.close_grace_s,
            mailbox_capacity=options.mailbox_capacity,
            passivate_after_s=options.passivate_after_s,
            live_max=options.live_max,
            on_failure=self._actor_failed,
        )
        self._journal = Journal(store)
        self._journal.observer = self.metrics
        code = CodeIdentity(refold=__version__, core=CORE_VERSION, app=options.app_version)
        after_order = await ended_in_order(store)
        agents, journal = self._agents, self._journal
        settings = await agents.settings(journal, code, options, after_order=after_order)

        async def renew() -> None:
            settings.update(await agents.settings(journal, code, options, after_order=after_order))

        self._agents.register(self, self._journal, self._in_flight, settings, self._approval_pool)
        note = await self._system.start(
            EventSourcedActor, RUNTIME_CORE, RUNTIME_CODEC, self._journal, address=RUNTIME_STREAM
        )
        await note.ask(RuntimeStarted(code=code), block=False)
        self._late = await agents.attach(self.host, renew)
        if self.step_snapshots is not None:
            self.step_snapshots.begin(store, self.hub.subscribe)
        self._resuming = asyncio.get_running_loop().create_task(self._resume(store, note), name="resume open runs")
        self._inbox = reader_of(self)

    async def _resume(self, store: EventStore, note: ActorRef) -> None:
        try:
            if self.options.auto_resume:
                await resume_open_runs(self.system, self.hub, store)
        except PersistenceError as error:
            self.log.error("open runs of %s cannot be found and wait for their next message: %s", store.name, error)
        try:
            await note_lost_recalls(store, self._agents, note)
        except (PersistenceError, ActorStopped, AskTimeout) as error:
            self.log.error("recalls before a crash of %s are noted after the next start: %s", store.name, error)

    async def session(self, session_id: str | None = None, *, restore: bool = False) -> Session:
        """Return a session: a new one, or one that is in the log.

        Args:
            session_id: any text of 1 to 512 UTF-8 bytes without NUL; None = a new id is made.
            restore: the session must be in the log.

        Raises:
            ConfigError: the id cannot be one, or `restore` is set and the log has no such session.
        """
        self.require_open()
        if session_id is None:
            make = self.options.session_ids
            session_id = make() if make is not None else str(uuid.uuid4())
        session = Session(self, SessionId(checked_identifier(session_id, "session id")))
        if restore and await self.store.head(stream_name(SESSION_KIND, session.id)) is None:
            raise ConfigError(f"the log {self.store.name} has no session {session_id!r}")
        return session

    async def forget(self, session_id: str) -> None:
        """Let go of what memory holds of a session; the log keeps it, and its next message brings it back.

        Raises:
            CommandRejected: something of it goes on or is waited for.
        """
        self.require_open()
        stream = stream_name(SESSION_KIND, SessionId(checked_identifier(session_id, "session id")))
        if stream not in self.system.live():
            return
        ref = self.system.ref(stream)
        waited = await read_state(ref, _goes_on)
        if waited:
            raise CommandRejected(f"session {session_id!r} cannot be forgotten while it waits for {waited[0]}")
        await ref.stop(block=False)

    async def sessions(self) -> list[SessionId]:
        """Return the ids of all sessions in the log, in code-point order."""
        heads = await self.store.list_streams(prefix=f"{SESSION_KIND}/")
        return [SessionId(kind_and_identifier(head.stream)[1]) for head in heads]

    def subscribe(self, subscriber: Subscriber, *, session: str | None = None) -> Callable[[], None]:
        """Call `subscriber` on the loop with each event of one session, or of all; return what ends that.

        Events are durable when they are passed on. What the subscriber raises is logged and counted.
        """
        return self.hub.subscribe(subscriber, SessionId(session) if session is not None else None)

    def follow(self, *, capacity: int = CAPACITY) -> Subscription:
        """Return an async iterator of what happens in all sessions from now on; see `Session.follow` for one.

        It yields `RecordedEvent`, `Streamed`, `Progressed` and `Missed`, never slows a run, and loses no event.

        Args:
            capacity: how many items may wait for the reader, >= 1. Pieces of answers and reports of tools that find
                no room are left out, and counted in a `Missed`; events are then read from the log.

        Raises:
            ConfigError: the capacity is none, or the runtime is not open.
            ActorStopped: the runtime is closed.
        """
        self.require_open()
        return Subscription(self.hub, self.recorded_after, None, capacity=capacity)

    async def recorded_after(self, session: SessionId, version: int, limit: int) -> list[Recorded]:
        """Return the next `limit` events of a session after a version, or those there are.

        Raises:
            PersistenceError: the log cannot be read.
        """
        return await read_recorded(self.store, stream_name(SESSION_KIND, session), after_version=version, limit=limit)

    async def close(self, *, cancel: bool = False) -> None:
        """End the runtime; a second call waits for the first, and in a forked child nothing happens.

        Effects that run get the close grace to reach the log; what has not by then is abandoned, and its run is
        left open, to go on at the next start. Who is cancelled meanwhile gives up the grace, not the end.

        Args:
            cancel: end open runs as cancelled instead.
        """
        if self._store is None or os.getpid() != self._pid:  # In a forked child there is nothing that runs.
            return
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(cancel), name="close the runtime")
        await ended_without_fail(self._closing, self._in_flight.hurry)

    async def _close(self, cancel: bool) -> None:
        try:
            if self._inbox is not None:
                await self._inbox.stop()
            if cancel:
                await self._cancel_open_runs()
            await self._in_flight.drain(self.system.clock, self.options.close_grace_s)
            if self.step_snapshots is not None:
                await self.step_snapshots.close(self.system.clock, self.options.close_grace_s)
            self.hub.close()
            heads = await self.store.list_streams(prefix=f"{SESSION_KIND}/", with_pending=True)
            await self.system.ref(RUNTIME_STREAM).ask(
                RuntimeClosed(open_runs=sum(map(_has_open_run, heads))), block=False
            )
        except (PersistenceError, ActorStopped, AskTimeout, BackpressureShed) as error:
            self.log.warning("the end of the runtime of %s is not recorded: %s", self.store.name, error)
        finally:
            await self._release()

    async def _cancel_open_runs(self) -> None:
        heads = await self.store.list_streams(prefix=f"{SESSION_KIND}/", with_pending=True)
        working = [SessionId(kind_and_identifier(head.stream)[1]) for head in heads]
        waiting = self.hub.open_sessions()  # For a person, say: such a run has no effect in flight.
        live = [
            SessionId(identifier)
            for kind, identifier in map(kind_and_identifier, self.system.live())
            if kind == SESSION_KIND
        ]
        for session in dict.fromkeys([*working, *waiting, *live]):
            try:
                await self._cancel_runs_of(session)
            except RefoldError as error:  # It must not keep the runs of other sessions open.
                self.log.warning("the run of session %s is not cancelled and stays open: %s", session, error)

    async def _cancel_runs_of(self, session: SessionId) -> None:
        """Cancel the run under way, and those that begin in its place."""
        ref = self.system.ref(stream_name(SESSION_KIND, session))
        while (run := await read_state(ref, _open_run, vital=True)) is not None:  # Behind all that waits there.
            with self.hub.follow(session) as follower:
                await ref.ask(Envelope(CancelRun(run=run, reason="the runtime closes"), vital=True), block=False)
                await follower.ended(run)

    async def _release(self) -> None:
        """Let go of everything, in the reverse order of how it was taken, on every path."""
        self.hub.close()
        try:
            if self._inbox is not None:
                await self._inbox.stop()
            if self.step_snapshots is not None and self._system is not None:
                await self.step_snapshots.close(self._system.clock, 0)
            if self._resuming is not None:
                self._resuming.cancel()
                await asyncio.wait([self._resuming])
            if self._late is not None:
                await self._late.end()
            if self._system is not None:
                for address in await self._system.close():
                    self.log.warning("%s did not stop in time", address)
                self._in_flight.end()
        finally:
            try:
                if self._journal is not None:
                    await self._journal.close()
            finally:
                self.metrics.end()
                self.hub.end()
                for name in self._approval_pool.close():
                    self.log.warning("the approval handler still thinks about %s in its thread", name)
                for name in self._pool.close():
                    self.log.warning("the tool call %s still runs in its thread", name)
                if self._store is not None and self._owns_store:
                    await self._store.close()
                elif isinstance(self._store, ContainedStore):
                    self._store.let_go()

    def _actor_failed(self, failure: ActorFailure) -> None:
        kind, identifier = kind_and_identifier(failure.address)
        if failure.stopped and kind == SESSION_KIND:
            self.hub.session_failed(SessionId(identifier), f"it was stopped: {failure.message}")
        if failure.address != RUNTIME_STREAM:
            self._record_failure(failure)
        notify = self.options.on_failure
        if notify is not None:
            notify(failure)

    def _record_failure(self, failure: ActorFailure) -> None:
        fact = ActorFailed(
            address=failure.address,
            error=clean_text(failure.error_type),
            message=clean_text(failure.message)[:2000],
            restarts=failure.restarts,
            stopped=failure.stopped,
        )
        try:
            self.system.ref(RUNTIME_STREAM).tell(fact)
        except (ActorStopped, BackpressureShed) as error:
            self.log.warning("the failure of %s is not recorded: %s", failure.address, error)


def _goes_on(state: SessionState) -> list[str]:
    """Return the keys of what ends by itself, or by somebody whom a handler asks."""
    return [effect.key for effect in pending(state) if type(effect) is not Wait]


def _open_run(state: SessionState) -> RunId | None:
    return state.run.id if state.run is not None else None


def _has_open_run(head: StreamHead) -> bool:
    """Tell whether a session waits for more than the times of inputs that were accepted for later."""
    return any(not is_scheduled(key) for key in head.pending)
