"""Where an agent comes from: it is there, or a function makes it, anew for each process that is to have it.

A function is for an agent whose own parts remember what the log does not know. It is plain and needs no arguments.

The rule: whoever takes a source checks it first, so that what is none is told before anything has begun; and whatever
goes wrong while it makes the agent is said in one line that names the place to look at.
"""

import inspect
import traceback
from collections.abc import Callable
from typing import TypeAlias, cast

from refold.agent import Agent
from refold.events.errors import ConfigError

AgentSource: TypeAlias = Agent | Callable[[], Agent]
"""An agent, or a function that makes one."""


class AgentNotMade(ConfigError):
    """A function that is to make an agent fails, or makes something else."""


def checked_source(found: object, name: str) -> AgentSource:
    """Return what was given, if an agent may come from it.

    Args:
        found: anything.
        name: what it is called in the error.

    Raises:
        ConfigError: it is neither an `Agent` nor a plain function that can be called without arguments.
    """
    if isinstance(found, Agent):
        return found
    if isinstance(found, type) or not callable(found):
        raise ConfigError(
            f"{name} is {kind_of(found)} and no Agent, nor a function that makes one; "
            "make it one: refold.Agent(config=…, provider=…)"
        )
    if inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found):
        raise ConfigError(f"{name} is an async function; what makes an agent is a plain one, without await")
    needed = _needed_arguments(found)
    if needed:
        raise ConfigError(
            f"{name} cannot be called without {', '.join(needed)}; what makes an agent needs no arguments: give each "
            "a default, or wrap it in a function that has none"
        )
    return cast("Callable[[], Agent]", found)


def made_agent(source: AgentSource, name: str | None = None) -> Agent:
    """Return the agent; a function is called.

    Args:
        source: where it comes from.
        name: what the source is called in the error; None = as the function calls itself.

    Raises:
        AgentNotMade: the function fails, or makes something else.
    """
    if isinstance(source, Agent):
        return source
    called = name if name is not None else _name_of(source)
    try:
        agent: object = source()
    except AgentNotMade:  # By a function that this one calls.
        raise
    except (Exception, SystemExit) as error:  # The border to the user's function, which may raise anything.
        raise AgentNotMade(f"making an agent with {called}() fails{failure_words(error)}") from error
    if not isinstance(agent, Agent):
        if inspect.iscoroutine(agent):
            agent.close()
        raise AgentNotMade(f"{called}() returned {agent!r:.80}, which is no Agent")
    return agent


def failure_words(error: BaseException) -> str:
    """Return the end of a sentence that says what the user's code raised, and on which line of it."""
    words = f": {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return words
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = traceback.extract_tb(error.__traceback__)
    places = [line for frame, line in zip(frames, lines, strict=True) if not _is_ours(frame.f_globals.get("__name__"))]
    return f" at {places[-1].filename}:{places[-1].lineno}{words}" if places else words


def kind_of(found: object) -> str:
    """Return what something is, for an error that says what it is not."""
    return f"a class, {found.__qualname__}," if isinstance(found, type) else f"of type {type(found).__qualname__}"


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in ("refold", "importlib")


def _name_of(source: Callable[[], Agent]) -> str:
    words = [getattr(source, "__module__", None), getattr(source, "__qualname__", None)]
    return ".".join(filter(None, words)) if words[1] else f"{source!r:.80}"


def _needed_arguments(function: Callable[..., object]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # One that is written in C may not tell; calling it does.
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]
