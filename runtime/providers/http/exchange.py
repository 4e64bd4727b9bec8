"""One HTTP request and its response, with limits on time and size.

The rules: every failure on the way is a ProviderError that names the host and the failure; it never carries an
exception of the HTTP library, since those hold the request with its key; and however a call ends, its connection is
either whole and kept for the next call, or closed. `retry_after_s` reads how long a provider asks us to wait:
`Retry-After` is seconds or a date (RFC 9110, section 10.2.3), and a date is compared with the response's own `Date`, so
that neither this machine's clock nor its difference from the server's matters.
"""

import asyncio
import logging
import math
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar, cast

import httpx

from refold.events.core.cleaning import error_words
from refold.events.core.errors import ProviderError
from refold.events.model.configuration import RETRY_AFTER_S_MAX
from refold.events.secrets.redaction import Redaction
from refold.providers.http.settings import HttpLimits, HttpTimeouts

T = TypeVar("T")

log = logging.getLogger("refold.provider")

LEFTOVER_S = 0.05
"""How long to wait for the formal end of a stream whose answer is complete; with it, the connection can be kept."""

LEFTOVER_PIECES_MAX = 64
"""Pieces of a response that are read for nothing but its end."""


class HttpExchange:
    """A request, without the key, and its response, which is read piece by piece as the host sends it.

    Its `headers`, by lower-case name, are without secrets; a body that repeats one still has it.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        request: httpx.Request,
        authentication: httpx.Auth | None,
        timeouts: HttpTimeouts,
        limits: HttpLimits,
        redaction: Redaction,
    ) -> None:
        self._redaction = redaction
        self._client = client
        self._request = request
        self._authentication = authentication
        self._timeouts = timeouts
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + (math.inf if timeouts.total_s is None else timeouts.total_s)
        self.headers: Mapping[str, str] = {}
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._over = False
        self._received = 0

    @property
    def host(self) -> str:
        return self._request.url.netloc.decode("ascii")

    @property
    def status(self) -> int:
        assert self._response is not None
        return self._response.status_code

    @property
    def content_type(self) -> str:
        """Media type of the response, without parameters; empty where it names none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def open(self) -> None:
        """Send the request and wait for the head of the response."""
        self._response = response = await self._step(self._send, self._timeouts.first_byte_s, "no response began")
        self.headers = {name.lower(): self._redaction.text(value) for name, value in response.headers.items()}
        # As it came: nothing is asked to be compressed, and what inflates without end has no way in.
        # A transport for tests may give a response whose body has been read.
        self._pieces = _read_already(response.content) if response.is_stream_consumed else response.aiter_raw()

    async def _send(self) -> httpx.Response:
        handshake = _Handshake()
        if self._request.url.scheme == "https":
            self._request.extensions["trace"] = handshake.trace
        try:
            return await self._client.send(
                self._request, auth=self._authentication, stream=True, follow_redirects=False
            )
        except BaseException:
            await handshake.abandon()
            raise

    async def piece(self) -> bytes | None:
        """Return the next bytes of the body as they come; None = it has ended."""
        if self._over:
            return None
        pieces = self._pieces
        assert pieces is not None
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise ProviderError(
                f"{self.host} answered compressed ({coding:.40}), which was not asked for",
                kind="malformed",
                status=self.status,
                retryable=True,
            )
        data = await self._step(
            lambda: anext(pieces, None), self._timeouts.silence_s, "nothing more of the response came"
        )
        if data is None:
            self._over = True
            return None
        self._received += len(data)
        if self._received > self._limits.body_bytes_max:
            raise ProviderError(
                f"{self.host} answered with more than {self._limits.body_bytes_max:,} bytes",
                kind="malformed",
                status=self.status,
            )
        return data

    async def body(self) -> bytes:
        pieces: list[bytes] = []
        while (data := await self.piece()) is not None:
            pieces.append(data)
        return b"".join(pieces)

    async def beginning(self, size: int) -> bytes:
        """Return at most `size` bytes of the body; what cannot be read of it is left out."""
        found = b""
        try:
            while len(found) < size and (data := await self.piece()) is not None:
                found += data
        except ProviderError as error:
            log.debug("the body of a refusal was not read to its end: %s", error)
        return found[:size]

    async def finish(self) -> None:
        """Read the formal end of a response of which all that matters has come, if it is there already."""
        if self._over or self._pieces is None:
            return
        try:
            async with asyncio.timeout(LEFTOVER_S):
                for _ in range(LEFTOVER_PIECES_MAX):
                    if await anext(self._pieces, None) is None:
                        self._over = True
                        return
        except Exception as error:  # noqa: BLE001 - a transport may be the user's own; the error may hold the key
            log.debug("the connection to %s is not kept: %s", self.host, type(error).__name__)

    async def close(self) -> None:
        """Close the connection at once, unless the response has ended and it can be kept."""
        if self._response is None:
            return
        try:
            await self._response.aclose()
            if not self._over and self._pieces is not None:
                # The generators of the HTTP library lie in each other and do not close each other. Read on, on the
                # closed connection, they all end now, instead of in tasks of their own when they are collected.
                for _ in range(LEFTOVER_PIECES_MAX):
                    if await anext(self._pieces, None) is None:
                        break
        except Exception as error:  # noqa: BLE001 - a transport may be the user's own; the error may hold the key
            log.debug("a connection to %s was closed: %s", self.host, type(error).__name__)
        self._over = True

    async def _step(self, step: Callable[[], Awaitable[T]], patience_s: float | None, what: str) -> T:
        now = self._loop.time()
        step_ends_at = now + (math.inf if patience_s is None else patience_s)
        ends_at = min(step_ends_at, self._ends_at)
        in_time = f"{what} within {patience_s} s" if step_ends_at <= self._ends_at else self._not_complete()
        if self._ends_at <= now:  # A body that is always there already would never meet its timeout.
            raise self._too_late(self._not_complete())
        try:
            async with asyncio.timeout_at(None if ends_at == math.inf else ends_at):
                return await step()
        except httpx.ConnectTimeout:
            failure = self._too_late(f"no connection within {self._timeouts.connect_s} s")
        except (TimeoutError, httpx.TimeoutException):
            failure = self._too_late(in_time)
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            failure = ProviderError(
                f"the connection to {self.host} failed: {_reason(error)}", kind="connection", retryable=True
            )
        except Exception as error:  # noqa: BLE001 - a transport may be the user's own; the error may hold the key
            failure = ProviderError(f"the transport to {self.host} failed: {error_words(error)}")
        raise failure  # Out here, so that it does not lead to the library's exception.

    def _not_complete(self) -> str:
        return f"the answer was not complete within {self._timeouts.total_s} s"

    def _too_late(self, what: str) -> ProviderError:
        return ProviderError(f"{self.host} took too long: {what}", kind="timeout", retryable=True)


