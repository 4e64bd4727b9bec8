"""The Chat Completions API and its compatible servers as a wire format: pure, without a connection.

What is where: requests in `openai_request`, whole answers in `openai_answer`, streams in `openai_stream`, the calls in
both in `openai_calls`, errors in `openai_failure`, names in `openai_names`.
"""

from collections.abc import Mapping

from refold.events.errors import ProviderError
from refold.events.model import ModelRequest, ModelResponse
from refold.providers.openai_answer import complete_answer
from refold.providers.openai_failure import failure_of_status
from refold.providers.openai_names import ToolNames
from refold.providers.openai_request import OpenAISettings, request_body, tool_forms
from refold.providers.openai_stream import OpenAIReader
from refold.providers.wire_format import WireRequest
from refold.providers.wire_json import encoded

PATH = "/chat/completions"

DEFAULT_SETTINGS = OpenAISettings()


class OpenAIFormat:
    """Writes requests, and reads answers and errors.

    Args:
        settings: how the server wants to be asked.
    """

    def __init__(self, settings: OpenAISettings = DEFAULT_SETTINGS) -> None:
        self.name = settings.name
        self.settings = settings
        self._names = ToolNames()

    def request(self, request: ModelRequest, *, stream: bool) -> WireRequest:
        """Return the HTTP request for a model call.

        Raises:
            ProviderError: the request cannot be expressed; of kind `invalid_request`, and nothing was sent.
        """
        forms = tool_forms(request)
        body = encoded(request_body(request, self.settings, forms, stream=stream))
        self._names.remember({spec.name: forms[spec.name] for spec in request.tools})
        accept = "text/event-stream" if stream else "application/json"
        return WireRequest(path=PATH, headers={"content-type": "application/json", "accept": accept}, body=body)

    def answer(self, body: bytes) -> ModelResponse:
        """Return the answer in the body of a complete response.

        Raises:
            ProviderError: it cannot be understood, or says that the call failed.
        """
        return complete_answer(body, self.name, self._names)

    def reader(self) -> OpenAIReader:
        """Return what puts a streamed answer together."""
        return OpenAIReader(self.name, self._names)

    def failure(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Return what an HTTP status other than 2xx says, classified."""
        return failure_of_status(self.name, status, headers, body)
