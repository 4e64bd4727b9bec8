"""Providers over HTTP against a server of our own: answers, streams, every way to fail, and what is left behind."""

import asyncio
import contextlib
import gc
import importlib.util
import os
import ssl
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
from refold.providers.http.client import IDLE_S, encryption
from tests.providers.failures import CALL_IDS, CALLS, FAILURES, Failure
from tests.providers.letter_format import END, KEY, REQUEST, LetterProvider, Stream, piece, served, streamed
from tests.providers.loopback import PATIENCE_S, End, Loopback, Step, answer, chunk, event_stream, json_answer

ROOT = Path(__file__).resolve().parents[3]


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


@pytest.mark.parametrize(("needed", "trust_env"), [(True, False), (True, True), (False, False)])
def test_certificates_and_the_names_in_them_are_always_checked(needed: bool, trust_env: bool) -> None:
    context = encryption(needed=needed, trust_env=trust_env)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert bool(context.cert_store_stats()["x509_ca"]) == needed


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
    wrong: list[tuple[str, Any]] = [("retries", 3)]
    wrong += [(option, given) for option in ("timeouts", "limits", "headers") for given in (None, 5)]
    for option, given in wrong:
        with pytest.raises(ConfigError, match=option):
            LetterProvider("https://example.com", **{option: given})


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
    async with served(
        json_answer({"text": "a"}, headers={"set-cookie": "id=7; Path=/"}), json_answer({"text": "b"})
    ) as (server, provider):
        await provider.complete(REQUEST)
        await provider.complete(REQUEST)
        assert [request.connection for request in server.requests] == [1, 1]
        assert "cookie" not in server.requests[1].headers


# --- Streams ---


async def test_pieces_are_shown_as_they_arrive() -> None:
    go = asyncio.Event()
    async with served(event_stream(piece(text="do"), go, piece(text="ve"), b": ping\n\n", END)) as (server, provider):
        stream = Stream(provider)
        await stream.until(1)
        assert stream.items == [TextDelta("do")]
        go.set()
        assert await stream.task == [TextDelta("do"), TextDelta("ve"), say("dove")]
        assert server.requests[0].json()["stream"] is True


async def test_reading_ends_with_the_answer_though_the_host_keeps_the_stream_open() -> None:
    async with served(event_stream(piece(text="a") + END, End.STALL)) as (server, provider):
        assert (await streamed(provider))[-1] == say("a")
        await server.until(lambda: server.left == 1)


async def test_a_host_may_give_its_whole_answer_or_a_stream_without_a_content_type() -> None:
    async with served(json_answer({"text": "whole"}), answer(piece(text="a") + END)) as (_, provider):
        assert await streamed(provider) == [say("whole")]
        assert (await streamed(provider))[-1] == say("a")


async def test_what_came_before_an_error_inside_a_stream_was_shown() -> None:
    async with served(FAILURES["an error in a stream"].steps) as (_, provider):
        stream = Stream(provider)
        with pytest.raises(ProviderError, match="too busy"):
            await stream.task
    assert stream.items == [TextDelta("a")]


# --- Failures on the way ---


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refused_connection(closed_port: str, stream: bool) -> None:
    async with LetterProvider(closed_port) as provider:
        error = await failing(provider, stream=stream)
    assert (error.kind, error.retryable, error.status) == ("connection", True, None)
    assert str(error) == f"the connection to {closed_port.removeprefix('http://')} failed: Connection refused"


async def test_a_host_that_has_no_address_or_does_not_speak_tls() -> None:
    async with Loopback(greeting=b"HTTP/1.1 400 Plain\r\n\r\n") as server:
        for url, says in (
            ("https://nowhere.invalid", "nowhere.invalid"),
            (server.url.replace("http:", "https:"), "127.0.0.1"),
        ):
            async with LetterProvider(url) as provider:
                error = await failing(provider)
            assert (error.kind, error.retryable) == ("connection", True)
            assert says in str(error)


