"""The life of one runtime: how its log and its actors are opened, and how all of it ends, on every path.

Read `refold.context` for what is open in between, and `refold.takeover` for what an earlier runtime has left. The
rules: what was taken is let go of in the reverse order, also where opening fails half-way; a run that does not reach
the log within the close grace is left open, to go on at the next start; and no forked child stops the loop that it
inherited, since on Linux an epoll instance is shared after a fork: a child that closes its copy of a loop, as by
returning into its parent's `asyncio.run`, takes the parent's descriptors out of it, and the parent sleeps for ever.
"""

import asyncio
import logging
import os
import select
import selectors
from collections.abc import Sequence
from functools import partial
from weakref import WeakSet

from refold.actors.agent.deps import Dependencies
from refold.actors.effects import EffectsInFlight, once_log_allows
from refold.actors.event_sourced import EventSourcedActor
from refold.actors.hosting import Host
from refold.actors.journal import Journal
from refold.actors.kernel.clock import SystemClock
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.kernel.ref import ActorRef
from refold.actors.kernel.supervision import ActorFailure, Background
from refold.actors.kernel.system import ActorSystem, ended_without_fail
from refold.actors.snapshots import Snapshots
from refold.actors.thread_pool import ThreadPool
from refold.agents.agent import AnyAgent
from refold.agents.opened_deps import OpenedDeps
from refold.context import ActorReach, RuntimeContext
from refold.events.core.cleaning import clean_text, without_addresses
from refold.events.core.errors import BackpressureShed, ConfigError, LogInUse, PersistenceError, RefoldError
from refold.events.core.ids import SessionId, checked_identifier, kind_and_identifier
from refold.events.core.pure_core import keys_of
from refold.events.core.records import StreamHead
from refold.events.kinds.runtime import (
    RUNTIME_CODEC,
    RUNTIME_CORE,
    RUNTIME_STREAM,
    ActorFailed,
    RuntimeClosed,
    RuntimeStarted,
)
from refold.events.model.configuration import CORE_VERSION, CodeIdentity
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import is_scheduled
from refold.guarded_store import ContainedStore
from refold.keeping.deletion import Deletion, delete_in
from refold.metrics.live import RuntimeMetrics
from refold.options import Settings, log_path
from refold.publishing.event_bus import EventBus
from refold.remote.bell import Bell, bell_of
from refold.remote.follow import POLL_S
from refold.remote.guest import Guest, opened_to_own
from refold.remote.owner import InboxReader
from refold.running_agents import LateTools, RunningAgents
from refold.sessions.access import cancel_runs_of
from refold.sessions.turn_checkpoints import StepSnapshots
from refold.stores.event_store import EventStore
from refold.stores.memory import InMemoryStore
from refold.stores.sqlite.file import absolute
from refold.stores.sqlite.ownership import log_owner
from refold.stores.sqlite.store import SQLiteStore
from refold.takeover import ended_in_order, note_lost_recalls, resume_open_runs
from refold.version import __version__

log = logging.getLogger("refold.runtime")


