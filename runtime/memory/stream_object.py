"""What an object is that lives on the log as one stream, and is used like a plain one, also before a runtime exists.

    memory = EpisodicStore()
    memory.add_episode("agent", "Anna prefers tea", importance=0.8)        # Kept until a runtime has it.
    async with AgentRuntime(config, provider=provider, memory=memory):
        await memory.add_episode("agent", "Anna lives in Lisbon")          # On the loop.
    ...
    memory.add_episode("agent", "Anna has a cat").get()                    # In any other thread.

Memories, graphs and breakers are such objects. Each is a face before an event-sourced actor at `"<kind>/<name>"` (see
`refold.actors.hosting`), whose core decides. Every method that asks or changes something returns an `ActorFuture`, for
which threads and coroutines may wait alike, and nobody has to.

The rules: while a runtime has the object, the log alone says what is in it. What was done before is decided by the same
core on a state of its own, and sent to the log when a runtime takes the object, each command under a key made of its
content, so that a program that fills its stores before each start fills them once.
"""

import copy
import hashlib
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import msgspec

from refold.actors.hosting import Host
from refold.actors.kernel.clock import Clock, ManualClock, SystemClock
from refold.actors.kernel.ref import ActorRef
from refold.actors.kernel.reply import ActorFuture, has_threads
from refold.actors.kernel.system import ActorSystem
from refold.actors.shell.event_sourced import EventSourcedActor
from refold.actors.shell.messages import Envelope, Performed, Query, QueryResult
from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import CommandRejected, ConfigError, RefoldError
from refold.events.core.ids import PayloadHash, StreamName, checked_identifier, stream_name
from refold.events.core.pure_core import E, KeyedCommand, Recorded, State, evolve_all, plan
from refold.events.model.cooperative import Asking, at_once
from refold.inspection.log_reading import ReadableLog, opened
from refold.stores.event_store import EventStore
from refold.stores.folding import EVENTS_PER_PAGE
from refold.stores.past_state import past_state
from refold.stores.sqlite.connection import SerialWorker

S = TypeVar("S", bound=State)
C = TypeVar("C", bound=KeyedCommand)
R = TypeVar("R")

log = logging.getLogger("refold.objects")

COMMANDS_PER_TRANSACTION = 500
"""So many commands of the time before the runtime are recorded together."""


