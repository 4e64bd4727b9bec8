"""Requests of the Messages API: a `ModelRequest` as the JSON that is sent.

Wire format: `types/message_create_params.py` of the official package; "Create a Message", "Prompt caching", "Thinking"
and "Migrating to API version 2026-10-21" (platform.claude.com/docs). `history` says what becomes of the
messages. The body is built from the request alone and in a fixed order, so that the same history gives the same bytes,
which is what makes the provider's cache of prompts hit.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from refold.events.core.content import (
    Block,
    DocumentBlock,
    ImageBlock,
    Json,
    JsonObject,
    Message,
    ProviderBlock,
    ResultContent,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    is_json_array,
    is_json_object,
)
from refold.events.core.errors import ProviderError
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest
from refold.providers.anthropic.history import HOST, NAME, is_thought, sendable
from refold.providers.http.closed_schema import closed_schema
from refold.providers.http.history import refused
from refold.providers.http.settings import check_fields
from refold.providers.http.wire import check_images, check_size, encoded, object_field

DEFAULT_VERSION = "2023-06-01"
"""Of the API, the header `anthropic-version`. It is the one that every model, gateway and compatible server takes, and
the last one with `temperature`; nothing that we read or send differs in 2026-10-21."""

VERSION_WITHOUT_TEMPERATURE = "2026-10-21"

DEFAULT_MAX_TOKENS = 16_384
"""Of an answer where the agent's configuration names no limit; the API demands one. Thinking counts towards it."""

STALE_THINKING_BETA = "thinking-binding-controls-2026-08-01"
"""Value of the header `anthropic-beta` that lets a request say what becomes of stale thinking."""

CACHE_MARKS_MAX = 4
"""Most cache markers that the API accepts in a request."""

THINKING_TOKENS_MIN = 1024

_NOT_HELD = re.compile(r"claude-(2|3|instant)|claude-(opus|sonnet)-4(-0)?(-2025\d{4})?$|(?!claude-)")
"""Models that take no schema ("Structured outputs", platform.claude.com/docs), and those of other makers."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MADE_NAME = re.compile(r".*_x[0-9a-f]{32}", re.DOTALL)
_NAME_KEPT = 90

_OURS = frozenset(("messages", "stream"))
"""Fields of the body that `extra_body` cannot replace."""


class AnthropicOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an `AnthropicProvider` is set to, as far as it shapes the requests; its arguments of these names say what.

    Raises:
        ConfigError: a value is outside its bounds; the message names the field.
    """

    version: str = DEFAULT_VERSION
    max_tokens: int = DEFAULT_MAX_TOKENS
    thinking: int | Literal["adaptive"] | None = None
    drop_stale_thinking: bool = False
    structured_output: bool | None = None
    """None = where the model can be held to a schema."""
    unsigned_thinking: bool = False
    cache: bool | Literal["5m", "1h"] = True
    server_tools: tuple[JsonObject, ...] = ()
    request_bytes_max: int | None = None
    """Largest body that the server takes, which is not sent if it is larger; None = not known."""
    image_bytes_max: int | None = None
    """Largest image, likewise."""
    extra_body: JsonObject = {}

    def __post_init__(self) -> None:
        budget = self.thinking
        tools = [tool for tool in self.server_tools if is_json_object(tool) and isinstance(tool.get("type"), str)]
        names = [str(tool["name"]) for tool in tools if "name" in tool]  # A set of tools has none.
        check_fields(
            "AnthropicProvider",
            self,
            ("version", bool(re.fullmatch(r"[0-9A-Za-z.-]+", self.version)), "a version such as 2023-06-01"),
            ("max_tokens", type(self.max_tokens) is int and self.max_tokens >= 1, "an integer of at least 1"),
            (
                "thinking",
                budget in (None, "adaptive") or (type(budget) is int and budget >= THINKING_TOKENS_MIN),
                f'None, "adaptive" or an integer of at least {THINKING_TOKENS_MIN}',
            ),
            ("drop_stale_thinking", isinstance(self.drop_stale_thinking, bool), "True or False"),
            ("structured_output", self.structured_output in (None, True, False), "None, True or False"),
            ("unsigned_thinking", isinstance(self.unsigned_thinking, bool), "True or False"),
            ("cache", self.cache in (True, False, "5m", "1h"), 'True, False, "5m" or "1h"'),
            (
                "server_tools",
                len(tools) == len(self.server_tools) and len(names) == len(set(names)),
                "a tuple of objects, each with a type and a name of its own",
            ),
            (
                "extra_body",
                is_json_object(self.extra_body) and not _OURS & set(self.extra_body),
                "an object without messages and stream",
            ),
        )