class Lifecycle:
    """Opens a runtime once, and ends it once.

    Args:
        agent: that it runs, with those that its tools lead to.
        settings: of the runtime.

    Raises:
        ConfigError: agents or their tools do not fit together.
    """

    def __init__(self, agent: AnyAgent, settings: Settings) -> None:
        self.event_bus = EventBus()
        self.metrics = RuntimeMetrics(lambda: self.context)
        self._settings = settings
        self._pool = ThreadPool(settings.tool_threads, name="refold-tool")
        self._approval_pool = ThreadPool(settings.tool_threads, name="refold-approval")
        self.agents = RunningAgents(agent, self._pool)
        snapshots = settings.step_snapshots
        self.step_snapshots = StepSnapshots(snapshots) if snapshots is not None else None
        self._dependencies = Dependencies()
        self._opened = OpenedDeps([found.agent for found in self.agents], settings.deps)
        self._in_flight = EffectsInFlight()
        self._context: RuntimeContext | None = None
        self._owns_store = False
        self._entered = False
        self._closing: asyncio.Task[None] | None = None
        self._resuming: Background | None = None
        self._late: LateTools | None = None
        self._inbox: InboxReader | None = None
        self._bell: Bell | None = None
        self.guest: Guest | None = None
        """Reaches the owner of a shared log; None = this runtime is the owner, or is not open."""
        self._former_guest: Guest | None = None
        self._taking_over: Background | None = None

    @property
    def context(self) -> RuntimeContext:
        """What the parts of the runtime share.

        Raises:
            ConfigError: the runtime is not open.
        """
        if self._context is None:
            raise ConfigError("the runtime is not open; use it inside `async with`, or `with`")
        return self._context

    @property
    def host(self) -> Host:
        """Hosts event-sourced actors beside the sessions.

        Raises:
            ConfigError: the runtime is not open.
        """
        context = self.context
        return Host(context.system, context.journal, self._in_flight, self._settings.cancel_grace_s)

    @property
    def commits(self) -> int:
        """Transactions that were written to the log since the runtime opened."""
        return self._context.journal.commits if self._context is not None else 0

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""
        return self._closing is not None

    def require_open(self) -> None:
        """Do nothing while the runtime takes commands.

        Raises:
            ConfigError: it has never been open, or belongs to another event loop or the parent process.
            ActorStopped: it is closed or closing.
        """
        system = self.context.system  # Raises where the runtime has never been open.
        if os.getpid() != self._pid:
            raise ConfigError("this process was forked from the runtime's; open another log here")
        if asyncio._get_running_loop() is not system.loop:  # None in a thread without one.
            raise ConfigError("this runtime lives on another event loop; use it there, or what its `with` gives")
        if self._closing is not None:
            raise ActorStopped(RUNTIME_STREAM, "the runtime is closed; open a new one on the same log")

    def require_owner(self, what: str) -> None:
        """Do nothing where this runtime owns its log.

        Raises:
            ConfigError: another process owns the shared log, and only the owner can do this.
        """
        self.require_open()
        if self.guest is not None:
            owner = log_owner(self.guest.log)
            who = f"process {owner.pid}" if owner is not None else "another process"
            raise ConfigError(f"{what} is for the process that owns the shared log, which is {who} now")

    async def delete(self, session: str, *, cancel: bool, forks: bool) -> Deletion:
        """Delete a session, here or in the process that owns the log."""
        self.require_open()
        if self.guest is not None:
            return await self.guest.delete(checked_identifier(session, "session id"), cancel=cancel, forks=forks)
        return await delete_in(self.context, session, cancel=cancel, forks=forks)

    async def tools_in_force(self) -> None:
        """Return when the tools that were registered or removed so far are so for every input that is sent now."""
        if self._late is not None:
            await self._late.in_force()

    # Opening

    async def open(self) -> None:
        """Open the log and start the actors.

        Raises:
            ConfigError: that was done before; or what an agent depends on cannot be opened.
            LogInUse: another runtime has the log.
            PersistenceError: the log cannot be opened, read or written.
            AskTimeout: the log takes too long to write.
        """
        if self._entered:
            raise ConfigError("this runtime has been open already; make another one")
        self._entered = True
        self._pid = os.getpid()
        protect_from_children(asyncio.get_running_loop())
        try:
            system = self._new_system()
            if self._settings.share:
                await self._open_shared(system)
            else:
                store, self._owns_store = await opened_store(self._settings)
                self._context = self._context_of(store, system)
            if self.guest is None:
                await self._own(self.context)
            else:
                self._taking_over = system.background("wait for the log", self._take_over)
        except BaseException:
            await self._release()
            raise

    async def _own(self, context: RuntimeContext) -> None:
        if self._settings.share:
            log.info("process %d owns the log %s", os.getpid(), context.store.name)
        await self._opened.open(self._dependencies, context.system)
        await self._start(context)

    async def _open_shared(self, system: ActorSystem) -> None:
        """Own the log, or be a guest of its owner.

        Raises:
            PersistenceError: it can be neither written nor read, also not once its owner had the time to make it.
        """
        settings, clock = self._settings, system.clock
        until_s = clock.monotonic_s() + settings.wait_for_log_s
        while self._context is None:
            try:
                self._context = self._context_of(await opened_to_own(settings), system)
            except LogInUse:
                try:
                    self.guest = await Guest.open(settings, system, self.event_bus)
                except PersistenceError:
                    if clock.monotonic_s() >= until_s:
                        raise
                    await clock.sleep(POLL_S)  # Its owner is about to make it, or to end.
                else:
                    self._context = self._context_of(self.guest.store, system)
            self._owns_store = True

    async def _take_over(self) -> None:
        """Own the log once no other runtime does; a runtime that cannot closes, so that another one may."""
        guest, context = self.guest, self.context
        assert guest is not None
        store = None
        try:
            if self._former_guest is not None:
                raise ConfigError("other code cancelled it")
            store = await guest.owned()
            self._former_guest = guest
            await guest.taken_over(store)
            self.event_bus.begin_life()
            context.store, context.journal = store, self._journal_of(store, context.system)
            await self._own(context)
            context.reach, context.has_hooks = ActorReach(context.system), self._has_hooks
            self.guest = None
        except BaseException as error:
            if store is not None and context.store is not store:
                await store.close()
            if self._closing is not None or not isinstance(error, Exception):
                raise
            log.critical("the log %s cannot be taken over, and the runtime closes: %s", context.store.name, error)
            closing = self._close(context, cancel=False)
            self._closing = asyncio.get_running_loop().create_task(closing, name="close the runtime")

    def _new_system(self) -> ActorSystem:
        settings = self._settings
        return ActorSystem(
            clock=settings.clock,
            ask_timeout_s=settings.ask_timeout_s,
            restarts_max=settings.restarts_max,
            restart_window_s=settings.restart_window_s,
            close_grace_s=settings.close_grace_s,
            mailbox_capacity=settings.mailbox_capacity,
            passivate_after_s=settings.passivate_after_s,
            live_max=settings.live_max,
            on_failure=self._actor_failed,
        )

    @property
    def _has_hooks(self) -> bool:
        return any(found.hooks is not None for found in self.agents)

    def _journal_of(self, store: EventStore, system: ActorSystem) -> Journal:
        every, journal = self._settings.snapshot_every, Journal(store, self.agents.redaction)
        journal.snapshots = Snapshots(store, every, system.background) if every is not None else None
        return journal

    def _context_of(self, store: EventStore, system: ActorSystem) -> RuntimeContext:
        agents = self.agents
        self.event_bus.redaction = agents.redaction
        for found in agents:
            if found.hooks is not None:
                found.hooks.publish = self.event_bus.progressed
        return RuntimeContext(
            settings=self._settings,
            store=store,
            journal=self._journal_of(store, system),
            system=system,
            reach=self.guest or ActorReach(system),
            event_bus=self.event_bus,
            dependencies=self._dependencies,
            in_flight=self._in_flight,
            agents=tuple(agents.agents),
            output_types={name: each.output_type for name, each in agents.agents.items()},
            has_hooks=self._has_hooks and self.guest is None,  # The owner calls them.
            hooks_of=lambda agent: (agents.main if agent is None else agents[agent]).hooks,
            tools_of=lambda agent: (agents.main if agent is None else agents[agent]).tools,
            tools_in_force=self.tools_in_force,
            require_open=self.require_open,
            require_owner=self.require_owner,
            is_closing=self.is_closing,
            failed_appends_of=self.metrics.failed_appends_of,
            configured_payloads=lambda: agents.configured_payloads,
            forget_steps=self._forget_steps,
        )

    async def _forget_steps(self, sessions: Sequence[SessionId]) -> int:
        return await self.step_snapshots.forget(sessions) if self.step_snapshots is not None else 0

    async def _start(self, context: RuntimeContext) -> None:
        store, journal, agents = context.store, context.journal, self.agents
        journal.observer = self.metrics
        code = CodeIdentity(refold=__version__, core=CORE_VERSION, app=self._settings.app_version)
        after_order = await ended_in_order(store)
        settings = await agents.settings(journal, code, self._settings, after_order=after_order)

        async def renew() -> None:
            settings.update(await agents.settings(journal, code, self._settings, after_order=after_order))

        agents.register(context, settings, self._approval_pool)
        note = await context.system.start(
            EventSourcedActor, RUNTIME_CORE, RUNTIME_CODEC, journal, address=RUNTIME_STREAM
        )
        await note.ask(RuntimeStarted(code=code), block=False)
        self._late = await agents.attach(self.host, renew)
        if self.step_snapshots is not None:
            self.step_snapshots.begin(store, self.event_bus.subscribe, context.system.background)
        path = log_path(self._settings)
        if path is not None and self._settings.inbox_poll_s:
            assert isinstance(store, SQLiteStore)
            inbox = self._inbox = InboxReader(context, absolute(path))
            bell = await bell_of(store, absolute(path), self.event_bus, rung=inbox.look, perform=inbox.perform_given)
            self._bell = inbox.bell = bell
        self._resuming = context.system.background("resume open runs", lambda: self._resume(context, note))
        if self._inbox is not None:
            self._inbox.start(self._settings.inbox_poll_s)

    async def _resume(self, context: RuntimeContext, note: ActorRef) -> None:
        store = context.store
        try:
            if self._settings.auto_resume:
                resume = partial(resume_open_runs, context.system, self.event_bus, store)
                await once_log_allows(resume, context.system.clock, f"what was open in {store.name}")
        except PersistenceError as error:
            log.error("open runs of %s cannot be found and wait for their next message: %s", store.name, error)
        try:
            await note_lost_recalls(store, self.agents, note)
        except (PersistenceError, ActorStopped, AskTimeout) as error:
            log.error("recalls before a crash of %s are noted after the next start: %s", store.name, error)

    # Ending

    async def close(self, *, cancel: bool) -> None:
        """End the runtime; a second call waits for the first, and in a forked child nothing happens.

        Args:
            cancel: end open runs as cancelled, instead of leaving open those that do not end within the close grace.
        """
        if self._context is None or os.getpid() != self._pid:  # In a forked child there is nothing that runs.
            return
        if self._closing is None:
            closing = self._close(self._context, cancel)
            self._closing = asyncio.get_running_loop().create_task(closing, name="close the runtime")
        await ended_without_fail(self._closing, self._in_flight.hurry)

    async def _close(self, context: RuntimeContext, cancel: bool) -> None:
        system, grace_s = context.system, self._settings.close_grace_s
        try:
            if self._taking_over is not None:
                await self._taking_over.stop()
            if self.guest is not None:
                return
            if self._inbox is not None:
                await self._inbox.stop()
            if cancel:
                await _cancel_open_runs(context)
            await self._in_flight.drain(system.clock, grace_s)
            if self.step_snapshots is not None:
                await self.step_snapshots.close(system.clock, grace_s)
            self.event_bus.close()
            heads = await context.store.list_streams(prefix=f"{SESSION_KIND}/", with_pending=True)
            await system.ref(RUNTIME_STREAM).ask(RuntimeClosed(open_runs=sum(map(_has_open_run, heads))), block=False)
        except (PersistenceError, ActorStopped, AskTimeout, BackpressureShed) as error:
            log.warning("the end of the runtime of %s is not recorded: %s", context.store.name, error)
        finally:
            await self._release()

    async def _release(self) -> None:
        """Let go of everything, in the reverse order of how it was taken, on every path."""
        context = self._context
        self.event_bus.close()
        try:
            for guest in (self.guest, self._former_guest):
                if guest is not None:
                    await guest.close()
            if self._inbox is not None:
                await self._inbox.stop()
            if self.step_snapshots is not None and context is not None:
                await self.step_snapshots.close(context.system.clock, 0)
            if self._resuming is not None:
                await self._resuming.stop()
            if self._late is not None:
                await self._late.end()
            if context is not None:
                for address in await context.system.close():
                    log.warning("%s did not stop in time", address)
                self._in_flight.end()
        finally:
            try:
                if context is not None:
                    await self._opened.close(context.system.clock, self._settings.close_grace_s)
            finally:
                await self._release_log(context)

    async def _release_log(self, context: RuntimeContext | None) -> None:
        try:
            if context is not None:
                await context.journal.close()
                if context.journal.snapshots is not None:
                    await context.journal.snapshots.close(context.system.clock, self._settings.close_grace_s)
        finally:
            self.metrics.end()
            self.event_bus.end()
            for name in self._approval_pool.close():
                log.warning("the approval handler still thinks about %s in its thread", name)
            for name in self._pool.close():
                log.warning("the tool call %s still runs in its thread", name)
            if context is not None and self._owns_store:
                await context.store.close()
            elif context is not None and isinstance(context.store, ContainedStore):
                context.store.let_go()
            if self._bell is not None:  # Last, since it tells those who listen that the log is free.
                self._bell.close()

    # Failures of actors

    def _actor_failed(self, failure: ActorFailure) -> None:
        kind, identifier = kind_and_identifier(failure.address)
        if failure.stopped and kind == SESSION_KIND:
            self.event_bus.session_failed(SessionId(identifier), f"it was stopped: {failure.message}")
        if failure.address != RUNTIME_STREAM:
            self._record_failure(failure)
        notify = self._settings.on_failure
        if notify is not None:
            notify(failure)

    def _record_failure(self, failure: ActorFailure) -> None:
        fact = ActorFailed(
            address=failure.address,
            error=clean_text(failure.error_type),
            message=clean_text(without_addresses(failure.message))[:2000],
            restarts=failure.restarts,
            stopped=failure.stopped,
        )
        try:
            self.context.system.ref(RUNTIME_STREAM).tell(fact)
        except (ActorStopped, BackpressureShed) as error:
            log.warning("the failure of %s is not recorded: %s", failure.address, error)


