"""An agent made of what a log says of it: its configuration and its tools, with bodies that do nothing.

For logs whose code is not at hand. Policies, middleware, validators and memories leave no such trace, so the agent has
none; a tool whose effect or tier the log names has it here too.
"""

from collections.abc import Mapping

import msgspec

from refold.agent import Agent
from refold.events.configuration import AgentConfig, AgentConfiguration, ToolSpec
from refold.events.errors import ConfigError, LogFormatError
from refold.events.ids import PayloadHash
from refold.providers.scripted import ScriptedProvider
from refold.scenarios.stand_ins import stand_in_of


def recorded_agent(configuration: AgentConfiguration, payloads: Mapping[PayloadHash, bytes]) -> Agent:
    """Return an agent with a recorded configuration.

    Args:
        configuration: what the log has.
        payloads: those that it refers to.

    Raises:
        ConfigError: the log has no more what it takes, or a tool cannot be made of its description.
        LogFormatError: what is there is nothing that Refold wrote.
    """
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
        tools=tuple(stand_in_of(spec) for spec in specs),
    )
