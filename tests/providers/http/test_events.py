"""Server-Sent Events over a provider: every way to end a line and to split the bytes."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from refold import ProviderError, TextDelta, say
from refold.providers import HttpLimits
from tests.providers.letter_format import END, LetterProvider, Stream, piece, streamed
from tests.providers.loopback import Loopback, event_stream

LINES = """\ufeffdata:{"text":
: in between
id: 7
event: letter
data: "caf\u00e9 "
data
data: }



:
retry: 5
: OPENROUTER PROCESSING
unknown: x
data: {"text": "\U0001f600"}

data:

data: {"end": true}"""


class Split(httpx.AsyncBaseTransport):
    """Answers with a stream whose bytes come so many at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.data), self.size):
            yield self.data[start : start + self.size]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("tail", ["", "\n", "\n\n"])
async def test_a_stream_is_understood_however_its_lines_end_and_its_bytes_are_split(line_end: str, tail: str) -> None:
    transport = Split((LINES + tail).replace("\n", line_end).encode())
    async with LetterProvider("https://example.com", transport=transport) as provider:
        for size in (1, 2, 3, 7, len(transport.data)):
            transport.size = size
            items = await streamed(provider)
            assert items == [TextDelta("caf\u00e9 "), TextDelta("\U0001f600"), say("caf\u00e9 \U0001f600")]


async def test_comments_have_no_part_in_the_size_of_an_event() -> None:
    transport = Split(b": ping, and nothing else\n" * 50 + piece(text="a") + END)
    limits = HttpLimits(event_characters_max=60)
    async with LetterProvider("https://example.com", transport=transport, limits=limits) as provider:
        assert (await streamed(provider))[-1] == say("a")


async def test_an_event_that_ends_in_cr_is_given_before_the_next_byte_comes() -> None:
    go = asyncio.Event()
    script = [event_stream(piece(text="a").replace(b"\n", b"\r"), go, b"\n" + END)]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        stream = Stream(provider)
        await stream.until(1)
        go.set()
        assert (await stream.task)[-1] == say("a")


@pytest.mark.parametrize("bad", [b"data: \xc3", b"data: \xff\n\n", b"data: \xed\xa0\x80\n\n"])
async def test_bytes_that_are_no_utf_8_are_malformed(bad: bytes) -> None:
    transport = Split(piece(text="a") + bad)
    async with LetterProvider("https://example.com", transport=transport) as provider:
        stream = Stream(provider)
        with pytest.raises(ProviderError, match="not UTF-8") as caught:
            await stream.task
    assert (caught.value.kind, caught.value.retryable) == ("malformed", True)
