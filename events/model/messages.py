"""What is asked of a model and what it answers: request, response, usage.

What was done to a request before it went to a model, beyond putting configuration and history together.

It rides in the reference to the request (`refold.events.model.messages.RequestReference`), so that the exact request
can be built again from the log alone; `refold.events.model.request` does that. What was not done is left out. The rule:
these are recorded shapes; a field is added with a default, and what one means never changes.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from refold.events.core.content import AnswerContent, Json, JsonObject, Message, TextBlock, ThinkingBlock
from refold.events.core.ids import PayloadHash
from refold.events.model.configuration import ToolSpec
from refold.events.model.refused import RefusedParts
from refold.events.model.spending import Usage as Usage


class SystemAddition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text that stands behind the system prompt, with an empty line before it."""

    source: Literal["recall", "working_memory"]
    """Where it comes from."""
    text: str


class Splice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some messages of a request that others stand for."""

    first: int = 0
    """Place of the first message that is replaced, from 0."""
    removed: int = 0
    """How many are replaced."""
    messages: tuple[Message, ...] = ()
    """What stands in their place; blocks are whole, none stands for a payload."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the model is to answer, where that is not as configured."""

    max_tokens: int | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] = ()


class Rewritten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What else differs in a request; None = nothing of that."""

    model: str | None = None
    system_prompt: str | None = None
    messages: Splice | None = None
    tools: tuple[ToolSpec, ...] | None = None
    """All that the model was offered instead."""
    sampling: Sampling | None = None


class Prepared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was done to one request, in the order of the fields."""

    refused: RefusedParts | None = None
    """What notes stand for, since the provider had refused it."""
    kept: tuple[tuple[int, int], ...] | None = None
    """The messages of the history that were kept, as ranges from the first to before the second place, in order; None =
    all of them."""
    prompt: str | None = None
    """What the agent's function gave as the system prompt, which stands before the configured one; None = it has none.
    """
    added: tuple[SystemAddition, ...] = ()
    """In the order in which they stand."""
    rewritten: Rewritten | None = None
    answer: tuple[AnswerContent, ...] | None = None
    """The model's own answer, where middleware changed it before it was recorded; its call ids are ours in form only.
    """
    notes: tuple[str, ...] = ()
    """What could not be done, and the model was asked without, in words."""


NOTHING = Prepared()
"""A plain request."""


StopReason = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "pause_turn", "refusal"]
"""Why a model stopped, in Anthropic's words; other providers' reasons are mapped to them."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call, complete: a provider needs nothing else."""

    model: str
    system_prompt: str
    messages: Sequence[Message]
    """Balanced history, oldest first; never empty. A read-only view that never changes."""
    tools: tuple[ToolSpec, ...] = ()
    """In name order."""
    max_tokens: int | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] = ()
    output_schema: JsonObject | None = None
    """JSON Schema of a final answer that is data, which the system prompt tells, too; a provider may hold the model to
    it. None = any text."""


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
    stop_details: JsonObject | None = None
    """What the provider says of why the model stopped, beyond the reason: such as the category of a refusal."""
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
    estimated: int = 0
    """About how many tokens it had, counted as the context window counts; 0 = that was not counted."""
    fits: int = 0
    """Where the provider found a longer one too long, in this call or before: the tokens, counted likewise, to which it
    was shortened; 0 = it was not."""
    unsummarised: int = 0
    """So many tokens of the history, counted likewise, were too long for one summary, now or before; 0 = none."""
    sent: str = ""
    """Digest of the request as it left, with the name of its form: `request:…` (see `request_digest`), or the name of a
    wire format; empty = that is not known, or it did not leave."""


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


def delta_text(delta: Delta) -> str:
    """Return the text of a piece; empty of one that only counts tokens."""
    match delta:
        case TextDelta(text=text) | ThinkingDelta(thinking=text) | ToolInputDelta(partial_json=text):
            return text
        case _:
            return ""


def delta_with_text(delta: Delta, text: str) -> Delta:
    match delta:
        case TextDelta():
            return TextDelta(text)
        case ThinkingDelta():
            return ThinkingDelta(text)
        case ToolInputDelta():
            return msgspec.structs.replace(delta, partial_json=text)
        case _:
            return delta


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
    except (TypeError, ValueError, RecursionError):  # Refused when it is recorded; until then, shown unchanged.
        return repr(arguments)


def _pieces(text: str, characters: int) -> list[str]:
    return [text[start : start + characters] for start in range(0, len(text), characters)]