class _Handshake:
    """Knows the connection on which encryption is being agreed on.

    httpcore 1.0 leaves it open where the call is cancelled, or its time is up, before that is done: its `start_tls`
    closes it after an `Exception` only.
    """

    def __init__(self) -> None:
        self._stream: object = None

    async def trace(self, event: str, told: Mapping[str, object]) -> None:
        """Take what httpcore tells about a request under way."""
        if event.endswith("connect_tcp.complete"):
            self._stream = told.get("return_value")
        elif event.endswith("start_tls.complete"):
            self._stream = None

    async def abandon(self) -> None:
        """Close the connection, if there is one and it is not encrypted yet."""
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


async def _read_already(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


def _reason(error: BaseException) -> str:
    """Return what the system says, such as "Connection refused", or else the library, or the name of its exception."""
    cause: BaseException | None = error
    # A ConnectError of httpx has one of httpcore as its cause, that has anyio's OSError as its context, and what the
    # system said is the cause of that. No other context counts: it may be what our caller is busy with.
    while cause is not None and _is_vague(cause):
        cause = cause.__cause__ or (cause.__context__ if type(cause).__module__.startswith("httpcore") else None)
        if isinstance(cause, BaseExceptionGroup):  # One for each address of the host.
            cause = cast("BaseExceptionGroup[BaseException]", cause).exceptions[0]
    number = cause.errno if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) else None
    if number is not None and number > 0:  # Those of names that have no address are below.
        return os.strerror(number)
    return str(error) or type(error).__name__


def _is_vague(error: BaseException) -> bool:
    return type(error).__name__ == "ConnectError" or (isinstance(error, OSError) and error.errno is None)


_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", re.ASCII)


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the pause that a response asks for, in seconds from 0 to `RETRY_AFTER_S_MAX`; None = none, or no sense.

    `retry-after-ms`, which some providers send besides, is more exact and comes first.

    Args:
        headers: of the response, by lower-case name.
        now: what a date is compared with where the response has no `Date`; with a time zone.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return _bounded(milliseconds / 1000)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return _bounded(seconds)
    until = _date(text)
    since = _date(headers.get("date")) or now
    if until is None or since is None:
        return None
    return _bounded((until - since).total_seconds())


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), RETRY_AFTER_S_MAX)


def _number(text: str | None) -> float | None:
    stripped = text.strip() if text is not None else ""
    return float(stripped) if _NUMBER.fullmatch(stripped) else None


def _date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        date = parsedate_to_datetime(text.strip())
    except (ValueError, TypeError, IndexError, OverflowError):  # Junk of all kinds; the parser is meant for e-mail.
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