async def opened_store(options: Settings) -> tuple[EventStore, bool]:
    """Return the log, and whether it is the runtime's to close."""
    log = options.log
    if isinstance(log, str | os.PathLike):
        if log == ":memory:":
            return InMemoryStore(), True
        store = await SQLiteStore.open(
            log,
            durability=options.durability,
            wait_for_log_s=options.wait_for_log_s,
            append_timeout_s=options.append_timeout_s,
            allow_shared_folder=options.allow_shared_folder,
        )
        return store, True
    bounded = type(log) in (InMemoryStore, SQLiteStore)
    return ContainedStore(log, options.clock or SystemClock(), None if bounded else options.append_timeout_s), False


async def _cancel_open_runs(context: RuntimeContext) -> None:
    heads = await context.store.list_streams(prefix=f"{SESSION_KIND}/", with_pending=True)
    working = [SessionId(kind_and_identifier(head.stream)[1]) for head in heads]
    waiting = context.event_bus.open_sessions()  # For a person, say: such a run has no effect in flight.
    live = [
        SessionId(identifier)
        for kind, identifier in map(kind_and_identifier, context.system.live())
        if kind == SESSION_KIND
    ]
    for session in dict.fromkeys([*working, *waiting, *live]):
        try:
            await cancel_runs_of(context, session, "the runtime closes")
        except RefoldError as error:  # It must not keep the runs of other sessions open.
            log.warning("the run of session %s is not cancelled and stays open: %s", session, error)


def _has_open_run(head: StreamHead) -> bool:
    """Tell whether a session waits for more than the times of inputs that were accepted for later."""
    return any(not is_scheduled(key) for key in keys_of(head.pending))


# State of the process by nature: a fork copies all of it.
_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def protect_from_children(loop: asyncio.AbstractEventLoop) -> None:
    """Keep a child that is forked from now on from doing anything to the loop of this process."""
    _loops.add(loop)


def _leave_loops_to_parent() -> None:
    """In a forked child: put an epoll instance of its own in the place of each that it shares with the parent."""
    if not hasattr(selectors, "EpollSelector"):  # Other kinds are not inherited, or are nobody's but the process's.
        return
    for loop in list(_loops):
        selector = getattr(loop, "_selector", None)
        if isinstance(selector, selectors.EpollSelector) and not loop.is_closed():
            with select.epoll() as own:
                os.dup2(own.fileno(), selector.fileno(), inheritable=False)
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_loops_to_parent)
