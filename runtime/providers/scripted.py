"""A provider that plays a script: for tests, demonstrations and rehearsal, without network or key."""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NoReturn, Self, TypeAlias

import msgspec

from refold.actors.calls.protocols import StreamingProvider, StreamItem
from refold.events.core.content import Json, TextBlock
from refold.events.core.errors import ConfigError, ProviderError, unquoted
from refold.events.model.messages import (
    ModelRequest,
    ModelResponse,
    ResponseContent,
    StopReason,
    ToolUse,
    Usage,
    UsageDelta,
    deltas_of,
)
from refold.stores.event_store import EventStore
from refold.tools.dry_run import require_outside

ScriptedAnswer: TypeAlias = ModelResponse | ToolUse | str | Sequence[ToolUse | TextBlock | str]
"""A model answer, or a short form of one: a call, a text, or several of these in one answer."""


class HalfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of which only a part comes; made by `cut` and `stall`."""

    answer: ScriptedAnswer
    after: int
    error: BaseException | None
    """What ends it; None = nothing does, until the call is cancelled."""


ScriptFunction: TypeAlias = Callable[[ModelRequest], ScriptedAnswer | Awaitable[ScriptedAnswer]]

ScriptItem: TypeAlias = ScriptedAnswer | BaseException | HalfAnswer | ScriptFunction
"""One answer of a script: an answer, an exception to raise, a half answer, or a function of the request.

A function may be plain or async, and returns an answer.
"""

UNCOUNTED = Usage()
"""Of an answer that is not counted with tokens."""

DELTA_CHARACTERS = 8
"""Size of the pieces in which a scripted answer is streamed."""


def say(text: str, *, stop_reason: StopReason = "end_turn", usage: Usage = UNCOUNTED) -> ModelResponse:
    """Return an answer that is text.

    Args:
        text: the answer.
        stop_reason: why the model stopped.
        usage: the tokens that it is counted with.
    """
    return ModelResponse(content=(TextBlock(text=text),), stop_reason=stop_reason, usage=usage)


def use(name: str, input: Json = None, *, id: str | None = None) -> ToolUse:
    """Return a call of a tool; give several in a list for parallel calls in one answer.

    Args:
        name: the tool.
        input: its arguments; None = none. Text is taken as a provider's unparsed arguments.
        id: the provider's identifier of the call.
    """
    return ToolUse(name=name, input={} if input is None else input, id=id)


def cut(answer: ScriptedAnswer, *, after: int, error: BaseException | None = None) -> HalfAnswer:
    """Return an answer whose stream breaks off; where the configuration does not stream, the call just fails.

    Args:
        answer: what would have been answered.
        after: how many deltas of it come, of `DELTA_CHARACTERS` characters each.
        error: what ends it; None = a ProviderError of kind `connection` that may be repeated.
    """
    default = ProviderError("the connection broke inside the answer", kind="connection", retryable=True)
    return _half_answer(answer, after, error if error is not None else default)


def stall(answer: ScriptedAnswer, *, after: int) -> HalfAnswer:
    """Return an answer whose stream stops moving, and stays so until the call is cancelled.

    Args:
        answer: what would have been answered.
        after: how many deltas of it come, of `DELTA_CHARACTERS` characters each.
    """
    return _half_answer(answer, after, None)


def _half_answer(answer: ScriptedAnswer, after: int, error: BaseException | None) -> HalfAnswer:
    if isinstance(after, bool) or not isinstance(after, int) or after < 0:
        raise ConfigError(f"after is a number of deltas of at least 0, not {unquoted(after)}")
    return HalfAnswer(answer=answer, after=after, error=error)


class ScriptedProvider(StreamingProvider):
    """Answers each request with the next item of a script.

    Where the configuration streams, an answer comes in deltas of `DELTA_CHARACTERS` characters. If it is counted with
    tokens, those of the request are told before the first delta and all of them after the last.

    Args:
        script: see `ScriptItem`. A request after its end is refused with a ProviderError.

    Attributes:
        requests: what was asked, in order.
    """

    def __init__(self, script: Iterable[ScriptItem]) -> None:
        self._script = list(script)
        self.requests: list[ModelRequest] = []

    @classmethod
    async def from_log(cls, log: "str | os.PathLike[str] | EventStore", session: str) -> Self:
        """Return a provider whose script is what the model of a session answered, by position; errors are raised again.

        `refold.lineage.RecordedTools` gives the results of its tools. Calls that were cut short are left out.

        Args:
            log: path of the log's file, or an open store.
            session: whose answers.

        Raises:
            ConfigError: there is no such session.
            LogFormatError: the file is no log, or an event cannot be decoded.
            PersistenceError: the log cannot be read.
        """
        from refold.lineage.recorded import recorded_answers

        return cls(await recorded_answers(log, session))

    async def complete(self, request: ModelRequest) -> ModelResponse:
        require_outside("a provider")
        place = len(self.requests)
        self.requests.append(request)
        if place >= len(self._script):
            raise ProviderError(
                f"the script has {len(self._script)} answers and this is request {place + 1}; add one",
                kind="invalid_request",
            )
        return await scripted_answer(self._script[place], request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        require_outside("a provider")
        place = len(self.requests)
        item = self._script[place] if place < len(self._script) else None
        half = item if isinstance(item, HalfAnswer) else None
        if half is None:
            response = await self.complete(request)  # A subclass that changes it changes what is streamed.
        else:
            self.requests.append(request)
            response = await scripted_answer(half.answer, request)
        if response.usage != UNCOUNTED:
            yield UsageDelta(msgspec.structs.replace(response.usage, output_tokens=0))
        for delta in deltas_of(response, DELTA_CHARACTERS)[: half.after if half is not None else None]:
            yield delta
        if half is not None:
            await _broken_off(half)
        if response.usage != UNCOUNTED:
            yield UsageDelta(response.usage)
        yield response


async def _broken_off(half: HalfAnswer) -> NoReturn:
    if half.error is not None:
        raise half.error
    while True:
        await asyncio.get_running_loop().create_future()


async def scripted_answer(item: ScriptItem, request: ModelRequest) -> ModelResponse:
    """Return the answer that a script item stands for, or raise what it says."""
    if isinstance(item, BaseException):
        raise item
    if isinstance(item, HalfAnswer):
        await _broken_off(item)
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
