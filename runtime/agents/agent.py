"""An agent as a user describes it: what a runtime runs, and what `module:attribute` names in the command.

    researcher = Agent(name="researcher", config=..., provider=..., tools=[search])
    writer = Agent(name="writer", config=..., provider=..., tools=[researcher.as_tool()])

`Agent` says what makes one, `subagent` offers it to another one as a tool. Each call of such a tool has its task
carried out in a session of its own, see `refold.actors.agent.subsession`; how is in `refold.agents.subagent_runs`. The
rules: nothing here runs, and what cannot work is refused where it is given; and a subagent's tool is idempotent, so
that a call that is run again after a crash finds the run that it began.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeGuard,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

import refold.memory  # Whose names load on first use: those of its stores when a field's annotation is read.
from refold.actors.agent.guardrails import Guardrail, Guardrails, checked_guardrails
from refold.actors.calls.middleware import Hooks, Middleware
from refold.actors.calls.policy import Offer, Policy
from refold.actors.calls.protocols import Provider
from refold.actors.calls.recall import PromptText, Recall, Recalling
from refold.actors.calls.tool_context import CallingTool, ShownHistory, Subagents, ToolContext, calling_tool
from refold.agents.approval import ApprovalHandler
from refold.agents.redact import Redact, redaction_of_rules
from refold.agents.skill import Skill, SkillPrompter, checked_skills, skill_tool, with_skills
from refold.events.core.content import JsonObject, Message
from refold.events.core.errors import ConfigError, ToolError, unquoted
from refold.events.core.ids import checked_identifier
from refold.events.kinds.scopes import KNOWLEDGE_KIND, MEMORY_KIND, WORKING_KIND
from refold.events.model.configuration import AgentConfig, Tier
from refold.events.model.context_window import ContextWindow
from refold.memory.stream_object import StreamObject, stream_objects_of
from refold.options import RuntimeOptions
from refold.providers.function import ProviderFunction, as_provider
from refold.sessions.structured_output import (
    OutputCheck,
    OutputValidator,
    checked_validators,
    output_schema,
    parsed_output,
    with_output,
)
from refold.tools.definition import (
    OfferOptions,
    check_function,
    check_options,
    checked_result_limit,
    checked_rules,
    checked_spec,
    checked_validator,
    docstring_of,
)
from refold.tools.signature import Signature, entry_of, first_paragraph
from refold.tools.tool import Tool
from refold.type_parameters import Deps, Out_co

if TYPE_CHECKING:
    from refold.type_parameters import Entered

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

SUBAGENT_SILENCE_S = 600.0
"""How long a subagent's model may say nothing, unless its tool says otherwise: models think longer than tools."""

Task: TypeAlias = Callable[..., str]
"""Returns the input of a subagent, given the arguments of a call; plain and typed."""


