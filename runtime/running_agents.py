"""The agents of one runtime: the main one, whose sessions users begin, and those that its tools lead to.

Each has its own tools, and in the actor system its own model, approval and tool actors: `model/<agent>`,
`approval/<agent>`, and `tool/<name>` for the main agent's tools, `tool/<agent>/<name>` for the others'. The rule: a
session is an agent's for ever, which its log names; so names of agents are distinct.

Tools that are registered or removed while a runtime is open: in force for every input that is sent afterwards.

A session decides by the configuration that its log names, which lists the tools; so another one has to be in the log
before a session may take it. What a tool brings along, such as its breaker, lives on the log from then on too. The
rules: a registration returns at once, and the sender of an input waits for it; until the log has it, a breaker works in
memory, and what happened by then is taken along.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from refold.actors.agent.approval import APPROVAL_KIND, ApprovalActor
from refold.actors.agent.model import MODEL_KIND, ModelActor
from refold.actors.agent.session import SessionPort, SessionSetting
from refold.actors.agent.subsession import SessionEnvelope
from refold.actors.agent.tool import ToolActor
from refold.actors.agent.tree_budget import TreeSpending
from refold.actors.calls.context import SessionContext
from refold.actors.hosting import Host
from refold.actors.kernel.actor import Actor
from refold.actors.kernel.supervision import Background
from refold.actors.kernel.system import ActorSystem
from refold.actors.shell.event_sourced import EventSourcedActor
from refold.actors.shell.journal import Journal
from refold.actors.shell.messages import Envelope, Performed, read_state
from refold.actors.thread_pool import ThreadPool
from refold.agents.agent import AgentTool, AnyAgent, SubagentTool, check_streams, with_subagents
from refold.agents.approval import asking
from refold.agents.middleware_tools import tools_of
from refold.agents.redact import redaction_of_agents
from refold.agents.subagent_runs import SubagentRuns
from refold.context import RuntimeContext
from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import ConfigError, RefoldError
from refold.events.core.ids import AgentId, PayloadHash, StreamName
from refold.events.kinds.tool import TOOL_KIND
from refold.events.model.configuration import CodeIdentity, configuration_of
from refold.events.model.spending import price_of
from refold.events.secrets.redaction import NOTHING_SECRET, Redaction
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.state import SessionState
from refold.memory.stream_object import StreamObject, stream_objects_of
from refold.options import Settings
from refold.sessions.inputs import next_time
from refold.sessions.structured_output import schema_problem
from refold.tools.tool import Tool

if TYPE_CHECKING:
    from refold.memory.graph import GraphStore

T = TypeVar("T")

log = logging.getLogger("refold.runtime")


class LateTools:
    """Puts in force what changes in the tools of an open runtime.

    Args:
        host: of the runtime.
        known: returns what lives on the log of the tools and all else that the runtime has now.
        renew: has later inputs find the tools that there are now.
    """

    def __init__(
        self,
        host: Host,
        known: Callable[[], Sequence[StreamObject[Any, Any, Any]]],
        renew: Callable[[], Awaitable[object]],
    ) -> None:
        self._host = host
        self._background = host.background
        self._known = known
        self._renew = renew
        self._taken = list(known())
        self._loop = asyncio.get_running_loop()
        self._tasks: set[Background] = set()
        self._turn = asyncio.Lock()
        self._ended = False

    def changed(self, new: Tool[..., object] | None) -> None:
        """Put in force that a tool is there now, or that one is gone; in any thread.

        Args:
            new: the tool; None = one is gone.
        """
        if self._ended:
            return
        check_streams(self._known())
        brought = stream_objects_of(new) if new is not None else ()
        fresh = [living for living in brought if not any(living is taken for taken in self._taken)]
        self._taken += fresh
        if asyncio._get_running_loop() is self._loop:
            self._begin(fresh)
        else:
            self._loop.call_soon_threadsafe(self._begin, fresh)

    async def in_force(self) -> None:
        """Return when everything that changed so far is in force."""
        while self._tasks:
            await next(iter(self._tasks)).wait()

    def _begin(self, fresh: Sequence[StreamObject[Any, Any, Any]]) -> None:
        if not self._ended:
            work = self._background("late tools", lambda: self._put_in_force(fresh), lambda: self._tasks.discard(work))
            self._tasks.add(work)

    async def _put_in_force(self, fresh: Sequence[StreamObject[Any, Any, Any]]) -> None:
        async with self._turn:  # Or an earlier state of the tools could come last.
            for living in fresh:
                try:
                    await living.attach(self._host)
                except RefoldError as error:
                    log.error("%s stays in memory: %s", living.stream, error)
            try:
                await self._renew()
            except RefoldError as error:
                log.error("sessions are not told which tools there are now: %s", error)

    async def end(self) -> None:
        """Put nothing more in force."""
        self._ended = True
        while self._tasks:
            for work in list(self._tasks):
                await work.stop()


class RunningAgent:
    """One agent of a runtime, and its tools."""

    def __init__(self, agent: AnyAgent, pool: ThreadPool, redaction: Redaction, *, is_main: bool) -> None:
        self.agent = agent
        self.id = AgentId(agent.name)
        self.hooks = agent.hooks()
        self.tools = tools_of(agent, self.hooks, pool, redaction)
        self.recalling = agent.recalling()
        self.tool_place = "" if is_main else f"{agent.name}/"
        """What stands before a tool's name in the identifier of its actor."""
        self.output_check = agent.output_check()
        self.provider = agent.answering()
        self.guardrails = agent.guardrails()


