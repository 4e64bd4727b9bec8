"""Refs and mailboxes: how an actor is talked to, and where a message waits for it.

A ref names an address in a system, not an instance, so it stays good when the actor is restarted, or stopped for
being idle and started again. It is a `pykka.ActorRef` and may be used from any thread. A mailbox is the queue of one
address; `refold.actors.kernel.cell` handles what lies in it.

The rules: nobody blocks the loop's own thread. A blocking `ask` or `stop` there raises WouldDeadlock before anything is
sent; `block=False` and `await` are the loop's spelling. An idle mailbox has no queue and nothing scheduled; a full one
refuses what comes last, and its sender is told; what leaves a mailbox unhandled is answered, or parked if nobody asked.
To wake a loop from outside costs a system call, so the first thread to enter something wakes the loop, and the others
only add to the queue; a wake-up runs what entered before it, in order of entering.
"""

import contextlib
from asyncio import AbstractEventLoop, events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, overload
from weakref import ReferenceType, ref

import msgspec
import pykka

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import ActorStopped, WouldDeadlock
from refold.actors.kernel.pykka_bridge import ThreadActorBridge
from refold.actors.kernel.reply import ActorFuture, Handling, Reply, current_handling
from refold.actors.kernel.supervision import ActorFailure, ParkedMessage, Supervisor
from refold.events.core.errors import BackpressureShed

S = TypeVar("S", bound="System")


class Signal:
    """A message of the kernel to a cell: `START` or `STOP`."""

    __slots__ = ()


START: Final = Signal()
"""The first envelope of a cell that is started explicitly: start the instance, and reply when that is done."""
STOP: Final = Signal()
"""Stop when this is reached, and reply True when stopped."""

Envelope = tuple[object, Reply | None]
"""A message and, if it was asked, where its answer goes."""


class Vital(msgspec.Struct, frozen=True):
    """A message that a full mailbox takes, since it belongs to work that was accepted before."""

    def is_vital(self) -> bool:
        """Return whether it does; a subclass may leave that to the sender."""
        return True


def is_vital(message: object) -> bool:
    return type(message) is Signal or (isinstance(message, Vital) and message.is_vital())


class Mailbox(Generic[S]):
    """Envelopes in order of arrival. Only on the system's loop."""

    __slots__ = ("_queue", "_running", "address", "capacity", "handling", "system")

    def __init__(self, system: S, address: str) -> None:
        self.system = system
        self.address = address
        self.capacity = system.mailbox_capacity
        """Most messages that may wait."""
        self.handling: Handling | None = None
        """The hook of the actor that is being awaited, if one is."""
        self._queue: deque[Envelope] | None = None  # None while idle: an empty deque takes 624 bytes
        self._running = False  # whether an activation is scheduled or under way

    def put(self, message: object, reply: Reply | None) -> None:
        """Add a message, and have it handled; raise BackpressureShed where there is no room and it is not vital."""
        queue = self._queue
        if queue is None:
            queue = self._queue = deque()
        elif len(queue) >= self.capacity and not is_vital(message):
            self.system.note_shed()
            raise BackpressureShed(len(queue), self.capacity, of=self.address)
        if reply is not None:
            reply.answerer = self
        queue.append((message, reply))
        if not self._running:
            self._running = True
            self._schedule()

    def depth(self) -> int:
        """Return how many messages wait; a good guess in any thread."""
        queue = self._queue
        return len(queue) if queue is not None else 0

    def has_messages(self) -> bool:
        return any(type(message) is not Signal for message, _ in self._queue or ())

    def _schedule(self) -> None:
        raise NotImplementedError

    def _hand_over(self, heir: "Mailbox[S]") -> None:
        """Give users' messages to the address's next life; who wanted this one stopped has got that."""
        queue, self._queue = self._queue or deque(), None
        heir.capacity, capacity = len(queue) + heir.capacity, heir.capacity  # What was taken once has a place.
        for message, reply in queue:
            if type(message) is not Signal:
                heir.put(message, reply)
            elif reply is not None:
                reply.settle(True)
        heir.capacity = capacity

    def _refuse_messages(self, reason: str) -> None:
        for _ in range(len(self._queue or ())):
            assert self._queue is not None
            message, reply = self._queue.popleft()
            if type(message) is Signal:
                self._queue.append((message, reply))
            else:
                self._refuse(message, reply, reason)

    def _refuse_all(self, reason: str) -> None:
        """Answer everything that waits with ActorStopped, except what only wanted the stop."""
        while self._queue:
            message, reply = self._queue.popleft()
            if message is STOP and reply is not None:
                reply.settle(True)
            else:
                self._refuse(message, reply, reason)

    def _refuse(self, message: object, reply: Reply | None, reason: str) -> None:
        if reply is not None:
            reply.settle(error=ActorStopped(self.address, reason))
        else:
            self.system.set_aside(self.address, message, reason)


