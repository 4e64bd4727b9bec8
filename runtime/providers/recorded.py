"""Real model calls kept in a file, and served again without network, key or cost.

Wrap a provider in `RecordingProvider` once; from then on `RecordedProvider` answers from the file, which is called a
cassette. Answers are found by their place, as a model may answer the same question differently twice.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterable, Sequence

from refold.actors.answer_stream import can_stream, close_behind
from refold.actors.protocols import Provider, StreamingProvider, StreamItem
from refold.events.cleaning import Unrecordable, clean_text
from refold.events.difference import first_difference
from refold.events.errors import ProviderError
from refold.events.model import Delta, ModelRequest, ModelResponse
from refold.given_provider import checked_provider
from refold.providers.cassette import (
    CASSETTE_VERSION,
    CassetteWriter,
    Exchange,
    RecordedError,
    delta_from,
    json_of,
    json_of_delta,
    read_cassette,
    response_from,
)
from refold.providers.secrets import DeltaRedactor, Redactor, Secret, redactor_of
from refold.shadow import require_outside
from refold.stream_object import stream_objects_of

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
        self._provider = checked_provider(provider)
        self.redactor = Redactor(secrets, [redactor_of(provider)])
        self.stream_objects = stream_objects_of(provider)
        self._cassette = CassetteWriter(path)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the other provider's answer.

        Raises:
            BaseException: whatever that provider raises.
        """
        call = self._cassette.begin()
        try:
            answer = await self._provider.complete(request)
        except BaseException as error:
            self._write(call, request, error=error)
            raise
        self._write(call, request, answer=answer)
        return answer

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield what the other provider streams.

        Raises:
            BaseException: whatever that provider raises.
        """
        if not can_stream(self._provider):
            yield await self.complete(request)
            return
        call = self._cassette.begin()
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
        pieces = DeltaRedactor(self.redactor)
        shown = [*pieces.pieces(deltas), *pieces.rest()]
        try:
            asked = self.redactor.value(json_of(request))
            exchange = Exchange(
                cassette=CASSETTE_VERSION,
                call=call,
                request=asked,
                streamed=streamed,
                deltas=tuple(json_of_delta(delta) for delta in shown),
                answer=json_of(self.redactor.value(answer)) if answer is not None else None,
                error=self._recorded_error(error),
            )
            self._cassette.append(exchange)
        except (Unrecordable, OSError) as failure:
            log.error("model call %d is missing from its cassette: %s", call, failure)

    def _recorded_error(self, error: BaseException | None) -> RecordedError | None:
        if error is None or isinstance(error, asyncio.CancelledError | GeneratorExit):
            return None
        if not isinstance(error, ProviderError):
            text = clean_text(self.redactor.text(f"{type(error).__name__}: {error}"))
            return RecordedError(kind="unknown", message=text)
        return RecordedError(
            kind=error.kind,
            message=clean_text(self.redactor.text(str(error))),
            status=error.status,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
        )


class RecordedProvider(StreamingProvider):
    """Answers from a cassette: the first request gets the first recorded call, and so on.

    An error is raised as it was, and a call that had been cancelled waits until it is cancelled again. A request
    behind the last recorded one is refused with a ProviderError.

    Args:
        path: the cassette.
        strict: refuse a request that is not the recorded one, with a ProviderError that names the first difference;
            False = answer whatever is asked.
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
        self._redactor = Redactor(secrets)
        self.requests: list[ModelRequest] = []

    @property
    def remaining(self) -> int:
        """Recorded calls that nobody has asked for yet."""
        return max(len(self._exchanges) - len(self.requests), 0)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the recorded answer.

        Raises:
            ProviderError: the recorded one, or the request is not the recorded one.
        """
        require_outside("a provider")
        return await _ended(self._next(request))

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the recorded pieces and the recorded answer.

        Raises:
            ProviderError: the recorded one, or the request is not the recorded one.
        """
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
            asked = self._redactor.value(json_of(request))
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
    error = exchange.error
    if error is not None:
        raise ProviderError(
            error.message,
            kind=error.kind,
            status=error.status,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
        )
    while True:
        await asyncio.get_running_loop().create_future()
