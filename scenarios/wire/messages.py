"""How a simulated host writes answers and refusals, in the words of either API: whole, or as the events of a stream.

Wire formats: "Chat Completions" (platform.openai.com/docs/api-reference) and "Streaming messages"
(platform.claude.com/docs/en/build-with-claude/streaming).

What a simulated host reads of the requests that it gets, in the words of either API, and what it refuses.

A host is stricter than a real one may be: calls have their results directly behind them, no text is blank, no id is
there twice. So a request that a provider would refuse for its history breaks a promise, and is not overlooked.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec

from refold.events.core.content import Block, Message, TextBlock, ToolResultBlock, ToolUseBlock
from refold.events.core.ids import ToolCallId
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest, ModelResponse, ToolUse

Wire: TypeAlias = Literal["openai", "anthropic"]
"""Whose API is spoken."""

Object: TypeAlias = dict[str, Any]


class BadRequest(Exception):
    """A host refuses a request; the text says why."""


def request_in(body: bytes, wire: Wire) -> tuple[ModelRequest, bool]:
    """Return what a body asks for, under the names on the wire, and whether the answer is to be streamed."""
    try:
        sent: Object = msgspec.json.decode(body, type=dict[str, Any])
        read = _openai if wire == "openai" else _anthropic
        return read(sent), sent.get("stream") is True
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise BadRequest(f"the request is not of the form of the API: {error!r}") from None


def _refuse_unless(good: object, reason: str) -> None:
    if not good:
        raise BadRequest(reason)


def _openai(sent: Object) -> ModelRequest:
    messages: list[Object] = sent["messages"]
    tools = [tool["function"] for tool in sent.get("tools", ())]
    _refuse_unless(sent.get("tools") != [], "there is an empty list of tools")
    system = ""
    read: list[Message] = []
    waiting: list[str] = []
    for place, message in enumerate(messages):
        role: str = message["role"]
        content: Any = message.get("content")
        if role == "system":
            _refuse_unless(place == 0, "a system message stands behind another message")
            system = str(content)
        elif role == "tool":
            call = message["tool_call_id"]
            _refuse_unless(waiting and waiting[0] == call, f"the result of {call} does not stand behind its call")
            _refuse_unless(content.strip(), f"the result of {call} is blank")
            waiting.pop(0)
            read.append(_user(ToolResultBlock(tool_use_id=call, content=(TextBlock(text=content),))))
        else:
            _refuse_unless(not waiting, f"the calls {waiting} have no results")
            _refuse_unless(role in ("user", "assistant"), f"there is no role {role!r}")
            calls = [_openai_call_of(call) for call in message.get("tool_calls", ())]
            waiting = [call.id for call in calls]
            _refuse_unless(len(set(waiting)) == len(waiting), "two calls share an id")
            texts: list[str | None] = (
                [content] if isinstance(content, str) else [part.get("text") for part in content or ()]
            )
            _refuse_unless(texts or calls, f"message {place} is empty")
            _refuse_unless(all(text is None or text.strip() for text in texts), f"a text of message {place} is blank")
            read.append(Message("assistant" if role == "assistant" else "user", (*_texts(texts), *calls)))
    _refuse_unless(not waiting, f"the calls {waiting} have no results")
    return _request(sent, system, _joined(read), [(tool["name"], tool["parameters"]) for tool in tools])


def _openai_call_of(call: Object) -> ToolUseBlock:
    arguments: object = msgspec.json.decode(call["function"]["arguments"])
    _refuse_unless(isinstance(arguments, dict), f"the arguments of {call['id']} are no object")
    return ToolUseBlock(id=call["id"], name=call["function"]["name"], input=cast("Object", arguments))


def _anthropic(sent: Object) -> ModelRequest:
    _refuse_unless(type(sent["max_tokens"]) is int and sent["max_tokens"] > 0, "max_tokens is missing")
    system = "\n".join(part["text"] for part in sent.get("system", ()))
    read: list[Message] = []
    waiting: list[str] = []
    for place, message in enumerate(sent["messages"]):
        role, content = message["role"], message["content"]
        _refuse_unless(role == ("assistant" if place % 2 else "user"), f"message {place} is of the role {role}")
        _refuse_unless(content, f"message {place} is empty")
        answered = [part["tool_use_id"] for part in content if part["type"] == "tool_result"]
        _refuse_unless(sorted(answered) == sorted(waiting), f"the calls {waiting} have the results {answered}")
        kinds = [part["type"] for part in content]
        _refuse_unless(kinds == sorted(kinds, key=lambda kind: kind != "tool_result"), "a text stands before results")
        blocks = [_anthropic_block(part) for part in content]
        waiting = [block.id for block in blocks if isinstance(block, ToolUseBlock)]
        _refuse_unless(len(set(waiting)) == len(waiting), "two calls share an id")
        read.append(Message(role, tuple(blocks)))
    _refuse_unless(read and read[-1].role == "user", "the last message is not a user's")
    offered = () if sent.get("tool_choice") == {"type": "none"} else sent.get("tools", ())
    defined = {tool["name"] for tool in sent.get("tools", ())}
    called = {block.name for message in read for block in message.content if isinstance(block, ToolUseBlock)}
    _refuse_unless(defined or not called, "tools were called and none is defined")
    return _request(sent, system, read, [(tool["name"], tool["input_schema"]) for tool in offered])


def _anthropic_block(part: Object) -> Block:
    match part["type"]:
        case "text":
            _refuse_unless(part["text"].strip(), "a text is blank")
            return TextBlock(text=part["text"])
        case "tool_use":
            _refuse_unless(isinstance(part["input"], dict), f"the arguments of {part['id']} are no object")
            return ToolUseBlock(id=part["id"], name=part["name"], input=part["input"])
        case "tool_result":
            inner = part.get("content", ())
            _refuse_unless(all(item["text"].strip() for item in inner if item["type"] == "text"), "a result is blank")
            return ToolResultBlock(tool_use_id=ToolCallId(part["tool_use_id"]), content=())
        case other:
            raise BadRequest(f"there is no block of the type {other!r}")


def _texts(texts: list[str | None]) -> list[TextBlock]:
    """Return texts as blocks; those that were joined for the wire are separate again."""
    return [TextBlock(text=piece) for text in texts if text is not None for piece in text.split("\n\n")]


def _user(result: ToolResultBlock) -> Message:
    return Message("user", (result,))


def _joined(messages: list[Message]) -> list[Message]:
    """Return `messages` with neighbours of one role as one, as histories have them."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role:
            joined[-1] = Message(message.role, (*joined[-1].content, *message.content))
        else:
            joined.append(message)
    return joined


