"""An agent made of what a log says of it: its configuration and its tools, with bodies that do nothing.

For logs whose code is not at hand. Policies, middleware, validators and memories leave no such trace, so the agent has
none; a tool whose effect or tier the log names has it here too.

Tools whose bodies do nothing: for the rehearsal of an agent whose own tools pay, delete and send.

A stand-in is described, checked and judged as the tool that it stands for; only its body is another one, and says what
it was called with.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast, overload

import msgspec

from refold.actors.calls.tool_context import ToolContext
from refold.agents.agent import Agent, AnyAgent, SubagentTool
from refold.agents.loading import AgentSource, checked_source, made_agent
from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.ids import PayloadHash
from refold.events.model.configuration import AgentConfig, AgentConfiguration, ToolSpec
from refold.providers.scripted import ScriptedProvider
from refold.tools.tool import Tool, ToolBody


@overload
def with_stand_ins(agent: AnyAgent) -> AnyAgent: ...
@overload
def with_stand_ins(agent: Callable[[], AnyAgent]) -> Callable[[], AnyAgent]: ...
def with_stand_ins(agent: AgentSource) -> AgentSource:
    """Return the agent with a stand-in for each of its tools; a subagent stays, and its own tools have stand-ins.

    Args:
        agent: or a function that makes it; then a function is returned.

    Raises:
        ConfigError: it is neither; or, later, the function fails or makes something else.
    """
    source = checked_source(agent, "what is to have stand-ins")
    if not callable(source):
        return _with_stubs(source, ())
    return lambda: _with_stubs(made_agent(source), ())


def _with_stubs(agent: AnyAgent, above: tuple[int, ...]) -> AnyAgent:
    above = (*above, id(agent))
    tools = [_of_subagent(tool, above) if isinstance(tool, SubagentTool) else _stub(tool) for tool in agent.tools]
    return msgspec.structs.replace(agent, tools=tools)


def _of_subagent(tool: SubagentTool[..., object], above: tuple[int, ...]) -> Tool[..., object]:
    if isinstance(tool.agent, str):
        return tool
    leads_back = id(tool.agent) in above  # To one that the runtime has in any case.
    return replace(tool, agent=tool.agent.name if leads_back else _with_stubs(tool.agent, above))


def stub_of(spec: ToolSpec) -> Tool[..., object]:
    """Return a stand-in for a tool of which nothing is known but its description."""

    async def handler(arguments: dict[str, object]) -> object:
        return f"{spec.name} was rehearsed with {', '.join(sorted(arguments)) or 'nothing'}"

    return cast("Tool[..., object]", Tool.from_spec(spec, handler))


def _stub(tool: Tool[..., object]) -> Tool[..., object]:
    async def carry_out(body: ToolBody, values: dict[str, object], context: ToolContext[object]) -> object:
        return f"{tool.name} was rehearsed with {', '.join(sorted(values)) or 'nothing'}"

    return tool.carried_out_by(carry_out)


def recorded_agent(configuration: AgentConfiguration, payloads: Mapping[PayloadHash, bytes]) -> AnyAgent:
    """Return an agent with a recorded configuration, which may refer to payloads."""
    try:
        prompt = payloads[configuration.system_prompt].decode()
        specs = msgspec.json.decode(payloads[configuration.tool_schemas], type=list[ToolSpec])
    except KeyError as error:
        raise ConfigError(
            f"what the agent {configuration.agent!r} is made of is in the payload {error.args[0]}, which the log has "
            "not; name the agent"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogFormatError(f"the description of the agent {configuration.agent!r} cannot be read: {error}") from error
    known = {field.name for field in msgspec.structs.fields(AgentConfig)} - {"system_prompt", "protocol"}
    given = {name: getattr(configuration, name) for name in known if hasattr(configuration, name)}
    return Agent(
        name=configuration.agent,
        config=AgentConfig(system_prompt=prompt, **given),
        provider=ScriptedProvider([]),
        tools=tuple(stub_of(spec) for spec in specs),
    )
