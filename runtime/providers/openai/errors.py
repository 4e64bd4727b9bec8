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

import msgspec

from refold.events.core.cleaning import clean_text
from refold.events.core.content import Json, JsonObject, is_json_array, is_json_object
from refold.events.core.errors import ProviderError, ProviderErrorKind
from refold.providers.http.wire import UnusableAnswer, decoded, field_named, text_field

MESSAGE_CHARACTERS_MAX = 500
"""A server's message is cut after so many characters."""

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

_BY_STATUS: dict[int, tuple[ProviderErrorKind, bool]] = {
    401: ("auth", False),
    402: ("auth", False),
    403: ("auth", False),
    408: ("timeout", True),
    409: ("server", True),
    413: ("context_too_long", False),
    425: ("server", True),
    429: ("rate_limit", True),
    498: ("overloaded", True),
    501: ("server", False),
    503: ("overloaded", True),
    504: ("timeout", True),
    505: ("server", False),
    522: ("timeout", True),
    524: ("timeout", True),
    529: ("overloaded", True),
}
"""Other 4xx are invalid requests and other 5xx the server's; 409 is a lock not had in time, as the official client
takes it."""


class _Said(msgspec.Struct, frozen=True):
    """What a server says of an error."""

    message: str
    words: tuple[str, ...]
    """Its code and its type, in lower case, as far as they are words."""
    status: int | None
    """Its code, where that is an HTTP status."""
    generation: str = ""
    """What the model wrote, where that is what is wrong."""
    field: str | None = None
    """What of the request is wrong."""


def failure_of_status(provider: str, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Return what an HTTP status other than 2xx says.

    The header `x-should-retry` has the last word on retrying, as for the official client.

    Args:
        headers: the response's, in any case.
    """
    try:
        value: Json = decoded(body)
    except ValueError:
        value = body.decode(errors="replace")
    said = _said(value)
    if (slip := _slip(provider, said, status)) is not None:
        return slip
    kind, retryable = _classified(said, status)
    told = {name.lower(): value for name, value in headers.items()}.get("x-should-retry")
    if told in ("true", "false"):
        retryable = told == "true"
    return ProviderError(
        _message(provider, said, status), kind=kind, status=status, retryable=retryable, field=said.field
    )


def failure_inside(provider: str, value: Json) -> ProviderError:
    """Return what an error inside a response of status 200 says, perhaps in the midst of a stream.

    One that does not say what it is counts as the server's own and may be repeated: the request had been accepted.

    Args:
        value: the whole object that holds the error, or the error itself.
    """
    said = _said(value)
    if (slip := _slip(provider, said, said.status)) is not None:
        return slip
    kind, retryable = _classified(said, said.status)
    return ProviderError(
        _message(provider, said, said.status), kind=kind, status=said.status, retryable=retryable, field=said.field
    )


def _slip(provider: str, said: _Said, status: int | None) -> UnusableAnswer | None:
    """Return what is said where it is the model that made a mistake."""
    if not (_SLIP_CODES & set(said.words) or _SLIP.search(said.message)):
        return None
    return UnusableAnswer(_message(provider, said, status), status=status, generation=said.generation)


def _classified(said: _Said, status: int | None) -> tuple[ProviderErrorKind, bool]:
    words = set(said.words)
    if words & _TOO_LONG_CODES:
        return "context_too_long", False
    if words & _NO_MONEY_CODES:
        return "rate_limit", False
    if (status is None or status in _TOO_LONG_STATUSES) and _TOO_LONG.search(said.message):
        return "context_too_long", False
    by_status = _by_status(status)
    by_code = next((_BY_CODE[word] for word in said.words if word in _BY_CODE), None)
    if by_status is None:
        return by_code or ("server", True)
    if by_code is None or status in _BY_STATUS:
        return by_status
    # 400 with `server_error` and 500 with `invalid_request_error` exist; the status says who is to blame, except
    # where the code is the finer word for the same.
    return by_code if by_code[1] == by_status[1] else by_status


def _by_status(status: int | None) -> tuple[ProviderErrorKind, bool] | None:
    if status is None:
        return None
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 400 <= status < 500:
        return "invalid_request", False
    return ("server", True) if status >= 500 else ("unknown", False)


def _said(value: Json) -> _Said:
    """Return what is said in any of the known forms."""
    while is_json_array(value):
        value = value[0] if value else None
    if not is_json_object(value):
        return _Said(_shown(value), (), None)
    inner = value.get("error")
    if is_json_object(inner):
        value = inner
    elif isinstance(inner, str) and inner.strip():
        value = {**value, "message": text_field(value, "message") or inner}
    words = tuple(word.lower() for key in ("code", "type") if isinstance(word := value.get(key), str) and word)
    message = _worded(value)
    field = text_field(value, "param") or _field_in(value.get("detail")) or field_named(message)
    return _Said(message, words, _status_in(value), text_field(value, "failed_generation"), field)


def _field_in(detail: Json) -> str:
    """Return the field that FastAPI names: `[{"loc": ["body", "temperature"], …}]`."""
    first = detail[0] if is_json_array(detail) and detail else None
    loc = first.get("loc") if is_json_object(first) else None
    return ".".join(str(name) for name in loc if name != "body") if is_json_array(loc) else ""


def _worded(value: JsonObject) -> str:
    for key in ("message", "detail", "error", "msg"):
        if value.get(key):
            return _shown(value[key])
    return ""


def _status_in(value: JsonObject) -> int | None:
    for key in ("code", "status", "status_code"):
        code = value.get(key)
        if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
            code = int(code)
        if type(code) is int and 400 <= code <= 599:
            return code
    return None


def _shown(value: Json) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        try:
            return _cut(repr(value))
        except RecursionError:
            return "something nested deeply"
    text = value.strip()
    if text.startswith("<"):
        title = re.search(r"<title[^>]*>(.{0,200}?)</title>", text[:10_000], re.IGNORECASE | re.DOTALL)
        text = f'a web page, "{title.group(1).strip()}"' if title else "a web page"
    return _cut(text)


def _cut(text: str) -> str:
    cleaned = " ".join(clean_text(text[: 2 * MESSAGE_CHARACTERS_MAX]).split())
    return cleaned if len(cleaned) <= MESSAGE_CHARACTERS_MAX else f"{cleaned[:MESSAGE_CHARACTERS_MAX]}…"


def _message(provider: str, said: _Said, status: int | None) -> str:
    what = f"{provider} answered with status {status}" if status is not None else f"{provider} reported an error"
    words = ", ".join(dict.fromkeys(said.words))  # Many errors have one word for both code and type.
    named = f" ({_cut(words)})" if words else ""
    return f"{what}{named}: {said.message or 'no reason given'}"