def _request(sent: Object, system: str, messages: list[Message], tools: list[tuple[str, Object]]) -> ModelRequest:
    _refuse_unless(messages, "there is no message")
    names = [name for name, _ in tools]
    _refuse_unless(len(set(names)) == len(names), "two tools have one name")
    _refuse_unless(isinstance(sent["model"], str), "there is no model")
    return ModelRequest(
        model=sent["model"],
        system_prompt=system,
        messages=messages,
        tools=tuple(ToolSpec(name=name, description="", input_schema=schema) for name, schema in tools),
    )


PIECE_CHARACTERS = 12
"""Most characters of one piece of a streamed answer."""

BODY_ID = "simulated"


class AnswerInEvents(msgspec.Struct, frozen=True):
    """A streamed answer: each event as its bytes."""

    events: tuple[bytes, ...]
    end: int
    """Place of the first event that says that the answer is complete."""
    marker: int
    """Place of the event that says that the stream is."""


def whole(answer: ModelResponse, ids: Sequence[str], wire: Wire) -> bytes:
    return _json(_openai_whole(answer, ids) if wire == "openai" else _anthropic_whole(answer, ids))


def streamed(answer: ModelResponse, ids: Sequence[str], wire: Wire, *, one_index: bool = False) -> AnswerInEvents:
    """Return an answer as the events of a stream; see `whole`. With `one_index` all its calls have one."""
    return _openai_stream(answer, ids, one_index) if wire == "openai" else _anthropic_stream(answer, ids)


def refusal(kind: str, message: str, wire: Wire) -> bytes:
    if wire == "openai":
        return _json({"error": {"message": message, "type": kind, "param": None, "code": None}})
    return _json({"type": "error", "error": {"type": kind, "message": message}})


def event(value: object, name: str | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else _json(value)
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + data + b"\n\n"


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS)]


def _arguments(call: ToolUse) -> str:
    return call.input if isinstance(call.input, str) else _json(call.input).decode()


