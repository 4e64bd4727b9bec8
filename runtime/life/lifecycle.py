"""The life of one runtime: how its log and its actors are opened, and how all of it ends, on every path.

Read `refold.context` for what is open in between, and `refold.life.owner` for what an owner does. The rules: what was
taken is let go of in the reverse order, also where opening fails half-way; a run that does not reach the log within the
close grace is left open, to go on at the next start; and where a log is shared, who owns it may change any number of
times: an owner ends its actors when another process has the log, as a crash would, and goes on as a guest of that one,
and a guest takes the log over when no process owns it.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Final

from refold.actors.calls.context import Dependencies
from refold.actors.hosting import Host, HostedKinds
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.kernel.supervision import ActorFailure, Background
from refold.actors.kernel.system import ActorSystem, ended_without_fail
from refold.actors.loop_thread import protect_from_children
from refold.actors.shell.effects import EffectsInFlight
from refold.actors.shell.journal import Journal
from refold.actors.shell.snapshots import Snapshots
from refold.actors.thread_pool import ThreadPool
from refold.agents.agent import AnyAgent
from refold.agents.opened_deps import OpenedDeps
from refold.context import Reach, RuntimeContext
from refold.events.core.cleaning import clean_text, without_addresses
from refold.events.core.errors import BackpressureShed, ConfigError, LogInUse, PersistenceError
from refold.events.core.ids import SessionId, kind_and_identifier
from refold.events.core.pure_core import keys_of
from refold.events.core.records import StreamHead
from refold.events.kinds.runtime import RUNTIME_STREAM, ActorFailed, RuntimeClosed
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import is_scheduled
from refold.guarded_store import ContainedStore, opened_store
from refold.life.owner import OwnersLife
from refold.metrics.live import RuntimeMetrics
from refold.options import Settings
from refold.publishing.event_bus import EventBus
from refold.remote.changing import ChangingReach, OwnersWork, once_until
from refold.remote.guest import Guest, opened_to_own
from refold.remote.watching import POLL_S
from refold.running_agents import ActorReach, RunningAgents
from refold.sessions.access import cancel_open_runs
from refold.sessions.turn_checkpoints import StepSnapshots
from refold.stores.event_store import EventStore
from refold.stores.sqlite.store import SQLiteStore

log = logging.getLogger("refold.runtime")

LEAVE_S: Final = 0.5
"""How long actors may take to end once another process has the log; what they do then is done there."""


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
        self._hosted = HostedKinds()
        self._context: RuntimeContext | None = None
        self._owns_store = False
        self._entered = False
        self._closing: asyncio.Task[None] | None = None
        self._life: OwnersLife | None = None
        """What it does as the owner; None = it is a guest, or is not open."""
        self.guest: Guest | None = None
        """Reaches the owner of a shared log; None = this runtime is the owner, or is not open."""
        self._former_guest: Guest | None = None
        self._former_store: EventStore | None = None
        """The log as this runtime owned it before; readers that have begun go on in it."""
        self._taking_over: Background | None = None
        self._leaving: Background | None = None
        """Makes a guest of an owner whose log another process has."""
        self._has_left = False
        self._opening = False
        """Whether it becomes the owner as it opens; a log that is lost meanwhile is left once all of it has begun."""
        self._reach: ChangingReach | None = None
        self._hosted.moved = self._moved
        self.of_owner = OwnersWork(lambda: self.context, lambda: self.guest, self._moved)
        """Deletes, keeps for a time, and forks."""

    @property
    def context(self) -> RuntimeContext:
        """What the parts of the runtime share."""
        if self._context is None:
            raise ConfigError("the runtime is not open; use it inside `async with`, or `with`")
        return self._context

    @property
    def host(self) -> Host:
        """Hosts event-sourced actors beside the sessions."""
        return self._host(self._hosted)

    def _host(self, kinds: HostedKinds | None = None) -> Host:
        context = self.context
        return Host(context.system, context.journal, self._in_flight, self._settings.cancel_grace_s, kinds)

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
        _require_own_loop(system)
        if self._closing is not None:
            raise ActorStopped(RUNTIME_STREAM, "the runtime is closed; open a new one on the same log")

    async def tools_in_force(self) -> None:
        """Return when the tools that were registered or removed so far are so for every input that is sent now."""
        if self._life is not None and self._life.late is not None:
            await self._life.late.in_force()

    # Opening

    async def open(self) -> None:
        """Open the log and start the actors."""
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
            if self.guest is not None:
                await self._visit(self.guest, system)
                return
            self._opening, failure = True, None
            try:
                await self._own(self.context)
            except LogInUse as error:
                failure = error
            self._opening = False
            if self.context.journal.lost and failure is None:
                failure = LogInUse(self.context.store.name, pid=None, host=None)
            if failure is not None and not await self._moved(failure):
                raise failure
        except BaseException:
            await self._release()
            raise

    async def _own(self, context: RuntimeContext) -> None:
        if self._settings.share:
            log.info("process %d owns the log %s", os.getpid(), context.store.name)
        await self._opened.open(self._dependencies, context.system)
        context.journal.observer = self.metrics
        if self.step_snapshots is not None:
            self.step_snapshots.begin(context.store, self.event_bus.subscribe, context.system.background)
        self._life = OwnersLife(context, self.agents)
        await self._life.begin(self._host(), self._approval_pool)

    async def _open_shared(self, system: ActorSystem) -> None:
        """Own the log, or be a guest of its owner."""
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
            await self._hosted.take_up(self.host)
            context.has_hooks = self._has_hooks
            self._reach_by(ActorReach(context.system), context.system)
            self.guest = None
        except BaseException as error:
            if store is not None and context.store is not store:
                await store.close()
            if context.store is store and isinstance(error, LogInUse):
                self.guest = None
                context.journal.lose()
            elif not self._closes_for(error, "taken over"):
                if RUNTIME_STREAM in context.system.live():  # The runtime closes, and records its end as an owner does.
                    self.guest = None
                raise
        if context.journal.lost:  # Meanwhile.
            self._log_lost()

    def _closes_for(self, error: BaseException, what: str) -> bool:
        """Begin to close the runtime, which can be neither owner nor guest; False = the error means something else."""
        if self._closing is not None or not isinstance(error, Exception):
            return False
        log.critical("the log %s cannot be %s, and the runtime closes: %s", self.context.store.name, what, error)
        closing = self._close(self.context, cancel=False)
        self._closing = asyncio.get_running_loop().create_task(closing, name="close the runtime")
        return True

    async def _visit(self, guest: Guest, system: ActorSystem) -> None:
        from refold.remote.objects import ObjectsElsewhere

        self._hosted.elsewhere = guest
        guest.objects = ObjectsElsewhere(self.agents.stream_objects(), guest, self._new_system(system.clock))
        await guest.settle()  # First, so that no log is taken over, and lost again, before this one is left.
        self._taking_over = system.background("wait for the log", self._take_over)

    def _reach_by(self, reach: Reach, system: ActorSystem) -> Reach:
        """Reach sessions in a way from now on; return what stands for it, also when it is another one later."""
        if not self._settings.share:
            return reach
        if self._reach is None:
            self._reach = ChangingReach(reach, system.clock, self._moved)
        self._reach.now = reach
        return self._reach

    # Another process has the log

    def _log_lost(self) -> None:
        """Begin to be a guest."""
        context = self.context
        if self._leaving is None and self._closing is None and self.guest is None and not self._opening:
            told = self._former_guest.position if self._former_guest is not None else 0
            position = max(told, context.journal.position)  # A write under way may still come behind it.
            self.event_bus.end_life(position)
            self._has_left = False  # And not in the context of a handler, whose end is waited for:
            self._leaving = context.system.context.run(Background, "leave the log", partial(self._leave, position))

    async def _moved(self, error: Exception) -> bool:
        """Return whether this runtime is a guest, once it is, where an error says that another process has the log."""
        if self._settings.share and isinstance(error, LogInUse):
            self.context.journal.lose()  # Where it was no append that was refused.
            self._log_lost()  # Where that was noticed while the runtime opened.
        if self._leaving is not None:
            await self._leaving.wait()
        return self.guest is not None and self._closing is None

    async def _leave(self, position: int) -> None:
        """Go on as a guest of the process that has the log, told what is behind a position; or close."""
        context = self.context
        try:
            if self._has_left:
                raise ConfigError("other code cancelled it")
            self._has_left = True
            log.error("another process has the log %s: this one goes on as its guest", context.store.name)
            await self._end_life(context)
            system = self._new_system(context.system.clock)
            self._in_flight = context.in_flight = EffectsInFlight()
            context.system = system
            self.event_bus.begin_life()
            until_s = system.clock.monotonic_s() + self._settings.wait_for_log_s
            guest = self._former_guest
            visit = partial(Guest.open, self._settings, system, self.event_bus, position)
            visit = visit if guest is None else partial(guest.open_again, system, position)
            guest = await once_until(until_s, system.clock, visit)
            self._former_guest = None
            context.store, context.has_hooks = guest.store, False
            context.journal = self._journal_of(guest.store, system)
            self.guest = guest
            self._reach_by(guest, system)
            await self._visit(guest, system)
        except BaseException as error:
            if not self._closes_for(error, "left to another process"):
                raise
        self._leaving = None

    async def _end_life(self, context: RuntimeContext) -> None:
        """End all that an owner does, as a crash would, but tell those who asked of what is durable."""
        clock, (life, self._life) = context.system.clock, (self._life, None)
        if life is not None:
            life.hang_up()
            await life.stop()
        if self.step_snapshots is not None:
            await self.step_snapshots.close(clock, 0)
        await context.journal.close()
        await context.system.close(LEAVE_S)
        self._in_flight.end()
        if context.journal.snapshots is not None:
            await context.journal.snapshots.close(clock, 0)
        for living in self.agents.stream_objects():
            if living.kind not in self._hosted.of_memories:
                living.begin_anew()
        self.metrics.log_lost()
        former, self._former_store = self._former_store, context.store
        if former is not None:
            await former.close()
        assert isinstance(context.store, SQLiteStore)
        await context.store.give_up()

    def _new_system(self, clock: Clock | None = None) -> ActorSystem:
        settings = self._settings
        return ActorSystem(
            clock=clock or settings.clock,
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
        if self._settings.share:
            journal.on_lost = self._log_lost
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
            reach=self._reach_by(self.guest or ActorReach(system), system),
            event_bus=self.event_bus,
            dependencies=self._dependencies,
            hosted=self._hosted,
            in_flight=self._in_flight,
            agents=tuple(agents.agents),
            output_types={name: each.output_type for name, each in agents.agents.items()},
            has_hooks=self._has_hooks and self.guest is None,  # The owner calls them.
            hooks_of=lambda agent: (agents.main if agent is None else agents[agent]).hooks,
            tools_of=lambda agent: (agents.main if agent is None else agents[agent]).tools,
            tools_in_force=self.tools_in_force,
            require_open=self.require_open,
            is_closing=self.is_closing,
            failed_appends_of=self.metrics.failed_appends_of,
            fork=self.of_owner.fork,
            configured_payloads=lambda: agents.configured_payloads,
            forget_steps=self._forget_steps,
        )

    async def _forget_steps(self, sessions: Sequence[SessionId]) -> int:
        return await self.step_snapshots.forget(sessions) if self.step_snapshots is not None else 0

    # Ending

    async def close(self, *, cancel: bool) -> None:
        """End the runtime; a second call waits for the first, and in a forked child nothing happens.

        Args:
            cancel: end open runs as cancelled, instead of leaving open those that do not end within the close grace.

        Raises:
            ConfigError: it is open in another event loop.
        """
        if self._context is None or os.getpid() != self._pid:  # In a forked child there is nothing that runs.
            return
        if self._closing is None or not self._closing.done():
            _require_own_loop(self._context.system)
        if self._closing is None:
            if not cancel:
                # Before the inbox has ended, a result may come whose session would have the model called next.
                self._in_flight.draining = True
            closing = self._close(self._context, cancel)
            self._closing = asyncio.get_running_loop().create_task(closing, name="close the runtime")
        await ended_without_fail(self._closing, self._in_flight.hurry)

    async def _close(self, context: RuntimeContext, cancel: bool) -> None:
        system, grace_s = context.system, self._settings.close_grace_s
        try:
            if self._leaving is not None:
                await self._leaving.wait()
            if self._taking_over is not None:
                await self._taking_over.stop()
            if self.guest is not None:
                return
            if self._life is not None:
                await self._life.take_no_commands()
            if cancel:
                await cancel_open_runs(context)
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
            if self._leaving is not None:  # Opening was cancelled meanwhile.
                await self._leaving.wait()
            if self._taking_over is not None:
                await self._taking_over.stop()
            for guest in (self.guest, self._former_guest):
                if guest is not None:
                    await guest.close()
            if self._life is not None:
                await self._life.stop()
            if self.step_snapshots is not None and context is not None:
                await self.step_snapshots.close(context.system.clock, 0)
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
            if self._former_store is not None:
                await self._former_store.close()
            if context is not None and self._owns_store:
                await context.store.close()
            elif context is not None and isinstance(context.store, ContainedStore):
                context.store.let_go()
            if self._life is not None:
                self._life.hang_up()  # Last, since those who listen hear of it that the log is free.

    # Failures of actors

    def _actor_failed(self, failure: ActorFailure) -> None:
        kind, identifier = kind_and_identifier(failure.address)
        if failure.stopped and kind == SESSION_KIND and self._leaving is None:
            self.event_bus.session_failed(SessionId(identifier), f"it was stopped: {failure.message}")
        if failure.address != RUNTIME_STREAM and self._leaving is None:
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


def _has_open_run(head: StreamHead) -> bool:
    """Tell whether a session waits for more than the times of inputs that were accepted for later."""
    return any(not is_scheduled(key) for key in keys_of(head.pending))


def _require_own_loop(system: ActorSystem) -> None:
    if asyncio._get_running_loop() is not system.loop:  # None in a thread without one.
        raise ConfigError("this runtime lives on another event loop; use it there, or what its `with` gives")
