"""A plain function as a provider: `AgentRuntime(config, provider=ask_my_model)`.

The rules: a function that says it takes a `ModelRequest`, by its annotation or by calling its parameter `request`, gets
the request; any other gets the prompt, one text with the system prompt and the conversation. It returns a text or a
`ModelResponse`. A plain function may block: it runs in a thread; what it returns is awaited where it can be.
"""

import inspect
import weakref
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from refold.actors.calls.protocols import Provider
from refold.actors.calls.validation import checked_provider
from refold.actors.thread_pool import ThreadPool
from refold.events.core.cleaning import without_addresses
from refold.events.core.content import TextBlock
from refold.events.core.errors import ConfigError
from refold.events.model.context_window import transcript_text
from refold.events.model.messages import ModelRequest, ModelResponse

FunctionAnswer: TypeAlias = str | ModelResponse

ProviderFunction: TypeAlias = (
    Callable[[str], FunctionAnswer | Awaitable[FunctionAnswer]]
    | Callable[[ModelRequest], FunctionAnswer | Awaitable[FunctionAnswer]]
)
"""Answers a prompt or a request with a text or a response; plain or async."""


class FunctionProvider(Provider):
    """Asks a function for each answer.

    Args:
        function: given the prompt or the request, returns the answer.

    Raises:
        ConfigError: it does not take exactly one argument.
    """

    def __init__(self, function: ProviderFunction) -> None:
        self._function: Callable[..., object] = function
        self._takes_request = _takes_request(function)
        called = function if inspect.isroutine(function) else type(function).__call__
        self._pool = None if inspect.iscoroutinefunction(inspect.unwrap(called)) else ThreadPool(name="refold-provider")
        if self._pool is not None:
            weakref.finalize(self, self._pool.close)

    def __repr__(self) -> str:
        return f"<FunctionProvider {getattr(self._function, '__qualname__', type(self._function).__name__)}>"

    async def complete(self, request: ModelRequest) -> ModelResponse:
        given = request if self._takes_request else prompt_of(request)
        answer = self._function(given) if self._pool is None else await self._pool.run(self._function, given)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, str):
            return ModelResponse(content=(TextBlock(text=answer),))
        return answer  # type: ignore[return-value]  # It is checked where it is recorded.


def as_provider(given: Provider | ProviderFunction) -> Provider:
    """Return a provider, which is checked, also of a function."""
    if callable(given) and not isinstance(given, type) and not hasattr(given, "complete"):
        return FunctionProvider(given)
    return checked_provider(given)


def prompt_of(request: ModelRequest) -> str:
    """Return a request as one text: the system prompt, and the conversation, of which a single input has no label."""
    messages = request.messages
    said = messages[0].text if len(messages) == 1 else transcript_text(messages)
    return "\n\n".join(filter(None, [request.system_prompt, said]))


def _takes_request(function: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(function)
        signature.bind(None)
    except (TypeError, ValueError) as error:
        entry = function if hasattr(function, "__qualname__") else type(function)
        raise ConfigError(
            "a function that is a provider takes the prompt or the request, and "
            f"{entry.__module__}.{entry.__qualname__} does not: {without_addresses(str(error))}"
        ) from error
    first = next(iter(signature.parameters.values()))
    if first.annotation is inspect.Parameter.empty:
        return first.name == "request"
    return "ModelRequest" in str(first.annotation)