def _parts(answer: ModelResponse) -> tuple[str, list[ToolUse]]:
    text = "".join(block.text for block in answer.content if isinstance(block, TextBlock))
    return text, [block for block in answer.content if isinstance(block, ToolUse)]


def _openai_usage(answer: ModelResponse) -> Object:
    tokens = answer.usage
    total = tokens.input_tokens + tokens.output_tokens
    return {"prompt_tokens": tokens.input_tokens, "completion_tokens": tokens.output_tokens, "total_tokens": total}


def _openai_reason(answer: ModelResponse) -> str:
    return {"tool_use": "tool_calls", "max_tokens": "length"}.get(answer.stop_reason, "stop")


def _openai_call(call: ToolUse, identifier: str) -> Object:
    return {"id": identifier, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}


def _openai_whole(answer: ModelResponse, ids: Sequence[str]) -> Object:
    text, calls = _parts(answer)
    message: Object = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [_openai_call(call, identifier) for call, identifier in zip(calls, ids, strict=True)]
    return {
        "id": BODY_ID,
        "object": "chat.completion",
        "created": 1,
        "model": "simulated",
        "choices": [{"index": 0, "message": message, "finish_reason": _openai_reason(answer)}],
        "usage": _openai_usage(answer),
    }


def _openai_stream(answer: ModelResponse, ids: Sequence[str], one_index: bool) -> AnswerInEvents:
    text, calls = _parts(answer)
    deltas: list[Object] = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in _pieces(text))]
    for place, (call, identifier) in enumerate(zip(calls, ids, strict=True)):
        index = 0 if one_index else place
        first = _openai_call(call, identifier)
        arguments = first["function"]["arguments"]
        first["function"]["arguments"] = ""
        deltas.append({"tool_calls": [{"index": index, **first}]})
        deltas.extend(
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _pieces(arguments)
        )
    events = [_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    end = len(events)
    events.append(_chunk([{"index": 0, "delta": {}, "finish_reason": _openai_reason(answer)}]))
    events.append(_chunk([], usage=_openai_usage(answer)))
    return AnswerInEvents((*events, event("[DONE]")), end, len(events))


def _chunk(choices: list[Object], **more: Any) -> bytes:
    chunk = {"id": BODY_ID, "object": "chat.completion.chunk", "created": 1, "model": "simulated", "choices": choices}
    return event({**chunk, **more})


def _anthropic_usage(answer: ModelResponse) -> Object:
    return {"input_tokens": answer.usage.input_tokens, "output_tokens": answer.usage.output_tokens}


def _anthropic_blocks(answer: ModelResponse, ids: Sequence[str]) -> list[Object]:
    text, calls = _parts(answer)
    blocks: list[Object] = [{"type": "text", "text": text}] if text else []
    for call, identifier in zip(calls, ids, strict=True):
        blocks.append({"type": "tool_use", "id": identifier, "name": call.name, "input": call.input})
    return blocks


def _anthropic_message(answer: ModelResponse, content: list[Object], reason: str | None) -> Object:
    return {
        "id": BODY_ID,
        "type": "message",
        "role": "assistant",
        "model": "simulated",
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": _anthropic_usage(answer),
    }


def _anthropic_whole(answer: ModelResponse, ids: Sequence[str]) -> Object:
    return _anthropic_message(answer, _anthropic_blocks(answer, ids), answer.stop_reason)


def _anthropic_stream(answer: ModelResponse, ids: Sequence[str]) -> AnswerInEvents:
    told: list[Object] = [{"type": "message_start", "message": _anthropic_message(answer, [], None)}, {"type": "ping"}]
    for index, block in enumerate(_anthropic_blocks(answer, ids)):
        if block["type"] == "text":
            start: Object = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        else:
            text = block["input"] if isinstance(block["input"], str) else _json(block["input"]).decode()
            start = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *_pieces(text)]]
        told.append({"type": "content_block_start", "index": index, "content_block": start})
        told.extend({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        told.append({"type": "content_block_stop", "index": index})
    end = len(told)
    stop = {"stop_reason": answer.stop_reason, "stop_sequence": None}
    told.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": answer.usage.output_tokens}})
    told.append({"type": "message_stop"})
    return AnswerInEvents(tuple(event(item, item["type"]) for item in told), end, len(told) - 1)