@pytest.mark.parametrize(("name", "failure", "stream"), CALLS, ids=CALL_IDS)
async def test_a_failure_is_classified_and_its_connection_left(name: str, failure: Failure, stream: bool) -> None:
    async with served(failure.steps, **failure.settings) as (server, provider):
        error = await failing(provider, stream=stream)
        if any(step in (End.STALL, End.LEAP) for step in failure.steps):
            await server.until(lambda: server.open == 0)
    assert (error.kind, error.retryable, error.status) == (failure.kind, failure.retryable, failure.status)
    assert failure.says in str(error)
    assert error.retry_after_s == (7.5 if "because" in str(error) else None)


async def test_a_stream_that_is_cut_inside_a_chunk_gives_no_answer() -> None:
    go = asyncio.Event()
    whole = chunk(piece(text="b") + END)
    script = [[*event_stream(piece(text="a"), go)[:-1], whole[:-9], End.CLOSE]]
    async with served(*script) as (_, provider):
        stream = Stream(provider)
        await stream.until(1)
        go.set()
        with pytest.raises(ProviderError) as caught:
            await stream.task
    assert (caught.value.kind, caught.value.retryable) == ("connection", True)
    assert not any(isinstance(item, ModelResponse) for item in stream.items)


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
    async with served(refusal) as (_, provider):
        error = await failing(provider)
    assert str(error).endswith("; is the base URL right?") is asks
    assert str(error).startswith(f"status {error.status}: ")


async def test_a_redirect_is_not_followed() -> None:
    async with Loopback() as other:
        async with served(answer(status=307, headers={"location": other.url + "/letters"})) as (_, provider):
            await failing(provider)
        assert other.opened == 0


# --- Time ---


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
    """A loop whose time goes at once to what comes next."""

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


def answers_in(
    loop: type[asyncio.AbstractEventLoop], transport: httpx.AsyncBaseTransport, timeouts: HttpTimeouts
) -> list[Any]:
    """Return what is streamed over a transport on a loop of that kind."""

    async def main() -> list[Any]:
        async with LetterProvider("https://example.com", transport=transport, timeouts=timeouts) as provider:
            return await streamed(provider)

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main())


def in_skipped_time(pieces: list[tuple[float, bytes]], timeouts: HttpTimeouts) -> list[Any]:
    return answers_in(SkippingLoop, Virtual(pieces), timeouts)


def test_comments_are_signs_of_life_and_all_times_are_measured_on_the_loops_clock() -> None:
    pings = [(90.0, b": ping\n\n")]
    assert in_skipped_time([*pings * 10, (90.0, piece(text="late") + END)], HttpTimeouts(silence_s=100))[-1] == say(
        "late"
    )
    with pytest.raises(ProviderError, match=r"nothing more of the response came within 80"):
        in_skipped_time(pings * 100, HttpTimeouts(silence_s=80))
    with pytest.raises(ProviderError, match=r"not complete within 3600"):
        in_skipped_time(pings * 100, HttpTimeouts(silence_s=100))


async def test_a_host_that_never_pauses_meets_the_limit_of_the_whole_call() -> None:
    class Ticking(asyncio.SelectorEventLoop):
        ticks = 0.0

        def time(self) -> float:
            Ticking.ticks += 0.001
            return Ticking.ticks

    class Endless(Virtual):
        async def _body(self) -> AsyncIterator[bytes]:
            while True:
                yield piece(text="")

    def run() -> None:
        with pytest.raises(ProviderError, match="not complete within 1"):
            answers_in(Ticking, Endless([]), HttpTimeouts(total_s=1))

    await asyncio.to_thread(run)


# --- Connections ---


async def test_calls_share_a_connection_streamed_or_not_until_the_provider_is_closed() -> None:
    script = [json_answer({"text": "a"}), event_stream(piece(text="b"), END), json_answer({"text": "c"}, status=500)]
    async with served(*script, json_answer({"text": "d"}), json_answer({"text": "e"})) as (server, provider):
        await provider.complete(REQUEST)
        await streamed(provider)
        await failing(provider)
        await provider.complete(REQUEST)
        await provider.aclose()
        await server.until(lambda: server.open == 0)
        await provider.aclose()
        assert await provider.complete(REQUEST) == say("e")
        assert [request.connection for request in server.requests] == [1, 1, 1, 1, 2]


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
    async with served(steps, json_answer({"text": "next"})) as (server, provider):
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
    async with served(event_stream(piece(text="a"), End.STALL)) as (server, provider):
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
    async with served(*script) as (server, provider):
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
