"""A provider that plays a script: for tests, demonstrations and rehearsal, without network or key."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from refold.actors.protocols import Provider, StreamItem
from refold.events.content import Json, TextBlock
from refold.events.errors import ProviderError
from refold.events.model import ModelRequest, ModelResponse, ResponseContent, StopReason, ToolUse, deltas_of

Answer: TypeAlias = ModelResponse | ToolUse | str | Sequence[ToolUse | TextBlock | str]
"""A model answer, or a short form of one: a call, a text, or several of these in one answer."""

ScriptFunction: TypeAlias = Callable[[ModelRequest], "Answer | Awaitable[Answer]"]

ScriptItem: TypeAlias = Answer | BaseException | ScriptFunction
"""One answer of a script: an answer, an exception to raise, or a function of the request, plain or async."""

DELTA_CHARACTERS = 8
"""Size of the pieces in which a scripted answer is streamed."""


def say(text: str, *, stop_reason: StopReason = "end_turn") -> ModelResponse:
    """Return an answer that is text."""
    return ModelResponse(content=(TextBlock(text=text),), stop_reason=stop_reason)


def use(name: str, input: Json = None, *, id: str | None = None) -> ToolUse:
    """Return a call of a tool; give several in a list for parallel calls in one answer.

    Args:
        name: the tool.
        input: its arguments; None = none. Text is taken as a provider's unparsed arguments.
        id: the provider's identifier of the call.
    """
    return ToolUse(name=name, input={} if input is None else input, id=id)


class ScriptedProvider(Provider):
    """Answers each request with the next item of a script.

    Args:
        script: see `ScriptItem`. A request after its end is refused with a ProviderError.

    Attributes:
        requests: what was asked, in order.
    """

    def __init__(self, script: Iterable[ScriptItem]) -> None:
        self._script = list(script)
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the next answer.

        Raises:
            ProviderError: the script is over.
            BaseException: the item is one.
        """
        place = len(self.requests)
        self.requests.append(request)
        if place >= len(self._script):
            raise ProviderError(
                f"the script has {len(self._script)} answers and this is request {place + 1}; add one",
                kind="invalid_request",
            )
        return await scripted_answer(self._script[place], request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the next answer in small pieces, and then whole."""
        response = await self.complete(request)
        for delta in deltas_of(response, DELTA_CHARACTERS):
            yield delta
        yield response


async def scripted_answer(item: ScriptItem, request: ModelRequest) -> ModelResponse:
    """Return the answer that a script item stands for.

    Raises:
        BaseException: the item is one.
    """
    if isinstance(item, BaseException):
        raise item
    if callable(item):
        answer = item(request)
        item = await answer if inspect.isawaitable(answer) else answer
    if isinstance(item, ModelResponse):
        return item
    parts: Sequence[ToolUse | TextBlock | str] = [item] if isinstance(item, str | ToolUse) else item
    content: tuple[ResponseContent, ...] = tuple(
        TextBlock(text=part) if isinstance(part, str) else part for part in parts
    )
    calls = any(isinstance(part, ToolUse) for part in content)
    return ModelResponse(content=content, stop_reason="tool_use" if calls else "end_turn")
