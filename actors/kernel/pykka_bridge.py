"""How an actor on the loop talks to a `pykka.ThreadingActor` of the user without freezing the loop.

pykka's own future blocks the loop when awaited. The bridge puts the message into the thread actor's inbox together
with a reply of ours, which the actor's thread settles and any coroutine may await. The other direction needs no
bridge: a thread actor uses our refs as they are.

The rules protected here: nothing blocks the loop; every ask ends, also where the thread actor stops or dies with it;
a thread actor that works for a handler of ours, and blocks for another, is seen by the search for circles.
"""

import os
import queue
import threading
from asyncio import AbstractEventLoop, events
from typing import Any, Protocol, cast
from weakref import WeakValueDictionary

import pykka
from pykka._envelope import Envelope  # the one way to give pykka a reply of our own; pinned by a test
from pykka.messages import ProxyGetAttr

from refold.actors.kernel.errors import ActorStopped, WouldDeadlock
from refold.actors.kernel.reply import ExcInfo, Handling, Reply, current_handling, settle_in_thread
from refold.events.core.errors import BackpressureShed, ConfigError

NO_MESSAGE = ProxyGetAttr(attr_path=())
"""What any pykka actor answers by itself, without calling anything of the user's."""


class AskingSystem(Protocol):
    """As much of an actor system as an ask needs to know."""

    loop: AbstractEventLoop

    def expect(self, reply: Reply, timeout_s: float | None) -> None: ...


class ThreadActorBridge:
    """A ref to a thread actor, for use on the system's loop; threads use the thread actor's own ref."""

    def __init__(self, system: AskingSystem, thread_actor: pykka.ActorRef[Any]) -> None:
        """Lead to `thread_actor`; `ActorSystem.bridge` is the usual way to get one."""
        if not hasattr(thread_actor, "actor_inbox"):
            raise ConfigError(f"{thread_actor} needs no bridge; write `await ref.ask(message, block=False)`")
        self._system = system
        self._thread_actor = thread_actor
        self._asked = _asked_of(thread_actor)

    def tell(self, message: Any) -> None:
        """Send a message and forget it. What is told to an actor that is about to stop may be lost, as in pykka.

        Raises:
            ActorStopped: the thread actor has stopped.
            BackpressureShed: its inbox is bounded and full.
            ConfigError: called off the system's loop.
        """
        self._check_loop()
        if not self._thread_actor.is_alive():
            raise ActorStopped(self._asked.address, "this thread actor has stopped; start another")
        self._put(Envelope(message))

    def ask(self, message: Any, *, timeout: float | None = None) -> Reply:
        """Send a message and return a future of the reply; `await` it.

        Args:
            timeout: seconds until the reply is AskTimeout; None = the system's `ask_timeout_s`.

        Returns:
            A future of the answer. It raises what the thread actor's handler raised; ActorStopped if the thread actor
            has stopped, or stops or dies before it answers; AskCycle if the thread actor waits, perhaps through
            others, for the handler that awaits; BackpressureShed if its inbox is bounded and full. An actor with a
            bounded inbox that dies of this very message shows as AskTimeout.

        Raises:
            ConfigError: called off the system's loop.
        """
        self._check_loop()
        reply = _ThreadReply(self._system, self._asked)
        if not self._thread_actor.is_alive():
            reply.settle(error=ActorStopped(reply.address, "this thread actor has stopped; start another"))
            return reply
        self._system.expect(reply, timeout)
        try:
            self._put(_AskedMessage(message, reply))
        except BackpressureShed as error:
            reply.settle(error=error)
            return reply
        if not getattr(self._thread_actor.actor_inbox, "maxsize", 0):
            self._put(Envelope(NO_MESSAGE, reply_to=_Overtaken(reply)))
        if not self._thread_actor.is_alive():  # it may have stopped before the message came, and emptied its inbox
            reply.settle_stopped()
        return reply

    def future(self, future: pykka.Future[Any], *, timeout: float | None = None) -> Reply:
        """Return a future of the outcome of one of pykka's, which on the loop cannot be awaited itself.

        A daemon thread waits for it until it has an outcome, even if nobody wants that any more.

        Args:
            timeout: seconds until the outcome is AskTimeout; None = the system's `ask_timeout_s`.
        """
        self._check_loop()
        reply = Reply(self._system.loop, self._asked.address)
        self._system.expect(reply, timeout)
        settle_in_thread(reply, future)
        return reply

    def proxy(self) -> "pykka.ActorProxy[Any]":
        """Return a proxy whose calls and attributes are futures to await. Setting an attribute raises WouldDeadlock."""
        return pykka.ActorProxy(actor_ref=_BridgedRef(self, self._thread_actor))

    def _put(self, envelope: "Envelope[Any]") -> None:
        inbox: object = self._thread_actor.actor_inbox
        if not isinstance(inbox, queue.Queue):
            self._thread_actor.actor_inbox.put(envelope)
            return
        bounded = cast("queue.Queue[Envelope[Any]]", inbox)
        try:
            bounded.put_nowait(envelope)
        except queue.Full:
            raise BackpressureShed(bounded.qsize(), bounded.maxsize, of=self._asked.address) from None

    def _check_loop(self) -> None:
        if events._get_running_loop() is not self._system.loop:
            raise ConfigError(
                f"the bridge to {self._asked.address} is for its system's loop; a thread uses the actor's own ref"
            )


