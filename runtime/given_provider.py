"""What a user gives as a provider, looked at before anything begins.

The rule: what cannot answer is refused where it is given, and not at the first model call.
"""

import inspect
from collections.abc import Callable
from typing import Any, cast

from refold.actors.protocols import Provider
from refold.events.errors import ConfigError


def checked_provider(given: object) -> Provider:
    """Return a provider.

    Raises:
        ConfigError: it is a class, or has no async method `complete`.
    """
    complete = getattr(given, "complete", None)
    if isinstance(given, type) and callable(complete):
        raise ConfigError(f"a provider is an instance, and this is the class {given.__name__}: call it")
    name = type(given).__name__
    if not callable(complete):
        raise ConfigError(f"a provider has an async method `complete`, and {name} has none")
    if _is_plain(complete):
        raise ConfigError(f"a provider's `complete` is awaited, and that of {name} is a plain one; write `async def`")
    return cast("Provider", given)


def _is_plain(function: Callable[..., object]) -> bool:
    """Tell whether a call certainly gives no awaitable.

    A function that says it returns an awaitable is believed, and so is one that wraps an async one. Whether a lambda
    hands on another's coroutine cannot be seen.
    """
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        return False
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inspect.unwrap(function)):
        return False
    if inspect.isasyncgenfunction(function):
        return True
    annotated: Any = getattr(function, "__annotations__", {}).get("return")
    believed = any(word in str(annotated) for word in ("Awaitable", "Coroutine", "Future", "Task"))
    return not believed and function.__name__ != "<lambda>"
