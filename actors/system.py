"""An actor system with a log of its own: event-sourced actors, and no agent anywhere.

    async with EventSourcedSystem("shop.db") as system:
        books = await system.host("book", OrderBook)
        await books.ask("ACME", Place(...))

    with EventSourcedSystem("shop.db") as system:  # without a loop: one of its own, in a thread
        system.host("book", OrderBook).ask("ACME", Place(...))

Read `refold.actors.hosting` for what `host` gives. The rules: the log has one owner, this system, from `async with` to
its end; what is in flight at the end is left to the next start, as after a crash.
"""

import asyncio
import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from refold.actors.hosting import Host, SyncHost
from refold.actors.kernel.actor import Actor
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import WouldDeadlock
from refold.actors.kernel.ref import ActorRef
from refold.actors.kernel.reply import current_handling
from refold.actors.kernel.supervision import ActorFailure
from refold.actors.kernel.system import STOP_NOW_WAIT_S, ActorSystem, ended_without_fail
from refold.actors.loop_thread import LoopThread, run_on_loop
from refold.actors.shell.effects import CANCEL_GRACE_S, EffectsInFlight
from refold.actors.shell.journal import Journal
from refold.actors.shell.snapshots import SNAPSHOT_EVERY, Snapshots
from refold.events.core.errors import ConfigError, quoted
from refold.stores.append_rules import APPEND_TIMEOUT_S, WAIT_FOR_LOG_S
from refold.stores.event_store import EventStore
from refold.stores.memory import InMemoryStore
from refold.stores.sqlite.file import Durability

if TYPE_CHECKING:
    from refold.stores.sqlite.store import SQLiteStore


class SystemOptions(TypedDict, total=False):
    """Settings of the actor system itself; see `ActorSystem`."""

    clock: Clock | None
    ask_timeout_s: float
    restarts_max: int
    restart_window_s: float
    restart_backoff_s: float
    restart_backoff_max_s: float
    close_grace_s: float
    mailbox_capacity: int
    passivate_after_s: float | None
    live_max: int | None
    on_failure: Callable[[ActorFailure], object] | None


class EventSourcedSystem(ActorSystem):
    """Actors on the running event loop, and the log that event-sourced ones are folded from.

    Use it as `async with EventSourcedSystem(...) as system`; where no event loop runs, `with EventSourcedSystem(...) as
    system` gives a `SyncSystem`, on a loop of its own. Plain actors live in it as in any `ActorSystem`.

    Args:
        log: path of the log, `":memory:"`, or an open event store, which its owner closes.
        durability: `"full"`: what was acknowledged survives power loss. `"normal"`: it survives the process's death.
        wait_for_log_s: how long to wait for another owner to release the log.
        append_timeout_s: an append that takes longer counts as hanging.
        allow_shared_folder: write a log although others may make files in its folder.
        cancel_grace_s: how long cancelled work may take to end before it is abandoned.
        snapshot_every: events after which a stream's state is kept beside the log, where its core has a `fold_version`,
            so that opening it folds no more than about so many; None = none is kept or used.
        options: see `ActorSystem`.

    Raises:
        ConfigError: a setting cannot work; told when it is opened where no event loop is running yet.
    """

    def __init__(
        self,
        log: str | os.PathLike[str] | EventStore = ":memory:",
        *,
        durability: Durability = "full",
        wait_for_log_s: float = WAIT_FOR_LOG_S,
        append_timeout_s: float = APPEND_TIMEOUT_S,
        allow_shared_folder: bool = False,
        cancel_grace_s: float = CANCEL_GRACE_S,
        snapshot_every: int | None = SNAPSHOT_EVERY,
        **options: Unpack[SystemOptions],
    ) -> None:
        self._options = options
        self._is_bound = asyncio._get_running_loop() is not None
        if self._is_bound:
            super().__init__(**options)
        if snapshot_every is not None and snapshot_every < 1:
            raise ConfigError(f"snapshot_every must be None or >= 1, not {quoted(snapshot_every, 60)}")
        self._log = log
        self._snapshot_every = snapshot_every
        self._durability: Durability = durability
        self._wait_for_log_s = wait_for_log_s
        self._append_timeout_s = append_timeout_s
        self._allow_shared_folder = allow_shared_folder
        self._cancel_grace_s = cancel_grace_s
        self._in_flight = EffectsInFlight()
        self._own_store: SQLiteStore | None = None
        self._journal: Journal | None = None
        self._end: asyncio.Task[tuple[str, ...]] | None = None

    @property
    def store(self) -> EventStore:
        """The log.

        Raises:
            ConfigError: the system is not open.
        """
        return self._opened().store

    @property
    def patience_s(self) -> float:
        """How long its end may take at most, in seconds, if the log does not hang."""
        return self._cancel_grace_s + 2 * self._options.get("close_grace_s", 5.0) + STOP_NOW_WAIT_S

    async def __aenter__(self) -> Self:
        """Open the log.

        Raises:
            LogInUse: another process owns it.
            LogFormatError: the file is not a log, or comes from a newer Refold.
            PersistenceError: the file cannot be used.
        """
        if self._journal is not None:
            raise ConfigError("this system has been open already; make another one")
        if not self._is_bound:
            self._is_bound = True
            super().__init__(**self._options)
        store = await self._open_store()
        self._journal = Journal(store)
        if self._snapshot_every is not None:
            self._journal.snapshots = Snapshots(store, self._snapshot_every)
        return self

    def __enter__(self) -> "SyncSystem":
        self._face = SyncSystem(self)
        return self._face

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._face.close()

    @property
    def host(self) -> Host:
        """Hosts event-sourced actors: `books = await system.host("book", OrderBook)`; see `Host.__call__`.

        Raises:
            ConfigError: the system is not open.
        """
        return Host(self, self._opened(), self._in_flight, self._cancel_grace_s)

    async def close(self, grace_s: float | None = None) -> tuple[str, ...]:
        """Wait for work that is under way, stop all actors, and close the log; a second call waits for the first.

        Work gets `grace_s` seconds to reach the log; what has not by then goes on at the next start. Who is cancelled
        meanwhile gives up that grace, not the end.

        Args:
            grace_s: None = the system's `close_grace_s`.

        Returns:
            The addresses that were abandoned; see `ActorSystem.close`.

        Raises:
            WouldDeadlock: called inside a handler of this system; nothing was stopped.
        """
        handling = current_handling.get()
        if handling is not None and handling.active() and self._cells.get(handling.cell.address) is handling.cell:
            raise WouldDeadlock(f"closing the system inside a handler of {handling.cell.address} would wait for it")
        if self._end is None:
            self._end = self.loop.create_task(self._close_all(grace_s), name="close the system")
        return await ended_without_fail(self._end, self._in_flight.hurry)

    async def _close_all(self, grace_s: float | None) -> tuple[str, ...]:
        try:
            await self._in_flight.drain(self.clock, self._close_grace_s if grace_s is None else grace_s)
        finally:
            try:
                abandoned = await super().close(grace_s)
            finally:
                self._in_flight.end()
                await self._close_log()
        return abandoned

    async def _close_log(self) -> None:
        if self._journal is None:
            return
        try:
            await self._journal.close()
            if self._journal.snapshots is not None:
                await self._journal.snapshots.close(self.clock, self._close_grace_s)
        finally:
            if self._own_store is not None:
                await self._own_store.close()

    async def _open_store(self) -> EventStore:
        log = self._log
        if not isinstance(log, str | os.PathLike):
            return log
        if log == ":memory:":
            return InMemoryStore()
        from refold.stores.sqlite.store import SQLiteStore

        self._own_store = await SQLiteStore.open(
            log,
            durability=self._durability,
            wait_for_log_s=self._wait_for_log_s,
            append_timeout_s=self._append_timeout_s,
            allow_shared_folder=self._allow_shared_folder,
        )
        self._own_store.take_no_commands()
        return self._own_store

    def _opened(self) -> Journal:
        if self._journal is None:
            raise ConfigError("the system is not open; use it inside `async with`")
        return self._journal


