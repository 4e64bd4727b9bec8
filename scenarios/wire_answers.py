"""How a simulated host writes answers and refusals, in the words of either API: whole, or as the events of a stream.

Wire formats: "Chat Completions" (platform.openai.com/docs/api-reference) and "Streaming messages"
(platform.claude.com/docs/en/build-with-claude/streaming).
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from refold.events.content import TextBlock
from refold.events.model import ModelResponse, ToolUse
from refold.scenarios.wire_requests import Object, Wire

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
    """Return an answer as the body of a response.

    Args:
        answer: what the model says.
        ids: those of its calls.
        wire: whose API is spoken.
    """
    return _json(_openai_whole(answer, ids) if wire == "openai" else _anthropic_whole(answer, ids))


def streamed(answer: ModelResponse, ids: Sequence[str], wire: Wire) -> AnswerInEvents:
    """Return an answer as the events of a stream; see `whole`."""
    return _openai_stream(answer, ids) if wire == "openai" else _anthropic_stream(answer, ids)


def refusal(kind: str, message: str, wire: Wire) -> bytes:
    """Return the body of a response whose status is an error's."""
    if wire == "openai":
        return _json({"error": {"message": message, "type": kind, "param": None, "code": None}})
    return _json({"type": "error", "error": {"type": kind, "message": message}})


def event(value: object, name: str | None = None) -> bytes:
    """Return one Server-Sent Event."""
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
    return "tool_calls" if answer.stop_reason == "tool_use" else "stop"


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


def _openai_stream(answer: ModelResponse, ids: Sequence[str]) -> AnswerInEvents:
    text, calls = _parts(answer)
    deltas: list[Object] = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in _pieces(text))]
    for index, (call, identifier) in enumerate(zip(calls, ids, strict=True)):
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
    told.append({"type": "message_delta", "delta": stop, "usage": _anthropic_usage(answer)})
    told.append({"type": "message_stop"})
    return AnswerInEvents(tuple(event(item, item["type"]) for item in told), end, len(told) - 1)
