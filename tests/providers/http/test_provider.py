"""Providers over HTTP against a server of our own: answers, streams, every way to fail, and what is left behind."""

import asyncio
import contextlib
import gc
import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from refold import ConfigError, ModelResponse, ProviderError, TextDelta, say
from refold.providers import HttpLimits, HttpProvider, HttpTimeouts, Secret
from refold.providers.http.client import IDLE_S
from tests.providers.letter_format import END, KEY, REQUEST, LetterProvider, Stream, piece, streamed
from tests.providers.loopback import PATIENCE_S, End, Loopback, Step, answer, chunk, event_stream, json_answer

ROOT = Path(__file__).resolve().parents[3]

SOON = 0.05
"""A time limit that is met only because the server does nothing, however long it takes."""


async def failing(provider: HttpProvider, *, stream: bool = False) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await (streamed(provider) if stream else provider.complete(REQUEST))
    error = caught.value
    # Nothing leads to the library's exceptions, which hold the request with its key.
    assert (error.__cause__, error.__context__) == (None, None)
    return error


@pytest.fixture
async def closed_port() -> str:
    async with Loopback() as server:
        return server.url


# --- What is sent ---


async def test_a_request_goes_out_as_the_format_says_with_the_key_and_our_name() -> None:
    async with Loopback([json_answer({"text": "hi"})]) as server, LetterProvider(server.url + "/v1/") as provider:
        assert await provider.complete(REQUEST) == say("hi")
        (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/letters")
    assert request.json() == {"stream": False, "text": "hello"}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["letter-version"] == "1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["user-agent"].startswith("refold/")


async def test_own_headers_and_the_base_urls_query_go_with_each_request() -> None:
    headers: dict[str, str | Secret] = {"X-Team": "blue", "Gateway-Key": Secret("gw-1234567890"), "User-Agent": "mine"}
    async with Loopback([event_stream(piece(text="a") + END)]) as server:
        async with LetterProvider(server.url + "/v1?api-version=7", key=None, headers=headers) as provider:
            await streamed(provider)
        (request,) = server.requests
    assert request.path == "/v1/letters?api-version=7"
    assert "authorization" not in request.headers
    assert [request.headers[name] for name in ("x-team", "gateway-key", "user-agent")] == [
        "blue",
        "gw-1234567890",
        "mine",
    ]
    assert request.headers["accept"] == "text/event-stream"


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("", "/letters"),
        ("/", "/letters"),
        ("/v1//?x=%26", "/v1/letters?x=%26"),
        ("/team%2Fa/b c", "/team%2Fa/b%20c/letters"),
        ("/100%25/\u00fc", "/100%25/%C3%BC/letters"),
    ],
)
async def test_the_base_urls_path_is_sent_as_it_was_given(path: str, sent: str) -> None:
    async with Loopback([json_answer({"text": "a"})]) as server, LetterProvider(server.url + path) as provider:
        await provider.complete(REQUEST)
        assert server.requests[0].path == sent


