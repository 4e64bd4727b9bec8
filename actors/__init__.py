"""Who acts: the actor kernel, the event-sourced shell, and what each kind of actor plugs into it.

Read `shell.event_sourced` first: it puts a pure core into an actor. `kernel` has actors that know nothing of events,
`agent` those of an agent (session, model, tool, approval), and `calls` what one of their calls goes through. Names load
on first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.actors.cancellation import CancellationToken as CancellationToken
    from refold.actors.hosting import Host as Host
    from refold.actors.hosting import Hosted as Hosted
    from refold.actors.hosting import SyncHost as SyncHost
    from refold.actors.hosting import SyncHosted as SyncHosted
    from refold.actors.kernel.actor import Actor as Actor
    from refold.actors.kernel.clock import Clock as Clock
    from refold.actors.kernel.clock import ManualClock as ManualClock
    from refold.actors.kernel.clock import SystemClock as SystemClock
    from refold.actors.kernel.clock import Timer as Timer
    from refold.actors.kernel.errors import ActorStopped as ActorStopped
    from refold.actors.kernel.errors import AskCycle as AskCycle
    from refold.actors.kernel.errors import AskTimeout as AskTimeout
    from refold.actors.kernel.errors import WouldDeadlock as WouldDeadlock
    from refold.actors.kernel.ref import ActorRef as ActorRef
    from refold.actors.kernel.reply import ActorFuture as ActorFuture
    from refold.actors.kernel.supervision import ActorFailure as ActorFailure
    from refold.actors.kernel.system import ActorSystem as ActorSystem
    from refold.actors.shell.event_sourced import EventSourcedActor as EventSourcedActor
    from refold.actors.shell.journal import Journal as Journal
    from refold.actors.shell.messages import Performed as Performed
    from refold.actors.system import EventSourcedSystem as EventSourcedSystem
    from refold.actors.system import SyncSystem as SyncSystem
    from refold.actors.thread_pool import LateOutcome as LateOutcome
    from refold.actors.thread_pool import ThreadPool as ThreadPool
    from refold.actors.thread_pool import ThreadWork as ThreadWork
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.actors.cancellation": "CancellationToken",
            "refold.actors.shell.messages": "Performed",
            "refold.actors.shell.event_sourced": "EventSourcedActor",
            "refold.actors.hosting": "Host Hosted SyncHost SyncHosted",
            "refold.actors.shell.journal": "Journal",
            "refold.actors.kernel.actor": "Actor",
            "refold.actors.kernel.clock": "Clock ManualClock SystemClock Timer",
            "refold.actors.kernel.errors": "ActorStopped AskCycle AskTimeout WouldDeadlock",
            "refold.actors.kernel.reply": "ActorFuture",
            "refold.actors.kernel.ref": "ActorRef",
            "refold.actors.kernel.supervision": "ActorFailure",
            "refold.actors.kernel.system": "ActorSystem",
            "refold.actors.system": "EventSourcedSystem SyncSystem",
            "refold.actors.thread_pool": "LateOutcome ThreadPool ThreadWork",
        },
    )
