"""What the Messages API's errors mean: their kind, and whether the same request may succeed later.

The body of an error is `{"type": "error", "error": {"type", "message", "details"?}, "request_id"}`, and in a stream the
same object comes as an event of type `error` ("Errors", platform.claude.com/docs/en/api/errors; `types/shared` and
`_base_client._should_retry` of the official package). The error's type decides; where it is unknown or the body is
something else, such as a proxy's page, the HTTP status does. The header `x-should-retry` has the last word on retrying.
"""

import re
from collections.abc import Mapping

import msgspec

from refold.events.core.cleaning import clean_text
from refold.events.core.content import JsonObject, is_json_object
from refold.events.core.errors import ProviderError, ProviderErrorKind
from refold.providers.http.wire import field_named

MESSAGE_CHARACTERS_MAX = 500
"""An error's text is cut after so many characters."""

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

_BY_STATUS: dict[int, tuple[ProviderErrorKind, bool]] = {
    401: ("auth", False),
    402: ("auth", False),
    403: ("auth", False),
    408: ("timeout", True),
    409: ("invalid_request", True),
    413: ("context_too_long", False),
    429: ("rate_limit", True),
    503: ("overloaded", True),
    504: ("timeout", True),
    529: ("overloaded", True),
}

_TOO_LONG = re.compile(r"(prompt|input) is too long|exceed\w* .{0,40}context|maximum context length", re.IGNORECASE)
"""How the API says it, which has no code for it: "prompt is too long: 208310 tokens > 200000 maximum", "input length
and `max_tokens` exceed context limit: …"; and how servers with another model behind them do."""

_TITLE = re.compile(r"<title[^>]*>([^<]{1,200})", re.I)


def failure_of(status: int | None, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Return what an error response says.

    Args:
        status: HTTP status; None where the error came inside a stream or a successful response.
        headers: the response's, in any case.
        body: the response's, or the error event's data.
    """
    given = {name.lower(): value for name, value in headers.items()}
    answer = json_object_in(body) or json_object_in(body.strip().removeprefix(b"[").removesuffix(b"]"))  # Vertex.
    error = answer.get("error") if answer is not None else None
    error = error if is_json_object(error) else {}
    error_type = error.get("type")
    message = error.get("message")
    text = message if isinstance(message, str) and message.strip() else _description(body, given, answer)
    kind, retryable = _classified(status, error_type, text)
    if given.get("x-should-retry") in ("true", "false"):
        retryable = given["x-should-retry"] == "true"
    if "bound to a different conversation" in text:
        text += " (For AnthropicProvider that is drop_stale_thinking=True.)"
    request = given.get("request-id") or (answer or {}).get("request_id")
    words = ["the Messages API answered"]
    if status is not None:
        words.append(f"HTTP {status}")
    if isinstance(error_type, str):
        words.append(_shortened(error_type, 100))
    whole = f"{' '.join(words)}: {_shortened(text, MESSAGE_CHARACTERS_MAX)}"
    if isinstance(request, str) and request:
        whole += f" (request {_shortened(request, 100)})"
    return ProviderError(whole, kind=kind, status=status, retryable=retryable, field=field_named(text))


def json_object_in(data: bytes | str) -> JsonObject | None:
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return value if is_json_object(value) else None


def malformed(reason: str, *, retryable: bool = True) -> ProviderError:
    return ProviderError(f"the answer cannot be understood: {reason}", kind="malformed", retryable=retryable)


def _classified(status: int | None, error_type: object, text: str) -> tuple[ProviderErrorKind, bool]:
    kind, retryable = (
        _BY_TYPE.get(error_type, _by_status(status)) if isinstance(error_type, str) else _by_status(status)
    )
    if kind == "invalid_request" and _TOO_LONG.search(text) is not None:
        return "context_too_long", False
    return kind, retryable


def _by_status(status: int | None) -> tuple[ProviderErrorKind, bool]:
    if status is None or status >= 500:
        return _BY_STATUS.get(status or 500, ("server", True))
    return _BY_STATUS.get(status, ("invalid_request", False) if 400 <= status < 500 else ("unknown", False))


def _description(body: bytes, headers: Mapping[str, str], answer: JsonObject | None) -> str:
    """Return a few words on a body that is not the API's error object."""
    if answer is not None:
        told = answer.get("message") or answer.get("error") or answer.get("detail")
        return told if isinstance(told, str) and told.strip() else "a JSON object that does not say what is wrong"
    text = body[:4096].decode(errors="replace").strip()
    if not text:
        return "an empty body"
    if "html" in headers.get("content-type", "") or text[:200].lower().startswith(("<!doctype", "<html")):
        title = _TITLE.search(text)
        return f"an HTML page titled {_shortened(title[1], 200)!r}" if title is not None else "an HTML page"
    return f"not JSON: {_shortened(text, 120)}"


def _shortened(text: str, characters: int) -> str:
    text = clean_text(" ".join(text.split()))
    return text if len(text) <= characters else f"{text[:characters]}…"