@pytest.mark.parametrize(
    ("base_url", "reason"),
    [
        ("http://api.example.com", "unencrypted"),
        ("http://10.0.0.7:8000/v1", "unencrypted"),
        ("https://user:hunter2@example.com", "user name or password"),
        ("https://user:hunter2/@example.com", "user name or password"),
        ("user:hunter2@example.com", "user name or password"),
        ("https://example.com\x00:hunter2@", "user name or password"),
        ("ftp://example.com", "like https://host/path"),
        ("example.com/v1", "like https://host/path"),
        ("example.com/v1?key=hunter2", "like https://host/path"),
        ("ftp://example.com#hunter2", "like https://host/path"),
        ("https://example.com/#part", "behind #"),
        ("https://example.com:99999", "port 99999"),
        (b"https://example.com", "not bytes"),
        ("http://[::1", "cannot be read"),
    ],
)
def test_a_base_url_that_cannot_work_is_refused(base_url: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        LetterProvider(base_url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "base_url", ["http://localhost:1", "http://127.0.0.1", "http://[::1]:1", "https://example.com/v1"]
)
def test_a_base_url_on_this_machine_or_encrypted_is_accepted(base_url: str) -> None:
    LetterProvider(base_url)


def test_clear_text_to_another_host_can_be_allowed() -> None:
    LetterProvider("http://10.0.0.7:8000/v1", allow_http=True)


@pytest.mark.parametrize(
    "headers", [{"a b": "x"}, {"": "x"}, {"x-long": "line\nnext"}, {"x-key": "schlüssel"}, {"x": 1}]
)
def test_a_header_that_cannot_be_sent_is_refused_without_showing_it(headers: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        LetterProvider("https://example.com", headers=headers)
    assert "next" not in str(caught.value)
    assert "schl" not in str(caught.value)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="silence_s"):
        HttpTimeouts(silence_s=0)
    with pytest.raises(ConfigError, match="total_s"):
        HttpTimeouts(total_s=float("nan"))
    with pytest.raises(ConfigError, match="events_max"):
        HttpLimits(events_max=0)
    with pytest.raises(ConfigError, match="no option 'retries'"):
        LetterProvider("https://example.com", retries=3)  # type: ignore[call-arg]
    for option in ("timeouts", "limits", "headers"):
        for given in (None, 5):
            options: Any = {option: given}
            with pytest.raises(ConfigError, match=option):
                LetterProvider("https://example.com", **options)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1", "SOCKS"),
        ("ALL_PROXY", "gopher://name:hunter2@127.0.0.1:1", "ValueError"),
        ("HTTP_PROXY", "http://name:hunter2@[::1", "InvalidURL"),
        ("SSL_CERT_FILE", "/nowhere", "FileNotFoundError"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_where_it_is_trusted(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    if variable == "ALL_PROXY" and "socks" in value and importlib.util.find_spec("socksio") is not None:
        pytest.skip("SOCKS proxies can be used here")
    monkeypatch.setenv(variable, value)
    LetterProvider("https://example.com")
    with pytest.raises(ConfigError, match=reason) as caught:
        LetterProvider("https://example.com", trust_env=True)
    report = "".join(traceback.TracebackException.from_exception(caught.value).format())
    assert "hunter2" not in report


async def test_the_environment_sends_nothing_elsewhere_unless_it_is_trusted(
    monkeypatch: pytest.MonkeyPatch, closed_port: str
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", closed_port)
    monkeypatch.setenv("http_proxy", closed_port)
    async with Loopback([json_answer({"text": "a"})]) as server:
        async with LetterProvider(server.url) as provider:
            assert await provider.complete(REQUEST) == say("a")
        async with LetterProvider(server.url, trust_env=True) as provider:
            assert (await failing(provider)).kind == "connection"
        assert len(server.requests) == 1


async def test_a_host_cannot_leave_cookies_with_us() -> None:
    script = [json_answer({"text": "a"}, headers={"set-cookie": "id=7; Path=/"}), json_answer({"text": "b"})]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        await provider.complete(REQUEST)
        await provider.complete(REQUEST)
        assert [request.connection for request in server.requests] == [1, 1]
        assert "cookie" not in server.requests[1].headers


# --- Streams ---


async def test_pieces_are_shown_as_they_arrive() -> None:
    go = asyncio.Event()
    script = [event_stream(piece(text="do"), go, piece(text="ve"), b": ping\n\n", END)]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        stream = Stream(provider)
        await stream.until(1)
        assert stream.items == [TextDelta("do")]
        go.set()
        assert await stream.task == [TextDelta("do"), TextDelta("ve"), say("dove")]
        assert server.requests[0].json()["stream"] is True


async def test_reading_ends_with_the_answer_though_the_host_keeps_the_stream_open() -> None:
    async with (
        Loopback([event_stream(piece(text="a") + END, End.STALL)]) as server,
        LetterProvider(server.url) as provider,
    ):
        assert (await streamed(provider))[-1] == say("a")
        await server.until(lambda: server.left == 1)


async def test_a_host_that_streams_nothing_gives_its_whole_answer() -> None:
    async with Loopback([json_answer({"text": "whole"})]) as server, LetterProvider(server.url) as provider:
        assert await streamed(provider) == [say("whole")]


async def test_a_stream_without_a_content_type_is_a_stream() -> None:
    script = [answer(piece(text="a") + END)]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        assert (await streamed(provider))[-1] == say("a")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_page_of_somebody_on_the_way_is_no_answer(stream: bool) -> None:
    script = [answer(b"<html>Sign in</html>", headers={"content-type": "text/html; charset=utf-8"})]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        error = await failing(provider, stream=stream)
    assert (error.kind, error.retryable, error.status) == ("malformed", True, 200)
    assert "text/html" in str(error)


async def test_an_error_inside_a_stream_keeps_its_kind_and_what_came_before_was_shown() -> None:
    script = [event_stream(piece(text="a"), b'event: error\ndata: {"error": "too busy"}\n\n')]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        stream = Stream(provider)
        with pytest.raises(ProviderError, match="too busy") as caught:
            await stream.task
    assert (caught.value.kind, caught.value.retryable) == ("overloaded", True)
    assert stream.items == [TextDelta("a")]


# --- Failures on the way ---


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refused_connection(closed_port: str, stream: bool) -> None:
    async with LetterProvider(closed_port) as provider:
        error = await failing(provider, stream=stream)
    assert (error.kind, error.retryable, error.status) == ("connection", True, None)
    assert str(error) == f"the connection to {closed_port.removeprefix('http://')} failed: Connection refused"


async def test_a_host_that_has_no_address() -> None:
    async with LetterProvider("https://nowhere.invalid") as provider:
        error = await failing(provider)
    assert (error.kind, error.retryable) == ("connection", True)
    assert "nowhere.invalid" in str(error)


async def test_a_host_that_does_not_speak_tls() -> None:
    async with (
        Loopback(greeting=b"HTTP/1.1 400 Plain\r\n\r\n") as server,
        LetterProvider(server.url.replace("http:", "https:")) as provider,
    ):
        error = await failing(provider)
    assert (error.kind, error.retryable) == ("connection", True)


CUTS: list[list[Step]] = [
    [End.CLOSE],
    [End.RESET],
    [b"HTTP/1.1 200 OK\r\ncontent-le", End.CLOSE],
    [b"nonsense\r\n\r\n", End.CLOSE],
    answer(b'{"text":', End.CLOSE, length=100),
    answer(b'{"text":', End.RESET, length=100, headers={"content-type": "application/json"}),
    answer(b'{"te', End.CLOSE, b'xt": "a"}', chunked=True),
    [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"6\r\n{", End.CLOSE],
    [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", End.CLOSE],
]


@pytest.mark.parametrize("steps", CUTS)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_connection_that_ends_too_soon(steps: list[Step], stream: bool) -> None:
    async with Loopback([steps]) as server, LetterProvider(server.url) as provider:
        error = await failing(provider, stream=stream)
        assert (error.kind, error.retryable) == ("connection", True)


async def test_a_stream_that_is_cut_inside_a_chunk_gives_no_answer() -> None:
    go = asyncio.Event()
    whole = chunk(piece(text="b") + END)
    script = [[*event_stream(piece(text="a"), go)[:-1], whole[:-9], End.CLOSE]]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        stream = Stream(provider)
        await stream.until(1)
        go.set()
        with pytest.raises(ProviderError) as caught:
            await stream.task
    assert (caught.value.kind, caught.value.retryable) == ("connection", True)
    assert not any(isinstance(item, ModelResponse) for item in stream.items)


async def test_a_stream_that_ends_in_order_without_an_answer_is_malformed() -> None:
    async with Loopback([event_stream(piece(text="a"))]) as server, LetterProvider(server.url) as provider:
        error = await failing(provider, stream=True)
    assert (error.kind, error.retryable) == ("malformed", True)


@pytest.mark.parametrize("body", [b"", b"[", b'{"text": "\xff"}'])
async def test_a_body_that_cannot_be_read(body: bytes) -> None:
    async with Loopback([answer(body)]) as server, LetterProvider(server.url) as provider:
        assert (await failing(provider)).kind == "malformed"


async def test_bytes_in_a_stream_that_are_no_utf_8() -> None:
    async with (
        Loopback([event_stream(b'data: {"text": "\xff"}\n\n')]) as server,
        LetterProvider(server.url) as provider,
    ):
        error = await failing(provider, stream=True)
    assert (error.kind, error.retryable) == ("malformed", True)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_compressed_answer_is_refused_however_small(stream: bool) -> None:
    headers = {"content-encoding": "gzip", "content-type": "text/event-stream" if stream else "application/json"}
    async with Loopback([answer(b"\x1f\x8b...", headers=headers)]) as server, LetterProvider(server.url) as provider:
        error = await failing(provider, stream=stream)
    assert error.kind == "malformed"
    assert "gzip" in str(error)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"), [(401, "auth", False), (429, "rate_limit", True), (529, "overloaded", True)]
)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_format_says_what_a_status_means(status: int, kind: str, retryable: bool, stream: bool) -> None:
    script = [json_answer({"why": "because"}, status=status, headers={"Retry-After": "7.5"})]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        error = await failing(provider, stream=stream)
    assert (error.kind, error.status, error.retryable, error.retry_after_s) == (kind, status, retryable, 7.5)
    assert "because" in str(error)


@pytest.mark.parametrize(
    ("refusal", "asks"),
    [
        (answer(b"404 page not found", status=404, headers={"content-type": "text/plain"}), True),
        (json_answer({"detail": "Method Not Allowed"}, status=405), True),
        (json_answer({"error": "no model letter-1"}, status=404), False),
        (answer(b"", status=500), False),
    ],
)
async def test_an_address_without_the_api_is_asked_about(refusal: list[Step], asks: bool) -> None:
    async with Loopback([refusal]) as server, LetterProvider(server.url) as provider:
        error = await failing(provider)
    assert str(error).endswith("; is the base URL right?") is asks
    assert str(error).startswith(f"status {error.status}: ")


async def test_a_refusal_whose_body_is_cut_is_still_that_refusal() -> None:
    script = [answer(b"bus", End.CLOSE, status=529, length=10)]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        error = await failing(provider)
    assert (error.kind, str(error)) == ("overloaded", "status 529: bus")


async def test_a_refusal_without_end_is_read_only_at_its_beginning() -> None:
    script = [answer(b"x" * 80_000, End.STALL, status=500, length=10**9)]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        error = await failing(provider)
        await server.until(lambda: server.left == 1)
    assert error.kind == "server"


async def test_a_redirect_is_not_followed() -> None:
    async with Loopback() as other:
        script = [answer(status=307, headers={"location": other.url + "/letters"})]
        async with Loopback(script) as server, LetterProvider(server.url) as provider:
            error = await failing(provider)
        assert other.opened == 0
    assert (error.kind, error.status, error.retryable) == ("invalid_request", 307, False)


# --- Limits ---


@pytest.mark.parametrize("stream", [True, False])
async def test_a_body_without_end_is_left(stream: bool) -> None:
    endless = [b": nothing\n\n" * 500] * 3
    script = [answer(*endless, End.STALL, chunked=True)]
    limits = HttpLimits(body_bytes_max=6000)
    async with Loopback(script) as server, LetterProvider(server.url, limits=limits) as provider:
        error = await failing(provider, stream=stream)
        await server.until(lambda: server.left == 1)
    assert (error.kind, error.retryable) == ("malformed", False)
    assert "6,000 bytes" in str(error)


async def test_a_line_without_end_is_left() -> None:
    script = [event_stream(b"data: ", *[b"x" * 400] * 3, End.STALL)]
    limits = HttpLimits(event_characters_max=1000)
    async with Loopback(script) as server, LetterProvider(server.url, limits=limits) as provider:
        error = await failing(provider, stream=True)
        await server.until(lambda: server.left == 1)
    assert (error.kind, error.retryable) == ("malformed", False)


async def test_events_without_end_are_left() -> None:
    script = [event_stream(piece(text="a") * 4, End.STALL)]
    async with Loopback(script) as server, LetterProvider(server.url, limits=HttpLimits(events_max=3)) as provider:
        error = await failing(provider, stream=True)
    assert (error.kind, error.retryable) == ("malformed", False)


@pytest.mark.parametrize(
    ("steps", "timeouts", "said"),
    [
        ([End.STALL], HttpTimeouts(first_byte_s=SOON), "no response began within 0.05 s"),
        ([End.STALL], HttpTimeouts(total_s=SOON), "not complete within 0.05 s"),
        (answer(b"{", End.STALL, length=9), HttpTimeouts(silence_s=SOON), "nothing more of the response came"),
        (answer(b"{", End.STALL, length=9), HttpTimeouts(total_s=SOON), "not complete within 0.05 s"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_host_that_is_silent_too_long(
    steps: list[Step], timeouts: HttpTimeouts, said: str, stream: bool
) -> None:
    async with Loopback([steps]) as server, LetterProvider(server.url, timeouts=timeouts) as provider:
        error = await failing(provider, stream=stream)
        assert (error.kind, error.retryable) == ("timeout", True)
        assert said in str(error)
        await server.until(lambda: server.open == 0)  # The connection was closed at once.


class Virtual(httpx.AsyncBaseTransport):
    """Answers with pieces, each after a time that passes only on the test's clock."""

    def __init__(self, pieces: list[tuple[float, bytes]]) -> None:
        self.pieces = pieces

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        for after_s, data in self.pieces:
            await asyncio.sleep(after_s)
            yield data


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose time goes at once to whatever comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def time(self) -> float:
        return self.skipped

    def _run_once(self) -> None:
        timers = [handle.when() for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self.skipped = max(self.skipped, min(timers))
        super()._run_once()  # type: ignore[misc]


def in_skipped_time(pieces: list[tuple[float, bytes]], timeouts: HttpTimeouts) -> list[Any]:
    async def main() -> list[Any]:
        async with LetterProvider("https://example.com", transport=Virtual(pieces), timeouts=timeouts) as provider:
            return await streamed(provider)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(main())


def test_comments_are_signs_of_life() -> None:
    pieces = [(90.0, b": ping\n\n")] * 10 + [(90.0, piece(text="late") + END)]
    assert in_skipped_time(pieces, HttpTimeouts(silence_s=100))[-1] == say("late")


def test_silence_and_the_whole_call_are_measured_on_the_loops_clock() -> None:
    pieces = [(90.0, b": ping\n\n")] * 100
    with pytest.raises(ProviderError, match=r"nothing more of the response came within 80"):
        in_skipped_time(pieces, HttpTimeouts(silence_s=80))
    with pytest.raises(ProviderError, match=r"not complete within 3600"):
        in_skipped_time(pieces, HttpTimeouts(silence_s=100))


async def test_a_host_that_never_pauses_meets_the_limit_of_the_whole_call() -> None:
    class Ticking(asyncio.SelectorEventLoop):
        ticks = 0.0

        def time(self) -> float:
            Ticking.ticks += 0.001
            return Ticking.ticks

    class Endless(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            async def body() -> AsyncIterator[bytes]:
                while True:
                    yield piece(text="")

            return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body())

    async def main() -> None:
        timeouts = HttpTimeouts(total_s=1)
        async with LetterProvider("https://example.com", transport=Endless(), timeouts=timeouts) as provider:
            await streamed(provider)

    def run() -> None:
        with asyncio.Runner(loop_factory=Ticking) as runner:
            runner.run(main())

    with pytest.raises(ProviderError, match="not complete within 1"):
        await asyncio.to_thread(run)


# --- Connections ---


async def test_calls_share_a_connection_streamed_or_not() -> None:
    script = [json_answer({"text": "a"}), event_stream(piece(text="b"), END), json_answer({"text": "c"}, status=500)]
    async with Loopback([*script, json_answer({"text": "d"})]) as server, LetterProvider(server.url) as provider:
        await provider.complete(REQUEST)
        await streamed(provider)
        await failing(provider)
        await provider.complete(REQUEST)
        assert [request.connection for request in server.requests] == [1, 1, 1, 1]
        await provider.aclose()
        await server.until(lambda: server.open == 0)


async def test_a_closed_provider_opens_new_connections_for_the_next_call() -> None:
    async with Loopback([json_answer({"text": "a"})] * 2) as server:
        provider = LetterProvider(server.url)
        await provider.complete(REQUEST)
        await provider.aclose()
        await provider.aclose()
        assert await provider.complete(REQUEST) == say("a")
        assert server.opened == 2
        await provider.aclose()


def test_a_connection_that_is_not_needed_for_long_is_closed() -> None:
    no_timeouts = HttpTimeouts(connect_s=None, first_byte_s=None, silence_s=None, total_s=None)

    async def main() -> None:
        async with Loopback([json_answer({"text": "a"})] * 2) as server:
            provider = LetterProvider(server.url, timeouts=no_timeouts)
            for _ in range(2):
                await provider.complete(REQUEST)
                await asyncio.sleep(IDLE_S - 1)
                assert (server.opened, server.open) == (1, 1)
            for _ in range(20):  # Until the server has noticed, too.
                await asyncio.sleep(1)
            assert server.open == 0

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize(
    "steps",
    [
        [End.STALL],
        answer(b"{", End.STALL, length=9),
        event_stream(piece(text="a"), End.STALL),
        answer(b"no", End.STALL, status=500, length=9),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_call_closes_its_connection(steps: list[Step], stream: bool) -> None:
    async with Loopback([steps, json_answer({"text": "next"})]) as server, LetterProvider(server.url) as provider:
        call: asyncio.Task[Any] = asyncio.create_task(streamed(provider) if stream else provider.complete(REQUEST))
        await server.until(lambda: len(server.requests) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.until(lambda: server.left == 1)
        assert await provider.complete(REQUEST) == say("next")
        assert server.requests[1].connection == 2


async def test_a_call_that_is_cancelled_at_any_point_closes_its_connection() -> None:
    async with Loopback([[End.STALL]] * 60) as server, LetterProvider(server.url) as provider:
        for turns in range(60):
            call = asyncio.create_task(provider.complete(REQUEST))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert 0 < len(server.requests) < 60
        await server.until(lambda: server.open == 0)


@pytest.mark.parametrize("patience_s", [0.2, None])
async def test_a_call_that_ends_while_encryption_is_agreed_on_closes_its_connection(patience_s: float | None) -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        begun.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        left.set()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        gc.disable()  # It would close what nobody holds any more, some day.
        try:
            async with LetterProvider(url, timeouts=HttpTimeouts(first_byte_s=patience_s)) as provider:
                call = asyncio.create_task(provider.complete(REQUEST))
                await asyncio.wait_for(begun.wait(), PATIENCE_S)
                if patience_s is None:
                    call.cancel()
                with pytest.raises(asyncio.CancelledError if patience_s is None else ProviderError):
                    await call
            await asyncio.wait_for(left.wait(), PATIENCE_S)
        finally:
            gc.enable()


async def test_a_stream_that_nobody_reads_on_closes_its_connection_and_leaves_nothing_to_do() -> None:
    async with Loopback([event_stream(piece(text="a"), End.STALL)]) as server, LetterProvider(server.url) as provider:
        stream = provider.stream(REQUEST)
        assert await anext(stream) == TextDelta("a")
        before = asyncio.all_tasks()
        await stream.aclose()
        gc.collect()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() - before == set()
        await server.until(lambda: server.left == 1)


async def test_many_calls_at_once_are_each_answered() -> None:
    go = asyncio.Event()
    script: list[list[Step]] = [[go, *json_answer({"text": "a"})] for _ in range(30)]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        calls = [asyncio.create_task(provider.complete(REQUEST)) for _ in script]
        await server.until(lambda: len(server.requests) == 30)
        go.set()
        assert await asyncio.gather(*calls) == [say("a")] * 30


def test_one_provider_serves_one_loop_after_the_other() -> None:
    provider = LetterProvider("https://example.com", transport=Virtual([(0, piece(text="a") + END)]))
    assert [asyncio.run(streamed(provider))[-1] for _ in range(2)] == [say("a")] * 2


PROGRAM = """
import asyncio
from tests.providers.letter_format import REQUEST, LetterProvider, piece, END
from tests.providers.loopback import End, Loopback, event_stream

async def read(provider):
    return [item async for item in provider.stream(REQUEST)]

async def never_closed(server, provider):
    return

async def closed(server, provider):
    await provider.aclose()

async def stream_left_open(server, provider):
    return await anext(provider.stream(REQUEST))

async def call_under_way(server, provider):
    server.script[6] = [End.STALL]
    call = asyncio.create_task(provider.complete(REQUEST))
    await server.until(lambda: len(server.requests) == 7)
    return call

async def main(end):
    async with Loopback([event_stream(piece(text="b") + END)] * 8) as server:
        kept = LetterProvider(server.url)
        await asyncio.gather(*(read(kept) for _ in range(5)))
        dropped = LetterProvider(server.url)
        await read(dropped)
        del dropped
        left = await end(server, kept)

for end in never_closed, closed, stream_left_open, call_under_way:
    asyncio.run(main(end))
    print(end.__name__, flush=True)
"""


def test_a_program_that_ends_leaves_no_warning_whatever_it_has_left_open() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-X", "dev", "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        cwd="/",
    )
    lines = [line for line in done.stderr.splitlines() if "took" not in line]  # A slow machine is no fault of ours.
    assert (done.stdout.split(), lines) == (["never_closed", "closed", "stream_left_open", "call_under_way"], [])


def test_nothing_of_http_is_loaded_before_it_is_used() -> None:
    program = "import sys, refold.providers; from refold import ScriptedProvider; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