class Agent(msgspec.Struct, Generic[Deps, Out_co], frozen=True, kw_only=True):
    """Everything that makes an agent, and nothing that runs.

    `Agent[Deps, Out]` says what its tools are given and what its final answers are. A checker takes both from the
    arguments; without an `output_type`, answers are text.

    Args:
        config: how it thinks: its model, its system prompt, its limits.
        provider: answers its requests; or a function that does, given the prompt or the request (`as_provider`).
        tools: what its model may call.
        deps: what the application's functions work with, such as a database pool: `ToolContext.deps` and
            `RunContext.deps`. A value; or a function or class, called without arguments when a runtime opens; or an
            async context manager, one of plain `@contextmanager`, or a function that makes one, which is entered then
            and left when the runtime closes. A subagent that has none has those of the call. Nothing of it is recorded.
        name: its AgentId; holds no slash.
        approval: decides about calls that wait for approval; None = they wait for `Session.decide` or `refold
            approve`.
        policy: judges each call that a model asks for, before a person approves; a failing policy breaks the call.
        offer: says which tools a model is offered in a session; None = all.
        output_type: what a final answer must be, as JSON: a msgspec Struct, a dataclass, a TypedDict; None = any text.
            The model is told its schema; `RunResult.output` is such a value.
        output_validators: are given each final answer that fits; what one raises has the model asked again, at most
            `AgentConfig.rejections_max` times in a row (`OutputValidator`).
        input_guardrails: are shown what users say before a model is; one that trips ends the run (`guardrail`).
        output_guardrails: are shown each final answer that is accepted; one that trips ends the run without it.
        context: says which part of a long history the model is shown, such as a `TokenWindow`; None = all of it.
        middleware: is called around what people say, what the model is asked and answers, and each tool's body, in this
            order.
        memory: episodes; those that match the latest input enter each request, as far as the configuration allows.
        working_memory: what stands behind the system prompt of each request.
        graph: what it knows of entities and their relationships.
        semantic: what it knows: values by key.
        objects: what else lives on the runtime's log, such as circuit breakers.
        skills: instructions that its model reads when a task needs them, with the tool `load_skill`.
        skill_prompter: says how skills enter the system prompt; None = names and descriptions are listed.
        handoffs: the agents to which its model may hand a conversation: agents, names of some that the runtime has, or
            what `handoff` makes of them.
        redact: what must not be in the log, nor in what is shown: exact values (texts or `Secret`s), compiled patterns,
            and `FieldPath`s. The keys of its provider are known without that. It counts for the whole runtime.
        keep_originals: where middleware changes the result of a tool, the log keeps what the tool gave beside it, so
            that replay can do it again; False = what middleware hides is not recorded.

    Raises:
        ConfigError: the name cannot be one, or holds a slash; or something is no provider, or no function, that
            must be one.
    """

    config: AgentConfig
    provider: Provider
    tools: Sequence[Tool[..., object]] = ()
    deps: object = None
    name: str = "agent"
    approval: ApprovalHandler | None = None
    policy: Policy | None = None
    offer: Offer | None = None
    output_type: type[Out_co] | None = None
    output_validators: Sequence[OutputValidator[Out_co]] = ()
    input_guardrails: Sequence[Guardrail[Message]] = ()
    output_guardrails: Sequence[Guardrail[Any]] = ()
    context: ContextWindow | None = None
    middleware: Sequence[Middleware] = ()
    memory: Recall | None = None
    working_memory: PromptText | None = None
    graph: "refold.memory.GraphStore | None" = None
    semantic: "refold.memory.SemanticStore | None" = None
    objects: Sequence[StreamObject[Any, Any, Any]] = ()
    skills: Sequence[Skill] = ()
    skill_prompter: SkillPrompter | None = None
    handoffs: "Sequence[AnyAgent | str | HandoffTool[..., object]]" = ()
    redact: Redact = ()
    keep_originals: bool = False

    if TYPE_CHECKING:  # So that a checker takes `Deps` from any form of `deps`.

        @overload
        def __init__(self, *, deps: None = None, **parts: "Unpack[AllButDeps[Out_co]]") -> None: ...
        @overload
        def __init__(self, *, deps: Entered[Deps], **parts: "Unpack[AllButDeps[Out_co]]") -> None: ...
        @overload
        def __init__(self, *, deps: Callable[[], Awaitable[Deps]], **parts: "Unpack[AllButDeps[Out_co]]") -> None: ...
        @overload
        def __init__(self, *, deps: Callable[[], Deps], **parts: "Unpack[AllButDeps[Out_co]]") -> None: ...
        @overload
        def __init__(self, *, deps: Deps, **parts: "Unpack[AllButDeps[Out_co]]") -> None: ...
        def __init__(self, *, deps: object = None, **parts: object) -> None: ...

    def __post_init__(self) -> None:
        if "/" in checked_identifier(self.name, "agent name"):
            raise ConfigError(f"the agent name {self.name!r} holds a slash; use a name without one")
        msgspec.structs.force_setattr(self, "provider", as_provider(self.provider))
        for field in ("approval", "policy", "offer", "skill_prompter"):
            given = getattr(self, field)
            if given is not None and not callable(given):
                raise ConfigError(f"Agent.{field} must be a function, not {type(given).__name__}")
        if self.offer is not None and inspect.iscoroutinefunction(self.offer):
            raise ConfigError("Agent.offer must be a plain function that returns quickly, not an async one")
        if self.context is not None and not callable(getattr(self.context, "kept", None)):
            raise ConfigError(f"Agent.context must be a ContextWindow, not {type(self.context).__name__}")
        for each in self.middleware:
            if not isinstance(each, Middleware):
                raise ConfigError(f"Agent.middleware must hold Middleware only, not {type(each).__name__}")
        if self.output_type is not None:
            output_schema(self.output_type)
        checked_validators(self.output_validators)
        checked_guardrails("input_guardrails", self.input_guardrails)
        checked_guardrails("output_guardrails", self.output_guardrails)
        if self.redact != ():
            redaction_of_rules(self.redact)
        self._check_stores()
        check_streams(self.stream_objects())
        checked_skills(self.skills)
        if self.name in [each.agent_name for each in self.handoff_tools()]:
            raise ConfigError(f"the agent {self.name!r} hands conversations to itself; name others in handoffs")
        if self.config.protocol == "react":
            self._check_names_of_actions()

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        task: Task | None = None,
        **options: Unpack[OfferOptions],
    ) -> "SubagentTool[..., object]":
        """Return a tool by which other agents give tasks to this one; see `refold.subagent`.

        Raises:
            ConfigError: something of it cannot work; names the tool.
        """
        return subagent(self, name=name, description=description, task=task, **options)

    def _check_stores(self) -> None:
        for field, kind in (("memory", MEMORY_KIND), ("semantic", KNOWLEDGE_KIND), ("working_memory", WORKING_KIND)):
            given: object = getattr(self, field)
            its_kind: object = getattr(given, "kind", None)
            of_the_log = isinstance(getattr(self, field), StreamObject) or field == "semantic"
            if given is not None and of_the_log and its_kind != kind:
                raise ConfigError(f"Agent.{field} must be a store of the kind {kind!r}, not {unquoted(given)}")
        for field, method in (("memory", "look"), ("memory", "note_recalled"), ("working_memory", "prompt_text")):
            given = getattr(self, field)
            if given is not None and not callable(getattr(given, method, None)):
                raise ConfigError(f"Agent.{field} must have a method {method}, which {type(given).__name__} has not")

    def stream_objects(
        self, tools: Iterable[Tool[..., object]] | None = None
    ) -> tuple[StreamObject[Any, Any, Any], ...]:
        """Return all of it that lives on the log, each once: its objects, and those of its provider and its tools.

        Args:
            tools: those that it has now; None = those that it was given.
        """
        stores = (self.memory, self.semantic, self.working_memory, self.graph)
        own: list[StreamObject[Any, Any, Any]] = [item for item in stores if isinstance(item, StreamObject)]
        every = (*own, *self.objects, *stream_objects_of(self.provider, *(self.tools if tools is None else tools)))
        return tuple({id(living): living for living in every}.values())

    def hooks(self) -> Hooks | None:
        """Return its middleware, if it has any."""
        return Hooks(self.middleware) if self.middleware else None

    def recalling(self) -> Recalling | None:
        """Return what asks its memories, if it has any."""
        if self.memory is None and self.working_memory is None:
            return None
        return Recalling(self.memory, self.working_memory)

    @property
    def builds_requests(self) -> bool:
        """Whether its requests depend on more than its configuration and the history of a session."""
        hooks = self.hooks()
        remembers = self.memory is not None or self.working_memory is not None
        changed = self.offer is not None or self.context is not None or (hooks is not None and hooks.change_requests)
        return remembers or changed or self.config.prompt_function is not None

    def _check_names_of_actions(self) -> None:
        from refold.react.action import is_reserved

        for item in self.tools:
            name = item.name if isinstance(item, Tool) else getattr(item, "__name__", "")
            if is_reserved(name):
                raise ConfigError(
                    f"in ReAct text no tool can be named {name!r}, which says there is no action, or the final answer; "
                    "give it another name with @tool(name=…)"
                )

    def handoff_tools(self) -> "tuple[HandoffTool[..., object], ...]":
        """Return the tools by which it hands conversations over."""
        return tuple(given if isinstance(given, HandoffTool) else handoff(given) for given in self.handoffs)

    def all_tools(self) -> tuple[Tool[..., object], ...]:
        """Return its tools, with the one that reads skills where it has some, and those of its handoffs."""
        return (*self.tools, *((skill_tool(self.skills),) if self.skills else ()), *self.handoff_tools())

    def answering(self) -> Provider:
        """Return what answers its requests, in the protocol of its configuration."""
        if self.config.protocol == "native":
            return self.provider
        from refold.providers.react import in_protocol  # Whose agents speak to the model in JSON need none of it.

        return in_protocol(self.provider, self.config.protocol)

    def told_config(self) -> AgentConfig:
        """Return the configuration with all that the model is told of the agent."""
        config = with_skills(self.config, self.skills, self.skill_prompter)
        return config if self.output_type is None else with_output(config, self.output_type)

    def output_check(self) -> OutputCheck | None:
        """Return what says why a final answer is not accepted; None = all are."""
        checked = self.output_type is not None or self.output_validators
        return OutputCheck(self.output_type, self.output_validators) if checked else None

    def guardrails(self) -> Guardrails | None:
        """Return its guardrails, if it has any."""
        if not self.input_guardrails and not self.output_guardrails:
            return None
        output_type = self.output_type
        read = str if output_type is None else functools.partial(parsed_output, output_type=output_type)
        return Guardrails(self.input_guardrails, self.output_guardrails, read)

    def output_schema(self) -> JsonObject | None:
        """Return the JSON Schema of its final answers, None where they are any text."""
        return output_schema(self.output_type) if self.output_type is not None else None


