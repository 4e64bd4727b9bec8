"""Keys that are never shown, and what takes them out of text that came from outside.

The rules: a key leaves a `Secret` only through `reveal`, for the header that carries it; and all that a server sends
(answers, pieces of answers, errors) loses the keys in it before it leaves the provider, also one that comes in pieces.
"""

import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn, Self, TypeVar, cast

import msgspec

from refold.events.core.cleaning import clean_text
from refold.events.core.content import is_json_object
from refold.events.core.errors import ConfigError, ProviderError
from refold.events.model.messages import Delta, TextDelta, ThinkingDelta, ToolInputDelta, ToolUse

T = TypeVar("T")

REDACTED: Final = "[redacted]"
"""Stands where a secret was."""

SECRET_CHARACTERS_MIN = 12
"""A shorter value is a placeholder, such as a local server's `EMPTY` or `ollama`, and is left in texts."""

SHOWN_EARLY_CHARACTERS_MAX = 3
"""So much of the beginning of a secret is shown where an answer goes on elsewhere: every second text ends with `s`."""


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


class Redactor:
    """Takes known secrets out of texts and values.

    Args:
        secrets: what to take out; values shorter than `SECRET_CHARACTERS_MIN` are left.
    """

    def __init__(self, secrets: Iterable[Secret], others: "Iterable[Redactor]" = ()) -> None:
        values = {*(secret.reveal() for secret in secrets), *(value for other in others for value in other._values)}
        # The longest first, so that a secret that holds another goes as a whole.
        self._values: tuple[str, ...] = tuple(
            sorted((v for v in values if len(v) >= SECRET_CHARACTERS_MIN), key=lambda v: (-len(v), v))
        )

    def __repr__(self) -> str:
        return f"Redactor({len(self._values)} secrets)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("who knows secrets is not pickled; make another one where it is needed")

    def text(self, text: str) -> str:
        """Return `text` without the secrets."""
        for value in self._values:
            if value in text:
                text = text.replace(value, REDACTED)
        return text

    def data(self, data: bytes) -> bytes:
        for value in self._values:
            if value.encode() in data:
                data = data.replace(value.encode(), REDACTED.encode())
        return data

    def value(self, value: T) -> T:
        """Return a Struct or JSON value without the secrets; the very same one where there are none."""
        if not self._values:
            return value
        cleaned: T = self._cleaned(value)  # type: ignore[assignment]
        return cleaned

    def error(self, error: ProviderError) -> ProviderError:
        text = str(error)
        cleaned = self.text(text)
        if cleaned == text:
            return error
        return ProviderError(
            cleaned,
            kind=error.kind,
            status=error.status,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
        )

    def held_back(self, text: str) -> int:
        """Return how many characters at the end of `text` may be the beginning of a secret."""
        longest = 0
        for value in self._values:
            for size in range(min(len(value) - 1, len(text)), longest, -1):
                if text.endswith(value[:size]):
                    longest = size
                    break
        return longest

    def _cleaned(self, value: object) -> object:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, msgspec.Struct):
            fields = {field: getattr(value, field) for field in value.__struct_fields__}
            changed = {field: new for field, old in fields.items() if (new := self._cleaned(old)) is not old}
            if isinstance(value, ToolUse) and isinstance(value.input, str):
                arguments = self._cleaned_arguments(value.input)
                changed |= {"input": arguments} if arguments is not value.input else {}
            return msgspec.structs.replace(value, **changed) if changed else value
        if isinstance(value, list | tuple):
            before = cast("Sequence[object]", value)
            items = [self._cleaned(item) for item in before]
            if all(new is old for new, old in zip(items, before, strict=True)):
                return before
            return tuple(items) if isinstance(value, tuple) else items
        if is_json_object(value):
            members = {self.text(key): self._cleaned(member) for key, member in value.items()}
            same = all(key in members and members[key] is member for key, member in value.items())
            return value if same else members
        return value

    def _cleaned_arguments(self, text: str) -> str:
        """Return the text of a call's arguments without the secrets, also those that its JSON spells with escapes."""
        text = self.text(text)
        if "\\" not in text:
            return text
        try:
            arguments: object = msgspec.json.decode(clean_text(text))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return text  # No arguments, then.
        cleaned = self._cleaned(arguments)
        return text if cleaned is arguments else msgspec.json.encode(cleaned).decode()


