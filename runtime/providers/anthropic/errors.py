"""What the Messages API's errors mean: their kind, and whether the same request may succeed later.

The body of an error is `{"type": "error", "error": {"type", "message", "details"?}, "request_id"}`, and in a stream the
same object comes as an event of type `error` ("Errors", platform.claude.com/docs/en/api/errors; `types/shared` and
`_base_client._should_retry` of the official package). The error's type decides; where it is unknown or the body is
something else, such as a proxy's page, the HTTP status does.
"""

import re
from collections.abc import Mapping

import msgspec

from refold.events.core.content import JsonObject, is_json_object
from refold.events.core.errors import ProviderError, ProviderErrorKind
from refold.providers.http.failures import by_status, may_be_repeated, said_in_body, shortened

_BY_TYPE: dict[str, tuple[ProviderErrorKind, bool]] = {
    "invalid_request_error": ("invalid_request", False),
    "authentication_error": ("auth", False),
    "permission_error": ("auth", False),
    "billing_error": ("auth", False),
    "not_found_error": ("invalid_request", False),
    "conflict_error": ("invalid_request", True),
    "request_too_large": ("context_too_long", False),
    "rate_limit_error": ("rate_limit", True),
    "timeout_error": ("timeout", True),
    "api_error": ("server", True),
    "overloaded_error": ("overloaded", True),
}

_TOO_LONG = re.compile(r"(prompt|input) is too long|exceed\w* .{0,40}context|maximum context length", re.IGNORECASE)
"""How the API says it, which has no code for it: "prompt is too long: 208310 tokens > 200000 maximum", "input length
and `max_tokens` exceed context limit: …"; and how servers with another model behind them do."""


def failure_of(status: int | None, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Return what an error response says.

    Args:
        status: HTTP status; None where the error came inside a stream or a successful response.
        headers: the response's, in any case.
        body: the response's, or the error event's data.
    """
    said = said_in_body(body)
    text = said.message or "no reason given"
    kind, retryable = next((_BY_TYPE[word] for word in said.words if word in _BY_TYPE), None) or _by_status(status)
    if kind == "invalid_request" and _TOO_LONG.search(text) is not None:
        kind, retryable = "context_too_long", False
    if "bound to a different conversation" in text:
        text += " (For AnthropicProvider that is drop_stale_thinking=True.)"
    # Where there is no inner object, the word is that of the outer one, and says nothing.
    named = [word for word in said.words if word != "error"]
    words = ["the Messages API answered", *([f"HTTP {status}"] if status is not None else []), *named]
    request = {name.lower(): value for name, value in headers.items()}.get("request-id") or said.request
    return ProviderError(
        f"{shortened(' '.join(words))}: {text}{f' (request {shortened(request)})' if request else ''}",
        kind=kind,
        status=status,
        retryable=may_be_repeated(headers, retryable),
        field=said.field,
    )


def json_object_in(data: bytes | str) -> JsonObject | None:
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return value if is_json_object(value) else None


def _by_status(status: int | None) -> tuple[ProviderErrorKind, bool]:
    if status == 409:
        return _BY_TYPE["conflict_error"]
    return by_status(status) if status is not None else ("server", True)