AnyAgent: TypeAlias = Agent[Any, Any]
"""An agent of any types."""


def is_agent(given: object) -> TypeGuard[AnyAgent]:
    return isinstance(given, Agent)


SUBAGENT_DESCRIPTION = "Have the agent {name} carry out a task, and get its answer."


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class AgentTool(Tool[P, R_co]):
    """A tool that leads to another agent.

    Attributes:
        agent: that agent, or the name of one of the runtime.
    """

    agent: "AnyAgent | str" = dataclasses.field(kw_only=True)

    @property
    def origin(self) -> str:
        return f"the agent {self.agent_name}"

    @property
    def agent_name(self) -> str:
        """The agent's name."""
        return self.agent if isinstance(self.agent, str) else self.agent.name


class SubagentTool(AgentTool[P, R_co]):
    """A tool whose calls another agent carries out; made by `subagent` or `Agent.as_tool`."""


class HandoffTool(AgentTool[P, R_co]):
    """A tool that hands the conversation to another agent; made by `handoff`, or of an agent in `Agent.handoffs`."""


def subagent(
    agent: AnyAgent | str,
    *,
    name: str | None = None,
    description: str | None = None,
    task: Task | None = None,
    **options: Unpack[OfferOptions],
) -> SubagentTool[..., object]:
    """Return a tool that has its calls carried out by an agent, each in a session of its own.

    The result of a call is the text of the agent's final answer, or the value of its `output_type`.

    Args:
        agent: the agent; or the name of one that the runtime has for another reason, such as its main one: so an agent
            can be a subagent of itself.
        name: of the tool, 1 to 64 characters out of `a-z A-Z 0-9 _ -`; the agent's name if None.
        description: what a model is told; if None, the first paragraph of the docstring of `task`, or that there is an
            agent of that name.
        task: makes the agent's input of the call's arguments, which its signature describes, as for `tool`; it runs
            on the loop and must return quickly. None = there is one argument `task`, which is the input.
        **options: the following ones.
        tier: see `tool`; `observe` lets several run beside each other.
        timeout_s: longest silence of the agent's model in seconds, > 0; 600 if not given. While its tools run, or it
            waits for a person or before a retry, it is not silent.
        display_name: see `tool`.
        result_limit: how much of the answer the asking model is shown; see `tool`.
        concurrency: most calls of it that one session has carried out at once, >= 1; None = any number. Further calls
            wait.

    Raises:
        ConfigError: something of it cannot work; names the tool.
    """
    if not isinstance(agent, Agent | str):
        raise ConfigError(f"a subagent is an Agent or the name of one, not {type(agent).__name__}")
    agent_name = agent if isinstance(agent, str) else agent.name
    shown = name if isinstance(name, str) else agent_name
    make: Task = _given_text if task is None else task
    check_function(make, shown)
    if inspect.iscoroutinefunction(entry_of(make)):
        raise ConfigError(f"the task of the subagent {shown!r} must be a plain function that returns quickly")
    signature = Signature(make, tool=shown)
    if signature.context_names:
        raise ConfigError(f"the task of the subagent {shown!r} makes text of the arguments, and gets no ToolContext")
    told = first_paragraph(docstring_of(make)) if task is not None and description is None else description
    check_options(shown, options, OfferOptions)
    spec = checked_spec(
        shown,
        told or SUBAGENT_DESCRIPTION.format(name=agent_name),
        signature.input.schema,
        options,
        effect="idempotent",
        silence_s=SUBAGENT_SILENCE_S,
    )
    return SubagentTool(
        spec,
        _outside_of_a_runtime,
        signature,
        lambda values, context: _answer(agent_name, make(**values), context),
        checked_validator(_some_text, shown, signature.names) if task is None else None,
        rules=checked_rules(spec, None, options.get("concurrency"), per_session=True),
        result_limit=checked_result_limit(shown, options),
        agent=agent,
    )


