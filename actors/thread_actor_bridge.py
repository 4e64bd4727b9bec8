"""How an actor on the loop talks to a `pykka.ThreadingActor` of the user without freezing the loop.

pykka's own future blocks the loop when awaited. The bridge puts the message into the thread actor's inbox together
with a reply of ours, which the actor's thread settles and any coroutine may await. The other direction needs no
bridge: a thread actor uses our refs as they are.
"""

from typing import TYPE_CHECKING, Any

import pykka
from pykka._envelope import Envelope  # the one way to give pykka a reply of our own; pinned by a test

from refold.actors.errors import ActorStopped
from refold.actors.reply import Reply

if TYPE_CHECKING:
    from refold.actors.actor_system import ActorSystem


class ThreadActorBridge:
    """A ref to a thread actor, for use on the system's loop."""

    def __init__(self, system: "ActorSystem", thread_actor: pykka.ActorRef[Any]) -> None:
        self._system = system
        self._thread_actor = thread_actor

    def tell(self, message: Any) -> None:
        """Send a message and forget it.

        Raises:
            ActorStopped: the thread actor has stopped.
        """
        self._put(message, None)

    def ask(self, message: Any, *, timeout: float | None = None) -> Reply:
        """Send a message and return a future of the reply; `await` it.

        Args:
            timeout: seconds until the reply is AskTimeout; None = the system's `ask_timeout_s`.

        Raises:
            ActorStopped: the thread actor has stopped. One that stops without answering shows as AskTimeout.
        """
        reply = Reply(self._system.loop, str(self._thread_actor))
        self._put(message, reply)
        self._system.expect(reply, timeout)
        return reply

    def _put(self, message: Any, reply: Reply | None) -> None:
        if not self._thread_actor.is_alive():
            raise ActorStopped(str(self._thread_actor), "this thread actor has stopped; start another")
        self._thread_actor.actor_inbox.put(Envelope(message, reply_to=reply))
