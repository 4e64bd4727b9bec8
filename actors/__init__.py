"""Who acts: the actor kernel, the journal, and one event-sourced shell for each kind of actor.

The kernel (`actor`, `actor_ref`, `actor_system`) knows nothing of events; `event_sourced` puts a pure core into an
actor; `session`, `model` and `tool` are the actors of an agent. Names load on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.actors.actor import Actor as Actor
    from refold.actors.actor_ref import ActorRef as ActorRef
    from refold.actors.actor_system import ActorSystem as ActorSystem
    from refold.actors.cancellation import CancellationToken as CancellationToken
    from refold.actors.clock import Clock as Clock
    from refold.actors.clock import ManualClock as ManualClock
    from refold.actors.clock import SystemClock as SystemClock
    from refold.actors.clock import Timer as Timer
    from refold.actors.errors import ActorStopped as ActorStopped
    from refold.actors.errors import AskCycle as AskCycle
    from refold.actors.errors import AskTimeout as AskTimeout
    from refold.actors.errors import WouldDeadlock as WouldDeadlock
    from refold.actors.event_sourced import EventSourcedActor as EventSourcedActor
    from refold.actors.event_sourced_system import EventSourcedSystem as EventSourcedSystem
    from refold.actors.folded_actor import Performed as Performed
    from refold.actors.future import ActorFuture as ActorFuture
    from refold.actors.hosting import Host as Host
    from refold.actors.hosting import Hosted as Hosted
    from refold.actors.journal import Journal as Journal
    from refold.actors.supervision import ActorFailure as ActorFailure
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
    "Actor": "refold.actors.actor",
    "ActorFailure": "refold.actors.supervision",
    "ActorFuture": "refold.actors.future",
    "ActorRef": "refold.actors.actor_ref",
    "ActorStopped": "refold.actors.errors",
    "ActorSystem": "refold.actors.actor_system",
    "AskCycle": "refold.actors.errors",
    "AskTimeout": "refold.actors.errors",
    "CancellationToken": "refold.actors.cancellation",
    "Clock": "refold.actors.clock",
    "EventSourcedActor": "refold.actors.event_sourced",
    "EventSourcedSystem": "refold.actors.event_sourced_system",
    "Host": "refold.actors.hosting",
    "Hosted": "refold.actors.hosting",
    "Journal": "refold.actors.journal",
    "LateOutcome": "refold.actors.thread_pool",
    "ManualClock": "refold.actors.clock",
    "Performed": "refold.actors.folded_actor",
    "SystemClock": "refold.actors.clock",
    "ThreadPool": "refold.actors.thread_pool",
    "ThreadWork": "refold.actors.thread_pool",
    "Timer": "refold.actors.clock",
    "WouldDeadlock": "refold.actors.errors",
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
