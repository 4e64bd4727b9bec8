"""A network without sockets: a simulated process's connections to simulated hosts, under the real HTTP libraries.

httpx, httpcore and h11 are as they are; what is replaced is the lowest thing that httpcore knows, a connected stream.
A host has no task of its own: when a whole request has reached it, it says at once what it will send and when, and
the pieces arrive as time passes. The rules: what had arrived before the network was split can be read in the split;
everything else on its way arrives when the split is over; and the connections of a process end with it.
"""

import asyncio
import errno
import math
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NoReturn, Protocol, TypeAlias

import h11
import httpcore
import httpx

from refold.scenarios import faults
from refold.scenarios.plan.world import World
from refold.scenarios.world.loop import OutsideWorld

Cut: TypeAlias = Literal["end", "reset"]
"""How a host lets a connection go: in order, or not."""

Sent: TypeAlias = tuple[float, bytes | Cut]
"""What a host sends, and how many seconds after what it sent before."""


PATIENCE_S = 601.0
"""A process that waits longer than this for the next bytes of a response waits without end."""

LEFT_S = 60.0
"""A process that has not read a response for so long, although there is more of it here, has left it open."""


class Responder(Protocol):
    """Answers requests."""

    def respond(self, target: str, body: bytes) -> Sequence[Sent]: ...


class SimulatedNetwork:
    """The network between a simulated process and its hosts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connections: dict[SimulatedConnection, None] = {}
        """Those that the process has open, oldest first."""
        self.reasons: list[str] = []
        """What the process has done wrong with its connections."""
        self._splits: list[tuple[float, float]] = []
        self._no_certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def transport_to(self, host: Responder) -> httpx.AsyncBaseTransport:
        transport = httpx.AsyncHTTPTransport(verify=self._no_certificates, trust_env=False)
        # httpx makes the same pool, but takes no backend. A connection without a call would expire by the real clock.
        transport._pool = httpcore.AsyncConnectionPool(  # pyright: ignore[reportPrivateUsage]
            ssl_context=self._no_certificates, network_backend=_Backend(self, host), keepalive_expiry=None
        )
        return transport

    def overdue(self, reason: str) -> None:
        self.reasons.append(reason)

    def split(self, fault: faults.NetworkSplit) -> None:
        begin_s = self.world.now_s()
        self._splits.append((begin_s, min(begin_s + fault.seconds, self.world.scenario.calm_s)))

    def arrival_s(self, sent_s: float) -> float:
        """Return when something arrives that is on its way at a time."""
        for begin_s, end_s in sorted(self._splits):
            if begin_s <= sent_s < end_s:
                sent_s = end_s
        return sent_s

    def tear_down(self) -> None:
        for connection in list(self.connections):
            connection.drop()


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects to one host."""

    def __init__(self, network: SimulatedNetwork, host: Responder) -> None:
        self._network = network
        self._host = host

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore calls it
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        network, world = self._network, self._network.world
        due = world.plan.count("connect")
        end_s = world.now_s() + (math.inf if timeout is None else timeout)
        through_s = world.now_s() + world.chance("connect").uniform(0.001, 0.2)
        if any(isinstance(fault, faults.HostIsSilent) for fault in due):
            through_s = max(through_s, end_s if timeout is not None else through_s + 60.0)
        while (due_s := min(network.arrival_s(through_s), end_s)) > world.now_s():
            await _set_by(asyncio.Event(), due_s)
        if world.now_s() >= end_s:
            raise httpcore.ConnectTimeout
        if any(isinstance(fault, faults.HostRefuses) for fault in due):
            raise httpcore.ConnectError from ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        return SimulatedConnection(network, self._host)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore calls it
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise OutsideWorld("a socket was to be opened, which a simulation has not")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _set_by(event: asyncio.Event, due_s: float) -> None:
    """Wait for an event, which is set at a time if it is not before.

    The time is met exactly: to sleep for what is left until then could end a little before it, or not move time at all.
    """
    timer = asyncio.get_running_loop().call_at(due_s, event.set) if due_s < math.inf else None
    try:
        await event.wait()
    finally:
        if timer is not None:
            timer.cancel()


