"""An agent as today's code has it, for a replay: all of it that decides, and nothing that acts.

Its provider is never asked, its tools give what was recorded of them, and its memories are those of the log at the
place that is done again.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from refold.actors.calls.middleware import Hooks
from refold.actors.calls.recall import Recalling, Remembered
from refold.actors.calls.request import RequestMaker
from refold.actors.calls.results import DEFAULT_RESULT_LIMIT, WithLimit
from refold.actors.calls.tool_context import ToolContext
from refold.actors.calls.verdicts import AnswerRules
from refold.actors.thread_pool import ThreadPool
from refold.agents.agent import Agent
from refold.agents.middleware_tools import HookedTools
from refold.events.core.content import JsonObject
from refold.events.core.ids import AgentId, PayloadHash
from refold.events.model.configuration import (
    CORE_VERSION,
    AgentConfiguration,
    CodeIdentity,
    ToolSpec,
    configuration_of,
)
from refold.memory.stream_object import StreamObject
from refold.sessions.structured_output import OutputCheck
from refold.stores.event_store import EventStore
from refold.tools.dry_run import NotComparable
from refold.version import __version__


class LogParts:
    """A log, and the prompts and schemas of today's agent, which it may not have."""

    def __init__(self, store: EventStore, own: dict[PayloadHash, bytes]) -> None:
        self._store = store
        self._own = own

    @property
    def name(self) -> str:
        """The log's name."""
        return self._store.name

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        """Return those payloads that there are."""
        wanted = list(hashes)
        own = {name: self._own[name] for name in wanted if name in self._own}
        return own | await self._store.read_payloads([name for name in wanted if name not in own])


class PastRecalling(Recalling):
    """Asks an agent's memories as they were at a place of a log. Places are given in order."""

    def __init__(self, store: EventStore, agent: Agent) -> None:
        super().__init__(None, None)
        self._store = store
        self._agent = agent
        self._then: list[StreamObject[Any, Any, Any]] | None = None

    @property
    def not_of_the_log(self) -> str | None:
        """Why its memories cannot be asked, in words; None = they can."""
        for field in ("memory", "working_memory"):
            given = getattr(self._agent, field)
            if given is not None and not isinstance(given, StreamObject):
                return f"the agent's {field} is not one of the log, so that it cannot be asked what it held then"
        return None

    async def go(self, position: int, at: int) -> bool:
        """Go to a place; return whether anything is another since the last one.

        Args:
            position: of the last event that is to be known, whichever stream's it is.
            at: the time of the place, in microseconds since the epoch, UTC.
        """
        if self._then is not None:
            return any([await then.move_on(self._store, position, at) for then in self._then])
        self._then = []
        if isinstance(memory := self._agent.memory, StreamObject):
            self._memory = past = await memory.at(self._store, position=position)
            self._then.append(past)
        if isinstance(working := self._agent.working_memory, StreamObject):
            self._working_memory = past_text = await working.at(self._store, position=position)
            self._then.append(past_text)
        return True


class GivenRecalling(Recalling):
    """Says that what was recorded is remembered."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.recorded = Remembered()

    async def remembered(self, configuration: AgentConfiguration, query: str) -> Remembered:
        """Return what was recorded."""
        return self.recorded


class RecordedTools(HookedTools):
    """Tools whose bodies are not run: they give what was recorded of them."""

    def __init__(self, agent: Agent, hooks: Hooks) -> None:
        super().__init__(agent, hooks, ThreadPool(name="never used"))
        self._recorded: object = None

    async def give(self, name: str, arguments: JsonObject, context: ToolContext[object], recorded: object) -> object:
        """Return what comes of a recorded value, or of a recorded error, between the hooks.

        Raises:
            Exception: as `HookedTools.run`.
        """
        self._recorded = recorded
        return await self.run(name, arguments, context)

    async def _value(self, name: str, arguments: JsonObject, context: ToolContext[object]) -> object:
        if isinstance(self._recorded, Exception):
            raise self._recorded
        tool = self.get(name)
        limit = tool.result_limit if tool is not None else DEFAULT_RESULT_LIMIT
        return self._recorded if limit == DEFAULT_RESULT_LIMIT else WithLimit(self._recorded, limit)


class TodaysAgent:
    """What of an agent decides.

    Args:
        agent: today's.
        store: the log.
    """

    def __init__(self, agent: Agent, store: EventStore) -> None:
        self.agent = agent
        self.hooks = agent.hooks() or Hooks(())
        self.tools = RecordedTools(agent, self.hooks)
        self.specs = self.tools.specs()
        self.configuration, own = configuration_of(
            agent.told_config(),
            agent=AgentId(agent.name),
            tools=self.specs,
            code=CodeIdentity(refold=__version__, core=CORE_VERSION),
        )
        output_check = OutputCheck(agent.output_type) if agent.output_type is not None else None
        self.output_check = output_check
        self.rules = AnswerRules(self.tools, agent.policy, output_check)
        self.given = GivenRecalling()
        self.parts = LogParts(store, own)
        self.requests = RequestMaker(
            self.parts, offer=agent.offer, recalling=self.given, window=agent.context, hooks=agent.hooks()
        )

    async def parts_of(self, recorded: AgentConfiguration) -> tuple[str, tuple[ToolSpec, ...]]:
        """Return the system prompt and the tools of a recorded configuration.

        Raises:
            LogFormatError: the log lacks them.
        """
        return await self.requests.prompt_and_tools(recorded)

    @property
    def remembers(self) -> bool:
        """Whether it has memories that enter its requests."""
        return self.agent.memory is not None or self.agent.working_memory is not None

    def in_place_of(self, recorded: AgentConfiguration) -> AgentConfiguration:
        """Return today's configuration under the recorded one's name, so that only what it says makes a difference."""
        return msgspec.structs.replace(
            self.configuration, agent=recorded.agent, code=recorded.code, fingerprint=recorded.fingerprint
        )


def require_remembering(recalling: PastRecalling) -> None:
    """Return where memories can be asked.

    Raises:
        NotComparable: they cannot.
    """
    if (why := recalling.not_of_the_log) is not None:
        raise NotComparable(why)
