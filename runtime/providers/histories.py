"""Histories in the two wire forms: `messages` of the Messages API (Anthropic) and of Chat Completions (OpenAI).

    history = history_from_openai(json.load(file))
    await session.import_history(history.messages)

Read `history_from_openai` first. The rules: nothing that is certain in meaning is refused or lost, and what is read and
written again is the same. What only one provider understands is kept in a `ProviderBlock` of its name. The readers of
answers read what the assistant said, so that a history is understood as an answer is.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Final, TypeAlias, TypeGuard

import msgspec

from refold.events.core.content import (
    OPENING_TEXT,
    Block,
    DocumentBlock,
    GivenContent,
    ImageBlock,
    Json,
    JsonObject,
    Message,
    ProviderBlock,
    ResultContent,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    is_json_array,
    is_json_object,
)
from refold.events.core.errors import ConfigError, ProviderError
from refold.events.core.ids import ToolCallId
from refold.events.model.messages import ModelRequest, ResponseContent, ToolUse
from refold.events.session.events import Verdict
from refold.events.session.normalise import recorded_call
from refold.providers.anthropic import request as anthropic
from refold.providers.anthropic.answer import content_of
from refold.providers.anthropic.history import NAME as ANTHROPIC
from refold.providers.openai.answer import AnswerAssembly
from refold.providers.openai.names import ToolNames
from refold.providers.openai.request import OpenAISettings, chat_messages, tool_forms

OPENAI: Final = "openai"

_DATA: Final = "data:"

_OPENING: Final = Message("user", (TextBlock(text=OPENING_TEXT),))

WireMessages: TypeAlias = Sequence[JsonObject] | JsonObject
"""A list of messages, or the body of a request that has them."""


class WireHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as a provider's API has it."""

    messages: list[Message]
    """For `Session.import_history`."""
    system_prompt: str = ""
    """What stood before the conversation; an agent's configuration has one of its own."""


def history_from_anthropic(given: WireMessages) -> WireHistory:
    """Return a history of the Messages API as ours.

    Args:
        given: the `messages`, or the body of a request, whose `system` is read, too.

    Raises:
        ConfigError: it is no such history; names the message.
    """
    body, messages = _parts(given)
    system = body.get("system")
    parts = system if is_json_array(system) else [{"type": "text", "text": system}] if system else []
    texts = [part.get("text") if is_json_object(part) else part for part in parts]
    return WireHistory(
        messages=[_from_anthropic(message, f"messages[{place}]") for place, message in enumerate(messages)],
        system_prompt="\n\n".join(text for text in texts if isinstance(text, str)),
    )


def history_to_anthropic(messages: Sequence[Message], *, system_prompt: str = "") -> JsonObject:
    """Return `system` (where there is one) and `messages` of a request to the Messages API.

    Blocks of other providers, which this API does not know, are left out. What kind of error a result was is not in
    this form.

    Args:
        messages: as `Session.history` gives them.
        system_prompt: of the agent.
    """
    written = [
        {"role": message.role, "content": [anthropic.wire_block(block, message.role) for block in kept]}
        for message in messages
        if (kept := [block for block in message.content if _is_of(block, ANTHROPIC)])
    ]
    return {**({"system": system_prompt} if system_prompt else {}), "messages": written}


def history_from_openai(given: WireMessages) -> WireHistory:
    """Return a history of the Chat Completions API as ours.

    Messages of the system or the developer at its beginning are the system prompt; later ones become a user's text.

    Args:
        given: the `messages`, or the body of a request.

    Raises:
        ConfigError: it is no such history; names the message.
    """
    _, messages = _parts(given)
    system: list[str] = []
    read: list[Message] = []
    functions: dict[str, ToolCallId] = {}
    """The id that the last call of each function has that was called in the form before tools."""
    for place, message in enumerate(messages):
        path = f"messages[{place}]"
        role, content = message.get("role"), message.get("content")
        match role:
            case "system" | "developer" if not read:
                parts = _openai_parts(content, path)
                system.append("\n\n".join(part.text for part in parts if isinstance(part, TextBlock)))
            case "system" | "developer" | "user":
                read.append(Message("user", tuple(_openai_parts(content, path))))
            case "assistant":
                read.append(Message("assistant", _openai_answer(message, path, functions)))
            case "tool" | "function":
                call = message.get("tool_call_id", functions.get(str(message.get("name"))))
                if not isinstance(call, str):
                    raise ConfigError(f"{path} is the result of a tool and has no tool_call_id")
                shown = tuple(part for part in _openai_parts(content, path) if isinstance(part, GivenContent))
                read.append(Message("user", (ToolResultBlock(tool_use_id=ToolCallId(call), content=shown),)))
            case _:
                raise ConfigError(
                    f"{path} has the role {role!r:.40}; there are system, developer, user, assistant, tool"
                )
    return WireHistory(messages=read, system_prompt="\n\n".join(text for text in system if text))


