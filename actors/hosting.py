"""Hosting a kind of event-sourced actors: a user's core behind every address `"<kind>/<id>"` of a system.

Read `refold.events.core.pure_core` for what a core is, and `refold.actors.hosted` for how its work is done.
An actor is made by its first message, and its state is what its stream in the log adds up to; at the moment of hosting
those are made that an earlier process left work to.
"""

import weakref
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any, Generic, Protocol, TypeVar, cast

from refold.actors.hosted import EffectWorker, HostedPort
from refold.actors.kernel.actor import Actor
from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.ref import ActorRef
from refold.actors.kernel.system import ActorSystem
from refold.actors.loop_thread import LoopThread, blocking
from refold.actors.shell.effects import CANCEL_GRACE_S, EffectsInFlight
from refold.actors.shell.event_sourced import EventSourcedActor
from refold.actors.shell.journal import Journal
from refold.actors.shell.messages import Performed, Wake, read_state
from refold.actors.thread_pool import ThreadPool
from refold.events.core.checked_core import CheckedCore, S
from refold.events.core.codec import RecordedEvent
from refold.events.core.errors import ConfigError, LogInUse
from refold.events.core.ids import StreamName, checked_identifier, stream_name
from refold.events.core.pure_core import C, E, PureCore
from refold.events.kinds.scopes import part_in

R = TypeVar("R")

RESERVED_KINDS = frozenset(
    {"approval", "breaker", "dedup", "graph", "knowledge", "memory", "model", "runtime", "session", "tool", "working"}
)
"""Kinds of streams and actors that Refold itself has, or will have."""

STREAMS_PER_PAGE = 1_000


class Elsewhere(Protocol):
    """Reaches hosted actors that live in another process, which owns the log."""

    async def ask_hosted(
        self, core: CheckedCore[Any, Any, Any], address: StreamName, command: object, timeout_s: float | None
    ) -> Performed:
        """Return when a command is performed and durable."""
        ...

    def tell_hosted(self, core: CheckedCore[Any, Any, Any], address: StreamName, command: object) -> None:
        """Have a command performed, from any thread."""
        ...

    async def read_hosted(self, core: CheckedCore[S, Any, Any], address: StreamName, question: Callable[[S], R]) -> R:
        """Return a copy of what is found in an actor's state as the log has it."""
        ...


async def _stays(_: Exception) -> bool:
    return False


class HostedKinds:
    """The kinds that one log's actors are hosted by, in this process or, later, in this process."""

    def __init__(self) -> None:
        self.cores: dict[str, CheckedCore[Any, Any, Any]] = {}
        """Of each kind that the application has named."""
        self.of_memories: dict[str, CheckedCore[Any, Any, Any]] = {}
        """Of each kind of memory that the agents have."""
        self.elsewhere: Elsewhere | None = None
        """Reaches them, while another process owns the log."""
        self.changed: Callable[[], object] = lambda: None
        """Called when a kind has come."""
        self.moved: Callable[[Exception], Awaitable[bool]] = _stays
        """Tells, once it is so, whether an actor could not do its work since another process has taken the log."""
        self.system: ActorSystem
        """Where they live while this process owns the log."""
        self._begin: dict[str, Callable[[Host], Awaitable[None]]] = {}

    async def add(
        self, kind: str, core: CheckedCore[Any, Any, Any], begin: "Callable[[Host], Awaitable[None]]", host: "Host"
    ) -> None:
        """Host a kind: now where this process owns the log, and whenever it has taken it over."""
        if self.elsewhere is None:
            await begin(host)
        elif kind in self.cores:
            raise ConfigError(f"the kind {kind!r} is registered already; use another word")
        self.cores[kind], self._begin[kind] = core, begin
        self.changed()

    async def take_up(self, host: "Host") -> None:
        """Host here what was named, since this process owns the log now."""
        begun = 0
        while begun < len(self._begin):  # Others may come meanwhile.
            await list(self._begin.values())[begun](host)
            begun += 1
        self.elsewhere = None
        self.changed()