HANDOFF_DESCRIPTION = "Hand the conversation to the agent {name}, which goes on with it from here."

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def handoff(
    agent: AnyAgent | str,
    *,
    name: str | None = None,
    description: str | None = None,
    history: ShownHistory = "all",
    tier: Tier = "act",
) -> HandoffTool[..., object]:
    """Return a tool by which a model hands its conversation to another agent, for `Agent(handoffs=[…])`.

    Args:
        agent: the agent; or the name of one that the runtime has for another reason, such as the one to hand back to.
        name: of the tool; `transfer_to_<agent>` if None.
        description: what a model is told.
        history: what the other agent is shown of what was said before: `all`, the latest `input`, or what a plain
            function returns of the messages, which must hold the latest input, and each call with its result.
        tier: see `tool`; `confirm` has a person asked first.

    Raises:
        ConfigError: something of it cannot work; names the tool.
    """
    if not isinstance(agent, Agent | str):
        raise ConfigError(f"a handoff is to an Agent or the name of one, not {type(agent).__name__}")
    if not callable(history) and history not in ("all", "input"):
        raise ConfigError(f'the history of a handoff is "all", "input" or a function, not {unquoted(history)}')
    agent_name = agent if isinstance(agent, str) else agent.name
    shown = name if isinstance(name, str) else f"transfer_to_{_NOT_IN_A_NAME.sub('_', agent_name)}"[:64]
    signature = Signature(_given_reason, tool=shown)
    told = description or HANDOFF_DESCRIPTION.format(name=agent_name)
    return HandoffTool(
        checked_spec(shown, told, signature.input.schema, {"tier": tier}, effect="pure"),
        _outside_of_a_runtime,
        signature,
        lambda _, context: _hand_over(agent_name, history, context),
        None,
        agent=agent,
    )


