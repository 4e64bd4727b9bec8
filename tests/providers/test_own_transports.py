"""Transports that users bring: answers that are there already, and exceptions that hold the key."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator

import httpx
import pytest

from refold import AgentConfig, AgentRuntime, Failed, ProviderError, RetryPolicy, say
from tests.providers.letter_format import END, KEY, REQUEST, LetterProvider, piece, streamed


class Raising(httpx.AsyncBaseTransport):
    """Fails with all that it knows of the request, at once or in the middle of the body, and again when closed."""

    def __init__(self, error: type[Exception], *, late: bool) -> None:
        self._error = error
        self._late = late

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self._late:
            raise self._error(f"cannot send {dict(request.headers)} to {request.url}")
        return httpx.Response(200, stream=RaisingBody(self._error, request))


class RaisingBody(httpx.AsyncByteStream):
    def __init__(self, error: type[Exception], request: httpx.Request) -> None:
        self._error = error
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield piece(text="a")
        raise self._error(f"cannot read on for {dict(self._request.headers)}")

    async def aclose(self) -> None:
        raise self._error(f"cannot close {dict(self._request.headers)}")


async def test_a_response_that_has_been_read_already_is_an_answer_like_any_other() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers["accept"] == "text/event-stream":
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=piece(text="a") + END)
        return httpx.Response(200, json={"text": "a"})

    async with LetterProvider("https://example.com", transport=httpx.MockTransport(answer)) as provider:
        assert await provider.complete(REQUEST) == say("a")
        assert (await streamed(provider))[-1] == say("a")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, httpx.ConnectError, OSError])
async def test_what_a_transport_raises_shows_no_key_anywhere(
    error: type[Exception], streaming: bool, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = AgentConfig(model="m", streaming=streaming, retry=RetryPolicy(attempts_max=1))
    transport = Raising(error, late=late)
    async with (
        LetterProvider("https://example.com", transport=transport) as provider,
        AgentRuntime(config, provider=provider) as runtime,
    ):
        session = await runtime.session("a")
        result = await session.send("go")
        recorded = repr([event async for event in session.events()])
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.kind == "provider"
    assert ("cannot read on" if late else "cannot send") in result.outcome.error.message
    assert KEY not in recorded
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "to [::1]:1"), "Connection refused"),
        (ExceptionGroup("two addresses", [OSError(errno.ENETUNREACH, "v6"), OSError("v4")]), "Network is unreachable"),
        (socket.gaierror(socket.EAI_NONAME, "unknown name"), "no connection"),
        (ssl.SSLError(1, "certificate"), "no connection"),
        (None, "no connection"),
    ],
)
async def test_a_connection_that_fails_says_why_as_the_system_does(cause: Exception | None, said: str) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no connection") from cause

    async with LetterProvider("https://example.com", transport=httpx.MockTransport(fail)) as provider:
        try:
            raise FileNotFoundError(errno.ENOENT, "what the caller is busy with")
        except FileNotFoundError:
            with pytest.raises(ProviderError) as caught:
                await provider.complete(REQUEST)
    assert str(caught.value) == f"the connection to example.com failed: {said}"


async def test_a_key_in_the_base_urls_query_is_shown_no_more_than_any_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    sent: list[httpx.URL] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        sent.append(request.url)
        return httpx.Response(401, json={"error": request.url.params["api_key"], "at": request.url.query.decode()})

    url = "https://example.com/v1?version=1.0-preview&api_key=a%2Bkey-of%3Fa-query"
    async with LetterProvider(url, transport=httpx.MockTransport(refuse)) as provider:
        with pytest.raises(ProviderError, match="redacted") as caught:
            await provider.complete(REQUEST)
    assert sent[0].params["api_key"] == "a+key-of?a-query"
    for shown in (str(caught.value), caplog.text):
        assert "key-of" not in shown
    assert "version=1.0-preview" in caplog.text


async def test_a_function_makes_a_transport_for_each_connection() -> None:
    made: list[httpx.MockTransport] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        return httpx.Response(200, json={"text": "a"})

    def make() -> httpx.AsyncBaseTransport:
        made.append(httpx.MockTransport(answer))
        return made[-1]

    async with LetterProvider("https://example.com", transport=make) as provider:
        assert await provider.complete(REQUEST) == say("a")
        assert await provider.complete(REQUEST) == say("a")
        assert len(made) == 1  # A connection is kept for the next call.
        answers = await asyncio.gather(*(provider.complete(REQUEST) for _ in range(3)))
        assert answers == [say("a")] * 3
        assert len(made) == 3