class _AskedActor:
    """A thread actor as those see it who wait for it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.handling: Handling | None = None
        """The message of a bridge that it handles now, if it does. Written by its thread, read by loops."""


_asked: "WeakValueDictionary[str, _AskedActor]" = WeakValueDictionary()
_asking = threading.Lock()


def _renew_lock() -> None:
    """In a forked child: the thread that held it in the parent does not run here."""
    global _asking
    _asking = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _asked_of(thread_actor: pykka.ActorRef[Any]) -> _AskedActor:
    """Return one object per thread actor, whichever bridge leads to it: circles may go through several bridges."""
    with _asking:
        return _asked.setdefault(thread_actor.actor_urn, _AskedActor(str(thread_actor)))


class _ThreadReply(Reply):
    """An answer that is to come from a thread actor."""

    def __init__(self, system: AskingSystem, asked: _AskedActor) -> None:
        super().__init__(system.loop, asked.address)
        self.answerer = asked
        self._asked = asked

    def begin(self) -> None:
        """Note, in the thread actor's thread, that it handles the message now: it works for those who wait for this."""
        self._asked.handling = Handling(self._asked)
        current_handling.set(self._asked.handling)

    def set(self, value: Any = None) -> None:
        self._end()
        self.settle(value)

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        self._end()
        error = exc_info[1] if exc_info is not None else None
        if isinstance(error, pykka.ActorDeadError) and not isinstance(error, ActorStopped):
            self.settle(error=ActorStopped(self.address, "it stopped before it handled the message; nothing was done"))
        else:
            super().set_exception(exc_info)

    def settle_stopped(self) -> None:
        reason = "this thread actor stopped before it answered; whether the message had an effect is unknown"
        self.settle(error=ActorStopped(self.address, reason))

    def _end(self) -> None:
        self._asked.handling = None
        current_handling.set(None)


class _AskedMessage(Envelope[Any]):
    """A message on its way to a thread actor, which tells its reply when that takes it out of its inbox."""

    def __init__(self, message: Any, reply: _ThreadReply) -> None:
        self._message = message
        self._reply = reply
        self.reply_to = reply

    @property
    def message(self) -> Any:
        """What the actor is to handle: nothing, where waiting for the answer would never end."""
        if self._reply.withdrawn:
            return NO_MESSAGE
        self._reply.begin()
        return self._message

    def __repr__(self) -> str:
        return f"Envelope(message={self._message!r}, reply_to={self._reply!r})"


class _Overtaken(pykka.Future[None]):
    """The reply of a message that does nothing and stands behind one that is asked.

    A stopping pykka actor answers what is left in its inbox, but not the message that it died of.
    """

    def __init__(self, reply: _ThreadReply) -> None:
        self._asked_before = reply

    def set(self, value: Any = None) -> None:
        """Note that the message before this one was handled, and so answered."""

    def set_exception(self, exc_info: ExcInfo | None = None) -> None:
        self._asked_before.settle_stopped()


class _BridgedRef(pykka.ActorRef[Any]):
    def __init__(self, bridge: ThreadActorBridge, thread_actor: pykka.ActorRef[Any]) -> None:
        self._bridge = bridge
        self._actor_weakref = thread_actor._actor_weakref  # pyright: ignore[reportPrivateUsage]
        self.actor_class = thread_actor.actor_class
        self.actor_urn = thread_actor.actor_urn
        self.actor_inbox = thread_actor.actor_inbox
        self.actor_stopped = thread_actor.actor_stopped

    def tell(self, message: Any) -> None:
        self._bridge.tell(message)

    def ask(self, message: Any, *, block: bool = True, timeout: float | None = None) -> Any:
        if block:
            raise WouldDeadlock(
                f"setting an attribute of {self} through a proxy would block the loop; write "
                "`await bridge.ask(pykka.messages.ProxySetAttr(attr_path=('name',), value=value))`"
            )
        return self._bridge.ask(message, timeout=timeout)
