"""Subagents: an agent offered to another one as a tool.

    researcher = Agent(name="researcher", config=..., provider=..., tools=[search])
    writer = Agent(name="writer", config=..., provider=..., tools=[researcher.as_tool()])

Each call of such a tool has its task carried out in a session of its own, see `refold.actors.agent.subsession`; how
that is done is in `refold.agents.subagent_runs`. The rule: the tool is idempotent. A call that is run again after a
crash finds the run that it began, and no work is done twice.
"""

import inspect
from dataclasses import dataclass, field
from typing import Annotated, ParamSpec, TypeVar

from refold.actors.calls.results import DEFAULT_RESULT_LIMIT
from refold.actors.calls.tool_context import ToolContext, calling_tool
from refold.agents.agent import SUBAGENT_SILENCE_S, Agent, Task
from refold.events.core.errors import ConfigError, ToolError
from refold.events.model.configuration import Tier, ToolSpec
from refold.tools.definition import (
    check_function,
    checked_result_limit,
    checked_spec,
    checked_validator,
    docstring_of,
)
from refold.tools.signature import Signature, entry_of, first_paragraph
from refold.tools.tool import Tool

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

DESCRIPTION = "Have the agent {name} carry out a task, and get its answer."


@dataclass(frozen=True, eq=False, repr=False)
class SubagentTool(Tool[P, R_co]):
    """A tool whose calls another agent carries out; made by `subagent` or `Agent.as_tool`.

    Attributes:
        agent: that agent, or the name of one of the runtime.
    """

    agent: Agent | str = field(kw_only=True)

    @property
    def origin(self) -> str:
        """What it is made of."""
        return f"the agent {self.agent_name}"

    @property
    def agent_name(self) -> str:
        """The agent's name."""
        return self.agent if isinstance(self.agent, str) else self.agent.name


def subagent(
    agent: Agent | str,
    *,
    name: str | None = None,
    description: str | None = None,
    task: Task | None = None,
    tier: Tier = "act",
    timeout_s: float = SUBAGENT_SILENCE_S,
    display_name: str = "",
    result_limit: int | None = DEFAULT_RESULT_LIMIT,
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
        tier: see `tool`; `observe` lets several run beside each other.
        timeout_s: longest silence of the agent's model in seconds, > 0. While its tools run, or it waits for a person
            or before a retry, it is not silent.
        display_name: see `tool`.
        result_limit: how much of the answer the asking model is shown; see `tool`.

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
    spec = ToolSpec(
        name=shown,
        description=told or DESCRIPTION.format(name=agent_name),
        input_schema=signature.input.schema,
        tier=tier,
        effect="idempotent",
        timeout_s=timeout_s,
        display_name=display_name,
    )
    return SubagentTool(
        checked_spec(spec),
        _outside_of_a_runtime,
        signature,
        lambda values, context: _answer(agent_name, make(**values), context),
        checked_validator(_some_text, shown, signature.names) if task is None else None,
        result_limit=checked_result_limit(result_limit, shown),
        agent=agent,
    )


def with_subagents(agent: Agent) -> list[Agent]:
    """Return an agent, and those that its tools lead to."""
    found = {id(agent): agent}
    waiting = [agent]
    while waiting:
        for item in waiting.pop().tools:
            if isinstance(item, SubagentTool) and not isinstance(item.agent, str) and id(item.agent) not in found:
                found[id(item.agent)] = item.agent
                waiting.append(item.agent)
    return list(found.values())


def _given_text(
    task: Annotated[str, "What is to be done, with all that has to be known for it: nothing else is passed on."],
) -> str:
    return task


def _some_text(task: str) -> str | None:
    return None if task.strip() else "the task is blank; say what is to be done"


async def _outside_of_a_runtime(*_args: object, **_kwargs: object) -> object:
    """Have an agent carry out a task."""
    raise ConfigError("a subagent runs as a tool of another agent, in a runtime; use its agent by a session")


async def _answer(agent: str, task: object, context: ToolContext[object]) -> object:
    calling = calling_tool.get()
    if calling is None or calling.subagents is None or calling.call != context.call:
        raise ToolError("A subagent runs in the call of an agent's tool only; nothing was run.")
    if not isinstance(task, str):
        raise ToolError(f"The task of {agent} is no text but {type(task).__name__}; nothing was run.")
    return await calling.subagents.answer(agent, task, context, calling)
