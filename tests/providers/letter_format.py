"""The smallest wire format that shows all that a provider over HTTP does: JSON with a text, streamed in pieces."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Unpack

import refold
from refold.actors.calls.protocols import StreamingProvider, StreamItem
from refold.actors.calls.streaming import close_stream
from refold.providers import HttpOptions, HttpProvider, Secret, WireEvent, WireRequest
from tests.providers.loopback import PATIENCE_S, Loopback, Step

KEY = "sk-letter-0123456789abcdef-XYZ"

CUT = 40
"""The format shows so much of what the server says about an error, and cuts a key in it into two."""

REQUEST = refold.ModelRequest(
    model="letter-1",
    system_prompt="",
    messages=[refold.Message(role="user", content=(refold.TextBlock(text="hello"),))],
)


class LetterReader:
    def __init__(self) -> None:
        self.text = ""
        self.call = ""
        self.over = False

    def read(self, event: WireEvent) -> Sequence[refold.Delta]:
        data = parsed(event.data)
        if event.event == "error":
            raise refold.ProviderError(data["error"][:CUT], kind="overloaded", retryable=True)
        self.text += data.get("text", "")
        self.call += data.get("call", "")
        self.over = self.over or bool(data.get("end"))
        deltas: list[refold.Delta] = []
        if "text" in data:
            deltas.append(refold.TextDelta(data["text"]))
        if "thinking" in data:
            deltas.append(refold.ThinkingDelta(data["thinking"]))
        if "call" in data:
            deltas.append(refold.ToolInputDelta(0, "look", data["call"]))
        if "tokens" in data:
            deltas.append(refold.UsageDelta(refold.Usage(output_tokens=data["tokens"])))
        return deltas

    def finished(self) -> bool:
        return self.over

    def answer(self) -> refold.ModelResponse:
        if not self.over:
            raise refold.ProviderError("the stream ended before its answer", kind="malformed", retryable=True)
        calls = (refold.ToolUse(name="look", input=parsed(self.call)),) if self.call else ()
        return refold.ModelResponse(content=(refold.TextBlock(text=self.text), *calls))


class LetterFormat:
    name = "letter"

    def request(self, request: refold.ModelRequest, *, stream: bool) -> WireRequest:
        body = {"stream": stream, "text": request.messages[-1].text}
        return WireRequest(path="/letters", headers={"letter-version": "1"}, body=json.dumps(body).encode())

    def answer(self, body: bytes) -> refold.ModelResponse:
        data = parsed(body)
        if "error" in data:
            raise refold.ProviderError(data["error"][:CUT], kind="overloaded", retryable=True)
        return refold.ModelResponse(content=(refold.TextBlock(text=data["text"]),))

    def reader(self) -> LetterReader:
        return LetterReader()

    def failure(self, status: int, headers: Mapping[str, str], body: bytes) -> refold.ProviderError:
        kind: Any = {401: "auth", 429: "rate_limit", 529: "overloaded"}.get(status, "server")
        said = body.decode(errors="replace")[:CUT]
        return refold.ProviderError(f"status {status}: {said}", kind=kind, status=status, retryable=status >= 429)


def parsed(data: str | bytes) -> Any:
    problem = refold.ProviderError("that is no letter", kind="malformed", retryable=True)
    try:
        return json.loads(data)
    except ValueError as error:  # Raised behind it: it holds the document, which would be the other's context.
        problem.add_note(type(error).__name__)
    raise problem


class LetterProvider(HttpProvider):
    """Speaks the format with a server."""

    def __init__(self, base_url: str, *, key: str | None = KEY, **options: Unpack[HttpOptions]) -> None:
        super().__init__(LetterFormat(), base_url=base_url, key=Secret(key) if key is not None else None, **options)


@asynccontextmanager
async def served(*script: Sequence[Step], **options: Any) -> AsyncIterator[tuple[Loopback, LetterProvider]]:
    """Give a server that answers by a script, and a provider that asks it."""
    async with Loopback(script) as server, LetterProvider(server.url, **options) as provider:
        yield server, provider


def piece(**data: Any) -> bytes:
    """Return one event of a letter's stream."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


END = piece(end=True)


class Stream:
    """Reads a provider's stream in a task of its own.

    Attributes:
        items: what has come.
        task: ends with the stream, and as it does.
    """

    def __init__(self, provider: StreamingProvider, request: refold.ModelRequest = REQUEST) -> None:
        self.items: list[StreamItem] = []
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._read(provider, request))

    async def _read(self, provider: StreamingProvider, request: refold.ModelRequest) -> list[StreamItem]:
        stream = provider.stream(request)
        try:
            async for item in stream:
                self.items.append(item)
                self._changed.set()
        finally:
            await close_stream(stream)
        return self.items

    async def until(self, count: int) -> None:
        """Wait until so many items have come."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.items) < count:
                self._changed.clear()
                await self._changed.wait()


async def streamed(provider: StreamingProvider, request: refold.ModelRequest = REQUEST) -> list[StreamItem]:
    """Return what a provider streams."""
    return await Stream(provider, request).task
