"""What the parts of an open runtime share: its log, its actors, and what tells those who follow its sessions.

`refold.lifecycle` makes it when a runtime opens. The rule: a part takes this, or less, and never the whole runtime, so
that each can be read by itself.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from refold.actors.agent.deps import Dependencies
from refold.actors.calls.middleware import Hooks
from refold.actors.calls.protocols import ToolRunner
from refold.actors.effects import EffectsInFlight
from refold.actors.journal import Journal
from refold.actors.kernel.system import ActorSystem
from refold.events.core.ids import PayloadHash, SessionId, StreamName, stream_name
from refold.events.session.core import SESSION_KIND
from refold.options import Settings
from refold.publishing.event_bus import EventBus
from refold.publishing.notifications import RecordedSessionEvent
from refold.publishing.subscription import read_recorded
from refold.stores.event_store import EventStore


class RuntimeContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An open runtime, as its sessions, its inbox, its metrics and its subagents see it."""

    settings: Settings
    store: EventStore
    """The log."""
    journal: Journal
    """Writes the log for all actors."""
    system: ActorSystem
    event_bus: EventBus
    """Tells of events that are durable, and of what passes by."""
    dependencies: Dependencies
    """What the application depends on, for each run."""
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
    configured_payloads: Callable[[], Collection[PayloadHash]]
    """Returns the payloads that a session which begins now names: prompts and schemas."""
    forget_steps: Callable[[Sequence[SessionId]], Awaitable[int]]
    """Deletes the checkpoints of turns of sessions, and returns how many there were."""

    async def recorded_after(self, session: SessionId, version: int, limit: int) -> list[RecordedSessionEvent]:
        """Return the next `limit` events of a session after a version, or those there are.

        Raises:
            PersistenceError: the log cannot be read.
        """
        return await read_recorded(self.store, stream_name(SESSION_KIND, session), after_version=version, limit=limit)