def with_subagents(agent: AnyAgent) -> list[AnyAgent]:
    """Return an agent, and those that its tools lead to."""
    found: dict[int, AnyAgent] = {id(agent): agent}
    waiting = [agent]
    while waiting:
        for item in waiting.pop().all_tools():
            if isinstance(item, AgentTool) and not isinstance(item.agent, str) and id(item.agent) not in found:
                found[id(item.agent)] = item.agent
                waiting.append(item.agent)
    return list(found.values())


def _given_text(
    task: Annotated[str, "What is to be done, with all that has to be known for it: nothing else is passed on."],
) -> str:
    return task


def _given_reason(reason: Annotated[str, "Why, in a few words."] = "") -> str:
    return reason


def _some_text(task: str) -> str | None:
    return None if task.strip() else "the task is blank; say what is to be done"


async def _outside_of_a_runtime(*_args: object, **_kwargs: object) -> object:
    """Have another agent do something."""
    raise ConfigError("a subagent runs as a tool of another agent, in a runtime; use its agent by a session")


def _calling(context: ToolContext[object]) -> tuple[CallingTool, Subagents]:
    calling = calling_tool.get()
    if calling is None or calling.subagents is None or calling.call != context.call:
        raise ToolError("Another agent runs in the call of an agent's tool only; nothing was run.")
    return calling, calling.subagents