class CrossThreadQueue:
    """What any thread enters, for one event loop to run."""

    def __init__(self, loop: AbstractEventLoop, context: Context) -> None:
        self._loop = loop
        self._context = context
        self._entered: deque[Callable[[], None]] = deque()
        self._woken = False

    def enter(self, action: Callable[[], None]) -> bool:
        """Have the loop run `action` soon, which must not raise; return False if the loop is closed."""
        self._entered.append(action)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # It is closed.
                self._loop.call_soon_threadsafe(self._run, context=self._context)
        if self._loop.is_closed():  # Perhaps before it ran what had woken it.
            self._entered.clear()
            return False
        return True

    def _run(self) -> None:
        entered = self._entered
        if not entered:
            self._woken = False
            if not entered:  # a thread that comes after this wakes the loop again
                return
            self._woken = True
        try:
            for _ in range(len(entered)):
                entered.popleft()()
        finally:
            # Once more, when what has entered is handled: a thread that goes on sending need not wake the loop each
            # time. Also after a KeyboardInterrupt, for a loop that is run again.
            self._loop.call_soon(self._run, context=self._context)


class Receiver(Protocol):
    """As much of a cell as a ref needs to know."""

    @property
    def open(self) -> bool: ...

    def put(self, message: object, reply: Reply | None) -> None: ...
    def put_at_once(self, message: object) -> None: ...


class System(Protocol):
    """`ActorSystem`, which describes each of these, as those see it who live in it: actors, their refs and cells."""

    clock: Clock
    loop: AbstractEventLoop
    mailbox_capacity: int
    supervisor: Supervisor

    @property
    def courier(self) -> "Callable[[ActorRef, Any], object]": ...
    @property
    def failures(self) -> tuple[ActorFailure, ...]: ...
    @property
    def parked(self) -> tuple[ParkedMessage, ...]: ...
    def register(self, kind: str, factory: Callable[[str], Any]) -> None: ...
    def knows(self, kind: str) -> bool: ...
    def ref(self, address: str) -> "ActorRef": ...
    def live(self) -> tuple[str, ...]: ...
    def live_count(self) -> int: ...
    def forgive(self, address: str) -> bool: ...
    async def start(
        self, factory: Callable[..., Any], *args: Any, address: str | None = None, **kwargs: Any
    ) -> "ActorRef": ...
    def bridge(self, thread_actor: pykka.ActorRef[Any]) -> ThreadActorBridge: ...
    async def close(self, grace_s: float | None = None) -> tuple[str, ...]: ...

    # For refs and cells

    def unreachable_because(self, address: str) -> str | None: ...
    def cell_for(self, address: str) -> Receiver: ...
    def instance(self, address: str) -> object | None: ...
    def class_at(self, address: str) -> type[Any]: ...
    def deliver(self, ref: "ActorRef", message: object, reply: Reply, timeout_s: float | None) -> None: ...
    def expect(self, reply: Reply, timeout_s: float | None) -> None: ...
    def post(self, ref: "ActorRef", message: object, reply: Reply | None, timeout_s: float | None = None) -> None: ...
    def stop_address(self, address: str, reply: Reply, *, now: bool) -> None: ...
    def post_stop(self, address: str, reply: Reply, *, now: bool) -> None: ...
    def note_shed(self) -> None: ...
    def set_aside(self, address: str, message: object, reason: str) -> None: ...


class _Nobody:
    """What a dead reference refers to."""


