"""What can happen to a runtime: it starts and closes, and an actor of it fails."""

from typing import TypeAlias

from refold.events.configuration import CodeIdentity
from refold.events.event import Event
from refold.events.ids import StreamName, stream_name

RUNTIME_STREAM: StreamName = stream_name("runtime", "log")
"""The one stream of runtime events in a log."""


class RuntimeStarted(Event, frozen=True, kw_only=True, tag="runtime.started.v1"):
    """A runtime took the log over."""

    code: CodeIdentity


class RuntimeClosed(Event, frozen=True, kw_only=True, tag="runtime.closed.v1"):
    """The runtime ended in order."""

    open_runs: int
    """Runs that were left open, to go on at the next start."""


class ActorFailed(Event, frozen=True, kw_only=True, tag="runtime.actor_failed.v1"):
    """An actor raised, and was restarted from its log or stopped."""

    address: str
    error: str
    """Type of the error."""
    message: str
    restarts: int
    """Restarts in the present window."""
    stopped: bool
    """It failed too often and stays stopped."""


class RecallsNoted(Event, frozen=True, kw_only=True, tag="runtime.recalls_noted.v1"):
    """What was recalled for answers is noted in the memories, as far as an earlier runtime had left that."""

    position: int
    """Of answers before this place in the log."""


RuntimeEvent: TypeAlias = RuntimeStarted | RuntimeClosed | ActorFailed | RecallsNoted
"""Any event of the runtime's stream."""
