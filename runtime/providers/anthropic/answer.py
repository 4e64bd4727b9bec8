"""Answers of the Messages API, made into ours: content blocks, stop reasons, usage; whole, or put together from events.

Wire format: `types/content_block.py`, `types/stop_reason.py` and `types/usage.py` of the official package, "Messages"
and "Handling stop reasons" in the API reference (platform.claude.com/docs).

- A block's fields that we have no word for are kept in `provider_data["anthropic"]` and go back with it, such as a
  text's `citations` and a call's `caller`. Those that are null or an empty list say nothing and are not kept.
- A block of any other type, such as `redacted_thinking`, `server_tool_use` and the results of server tools, or one
  that was invented after this was written, is a `ProviderBlock` with the very object that came.

Streams: "Streaming messages" (platform.claude.com/docs/en/build-with-claude/streaming) and `types/raw_*.py` of the
official package, whose `lib/streaming/_messages.accumulate_event` gives the same message for the same events.

    message_start   (content_block_start   content_block_delta*   content_block_stop)*   message_delta   message_stop

with `ping` anywhere, and `error` instead of the rest. What differs from the rule is read where there is only one way
to read it: an index that is missing while one block is open, one that is used again for a new block, blocks that never
stop, text without a start. A stream that ends before `message_stop`, or without a stop reason, is no answer.

A block of the provider's own is put together from the fields of its deltas, which may be of any type: texts and lists
are joined, and null adds nothing. Where a field comes twice and is neither, what the whole is cannot be told, and the
block is left out, since half of it could not go back. The log of the program then has a line, as it has for a delta of
an unknown type that comes for another block and is ignored, as the API's versioning rules ask.
"""

import logging
from collections.abc import Callable, Sequence

import msgspec

from refold.events.core.content import (
    Json,
    JsonObject,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    is_json_array,
    is_json_object,
)
from refold.events.model.messages import (
    Delta,
    ModelResponse,
    ResponseContent,
    StopReason,
    TextDelta,
    ThinkingDelta,
    ToolInputDelta,
    ToolUse,
    Usage,
    UsageDelta,
)
from refold.providers.anthropic.errors import failure_of, json_object_in
from refold.providers.anthropic.history import NAME
from refold.providers.http.failures import malformed
from refold.providers.http.wire import WireEvent, token_count

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
    """Return an answer put together; `message` says who answered, and why the model stopped."""
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
    return Usage(
        input_tokens=max(before.input_tokens, token_count(fields, "input_tokens")),
        output_tokens=max(before.output_tokens, token_count(fields, "output_tokens")),
        cache_read_tokens=max(before.cache_read_tokens, token_count(fields, "cache_read_input_tokens")),
        cache_creation_tokens=max(before.cache_creation_tokens, token_count(fields, "cache_creation_input_tokens")),
    )


log = logging.getLogger("refold.provider")

ANSWER_CHARACTERS_MAX = 64 * 1024 * 1024
"""Most characters of events in one answer; a stream that goes on beyond it is given up."""

_EVENTS = frozenset(
    ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "error")
)

_DELTA_FIELDS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
    "citations_delta": ("text", "citation"),
    "input_json_delta": ("tool_use", "partial_json"),
}
"""For each type of delta: the type of block that it belongs to, and the field that it carries."""


class _OpenBlock:
    """A content block on its way: what it started with, and the pieces since."""

    def __init__(self, index: int, start: JsonObject, call: int) -> None:
        self.index = index
        self.start = start
        self.type = start.get("type")
        self.call = call
        """Place among the answer's calls; only of a `tool_use`."""
        self.pieces: list[str] = []
        """Of the text, the thinking, or the JSON of a call's input."""
        self.signature: str | None = None
        self.citations: list[Json] = []
        self.fields: dict[str, list[Json]] = {}
        """Of a block of the provider's own: the values that came for each of its fields."""

    def is_providers_own(self) -> bool:
        return self.type not in ("text", "thinking", "tool_use")

    def takes(self, block_type: str) -> bool:
        """Return whether a delta for blocks of `block_type` can belong here; calls of server tools have input too."""
        return self.type == block_type or (block_type == "tool_use" and self.is_providers_own())

    def whole(self) -> JsonObject | None:
        """Return the block as a complete response would hold it, or None if a part is missing."""
        block = dict(self.start)
        for field, values in self.fields.items():
            before = block.get(field)
            block[field] = _joined(values if before is None else [before, *values])
            if block[field] is None:
                log.warning("a block of type %.50r is left out of an answer: its %.50r came twice", self.type, field)
                return None
        joined = "".join(self.pieces)
        if self.type in ("text", "thinking"):
            field = str(self.type)
            began = block.get(field)
            block[field] = f"{began if isinstance(began, str) else ''}{joined}"
            if self.signature is not None:
                block["signature"] = self.signature
            if self.citations:
                before = block.get("citations")
                block["citations"] = [*(before if isinstance(before, list) else []), *self.citations]
        elif joined.strip():
            block["input"] = _arguments(joined)
            if self.is_providers_own() and not is_json_object(block["input"]):
                return None
        return block


