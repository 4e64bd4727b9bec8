"""Answers as the official package types them, as a body and as a stream, and a check of requests by its types."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis.strategies as st
from anthropic.types import ContentBlockParam, RawMessageStreamEvent
from anthropic.types import Message as OfficialMessage
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming
from pydantic import BaseModel, TypeAdapter

from refold.events.model.messages import Delta, ModelResponse
from refold.providers.anthropic.provider import AnthropicFormat
from refold.providers.http.events import EventStreamReader
from refold.providers.http.wire import WireEvent

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
BLOCK: TypeAdapter[Any] = TypeAdapter(ContentBlockParam)
COMPLETE: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)
STREAMED: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsStreaming)

USAGE = {
    "input_tokens": 12,
    "output_tokens": 34,
    "cache_read_input_tokens": 5,
    "cache_creation_input_tokens": 6,
    "service_tier": "standard",
}

OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

CITATION: dict[str, Any] = {
    "type": "char_location",
    "cited_text": "x",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 1,
}


def message(*content: Mapping[str, Any], **fields: Any) -> OfficialMessage:
    whole = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": list(content),
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
        **fields,
    }
    return OfficialMessage.model_validate(whole, strict=True)


def body_of(official: OfficialMessage) -> bytes:
    return official.to_json(indent=None).encode()


def events_of(official: OfficialMessage, pieces: int = 3) -> list[dict[str, Any]]:
    """Return the events of a stream of `official`, its texts in about `pieces` pieces."""
    whole: dict[str, Any] = official.to_dict(mode="json")
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(whole["content"]):
        events.extend(_block_events(index, block, pieces))
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    usage = {"output_tokens": whole["usage"]["output_tokens"]}
    events.append({"type": "message_delta", "delta": delta, "usage": usage})
    events.append({"type": "message_stop"})
    return [EVENT.validate_python(event).to_dict(mode="json") for event in events]


def _block_events(index: int, block: dict[str, Any], pieces: int) -> Iterator[dict[str, Any]]:
    start = dict(block)
    deltas: list[dict[str, Any]] = []
    match block["type"]:
        case "text":
            start.update(text="", citations=None)
            deltas = [{"type": "text_delta", "text": piece} for piece in cut(block["text"], pieces)]
            deltas += [{"type": "citations_delta", "citation": citation} for citation in block.get("citations") or ()]
        case "thinking":
            start.update(thinking="", signature="")
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(block["thinking"], pieces)]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use" | "server_tool_use":
            start["input"] = {}
            text = json.dumps(block["input"], ensure_ascii=False)
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *cut(text, pieces)]]
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def cut(text: str, pieces: int) -> list[str]:
    size = max(1, -(-len(text) // pieces))
    return [text[start : start + size] for start in range(0, len(text), size)]


def stream_of(events: list[dict[str, Any]], newline: str = "\n") -> bytes:
    lines = (f"event: {event['type']}{newline}data: {json.dumps(event)}{newline}{newline}" for event in events)
    return "".join(lines).encode()


def wire_events(events: list[dict[str, Any]]) -> list[WireEvent]:
    return [WireEvent(event=event["type"], data=json.dumps(event)) for event in events]


def read_events(events: list[dict[str, Any]], wire: AnthropicFormat | None = None) -> tuple[list[Delta], ModelResponse]:
    """Return what a stream of `events` gives."""
    reader = (wire or AnthropicFormat()).reader()
    deltas = [delta for event in wire_events(events) for delta in reader.read(event)]
    return deltas, reader.answer()


def read_chunks(chunks: list[bytes]) -> ModelResponse:
    """Return the answer in a stream that comes in `chunks`."""
    reader = AnthropicFormat().reader()
    stream = EventStreamReader(event_characters_max=10_000_000, events_max=1_000_000)
    for chunk in chunks:
        for event in stream.feed(chunk):
            reader.read(event)
    for event in stream.end():
        reader.read(event)
    return reader.answer()


def checked_request(body: bytes, *, stream: bool = False) -> dict[str, Any]:
    """Return a request's body, which the official package's types accept without a key that they do not know."""
    sent: dict[str, Any] = json.loads(body)
    known = {field: value for field, value in sent.items() if field != "temperature"}  # Gone from its newest version.
    accepted = _materialised((STREAMED if stream else COMPLETE).validate_python(known))
    # The package takes its own models for blocks too, and those accept any key; the types for requests do not.
    for place, message in enumerate(known["messages"]):
        blocks = [_materialised(BLOCK.validate_python(block)) for block in message["content"]]
        accepted["messages"][place] = {"role": accepted["messages"][place]["role"], "content": blocks}
    assert accepted == known
    return sent


def _materialised(value: Any) -> Any:
    """Return `value` with its iterables, which are validated only when they are walked, as lists."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _materialised(item) for key, item in value.items()}
    if isinstance(value, str | bytes | int | float) or value is None:
        return value
    return [_materialised(item) for item in value]


texts = st.text(st.characters(codec="utf-8"), max_size=30)
words = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects = st.dictionaries(texts, json_values, max_size=4)

_citations = st.fixed_dictionaries(
    {
        "type": st.just("web_search_result_location"),
        "cited_text": texts,
        "encrypted_index": words,
        "title": st.none() | texts,
        "url": st.just("https://example.org"),
    }
)
_texts = st.fixed_dictionaries(
    {"type": st.just("text"), "text": texts, "citations": st.none() | st.lists(_citations, min_size=1, max_size=2)}
)
_thoughts = st.fixed_dictionaries({"type": st.just("thinking"), "thinking": texts, "signature": words})
_hidden = st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": words})
_calls = st.fixed_dictionaries({"type": st.just("tool_use"), "id": words, "name": words, "input": json_objects})


@st.composite
def _searches(draw: st.DrawFn) -> list[dict[str, Any]]:
    identifier = "srvtoolu_" + draw(words)
    call = {"type": "server_tool_use", "id": identifier, "name": "web_search", "input": {"query": draw(texts)}}
    found = {
        "type": "web_search_result",
        "encrypted_content": draw(words),
        "page_age": None,
        "title": draw(texts),
        "url": "https://example.org",
    }
    return [call, {"type": "web_search_tool_result", "tool_use_id": identifier, "content": [found]}]


@st.composite
def official_messages(draw: st.DrawFn) -> OfficialMessage:
    """Draw complete answers of any content."""
    parts = st.one_of(*(kind.map(lambda block: [block]) for kind in (_texts, _thoughts, _hidden, _calls)), _searches())
    content = [block for blocks in draw(st.lists(parts, max_size=5)) for block in blocks]
    reasons = ["end_turn", "tool_use", "max_tokens", "stop_sequence", "pause_turn", "refusal"]
    return message(*content, stop_reason=draw(st.sampled_from([*reasons, "model_context_window_exceeded"])))
