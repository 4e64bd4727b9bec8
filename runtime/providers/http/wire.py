"""What a provider's wire format has to say, apart from the network: pure functions over bytes and text.

`refold.providers.http.provider` sends and receives; a format, such as `refold.providers.openai.provider`, says what,
and can be tested and read without a connection. JSON is read leniently, as servers write it, and written strictly. A
server that counts text in UTF-16 cuts an emoji in two and sends each half as an escape of its own, so halves are
accepted here, and joined or replaced where the text is complete.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import msgspec

from refold.events.core.cleaning import INTEGER_MAX, clean_text
from refold.events.core.content import (
    ImageBlock,
    Json,
    JsonObject,
    Message,
    ToolResultBlock,
    is_json_array,
    is_json_object,
)
from refold.events.core.errors import ProviderError
from refold.events.model.messages import Delta, ModelRequest, ModelResponse

GENERATION_CHARACTERS_MAX = 1_000
"""So much of an answer that a host refused is shown to the model."""


CHANGED_NAMES_MAX = 1000
"""How many changed names of tools are remembered; a request uses those of its own tools at once."""


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request: always a POST of JSON."""

    path: str
    """Below the base URL, with a leading slash."""
    headers: Mapping[str, str]
    """Those of the format; the provider that sends it adds the authentication."""
    body: bytes


class WireEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One Server-Sent Event."""

    event: str = "message"
    data: str = ""


class UnusableAnswer(ProviderError):
    """A host has refused the answer of its own model, such as a call that does not fit the tool's schema.

    That was the model's slip and no fault of the request, so a provider gives `answer` instead of failing: the session
    tells the model and asks again, `AgentConfig.rejections_max` times in a row.
    """

    def __init__(self, message: str, *, status: int | None, generation: str = "") -> None:
        """Say what the host says, and what the model wrote, where the host says that."""
        super().__init__(message, kind="invalid_request", status=status)
        wrote = f" You wrote: {generation[:GENERATION_CHARACTERS_MAX]}" if generation.strip() else ""
        self.answer = ModelResponse(
            content=(),
            rejected=f"Your answer could not be used ({message}).{wrote} Answer again; where you call a tool, give "
            "arguments that are JSON and fit its schema.",
        )


class ToolNames:
    """Remembers which tools were offered under another name, so that answers can be read."""

    def __init__(self) -> None:
        self._own: dict[str, str] = {}

    def remember(self, forms: Mapping[str, str]) -> None:
        """Take note of the forms of the tools that a request offers, by their own names."""
        for name, form in forms.items():
            self._own.pop(form, None)
            if form != name:
                self._own[form] = name
        while len(self._own) > CHANGED_NAMES_MAX:
            del self._own[next(iter(self._own))]

    def own(self, form: str) -> str:
        return self._own.get(form, form)


class AnswerReader(Protocol):
    """Puts one streamed answer together."""

    def read(self, event: WireEvent) -> Sequence[Delta]:
        """Take the next event, and return the pieces of the answer in it.

        Raises:
            ProviderError: the event says that the call failed, or cannot be understood.
        """
        ...

    def finished(self) -> bool:
        """Return whether the last event has come, so that nothing more needs to be read."""
        ...

    def answer(self) -> ModelResponse:
        """Return the complete answer, the stream having ended.

        Raises:
            ProviderError: the answer is not complete; of kind `malformed`, and may be repeated.
        """
        ...


class WireFormat(Protocol):
    """One provider's requests, answers and errors on the wire."""

    name: str
    """Of the provider: the key of `provider_data` and the owner of a `ProviderBlock`."""

    def request(self, request: ModelRequest, *, stream: bool) -> WireRequest:
        """Return the HTTP request for a model call.

        What the provider would refuse for its form alone (empty texts, orphaned results, names outside its pattern,
        unpaired surrogates) is repaired where the meaning is certain.

        Raises:
            ProviderError: the request cannot be expressed; of kind `invalid_request`, and nothing was sent.
        """
        ...

    def answer(self, body: bytes) -> ModelResponse:
        """Return the answer in the body of a complete response.

        Raises:
            ProviderError: it cannot be understood, or says that the call failed.
        """
        ...

    def reader(self) -> AnswerReader:
        """Return what puts a streamed answer together."""
        ...

    def failure(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Return what an HTTP status other than 2xx says, classified; its `retry_after_s` is left to the caller."""
        ...


def decoded(data: str | bytes) -> Json:
    """Return the value of JSON text, or raise ValueError; lone surrogates are left in it."""
    try:
        return cast("Json", msgspec.json.decode(data))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:  # Slower, and also reads halves of emojis, a byte order mark and NaN.
            return cast("Json", json.loads(data))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def encoded(value: Json) -> bytes:
    """Return the JSON of a request or of a part of it; what is not Unicode in it is replaced."""
    try:
        try:
            return msgspec.json.encode(value)
        except UnicodeEncodeError:
            return msgspec.json.encode(_cleaned(value))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ProviderError(f"the request cannot be written as JSON: {error!s:.200}", kind="invalid_request") from None


def _cleaned(value: Json) -> Json:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, tuple):
        value = list(cast("tuple[Json, ...]", value))
    if is_json_array(value):
        return [_cleaned(item) for item in value]
    if is_json_object(value):
        return {clean_text(key) if isinstance(key, str) else key: _cleaned(item) for key, item in value.items()}
    return value


def check_size(body: bytes, most: int | None, host: str) -> None:
    """Raise ProviderError if a body is larger than a host takes, as the host would answer; None = not known."""
    if most is not None and len(body) > most:
        words = f"the request has {len(body):,} bytes and {host} takes {most:,}; it was not sent"
        raise ProviderError(words, kind="context_too_long", status=413)


def check_images(messages: Sequence[Message], most: int | None, host: str) -> None:
    """Raise ProviderError, of kind `invalid_request`, if an image is larger than a host takes; None = not known."""
    for block in (block for message in messages for block in message.content):
        for part in block.content if isinstance(block, ToolResultBlock) else (block,):
            if most is not None and isinstance(part, ImageBlock) and len(part.data) > most:
                words = f"an image has {len(part.data):,} bytes and {host} takes {most:,}; the request was not sent"
                raise ProviderError(words, kind="invalid_request")


def text_field(value: JsonObject, key: str) -> str:
    text = value.get(key)
    return text if isinstance(text, str) else ""


def object_field(value: JsonObject, key: str) -> JsonObject:
    inner = value.get(key)
    return inner if is_json_object(inner) else {}


def token_count(value: JsonObject, key: str) -> int:
    """Return how many tokens a field counts; 0 where it has no number that can be one."""
    count = value.get(key)
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    return count if type(count) is int and 0 <= count <= INTEGER_MAX else 0