class Hosted(Generic[S, C]):
    """The actors of one kind; `Host` makes it.

    Where another process owns a log that is shared, its actors live there: commands are then performed there, each
    once, and so they are `KeyedCommand`s; and states are folded from the log.

    Args:
        kind: what stands before the slash of their addresses.
        core: what decides for them.
        kinds: of the log.
    """

    def __init__(self, kind: str, core: CheckedCore[S, C, Any], kinds: HostedKinds) -> None:
        self.kind = kind
        self._core = core
        self._kinds = kinds

    @property
    def system(self) -> ActorSystem:
        """Where they live."""
        return self._kinds.system

    def ref(self, identifier: str) -> ActorRef:
        """Return the ref of one of them, which serves threads and other actors as well.

        Raises:
            ConfigError: it cannot be an identifier; or another process has the actors.
        """
        if self._kinds.elsewhere is not None:
            raise ConfigError("another process owns the shared log, and has its actors; use `ask`, `tell` and `read`")
        return self.system.ref(self._address(identifier))

    def _address(self, identifier: str) -> StreamName:
        return stream_name(self.kind, checked_identifier(identifier, f"{self.kind} id"))

    async def ask(self, identifier: str, command: C, *, timeout: float | None = None) -> Performed:  # noqa: ASYNC109 - as `ActorRef.ask`
        """Send a command, and return when what follows from it is durable.

        Args:
            identifier: of the actor.
            command: what it is to do.
            timeout: seconds; None = the system's `ask_timeout_s`.

        Raises:
            CommandRejected: it may not happen now; nothing was recorded. As `Unrecordable` where its event cannot be
                written to the log, with the path of the value that cannot.
            CoreFailed: the core failed on it, or its `react` goes round in a circle; nothing was recorded.
            ConfigError: it is no command of the core, or the identifier cannot be one.
            PersistenceError: the log failed; see `outcome_unknown`. As `LogFormatError` where the core does not
                know or cannot fold an event in it.
            BackpressureShed: too many messages wait for that actor.
            ActorStopped: the system is closing, or the actor was stopped after too many failures.
            AskTimeout: no answer came in time; the command may still be performed.
            AskCycle: asked in a handler that the actor waits for.
        """
        if self._kinds.elsewhere is None:
            try:
                performed: Performed = await self.ref(identifier).ask(command, block=False, timeout=timeout)
            except (LogInUse, ActorStopped) as error:
                if not await self._kinds.moved(error):
                    raise
            else:
                return performed
        elsewhere = self._kinds.elsewhere
        assert elsewhere is not None
        return await elsewhere.ask_hosted(self._core, self._address(identifier), command, timeout)

    def tell(self, identifier: str, command: C) -> None:
        """Send a command and forget it, from any thread; a refusal is logged and set aside.

        Raises:
            ActorStopped: the system is closing.
            BackpressureShed: too many messages wait for that actor.
        """
        elsewhere = self._kinds.elsewhere
        if elsewhere is not None:
            elsewhere.tell_hosted(self._core, self._address(identifier), command)
        else:
            self.ref(identifier).tell(command)

    async def read(self, identifier: str, question: Callable[[S], R]) -> R:
        """Return a copy of what `question` finds in an actor's state, which is durable, and which it must not change.

        Raises:
            PersistenceError: the log cannot be read, or is damaged.
            Exception: what `question` raised.
        """
        if self._kinds.elsewhere is None:
            try:
                return await read_state(self.ref(identifier), question, copied=True)
            except (LogInUse, ActorStopped) as error:
                if not await self._kinds.moved(error):
                    raise
        elsewhere = self._kinds.elsewhere
        assert elsewhere is not None
        return await elsewhere.read_hosted(self._core, self._address(identifier), question)


