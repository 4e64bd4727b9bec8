"""Agents and cores by name: `module:attribute`, as the command and configuration files name them.

A name leads to an agent, or to a plain function without arguments that makes one, anew for each process: for an agent
whose own parts remember what the log does not know. The rules: a source is checked before anything has begun; and a
fault in the name, in the module or in the function is said in one line that names the place to look at.
"""

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, cast, get_origin

from refold.agents.agent import Agent, AnyAgent, is_agent
from refold.events.core.cleaning import error_words
from refold.events.core.errors import ConfigError, quoted, unquoted
from refold.events.core.pure_core import PureCore

if TYPE_CHECKING:
    from refold.inspection.kinds import GivenKind

AgentSource: TypeAlias = AnyAgent | Callable[[], AnyAgent]
"""An agent, or a function that makes one."""


class AgentNotMade(ConfigError):
    """A function that is to make an agent fails, or makes something else."""


def checked_source(found: object, name: str) -> AgentSource:
    """Return what was given, if it is an `Agent` or a plain function that needs no arguments."""
    if is_agent(found):
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
    return cast("Callable[[], AnyAgent]", found)


def made_agent(source: AgentSource, name: str | None = None) -> AnyAgent:
    """Return the agent; a function is called, and named in errors as `name` says, or else as it calls itself."""
    if not callable(source):
        return source
    called = name if name is not None else _name_of(source)
    try:
        agent: object = source()
    except AgentNotMade:  # By a function that this one calls.
        raise
    except (Exception, SystemExit) as error:  # The border to the user's function, which may raise anything.
        raise AgentNotMade(f"making an agent with {called}() fails{failure_words(error)}") from error
    if not is_agent(agent):
        if inspect.iscoroutine(agent):
            agent.close()
        raise AgentNotMade(f"{called}() returned {unquoted(agent)}, which is no Agent")
    return agent


def failure_words(error: BaseException) -> str:
    """Return the end of a sentence that says what the user's code raised, and on which line of it.

    The line is the innermost one outside of Refold and of Python's own library.
    """
    words = f": {error_words(error)}"
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
    name = module.partition(".")[0] if isinstance(module, str) else ""
    return name == "refold" or name in sys.stdlib_module_names


def _name_of(source: Callable[[], AnyAgent]) -> str:
    words = [getattr(source, "__module__", None), getattr(source, "__qualname__", None)]
    return ".".join(filter(None, words)) if words[1] else quoted(source)


def _needed_arguments(function: Callable[..., object]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # One that is written in C may not tell; calling it does.
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


def load_agent(name: str) -> AnyAgent:
    """Return the agent that `name` names, or the function of that name makes; its module is imported."""
    source = load_agent_source(name)
    with redirect_stdout(sys.stderr):
        return made_agent(source, name)


def load_agent_source(name: str) -> AgentSource:
    """Return the agent that `name` names, or the function that makes it, which is not called yet."""
    attribute = name.partition(":")[2]
    return checked_source(_named(name, "an agent", "app.agents:support", lambda it: _agents_in(it, attribute)), name)


def load_deps(name: str) -> object:
    """Return what `name` names, for `Agent.deps`; it is not opened yet."""
    return _named(name, "what an agent depends on", "app.agents:open_deps", lambda it: f"see {it.__file__}")


def load_kinds(words: Iterable[str]) -> "dict[str, GivenKind]":
    """Return the cores that words such as `book=app.books:OrderBook` name, by their kinds of streams."""
    kinds: dict[str, GivenKind] = {}
    for word in words:
        kind, equals, name = word.partition("=")
        if not (kind and equals):
            raise ConfigError(
                f"a kind is given as kind=module:attribute, such as book=app.books:OrderBook, not {word!r}"
            )
        if kind in kinds:
            raise ConfigError(f"the kind {kind!r} is given twice")
        found = _named(name, "a core", "app.books:OrderBook", _cores_in)
        if not _is_core(found):
            raise ConfigError(f"{name} is {kind_of(found)} and no core; derive it from refold.events.PureCore")
        kinds[kind] = found
    return kinds


def _is_core(found: object) -> "TypeGuard[GivenKind]":
    from refold.inspection.kinds import StreamKind  # With the cores of all kinds.

    is_class = isinstance(found, type) and issubclass(cast("type[object]", found), PureCore)
    return is_class or isinstance(found, PureCore | StreamKind)


def _named(name: str, what: str, example: str, advice: Callable[[ModuleType], str]) -> object:
    module_name, colon, attribute = name.partition(":")
    parts = (*module_name.split("."), *attribute.split("."))
    if not colon or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{what} is named module:attribute, such as {example}, and not {name!r}")
    found: object = _imported(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{module_name!r} has no {attribute!r}; {advice(sys.modules[module_name])}")
        found = getattr(found, part)
    return found


def _imported(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):  # What it prints is no part of a command's answer.
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {error.name!r}, neither in {folder} nor among the installed packages"
            ) from error
        raise ConfigError(_failed_import(name, error)) from error
    except (Exception, SystemExit) as error:  # The border to the user's module, which may raise anything.
        raise ConfigError(_failed_import(name, error)) from error


def _failed_import(name: str, error: BaseException) -> str:
    return f"importing {name!r} fails{failure_words(error)}"


def _agents_in(module: ModuleType, attribute: str) -> str:
    """Return the end of a sentence that says which agents a module has."""
    agents = sorted(name for name, value in vars(module).items() if is_agent(value) or _makes_agent(value))
    import difflib

    close = difflib.get_close_matches(attribute, agents)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"its agents are {', '.join(agents)}" if agents else "there is no Agent in it"


def _makes_agent(found: object) -> bool:
    """Tell whether something is a function that says of what it returns that it is an agent."""
    if not inspect.isfunction(found) or inspect.iscoroutinefunction(found) or _needed_arguments(found):
        return False
    said = found.__annotations__.get("return")
    name = said if isinstance(said, str) else getattr(get_origin(said) or said, "__name__", "")
    return name.partition("[")[0].rpartition(".")[2] == Agent.__name__


def _cores_in(module: ModuleType) -> str:
    """Return the end of a sentence that says which cores a module has."""
    cores = [
        name
        for name, value in sorted(vars(module).items())
        if isinstance(value, type) and issubclass(value, PureCore) and value is not PureCore
    ]
    return f"its cores are {', '.join(cores)}" if cores else "there is no core in it"