class ActorRef(pykka.ActorRef[Any]):
    """An address to talk to; two refs to one address in one system are equal."""

    __slots__ = ("address", "cell", "system")

    def __init__(self, system: System, address: str) -> None:
        """Name `address` in `system`; `ActorSystem.ref` is the usual way to get one."""
        self.system = system
        self.address = address
        self.cell: Receiver | None = None
        """Where the last message went; on the loop's thread only."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorRef) and self.address == other.address and self.system is other.system

    def __hash__(self) -> int:
        return hash(self.address)

    def __repr__(self) -> str:
        return f"<ActorRef {self.address}>"

    def __str__(self) -> str:
        return self.address

    @property
    def actor_urn(self) -> str:  # type: ignore[override]
        """The address, under pykka's name for it."""
        return self.address

    @property
    def actor_class(self) -> type[Any]:  # type: ignore[override]
        """Class of the present instance, or `Actor` while there is none."""
        return self.system.class_at(self.address)

    @property
    def _actor_weakref(self) -> "ReferenceType[Any]":  # type: ignore[override]
        """What pykka's proxy looks attributes up in; a dead reference, as it expects, while there is no instance."""
        return ref(self.system.instance(self.address) or _Nobody())

    def is_alive(self) -> bool:
        """Return whether a message sent now would be accepted, starting the actor if need be."""
        return self.system.unreachable_because(self.address) is None

    def tell(self, message: Any) -> None:
        """Send a message and forget it. Never blocks; from any thread.

        Raises:
            ActorStopped: nobody at the address takes messages. From another thread the actor may still stop
                between this call and the delivery; the message is then set aside, see `ActorSystem.parked`.
            BackpressureShed: its mailbox is full.
        """
        if events._get_running_loop() is self.system.loop:
            self._open_cell().put(message, None)
        else:
            self.system.post(self, message, None)

    def tell_at_once(self, message: Any) -> None:
        """Send a message on the loop's own thread; an actor at rest that need not wait has handled it on return.

        So its handler runs within the caller's, in a context of its own. Raises as `tell`.
        """
        self._open_cell().put_at_once(message)

    def _open_cell(self) -> Receiver:
        cell = self.cell
        if cell is None or not cell.open:
            cell = self.cell = self.system.cell_for(self.address)
        return cell

    @overload
    def ask(self, message: Any, *, block: Literal[False], timeout: float | None = None) -> ActorFuture[Any]: ...
    @overload
    def ask(self, message: Any, *, block: Literal[True] = True, timeout: float | None = None) -> Any: ...
    @overload
    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any: ...

    # pyright refuses an exact copy of pykka's own overloads as well, because of their Any.
    def ask(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, message: Any, *, block: bool = True, timeout: float | None = None
    ) -> Any:
        """Send a message and get the reply: blocking, from any thread but the loop's, or as a future to await.

        Args:
            block: whether to block this thread for the reply; False returns an `ActorFuture`.
            timeout: seconds, by the system's clock, until the reply is AskTimeout; None = the system's
                `ask_timeout_s`, `math.inf` = none.

        Raises:
            WouldDeadlock: blocking on the loop's own thread; nothing was sent.
            ActorStopped: nobody at the address takes messages, or it stopped before it answered.
            BackpressureShed: its mailbox is full.
            AskTimeout: no reply in time; the message may still be handled.
            AskCycle: the actor asked waits for the handler that asks.
            Exception: what the actor's handler raised.

        The last five are the future's, where `block=False`.
        """
        system = self.system
        if events._get_running_loop() is system.loop:
            if block:
                raise WouldDeadlock(
                    f"a blocking ask of {self.address} on the loop's own thread would stop the loop that has to "
                    "answer it; write `await ref.ask(message, block=False)`"
                )
            reply = Reply(system.loop, self.address)
            system.deliver(self, message, reply, timeout)
            return reply
        reply = Reply(system.loop, self.address)
        if block:
            reply.waited_for_in = current_handling.get()
        system.post(self, message, reply, timeout)
        return reply.get() if block else reply

    @overload
    def stop(self, *, block: Literal[True], timeout: float | None = None, now: bool = False) -> bool: ...
    @overload
    def stop(self, *, block: Literal[False], timeout: float | None = None, now: bool = False) -> ActorFuture[bool]: ...
    @overload
    def stop(
        self, *, block: bool = True, timeout: float | None = None, now: bool = False
    ) -> bool | ActorFuture[bool]: ...

    def stop(self, *, block: bool = True, timeout: float | None = None, now: bool = False) -> bool | ActorFuture[bool]:
        """Stop the actor: its children first, then its background work, then `on_stop`.

        An actor whose kind is registered is started again by the next message; another is gone for good.

        Args:
            block: whether to block this thread until it has stopped; False returns a future.
            timeout: seconds to block at most; None = until it has stopped.
            now: False handles what is queued first. True answers it with ActorStopped and cancels a handler that
                waits, unless the handler itself is the caller: then it takes effect when the handler returns.

        Returns:
            True if it was alive, False if there was nothing to stop; or a future of that.

        Raises:
            WouldDeadlock: blocking on the loop's own thread; nothing was sent.
            AskTimeout: it did not stop within `timeout`; it will still stop.
        """
        reply = Reply(self.system.loop, self.address)
        if events._get_running_loop() is not self.system.loop:
            self.system.post_stop(self.address, reply, now=now)
        elif block:
            raise WouldDeadlock(
                f"a blocking stop of {self.address} on the loop's own thread would stop the loop that has to do it; "
                "write `await ref.stop(block=False)`"
            )
        else:
            self.system.stop_address(self.address, reply, now=now)
        return reply.get(timeout=timeout) if block else reply
