"""What providers, tools and callers hand us, checked before anything is made of it; and providers themselves.

Python checks no annotation, so a block may hold anything at all; and a block that stands for a payload can only be made
by us, who store that payload. The rule: what does not have the shape of its type is refused here, by its path, and
never reaches a session's state. A provider that cannot answer is refused where it is given, not at the first call.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast, get_args

import msgspec

from refold.actors.calls.protocols import Provider
from refold.events.core.cleaning import INTEGER_MAX, Unrecordable, clean_json, clean_text
from refold.events.core.content import (
    Block,
    DocumentBlock,
    ErrorKind,
    GivenContent,
    ImageBlock,
    JsonObject,
    Message,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from refold.events.core.errors import ConfigError, ProviderError, quoted
from refold.events.core.ids import ToolCallId
from refold.events.model.messages import (
    Delta,
    ModelResponse,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolInputDelta,
    ToolUse,
    Usage,
    UsageDelta,
)

B = TypeVar("B", bound=GivenContent)

_NONE = type(None)

_SHAPES: dict[type, dict[str, tuple[type, ...]]] = {
    TextBlock: {"text": (str,), "provider_data": (dict, _NONE)},
    ImageBlock: {"media_type": (str,), "data": (bytes,), "url": (str, _NONE), "provider_data": (dict, _NONE)},
    DocumentBlock: {
        "media_type": (str,),
        "data": (bytes,),
        "url": (str, _NONE),
        "name": (str,),
        "provider_data": (dict, _NONE),
    },
    ThinkingBlock: {"thinking": (str,), "signature": (str, _NONE), "provider_data": (dict, _NONE)},
    ProviderBlock: {"provider": (str,), "data": (dict,)},
    ToolUse: {"name": (str,), "id": (str, _NONE), "provider_data": (dict, _NONE)},
    ToolUseBlock: {
        "id": (str,),
        "name": (str,),
        "input": (dict,),
        "provider_id": (str, _NONE),
        "malformed_input": (str, _NONE),
        "provider_data": (dict, _NONE),
    },
    ToolResultBlock: {"tool_use_id": (str,), "content": (tuple, list), "is_error": (bool,), "kind": (str, _NONE)},
}

_DELTAS: dict[type, dict[str, tuple[type, ...]]] = {
    TextDelta: {"text": (str,)},
    ThinkingDelta: {"thinking": (str,)},
    ToolInputDelta: {"index": (int,), "name": (str,), "partial_json": (str,), "id": (str, _NONE)},
}

_STOP_REASONS = get_args(StopReason)
_ANSWER = (TextBlock, ImageBlock, ThinkingBlock, ProviderBlock, ToolUse, ToolUseBlock)
_MESSAGE = (TextBlock, ImageBlock, DocumentBlock, ThinkingBlock, ProviderBlock, ToolUseBlock, ToolResultBlock)
_RESULT = (TextBlock, ImageBlock, DocumentBlock)


def checked_block(block: B, path: str = "$") -> B:
    """Return a text, an image or a document as it can be recorded."""
    _check(block, _RESULT, path)
    return cast("B", _clean(block, path))


def checked_response(response: object) -> ModelResponse:
    """Return a provider's answer, all of it of the declared types."""
    try:
        if not isinstance(response, ModelResponse):
            raise Unrecordable("$", f"is {_kind(response)}, not a ModelResponse")
        _check_sequence(response.content, _ANSWER, "$.content")
        if response.stop_reason not in _STOP_REASONS:
            raise Unrecordable("$.stop_reason", f"is {quoted(response.stop_reason)}, not one of {_STOP_REASONS}")
        if not isinstance(response.model, str | None):
            raise Unrecordable("$.model", f"is {_kind(response.model)}, not text")
        if not isinstance(response.stop_details, dict | None):
            raise Unrecordable("$.stop_details", f"is {_kind(response.stop_details)}, not an object")
        if response.stop_details is not None:
            details = _clean_data(response.stop_details, "$", "stop_details")
            response = msgspec.structs.replace(response, stop_details=details)
        if not isinstance(response.rejected, str):
            raise Unrecordable("$.rejected", f"is {_kind(response.rejected)}, not text")
        if response.rejected and any(isinstance(block, ToolUse | ToolUseBlock) for block in response.content):
            raise Unrecordable("$.rejected", "is set for an answer that calls tools; only one without calls can be")
        _check_usage(response.usage)
    except Unrecordable as error:
        raise ProviderError(f"the provider gave an answer that cannot be used: {error}", kind="malformed") from None
    return response


def checked_delta(delta: object) -> Delta:
    """Return a piece of an answer, all of it of the declared types."""
    try:
        if not isinstance(delta, TextDelta | ThinkingDelta | ToolInputDelta | UsageDelta):
            raise Unrecordable("$", f"is {_kind(delta)}, not a delta or a ModelResponse")
        for field, types in _DELTAS.get(type(delta), {}).items():
            value = getattr(delta, field)
            if not isinstance(value, types):
                raise Unrecordable(f"$.{field}", f"is {_kind(value)}, not {types[0].__name__}")
        if isinstance(delta, ToolInputDelta) and (isinstance(delta.index, bool) or delta.index < 0):
            raise Unrecordable("$.index", f"is {quoted(delta.index)}, not a place among the calls")
        if isinstance(delta, UsageDelta):
            _check_usage(delta.usage)
    except Unrecordable as error:
        raise ProviderError(f"the provider streamed something that cannot be used: {error}", kind="malformed") from None
    return delta


