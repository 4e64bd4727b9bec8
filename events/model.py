"""What is asked of a model and what it answers: request, response, usage."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from refold.events.configuration import ToolSpec
from refold.events.content import AnswerContent, Json, JsonObject, Message, TextBlock, ThinkingBlock
from refold.events.ids import PayloadHash
from refold.events.prepared import Prepared
from refold.events.spending import Usage as Usage

StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "pause_turn", "refusal"]
"""Why a model stopped, in Anthropic's words; other providers' reasons are mapped to them."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call, complete: a provider needs nothing else."""

    model: str
    system_prompt: str
    messages: Sequence[Message]
    """Balanced history, oldest first; never empty. A read-only view that stays as it is."""
    tools: tuple[ToolSpec, ...] = ()
    """In name order."""
    max_tokens: int | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] = ()


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as a provider gives it, before it is recorded."""

    name: str
    input: Json = msgspec.field(default_factory=dict[str, Json])
    """The arguments, or the text of them where the provider hands over text; may be anything."""
    id: str | None = None
    """The provider's own identifier, if it has one."""
    provider_data: JsonObject | None = None
    """What providers want back with the call unchanged, each under the provider's name."""


ResponseContent: TypeAlias = AnswerContent | ToolUse
"""What a provider's response may hold."""


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A model's complete answer, as a provider gives it."""

    content: tuple[ResponseContent, ...]
    stop_reason: StopReason = "end_turn"
    usage: Usage = Usage()
    model: str | None = None
    """The model that answered, where the provider says."""
    rejected: str = ""
    """Why the answer, which calls no tool, cannot be used, in words for the model, which is then asked again."""


class RequestReference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Names the exact request that an answer belongs to, by the parts it was built from."""

    configured: int
    """Version of the AgentConfigured in force."""
    messages: int
    """How many messages of the history were sent."""
    digest: str = ""
    """SHA-256 over those messages, rolling, in hexadecimal."""
    offered: tuple[str, ...] | None = None
    """Names of the tools that the model was offered, in name order; None = all that are configured."""
    recalled: tuple[str, ...] = ()
    """Identifiers of the remembered items that entered the request, best first."""
    prepared: Prepared | None = None
    """What else was done to the request; None = nothing, or it is a payload."""
    prepared_payload: PayloadHash | None = None
    """The JSON of that, where it is large."""


class TextDelta(msgspec.Struct, frozen=True):
    """A piece of an answer's text, as it arrives."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    """A piece of an answer's reasoning, as it arrives."""

    thinking: str


class ToolInputDelta(msgspec.Struct, frozen=True):
    """A piece of the JSON text of a tool call's arguments, as it arrives."""

    index: int
    """Place of the call among the answer's calls, from 0."""
    name: str
    partial_json: str
    """May be empty, to say that the call has begun."""
    id: str | None = None
    """The provider's own identifier of the call, if it has one."""


class UsageDelta(msgspec.Struct, frozen=True):
    """The tokens of this answer that the provider has counted so far; the last one counts."""

    usage: Usage


Delta: TypeAlias = TextDelta | ThinkingDelta | ToolInputDelta | UsageDelta
"""What arrives while an answer is streamed; published to subscribers, never logged."""


def deltas_of(response: ModelResponse, characters: int) -> list[Delta]:
    """Return pieces of at most `characters` characters that add up to `response`'s content, in order."""
    deltas: list[Delta] = []
    calls = 0
    for block in response.content:
        if isinstance(block, TextBlock):
            deltas.extend(TextDelta(piece) for piece in _pieces(block.text, characters))
        elif isinstance(block, ThinkingBlock):
            deltas.extend(ThinkingDelta(piece) for piece in _pieces(block.thinking, characters))
        elif isinstance(block, ToolUse):
            text = _arguments_text(block.input)
            pieces = _pieces(text, characters) or [""]
            deltas.extend(ToolInputDelta(calls, block.name, piece, block.id) for piece in pieces)
            calls += 1
    return deltas


def _arguments_text(arguments: Json) -> str:
    if isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.encode(arguments).decode()
    except (TypeError, ValueError, RecursionError):  # Refused when it is recorded; until then, shown as it is.
        return repr(arguments)


def _pieces(text: str, characters: int) -> list[str]:
    return [text[start : start + characters] for start in range(0, len(text), characters)]