def history_to_openai(messages: Sequence[Message], *, system_prompt: str = "") -> JsonObject:
    """Return `messages` of a request to the Chat Completions API, the system prompt first, where there is one.

    A result that is an error begins with "Error: ", since this form has no other sign of it; blocks and signed thoughts
    of other providers are left out.

    Args:
        messages: as `Session.history` gives them.
        system_prompt: of the agent.

    Raises:
        ProviderError: something in them cannot be expressed.
    """
    if messages and messages[0] == _OPENING:
        messages = messages[1:]  # Only providers that want a user's message first were in need of it.
    request = ModelRequest(model="", messages=tuple(messages), system_prompt=system_prompt)
    settings = OpenAISettings(return_reasoning="reasoning_content")
    written = chat_messages(request, settings, tool_forms(request), to_read=True) if messages else []
    for message in written:
        if is_json_object(message) and not message.get("reasoning_content"):
            message.pop("reasoning_content", None)  # Servers want it in each message; a reader wants what was thought.
    return {"messages": written}


def _is_list(value: object) -> TypeGuard[Sequence[Json]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _parts(given: WireMessages) -> tuple[JsonObject, list[JsonObject]]:
    """Return the body, empty where only messages were given, and the messages."""
    body: JsonObject = given if is_json_object(given) else {}
    messages: object = body.get("messages") if body else given
    if not _is_list(messages):
        raise ConfigError('a history is a list of messages, or an object that has them as "messages"')
    checked: list[JsonObject] = []
    for place, message in enumerate(messages):
        if not is_json_object(message):
            raise ConfigError(f"messages[{place}] is no object with a role and content")
        checked.append(message)
    return body, checked


def _is_of(block: Block, provider: str) -> bool:
    return not isinstance(block, ProviderBlock) or block.provider == provider


def _recorded(content: Sequence[ResponseContent], path: str, ids: Sequence[str]) -> tuple[Block, ...]:
    """Return what an answer holds as blocks of a history.

    Args:
        ids: for calls that have none, in their order.
    """
    blocks: list[Block] = []
    calls = 0
    for block in content:
        if isinstance(block, ToolUse):
            use, _ = recorded_call(block, lambda _, arguments: (arguments, Verdict()))
            name = use.provider_id or (ids[calls] if calls < len(ids) else f"{path}.calls[{calls}]")
            blocks.append(msgspec.structs.replace(use, id=ToolCallId(name)))
            calls += 1
        else:
            blocks.append(block)
    return tuple(blocks)


# The Messages API.


def _from_anthropic(message: JsonObject, path: str) -> Message:
    role, content = message.get("role"), message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not is_json_array(parts):
        raise ConfigError(f"{path} has neither a text nor a list as its content")
    match role:
        case "assistant":
            try:
                return Message("assistant", _recorded([content_of(_unmarked(part), str) for part in parts], path, ()))
            except ProviderError as error:
                raise ConfigError(f"{path} cannot be understood: {error}") from None
        case "user":
            blocks = [_anthropic_block(part, f"{path}.content[{number}]") for number, part in enumerate(parts)]
            return Message("user", tuple(blocks))
        case _:
            raise ConfigError(f"{path} has the role {role!r:.40}; there are user and assistant")


def _unmarked(part: object) -> object:
    """Return a block without the marker that tells what may be cached, which a request sets anew."""
    if is_json_object(part) and "cache_control" in part:
        return {field: value for field, value in part.items() if field != "cache_control"}
    return part


def _anthropic_block(part: object, path: str) -> Block:
    part = _unmarked(part)
    if not is_json_object(part) or not isinstance(part.get("type"), str):
        raise ConfigError(f"{path} is no object with a type")
    match part["type"]:
        case "text" if isinstance(part.get("text"), str):
            return TextBlock(text=str(part["text"]))
        case "image" if (image := _anthropic_image(part.get("source"))) is not None:
            return image
        case "document" if (document := _anthropic_document(part)) is not None:
            return document
        case "tool_result" if isinstance(part.get("tool_use_id"), str):
            return _anthropic_result(part, path)
        case _:
            return ProviderBlock(provider=ANTHROPIC, data=part)


def _anthropic_image(source: object) -> ImageBlock | None:
    if is_json_object(source) and source.get("type") == "url" and isinstance(source.get("url"), str):
        return ImageBlock(url=str(source["url"]))
    if not is_json_object(source) or source.get("type") != "base64":
        return None
    content = _bytes_of(str(source.get("data")))
    return ImageBlock(media_type=str(source.get("media_type")), data=content) if content is not None else None


def _anthropic_document(part: JsonObject) -> DocumentBlock | None:
    """Return a document as every provider can be given it, or None if it holds what only this one understands."""
    source, title = part.get("source"), part.get("title") or ""
    if not is_json_object(source) or not isinstance(title, str):
        return None
    if any(value is not None for field, value in part.items() if field not in ("type", "source", "title")):
        return None
    match source:
        case {"type": "url", "url": str(url)}:
            return DocumentBlock(url=url, name=title)
        case {"type": "text", "data": str(text)}:
            return DocumentBlock(media_type="text/plain", data=text.encode(errors="replace"), name=title)
        case {"type": "base64", "media_type": str(media_type), "data": str(data)}:
            content = _bytes_of(data)
            return DocumentBlock(media_type=media_type, data=content, name=title) if content is not None else None
        case _:
            return None


def _anthropic_result(part: JsonObject, path: str) -> ToolResultBlock:
    content = part.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if not is_json_array(parts):
        raise ConfigError(f"{path} is a result with neither a text nor a list as its content")
    blocks: list[ResultContent] = []
    for number, item in enumerate(parts):
        block = _anthropic_block(item, f"{path}.content[{number}]")
        # A result of ours is text, images and documents; what else there is, is kept as its JSON.
        kept = isinstance(block, GivenContent)
        blocks.append(block if kept else TextBlock(text=msgspec.json.encode(item).decode()))  # type: ignore[arg-type]
    call = ToolCallId(str(part["tool_use_id"]))
    return ToolResultBlock(tool_use_id=call, content=tuple(blocks), is_error=part.get("is_error") is True)


# Chat Completions.


def _openai_answer(message: JsonObject, path: str, functions: dict[str, ToolCallId]) -> tuple[Block, ...]:
    assembly = AnswerAssembly(OPENAI, ToolNames(), None)
    assembly.add(message, whole=True)
    try:
        content = assembly.answer().content
    except ProviderError as error:
        raise ConfigError(f"{path} cannot be understood: {error}") from None
    blocks = _recorded(content, path, ())
    if not message.get("tool_calls"):
        functions.update({block.name: block.id for block in blocks if isinstance(block, ToolUseBlock)})
    return blocks


def _openai_parts(content: object, path: str) -> list[Block]:
    if content is None:
        return []
    if isinstance(content, str):
        return [TextBlock(text=content)]
    if not is_json_array(content):
        raise ConfigError(f"{path} has neither a text nor a list as its content")
    blocks: list[Block] = []
    for number, part in enumerate(content):
        if isinstance(part, str):
            blocks.append(TextBlock(text=part))
        elif not is_json_object(part):
            raise ConfigError(f"{path}.content[{number}] is neither a text nor an object")
        elif isinstance(part.get("text"), str):
            blocks.append(TextBlock(text=str(part["text"])))
        else:
            media = _openai_image(part.get("image_url")) or _openai_document(part.get("file"))
            blocks.append(media or ProviderBlock(provider=OPENAI, data=part))
    return blocks


def _openai_image(given: object) -> ImageBlock | None:
    url = given.get("url") if is_json_object(given) else given
    if isinstance(url, str) and url.startswith(("https://", "http://")):
        return ImageBlock(url=url)
    if not isinstance(url, str):
        return None
    media_type, content = _data_of(url)
    return ImageBlock(media_type=media_type, data=content) if content is not None else None


def _openai_document(given: object) -> DocumentBlock | None:
    if not is_json_object(given) or not isinstance(given.get("file_data"), str):
        return None
    media_type, content = _data_of(str(given["file_data"]))
    name = given.get("filename")
    if content is None:
        return None
    return DocumentBlock(media_type=media_type, data=content, name=name if isinstance(name, str) else "")


def _data_of(url: str) -> tuple[str, bytes | None]:
    """Return the media type of a `data:` address, and what it holds; None if it is no such address."""
    head, comma, data = url.removeprefix(_DATA).partition(",")
    if not url.startswith(_DATA) or not comma or not head.endswith(";base64"):
        return "", None
    return head.removesuffix(";base64"), _bytes_of(data)


def _bytes_of(data: str) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