class SimulatedConnection(httpcore.AsyncNetworkStream):
    """The process's end of a connection."""

    def __init__(self, network: SimulatedNetwork, host: Responder) -> None:
        self._network = network
        self._host = host
        self._received = h11.Connection(h11.SERVER)
        self._target = ""
        self._body = b""
        self._arriving: deque[tuple[float, bytes | Cut]] = deque()
        """What is on its way or here, and when it was sent."""
        self._changed = asyncio.Event()
        self._dropped = False
        self._read_s = 0.0
        """When the process has last taken something of a response."""
        network.connections[self] = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as httpcore calls it
        network, world = self._network, self._network.world
        began_s = world.now_s()
        end_s = began_s + (math.inf if timeout is None else timeout)
        while not self._dropped:
            due_s = network.arrival_s(self._arriving[0][0]) if self._arriving else math.inf
            if due_s <= world.now_s():
                if world.now_s() > began_s + PATIENCE_S:
                    network.overdue(f"a host that said nothing is waited for, {world.now_s() - began_s:,.0f} s by now")
                self._read_s = world.now_s()
                return self._taken(max_bytes)
            if end_s <= world.now_s():
                raise httpcore.ReadTimeout
            self._changed.clear()
            await _set_by(self._changed, min(due_s, end_s))
        raise httpcore.ReadError from OSError(errno.EBADF, "closed")

    def _taken(self, max_bytes: int) -> bytes:
        sent_s, data = self._arriving[0]
        if data == "end":
            return b""  # The next read finds the same.
        if data == "reset":
            raise httpcore.ReadError from ConnectionResetError(errno.ECONNRESET, "reset")
        self._arriving.popleft()
        if len(data) > max_bytes:
            self._arriving.appendleft((sent_s, data[max_bytes:]))
        return data[:max_bytes]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as httpcore calls it
        if self._dropped:
            raise httpcore.WriteError from OSError(errno.EBADF, "closed")
        if self._is_readable():  # A host does not send unasked, so this is the end of the connection.
            raise httpcore.WriteError from BrokenPipeError(errno.EPIPE, "closed by the host")
        if buffer:  # Nothing at all would mean the end of the connection to h11.
            self._received.receive_data(buffer)
        while (event := self._received.next_event()) is not h11.NEED_DATA:
            match event:
                case h11.Request(target=target):
                    self._target = target.decode("ascii")
                case h11.Data(data=data):
                    self._body += data
                case h11.EndOfMessage():
                    self._respond()
                    break
                case _:
                    raise AssertionError(f"{event} is no part of a request")
        await asyncio.sleep(0)

    def is_left(self) -> bool:
        """Return whether there is more of a response here, for long, and nobody reads it."""
        here = [self._network.arrival_s(sent_s) for sent_s, data in self._arriving if isinstance(data, bytes)]
        return bool(here) and self._network.world.now_s() > max(here[0], self._read_s) + LEFT_S

    def _respond(self) -> None:
        for connection in self._network.connections:
            if connection.is_left():
                self._network.overdue("a response that nobody reads is left open")
        self._arriving.clear()  # The host would have closed a connection without a call, and now there is one.
        time_s = self._network.arrival_s(self._network.world.now_s())
        for pause_s, data in self._host.respond(self._target, self._body):
            time_s += pause_s
            self._arriving.append((time_s, data))
        self._received, self._body = h11.Connection(h11.SERVER), b""
        self._changed.set()

    async def aclose(self) -> None:
        self.drop()
        await asyncio.sleep(0)

    def drop(self) -> None:
        self._dropped = True
        self._network.connections.pop(self, None)
        self._changed.set()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpcore calls it
    ) -> NoReturn:
        raise OutsideWorld("a connection was to be encrypted, which a simulation cannot do twice in the same way")

    def get_extra_info(self, info: str) -> Any:
        return self._is_readable() if info == "is_readable" else None

    def _is_readable(self) -> bool:
        return bool(self._arriving) and self._network.arrival_s(self._arriving[0][0]) <= self._network.world.now_s()
