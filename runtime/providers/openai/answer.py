"""An answer of the Chat Completions API, put together from its deltas; a whole message is one delta.

Sources: `openai.types.chat.chat_completion` and `chat_completion_chunk` (openai 3.57); for reasoning
vllm-project/vllm#27755 (`reasoning`, before that `reasoning_content` as DeepSeek names it), OpenRouter's
`reasoning_details` and ai.google.dev/gemini-api/docs/openai ("Thinking"); for usage also DeepSeek's and Moonshot's
fields. The rules:

- The order is reasoning, text, what audio says, refusal, calls: the API tells no other.
- Calls make an answer `tool_use` even where the server says `stop`, as Gemini and others do. Only where it was
  cut (`length`) is it `max_tokens`, and where it was filtered it is a `refusal`, whose calls are left out, as they may
  have lost a part.
- `stop`, an unknown reason (which is kept in `stop_details`) and none at all end the turn. A server that broke off
  (`error`, `abort`, `insufficient_system_resource`) failed.
"""

import base64
from collections.abc import Sequence

import msgspec

from refold.events.core.cleaning import clean_text
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
    Usage,
    UsageDelta,
)
from refold.providers.http.failures import malformed
from refold.providers.http.wire import ToolNames, WireEvent, decoded, object_field, text_field, token_count
from refold.providers.openai.calls import CallAssembly, kept
from refold.providers.openai.errors import failure_inside
from refold.providers.openai.thoughts import ReasoningDetails, TaggedThinking, TaggedThoughts, thoughts_in

_STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "tool_use": "tool_use",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "max_tokens",
    "content_filter": "refusal",
    "refusal": "refusal",
    "safety": "refusal",
}
"""By `finish_reason` in lower case; the official ones and their likes."""

_EXPLAINING_FIELDS = ("native_finish_reason", "content_filter_results")
"""OpenRouter's, and Azure's."""

_BROKEN_OFF = ("error", "abort", "insufficient_system_resource")

_REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where both are given they say the same, so the first counts."""

DONE = "[DONE]"


class OpenAIReader:
    """Puts one answer together, event by event; takes time and room in proportion to what comes.

    Each event is a `chat.completion.chunk`; the last one is `[DONE]`, which some servers leave out. An answer is
    complete where a chunk had a `finish_reason`, or where the server said `[DONE]` and no call is in want of arguments.
    Anything else was cut, and may be asked for again. What comes behind a `finish_reason` still counts: usage, which is
    in a chunk without choices, and what some servers send late.

    Args:
        provider: the provider's name, for what only it understands.
        names: the names under which tools were offered.
        thoughts: how the model marks thoughts within its text; None = it does not.
    """

    def __init__(self, provider: str, names: ToolNames, thoughts: TaggedThinking | None = None) -> None:
        self._provider = provider
        self._done = False
        self._finish_reason: str | None = None
        """As the server said it; `length` and filters are not taken back by what comes behind them."""
        self._text = _Text()
        self._refusal = _Text()
        self._thinking = _Text()
        self._details = ReasoningDetails()
        self._tagged = TaggedThoughts("think", begun=thoughts == "end_tag") if thoughts is not None else None
        """Splits the content, where thoughts may be in it."""
        self._tagged_thoughts = _Text()
        self._marked = False
        """Whether the last content was marked as thoughts."""
        self._extra_content: JsonObject = {}
        self._annotations: list[Json] = []
        """Sources of the text and the like, which do not go back."""
        self._audio: JsonObject = {}
        self._sound: list[str] = []
        """The data of the audio, in pieces."""
        self._spoken = _Text()
        """What the audio says."""
        self._calls = CallAssembly(provider, names)
        self._explained: JsonObject = {}
        """What the server says of why it stopped, besides the reason."""
        self._counts = TokenCounters()
        self._model: str | None = None

    def read(self, event: WireEvent) -> Sequence[Delta]:
        data = event.data.strip()
        if self._done or not data:
            return ()
        if data == DONE:
            self._done = True
            return ()
        try:
            chunk = decoded(data)
        except ValueError as error:
            if event.event == "error":
                raise failure_inside(self._provider, data) from None
            raise malformed(f"an event of the stream is not JSON ({error!s:.100})") from None
        if event.event == "error":
            raise failure_inside(self._provider, chunk)
        if not is_json_object(chunk):
            raise malformed("an event of the stream is not a JSON object")
        return self.take(chunk)

    def take(self, value: JsonObject, *, whole: bool = False) -> list[Delta]:
        """Take a chunk, or the body of a `whole` answer, and return what is new."""
        choice = first_choice(value)
        raise_error_in(self._provider, value, choice)
        if model := text_field(value, "model"):
            self._model = model
        deltas: list[Delta] = []
        if choice is not None:
            delta, message = object_field(choice, "delta"), object_field(choice, "message")
            if delta and not whole:
                deltas += self._add(delta)
            elif message and not self._said_something():
                deltas += self._add(message, whole=True)
            deltas += self._finish(choice)
            deltas += self._add_usage(choice.get("usage"))  # Moonshot puts it here.
        return deltas + self._add_usage(value.get("usage") or object_field(value, "x_groq").get("usage"))

    def finished(self) -> bool:
        return self._done

    def answer(self) -> ModelResponse:
        if self._finish_reason is None:
            if not self._done:
                raise malformed("the stream ended before the answer did")
            if not self._said_something():
                raise malformed("the stream holds no answer")
            if not self._calls.are_whole:
                raise malformed("the stream ended inside the arguments of a call")
        return self.whole()

    def _said_something(self) -> bool:
        texts = (self._text, self._refusal, self._thinking, self._tagged_thoughts, self._spoken)
        return any((*texts, self._details, self._extra_content, self._audio, self._calls.have_begun))

    def _add(self, message: JsonObject, *, whole: bool = False) -> list[Delta]:
        """Take a message or a delta of one, and return what is new; each call in a `whole` one is one by itself."""
        deltas = self._add_reasoning(message)
        content = message.get("content")
        marked = self._take_extra_content(object_field(message, "extra_content"))
        if isinstance(content, str):
            self._note_mark(content, marked=marked)
        deltas += self._add_content(content)
        deltas += self._refusal.add(text_field(message, "refusal"), TextDelta)
        deltas += self._add_audio(object_field(message, "audio"))
        if is_json_array(annotations := message.get("annotations")):
            self._annotations += annotations
        calls = message.get("tool_calls")
        if is_json_object(calls):
            calls = [calls]
        if not calls and (legacy := object_field(message, "function_call")):
            calls = [{"index": -1, "function": legacy}]
        if is_json_array(calls):
            deltas += self._calls.add_whole(calls) if whole else self._calls.add(calls)
        return deltas

    def _add_usage(self, value: Json) -> list[Delta]:
        """Take what was counted so far. None of it falls: some servers repeat it with zeros."""
        before = self._counts
        self._counts = before.with_those_of(value)
        return [UsageDelta(self._counts.usage())] if self._counts != before else []

    def _finish(self, choice: JsonObject) -> list[Delta]:
        """Take a choice's `finish_reason` and what explains it, and return what was held back; null says nothing."""
        reason = choice.get("finish_reason")
        self._explained.update((key, choice[key]) for key in _EXPLAINING_FIELDS if choice.get(key))
        if not isinstance(reason, str) or not reason:
            return []
        word = reason.lower()
        if word in _BROKEN_OFF:
            raise failure_inside(self._provider, {"message": f"the answer broke off: {reason}", "code": word})
        if _STOP_REASONS.get(self._finish_reason or "") not in ("max_tokens", "refusal"):
            self._finish_reason = word
        return self._add_split(*self._tagged.rest()) if self._tagged is not None else []

    def whole(self) -> ModelResponse:
        calls = self._calls.uses()
        reason = self._stop_reason(bool(calls))
        content: list[ResponseContent] = []
        reasoning = self._details.kept()
        if self._tagged is not None:
            self._add_split(*self._tagged.rest())
        thoughts, text = self._thinking.whole() + self._tagged_thoughts.whole(), self._text.whole()
        if reason == "end_turn" and self._tagged and self._tagged.are_open and not (text or calls):
            thoughts, text = self._thinking.whole(), self._tagged_thoughts.whole()
        if thoughts or reasoning:
            data: JsonObject | None = {self._provider: kept({"reasoning_details": reasoning})} if reasoning else None
            content.append(ThinkingBlock(thinking=thoughts, provider_data=data))
        own: JsonObject = {
            "extra_content": self._extra_content,
            "annotations": self._annotations,
            "audio": self._whole_audio(),
        }
        if own := {field: value for field, value in own.items() if value}:
            content.append(ProviderBlock(provider=self._provider, data=kept(own)))
        texts = (text, self._spoken.whole(), self._refusal.whole())
        content.extend(TextBlock(text=said) for said in texts if said.strip())
        if reason != "refusal":
            content.extend(calls)
        model = clean_text(self._model) if self._model else None
        details: JsonObject = {}
        if reason == "refusal" and (self._explained or not self._refusal):
            details = {"type": "refusal", "category": self._finish_reason, **self._explained}
        elif self._finish_reason is not None and self._finish_reason not in _STOP_REASONS:
            details = {"type": self._finish_reason}
        return ModelResponse(
            content=tuple(content),
            stop_reason=reason,
            stop_details=kept(details) or None,
            usage=self._counts.usage(),
            model=model,
        )

    def _stop_reason(self, calls: bool) -> StopReason:
        reason = _STOP_REASONS.get(self._finish_reason or "stop", "end_turn")
        if reason in ("max_tokens", "refusal"):
            return reason
        if calls:
            return "tool_use"
        if self._refusal:
            return "refusal"
        return "end_turn" if reason == "tool_use" else reason

    def _add_reasoning(self, message: JsonObject) -> list[Delta]:
        details = message.get("reasoning_details")
        text = next((text for key in _REASONING_FIELDS if (text := text_field(message, key))), "")
        if is_json_array(details) and (shown := self._details.add(details)):
            text = text or shown
        return self._thinking.add(text, ThinkingDelta)

    def _add_audio(self, audio: JsonObject) -> list[Delta]:
        self._audio.update((field, value) for field, value in audio.items() if field not in ("data", "transcript"))
        if data := text_field(audio, "data"):
            self._sound.append(data)
        return self._spoken.add(text_field(audio, "transcript"), TextDelta)

    def _whole_audio(self) -> JsonObject:
        told = {"data": _joined_base64(self._sound), "transcript": self._spoken.whole()}
        return {**self._audio, **{field: value for field, value in told.items() if value}}

    def _take_extra_content(self, extra: JsonObject) -> bool:
        """Keep what has to go back with the message, and return whether its content is marked as thoughts."""
        thoughts = False
        for vendor, value in extra.items():
            if is_json_object(value):
                thoughts = thoughts or value.get("thought") is True
                value = {key: item for key, item in value.items() if key != "thought"}
            if value:
                self._extra_content[vendor] = value
        return thoughts

    def _note_mark(self, content: str, *, marked: bool) -> None:
        """Take note of a mark that content holds thoughts, with which Gemini marks signed answers too."""
        if marked and content.startswith("<thought>") and not (self._tagged and self._tagged.are_open):
            self._tagged, self._marked = TaggedThoughts("thought"), True
        elif self._marked and not marked and content and self._tagged and not content.startswith("</thought>"):
            self._tagged.close()
            self._marked = False

    def _add_text(self, text: str) -> list[Delta]:
        return self._text.add(text, TextDelta) if self._tagged is None else self._add_split(*self._tagged.split(text))

    def _add_split(self, thoughts: str, text: str) -> list[Delta]:
        return self._tagged_thoughts.add(thoughts, ThinkingDelta) + self._text.add(text, TextDelta)

    def _add_content(self, content: Json) -> list[Delta]:
        if isinstance(content, str):
            return self._add_text(content)
        deltas: list[Delta] = []
        for part in content if is_json_array(content) else ():
            if isinstance(part, str):
                deltas += self._add_text(part)
            elif is_json_object(part):
                deltas += self._add_text(text_field(part, "text"))
                deltas += self._refusal.add(text_field(part, "refusal"), TextDelta)
                deltas += self._thinking.add(thoughts_in(part.get("thinking")), ThinkingDelta)
        return deltas


