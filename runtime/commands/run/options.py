"""Options of the commands that run agents: which agent, which model, which log and session.

The rule: a key comes from the environment and from nowhere else. As an option it would stand in lists of processes and
in a shell's history.
"""

import os
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import msgspec
import typer

from refold.commands.execution import argument, option

if TYPE_CHECKING:
    from refold.agents.agent import AnyAgent
    from refold.events.model.configuration import AgentConfig
    from refold.providers.http.provider import HttpProvider


class ProviderName(StrEnum):
    """Whose API is spoken."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"


AgentArgument = Annotated[
    str | None,
    argument(
        "AGENT", "module:attribute of an Agent or of a function that makes one; with a --provider it may be left out."
    ),
]
LogOption = Annotated[Path, typer.Option("--log", metavar="PATH", help="The log; made where there is none.")]
SessionOption = Annotated[str | None, option("--session", "ID", "The session; default: a new one.")]
DEFAULT_LOG: Final = Path("refold.db")

_KEY_VARIABLES: Final = {
    ProviderName.ANTHROPIC: ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    ProviderName.OPENAI: ("OPENAI_API_KEY",),
}
_URL_VARIABLES: Final = {ProviderName.ANTHROPIC: "ANTHROPIC_BASE_URL", ProviderName.OPENAI: "OPENAI_BASE_URL"}


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say, which stand beside each field; None or False = nothing."""

    provider: Annotated[
        ProviderName | None,
        typer.Option(
            "--provider",
            help="The API to speak, Anthropic's or OpenAI's, to their owners or to a --base-url. The key is that of "
            "the environment variable ANTHROPIC_API_KEY or OPENAI_API_KEY.",
            show_default=False,
        ),
    ] = None
    model: Annotated[str | None, option("--model", "NAME", "The model; with an AGENT alone, instead of its own.")] = (
        None
    )
    base_url: Annotated[
        str | None, option("--base-url", "URL", "Where a compatible server is, such as http://localhost:11434/v1.")
    ] = None
    allow_http: Annotated[
        bool,
        typer.Option(
            "--allow-http", help="Let key and conversation go unencrypted to a --base-url on another machine."
        ),
    ] = False
    system: Annotated[
        str | None, option("--system", "TEXT", "The system prompt; with an AGENT, instead of its own.")
    ] = None
    max_tokens: Annotated[int | None, option("--max-tokens", "N", "Most tokens of one answer of the model.", min=1)] = (
        None
    )
    react: Annotated[
        bool, typer.Option("--react", help="Ask for tools in text (ReAct), for models without tool calls.")
    ] = False

    def words(self, name: str | None) -> list[str]:
        """Return the words of a command line that say the same, and which agent is meant, if one is."""
        options = {
            "--provider": self.provider,
            "--model": self.model,
            "--base-url": self.base_url,
            "--system": self.system,
            "--max-tokens": self.max_tokens,
        }
        words = [] if name is None else [name]
        words += [f"{named}={value}" for named, value in options.items() if value is not None]
        return words + ["--allow-http"] * self.allow_http + ["--react"] * self.react


NO_CHOICE: Final = ModelChoice()


def with_model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has the options of `ModelChoice` where `command` has its parameter `choice`."""
    options = get_type_hints(ModelChoice, include_extras=True)
    defaults = msgspec.structs.asdict(ModelChoice())
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if parameter.name != "choice":
            parameters.append(parameter)
            continue
        for name, annotation in options.items():
            parameters.append(parameter.replace(name=name, default=defaults[name], annotation=annotation))

    @wraps(command)
    def chosen(**given: Any) -> None:
        choice = ModelChoice(**{name: given.pop(name) for name in options})
        command(choice=choice, **given)

    chosen.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    chosen.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return chosen


def chosen_agent(name: str | None, choice: ModelChoice) -> "AnyAgent":
    """Return the agent to run: the named one as far as no option says otherwise, or one without tools.

    Args:
        name: `module:attribute`; None = none is named.

    Raises:
        ConfigError: the options do not fit together, there is no key, or the agent cannot be loaded.
    """
    from refold.agents.agent import Agent
    from refold.agents.loading import load_agent
    from refold.events.model.configuration import AgentConfig

    _check(name, choice)
    if name is not None:
        agent = load_agent(name)
        provider = _provider(choice) if choice.provider is not None else agent.provider
        return msgspec.structs.replace(agent, config=_with(choice, agent.config), provider=provider)
    config = _with(choice, AgentConfig(model=choice.model or "", streaming=True))
    return Agent(config=config, provider=_provider(choice))


def _check(name: str | None, choice: ModelChoice) -> None:
    from refold.events.core.errors import ConfigError

    if choice.provider is not None and choice.model is None:
        raise ConfigError(f"--provider {choice.provider} needs a --model, such as its documentation names")
    if choice.provider is None:
        for named, given in (("--base-url", choice.base_url is not None), ("--allow-http", choice.allow_http)):
            if given:
                raise ConfigError(f"{named} needs a --provider: anthropic or openai, whichever API the server speaks")
        if name is None:
            what = "--model alone names no provider: " if choice.model is not None else "there is no agent: "
            raise ConfigError(f"{what}name an AGENT (module:attribute), or a --provider with a --model")
    if choice.allow_http and choice.base_url is None:
        raise ConfigError("--allow-http needs a --base-url")


def _with(choice: ModelChoice, config: "AgentConfig") -> "AgentConfig":
    changes: dict[str, object] = {
        "model": choice.model,
        "system_prompt": choice.system,
        "max_tokens": choice.max_tokens,
        "protocol": "react" if choice.react else None,
    }
    return msgspec.structs.replace(config, **{name: value for name, value in changes.items() if value is not None})


def _provider(choice: ModelChoice) -> "HttpProvider":
    from refold.events.core.errors import ConfigError
    from refold.providers import AnthropicProvider, OpenAIProvider

    assert choice.provider is not None
    variables, url_variable = _KEY_VARIABLES[choice.provider], _URL_VARIABLES[choice.provider]
    its_owner = choice.base_url is None and not os.environ.get(url_variable, "").strip()
    if its_owner and not any(os.environ.get(variable, "").strip() for variable in variables):
        raise ConfigError(
            f"--provider {choice.provider} needs a key: set the environment variable {variables[0]}, or name a server "
            "that wants none with --base-url"
        )
    kind = AnthropicProvider if choice.provider is ProviderName.ANTHROPIC else OpenAIProvider
    try:
        return kind(base_url=choice.base_url, allow_http=choice.allow_http)
    except ConfigError as error:
        raise ConfigError(f"--provider {choice.provider}: {error}") from error