def checked_messages(messages: object) -> list[Message]:
    """Return messages of another system, clean."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise Unrecordable("messages", f"is {_kind(messages)}, not a list of Message")
    checked: list[Message] = []
    for place, message in enumerate(cast("Sequence[object]", messages)):
        path = f"messages[{place}]"
        if not isinstance(message, Message) or message.role not in ("user", "assistant"):
            raise Unrecordable(path, "is not a Message of a user or an assistant")
        _check_sequence(message.content, _MESSAGE, f"{path}.content")
        content = tuple(_clean(block, f"{path}.content[{number}]") for number, block in enumerate(message.content))
        checked.append(Message(message.role, content))
    return checked


def _check_usage(usage: object) -> None:
    if not isinstance(usage, Usage):
        raise Unrecordable("$.usage", f"is {_kind(usage)}, not a Usage")
    for field in Usage.__struct_fields__:
        count = getattr(usage, field)
        if type(count) is not int or not 0 <= count <= INTEGER_MAX:
            raise Unrecordable(f"$.usage.{field}", f"is {quoted(count)}, not a number of tokens")


def _check_sequence(blocks: object, allowed: tuple[type, ...], path: str) -> None:
    if not isinstance(blocks, tuple | list):
        raise Unrecordable(path, f"is {_kind(blocks)}, not a tuple of blocks")
    for place, block in enumerate(cast("Sequence[object]", blocks)):
        _check(block, allowed, f"{path}[{place}]")


def _check(block: object, allowed: tuple[type, ...], path: str) -> None:
    if type(block) not in allowed:
        raise Unrecordable(path, f"is {_kind(block)}, not one of {', '.join(kind.__name__ for kind in allowed)}")
    for field, types in _SHAPES[type(block)].items():
        value = getattr(block, field)
        if not isinstance(value, types):
            raise Unrecordable(f"{path}.{field}", f"is {_kind(value)}, not {types[0].__name__}")
    if isinstance(block, ImageBlock | DocumentBlock) and block.url is not None:
        _check_address(block.url, block.data, path)
    if isinstance(block, ToolResultBlock):
        if block.kind is not None and block.kind not in get_args(ErrorKind):
            raise Unrecordable(f"{path}.kind", f"is {quoted(block.kind)}, which is no kind of error")
        _check_sequence(block.content, _RESULT, f"{path}.content")


def _check_address(url: str, data: bytes, path: str) -> None:
    if data:
        raise Unrecordable(f"{path}.url", "stands beside data; give one of them")
    if re.fullmatch(r"https?://[!-~]+", url) is None:
        raise Unrecordable(f"{path}.url", f"is {quoted(url)}, not an address such as https://host/file")


def _clean(block: Block, path: str) -> Block:
    match block:
        case TextBlock(text=text, provider_data=data):
            return TextBlock(text=clean_text(text), provider_data=_clean_data(data, path))
        case ThinkingBlock(thinking=thinking, signature=signature, provider_data=data):
            signed = clean_text(signature) if signature is not None else None
            return ThinkingBlock(thinking=clean_text(thinking), signature=signed, provider_data=_clean_data(data, path))
        case ProviderBlock(data=data):
            return ProviderBlock(provider=clean_text(block.provider), data=_clean_data(data, path, "data") or {})
        case ToolUseBlock(input=arguments, provider_data=data):
            return msgspec.structs.replace(
                block,
                id=_clean_id(block.id),
                name=clean_text(block.name),
                input=clean_json(arguments, f"{path}.input"),
                provider_id=clean_text(block.provider_id) if block.provider_id is not None else None,
                malformed_input=clean_text(block.malformed_input) if block.malformed_input is not None else None,
                provider_data=_clean_data(data, path),
            )
        case ToolResultBlock(content=content):
            call = _clean_id(block.tool_use_id)
            return msgspec.structs.replace(
                block, tool_use_id=call, content=tuple(_clean(part, path) for part in content)
            )
        case ImageBlock(media_type=media_type, provider_data=data):
            media_type = clean_text(media_type)
            return msgspec.structs.replace(block, media_type=media_type, provider_data=_clean_data(data, path))
        case DocumentBlock(media_type=media_type, name=name, provider_data=data):
            media_type, name, data = clean_text(media_type), clean_text(name), _clean_data(data, path)
            return msgspec.structs.replace(block, media_type=media_type, name=name, provider_data=data)
        case _:
            return block


def _clean_id(call: ToolCallId) -> ToolCallId:
    """Return the id of a call as valid Unicode, another one for each."""
    return ToolCallId(call.encode("utf-8", "backslashreplace").decode())


def _clean_data(data: JsonObject | None, path: str, field: str = "provider_data") -> JsonObject | None:
    return cast("JsonObject", clean_json(data, f"{path}.{field}")) if data else None


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"


def checked_provider(given: object) -> Provider:
    complete = getattr(given, "complete", None)
    if isinstance(given, type) and callable(complete):
        raise ConfigError(f"a provider is an instance, and this is the class {given.__name__}: call it")
    name = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
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
