"""What goes wrong at the Chat Completions API and its compatible servers, classified.

The same rules hold for the body of an HTTP error, for an `error` inside a body of status 200 and for one in the midst
of a stream. What the server says by code decides first, then the status, and the words of a message only about
context that is too long, for which most compatible servers have no code.

Sources: OpenAI's guide to its error codes (`insufficient_quota`, `credit_balance_exhausted`, `slow_down`);
openrouter.ai/docs/api/reference/errors-and-debugging (a numeric `code`, errors inside 200 and in streams);
ggml-org/llama.cpp#15780 (`exceed_context_size_error`); vllm-project/vllm#37011 (`{"object": "error", "message": …}`
and a `code` that repeats the status); FastAPI's `{"detail": …}`; Gemini's compatible endpoint, which puts its error
into an array.
"""

import re
from collections.abc import Mapping

from refold.events.core.content import Json
from refold.events.core.errors import ProviderError, ProviderErrorKind
from refold.providers.http.failures import (
    KINDS_BY_STATUS,
    HostError,
    by_status,
    may_be_repeated,
    said_in,
    said_in_body,
    shortened,
)
from refold.providers.http.wire import UnusableAnswer

_TOO_LONG_CODES = {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"}
_TOO_LONG = re.compile(
    r"maximum context length|context[ _]length[ _]exceeded|context (window|size|length) (limit|exceeded)"
    r"|exceeds? the (available |model'?s? )?(maximum )?context|exceed(s|ed)? (the )?context (window|size|length)"
    r"|(prompt|input|request) is too long|reduce the length of the (messages|prompt|input)"
    r"|context overflow|context length of only|input token count .{0,40}exceeds|maximum model length"
    r"|prompt contains too many tokens",
    re.IGNORECASE,
)
_TOO_LONG_STATUSES = {400, 413, 422, 500}

_SLIP_CODES = {"tool_use_failed", "json_validate_failed", "output_parse_failed"}
"""Groq's, for an answer of the model that it does not hand over; `failed_generation` is what the model wrote."""
_SLIP = re.compile(r"error parsing tool call", re.IGNORECASE)
"""Ollama's words for the same, with status 500 (ollama/ollama#17638)."""

_NO_MONEY_CODES = {
    "insufficient_quota",
    "credit_balance_exhausted",
    "billing_hard_limit_reached",
    "billing_not_active",
    "organization_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "project_spend_limit_exceeded",
}

_BY_CODE: dict[str, tuple[ProviderErrorKind, bool]] = {
    "rate_limit_exceeded": ("rate_limit", True),
    "rate_limit_error": ("rate_limit", True),
    "slow_down": ("rate_limit", True),
    "overloaded": ("overloaded", True),
    "overloaded_error": ("overloaded", True),
    "server_is_overloaded": ("overloaded", True),
    "engine_overloaded": ("overloaded", True),
    "service_unavailable": ("overloaded", True),
    "service_unavailable_error": ("overloaded", True),
    "serviceunavailableerror": ("overloaded", True),
    "unavailable_error": ("overloaded", True),
    "insufficient_system_resource": ("overloaded", True),
    "server_error": ("server", True),
    "internal_error": ("server", True),
    "internal_server_error": ("server", True),
    "internalservererror": ("server", True),
    "timeout": ("timeout", True),
    "timeout_error": ("timeout", True),
    "invalid_api_key": ("auth", False),
    "authentication_error": ("auth", False),
    "authenticationerror": ("auth", False),
    "permission_error": ("auth", False),
    "permission_denied": ("auth", False),
    "model_not_found": ("invalid_request", False),
    "not_found_error": ("invalid_request", False),
    "notfounderror": ("invalid_request", False),
    "content_filter": ("invalid_request", False),
    "content_policy_violation": ("invalid_request", False),
    "invalid_request_error": ("invalid_request", False),
    "badrequesterror": ("invalid_request", False),
}
"""By the error's `code` or else its `type`, in lower case."""


def failure_of_status(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Return what an HTTP status other than 2xx says; the response's `headers` are in any case."""
    error = _failure(provider, said_in_body(body), status)
    error.retryable = may_be_repeated(headers, error.retryable)
    return error


def failure_inside(provider: str, value: Json) -> ProviderError:
    """Return what an error inside a response of status 200 says, perhaps in the midst of a stream.

    One that does not say what it is counts as the server's own and may be repeated: the request had been accepted.
    """
    said = said_in(value)
    return _failure(provider, said, said.status)


def _failure(provider: str, said: HostError, status: int | None) -> ProviderError:
    what = f"{provider} answered with status {status}" if status is not None else f"{provider} reported an error"
    words = ", ".join(dict.fromkeys(said.words))  # Many errors have one word for both code and type.
    message = f"{what}{f' ({shortened(words)})' if words else ''}: {said.message or 'no reason given'}"
    if _SLIP_CODES & set(said.words) or _SLIP.search(said.message):
        return UnusableAnswer(message, status=status, generation=said.generation)
    kind, retryable = _classified(said, status)
    return ProviderError(message, kind=kind, status=status, retryable=retryable, field=said.field)


def _classified(said: HostError, status: int | None) -> tuple[ProviderErrorKind, bool]:
    words = set(said.words)
    if words & _TOO_LONG_CODES:
        return "context_too_long", False
    if words & _NO_MONEY_CODES:
        return "rate_limit", False
    if (status is None or status in _TOO_LONG_STATUSES) and _TOO_LONG.search(said.message):
        return "context_too_long", False
    by_code = next((_BY_CODE[word] for word in said.words if word in _BY_CODE), None)
    if status is None:
        return by_code or ("server", True)
    # 400 with `server_error` and 500 with `invalid_request_error` exist; the status says who is to blame, except
    # where the code is the finer word for the same.
    finer = by_code is not None and status not in KINDS_BY_STATUS and by_code[1] == by_status(status)[1]
    return by_code if by_code is not None and finer else by_status(status)