def wire_name(name: str) -> str:
    """Return `name` if the API accepts it, else a name that stands for it: always the same, and never another's.

    A name that looks as if it had been made here is replaced too, so a name that was made stands for one name only.
    """
    if _NAME.fullmatch(name) is not None and _MADE_NAME.fullmatch(name) is None:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{re.sub('[^a-zA-Z0-9_-]', '_', name[:_NAME_KEPT])}_x{digest}"


def encoded_request(request: ModelRequest, options: AnthropicOptions, *, stream: bool) -> bytes:
    body = _body(request, options)
    if stream:
        body["stream"] = True
    try:
        written = encoded(body)
    except ProviderError as error:
        raise refused(HOST, f"it is not JSON ({error})") from None
    check_size(written, options.request_bytes_max, HOST)
    return written


def _body(request: ModelRequest, options: AnthropicOptions) -> JsonObject:
    history = sendable(request.messages, unsigned=options.unsigned_thinking)
    check_images(history, options.image_bytes_max, HOST)
    messages = [_message(message) for message in history]
    tools: list[JsonObject] = _tools(request.tools, options.server_tools)
    body: JsonObject = {
        "model": request.model,
        "max_tokens": request.max_tokens if request.max_tokens is not None else _max_tokens(options),
    }
    system: list[Json] = [{"type": "text", "text": request.system_prompt}] if request.system_prompt.strip() else []
    if system:
        body["system"] = system
    if not tools and (called := _called(history)):  # The API asks for a definition of each tool that was called.
        tools = [
            {"name": name, "description": "Not offered now.", "input_schema": {"type": "object"}} for name in called
        ]
        body["tool_choice"] = {"type": "none"}
    if tools:
        body["tools"] = list[Json](tools)
    body["messages"] = list[Json](messages)
    _add_sampling(body, request, options, history)
    held = options.structured_output
    if held is None:
        held = _NOT_HELD.match(request.model) is None
    closed = closed_schema(request.output_schema) if held and request.output_schema is not None else None
    if closed is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": closed}}
    body.update(options.extra_body)
    if options.cache is not False:
        _add_cache_marks(body, tools, messages, history, options)
    return body


def _max_tokens(options: AnthropicOptions) -> int:
    return options.max_tokens + (options.thinking if isinstance(options.thinking, int) else 0)


