"""What a tool may be made of: the checks of a definition, made once when the function becomes a tool.

Every error is a `ConfigError` that names the tool and what to change.
"""

import functools
import inspect
import re
from collections.abc import Callable
from typing import TypedDict, TypeVar, get_args

import msgspec

from refold.actors.calls.protocols import CallBreaker, ToolRules
from refold.actors.calls.results import DEFAULT_RESULT_LIMIT, RESULT_LIMIT_MAX
from refold.events.core.cleaning import clean_text, is_finite
from refold.events.core.content import JsonObject
from refold.events.core.errors import ConfigError, quoted, unquoted
from refold.events.model.configuration import DEFAULT_TOOL_SILENCE_S, EffectClass, RetryPolicy, Tier, ToolSpec
from refold.tools.signature import AnyFunction, entry_of

DISPLAY_NAME_CHARACTERS_MAX = 100

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Validator = Callable[..., str | None]
"""Gets a call's arguments by name, read and with their defaults, without the context. The text that it returns, or that
of a ValueError or ToolError that it raises, tells the model what is wrong with them; None means nothing is."""

ActionName = Callable[..., str]
"""Names what a call does, such as `delete reports/`; gets the call's arguments like a `Validator`, and runs with it.

Who allows a call always allows the later ones with the same name. Without a name the call is broken and does not run.
"""

V = TypeVar("V", bound=Callable[..., object])


class OfferOptions(TypedDict, total=False):
    """Options of every tool, also of one that is a subagent; `tool` describes each."""

    tier: Tier
    timeout_s: float
    display_name: str
    result_limit: int | None
    concurrency: int | None


class ToolOptions(OfferOptions, total=False):
    """Options of a tool that is a function; `tool` describes each."""

    effect: EffectClass
    retries: RetryPolicy | None
    validate: Validator | None
    action: ActionName | None
    breaker: CallBreaker | None


def name_of(function: object) -> str:
    """Return the name that a function has by itself; of an object with `__call__`, that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def docstring_of(function: AnyFunction) -> str | None:
    """Return the docstring of a function, or of an object's `__call__` or else of its class."""
    entry = entry_of(function)
    own = inspect.getdoc(entry)
    return own if own or entry.__name__ != "__call__" else inspect.getdoc(type(function))


def check_function(function: object, name: str) -> None:
    if not callable(function):
        raise ConfigError(
            f"a tool is made of a function, not of {unquoted(function)}; options go by name: @tool(name=…)"
        )
    if inspect.isclass(function):
        raise ConfigError(f"the tool {name!r} is a class; make it of a function, or of an instance with __call__")
    entry = entry_of(function)
    if inspect.isgeneratorfunction(entry) or inspect.isasyncgenfunction(entry):
        raise ConfigError(
            f"the tool {name!r} is a generator; return the whole result, and report on the way with "
            "ToolContext.progress"
        )


def check_options(tool: str, options: OfferOptions, known: type[OfferOptions]) -> None:
    """Refuse options that are not `known`, as Python does with keyword arguments."""
    for option in options:
        if option not in known.__annotations__:
            names = ", ".join(sorted(known.__annotations__))
            raise TypeError(
                f"the tool {quoted(tool, 100)} got an unexpected keyword argument {option!r}; there are {names}"
            )


