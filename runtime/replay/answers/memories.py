"""What an agent's memories answer in a replay: what they held at a place of the log, or what was recorded of them.

The rule: a memory that is not of the log cannot be asked what it held then, which is said.
"""

from typing import Any, TypeGuard

from refold.actors.calls.context import SessionContext
from refold.actors.calls.recall import Recalling, Remembered, seen_in
from refold.agents.agent import AnyAgent
from refold.events.model.configuration import AgentConfiguration
from refold.memory.stream_object import StreamObject
from refold.stores.event_store import EventStore
from refold.tools.dry_run import NotComparable


class PastRecalling(Recalling):
    """Asks an agent's memories as they were at a place of a log. Places are given in order."""

    def __init__(self, store: EventStore, agent: AnyAgent) -> None:
        super().__init__(None, None)
        self._store = store
        self._agent = agent
        self._then: dict[str, StreamObject[Any, Any, Any]] = {}
        """The parts of its memories that were asked last, by the field of the agent."""

    @property
    def not_of_the_log(self) -> str | None:
        """Why its memories cannot be asked, in words; None = they can."""
        for field in ("memory", "working_memory"):
            given = getattr(self._agent, field)
            if given is not None and not _is_of_the_log(given):
                return f"the agent's {field} is not one of the log, so that it cannot be asked what it held then"
        return None

    async def lacks(self) -> str | None:
        """Return which stream of what was asked last the log lacks, though streams were left out of it, in words."""
        removed = getattr(self._store, "removed_position", None)  # Stores of users need not know.
        for part in self._then.values():
            if await self._store.head(part.stream) is None and removed is not None and await removed():
                return f"the log lacks the stream {part.stream}, as an export of some streams does"
        return None

    async def go(self, position: int, at: int, context: SessionContext) -> bool:
        """Go to a place; return whether anything that the session sees is another since the last one.

        Args:
            position: of the last event that is to be known, whichever stream's it is.
            at: the time of the place, in microseconds since the epoch, UTC.
        """
        changed = False
        for field in ("memory", "working_memory"):
            given = getattr(self._agent, field)
            if not _is_of_the_log(given):
                continue
            seen = seen_in(given, context)
            then = self._then.get(field)
            if then is not None and then.stream == seen.stream:
                changed = await then.move_on(self._store, position, at) or changed
            else:
                self._then[field] = await seen.at(self._store, position=position)
                setattr(self, f"_{field}", self._then[field])
                changed = True
        return changed


class GivenRecalling(Recalling):
    """Says that what was recorded is remembered."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.recorded = Remembered()

    async def remembered(self, configuration: AgentConfiguration, query: str, context: SessionContext) -> Remembered:
        return self.recorded


def require_remembering(recalling: PastRecalling) -> None:
    """Return where memories can be asked.

    Raises:
        NotComparable: they cannot.
    """
    if (why := recalling.not_of_the_log) is not None:
        raise NotComparable(why)


def _is_of_the_log(memory: object) -> TypeGuard[StreamObject[Any, Any, Any]]:
    return isinstance(memory, StreamObject)