def _add_sampling(body: JsonObject, request: ModelRequest, options: AnthropicOptions, history: list[Message]) -> None:
    if any(not sequence.strip() for sequence in request.stop_sequences):
        raise refused(HOST, "each stop sequence needs a character that is not white space")
    if request.stop_sequences:
        body["stop_sequences"] = list(request.stop_sequences)
    if options.thinking == "adaptive":
        body["thinking"] = {"type": "adaptive"}
    elif options.thinking is not None and _may_think(history):
        body["thinking"] = {"type": "enabled", "budget_tokens": options.thinking}
    if options.drop_stale_thinking:
        chosen = body.get("thinking", {"type": "adaptive"})  # The default of all models that check it.
        assert is_json_object(chosen)
        body["thinking"] = {**chosen, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    temperature = request.temperature
    if temperature is None:
        return
    if not 0 <= temperature <= 1:
        raise refused(HOST, f"its temperature is {temperature}, and this API knows 0 to 1")
    if temperature == 1 and ("thinking" in body or options.version >= VERSION_WITHOUT_TEMPERATURE):
        return  # The only value there, and not to be named.
    if "thinking" in body:
        raise refused(HOST, f"its temperature is {temperature}, and a model that thinks has none; leave it out")
    if options.version >= VERSION_WITHOUT_TEMPERATURE:
        raise refused(
            HOST, f"its temperature is {temperature}, which version {options.version} of the API does not have"
        )
    body["temperature"] = temperature


def _may_think(history: list[Message]) -> bool:
    """Return whether a fixed budget of thinking can be asked for.

    A loop of tool calls is one turn of the assistant, and one that did not begin with a thought cannot go on with
    them ("Expected `thinking`, but found `tool_use`"); that is so where thinking was switched on in its middle, or
    its thoughts are unsigned.
    """
    first: Message | None = None
    for message in reversed(history):
        if message.role == "assistant":
            first = message
        elif any(not isinstance(block, ToolResultBlock) for block in message.content):
            break
    return first is None or is_thought(first.content[0])


def _tools(specs: Sequence[ToolSpec], server_tools: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the tools in name order, those of the provider behind ours."""
    tools: list[JsonObject] = []
    for spec in sorted(specs, key=lambda spec: spec.name):
        tool: JsonObject = {"name": wire_name(spec.name)}
        if spec.description.strip():
            tool["description"] = spec.description
        tool["input_schema"] = {"type": "object", **spec.input_schema}
        tools.append(tool)
    tools.extend(dict(tool) for tool in server_tools)
    names = [tool.get("name") for tool in tools if tool.get("name") is not None]
    if len(names) != len(set(names)):
        raise refused(HOST, "two of its tools have the same name")
    return tools


def _called(history: list[Message]) -> list[str]:
    names = {block.name for message in history for block in message.content if isinstance(block, ToolUseBlock)}
    return sorted(wire_name(name) for name in names)


def _message(message: Message) -> JsonObject:
    return {"role": message.role, "content": [wire_block(block, message.role) for block in message.content]}


def wire_block(block: Block, role: str) -> JsonObject:
    """Return a block as it goes over the wire; `role` is that of its message."""
    match block:
        case TextBlock(text=text, provider_data=data):
            # Texts of users have nothing that the API would take back, such as citations.
            return {**(object_field(data or {}, NAME) if role == "assistant" else {}), "type": "text", "text": text}
        case ImageBlock() | DocumentBlock():
            return _media(block)
        case ThinkingBlock(thinking=thinking, signature=signature, provider_data=data):
            return {
                **object_field(data or {}, NAME),
                "type": "thinking",
                "thinking": thinking,
                "signature": signature or "",
            }
        case ProviderBlock(data=data):
            return data
        case ToolUseBlock(id=call, name=name, input=given, provider_data=data):
            return {
                **object_field(data or {}, NAME),
                "type": "tool_use",
                "id": wire_name(call),
                "name": wire_name(name),
                "input": given,
            }
        case ToolResultBlock(tool_use_id=call, content=content, is_error=failed):
            result: JsonObject = {"type": "tool_result", "tool_use_id": wire_name(call)}
            if content:
                result["content"] = [_result_part(part) for part in content]
            if failed:
                result["is_error"] = True
            return result
        case _:
            raise AssertionError(f"a {type(block).__name__} is never sent")


def _result_part(part: ResultContent) -> JsonObject:
    assert not isinstance(part, TextBlock) or part.text.strip()
    return wire_block(part, "user")


def _media(block: ImageBlock | DocumentBlock) -> JsonObject:
    source: JsonObject = {"type": "url", "url": block.url}
    if block.url is None and block.media_type.startswith("text/"):
        source = {"type": "text", "media_type": "text/plain", "data": block.data.decode(errors="replace")}
    elif block.url is None:
        data = base64.b64encode(block.data).decode("ascii")
        source = {"type": "base64", "media_type": block.media_type, "data": data}
    own = object_field(block.provider_data or {}, NAME)
    if isinstance(block, ImageBlock):
        return {**own, "type": "image", "source": source}
    return {**own, "type": "document", "source": source, **({"title": block.name} if block.name.strip() else {})}


def _add_cache_marks(
    body: JsonObject,
    tools: list[JsonObject],
    messages: list[JsonObject],
    history: list[Message],
    options: AnthropicOptions,
) -> None:
    """Mark what stays the same in the next request.

    In this order: the end of the history, the prompt, the tools, and the end of the history in the request before this
    one, since the API looks back over no more than 20 blocks. Markers that a server tool or `extra_body` brings along
    count too.
    """
    mark: JsonObject = {"type": "ephemeral"}
    if isinstance(options.cache, str):
        mark["ttl"] = options.cache
    left = CACHE_MARKS_MAX - sum("cache_control" in tool for tool in tools) - ("cache_control" in body)
    places: list[JsonObject] = []
    ends = [place for place, message in enumerate(history) if message.role == "user" or place == len(history) - 1]
    places.extend(_last_markable(messages[place], history[place]) for place in ends[-1:])
    if "system" not in options.extra_body and is_json_array(system := body.get("system")):
        places.extend(part for part in system if is_json_object(part))
    if "tools" not in options.extra_body and tools and "cache_control" not in tools[-1]:
        places.append(tools[-1])
    places.extend(_last_markable(messages[place], history[place]) for place in ends[-2:-1])
    for place in [place for place in places if place][: max(left, 0)]:
        place["cache_control"] = dict(mark)


def _last_markable(message: JsonObject, source: Message) -> JsonObject:
    """Return the last block that may carry a marker, or an empty object if none may.

    Thoughts may not, and the provider's own blocks go back as they came.
    """
    content = message["content"]
    assert is_json_array(content)
    for part, block in zip(reversed(content), reversed(source.content), strict=True):
        if is_json_object(part) and not isinstance(block, ThinkingBlock | ProviderBlock):
            return part
    return {}
