"""Connections that do not say what they want in time are closed, so that they take no place of others for long."""

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 400
"""Connections at once; further ones are closed as they come. A process usually has 1,024 files."""


class ImpatientProtocol(H11Protocol):
    """HTTP/1.1 of which a request has to be there whole, soon after it began."""

    patience_s = 10.0
    """Seconds between two looks; what has not come on from one to the next is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to look at a connection, or close it."""
        super().connection_made(transport)
        self._stuck: object = None
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()
        else:
            self._look_later()

    def _look_later(self) -> None:
        self.loop.call_later(self.patience_s, self._look)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        cycle = self.cycle
        waits = not cycle or cycle.response_complete or cycle.more_body
        if waits and self._stuck is (cycle or self):
            self.transport.abort()
            return
        self._stuck = (cycle or self) if waits else None
        self._look_later()