class RunningAgents:
    """The agents of one runtime.

    Args:
        main: the agent whose sessions users begin.
        pool: where synchronous tools run.

    Raises:
        ConfigError: two agents have one name, or a subagent is named that there is not.
    """

    def __init__(self, main: AnyAgent, pool: ThreadPool) -> None:
        self.configured_payloads: set[PayloadHash] = set()
        """Prompts and schemas that sessions which begin now name."""
        every = with_subagents(main)
        self.redaction = redaction_of_agents(every) or NOTHING_SECRET
        """What must not be in the log."""
        self.main = RunningAgent(main, pool, self.redaction, is_main=True)
        self._by_name: dict[str, RunningAgent] = {main.name: self.main}
        for agent in every[1:]:
            if agent.name in self._by_name:
                raise ConfigError(f"two agents are named {agent.name!r}; give each a name of its own: Agent(name=…)")
            self._by_name[agent.name] = RunningAgent(agent, pool, self.redaction, is_main=False)
        for found in self:
            for item in found.tools:
                if isinstance(item, AgentTool) and item.agent_name not in self._by_name:
                    raise ConfigError(
                        f"the tool {item.name!r} of the agent {found.agent.name!r} leads to the agent "
                        f"{item.agent_name!r}, and the runtime has only {', '.join(map(repr, sorted(self._by_name)))}"
                    )
        self._require_prices()
        self.agents: Mapping[str, AnyAgent] = MappingProxyType({found.agent.name: found.agent for found in self})
        check_streams(self.stream_objects())

    def _require_prices(self) -> None:
        configs = [found.agent.config for found in self]
        if any(config.tree_budget is not None and config.tree_budget.cost is not None for config in configs):
            for config in configs:
                if price_of(config.model, config.prices) is None:
                    raise ConfigError(f"a tree_budget limits the cost, and {config.model!r} has no price")

    def __iter__(self) -> Iterator[RunningAgent]:
        """Give the agents, the main one first."""
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> RunningAgent:
        """Return the agent of that name; the main one where there is none, as it takes over others' sessions."""
        return self._by_name.get(name, self.main)

    def stream_objects(self) -> tuple[StreamObject[Any, Any, Any], ...]:
        """Return everything of the agents and of the tools that they have now that lives on the log, each once."""
        every = (living for found in self for living in found.agent.stream_objects(found.tools))
        return tuple({id(living): living for living in every}.values())

    def cores_of_memories(self) -> dict[str, CheckedCore[Any, Any, Any]]:
        """Return the core of each kind of memory that they have."""
        return {living.kind: living.core for living in self.stream_objects() if living.is_everywhere}

    async def attach(self, host: Host, renew: Callable[[], Awaitable[object]]) -> LateTools:
        """Have the log take all of that, and see to the tools that are registered or removed later.

        Args:
            host: of the runtime.
            renew: has later inputs find the tools that there are then.
        """
        late = LateTools(host, self.stream_objects, renew)
        for found in self:
            found.tools.on_change = late.changed
        every = self.stream_objects()
        check_streams(every)
        for living in every:
            await living.attach(host)
        return late

    async def settings(
        self, journal: Journal, code: CodeIdentity, options: Settings, *, after_order: bool
    ) -> dict[AgentId, SessionSetting]:
        """Return what the sessions of each agent share, what it refers to being in the log.

        Args:
            journal: of the log.
            code: that will decide.
            options: of the runtime.
            after_order: whether the runtime before this one had ended in order.
        """
        payloads: dict[PayloadHash, bytes] = {}
        settings: dict[AgentId, SessionSetting] = {}
        for found in self:
            configuration, own = configuration_of(
                self.redaction.value(found.agent.told_config()),
                agent=found.id,
                tools=self.redaction.value(tuple(found.tools.specs())),
                code=code,
                builds_requests=found.agent.builds_requests,
                output_schema=found.agent.output_schema(),
            )
            payloads.update(own)
            settings[found.id] = SessionSetting(
                configuration=configuration,
                policies={policy.name: policy for policy in configuration.tools},
                tools=found.tools.names(),
                tool_place=found.tool_place,
                subagents=frozenset(item.name for item in found.tools if isinstance(item, SubagentTool)),
                auto_resume=options.auto_resume,
                after_order=after_order,
                cancel_grace_s=options.cancel_grace_s,
                queue_max=options.queue_max,
                next_time=next_time,
                recalling=found.recalling,
                graph_entities=_entities_seen(found.agent.graph) if found.agent.graph is not None else None,
            )
        self.configured_payloads |= payloads.keys()
        known = await journal.store.read_payloads(payloads)
        fresh = {name: data for name, data in payloads.items() if name not in known}
        if fresh:
            await journal.append([], fresh)
        return settings

    def register(
        self,
        context: RuntimeContext,
        settings: Mapping[AgentId, SessionSetting],
        approval_pool: ThreadPool,
    ) -> None:
        """Let messages to sessions, models, tools and approvals start their actors; `settings` may change later."""
        system, event_bus, journal, in_flight = context.system, context.event_bus, context.journal, context.in_flight
        limited = any(found.agent.config.tree_budget is not None for found in self)
        trees = TreeSpending(system, journal.store) if limited else None
        subagents = SubagentRuns(context, self.agents, settings)

        def model(name: str) -> ModelActor:
            found = self[name]
            agent = found.agent
            return ModelActor(
                found.provider,
                found.tools,
                journal.store,
                event_bus,
                policy=agent.policy,
                prompt=agent.config.prompt_function,
                offer=agent.offer,
                output_check=found.output_check,
                schema_check=schema_problem,
                recovery=agent.config.recovery_function,
                recalling=found.recalling,
                window=agent.context,
                hooks=found.hooks,
                summariser=agent.provider,
                guardrails=found.guardrails,
                trees=trees,
                redaction=self.redaction,
            )

        def tool(place: str) -> ToolActor:
            found = self[place.rpartition("/")[0]]
            return ToolActor(
                found.tools,
                journal,
                event_bus,
                subagents=subagents,
                recovery=found.agent.config.recovery_function,
                cancel_grace_s=context.settings.cancel_grace_s,
                result_bytes_max=context.settings.result_bytes_max,
            )

        def session(_: str) -> Actor:
            port = SessionPort(settings[self.main.id], journal.store, event_bus, settings, context.dependencies)
            return EventSourcedActor(SESSION_CORE, SESSION_CODEC, journal, port, in_flight)

        system.register(SESSION_KIND, session)
        system.register(MODEL_KIND, model)

        def approval(name: str) -> ApprovalActor:
            found = self[name]
            return ApprovalActor(asking(found.agent.approval, approval_pool), found.tools)

        system.register(APPROVAL_KIND, approval)
        system.register(TOOL_KIND, tool)


def _entities_seen(graph: "GraphStore") -> Callable[[SessionContext], int | None]:
    def count(context: SessionContext) -> int | None:
        try:
            return graph.within(context).count_now()
        except Exception:  # The scope is the user's function, and the session begins without the count.
            log.exception("%s: it is not known how many entities the session %s sees", graph.stream, context.session)
            return None

    return count


class ActorReach(msgspec.Struct, frozen=True):
    """Reaches the sessions whose actors live in this process."""

    system: ActorSystem

    async def read(self, stream: StreamName, question: Callable[[SessionState], T], *, vital: bool) -> T:
        """Ask the actor."""
        return await read_state(self.system.ref(stream), question, vital=vital)

    async def ask(self, stream: StreamName, envelope: SessionEnvelope, *, timeout_s: float | None) -> Performed:
        """Ask the actor."""
        performed: Performed = await self.system.ref(stream).ask(envelope, block=False, timeout=timeout_s)
        return performed

    def tell(self, stream: StreamName, envelope: Envelope) -> None:
        """Tell the actor."""
        self.system.ref(stream).tell(envelope)
