"""Agents and cores by name: `module:attribute`, as the command and configuration files name them.

The rule: whatever is wrong with the name or with the module is said in one line that names the place to look at.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from types import ModuleType
from typing import TypeGuard, cast

from refold.agent import Agent
from refold.agent_source import AgentSource, checked_source, failure_words, kind_of, made_agent
from refold.events.errors import ConfigError
from refold.events.pure_core import PureCore
from refold.stream_kinds import GivenKind, StreamKind


def load_agent(name: str) -> Agent:
    """Return the agent that `name` names; its module is imported, also from the working directory.

    Args:
        name: `module:attribute`, such as `app.agents:support`, of an agent or of a function that makes one.

    Raises:
        ConfigError: there is no such module or attribute, importing it fails, or no agent comes from it.
    """
    source = load_agent_source(name)
    with redirect_stdout(sys.stderr):
        return made_agent(source, name)


def load_agent_source(name: str) -> AgentSource:
    """Return the agent that `name` names, or the function that makes it, which is not called yet.

    Args:
        name: as for `load_agent`.

    Raises:
        ConfigError: there is no such module or attribute, importing it fails, or it is neither.
    """
    attribute = name.partition(":")[2]
    return checked_source(_named(name, "an agent", "app.agents:support", lambda it: _agents_in(it, attribute)), name)


def load_kinds(words: Iterable[str]) -> dict[str, GivenKind]:
    """Return the cores that `words` name, by the kinds of streams that they decide.

    Args:
        words: each `kind=module:attribute`, such as `book=app.books:OrderBook`.

    Raises:
        ConfigError: one of them is no such word, importing its module fails, or it names no core.
    """
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


def _is_core(found: object) -> TypeGuard[GivenKind]:
    is_class = isinstance(found, type) and issubclass(cast("type[object]", found), PureCore)
    return is_class or isinstance(found, PureCore | StreamKind)


def _named(name: str, what: str, example: str, advice: Callable[[ModuleType], str]) -> object:
    """Return what `module:attribute` names."""
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
    agents = sorted(name for name, value in vars(module).items() if isinstance(value, Agent))
    close = difflib.get_close_matches(attribute, agents)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"its agents are {', '.join(agents)}" if agents else "there is no Agent in it"


def _cores_in(module: ModuleType) -> str:
    """Return the end of a sentence that says which cores a module has."""
    cores = [
        name
        for name, value in sorted(vars(module).items())
        if isinstance(value, type) and issubclass(value, PureCore) and value is not PureCore
    ]
    return f"its cores are {', '.join(cores)}" if cores else "there is no core in it"