def redactor_of(*providers: object) -> Redactor:
    """Return one that takes out the secrets that providers know; those without a `redactor` know none."""
    known = (getattr(provider, "redactor", None) for provider in providers)
    return Redactor((), [redactor for redactor in known if isinstance(redactor, Redactor)])


class _Waiting(msgspec.Struct, frozen=True):
    """The end of a text, which may be the beginning of a secret."""

    delta: Delta
    """What it came in, without its text."""
    text: str
    shown: int = 0
    """So many characters at its beginning have been shown."""

    def unseen(self) -> list[Delta]:
        return [_with_text(self.delta, self.text[self.shown :])] if self.shown < len(self.text) else []


class DeltaRedactor:
    """Takes secrets out of an answer that comes in pieces, also where one is split over several.

    The end of a text that may be the beginning of a secret waits for the text's next piece; `rest` gives what is
    waiting when the answer is complete. Where something else follows, such as a call behind "I look at the files", a
    short end does not wait on: it would be shown behind what follows it.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._waiting: dict[tuple[type[Delta], int], _Waiting] = {}

    def pieces(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return what may be shown after the next pieces have come."""
        return [shown for delta in deltas for shown in self._shown(delta)]

    def rest(self) -> list[Delta]:
        """Return the ends that waited in vain for a secret to go on."""
        waiting, self._waiting = self._waiting, {}
        return [delta for end in waiting.values() for delta in end.unseen()]

    def _shown(self, delta: Delta) -> list[Delta]:
        text = _text_of(delta)
        if text is None:
            return [self._redactor.value(delta)]
        place = (type(delta), delta.index if isinstance(delta, ToolInputDelta) else 0)
        deltas = self._left_behind(place)
        before = self._waiting.pop(place, _Waiting(delta, ""))
        whole = self._redactor.text(before.text + text)
        # What was shown is where it was, unless it has become a part of a secret.
        begin = next(size for size in range(before.shown, -1, -1) if whole.startswith(before.text[:size]))
        end = len(whole) - self._redactor.held_back(whole)
        clean = self._redactor.value(_with_text(delta, ""))
        if end < len(whole):
            self._waiting[place] = _Waiting(clean, whole[end:], shown=max(begin - end, 0))
        # A piece of a call is shown even if it is empty: it says that the call has begun.
        if begin < end or isinstance(delta, ToolInputDelta):
            deltas.append(_with_text(clean, whole[begin:end]))
        return deltas

    def _left_behind(self, place: tuple[type[Delta], int]) -> list[Delta]:
        """Return the short ends of other texts than the one at `place`, and remember that they are shown."""
        deltas: list[Delta] = []
        for other, end in self._waiting.items():
            if other != place and len(end.text) <= SHOWN_EARLY_CHARACTERS_MAX:
                deltas += end.unseen()
                self._waiting[other] = msgspec.structs.replace(end, shown=len(end.text))
        return deltas


def _text_of(delta: Delta) -> str | None:
    match delta:
        case TextDelta(text=text) | ThinkingDelta(thinking=text) | ToolInputDelta(partial_json=text):
            return text
        case _:
            return None


def _with_text(delta: Delta, text: str) -> Delta:
    match delta:
        case TextDelta():
            return TextDelta(text)
        case ThinkingDelta():
            return ThinkingDelta(text)
        case ToolInputDelta():
            return msgspec.structs.replace(delta, partial_json=text)
        case _:
            return delta