def checked_spec(
    name: str,
    description: str,
    input_schema: JsonObject,
    options: OfferOptions,
    *,
    effect: EffectClass,
    silence_s: float = DEFAULT_TOOL_SILENCE_S,
    retries: RetryPolicy | None = None,
) -> ToolSpec:
    spec = ToolSpec(
        name=name,
        description=description,
        input_schema=input_schema,
        tier=options.get("tier", "act"),
        effect=effect,
        timeout_s=options.get("timeout_s", silence_s),
        display_name=options.get("display_name", ""),
        retries=retries if retries is not None else msgspec.UNSET,
    )
    seconds = spec.timeout_s
    good_time = is_finite(seconds)
    bounds: tuple[tuple[str, object, bool, str], ...] = (
        (
            "name",
            spec.name,
            isinstance(spec.name, str) and NAME.fullmatch(spec.name) is not None,
            "1 to 64 characters out of a-z A-Z 0-9 _ - (give it as name=…)",
        ),
        ("description", spec.description, isinstance(spec.description, str), "text"),
        (
            "display_name",
            spec.display_name,
            isinstance(spec.display_name, str) and len(spec.display_name) <= DISPLAY_NAME_CHARACTERS_MAX,
            f"text of at most {DISPLAY_NAME_CHARACTERS_MAX} characters",
        ),
        ("tier", spec.tier, spec.tier in get_args(Tier), '"observe", "act" or "confirm"'),
        ("effect", spec.effect, spec.effect in get_args(EffectClass), '"once", "idempotent" or "pure"'),
        ("timeout_s", seconds, good_time and seconds > 0, "a finite number of seconds above 0"),
    )
    for field_name, value, good, wanted in bounds:
        if not good:
            raise ConfigError(
                f"the {field_name} of the tool {quoted(spec.name, 100)} must be {wanted}, not {quoted(value, 100)}"
            )
    _check_retries(spec.name, effect, retries)
    return msgspec.structs.replace(
        spec,
        description=clean_text(spec.description),
        timeout_s=float(seconds),
        display_name=clean_text(spec.display_name),
    )


def _check_retries(name: str, effect: EffectClass, retries: RetryPolicy | None) -> None:
    if retries is None:
        return
    problem = None
    if not isinstance(retries, RetryPolicy):
        problem = f"retries are a RetryPolicy, not {unquoted(retries)}"
    elif effect == "once":
        problem = (
            'effect is "once", so what failed is not run again: it may have taken effect. Say effect="idempotent" or '
            '"pure" where it may be, or leave out retries'
        )
    elif retries.attempts_by_kind or retries.attempts_total_max is not None:
        problem = "retries say attempts_max only; kinds of errors are those of model calls"
    if problem is not None:
        raise ConfigError(f"the tool {name!r} cannot work: its {problem}")


def checked_rules(
    spec: ToolSpec, breaker: CallBreaker | None, concurrency: int | None, *, per_session: bool = False
) -> ToolRules:
    rules = ToolRules(breaker, concurrency, per_session)
    problem = None
    if breaker is not None and not callable(getattr(breaker, "guard", None)):
        problem = f"breaker is a CircuitBreaker, not of type {type(breaker).__name__}"
    elif concurrency is not None and not (type(concurrency) is int and concurrency >= 1):
        problem = f"concurrency is None or an integer of at least 1, not {quoted(concurrency, 100)}"
    if problem is not None:
        raise ConfigError(f"the tool {spec.name!r} cannot work: its {problem}")
    return rules


def checked_validator(
    validate: V | None, tool_name: str, names: tuple[str, ...] | None = None, *, role: str = "validator"
) -> V | None:
    if validate is None:
        return None
    if not callable(validate) or inspect.iscoroutinefunction(entry_of(validate)):
        raise ConfigError(
            f"the {role} of the tool {tool_name!r} must be a plain function, not async: {unquoted(validate)}"
        )
    if names is not None:
        try:
            inspect.signature(validate).bind(**dict.fromkeys(names))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"the {role} of the tool {tool_name!r} must take its arguments ({', '.join(names)}): {error}"
            ) from None
    return validate


def checked_result_limit(name: str, options: OfferOptions) -> int | None:
    limit = options.get("result_limit", DEFAULT_RESULT_LIMIT)
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= RESULT_LIMIT_MAX:
        raise ConfigError(
            f"result_limit of the tool {name!r} must be 0 to {RESULT_LIMIT_MAX:,} bytes, or None for whole results, "
            f"not {unquoted(limit)}"
        )
    return limit
