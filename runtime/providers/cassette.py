"""The file of recorded model calls: JSON Lines, one call per line, in the order in which they ended.

`refold.providers.recorded` writes it with one provider and reads it with another. A line is complete or it does not
count: one that a crash cut short is left out when the file is read, and cut off when it is written on.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from refold.events.cleaning import clean_json
from refold.events.content import AnswerContent, Json, JsonObject, is_json_object
from refold.events.errors import ConfigError, ProviderErrorKind
from refold.events.model import (
    Delta,
    ModelRequest,
    ModelResponse,
    ResponseContent,
    TextDelta,
    ThinkingDelta,
    ToolInputDelta,
    ToolUse,
    UsageDelta,
)

CASSETTE_VERSION = 1
"""Of the form of a line; a file of a later one is refused."""

_DELTAS: Mapping[str, type[Delta]] = {
    "text": TextDelta,
    "thinking": ThinkingDelta,
    "tool_input": ToolInputDelta,
    "usage": UsageDelta,
}
_DELTA_NAMES = {kind: name for name, kind in _DELTAS.items()}


class RecordedError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a call failed; see `ProviderError`."""

    kind: ProviderErrorKind
    message: str
    status: int | None = None
    retryable: bool = False
    retry_after_s: float | None = None


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call: what was asked, and what came of it. Neither answer nor error: it was cancelled, or not waited for."""

    cassette: int
    """Version of the form."""
    call: int
    """Number of the call in the order in which they began, from 1."""
    request: JsonObject
    streamed: bool = False
    deltas: Sequence[JsonObject] = ()
    """What a stream gave before its answer or its end."""
    answer: JsonObject | None = None
    error: RecordedError | None = None


def read_cassette(path: str | os.PathLike[str]) -> list[Exchange]:
    """Return the recorded calls in the order in which they began.

    Raises:
        ConfigError: there is no such file, or a line of it is no call.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"the cassette {os.fspath(path)} cannot be read: {error.strerror}") from None
    exchanges: list[Exchange] = []
    # What stands behind the last line end was cut short by a crash.
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            exchange = msgspec.json.decode(line, type=Exchange)
            if exchange.cassette == CASSETTE_VERSION:
                _check(exchange)
        except (msgspec.MsgspecError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigError(f"line {number} of the cassette {os.fspath(path)} is no recorded call: {error}") from None
        if exchange.cassette != CASSETTE_VERSION:
            raise ConfigError(
                f"line {number} of the cassette {os.fspath(path)} has version {exchange.cassette}, and this Refold "
                f"reads {CASSETTE_VERSION}; delete it and record again"
            )
        exchanges.append(exchange)
    return sorted(exchanges, key=lambda exchange: exchange.call)


class CassetteWriter:
    """Appends calls to a file, which only its owner may read.

    Args:
        path: the file; it is made if it is not there, and written on if it is.

    Raises:
        ConfigError: the file is there and holds something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        before = read_cassette(path) if Path(path).exists() else []
        self._calls = max((exchange.call for exchange in before), default=0)

    def begin(self) -> int:
        """Return the number of a call that begins."""
        self._calls += 1
        return self._calls

    def append(self, exchange: Exchange) -> None:
        """Write a call that has ended; it is with the operating system when this returns.

        Raises:
            OSError: it could not be written.
        """
        line = msgspec.json.encode(exchange) + b"\n"
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            end = _end_of_last_line(file)
            os.ftruncate(file, end)
            os.lseek(file, end, os.SEEK_SET)
            written = 0
            while written < len(line):
                written += os.write(file, line[written:])
        finally:
            os.close(file)


def _end_of_last_line(file: int) -> int:
    end = os.lseek(file, 0, os.SEEK_END)
    while end > 0:
        size = min(end, 64 * 1024)
        found = os.pread(file, size, end - size).rfind(b"\n")
        if found >= 0:
            return end - size + found + 1
        end -= size
    return 0


def _check(exchange: Exchange) -> None:
    for delta in exchange.deltas:
        delta_from(delta)
    if exchange.answer is not None:
        response_from(exchange.answer)


def json_of(value: ModelRequest | ModelResponse) -> JsonObject:
    """Return a request or an answer as a cassette holds it: what has its default is left out.

    Raises:
        Unrecordable: JSON has no form for something in it.
    """
    return _object(_members(value))


def response_from(value: JsonObject) -> ModelResponse:
    """Return the answer that a cassette holds.

    Raises:
        MsgspecError: it is none.
    """
    fields: dict[str, object] = {}
    for field in msgspec.structs.fields(ModelResponse):
        if field.name == "content":
            fields["content"] = tuple(_content(block) for block in msgspec.convert(value["content"], list[JsonObject]))
        elif field.name in value:
            fields[field.name] = msgspec.convert(value[field.name], field.type)
    return ModelResponse(**fields)  # type: ignore[arg-type]


def json_of_delta(delta: Delta) -> JsonObject:
    """Return a piece of an answer as a cassette holds it."""
    return {"delta": _DELTA_NAMES[type(delta)], **_object(_members(delta))}


def delta_from(value: JsonObject) -> Delta:
    """Return the piece of an answer that a cassette holds.

    Raises:
        MsgspecError: it is none.
    """
    fields = dict(value)
    kind = fields.pop("delta")
    return msgspec.convert(fields, _DELTAS[msgspec.convert(kind, str)])


def _content(block: JsonObject) -> ResponseContent:
    # A call as a provider gives it has no tag, unlike every block.
    if "type" in block:
        content: ResponseContent = msgspec.convert(block, AnswerContent)
        return content
    return msgspec.convert(block, ToolUse)


def _members(value: msgspec.Struct) -> dict[str, object]:
    return {
        field.name: member
        for field in msgspec.structs.fields(value)
        if (member := getattr(value, field.name)) != field.default
    }


def _object(members: dict[str, object]) -> JsonObject:
    cleaned: Json = clean_json(members)
    assert is_json_object(cleaned)
    return cleaned
