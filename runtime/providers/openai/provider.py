"""OpenAI, and every server that speaks its Chat Completions API.

    OpenAIProvider()                                                   # OPENAI_API_KEY
    OpenAIProvider(base_url="http://localhost:11434/v1")               # Ollama; vLLM, llama.cpp, LM Studio likewise
    OpenAIProvider(api_key=key, base_url="https://openrouter.ai/api/v1", return_reasoning="reasoning_details")
    OpenAIProvider(api_key=key, base_url="https://api.deepseek.com", return_reasoning="reasoning_content")

`OpenAIFormat` is the wire format, which needs no connection: `request` writes requests, `answer` reads answers, `calls`
the tool calls in them, `errors` says what errors mean. `OpenAIProvider` adds the connection, which is that of
`refold.providers.http.provider`.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Literal, Unpack

import msgspec

from refold.events.core.content import JsonObject
from refold.events.core.errors import ProviderError
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest, ModelResponse
from refold.providers.http.provider import HttpProvider
from refold.providers.http.secrets import Secret, key_from
from refold.providers.http.settings import HttpOptions, checked_mapping, is_at
from refold.providers.http.wire import ToolNames, WireRequest, check_size, encoded
from refold.providers.openai.answer import OpenAIReader, complete_answer
from refold.providers.openai.errors import failure_of_status
from refold.providers.openai.request import (
    DESCRIPTION_CHARACTERS_MAX,
    STOP_SEQUENCES_MAX,
    OpenAISettings,
    ReturnedReasoning,
    StructuredOutput,
    request_body,
    tool_forms,
)
from refold.providers.openai.thoughts import TaggedThinking

log = logging.getLogger("refold.provider")

PATH = "/chat/completions"

DEFAULT_SETTINGS = OpenAISettings()


class OpenAIFormat:
    def __init__(self, settings: OpenAISettings = DEFAULT_SETTINGS) -> None:
        self.name = settings.name
        self.settings = settings
        self._names = ToolNames()
        self._noted: set[str] = set()
        """Tools whose long descriptions were told of."""

    def request(self, request: ModelRequest, *, stream: bool) -> WireRequest:
        forms = tool_forms(request)
        body = encoded(request_body(request, self.settings, forms, stream=stream))
        check_size(body, self.settings.request_bytes_max, self.name)
        self._note_descriptions(request.tools)
        self._names.remember({spec.name: forms[spec.name] for spec in request.tools})
        accept = "text/event-stream" if stream else "application/json"
        return WireRequest(path=PATH, headers={"content-type": "application/json", "accept": accept}, body=body)

    def _note_descriptions(self, tools: Sequence[ToolSpec]) -> None:
        """Say of each tool once that its description is longer than the server is known to take."""
        most = self.settings.description_characters_max
        for spec in tools:
            if most is not None and len(spec.description) > most and spec.name not in self._noted:
                self._noted.add(spec.name)
                log.warning(
                    "the description of the tool %.100r has %s characters; %s refuses more than %s",
                    spec.name,
                    len(spec.description),
                    self.name,
                    most,
                )

    def answer(self, body: bytes) -> ModelResponse:
        return complete_answer(body, self.name, self._names, self.settings.thoughts_in_text)

    def reader(self) -> OpenAIReader:
        return OpenAIReader(self.name, self._names, self.settings.thoughts_in_text)

    def failure(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return failure_of_status(self.name, status, headers, body)


REQUEST_BYTES_MAX = 50_000_000
"""At OpenAI, with all images and files ("Images and vision", platform.openai.com/docs)."""

BASE_URL = "https://api.openai.com/v1"

_OFFICIAL_HOSTS = (".openai.com", ".openai.azure.com")


class OpenAIProvider(HttpProvider):
    """Answers model requests through the Chat Completions API.

    Connections are kept between calls; close them with `aclose`, or use `async with`.

    Args:
        api_key: None = that of the environment variable OPENAI_API_KEY; a compatible server may do without any.
        base_url: where `/chat/completions` is; None = OPENAI_BASE_URL, or else OpenAI.
        organization: sent as `OpenAI-Organization`; None = OPENAI_ORG_ID, which only OpenAI is told.
        project: sent as `OpenAI-Project`; None = OPENAI_PROJECT_ID, which only OpenAI is told.
        name: whose data the log keeps for it. Give servers that do not understand one another's data, such as
            signatures of reasoning, different names.
        max_tokens_field: carries `max_tokens`; None = `max_completion_tokens` for OpenAI, `max_tokens` for others.
        include_usage: whether streams are asked for the tokens that they cost.
        parallel_tool_calls: whether an answer may call several tools; None = the server's default.
        reasoning_effort: such as `low`, for models that know it.
        return_reasoning: the field in which the server wants earlier reasoning back; None = it does not.
        answer_after_tools: whether an assistant's message stands between results of tools and what a user says next,
            as after a cancellation; None = for Mistral's API and models.
        structured_output: how the model is held to an agent's `output_type`: `"json_schema"`, `"json_object"` (both by
            `response_format`) or `"prompt"` alone; None = `json_schema` for OpenAI and Azure, `prompt` for others, many
            of which do not take it together with tools.
        thoughts_in_text: `"tags"` for a model that writes `<think>…</think>` before its answer and a server that
            leaves it there, `"end_tag"` where the first tag may be missing; None = the text is the answer.
        extra_body: further fields of each request, such as `{"top_k": 40}`; they win over Refold's own.
        environment: where the variables are looked up.
        options: see `HttpOptions`: headers, timeouts, limits and more.

    Raises:
        ConfigError: OpenAI is asked without a key, or an argument cannot work.
    """

    def __init__(
        self,
        *,
        api_key: str | Secret | None = None,
        base_url: str | None = None,
        organization: str | None = None,
        project: str | None = None,
        name: str = "openai",
        max_tokens_field: Literal["max_completion_tokens", "max_tokens"] | None = None,
        include_usage: bool = True,
        parallel_tool_calls: bool | None = None,
        reasoning_effort: str | None = None,
        return_reasoning: ReturnedReasoning | None = None,
        answer_after_tools: bool | None = None,
        structured_output: StructuredOutput | None = None,
        thoughts_in_text: TaggedThinking | None = None,
        extra_body: JsonObject | None = None,
        environment: Mapping[str, str] = os.environ,
        **options: Unpack[HttpOptions],
    ) -> None:
        url = base_url if base_url is not None else environment.get("OPENAI_BASE_URL", "").strip() or BASE_URL
        official = is_at(url, *_OFFICIAL_HOSTS)
        if official:
            organization = organization or environment.get("OPENAI_ORG_ID", "").strip() or None
            project = project or environment.get("OPENAI_PROJECT_ID", "").strip() or None
        settings = OpenAISettings(
            name=name,
            max_tokens_field=max_tokens_field or ("max_completion_tokens" if official else "max_tokens"),
            include_usage=include_usage,
            parallel_tool_calls=parallel_tool_calls,
            reasoning_effort=reasoning_effort,
            return_reasoning=return_reasoning,
            answer_after_tools=answer_after_tools,
            structured_output=structured_output or ("json_schema" if official else "prompt"),
            thoughts_in_text=thoughts_in_text,
            stop_sequences_max=STOP_SEQUENCES_MAX if official else None,
            request_bytes_max=REQUEST_BYTES_MAX if official else None,
            description_characters_max=DESCRIPTION_CHARACTERS_MAX if official else None,
            extra_body=extra_body or {},
        )
        if answer_after_tools is None and is_at(url, ".mistral.ai"):
            settings = msgspec.structs.replace(settings, answer_after_tools=True)
        accounts = {"openai-organization": organization, "openai-project": project}
        ours = {header: value for header, value in accounts.items() if value is not None}
        if ours:
            options["headers"] = {**ours, **checked_mapping(options.get("headers", {}))}
        super().__init__(OpenAIFormat(settings), base_url=url, key=_key(api_key, environment, official), **options)


def _key(api_key: str | Secret | None, environment: Mapping[str, str], official: bool) -> Secret | None:
    if api_key is None and not official and not environment.get("OPENAI_API_KEY", "").strip():
        return None
    return key_from(api_key, "OPENAI_API_KEY", environment)
