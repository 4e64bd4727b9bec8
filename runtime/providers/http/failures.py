"""What an error says, in any of the forms that hosts have for it, and the gateways and proxies before them.

The object is `{"error": {"message", "code" or "type", …}}`, the inner object alone, or what FastAPI (`{"detail": …}`)
and vLLM (`{"object": "error", "message": …}` and a `code` that repeats the status: vllm-project/vllm#37011) make of it;
Google puts it into an array. A proxy answers with a page. What an error means is each API's own matter, but
where only its HTTP status tells.
"""

import re
from collections.abc import Mapping

import msgspec

from refold.events.core.cleaning import clean_text
from refold.events.core.content import Json, JsonObject, is_json_array, is_json_object
from refold.events.core.errors import ProviderError, ProviderErrorKind
from refold.providers.http.wire import decoded, text_field

MESSAGE_CHARACTERS_MAX = 500
"""A host's message is cut after so many characters."""

KINDS_BY_STATUS: dict[int, tuple[ProviderErrorKind, bool]] = {
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
"""The kind of error, and whether the same request may succeed later. Other 4xx are invalid requests and other 5xx the
server's; 409 is a lock not had in time, as OpenAI's official client takes it."""

_NAMED_FIELD = re.compile(
    r"^[`'\"]?(?P<first>[a-z_]+([.\[][\w.\[\]-]*)?)[`'\"]?(: | (may|must|is|should|cannot)\b)"
    r"|(parameter|argument|value|keyword|field|key|type for)s?( provided| supplied)?:? "
    r"[`'\"]?(?P<named>[a-z_][\w.\[\]]*)",
    re.IGNORECASE,
)
"""How errors name a field: "max_tokens: 9 > 8", "`temperature` may only be …", "Unsupported parameter: 'top_p'"."""


class HostError(msgspec.Struct, frozen=True):
    message: str
    """Empty where it gives no reason."""
    words: tuple[str, ...]
    """Its code and its type, in lower case, as far as they are words."""
    status: int | None
    """Its code, where that is an HTTP status."""
    generation: str = ""
    """What the model wrote, where that is what is wrong."""
    field: str | None = None
    """What of the request is wrong."""
    request: str = ""
    """By what the host knows the request."""


def by_status(status: int) -> tuple[ProviderErrorKind, bool]:
    if status in KINDS_BY_STATUS:
        return KINDS_BY_STATUS[status]
    if 400 <= status < 500:
        return "invalid_request", False
    return ("server", True) if status >= 500 else ("unknown", False)


def may_be_repeated(headers: Mapping[str, str], otherwise: bool) -> bool:
    """Return what `x-should-retry` says, which has the last word as for the official clients; names are in any case."""
    told = {name.lower(): value for name, value in headers.items()}.get("x-should-retry")
    return told == "true" if told in ("true", "false") else otherwise


def malformed(reason: str, *, retryable: bool = True) -> ProviderError:
    return ProviderError(f"the answer cannot be understood: {reason}", kind="malformed", retryable=retryable)


def said_in_body(body: bytes) -> HostError:
    try:
        return said_in(decoded(body))
    except ValueError:
        return said_in(body.decode(errors="replace"))


def said_in(value: Json) -> HostError:
    """Return what is said in any of the known forms; `value` is the whole object that holds an error, or the error."""
    while is_json_array(value):
        value = value[0] if value else None
    if not is_json_object(value):
        return HostError(_shown(value), (), None)
    request = text_field(value, "request_id")
    inner = value.get("error")
    if is_json_object(inner):
        value = inner
    elif isinstance(inner, str) and inner.strip():
        value = {**value, "message": text_field(value, "message") or inner}
    words = tuple(word.lower() for key in ("code", "type") if isinstance(word := value.get(key), str) and word)
    message = next((_shown(value[key]) for key in ("message", "detail", "error", "msg") if value.get(key)), "")
    field = text_field(value, "param") or _field_in(value.get("detail")) or _field_named(message)
    return HostError(message, words, _status_in(value), text_field(value, "failed_generation"), field, request)


def _field_in(detail: Json) -> str:
    """Return the field that FastAPI names: `[{"loc": ["body", "temperature"], …}]`."""
    first = detail[0] if is_json_array(detail) and detail else None
    loc = first.get("loc") if is_json_object(first) else None
    return ".".join(str(name) for name in loc if name != "body") if is_json_array(loc) else ""


def _field_named(message: str) -> str | None:
    found = _NAMED_FIELD.search(message)
    return None if found is None else found["first"] or found["named"]


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
            return shortened(repr(value))
        except RecursionError:
            return "something nested deeply"
    text = value.strip()
    if text.startswith("<"):
        title = re.search(r"<title[^>]*>(.{0,200}?)</title>", text[:10_000], re.IGNORECASE | re.DOTALL)
        text = f'a web page, "{title.group(1).strip()}"' if title else "a web page"
    return shortened(text)


def shortened(text: str) -> str:
    cleaned = " ".join(clean_text(text[: 2 * MESSAGE_CHARACTERS_MAX]).split())
    return cleaned if len(cleaned) <= MESSAGE_CHARACTERS_MAX else f"{cleaned[:MESSAGE_CHARACTERS_MAX]}…"
