"""Anthropic, and every server that speaks its Messages API.

    AnthropicProvider()                                                     # ANTHROPIC_API_KEY
    AnthropicProvider(thinking="adaptive", max_tokens=64_000)
    AnthropicProvider(server_tools=[{"type": "web_search_20260318", "name": "web_search", "max_uses": 3}])
    AnthropicProvider(headers={"anthropic-beta": "context-1m-2025-08-07"}, cache="1h")
    AnthropicProvider(base_url="http://localhost:11434")                    # Ollama; llama.cpp, vLLM likewise

`AnthropicFormat` is the wire format, which needs no connection: `history` says which messages are sent and `request`
how they are written, `answer` how answers are read, `errors` what errors mean. `AnthropicProvider` adds
the connection, which is that of `refold.providers.http.provider`.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Literal, Unpack

from refold.events.core.content import JsonObject
from refold.events.core.errors import ConfigError, ProviderError
from refold.events.model.messages import ModelRequest, ModelResponse
from refold.providers.anthropic.answer import AnthropicReader, answer_in
from refold.providers.anthropic.errors import failure_of
from refold.providers.anthropic.history import NAME
from refold.providers.anthropic.request import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_VERSION,
    STALE_THINKING_BETA,
    AnthropicOptions,
    encoded_request,
    wire_name,
)
from refold.providers.http.provider import HttpProvider
from refold.providers.http.secrets import Secret, key_from
from refold.providers.http.settings import HttpOptions, checked_mapping, is_at
from refold.providers.http.wire import ToolNames, WireRequest

PATH = "/v1/messages"

DEFAULT_OPTIONS = AnthropicOptions()


class AnthropicFormat:
    """Anthropic's Messages API as a `WireFormat`.

    A tool whose name the API does not accept is given another one on the wire, and calls of it come back under its own
    name. That name is learned from the requests, so the format that sent a request also reads the answer.
    """

    name = NAME

    def __init__(self, options: AnthropicOptions = DEFAULT_OPTIONS) -> None:
        self.options = options
        self._headers = {"anthropic-version": options.version}
        if options.drop_stale_thinking:
            self._headers["anthropic-beta"] = STALE_THINKING_BETA
        self._names = ToolNames()

    def request(self, request: ModelRequest, *, stream: bool) -> WireRequest:
        body = encoded_request(request, self.options, stream=stream)
        self._names.remember({tool.name: wire_name(tool.name) for tool in request.tools})
        return WireRequest(path=PATH, headers=self._headers, body=body)

    def answer(self, body: bytes) -> ModelResponse:
        return answer_in(body, self._names.own)

    def reader(self) -> AnthropicReader:
        return AnthropicReader(self._names.own)

    def failure(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return failure_of(status, headers, body)


BASE_URL = "https://api.anthropic.com"

KEY_VARIABLE = "ANTHROPIC_API_KEY"
REQUEST_BYTES_MAX = 32_000_000
IMAGE_BYTES_MAX = 10_000_000 * 3 // 4
"""Of the file, which is larger as base64 ("Vision" and "API overview", platform.claude.com/docs)."""

_UNSIGNED_HOSTS = (".deepseek.com", ".moonshot.ai", ".moonshot.cn", ".kimi.com", ".xiaomimimo.com")

TOKEN_VARIABLE = "ANTHROPIC_AUTH_TOKEN"  # noqa: S105  # The name of one.
URL_VARIABLE = "ANTHROPIC_BASE_URL"


class AnthropicProvider(HttpProvider):
    """Answers model requests through the Messages API.

    Connections are kept between calls; close them with `aclose`, or use `async with`. The log keeps for it, under the
    name `anthropic`, what it wants back unchanged: signatures of thinking, citations, calls and results of its tools.

    Args:
        api_key: sent as `x-api-key`; None = that of the environment variable ANTHROPIC_API_KEY. A compatible server
            may do without any.
        auth_token: sent as `authorization: Bearer …` instead of a key, as some gateways want it; None = that of
            ANTHROPIC_AUTH_TOKEN, where there is no key.
        base_url: where `/v1/messages` is; None = ANTHROPIC_BASE_URL, or else Anthropic. A `/v1` at its end is left out.
        version: of the API, the header `anthropic-version`.
        max_tokens: most tokens of an answer where the agent's configuration names no limit, >= 1; a fixed budget of
            `thinking` comes on top.
        thinking: tokens of a fixed budget, >= 1024, for models up to Claude 4.6; `"adaptive"` where the model decides
            how much it thinks; None = the model's default. A model that thinks has no temperature.
        drop_stale_thinking: whether thinking that no longer fits what stands before it, after a compaction or with
            another system prompt or other tools, is dropped instead of failing the request; for models from Claude
            Opus 5.5 and Fable 5.1 on, which check it.
        structured_output: whether the model is held to the JSON Schema of an agent's `output_type`, by `output_config`;
            None = at Anthropic, where the model can be (from Claude Opus 4.1 and Sonnet 4.5 on).
        unsigned_thinking: whether thinking without a signature goes back, as servers want it that sign nothing and
            insist on their thoughts within a loop of tool calls; None = for those known to (DeepSeek, Kimi, MiMo).
        cache: whether to mark what the provider may keep of prompts (tools, system prompt, history), and for how long;
            True = the provider's default, which is 5 minutes.
        server_tools: tools that the provider runs itself, in its own words; their calls and results are part of the
            answers.
        extra_body: further fields of each request, such as `{"top_k": 40}`; they win over Refold's own.
        environment: where the variables are looked up.
        options: see `HttpOptions`: headers, timeouts, limits and more.

    Raises:
        ConfigError: Anthropic is asked without a key, or an argument cannot work.
    """

    def __init__(
        self,
        *,
        api_key: str | Secret | None = None,
        auth_token: str | Secret | None = None,
        base_url: str | None = None,
        version: str = DEFAULT_VERSION,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        thinking: int | Literal["adaptive"] | None = None,
        drop_stale_thinking: bool = False,
        structured_output: bool | None = None,
        unsigned_thinking: bool | None = None,
        cache: bool | Literal["5m", "1h"] = True,
        server_tools: Sequence[JsonObject] = (),
        extra_body: JsonObject | None = None,
        environment: Mapping[str, str] = os.environ,
        **options: Unpack[HttpOptions],
    ) -> None:
        url = base_url if base_url is not None else environment.get(URL_VARIABLE, "").strip() or BASE_URL
        official = is_at(url, ".anthropic.com", ".claude.com")
        wire_format = AnthropicFormat(
            AnthropicOptions(
                version=version,
                max_tokens=max_tokens,
                thinking=thinking,
                drop_stale_thinking=drop_stale_thinking,
                request_bytes_max=REQUEST_BYTES_MAX if official else None,
                image_bytes_max=IMAGE_BYTES_MAX if official else None,
                structured_output=structured_output if official else bool(structured_output),
                unsigned_thinking=is_at(url, *_UNSIGNED_HOSTS) if unsigned_thinking is None else unsigned_thinking,
                cache=cache,
                server_tools=tuple(server_tools),
                extra_body=extra_body or {},
            )
        )
        if drop_stale_thinking and "headers" in options:
            options["headers"] = _with_beta(checked_mapping(options["headers"]), STALE_THINKING_BETA)
        key, bearer = _key(api_key, auth_token, environment, official=official)
        super().__init__(
            wire_format,
            base_url=_without_version(url) if isinstance(url, str) else url,
            key=key,
            key_header="authorization" if bearer else "x-api-key",
            key_prefix="Bearer " if bearer else "",
            **options,
        )


def _with_beta(headers: Mapping[str, str | Secret], beta: str) -> dict[str, str | Secret]:
    return {
        name: f"{value},{beta}" if name.lower() == "anthropic-beta" and isinstance(value, str) else value
        for name, value in headers.items()
    }


def _without_version(url: str) -> str:
    path, mark, query = url.partition("?")
    return path.rstrip("/").removesuffix("/v1") + mark + query


def _key(
    api_key: str | Secret | None, auth_token: str | Secret | None, environment: Mapping[str, str], *, official: bool
) -> tuple[Secret | None, bool]:
    """Return the key, and whether it is a bearer's token."""
    if api_key is not None and auth_token is not None:
        raise ConfigError("AnthropicProvider takes an api_key or an auth_token, not both")
    if api_key is not None:
        return key_from(api_key, KEY_VARIABLE, environment), False
    if auth_token is not None:
        return key_from(auth_token, TOKEN_VARIABLE, environment), True
    if environment.get(KEY_VARIABLE, "").strip():
        return key_from(None, KEY_VARIABLE, environment), False
    if environment.get(TOKEN_VARIABLE, "").strip():
        return key_from(None, TOKEN_VARIABLE, environment), True
    return (key_from(None, KEY_VARIABLE, environment) if official else None), False