def _joined(values: list[Json]) -> Json:
    """Return the whole of what came in pieces, None where that is not certain."""
    texts = [value for value in values if isinstance(value, str)]
    lists = [value for value in values if is_json_array(value)]
    if len(texts) == len(values):
        return "".join(texts)
    if len(lists) == len(values):
        return [item for piece in lists for item in piece]
    return values[0] if all(value == values[0] for value in values) else None


def _arguments(text: str) -> Json:
    """Return the object that `text` is the JSON of, or `text` itself, for `events.session.normalise` to judge."""
    value = json_object_in(text)
    return text if value is None else value


class AnthropicReader:
    """Puts one streamed answer together, in time and memory proportional to it."""

    def __init__(self, our_name: OurName) -> None:
        self._our_name = our_name
        self._blocks: list[_OpenBlock] = []
        self._current: dict[int, _OpenBlock] = {}
        """The last block of each index."""
        self._open: dict[int, _OpenBlock] = {}
        """Those of them that have not stopped."""
        self._next_index = 0
        self._calls = 0
        self._characters = 0
        self._message: JsonObject | None = None
        self._stopped: JsonObject = {}
        """What was said of why the model stopped."""
        self._usage = Usage()
        self._finished = False

    def read(self, event: WireEvent) -> Sequence[Delta]:
        if self._finished or not event.data.strip():
            return ()
        self._characters += len(event.data)
        if self._characters > ANSWER_CHARACTERS_MAX:
            raise malformed(f"it is longer than {ANSWER_CHARACTERS_MAX:,} characters", retryable=False)
        data = _decoded(event)
        kind = data.get("type", event.event)
        if kind == "content_block_delta":
            return self._delta(data)
        if kind == "content_block_start":
            return self._start(data.get("content_block"), data.get("index"))
        if kind == "content_block_stop":
            return self._stop(data.get("index"))
        if kind == "message_delta":
            return self._message_delta(data)
        if kind == "message_start":
            return self._message_start(data.get("message"))
        if kind == "error":
            raise failure_of(None, {}, event.data.encode(errors="replace"))
        self._finished = kind == "message_stop"
        return ()

    def finished(self) -> bool:
        return self._finished

    def answer(self) -> ModelResponse:
        if self._message is None:
            raise malformed("the stream ended before the answer began" if self._characters else "the stream was empty")
        if not self._finished:
            raise malformed("the stream ended inside the answer")
        blocks = sorted(self._blocks, key=lambda block: block.index)  # Stable: as they began, within one index.
        whole = [block for block in (block.whole() for block in blocks) if block is not None]
        content = tuple(content_of(block, self._our_name) for block in whole)
        return response_of(content, {"model": self._message.get("model"), **self._stopped}, self._usage)

    def _message_start(self, message: object) -> Sequence[Delta]:
        if not is_json_object(message):
            raise malformed("message_start has no message")
        if self._message is not None:
            if self._blocks and message.get("id") != self._message.get("id"):
                raise malformed("another answer began inside this one")
            return ()
        self._message = message
        self._take_stop_reason(message)
        self._usage = usage_of(message.get("usage"))
        deltas: list[Delta] = [UsageDelta(self._usage)]
        content = message.get("content")
        for block in content if is_json_array(content) else ():
            deltas.extend(self._start(block, None))
        return deltas

    def _message_delta(self, data: JsonObject) -> Sequence[Delta]:
        delta = data.get("delta")
        if is_json_object(delta):
            self._take_stop_reason(delta)
        if not is_json_object(data.get("usage")):
            return ()
        self._usage = usage_of(data.get("usage"), self._usage)
        return (UsageDelta(self._usage),)

    def _take_stop_reason(self, told: JsonObject) -> None:
        for field in ("stop_reason", "stop_sequence", "stop_details"):
            if told.get(field) is not None:
                self._stopped[field] = told[field]

    def _start(self, start: object, index: object) -> Sequence[Delta]:
        if not is_json_object(start) or not isinstance(start.get("type"), str):
            raise malformed("a content block starts without a type")
        block = self._begun(start, index)
        match block.type:
            case "text":
                text = start.get("text")
                return (TextDelta(text),) if isinstance(text, str) and text else ()
            case "thinking":
                thinking = start.get("thinking")
                return (ThinkingDelta(thinking),) if isinstance(thinking, str) and thinking else ()
            case "tool_use":
                self._calls += 1
                return (self._input_delta(block, ""),)
            case _:
                return ()

    def _begun(self, start: JsonObject, index: object) -> _OpenBlock:
        place = _index(index)
        if place is None:  # Where blocks have no index they cannot overlap: the one before has ended.
            self._open.clear()
            place = self._next_index
        block = _OpenBlock(place, start, self._calls)
        self._blocks.append(block)
        self._current[place] = self._open[place] = block
        self._next_index = max(self._next_index, place + 1)
        return block

    def _found(self, index: object) -> _OpenBlock | None:
        """Return the block that an index means; without an index, the only one that is open."""
        place = _index(index)
        if place is not None:
            return self._current.get(place)
        return next(iter(self._open.values())) if len(self._open) == 1 else None

    def _stop(self, index: object) -> Sequence[Delta]:
        block = self._found(index)
        if block is None or self._open.pop(block.index, None) is not block:
            return ()
        given = block.start.get("input")
        if block.type == "tool_use" and given and not block.pieces:  # Its input came whole, with its start.
            return (self._input_delta(block, msgspec.json.encode(given).decode()),)
        return ()

    def _delta(self, data: JsonObject) -> Sequence[Delta]:
        delta = data.get("delta")
        if not is_json_object(delta):
            raise malformed("a delta is not an object")
        told = str(delta.get("type"))
        known = _DELTA_FIELDS.get(told)
        own = self._found(data.get("index"))
        if own is not None and own.is_providers_own() and told != "input_json_delta":
            for field, value in delta.items():
                if field != "type" and value is not None:
                    own.fields.setdefault(field, []).append(value)
            return ()
        if known is None:
            log.warning("a delta of the unknown type %.50r is left out of an answer", told)
            return ()
        block = self._block_for(known[0], data.get("index"))
        value = delta.get(known[1])
        if known[1] == "citation":
            if value is not None:
                block.citations.append(value)
            return ()
        if not isinstance(value, str):
            raise malformed(f"a delta of type {delta['type']!r:.50} carries no text")
        if known[1] == "signature":
            block.signature = value
            return ()
        if not value:
            return ()
        block.pieces.append(value)
        if block.type == "text":
            return (TextDelta(value),)
        if block.type == "thinking":
            return (ThinkingDelta(value),)
        return (self._input_delta(block, value),) if block.type == "tool_use" else ()

    def _block_for(self, block_type: str, index: object) -> _OpenBlock:
        """Return the one block that a delta for blocks of `block_type` belongs to."""
        block = self._found(index)
        if block is not None and block.takes(block_type):
            return block
        if block is not None:
            raise malformed(f"a delta for a block of type {block_type!r} came for one of type {block.type!r:.50}")
        if _index(index) is None and self._open:
            raise malformed("a delta does not say to which of several blocks it belongs")
        if block_type == "tool_use":
            raise malformed("the input of a call came without the call")
        return self._begun({"type": block_type, block_type: ""}, index)

    def _input_delta(self, block: _OpenBlock, piece: str) -> ToolInputDelta:
        name, call = block.start.get("name"), block.start.get("id")
        return ToolInputDelta(
            block.call,
            self._our_name(name) if isinstance(name, str) else "",
            piece,
            call if isinstance(call, str) else None,
        )


def _index(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _decoded(event: WireEvent) -> JsonObject:
    """Return the object in an event's data; an empty one for data that nothing depends on."""
    data = json_object_in(event.data)
    if data is not None:
        return data
    if event.event == "error":
        raise failure_of(None, {}, event.data.encode(errors="replace"))
    if event.event in _EVENTS or (event.event == "message" and event.data.strip() != "[DONE]"):
        raise malformed(f"the data of the event {event.event!r:.50} is not a JSON object")
    return {}
