"""A provider that is reached over HTTP: the network half, to which a wire format says what is sent and what it means.

    class AcmeProvider(HttpProvider):
        def __init__(self, *, api_key=None, base_url="https://api.acme.example", **options: Unpack[HttpOptions]):
            key = key_from(api_key, "ACME_API_KEY")
            super().__init__(AcmeFormat(), base_url=base_url, key=key, key_header="x-api-key", key_prefix="", **options)

Read `refold.providers.http.wire` for the other half, `refold.providers.http.exchange` for one request on its way, and
`refold.providers.http.client` for how connections are kept and end. The rules: every failure is a ProviderError; no
key is in what comes back; and a call that ends early, however it does, leaves nothing behind.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import NoReturn, Self, Unpack

import httpx
import msgspec

from refold.actors.calls.protocols import StreamingProvider, StreamItem
from refold.events.core.errors import ConfigError, ProviderError
from refold.events.model.messages import ModelRequest, ModelResponse
from refold.events.model.redacted_stream import RedactedStream
from refold.events.model.request import DIGEST_CHARACTERS
from refold.providers.http.client import LoopConnections, encryption, new_client
from refold.providers.http.events import EventStreamReader
from refold.providers.http.exchange import HttpExchange, retry_after_s
from refold.providers.http.secrets import Secret, redaction_of
from refold.providers.http.settings import (
    HttpOptions,
    checked_base_url,
    checked_headers,
    checked_options,
    secrets_in_query,
)
from refold.providers.http.wire import UnusableAnswer, WireEvent, WireFormat, WireRequest
from refold.tools.dry_run import require_outside
from refold.version import __version__

ENVIRONMENT = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"
"""Variables that count with `trust_env`."""

REFUSAL_BYTES_MAX = 64 * 1024
"""So much of the body of a refusal is read, to say why."""


class HttpProvider(StreamingProvider):
    """Answers model requests by asking a host over HTTP.

    Connections are kept between calls and end by themselves, at the latest with the event loop; `aclose`, or
    `async with`, ends them at once. One provider serves any number of calls, sessions, runtimes and event loops.

    Args:
        wire_format: says what is sent and what it means.
        base_url: where the format's paths begin, such as `https://api.example.com`; its query goes with each request.
        key: None = the host wants none.
        key_header: carries the key.
        key_prefix: stands before the key in that header.
        options: see `HttpOptions`.

    Raises:
        ConfigError: the base URL, a header or an option cannot work.
    """

    def __init__(
        self,
        wire_format: WireFormat,
        *,
        base_url: str,
        key: Secret | None,
        key_header: str = "authorization",
        key_prefix: str = "Bearer ",
        **options: Unpack[HttpOptions],
    ) -> None:
        unknown = sorted(options.keys() - HttpOptions.__annotations__.keys())
        if unknown:
            raise ConfigError(f"{type(self).__name__} has no option {unknown[0]!r}")
        self._format = wire_format
        self._url = checked_base_url(base_url, allow_http=options.get("allow_http", False))
        self._headers, secret_headers, secrets = checked_headers(options.get("headers", {}))
        self._timeouts, self._limits = checked_options(options)
        if key is not None:
            secret_headers[key_header.lower()] = key_prefix + key.reveal()
            secrets.append(key)
        self._authentication = _SecretHeaders(secret_headers)
        self.redaction = redaction_of(secrets=[*secrets, *secrets_in_query(self._url)])
        trust_env = options.get("trust_env", False)
        transport = options.get("transport")
        made_anew = callable(transport) and not isinstance(transport, httpx.AsyncBaseTransport)
        self._shared = transport is not None and not made_anew
        try:
            self._new_client = partial(
                new_client,
                transport,
                # The environment may name a proxy that is reached encrypted, though the host is not.
                encryption(
                    needed=transport is None and (trust_env or self._url.scheme == "https"), trust_env=trust_env
                ),
                connect_s=self._timeouts.connect_s,
                trust_env=trust_env,
            )
            if trust_env and transport is None:
                self._new_client()  # Opens nothing yet, and fails here instead of at the first call.
        except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
            if not trust_env:
                raise
            # A proxy that is none may hold a password.
            reason = str(error) if isinstance(error, ImportError) else type(error).__name__
            raise ConfigError(
                f"what the environment says of proxies and certificates cannot be used ({reason}): see {ENVIRONMENT}, "
                "or leave trust_env out"
            ) from None
        self._written: tuple[ModelRequest, bool, WireRequest] | None = None
        """A request that is about to be sent, whether its answer is streamed, and how it is written."""
        self._connections: dict[asyncio.AbstractEventLoop, LoopConnections] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url.host!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a key and connections and is not pickled or copied; make another")

    def sent_digest(self, request: ModelRequest, *, streamed: bool) -> str:
        """Return the digest of what would be sent: the path, the format's headers and the body, behind its name.

        The address, the key and the headers of `HttpOptions` are no part of it.
        """
        written = self._format.request(request, stream=streamed)
        self._written = (request, streamed, written)
        head = msgspec.json.encode((written.path, sorted(written.headers.items())))
        return f"{self._format.name}:{hashlib.sha256(head + written.body).hexdigest()[:DIGEST_CHARACTERS]}"

    def _as_written(self, request: ModelRequest, *, stream: bool) -> WireRequest:
        known, self._written = self._written, None
        if known is not None and known[0] is request and known[1] is stream:
            return known[2]
        return self._format.request(request, stream=stream)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        (answer,) = [item async for item in self._items(request, stream=False)]
        assert isinstance(answer, ModelResponse)
        return answer

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamItem, None]:
        return self._items(request, stream=True)

    async def _items(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[StreamItem, None]:
        require_outside("a provider")
        try:
            async with self._exchange(request, stream=stream) as exchange:
                if not stream or _is_json(exchange.content_type):  # A host that does not stream answers whole.
                    yield await self._whole_answer(exchange)
                    return
                _require_type(exchange, "text/event-stream")
                async with aclosing(self._streamed(exchange)) as items:
                    async for item in items:
                        yield item
                return
        except ProviderError as error:
            answer = self.redaction.value(error.answer) if isinstance(error, UnusableAnswer) else None
            failure = self.redaction.error(error)
        if answer is not None:
            yield answer
            return
        # Without the way it came: frames further in hold what the host has sent, as it was.
        raise failure.with_traceback(None)

    async def aclose(self) -> None:
        """Close the connections of this event loop; calls under way on it fail. The next call opens new ones."""
        connections = self._connections.pop(asyncio.get_running_loop(), None)
        if connections is not None:
            await connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @asynccontextmanager
    async def _exchange(self, request: ModelRequest, *, stream: bool) -> AsyncGenerator[HttpExchange, None]:
        """Send a request, and give its response if that is no refusal."""
        wire_request = self._as_written(request, stream=stream)
        connections = self._connections_of_this_loop()
        client = await connections.borrow()
        answered = False
        try:
            http_request = self._http_request(client, wire_request, stream=stream)
            exchange = HttpExchange(
                client, http_request, self._authentication, self._timeouts, self._limits, self.redaction
            )
            try:
                await exchange.open()
                answered = True
                if not 200 <= exchange.status < 300:
                    raise await self._refusal(exchange)
                yield exchange
            finally:
                await exchange.close()
        finally:
            await connections.give_back(client, answered=answered)

    def _connections_of_this_loop(self) -> LoopConnections:
        loop = asyncio.get_running_loop()
        connections = self._connections.get(loop)
        if connections is None:
            for other in [other for other in self._connections if other.is_closed()]:
                self._connections.pop(other, None)
            connections = self._connections[loop] = LoopConnections(self._new_client, shared=self._shared)
        return connections

    def _http_request(self, client: httpx.AsyncClient, wire_request: WireRequest, *, stream: bool) -> httpx.Request:
        headers = {
            "accept": "text/event-stream" if stream else "application/json",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": f"refold/{__version__}",
        }
        headers.update({name.lower(): value for name, value in wire_request.headers.items()})
        headers.update(self._headers)
        # As it was given: decoded, `%2F` in a path would be a slash.
        path, mark, query = self._url.raw_path.partition(b"?")
        url = self._url.copy_with(raw_path=path.rstrip(b"/") + wire_request.path.encode() + mark + query)
        return client.build_request("POST", url, headers=headers, content=wire_request.body)

    async def _refusal(self, exchange: HttpExchange) -> ProviderError:
        # Before the format reads it: what it cuts short would hide the rest of a key.
        body = self.redaction.data(await exchange.beginning(REFUSAL_BYTES_MAX))
        if 300 <= exchange.status < 400:
            return ProviderError(
                f"{exchange.host} redirects to another address ({exchange.status}), which is not followed; "
                "correct the base URL",
                kind="invalid_request",
                status=exchange.status,
            )
        error = self._format.failure(exchange.status, exchange.headers, body)
        if exchange.status in (404, 405) and b'"error"' not in body:  # Not the API's own words, such as on a model.
            error.args = (f"{error}; is the base URL right?",)
        error.retry_after_s = retry_after_s(exchange.headers)
        return error

    async def _whole_answer(self, exchange: HttpExchange) -> ModelResponse:
        _require_type(exchange, "application/json")
        body = self.redaction.data(await exchange.body())
        return self.redaction.value(self._format.answer(body))

    async def _streamed(self, exchange: HttpExchange) -> AsyncGenerator[StreamItem, None]:
        reader = self._format.reader()
        pieces = RedactedStream(self.redaction)
        events = EventStreamReader(
            event_characters_max=self._limits.event_characters_max, events_max=self._limits.events_max
        )
        ended = False
        while not (ended or reader.finished()):
            data = await exchange.piece()
            ended = data is None
            for event in events.end() if data is None else events.feed(data):
                for delta in pieces.pieces(reader.read(self._clean_event(event))):
                    yield delta
                if reader.finished():
                    break
        answer = self.redaction.value(reader.answer())
        for delta in pieces.rest():
            yield delta
        await exchange.finish()
        yield answer

    def _clean_event(self, event: WireEvent) -> WireEvent:
        # What a format makes of an event it may cut short, and so hide the rest of a key.
        return self.redaction.value(event)


class _SecretHeaders(httpx.Auth):
    """Adds what must not be seen at the last moment, so that no object of ours that may be shown holds it."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers.update(self._headers)
        yield request


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or content_type.endswith("+json")


def _require_type(exchange: HttpExchange, wanted: str) -> None:
    """Refuse a page that a server on the way has answered with; a host that names no type is believed."""
    found = exchange.content_type
    if found in ("", wanted) or (wanted == "application/json" and _is_json(found)):
        return
    raise ProviderError(
        f"{exchange.host} answered with {found[:80]} instead of {wanted}; is the base URL right?",
        kind="malformed",
        status=exchange.status,
        retryable=True,
    )
