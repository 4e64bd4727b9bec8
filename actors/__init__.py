"""Who acts: the actor kernel, the journal, and one event-sourced shell for each kind of actor.

The kernel (`actor`, `actor_ref`, `system`) knows nothing of events; `event_sourced` puts a pure core into an
actor; `session`, `model` and `tool` are the actors of an agent. Names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.actors.cancellation import CancellationToken as CancellationToken
    from refold.actors.effects import Performed as Performed
    from refold.actors.event_sourced import EventSourcedActor as EventSourcedActor
    from refold.actors.hosting import Host as Host
    from refold.actors.hosting import Hosted as Hosted
    from refold.actors.journal import Journal as Journal
    from refold.actors.kernel.actor import Actor as Actor
    from refold.actors.kernel.clock import Clock as Clock
    from refold.actors.kernel.clock import ManualClock as ManualClock
    from refold.actors.kernel.clock import SystemClock as SystemClock
    from refold.actors.kernel.clock import Timer as Timer
    from refold.actors.kernel.errors import ActorStopped as ActorStopped
    from refold.actors.kernel.errors import AskCycle as AskCycle
    from refold.actors.kernel.errors import AskTimeout as AskTimeout
    from refold.actors.kernel.errors import WouldDeadlock as WouldDeadlock
    from refold.actors.kernel.future import ActorFuture as ActorFuture
    from refold.actors.kernel.ref import ActorRef as ActorRef
    from refold.actors.kernel.supervision import ActorFailure as ActorFailure
    from refold.actors.kernel.system import ActorSystem as ActorSystem
    from refold.actors.system import EventSourcedSystem as EventSourcedSystem
    from refold.actors.thread_pool import LateOutcome as LateOutcome
    from refold.actors.thread_pool import ThreadPool as ThreadPool
    from refold.actors.thread_pool import ThreadWork as ThreadWork

__all__ = [
    "Actor",
    "ActorFailure",
    "ActorFuture",
    "ActorRef",
    "ActorStopped",
    "ActorSystem",
    "AskCycle",
    "AskTimeout",
    "CancellationToken",
    "Clock",
    "EventSourcedActor",
    "EventSourcedSystem",
    "Host",
    "Hosted",
    "Journal",
    "LateOutcome",
    "ManualClock",
    "Performed",
    "SystemClock",
    "ThreadPool",
    "ThreadWork",
    "Timer",
    "WouldDeadlock",
]

_HOMES = {
    "Actor": "refold.actors.kernel.actor",
    "ActorFailure": "refold.actors.kernel.supervision",
    "ActorFuture": "refold.actors.kernel.future",
    "ActorRef": "refold.actors.kernel.ref",
    "ActorStopped": "refold.actors.kernel.errors",
    "ActorSystem": "refold.actors.kernel.system",
    "AskCycle": "refold.actors.kernel.errors",
    "AskTimeout": "refold.actors.kernel.errors",
    "CancellationToken": "refold.actors.cancellation",
    "Clock": "refold.actors.kernel.clock",
    "EventSourcedActor": "refold.actors.event_sourced",
    "EventSourcedSystem": "refold.actors.system",
    "Host": "refold.actors.hosting",
    "Hosted": "refold.actors.hosting",
    "Journal": "refold.actors.journal",
    "LateOutcome": "refold.actors.thread_pool",
    "ManualClock": "refold.actors.kernel.clock",
    "Performed": "refold.actors.effects",
    "SystemClock": "refold.actors.kernel.clock",
    "ThreadPool": "refold.actors.thread_pool",
    "ThreadWork": "refold.actors.thread_pool",
    "Timer": "refold.actors.kernel.clock",
    "WouldDeadlock": "refold.actors.kernel.errors",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