def _joined_base64(pieces: Sequence[str]) -> str:
    """Return pieces of data, each of which is base64 by itself, as one; as they are where they are not."""
    try:
        return base64.b64encode(b"".join(base64.b64decode(piece, validate=True) for piece in pieces)).decode()
    except ValueError:
        return "".join(pieces)


class _Text:
    """Text that comes in pieces; half an emoji waits for its other half."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._held = ""

    def __bool__(self) -> bool:
        return bool(self._pieces or self._held)

    def add(self, piece: str, kind: type[TextDelta] | type[ThinkingDelta]) -> list[Delta]:
        piece = self._held + piece
        self._held = piece[-1] if piece and "\ud800" <= piece[-1] <= "\udbff" else ""
        shown = clean_text(piece[: len(piece) - len(self._held)])
        if not shown:
            return []
        self._pieces.append(shown)
        return [kind(shown)]

    def whole(self) -> str:
        return "".join(self._pieces) + clean_text(self._held)


class TokenCounters(msgspec.Struct, frozen=True):
    """The counters of an answer, as the API gives them: the prompt includes what the cache had to do with it."""

    prompt: int = 0
    output: int = 0
    cached: int = 0
    written: int = 0
    total: int = 0

    def with_those_of(self, value: Json) -> "TokenCounters":
        """Return the larger of each counter and that of a `usage` object, which may be none."""
        if not is_json_object(value):
            return self
        details = object_field(value, "prompt_tokens_details")
        told = (
            token_count(value, "prompt_tokens") or token_count(value, "input_tokens"),
            token_count(value, "completion_tokens") or token_count(value, "output_tokens"),
            token_count(details, "cached_tokens")
            or token_count(value, "prompt_cache_hit_tokens")
            or token_count(value, "cached_tokens"),
            token_count(details, "cache_write_tokens"),
            token_count(value, "total_tokens"),
        )
        return TokenCounters(*map(max, zip(msgspec.structs.astuple(self), told, strict=True)))

    def usage(self) -> Usage:
        """Return them with prompt and cache apart, as Anthropic counts, so that each token is paid once.

        Output is what the total holds besides the prompt, where that is more than was said: xAI and Gemini leave
        reasoning out of `completion_tokens`.
        """
        cached = min(self.cached, self.prompt)
        written = min(self.written, self.prompt - cached)
        return Usage(
            input_tokens=self.prompt - cached - written,
            output_tokens=max(self.output, self.total - self.prompt),
            cache_read_tokens=cached,
            cache_creation_tokens=written,
        )


def complete_answer(
    body: bytes, provider: str, names: ToolNames, thoughts: TaggedThinking | None = None
) -> ModelResponse:
    """Return the answer in the body of a response of status 200, which may hold an error, as OpenRouter's do."""
    try:
        value = decoded(body)
    except ValueError as error:
        raise malformed(f"the body is not JSON ({error!s:.100})") from None
    if not is_json_object(value):
        raise malformed("the body is not a JSON object")
    reader = OpenAIReader(provider, names, thoughts)
    reader.take(value, whole=True)
    if not is_json_object((first_choice(value) or {}).get("message")):
        raise malformed("it has no choice with a message")
    return reader.whole()


def first_choice(value: JsonObject) -> JsonObject | None:
    """Return the choice of index 0, which is the only one that is asked for, or None."""
    choices = value.get("choices")
    if not is_json_array(choices):
        return None
    objects = [choice for choice in choices if is_json_object(choice)]
    return next((choice for choice in objects if choice.get("index") in (0, None)), None)


def raise_error_in(provider: str, value: JsonObject, choice: JsonObject | None) -> None:
    """Raise ProviderError if a response of status 200 holds an error."""
    if value.get("error"):
        raise failure_inside(provider, value)
    if choice is not None and choice.get("error"):
        raise failure_inside(provider, choice)
    if "choices" not in value and (value.get("object") == "error" or value.get("message") or value.get("detail")):
        raise failure_inside(provider, value)
