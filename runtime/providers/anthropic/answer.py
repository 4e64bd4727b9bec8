"""Answers of the Messages API, made into ours: content blocks, stop reasons, usage.

Wire format: `types/content_block.py`, `types/stop_reason.py` and `types/usage.py` of the official package, "Messages"
and "Handling stop reasons" in the API reference (platform.claude.com/docs).

- A block's fields that we have no word for are kept in `provider_data["anthropic"]` and go back with it, such as a
  text's `citations` and a call's `caller`. Those that are null or an empty list say nothing and are not kept.
- A block of any other type, such as `redacted_thinking`, `server_tool_use` and the results of server tools, or one
  that was invented after this was written, is a `ProviderBlock` with the very object that came.
"""

from collections.abc import Callable

from refold.events.core.cleaning import INTEGER_MAX
from refold.events.core.content import (
    Json,
    JsonObject,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    is_json_array,
    is_json_object,
)
from refold.events.model.messages import ModelResponse, ResponseContent, StopReason, ToolUse, Usage
from refold.providers.anthropic.errors import failure_of, json_object_in, malformed
from refold.providers.anthropic.history import NAME

OurName = Callable[[str], str]
"""Given a tool's name on the wire, returns ours."""

UNCOUNTED = Usage()

_STOP_REASONS: dict[str, StopReason] = {
    "end_turn": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "stop_sequence": "stop_sequence",
    "pause_turn": "pause_turn",
    "refusal": "refusal",
    "model_context_window_exceeded": "max_tokens",
}


def answer_in(body: bytes, our_name: OurName) -> ModelResponse:
    """Return the answer in the body of a complete response.

    Raises:
        ProviderError: it is an error object, or cannot be understood.
    """
    message = json_object_in(body)
    if message is None:
        raise malformed("the body is not a JSON object")
    if message.get("type") == "error" or is_json_object(message.get("error")):
        raise failure_of(None, {}, body)
    blocks = message.get("content")
    if not is_json_array(blocks):
        raise malformed("it has no list of content")
    content = tuple(content_of(block, our_name) for block in blocks)
    return response_of(content, message, usage_of(message.get("usage")))


def response_of(content: tuple[ResponseContent, ...], message: JsonObject, usage: Usage) -> ModelResponse:
    """Return an answer put together.

    Args:
        message: says who answered, and why the model stopped.

    Raises:
        ProviderError: it does not say why the model stopped.
    """
    told, model = message.get("stop_reason"), message.get("model")
    if not isinstance(told, str):
        raise malformed("it does not say why the model stopped")
    stop_reason = stop_reason_of(told, content)
    return ModelResponse(
        content=content,
        stop_reason=stop_reason,
        stop_details=_stop_details(message, told, stop_reason),
        usage=usage,
        model=model if isinstance(model, str) and model else None,
    )


def _stop_details(message: JsonObject, told: str, ours: StopReason) -> JsonObject | None:
    """Return what a message says of why the model stopped, beyond our word for it."""
    details, sequence = message.get("stop_details"), message.get("stop_sequence")
    if is_json_object(details) and details:
        return details
    if sequence is not None:
        return {"type": told, "stop_sequence": sequence}
    return {"type": told} if told != ours else None


def stop_reason_of(told: str, content: tuple[ResponseContent, ...]) -> StopReason:
    """Return why the model stopped, in our words.

    An answer that has filled the context window is cut, as one that reached `max_tokens`. A reason that is not known
    to this version counts as `tool_use` where the answer has calls, else as `end_turn`: what the model has said is
    complete as far as can be told.
    """
    if told in _STOP_REASONS:
        return _STOP_REASONS[told]
    return "tool_use" if any(isinstance(block, ToolUse) for block in content) else "end_turn"


def content_of(block: object, our_name: OurName) -> ResponseContent:
    """Return a content block in our words.

    Raises:
        ProviderError: it is no object with a type, or one of its fields is not what its type says.
    """
    if not is_json_object(block) or not isinstance(block.get("type"), str):
        raise malformed("a content block is no object with a type")
    match block["type"]:
        case "text":
            return TextBlock(text=_text(block, "text"), provider_data=_kept(block, "text"))
        case "thinking":
            signature = block.get("signature")
            return ThinkingBlock(
                thinking=_text(block, "thinking"),
                signature=signature if isinstance(signature, str) and signature else None,
                provider_data=_kept(block, "thinking", "signature"),
            )
        case "tool_use":
            call = block.get("id")
            return ToolUse(
                name=our_name(_text(block, "name")),
                input=block.get("input"),
                id=call if isinstance(call, str) else None,
                provider_data=_kept(block, "name", "input", "id"),
            )
        case _:
            return ProviderBlock(provider=NAME, data=block)


def _text(block: JsonObject, field: str) -> str:
    value = block.get(field)
    if not isinstance(value, str):
        raise malformed(f"the {field} of a block of type {block['type']!r:.50} is not text")
    return value


def _kept(block: JsonObject, *known: str) -> JsonObject | None:
    others: dict[str, Json] = {
        field: value
        for field, value in block.items()
        if field != "type" and field not in known and value is not None and value != []
    }
    return {NAME: others} if others else None


def usage_of(told: object, before: Usage = UNCOUNTED) -> Usage:
    """Return the tokens that `told` counts, and where it counts fewer, or not in numbers, those of `before`.

    Counts of one answer are cumulative, so none of them falls; a gateway may repeat them with zeros. `input_tokens` are
    those that were neither read from the cache nor written to it, as the API counts them.
    """
    fields = told if is_json_object(told) else {}

    def count(field: str, otherwise: int) -> int:
        value = fields.get(field)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return max(value, otherwise) if type(value) is int and 0 <= value <= INTEGER_MAX else otherwise

    return Usage(
        input_tokens=count("input_tokens", before.input_tokens),
        output_tokens=count("output_tokens", before.output_tokens),
        cache_read_tokens=count("cache_read_input_tokens", before.cache_read_tokens),
        cache_creation_tokens=count("cache_creation_input_tokens", before.cache_creation_tokens),
    )
