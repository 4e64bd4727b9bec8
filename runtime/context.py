"""What the parts of an open runtime share: its log, its actors, and what tells those who follow its sessions.

`refold.life.lifecycle` makes it when a runtime opens. The rule: a part takes this, or less, and never the whole
runtime, so that each can be read by itself.
"""

from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec

from refold.actors.agent.subsession import SessionEnvelope
from refold.actors.calls.context import Dependencies
from refold.actors.calls.middleware import Hooks
from refold.actors.calls.protocols import ToolRunner
from refold.actors.calls.tool_context import ToolWaits
from refold.actors.hosting import HostedKinds
from refold.actors.kernel.system import ActorSystem
from refold.actors.shell.effects import EffectsInFlight
from refold.actors.shell.journal import Journal
from refold.actors.shell.messages import Envelope, Performed
from refold.events.core.errors import PersistenceError
from refold.events.core.ids import PayloadHash, SessionId, StreamName, stream_name
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import SessionState
from refold.options import Settings
from refold.publishing.event_bus import EventBus
from refold.publishing.notifications import RecordedSessionEvent
from refold.publishing.subscription import read_recorded
from refold.stores.event_store import EventStore

T = TypeVar("T")


class Reach(Protocol):
    """How sessions are reached: by their actors in this process, or through the process that owns the log."""

    async def read(self, stream: StreamName, question: Callable[[SessionState], T], *, vital: bool) -> T:
        """Return what a session's durable state answers."""
        ...

    async def ask(self, stream: StreamName, envelope: SessionEnvelope, *, timeout_s: float | None) -> Performed:
        """Return when a command is accepted and durable; None = after the runtime's `ask_timeout_s` it is an error."""
        ...

    def tell(self, stream: StreamName, envelope: Envelope) -> None:
        """Have a command performed, from any thread; raise ActorStopped where that is too late."""
        ...


class RuntimeContext(msgspec.Struct, kw_only=True, eq=False):
    """An open runtime, as its sessions, its inbox, its metrics and its subagents see it.

    Where a log is shared, it changes with the owner: `store`, `journal`, `system`, `in_flight` and `has_hooks`.
    """

    settings: Settings
    store: EventStore
    """The log."""
    journal: Journal
    """Writes the log for all actors."""
    system: ActorSystem
    reach: Reach
    """How its sessions are reached."""
    event_bus: EventBus
    """Tells of events that are durable, and of what passes by."""
    dependencies: Dependencies
    """What the application depends on, for each run."""
    hosted: HostedKinds
    """The kinds of the application's own actors."""
    in_flight: EffectsInFlight
    """The effects that run in this process."""
    agents: tuple[str, ...]
    """The names of its agents, the main one first, whose sessions users begin."""
    output_types: Mapping[str, type[object] | None]
    """What the answers of each are; None = text."""
    has_hooks: bool
    """Whether any of its agents has middleware."""
    hooks_of: Callable[[str | None], Hooks | None]
    """Returns the middleware of an agent, by its name; None = of the main one."""
    tools_of: Callable[[str | None], ToolRunner]
    """Returns the tools of an agent, as they are now, by its name; None = of the main one."""
    tools_in_force: Callable[[], Awaitable[None]]
    """Returns when the tools that were registered or removed so far are so for every input that is sent now."""
    require_open: Callable[[], None]
    """Raises ConfigError on another event loop and in a forked child, and ActorStopped once the runtime is closing."""
    is_closing: Callable[[], bool]
    """Returns whether it is closed, or about to be."""
    failed_appends_of: Callable[[StreamName], int]
    """Returns how many appends of a stream the log has refused since the runtime opened."""
    fork: Callable[[SessionId, object], Awaitable[SessionId]]
    """Makes a fork of a session as a `WantedFork` says, here or in the process that owns the log; returns its id."""
    configured_payloads: Callable[[], Collection[PayloadHash]]
    """Returns the payloads that a session which begins now names: prompts and schemas."""
    forget_steps: Callable[[Sequence[SessionId]], Awaitable[int]]
    """Deletes the checkpoints of turns of sessions, and returns how many there were."""
    tool_waits: ToolWaits = msgspec.field(default_factory=ToolWaits)
    """The waits of its tools for sessions."""

    @contextmanager
    def reading(self) -> Generator[None]:
        """Around a read of the log: raise ActorStopped where it fails since the runtime is closed."""
        try:
            yield
        except PersistenceError:
            self.require_open()
            raise

    async def recorded_after(self, session: SessionId, version: int, limit: int) -> list[RecordedSessionEvent]:
        """Return the next `limit` events of a session after a version, or those there are."""
        return await read_recorded(self.store, stream_name(SESSION_KIND, session), after_version=version, limit=limit)
