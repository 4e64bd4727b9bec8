"""A small HTTP/1.1 server on 127.0.0.1 that plays a script: what providers are tested against.

    go = asyncio.Event()
    async with Loopback([json_answer({"ok": 1}), event_stream(b"data: 1\n\n", go, b"data: 2\n\n")]) as server:
        ...  # POST to server.url twice; the second answer goes on after go.set()
        assert server.requests[0].json() == {...}

Each request gets the next answer, which is a sequence of steps: bytes to send as they are, an `asyncio.Event` to wait
for, or an `End`. `json_answer`, `event_stream` and `answer` make the bytes of whole answers; a list of steps of your
own may be any nonsense. After an answer the connection is kept, unless the script ends it or the head says `close`.
`await server.until(lambda: ...)` waits for what the server sees: `len(server.requests)`, `server.opened` and
`server.open` connections, `server.left` (those that the client ended in the middle of an answer).
"""

import asyncio
import enum
import json
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

PATIENCE_S = 30.0
"""What never happens fails a test after so long, instead of hanging it."""


class End(enum.Enum):
    """How a connection ends inside an answer."""

    CLOSE = "close"
    """As by a server that stops: what was sent arrives."""
    RESET = "reset"
    """As by a network that fails: the client gets a reset, and may lose what was sent just before."""
    STALL = "stall"
    """Nothing more comes until the client goes away."""
    LEAP = "leap"
    """Likewise, and with each turn of the loop its time goes on by a second: what the client waits for is soon late."""


Step: TypeAlias = bytes | asyncio.Event | End


class Request:
    """A request as it arrived.

    Attributes:
        method: such as `POST`.
        path: with its query.
        headers: by lower-case name.
        body: the bytes.
        connection: number of the connection it came on, from 1.
    """

    def __init__(self, method: str, path: str, headers: Mapping[str, str], body: bytes, connection: int) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.connection = connection

    def json(self) -> Any:
        return json.loads(self.body)


def answer(
    *body: Step,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    length: int | None = None,
    chunked: bool = False,
) -> list[Step]:
    """Return the steps of an answer.

    Args:
        body: its pieces, with waits and ends between them.
        status: HTTP status.
        headers: besides those that say where the body ends.
        length: a content-length to claim; None = the true one.
        chunked: each piece is a chunk, instead of a content-length.
    """
    sent = dict(headers or {})
    if chunked:
        sent["transfer-encoding"] = "chunked"
    else:
        true_length = sum(len(step) for step in body if isinstance(step, bytes))
        sent["content-length"] = str(true_length if length is None else length)
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in sent.items())]
    steps: list[Step] = [("\r\n".join(lines) + "\r\n\r\n").encode()]
    for step in body:
        steps.append(chunk(step) if chunked and isinstance(step, bytes) else step)
    if chunked:
        steps.append(b"0\r\n\r\n")
    return steps


def chunk(data: bytes) -> bytes:
    """Return `data` as one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def json_answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> list[Step]:
    """Return the steps of an answer whose body is JSON."""
    sent = {"content-type": "application/json", **(headers or {})}
    return answer(json.dumps(value).encode(), status=status, headers=sent)


def event_stream(*body: Step, status: int = 200, headers: Mapping[str, str] | None = None) -> list[Step]:
    """Return the steps of a stream of Server-Sent Events: each piece of its bytes is one HTTP chunk."""
    return answer(
        *body,
        status=status,
        headers={"content-type": "text/event-stream; charset=utf-8", **(headers or {})},
        chunked=True,
    )


class Loopback:
    """Answers requests by a script; see the top of this module.

    Args:
        script: one answer, as steps, for each request. A request after its end gets status 500.
        greeting: what each client gets instead of an answer, before it has said anything; then it is left.

    Attributes:
        url: where it listens, without a slash at the end.
        requests: what arrived, in order.
        opened: connections so far.
        open: connections now.
        left: answers that the client did not wait for.
    """

    def __init__(self, script: Sequence[Sequence[Step]] = (), *, greeting: bytes | None = None) -> None:
        self._greeting = greeting
        self.script = [list(steps) for steps in script]
        self.requests: list[Request] = []
        self.opened = 0
        self.open = 0
        self.left = 0
        self.url = ""
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait until `happened()` is true, which is asked after each change that the server sees."""
        async with asyncio.timeout(PATIENCE_S):
            while not happened():
                self._changed.clear()
                await self._changed.wait()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="loopback connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.open += 1
        self._changed.set()
        connection = _Connection(reader, writer, self.opened)
        try:
            if self._greeting is not None:
                await connection.play([self._greeting, End.CLOSE])
                return
            while (request := await connection.request()) is not None:
                self.requests.append(request)
                self._changed.set()
                place = len(self.requests) - 1
                steps = self.script[place] if place < len(self.script) else _script_is_over(place)
                if not await connection.play(steps):
                    break
        except ConnectionError:
            self.left += 1
        finally:
            writer.transport.abort()
            self.open -= 1
            self._changed.set()


def _script_is_over(place: int) -> list[Step]:
    return json_answer({"error": f"the script has {place} answers and this is request {place + 1}"}, status=500)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self._reader = reader
        self._writer = writer
        self._number = number
        self._early = b""
        """What came while an answer was sent: the beginning of the next request."""
        writer.transport.set_write_buffer_limits(high=0)  # So that `drain` waits until all is with the kernel.

    async def request(self) -> Request | None:
        """Return the next request; None = the client has ended the connection."""
        try:
            head = self._early + await self._reader.readuntil(b"\r\n\r\n")
            self._early = b""
            first, *lines = head.decode("latin-1").split("\r\n")[:-2]
            method, path, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        except asyncio.IncompleteReadError:
            return None
        except ConnectionError:
            return None
        return Request(method, path, headers, body, self._number)

    async def play(self, steps: Sequence[Step]) -> bool:
        """Send an answer; return whether the connection goes on.

        Raises:
            ConnectionError: the client ended the connection before the end of the answer.
        """
        leaving = asyncio.get_running_loop().create_task(self._reader.read(1), name="loopback client leaves")
        try:
            for step in steps:
                match step:
                    case bytes():
                        await self._during(leaving, self._send(step))
                    case asyncio.Event():
                        await self._during(leaving, _wait(step))
                    case End.STALL:
                        await self._during(leaving, _wait(asyncio.Event()))
                    case End.LEAP:
                        await self._during(leaving, _leap())
                    case End.CLOSE:
                        return False
                    case End.RESET:
                        raw = self._writer.get_extra_info("socket")
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        return False
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        if leaving.cancelled() or leaving.exception() is not None:
            return True
        self._early += leaving.result()
        return True

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _during(self, leaving: "asyncio.Task[bytes]", work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            elif leaving.exception() is not None or not leaving.result():
                raise ConnectionResetError("the client went away")
            else:
                await task
        finally:
            task.cancel()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _leap() -> None:
    loop: Any = asyncio.get_running_loop()
    time_s, leapt_s = loop.time, 0.0
    loop.time = lambda: time_s() + leapt_s
    while True:
        leapt_s += 1.0
        await asyncio.sleep(0)
