"""The connections of one provider on one event loop: made when they are needed, and closed by themselves.

A connection is kept for a later call. It ends when the provider is closed, when it has not been needed for `IDLE_S`
seconds, or with the loop: a provider that is never closed leaves no open socket and gets no warning.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TypeAlias

import httpx

Transport: TypeAlias = httpx.AsyncBaseTransport | Callable[[], httpx.AsyncBaseTransport]
"""What sends requests, or makes what does."""

IDLE_S = 60.0
"""A connection without a call is closed after so long."""

IDLE_MAX = 100
"""So many connections are kept without a call; while calls last, there are as many as are needed."""


class LoopConnections:
    """The clients of the running event loop, each with one connection.

    One client with all connections would look at each of them, several times, at the begin and end of every call. Only
    where what it sends with is not ours to multiply is one `shared` by all calls.
    """

    def __init__(self, new_client: Callable[[], httpx.AsyncClient], *, shared: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._new_client = new_client
        self._shared = shared
        self._clients: dict[httpx.AsyncClient, None] = {}
        """Oldest first, so that they are closed in the same order in each process."""
        self._idle: list[tuple[float, httpx.AsyncClient]] = []
        """With the time since when, the latest last."""
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._begun = False
        self._at_the_end = _closed_with_its_loop(self._clients)
        self.closed = False

    async def borrow(self) -> httpx.AsyncClient:
        """Return a client for one call; `give_back` must follow. This does not wait."""
        if not self._begun:
            self._begun = True
            # The loop remembers a generator that has begun, and closes it before it ends itself.
            await anext(self._at_the_end)
        if self._shared and self._clients:
            return next(iter(self._clients))
        while self._idle:
            _, client = self._idle.pop()
            if not client.is_closed:
                return client
        client = self._new_client()
        self._clients[client] = None
        return client

    async def give_back(self, client: httpx.AsyncClient, *, answered: bool) -> None:
        """Keep a client for the next call.

        Args:
            answered: whether a response has begun. If not it is closed: httpcore 1.0 neither closes nor uses again a
                connection that is made just when a call is cancelled, or its time is up.
        """
        if self._shared:
            return
        if self.closed or not answered:
            await self._close(client)
            return
        self._idle.append((self._loop.time(), client))
        # The timer also keeps the generator from being collected with the provider: then it would be closed by a task
        # of its own, which a loop that is about to end does not wait for.
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_S, self._look_for_idle)
        if len(self._idle) > IDLE_MAX:
            await self._close(self._idle.pop(0)[1])

    def _look_for_idle(self) -> None:
        self._timer = None
        self._closing = self._loop.create_task(self._close_idle(), name="close idle connections of a provider")

    async def _close_idle(self) -> None:
        # As the timer is set: with the sum on the other side of the comparison, rounding would have it go off for ever.
        while self._idle and self._idle[0][0] + IDLE_S <= self._loop.time():
            await self._close(self._idle.pop(0)[1])
        if self._idle and self._timer is None:
            self._timer = self._loop.call_at(self._idle[0][0] + IDLE_S, self._look_for_idle)

    async def _close(self, client: httpx.AsyncClient) -> None:
        self._clients.pop(client, None)
        await client.aclose()

    async def close(self) -> None:
        self.closed = True
        self._idle.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._at_the_end.aclose()
        await _close_all(self._clients)


def encryption(*, needed: bool, trust_env: bool) -> ssl.SSLContext:
    """Return what checks a host's certificate; reading the certificates takes a while, so make it once.

    Where nothing is encrypted it is not `needed`: no certificate is read, and none trusted.
    """
    return httpx.create_ssl_context(trust_env=trust_env) if needed else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def new_client(
    transport: Transport | None,
    context: ssl.SSLContext,
    *,
    connect_s: float | None,
    trust_env: bool,
) -> httpx.AsyncClient:
    """Return a client that does what it is told and nothing else: no redirects, no cookies, no compression."""
    if callable(transport) and not isinstance(transport, httpx.AsyncBaseTransport):
        transport = transport()
    return httpx.AsyncClient(
        transport=transport,
        verify=context,
        trust_env=trust_env,
        follow_redirects=False,
        # Every other time is kept by the exchange, for the whole of what it waits for.
        timeout=httpx.Timeout(None, connect=connect_s),
        limits=httpx.Limits(max_connections=None, keepalive_expiry=IDLE_S),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
    )


async def _closed_with_its_loop(clients: dict[httpx.AsyncClient, None]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await _close_all(clients)


async def _close_all(clients: dict[httpx.AsyncClient, None]) -> None:
    while clients:
        client = next(iter(clients))
        del clients[client]
        await client.aclose()