class SyncSystem:
    """An open `EventSourcedSystem` for code without a loop: `with EventSourcedSystem(...) as system`.

    For any number of threads. Actors, cores and async `perform` functions run on the loop's thread.
    """

    def __init__(self, system: EventSourcedSystem) -> None:
        """Open `system` on a loop of its own; `with` is the usual way to do so.

        Raises:
            WouldDeadlock: an event loop runs in this thread; write `async with`.
            ConfigError: the system has been open already, or was made on another loop; or a setting cannot work.
            LogInUse: another process owns the log.
        """
        self.asynchronous = system
        self.loop_thread = LoopThread(
            system,
            name="refold-actors",
            patience_s=system.patience_s,
            what="system",
            on_a_loop="`async with EventSourcedSystem(...)`",
        )
        self.loop_thread.start()

    @property
    def host(self) -> SyncHost:
        """Hosts event-sourced actors: `books = system.host("book", OrderBook)`; see `SyncHost.__call__`."""
        return SyncHost(self.loop_thread, self.asynchronous.host)

    @property
    def store(self) -> EventStore:
        """The log."""
        return self.asynchronous.store

    def start(self, factory: Callable[..., Actor], *args: Any, address: str | None = None, **kwargs: Any) -> ActorRef:
        """Start a plain actor, and return its ref, whose `ask` blocks; see `ActorSystem.start`."""
        return self.loop_thread.run(lambda: self.asynchronous.start(factory, *args, address=address, **kwargs))

    def register(self, kind: str, factory: Callable[[str], Actor]) -> None:
        """Let messages to `"<kind>/<id>"` start an actor there; see `ActorSystem.register`."""
        run_on_loop(self.loop_thread, lambda: self.asynchronous.register(kind, factory))

    def ref(self, address: str) -> ActorRef:
        """Return a ref to an address; nothing is started."""
        return self.asynchronous.ref(address)

    def live(self) -> tuple[str, ...]:
        """Return the addresses that have an actor now, oldest first."""
        return run_on_loop(self.loop_thread, self.asynchronous.live)

    def close(self) -> None:
        """End the system, its loop and its thread, as leaving `with` does; any number of times."""
        if self.loop_thread.is_ours:
            self.loop_thread.stop()
