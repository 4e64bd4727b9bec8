"""The answer of a provider as a stream, and the evidence of what came of it, should the whole answer never come.

A provider that cannot stream gives its whole answer as the only item. The rules: the consumer of a stream closes it,
also one that it left early; a provider that gives no stream fails the call in words and leaves no coroutine behind.
Evidence keeps text, reasoning and calls in the order in which they began; it is bounded, and nothing in it can be
mistaken for a call that was made.
"""

import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator
from typing import TypeGuard

import msgspec

from refold.actors.calls.protocols import Provider, StreamingProvider
from refold.events.core.cleaning import Unrecordable, clean_json, clean_text
from refold.events.core.content import AnswerContent, Json, TextBlock, ThinkingBlock, ToolUseBlock, is_json_object
from refold.events.core.errors import ProviderError
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.model.messages import (
    Delta,
    ModelRequest,
    TextDelta,
    ThinkingDelta,
    ToolInputDelta,
    Usage,
    UsageDelta,
)
from refold.events.model.payloads import spill
from refold.events.session.events import ModelInterrupted
from refold.events.session.normalise import MALFORMED_SHOWN, NAME_CHARACTERS_MAX

log = logging.getLogger("refold.model")


def can_stream(provider: Provider) -> TypeGuard[StreamingProvider]:
    return callable(getattr(provider, "stream", None))


def answer_stream(provider: Provider, request: ModelRequest) -> AsyncIterable[object]:
    """Return the stream of a provider's answer; `close_stream` it."""
    if not can_stream(provider):
        return _whole(provider, request)
    stream: object = provider.stream(request)
    if isinstance(stream, AsyncIterable):
        return stream
    if inspect.iscoroutine(stream):
        stream.close()
    raise ProviderError(
        f"stream() of {type(provider).__name__} gave {type(stream).__name__}, not an async iterator", kind="malformed"
    )


async def close_stream(stream: AsyncIterable[object]) -> None:
    """Let a stream clean up behind itself, if it can."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


async def close_behind(stream: AsyncIterable[object]) -> None:
    """Let a stream clean up behind what it has given; how that goes changes nothing about it, and is only logged."""
    try:
        await close_stream(stream)
    except Exception:
        log.exception("the stream of a model call could not be closed")


async def _whole(provider: Provider, request: ModelRequest) -> AsyncIterator[object]:
    yield await provider.complete(request)


CHARACTERS_MAX = 128 * 1024
"""So much of a half answer is kept; what comes after is not. As JSON it always fits into one event."""

BLOCK_CHARACTERS = 100
"""What a block counts for beside its text, so that the number of blocks is bounded too."""


class _Part:
    """One block in the making: text, reasoning, or the text of a call's arguments."""

    __slots__ = ("kind", "name", "pieces", "provider_id")

    def __init__(self, kind: type[Delta], name: str = "", provider_id: str | None = None) -> None:
        self.kind = kind
        self.name = name
        self.provider_id = provider_id
        self.pieces: list[str] = []


class PartialResponse:
    """Gathers the deltas of one answer."""

    def __init__(self) -> None:
        self.usage = Usage()
        """Tokens of the answer that have been counted so far."""
        self._parts: list[_Part] = []
        self._calls: dict[int, _Part] = {}
        self._room = CHARACTERS_MAX

    @property
    def begun(self) -> bool:
        return bool(self._parts)

    def add(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text=text):
                self._continue(TextDelta, text)
            case ThinkingDelta(thinking=thinking):
                self._continue(ThinkingDelta, thinking)
            case ToolInputDelta(index=index):
                self._continue_call(index, delta)
            case UsageDelta(usage=usage):
                self.usage = usage

    def interruption(self, turn: int, asked: int) -> tuple[ModelInterrupted | None, dict[PayloadHash, bytes]]:
        """Return what to record of it, large blocks spilled to payloads; None where nothing has come."""
        blocks: list[AnswerContent] = []
        for part in self._parts:
            text = clean_text("".join(part.pieces))
            if part.kind is ToolInputDelta:
                blocks.append(_call(part, text, ToolCallId(f"cut_{asked}_{len(blocks)}")))
            elif text.strip():
                blocks.append(TextBlock(text=text) if part.kind is TextDelta else ThinkingBlock(thinking=text))
        content, payloads = spill(blocks)
        if not content and self.usage == Usage():
            return None, {}
        return ModelInterrupted(turn=turn, asked=asked, content=content, usage=self.usage), payloads

    def _continue(self, kind: type[Delta], text: str) -> None:
        if not text:
            return
        last = self._parts[-1] if self._parts else None
        if last is None or last.kind is not kind:
            last = _Part(kind)
            if not self._begin(last):
                return
        self._keep(last, text)

    def _continue_call(self, index: int, delta: ToolInputDelta) -> None:
        part = self._calls.get(index)
        if part is None:
            part = _Part(ToolInputDelta, delta.name, delta.id)
            if not self._begin(part):
                return
            self._calls[index] = part
        self._keep(part, delta.partial_json)

    def _begin(self, part: _Part) -> bool:
        if self._room <= 0:
            return False
        self._room -= BLOCK_CHARACTERS + min(len(part.name), NAME_CHARACTERS_MAX)
        self._parts.append(part)
        return True

    def _keep(self, part: _Part, text: str) -> None:
        if self._room > 0:
            part.pieces.append(text[: self._room])
            self._room -= len(part.pieces[-1])


def _call(part: _Part, text: str, call: ToolCallId) -> ToolUseBlock:
    """Return a call that was never made: its arguments where they had come whole, else the beginning of their text."""
    arguments: Json
    try:
        arguments = clean_json(msgspec.json.decode(text))
    except (msgspec.MsgspecError, UnicodeError, RecursionError, Unrecordable):  # Cut in the middle, as a rule.
        arguments = None
    return ToolUseBlock(
        id=call,
        name=clean_text(part.name[:NAME_CHARACTERS_MAX]),
        input=arguments if is_json_object(arguments) else {},
        provider_id=clean_text(part.provider_id[:NAME_CHARACTERS_MAX]) if part.provider_id is not None else None,
        malformed_input=None if is_json_object(arguments) else text[:MALFORMED_SHOWN],
    )
