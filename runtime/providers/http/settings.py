"""Settings of providers that are reached over HTTP: times, sizes, and where requests go."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import TypedDict

import httpx
import msgspec

from refold.events.core.cleaning import is_finite
from refold.events.core.errors import ConfigError, unquoted
from refold.providers.http.secrets import Secret

PORT_MAX = 65_535

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class HttpTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long each part of a call may take, in seconds above 0; None = as long as it likes.

    Raises:
        ConfigError: a value is no such number.
    """

    connect_s: float | None = 10.0
    """To reach the host, and again to agree on encryption."""
    first_byte_s: float | None = 600.0
    """From the call to the first line of the response: without streaming, the model does all its work before that."""
    silence_s: float | None = 300.0
    """Between two pieces of a response; a comment or ping is a sign of life. Some models think for minutes without."""
    total_s: float | None = 3600.0
    """For the whole call."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            number = is_finite(value)
            if value is not None and not (number and value > 0):
                raise ConfigError(f"HttpTimeouts.{field} is a number of seconds above 0 or None, not {unquoted(value)}")


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a response is taken before the call fails, each at least 1.

    Raises:
        ConfigError: a value is no such number.
    """

    body_bytes_max: int = 64 * 1024 * 1024
    """Of the body, streamed or not."""
    event_characters_max: int = 8 * 1024 * 1024
    """Of one event of a stream, and so of one line."""
    events_max: int = 1_000_000
    """Events of one stream."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if type(value) is not int or value < 1:
                raise ConfigError(f"HttpLimits.{field} is an integer of at least 1, not {unquoted(value)}")


class HttpOptions(TypedDict, total=False):
    """What every provider over HTTP may be told, all optional."""

    headers: Mapping[str, str | Secret]
    """Sent besides; one replaces the provider's own of that name, but not the key's. A `Secret` is never shown."""
    timeouts: HttpTimeouts
    limits: HttpLimits
    transport: httpx.AsyncBaseTransport | Callable[[], httpx.AsyncBaseTransport] | None
    """What sends, instead of the network; for tests, or a proxy of your own (`httpx.AsyncHTTPTransport(proxy=...)`). A
    function makes one for each connection; one that is given itself sends everything."""
    trust_env: bool
    """Whether `HTTPS_PROXY`, `SSL_CERT_FILE` and the like count; False = nothing of the environment does."""
    allow_http: bool
    """Whether key and prompts may go unencrypted to a host other than this machine."""


def check_fields(provider: str, given: msgspec.Struct, *bounds: tuple[str, bool, str]) -> None:
    """Refuse the first field that is not good; `bounds` say of each whether it is, and what it must be."""
    for field, good, wanted in bounds:
        if not good:
            raise ConfigError(f"{provider}: {field} must be {wanted}, not {unquoted(getattr(given, field))}")


def checked_base_url(base_url: str, *, allow_http: bool) -> httpx.URL:
    if not isinstance(base_url, str):
        raise ConfigError(f"the base URL is a text, not {type(base_url).__name__}")
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, ValueError):  # It quotes the URL.
        url = None
    if url is None and not _may_hold_a_password(base_url):
        raise ConfigError("the base URL cannot be read; one is like https://host/path or https://host:8000/path")
    if url is None or url.userinfo or (not url.host and _may_hold_a_password(base_url)):
        raise ConfigError("the base URL holds a user name or password; pass a key or a header instead")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError("a base URL is like https://host/path, and this one has another scheme or no host")
    if url.fragment:
        raise ConfigError("a base URL has no part behind #")
    if url.port is not None and url.port > PORT_MAX:
        raise ConfigError(f"the base URL has the port {url.port}; there are ports up to {PORT_MAX}")
    if url.scheme == "http" and not allow_http and not _is_this_machine(url.host):
        raise ConfigError(
            f"http://{url.netloc.decode('ascii')} would send the key and the prompts unencrypted; use https, or pass "
            "allow_http=True (on the command line --allow-http)"
        )
    return url


def is_at(url: str, *hosts: str) -> bool:
    """Return whether a URL is at one of `hosts` (".example.org") or below; what is none is refused when it is used."""
    try:
        return f".{httpx.URL(url).host}".endswith(hosts)
    except (httpx.InvalidURL, TypeError):
        return False


def _may_hold_a_password(base_url: str) -> bool:
    """Return whether a base URL that cannot be read seems to hold a password."""
    return "@" in base_url


def checked_options(options: HttpOptions) -> tuple[HttpTimeouts, HttpLimits]:
    timeouts, limits = options.get("timeouts", HttpTimeouts()), options.get("limits", HttpLimits())
    if not isinstance(timeouts, HttpTimeouts):
        raise ConfigError(f"timeouts are HttpTimeouts(…), not {unquoted(timeouts)}")
    if not isinstance(limits, HttpLimits):
        raise ConfigError(f"limits are HttpLimits(…), not {unquoted(limits)}")
    return timeouts, limits


def secrets_in_query(url: httpx.URL) -> list[Secret]:
    """Return the keys that a base URL's query holds, as they are and as they are sent."""
    parts = [part.partition("=") for part in url.query.decode("ascii").split("&")]
    encoded = [(name, value) for name, _, value in parts]
    values: list[tuple[str, str]] = [*url.params.multi_items(), *encoded]
    return [
        Secret(value)
        for name, value in values
        if _sounds_secret(name.lower()) and value and all("!" <= letter <= "~" for letter in value)
    ]


def checked_headers(headers: Mapping[str, str | Secret]) -> tuple[dict[str, str], dict[str, str], list[Secret]]:
    """Return headers that may be seen, headers that may not, both by lower-case name, and the secrets in these."""
    open_ones: dict[str, str] = {}
    hidden: dict[str, str] = {}
    secrets: list[Secret] = []
    for name, value in checked_mapping(headers).items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise ConfigError("the name of a header is a text of letters, digits and !#$%&'*+.^_`|~-, and one is not")
        text = value.reveal() if isinstance(value, Secret) else value
        if not isinstance(text, str) or text != text.strip() or not all(" " <= letter <= "~" for letter in text):
            raise ConfigError(f"the value of the header {name} is not printable ASCII text")
        if isinstance(value, Secret) or _sounds_secret(name.lower()):
            hidden[name.lower()] = text
            secrets.extend(Secret(word) for word in text.split())
        else:
            open_ones[name.lower()] = text
    return open_ones, hidden, secrets


def checked_mapping(headers: Mapping[str, str | Secret]) -> Mapping[str, str | Secret]:
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers are values by their names, not {type(headers).__name__}")
    return headers


def _sounds_secret(name: str) -> bool:
    return any(word in name for word in ("auth", "cookie", "key", "password", "secret", "token"))


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
