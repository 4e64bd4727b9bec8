"""The wire format of Anthropic's Messages API: what `AnthropicProvider` says and understands, without a network.

Read `wire_format` first: what a format has to do. `anthropic_history` says which messages are sent and
`anthropic_request` how they are written; `anthropic_answer` and `anthropic_stream` how answers are read, and
`anthropic_errors` what errors mean.
"""

from collections.abc import Mapping

from refold.events.errors import ProviderError
from refold.events.model import ModelRequest, ModelResponse
from refold.providers.anthropic_answer import answer_in
from refold.providers.anthropic_errors import failure_of
from refold.providers.anthropic_history import NAME
from refold.providers.anthropic_request import (
    STALE_THINKING_BETA,
    AnthropicOptions,
    encoded_request,
    wire_name,
)
from refold.providers.anthropic_stream import AnthropicReader
from refold.providers.wire_format import WireRequest

PATH = "/v1/messages"

DEFAULT_OPTIONS = AnthropicOptions()


class AnthropicFormat:
    """Anthropic's Messages API as a `WireFormat`.

    A tool whose name the API does not accept is given another one on the wire, and calls of it come back under its own
    name. That name is learned from the requests, so the format that sent a request also reads the answer.

    Args:
        options: what shapes the requests.
    """

    name = NAME

    def __init__(self, options: AnthropicOptions = DEFAULT_OPTIONS) -> None:
        self.options = options
        self._headers = {"anthropic-version": options.version}
        if options.drop_stale_thinking:
            self._headers["anthropic-beta"] = STALE_THINKING_BETA
        self._our_names: dict[str, str] = {}

    def request(self, request: ModelRequest, *, stream: bool) -> WireRequest:
        """Return the HTTP request for a model call.

        Raises:
            ProviderError: the request cannot be expressed; of kind `invalid_request`, and nothing was sent.
        """
        body = encoded_request(request, self.options, stream=stream)
        for tool in request.tools:
            if (sent := wire_name(tool.name)) != tool.name:
                self._our_names[sent] = tool.name
        return WireRequest(path=PATH, headers=self._headers, body=body)

    def answer(self, body: bytes) -> ModelResponse:
        """Return the answer in the body of a complete response.

        Raises:
            ProviderError: it cannot be understood, or says that the call failed.
        """
        return answer_in(body, self._our_name)

    def reader(self) -> AnthropicReader:
        """Return what puts a streamed answer together."""
        return AnthropicReader(self._our_name)

    def failure(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Return what an HTTP status other than 2xx says, classified."""
        return failure_of(status, headers, body)

    def _our_name(self, sent: str) -> str:
        return self._our_names.get(sent, sent)
