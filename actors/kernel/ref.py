"""Refs: how an actor is talked to.

A ref names an address in a system, not an instance, so it stays good when the actor is restarted, or stopped for
being idle and started again. It is a `pykka.ActorRef` and may be used from any thread.

The rule protected here: nobody blocks the loop's own thread. A blocking `ask` or `stop` there raises WouldDeadlock
before anything is sent; `block=False` and `await` are the loop's spelling.
"""

from asyncio import AbstractEventLoop, events
from collections.abc import Callable
from typing import Any, Literal, Protocol, overload
from weakref import ReferenceType, ref

import pykka

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import WouldDeadlock
from refold.actors.kernel.future import ActorFuture
from refold.actors.kernel.pykka_bridge import ThreadActorBridge
from refold.actors.kernel.reply import Reply, current_handling
from refold.actors.kernel.supervision import ActorFailure, ParkedMessage, Supervisor


class Receiver(Protocol):
    """As much of a cell as a ref needs to know."""

    @property
    def open(self) -> bool: ...

    def put(self, message: object, reply: Reply | None) -> None: ...


class System(Protocol):
    """`ActorSystem`, which describes each of these, as those see it who live in it: actors, their refs and cells."""

    clock: Clock
    loop: AbstractEventLoop
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
            cell = self.cell
            if cell is None or not cell.open:
                cell = self.cell = self.system.cell_for(self.address)
            cell.put(message, None)
        else:
            self.system.post(self, message, None)

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
