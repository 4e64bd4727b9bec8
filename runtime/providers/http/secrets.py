"""Keys that are never shown.

The rules: a key leaves a `Secret` only through `reveal`, for the header that carries it; and all that a server sends
(answers, pieces of answers, errors) loses the keys in it before it leaves the provider, by
`refold.events.secrets.redaction`.
"""

import hmac
import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn, Self

from refold.events.core.errors import ConfigError
from refold.events.secrets.redaction import REDACTED, Redaction
from refold.stores.clean_log import in_use

SECRET_CHARACTERS_MIN: Final = 12
DIFFERENT_CHARACTERS_MIN: Final = 6
WORDS_CHARACTERS_MAX: Final = 19
"""What has the place of a key is a placeholder, such as `EMPTY`, `changeme` or `your-key-here`, and is left in texts:
one with fewer characters, or fewer different ones, or of words in small or in capital letters, up to that length."""


KEY_VARIABLES: Final = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")
"""Variables of the environment that providers take their keys from; a tool could show them."""

_KEY: Final = re.compile("[!-~]+")


class Secret:
    """A key, which `repr`, `str`, `pickle` and encoders do not show.

    Args:
        value: the key; white space around it is left out, as files and shells add it.

    Raises:
        ConfigError: it is empty, or holds what no HTTP header can.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not isinstance(value, str):
            raise ConfigError(f"a secret is a text, not {type(value).__name__}")
        stripped = value.strip()
        if not stripped:
            raise ConfigError("a secret is not empty")
        if not all("!" <= character <= "~" for character in stripped):
            raise ConfigError("a secret consists of printable ASCII characters without spaces; this one does not")
        self._value = stripped

    def reveal(self) -> str:
        """Return the key itself, for the place that sends it."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({REDACTED!r})"

    def __str__(self) -> str:
        return REDACTED

    def __format__(self, specification: str) -> str:
        return format(REDACTED, specification)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is not pickled; read it again where it is needed")


def key_from(given: str | Secret | None, variable: str, environment: Mapping[str, str] = os.environ) -> Secret:
    """Return a provider's key: the given one, or that of an environment variable.

    Args:
        given: what the caller passed; None = look into the environment.
        variable: name of the environment variable.
        environment: where to look.

    Raises:
        ConfigError: there is no key; it names the variable.
    """
    if isinstance(given, Secret):
        return given
    value = given if given is not None else environment.get(variable, "")
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"there is no key: pass api_key, or set the environment variable {variable}")
    return Secret(value)


def is_placeholder(value: str) -> bool:
    """Tell whether what has the place of a key would be found in ordinary words, or tells nothing."""
    words = not any(map(str.isdigit, value)) and (value.islower() or value.isupper())
    return (
        len(value) < SECRET_CHARACTERS_MIN
        or len(set(value)) < DIFFERENT_CHARACTERS_MIN
        or (words and len(value) <= WORDS_CHARACTERS_MAX)
    )


def redaction_of(*providers: object, secrets: Iterable[Secret] = ()) -> Redaction:
    """Return what takes out the secrets that providers know, and others; a provider without `redaction` knows none."""
    known = (getattr(provider, "redaction", None) for provider in providers)
    values = (secret.reveal() for secret in secrets)
    return in_use(
        Redaction(
            [value for value in values if not is_placeholder(value)],
            others=[redaction for redaction in known if isinstance(redaction, Redaction)],
        )
    )


def redaction_of_environment(
    environment: Mapping[str, str] = os.environ, names: Iterable[str] = KEY_VARIABLES
) -> Redaction:
    """Return what takes out the keys of providers that an environment holds; placeholders are left."""
    found = (environment.get(name, "").strip() for name in names)
    keys = (value for value in found if not is_placeholder(value) and _KEY.fullmatch(value))
    return in_use(Redaction(value for value in keys if REDACTED not in value))
