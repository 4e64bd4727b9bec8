"""What a provider's wire format has to say, apart from the network: pure functions over bytes and text.

`refold.providers.http_provider` sends and receives; a format says what. Each provider's format is a module of its own,
such as `anthropic_format`, and can be tested and read without a connection.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from refold.events.errors import ProviderError
from refold.events.model import Delta, ModelRequest, ModelResponse


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request: always a POST of JSON."""

    path: str
    """Below the base URL, with a leading slash."""
    headers: Mapping[str, str]
    """Those of the format; authentication is added by whoever sends it."""
    body: bytes


class WireEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One Server-Sent Event."""

    event: str = "message"
    data: str = ""


class AnswerReader(Protocol):
    """Puts one streamed answer together."""

    def read(self, event: WireEvent) -> Sequence[Delta]:
        """Take the next event, and return the pieces of the answer in it.

        Raises:
            ProviderError: the event says that the call failed, or cannot be understood.
        """
        ...

    def finished(self) -> bool:
        """Return whether the last event has come, so that nothing more needs to be read."""
        ...

    def answer(self) -> ModelResponse:
        """Return the complete answer, the stream having ended.

        Raises:
            ProviderError: the answer is not complete; of kind `malformed`, and may be repeated.
        """
        ...


class WireFormat(Protocol):
    """One provider's requests, answers and errors on the wire."""

    name: str
    """Of the provider: the key of `provider_data` and the owner of a `ProviderBlock`."""

    def request(self, request: ModelRequest, *, stream: bool) -> WireRequest:
        """Return the HTTP request for a model call.

        What the provider would refuse for its form alone (empty texts, orphaned results, names outside its pattern,
        unpaired surrogates) is repaired where the meaning is certain.

        Raises:
            ProviderError: the request cannot be expressed; of kind `invalid_request`, and nothing was sent.
        """
        ...

    def answer(self, body: bytes) -> ModelResponse:
        """Return the answer in the body of a complete response.

        Raises:
            ProviderError: it cannot be understood, or says that the call failed.
        """
        ...

    def reader(self) -> AnswerReader:
        """Return what puts a streamed answer together."""
        ...

    def failure(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Return what an HTTP status other than 2xx says, classified; its `retry_after_s` is left to the caller."""
        ...