class StreamObject(Generic[S, C, E]):
    """Base of what lives on the log as one stream: subclass it with `kind` and `core`.

    Args:
        name: what stands behind the kind in the name of the stream; two objects of one kind need two names.
        clock: tells the time before a runtime has the object; None = the machine's.

    Raises:
        ConfigError: the name cannot be one.
    """

    kind: ClassVar[str]
    """What stands before the slash of the stream's name."""
    core: ClassVar[CheckedCore[Any, Any, Any]]  # A class variable cannot name the type variables.
    """Decides for all objects of the class."""
    is_everywhere: ClassVar[bool] = False
    """Whether it is used in processes that share a log and do not own it, too; see `refold.remote.objects`."""

    def __init__(self, name: str, clock: Clock | None = None) -> None:
        self.name = checked_identifier(name, f"{self.kind} name")
        self.stream: StreamName = stream_name(self.kind, self.name)
        self._clock: Clock = clock or SystemClock()
        self._ref: ActorRef | None = None
        self._before: S | None = None
        """The state before a runtime has the object, once it is asked for."""
        self._time = 0
        self._given: list[C] = []
        self._given_at: list[int] = []
        """When each of them was, microseconds since the epoch, UTC."""
        self._before_lock = threading.RLock()
        """Held by the thread that uses the state before a runtime has the object, or takes what was given then."""
        self._attaching = False
        self._attached = threading.Event()
        """Set when a runtime has taken the object, or failed to."""
        self._last_part: int | None = None
        """The thread in which a runtime takes the last of what was given, while other threads give nothing more."""
        self._repetitions: Counter[str] = Counter()
        self._past = False
        """Whether it is what the object was at an earlier place of the log."""
        self._version = 0
        """That place in its stream."""
        self._payloads: dict[PayloadHash, bytes] = {}
        """What that state refers to."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.stream}>"

    def opening(self, state: S) -> Sequence[C]:
        """Return what is recorded first when a runtime takes the object: settings that differ from those in the log."""
        return ()

    def packed(self, commands: Sequence[C]) -> tuple[Sequence[C], Mapping[PayloadHash, bytes]]:
        """Return commands as they go to the log, with the payloads that they then refer to."""
        return commands, {}

    def payloads_of(self, state: S) -> Iterable[PayloadHash]:
        """Return the payloads that a state refers to."""
        return ()

    def may_share(self, other: "StreamObject[Any, Any, Any]") -> bool:
        """Return whether it and another object of one runtime may be one stream."""
        return False

    def now_us(self) -> int:
        """Return the time, in microseconds since the epoch, UTC."""
        return self._clock.now_us() if self._ref is None else self._ref.system.clock.now_us()

    def perform(self, command: C) -> ActorFuture[Performed]:
        """Have the core decide about `command`; the outcome is there when what follows from it is durable.

        The outcome may be an error: see `refold.actors.Hosted.ask`.
        """
        with self._before_runtime() as ref:
            if ref is None:
                return outcome_of(lambda: self._perform_before(command), RefoldError)
        (packed,), payloads = self.packed((command,))
        return ref.ask(Envelope(packed, payloads) if payloads else packed, block=False)

    def perform_each(
        self, commands: Sequence[C], called: str, outcome: Callable[[C, Performed], R]
    ) -> ActorFuture[list[R]]:
        """Have the core decide about several commands, all of them or none; the outcomes are there when all is durable.

        They are one message and one transaction. The outcome may be an error, as of `perform`; a refusal names the one
        that it is about, and nothing of the others is recorded.

        Args:
            commands: any number.
            called: what they are to the caller, such as `episodes`.
            outcome: makes the outcome of one, of the command with the key that it has.
        """
        with self._before_runtime() as ref:
            if ref is None or not commands:
                return outcome_of(lambda: self._perform_each_before(commands, called, outcome), RefoldError)
        packed, payloads = self.packed(commands)
        asked: ActorFuture[list[Performed]] = ref.ask(Envelope(tuple(packed), payloads, called=called), block=False)
        return asked.map(lambda performed: list(map(outcome, commands, performed)))

    def read(self, question: Callable[[S], R]) -> ActorFuture[R]:
        """Return a copy of what `question` finds in the state, which is durable, and which it must not change.

        The outcome may be an error: see `refold.actors.Hosted.read`, or what `question` raised.
        """
        with self._before_runtime() as ref:
            if ref is None:
                return outcome_of(lambda: copy.deepcopy(question(self._state_before())), Exception)
        return ref.ask(Query(question), block=False).map(QueryResult.get)

    def read_in_steps(
        self, question: Callable[[S], Asking[R]], note: Callable[[R], C | None] | None = None
    ) -> ActorFuture[R]:
        """Return what `question` finds in the state, which is durable, without keeping the loop for long.

        The outcome may be an error, as of `read`.

        Args:
            question: gives the steps, which may ask for payloads of the log; what they find shares nothing with the
                state that can change.
            note: returns the command that is performed with what was found, before anything else; None = there is none.
        """

        def noted() -> R:
            found = at_once(question(self._state_before()), self._payloads.get)
            command = note(found) if note is not None else None
            if command is not None:
                self._perform_before(command)
            return found

        with self._before_runtime() as ref:
            if ref is None:
                return outcome_of(noted, Exception)
        return ref.ask(Query(question, note, in_steps=True), block=False).map(QueryResult.get)

    def glance(self, question: Callable[[S], R]) -> R | None:
        """Return at once what `question` finds in the state, which may still be on its way to the log; None = unknown.

        On the runtime's loop only, and for what shares nothing with the state, such as a number.
        """
        with self._before_runtime() as ref:
            if ref is None:
                return question(self._state_before())
        actor = ref.system.instance(self.stream)
        if not isinstance(actor, EventSourcedActor):
            return None
        state = cast("S | None", actor.current_state())
        return question(state) if state is not None else None

    def tell(self, command: C) -> None:
        """Have the core decide about `command` and wait for nothing; a refusal is logged."""
        try:
            if self._ref is not None:
                self._ref.tell(command)
            elif (outcome := self.perform(command)).ready():  # Or a runtime has just taken the object.
                outcome.get()
        except RefoldError as error:
            log.warning("%s: a %s is not recorded: %s", self.stream, type(command).__name__, error)

    def keyed(self, command: C) -> C:
        """Return `command` with the key under which `perform` will send it, where it is known beforehand."""
        with self._before_runtime() as ref:
            return self._with_key(command) if ref is None else command

    async def at(self, log: ReadableLog, *, position: int | None = None, version: int | None = None) -> Self:
        """Return an object with what the log had of this one at a place; it can be asked everything, and not changed.

        Its time is that of the place, so what depends on age is as it was then.

        Args:
            log: a path, or an open store such as `runtime.store`.
            position: the place in the log, included; None = its end.
            version: the place in the object's stream, included; None = its end.

        Raises:
            ConfigError: there cannot be such a place.
            PersistenceError: the log is missing, cannot be read or is damaged.
        """
        async with opened(log) as store:
            past = await past_state(store, self.stream, self.core, self.core.codec, position=position, version=version)
            payloads = await store.read_payloads(self.payloads_of(past.state))
        then = copy.copy(self)
        then._forget_derived()
        then._ref, then._before, then._given = None, past.state, []
        then._past, then._version, then._payloads = True, past.version, payloads
        if position is not None or version is not None:
            then._clock = ManualClock(past.at)
        return then

    async def move_on(self, log: EventStore, position: int, at: int) -> bool:
        """Make what `at` gave of a position what the object was at a later one, and return whether anything differs.

        Args:
            log: the same.
            position: the later place.
            at: its time, in microseconds since the epoch, UTC.

        Raises:
            PersistenceError: the log cannot be read or is damaged.
        """
        self._clock, before = ManualClock(at), self._version
        while True:
            page = await log.read_stream(self.stream, after_version=self._version, limit=EVENTS_PER_PAGE)
            until = [stored for stored in page if stored.position <= position]
            if until:
                self._before = evolve_all(self.core, self.core.codec.decode_all(until), self._before)
                self._version = until[-1].version
            if len(until) < EVENTS_PER_PAGE:
                names = set(self.payloads_of(self._state_before())) - self._payloads.keys()
                self._payloads |= await log.read_payloads(names) if names else {}
                return self._version > before

    def begin_anew(self) -> None:
        """Be again what the object was before any runtime had it, as in a process that has just begun.

        For simulations, in which processes die: what is done to it then concerns the next runtime.
        """
        with self._before_lock:
            self._ref, self._attaching = None, False
            self._forget_derived()

    def _forget_derived(self) -> None:
        """Drop what was derived from a state, since another one takes its place."""

    async def attach(self, host: Host) -> None:
        """Live on the log behind `host`, that of a runtime or an `EventSourcedSystem`, and record there what was done.

        Raises:
            ConfigError: another runtime has the object.
            PersistenceError: the log failed.
        """
        self._require_present()
        with self._before_lock:
            if self._attaching or (self._ref is not None and self._ref.is_alive()):
                raise ConfigError(f"{self!r} lives in another runtime; make an object for each")
            self._attaching = True
            self._attached.clear()
        try:
            ref = (await self._home(host)).ref(self.stream)
            opening: Sequence[C] = await ref.ask(Query(self.opening), block=False).map(QueryResult.get)
            with self._before_lock:  # Other threads may be giving.
                commands = [*opening, *self._given]
                taken = len(self._given)
            await self._send(ref, commands)
            self._last_part = threading.get_ident()
            with self._before_lock:  # Also while others have the loop, or threads that give on and on had no end.
                while len(self._given) > taken:
                    commands = self._given[taken:]
                    taken = len(self._given)
                    await self._send(ref, commands)
                self._ref = ref
        finally:
            self._attaching = False
            self._last_part = None
            self._attached.set()

    async def _home(self, host: Host) -> ActorSystem:
        """Return where the actor behind it lives."""
        return await host.lasting(self.kind, self.core)

    async def _send(self, ref: ActorRef, commands: Sequence[C]) -> None:
        for first in range(0, len(commands), COMMANDS_PER_TRANSACTION):
            packed, payloads = self.packed(commands[first : first + COMMANDS_PER_TRANSACTION])
            await ref.ask(Envelope(tuple(packed), payloads), block=False)

    @contextmanager
    def _before_runtime(self) -> Generator[ActorRef | None, None, None]:
        """Give the actor behind the object; None = no runtime has it, and until the end none takes it or changes it."""
        if self._last_part is not None and self._last_part != threading.get_ident():
            self._attached.wait()
        with self._before_lock:
            yield self._ref

    def _state_before(self) -> S:
        if self._before is None:
            first: S = self.core.initial()
            self._before = first
            at = self._given_at[0] if self._given_at else None
            for command in self.opening(first):
                self._plan_before(command, at)
        assert self._before is not None
        return self._before

    def _plan_before(self, command: C, at: int | None = None) -> Performed:
        state = self._state_before()
        if at is None:
            at = self._time = max(self._clock.now_us(), self._time)
        planned = plan(self.core, state, command, at)
        if isinstance(planned, Recorded):
            return Performed(planned.version, False)
        self._before = planned.state
        return Performed(planned.state.version - len(planned.events) + 1, True)

    def _require_present(self) -> None:
        if self._past:
            raise ConfigError(f"{self!r} is what it was at an earlier place of the log, and cannot be changed")

    def _perform_before(self, command: C) -> Performed:
        self._require_present()
        command = self._with_key(command)
        performed = self._plan_before(command)
        if performed.new:
            self._given.append(command)
            self._given_at.append(self._time)
        return performed

    def _perform_each_before(self, commands: Sequence[C], called: str, outcome: Callable[[C, Performed], R]) -> list[R]:
        self._require_present()
        given, repetitions = len(self._given), list[str]()
        outcomes: list[R] = []
        try:
            for command in commands:
                keyed = self._with_key(command)
                if keyed is not command:
                    repetitions.append(_digest_of(command))
                outcomes.append(outcome(keyed, self._perform_before(keyed)))
        except BaseException as error:
            if isinstance(error, CommandRejected):
                error.name_item(f"{called}[{len(outcomes)}]")
            self._repetitions.subtract(repetitions)
            del self._given[given:], self._given_at[given:]
            self._plan_again()
            raise
        return outcomes

    def _plan_again(self) -> None:
        self._before = None
        for command, at in zip(self._given, self._given_at, strict=True):
            self._plan_before(command, at)

    def _with_key(self, command: C) -> C:
        if command.key is not None:
            return command
        digest = _digest_of(command)
        self._repetitions[digest] += 1
        return msgspec.structs.replace(command, key=f"given {digest} {self._repetitions[digest]}")


def _digest_of(command: KeyedCommand) -> str:
    try:
        content = msgspec.json.encode((type(command).__name__, command), order="deterministic")
    except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, TypeError, ValueError) as error:
        raise CommandRejected(f"a {type(command).__name__} must be plain data: {error}") from None
    return hashlib.sha256(content).hexdigest()[:16]


def outcome_of(call: Callable[[], R], errors: type[Exception]) -> ActorFuture[R]:
    """Return a future of what `call` returned, or of which of `errors` it raised."""
    future: ActorFuture[R] = ActorFuture()
    try:
        future.set(call())
    except errors as error:
        future.settle(error=error)
    return future


def in_thread(call: Callable[[], R], name: str) -> ActorFuture[R]:
    """Return what `call` returns, or raises, in a daemon thread; at once, on a loop that has none."""
    future: ActorFuture[R] = ActorFuture()

    def settle() -> None:
        try:
            future.settle(call())
        except BaseException as error:  # noqa: BLE001 - handed to the waiting caller
            future.settle(error=error)

    if has_threads():
        worker = SerialWorker(name)
        worker.put(settle)
        worker.end()
    else:
        settle()
    return future


async def loaded(*modules: str) -> None:
    """Import modules that take long, such as those that need numpy, unless they are there."""
    missing = [module for module in modules if module not in sys.modules]
    if missing:
        await in_thread(lambda: [import_module(module) for module in missing], f"importing {missing[0]}")


def stream_objects_of(*holders: object) -> "tuple[StreamObject[Any, Any, Any], ...]":
    """Return what lives on the log of those who hold such objects: each names them in a tuple `stream_objects`."""
    every: list[StreamObject[Any, Any, Any]] = []
    for holder in holders:
        held: Any = getattr(holder, "stream_objects", ())
        if type(held) is tuple:
            every.extend(cast("tuple[StreamObject[Any, Any, Any], ...]", held))
    return tuple(every)