class Host:
    """Hosts kinds of actors in a system: `books = await host("book", OrderBook)`.

    Args:
        system: where the actors live.
        journal: of the log that they are folded from.
        in_flight: the effects that run in this process.
        cancel_grace_s: seconds that cancelled work may take to end before the next work begins.
        kinds: that are hosted by now.
    """

    def __init__(
        self,
        system: ActorSystem,
        journal: Journal,
        in_flight: EffectsInFlight,
        cancel_grace_s: float = CANCEL_GRACE_S,
        kinds: HostedKinds | None = None,
    ) -> None:
        self._kinds = kinds if kinds is not None else HostedKinds()
        self._system = self._kinds.system = system
        self.background = system.background
        """Begins work beside the actors; see `ActorSystem.background`."""
        self._journal = journal
        self._in_flight = in_flight
        self._cancel_grace_s = cancel_grace_s

    async def __call__(
        self,
        kind: str,
        core: type[PureCore[S, C, E]] | PureCore[S, C, E],
        *,
        perform: Callable[[Any], Awaitable[C | None]] | None = None,
        on_event: Callable[[RecordedEvent[E]], object] | None = None,
    ) -> Hosted[S, C]:
        """Let `core` decide for every address `"<kind>/<id>"`, and let work go on that an earlier process left there.

        Where another process owns a log that is shared, that one does so; this one does when it takes the log over.

        Args:
            kind: a word of the application's own.
            core: the user's core, as a class or an instance.
            perform: does the work that `pending` names, as one task each, and returns the command that tells what it
                brought, or None. It is cancelled when the work is no longer named, and called again after a crash:
                let `effect.key` make doing it twice harmless. What it raises goes to the core's `failed`.
            on_event: called on the loop with each event once it is durable.

        Raises:
            ConfigError: the kind cannot be one or is taken, or the core's types cannot work, such as a command that
                is not frozen.
            PersistenceError: the log cannot be read.
        """
        if kind in RESERVED_KINDS:
            raise ConfigError(f"the kind {kind!r} is Refold's own; use another word")
        kinds, checked = self._kinds, CheckedCore(core)

        async def begin(host: Host) -> None:
            system = host._system
            worker = system.ref(f"work of {kind}") if perform is not None else None
            host._register(kind, checked, worker, on_event)
            if worker is not None:
                await system.start(EffectWorker, perform, checked.failed, address=worker.address)
            await host._wake(kind)

        await kinds.add(kind, checked, begin, self)
        return Hosted(kind, checked, kinds)

    async def lasting(
        self, kind: str, core: CheckedCore[S, C, E], shell: Callable[[Journal], Actor] | None = None
    ) -> ActorSystem:
        """Let `core`, one of Refold's own, decide for every `"<kind>/<id>"`, and return the system that they live in.

        Such an actor has a large state that is asked often: once in memory, it stays there, but for parts of memories
        (`refold.events.kinds.scopes`). It does no work outside but wait. Where the kind is hosted already, nothing
        changes. A `shell` makes an actor around the core; None = each is an `EventSourcedActor`.
        """
        if self._kinds.elsewhere is not None:
            raise ConfigError(
                f"the streams of {kind} are for the process that owns the shared log, which is another one"
            )
        if not self._system.knows(kind):
            if shell is None:
                self._register(kind, core, lasting=True)
            else:
                self._system.register(kind, lambda _: shell(self._journal))
            await self._wake(kind)
        return self._system

    def _register(
        self,
        kind: str,
        core: CheckedCore[S, C, E],
        worker: ActorRef | None = None,
        on_event: Callable[[RecordedEvent[E]], object] | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        def make(identifier: str) -> EventSourcedActor[S, C, E]:
            stays = lasting and part_in(identifier) is None  # There are as many parts as users.
            port = HostedPort(core, worker, on_event, cancel_grace_s=self._cancel_grace_s, lasting=stays)
            return EventSourcedActor(core, core.codec, self._journal, port, self._in_flight)

        self._system.register(kind, make)

    async def _wake(self, kind: str) -> None:
        last = ""
        while True:
            heads = await self._journal.store.list_streams(
                prefix=f"{kind}/", after=last, limit=STREAMS_PER_PAGE, with_pending=True
            )
            for head in heads:
                self._system.ref(head.stream).tell(Wake())
            if len(heads) < STREAMS_PER_PAGE:
                return
            last = heads[-1].stream


class SyncHosted(Generic[S, C]):
    """The actors of one kind, for threads; made by `SyncHost`. Read `Hosted` for what each method does."""

    def __init__(self, loop_thread: LoopThread, hosted: Hosted[S, C]) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = hosted

    @property
    def kind(self) -> str:
        """What stands before the slash of their addresses."""
        return self.asynchronous.kind

    def ref(self, identifier: str) -> ActorRef:
        """Return the ref of one of them; its `ask` blocks.

        Raises:
            ConfigError: it cannot be an identifier.
        """
        return self.asynchronous.ref(identifier)

    def tell(self, identifier: str, command: C) -> None:
        """Send a command and forget it; see `Hosted.tell`."""
        self.asynchronous.tell(identifier, command)

    ask = blocking(Hosted[S, C].ask)
    read = blocking(Hosted[S, C].read)


class SyncHost:
    """Hosts kinds of actors for code without a loop: `books = host("book", OrderBook)`."""

    def __init__(self, loop_thread: LoopThread, host: Host) -> None:
        self.loop_thread = loop_thread
        self.asynchronous = host

    def __call__(
        self,
        kind: str,
        core: type[PureCore[S, C, E]] | PureCore[S, C, E],
        *,
        perform: Callable[[Any], Awaitable[C | None] | C | None] | None = None,
        on_event: Callable[[RecordedEvent[E]], object] | None = None,
    ) -> SyncHosted[S, C]:
        """Do as `Host.__call__`, and block meanwhile; `on_event` is called on the loop's thread.

        A plain `perform` runs in a thread. One that is cancelled goes on, and what it returns is dropped.
        """
        work: Any = perform
        if perform is not None and not iscoroutinefunction(perform):
            plain = cast("Callable[[Any], object]", perform)

            # Not of the loop's own executor, whose threads the loop, and the interpreter, would wait for at their end.
            pool = ThreadPool(name=f"refold-{kind}")

            async def does(effect: Any) -> object:
                return await pool.run(plain, effect)

            weakref.finalize(does, pool.close)
            work = does
        hosted = self.loop_thread.run(lambda: self.asynchronous(kind, core, perform=work, on_event=on_event))
        return SyncHosted(self.loop_thread, hosted)
