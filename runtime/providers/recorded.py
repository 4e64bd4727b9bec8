"""Real model calls kept in a file, a cassette, and served again without network, key or cost.

Wrap a provider in `RecordingProvider` once; from then on `RecordedProvider` answers from the file. Answers are found by
their place, as a model may answer the same question differently twice. The file is JSON Lines, one call per line, in
the order in which the calls ended. A line is complete or it does not count: one that a crash cut short is left out when
the file is read, and cut off when it is written on.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from refold.actors.calls.protocols import Provider, StreamingProvider, StreamItem
from refold.actors.calls.request import sent_digest
from refold.actors.calls.streaming import can_stream, close_behind
from refold.events.core.cleaning import Unrecordable, clean_json, clean_text, error_words
from refold.events.core.content import AnswerContent, Json, JsonObject, is_json_object
from refold.events.core.difference import first_difference
from refold.events.core.errors import ConfigError, ProviderError, ProviderErrorKind
from refold.events.model.messages import (
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
from refold.events.model.redacted_stream import RedactedStream
from refold.memory.stream_object import stream_objects_of
from refold.providers.function import as_provider
from refold.providers.http.secrets import Secret, redaction_of
from refold.tools.dry_run import require_outside

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
    field: str | None = None


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
    """Return the recorded calls in the order in which they began."""
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


def _append(path: str | os.PathLike[str], exchange: Exchange) -> None:
    """Write a call that has ended to a file, which only its owner may read; it is with the operating system then."""
    line = msgspec.json.encode(exchange) + b"\n"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
    """Return a request or an answer as a cassette holds it: without defaults and what the prompt tells too."""
    return _object(_members(value))


def response_from(value: JsonObject) -> ModelResponse:
    fields: dict[str, object] = {}
    for field in msgspec.structs.fields(ModelResponse):
        if field.name == "content":
            fields["content"] = tuple(_content(block) for block in msgspec.convert(value["content"], list[JsonObject]))
        elif field.name in value:
            fields[field.name] = msgspec.convert(value[field.name], field.type)
    return ModelResponse(**fields)  # type: ignore[arg-type]


def json_of_delta(delta: Delta) -> JsonObject:
    return {"delta": _DELTA_NAMES[type(delta)], **_object(_members(delta))}


def delta_from(value: JsonObject) -> Delta:
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
        if field.name != "output_schema" and (member := getattr(value, field.name)) != field.default
    }


def _object(members: dict[str, object]) -> JsonObject:
    cleaned: Json = clean_json(members)
    assert is_json_object(cleaned)
    return cleaned


log = logging.getLogger("refold.provider")


class RecordingProvider(StreamingProvider):
    """Passes calls to another provider and writes each to a cassette when it has ended, without the keys in it.

    A cassette that is there already is written on. A call that cannot be written is reported in the log of the
    process and goes on as if it were.

    Args:
        provider: answers the calls; the keys of an `HttpProvider` are known, also inside a provider of ours.
        path: the cassette; only its owner may read it. It holds prompts and answers.
        secrets: other values that must not be in it.

    Raises:
        ConfigError: the file is there and is no cassette; or what is given is no provider.
    """

    def __init__(self, provider: Provider, path: str | os.PathLike[str], *, secrets: Iterable[Secret] = ()) -> None:
        self._provider = as_provider(provider)
        self.redaction = redaction_of(provider, secrets=secrets)
        self.stream_objects = stream_objects_of(provider)
        self._path = path
        self._calls = max((exchange.call for exchange in read_cassette(path)), default=0) if Path(path).exists() else 0

    def sent_digest(self, request: ModelRequest, *, streamed: bool) -> str:
        """Return the digest of what the other provider would be sent."""
        return sent_digest(self._provider, request, streamed=streamed)

    def _begin(self) -> int:
        """Return the number of a call that begins."""
        self._calls += 1
        return self._calls

    async def complete(self, request: ModelRequest) -> ModelResponse:
        call = self._begin()
        try:
            answer = await self._provider.complete(request)
        except BaseException as error:
            self._write(call, request, error=error)
            raise
        self._write(call, request, answer=answer)
        return answer

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        if not can_stream(self._provider):
            yield await self.complete(request)
            return
        call = self._begin()
        deltas: list[Delta] = []
        written = False
        items = self._provider.stream(request)
        try:
            async for item in items:
                if isinstance(item, ModelResponse):
                    written = True  # Before it is passed on: nobody reads on behind it.
                    self._write(call, request, streamed=True, deltas=deltas, answer=item)
                else:
                    deltas.append(item)
                yield item
        except BaseException as error:
            if not written:
                self._write(call, request, streamed=True, deltas=deltas, error=error)
            raise
        finally:
            await close_behind(items)

    def _write(
        self,
        call: int,
        request: ModelRequest,
        *,
        streamed: bool = False,
        deltas: Sequence[Delta] = (),
        answer: ModelResponse | None = None,
        error: BaseException | None = None,
    ) -> None:
        pieces = RedactedStream(self.redaction)
        shown = [*pieces.pieces(deltas), *pieces.rest()]
        try:
            asked = self.redaction.value(json_of(request))
            exchange = Exchange(
                cassette=CASSETTE_VERSION,
                call=call,
                request=asked,
                streamed=streamed,
                deltas=tuple(json_of_delta(delta) for delta in shown),
                answer=json_of(self.redaction.value(answer)) if answer is not None else None,
                error=self._recorded_error(error),
            )
            _append(self._path, exchange)
        except (Unrecordable, OSError) as failure:
            log.error("model call %d is missing from its cassette: %s", call, failure)

    def _recorded_error(self, error: BaseException | None) -> RecordedError | None:
        if error is None or isinstance(error, asyncio.CancelledError | GeneratorExit):
            return None
        given = error if isinstance(error, ProviderError) else ProviderError(error_words(error))
        told = self.redaction.error(given)
        return RecordedError(
            kind=told.kind,
            message=clean_text(str(told)),
            status=told.status,
            retryable=told.retryable,
            retry_after_s=told.retry_after_s,
            field=clean_text(told.field) if told.field is not None else None,
        )


class RecordedProvider(StreamingProvider):
    """Answers from a cassette: the first request gets the first recorded call, and so on.

    An error is raised as it was, and a call that had been cancelled waits until it is cancelled again. A request
    behind the last recorded one is refused with a ProviderError.

    Args:
        path: the cassette.
        strict: refuse a request that is not the recorded one, with a ProviderError that names the first difference;
            False = answer any request.
        secrets: values that were taken out of the recorded requests, if such a value is in the requests now.

    Attributes:
        requests: what was asked, in order.

    Raises:
        ConfigError: there is no such file, or it is no cassette.
    """

    def __init__(self, path: str | os.PathLike[str], *, strict: bool = True, secrets: Iterable[Secret] = ()) -> None:
        self._path = os.fspath(path)
        self._exchanges = read_cassette(path)
        self._strict = strict
        self._redaction = redaction_of(secrets=secrets)
        self.requests: list[ModelRequest] = []

    @property
    def remaining(self) -> int:
        """Recorded calls that nobody has asked for yet."""
        return max(len(self._exchanges) - len(self.requests), 0)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        require_outside("a provider")
        return await _ended(self._next(request))

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        require_outside("a provider")
        exchange = self._next(request)
        for delta in exchange.deltas:
            yield delta_from(delta)
        yield await _ended(exchange)

    def _next(self, request: ModelRequest) -> Exchange:
        place = len(self.requests)
        self.requests.append(request)
        if place >= len(self._exchanges):
            raise ProviderError(
                f"the cassette {self._path} has {len(self._exchanges)} calls and this is request {place + 1}; "
                "delete it and record again",
                kind="invalid_request",
            )
        exchange = self._exchanges[place]
        if self._strict:
            asked = self._redaction.value(json_of(request))
            difference = first_difference(exchange.request, asked, "request")
            if difference is not None:
                raise ProviderError(
                    f"request {place + 1} is not the one in the cassette {self._path}: {difference}; delete the "
                    "cassette and record again, or pass strict=False",
                    kind="invalid_request",
                )
        return exchange


async def _ended(exchange: Exchange) -> ModelResponse:
    if exchange.answer is not None:
        return response_from(exchange.answer)
    if exchange.error is not None:
        fields = msgspec.structs.asdict(exchange.error)
        raise ProviderError(fields.pop("message"), **fields)
    while True:
        await asyncio.get_running_loop().create_future()