async def _hand_over(agent: str, history: ShownHistory, context: ToolContext[object]) -> object:
    calling, subagents = _calling(context)
    await subagents.hand_over(agent, history, context, calling)
    return f"The conversation goes on with {agent}."


async def _answer(agent: str, task: object, context: ToolContext[object]) -> object:
    calling, subagents = _calling(context)
    if not isinstance(task, str):
        raise ToolError(f"The task of {agent} is no text but {type(task).__name__}; nothing was run.")
    return await subagents.answer(agent, task, context, calling)


def check_streams(objects: Sequence[StreamObject[Any, Any, Any]]) -> None:
    """Refuse two objects that are one stream and may not share it, such as breakers with different settings."""
    first: dict[str, StreamObject[Any, Any, Any]] = {}
    for living in objects:
        known = first.setdefault(living.stream, living)
        if known is not living and not known.may_share(living):
            from refold.events.kinds.breaker import BREAKER_KIND

            hint = ", or breakers of one name the same settings" if living.kind == BREAKER_KIND else ""
            raise ConfigError(
                f"2 objects of the agent are the stream {living.stream}; give each a name of its own{hint}"
            )


class OtherParts(TypedDict, Generic[Out_co], total=False):
    """The rest of an `Agent`, beside its configuration, its provider and its `deps`; see there."""

    tools: Sequence[Tool[..., object]]
    name: str
    approval: ApprovalHandler | None
    policy: Policy | None
    offer: Offer | None
    output_type: type[Out_co] | None
    output_validators: Sequence[OutputValidator[Out_co]]
    input_guardrails: Sequence[Guardrail[Message]]
    output_guardrails: Sequence[Guardrail[Any]]
    context: ContextWindow | None
    middleware: Sequence[Middleware]
    memory: Recall | None
    working_memory: PromptText | None
    graph: "refold.memory.GraphStore | None"
    semantic: "refold.memory.SemanticStore | None"
    objects: Sequence[StreamObject[Any, Any, Any]]
    skills: Sequence[Skill]
    skill_prompter: SkillPrompter | None
    handoffs: "Sequence[AnyAgent | str | HandoffTool[..., object]]"
    redact: Redact
    keep_originals: bool


class AgentParts(OtherParts[Out_co], total=False):
    """The rest of an `Agent`, beside its configuration and its provider."""

    deps: object


class AllButDeps(OtherParts[Out_co]):
    """All of an `Agent` but its `deps`."""

    config: AgentConfig
    provider: Provider | ProviderFunction


def parts_and_rest(given: Mapping[str, object]) -> tuple[AgentParts[Any], RuntimeOptions]:
    """Return the parts of an agent out of keyword arguments, and the others."""
    own = AgentParts.__annotations__.keys() - RuntimeOptions.__annotations__.keys()  # Both have `deps`.
    parts = {name: value for name, value in given.items() if name in own}
    rest = {name: value for name, value in given.items() if name not in parts}
    return cast("AgentParts[Any]", parts), cast("RuntimeOptions", rest)


def agent_of(
    given: AgentConfig | AnyAgent | None, provider: Provider | ProviderFunction | None, parts: AgentParts[Any]
) -> Agent[Any, Any]:
    """Return the agent that a runtime is given, whole or in parts."""
    if isinstance(given, Agent):
        if provider is not None or parts:
            names = ", ".join(sorted(parts)) or "provider"
            raise ConfigError(f"an Agent is whole: give it {names} itself, and none beside it")
        return given
    if not isinstance(given, AgentConfig):
        raise ConfigError(f"AgentRuntime needs an AgentConfig or an Agent first, not {type(given).__name__}")
    if provider is None:
        raise ConfigError("AgentRuntime needs a provider; for tests, ScriptedProvider plays a script")
    whole: AgentParts[Any] = {**parts, "tools": tuple(parts.get("tools", ()))}
    return Agent(config=given, provider=as_provider(provider), **whole)
