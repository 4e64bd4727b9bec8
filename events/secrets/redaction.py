"""What must not be in a log, and the one way in which it is taken out of it.

A `Redaction` knows exact values, patterns and field paths. Everything that is recorded passes through it before it is
decided about, encoded and hashed (`refold.actors.shell.folded_stream`), so the state in memory, the log and what is
folded from it agree. The rules: it is deterministic, and a second pass changes nothing; of values and matches that
overlap nothing is left; and a value that cannot be taken out of its place is never written: it is refused.
"""

import functools
import re
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import (
    Any,
    Final,
    Literal,
    NewType,
    NoReturn,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from refold.events.core.cleaning import clean_text, decoded_in_steps
from refold.events.core.content import ThinkingBlock
from refold.events.core.errors import CommandRejected, ConfigError, ProviderError, unquoted
from refold.events.secrets.spellings import (
    ANY_ESCAPES,
    ESCAPES,
    LINE_ENDS,
    STEP_ESCAPES,
    VALUE_CHARACTERS_MIN,
    Beginnings,
    Places,
    base64_of,
    forms_in_view,
    found_in,
    found_in_view,
    held_in_view,
    holds_any,
    spellings_of,
    without_pauses,
)

T = TypeVar("T")

REDACTED: Final = "[redacted]"
"""Stands where a secret was."""

PLAIN_MIN: Final = 64
"""More needles than this are first looked for in the long words of a text."""

_SPACE: Final = re.compile(r"\s")
_PLAIN: Final = re.compile(r"[A-Za-z0-9+/=_.~-]+")

CLEAN_MAX: Final = 8
CLEAN_CHARACTERS: Final = (2_000, 1_000_000)
"""So many texts, from so many characters to so many, are remembered as clean."""

OPAQUE: Final = frozenset({"digest", "fingerprint", "hash", "sent", "signature", "timer"})
"""Fields of Refold's own that hold digests and the like, in which a pattern could find anything."""


class FieldPath(msgspec.Struct, frozen=True):
    """A place in JSON values whose content is not recorded: `FieldPath("card.number")`.

    Args:
        path: names of object members, outermost first, with dots between; `*` stands for any one. It fits at any depth,
            in arguments and results of tools, other JSON values, and the events of your own actors.

    Raises:
        ConfigError: it names nothing.
    """

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            raise ConfigError(f"a field path is a text, such as 'card.number', not {unquoted(self.path)}")
        if not all(self.path.split(".")):
            raise ConfigError("a field path is names with dots between, such as 'card.number', and one is empty")

    def fits(self, trail: Sequence[str]) -> bool:
        """Return whether it names a place, given the names that lead there."""
        names = self.path.split(".")
        return len(trail) >= len(names) and all(
            name in ("*", found) for name, found in zip(names, trail[-len(names) :], strict=True)
        )


class Redaction:
    """Takes secrets out of texts, values and events.

    Args:
        values: exact secrets. They are also found with escapes of JSON and of Python, URL-encoded (up to four times),
            and inside base64, also where that is broken into lines.
        patterns: compiled for `str`; all that they match in one text is a secret.
        fields: places in JSON values.
        others: whose secrets it knows as well.

    Raises:
        ConfigError: one of them cannot be looked for.
    """

    def __init__(
        self,
        values: Iterable[str] = (),
        patterns: Iterable[re.Pattern[str]] = (),
        fields: Iterable[FieldPath] = (),
        others: "Iterable[Redaction]" = (),
    ) -> None:
        others = list(others)
        known = {*map(_checked_value, values), *(value for other in others for value in other._values)}
        self._values: tuple[str, ...] = tuple(sorted(known, key=lambda value: (-len(value), value)))
        self._patterns: tuple[re.Pattern[str], ...] = _each_once(
            [*map(_checked_pattern, patterns), *(p for other in others for p in other._patterns)]
        )
        self._fields: tuple[FieldPath, ...] = _each_once(
            [*fields, *(field for other in others for field in other._fields)]
        )
        self._in_base64 = _each_once([core for value in self._values for core in base64_of(value)])
        self._needles = _each_once(
            [*(needle for value in self._values for needle in spellings_of(value)), *self._in_base64]
        )
        plain = [needle for needle in self._needles if _PLAIN.fullmatch(needle)]
        self._plain: tuple[str, ...] = tuple(plain) if len(plain) > PLAIN_MIN else ()
        self._others = tuple(needle for needle in self._needles if not self._plain or needle not in plain)
        self._plain_size = min(map(len, plain), default=0)
        self._shortest = min(map(len, self._needles), default=0)
        self._runs = re.compile(rf"[A-Za-z0-9+/=_.~-]{{{self._plain_size},}}")
        self._json_needles = tuple(needle.encode() for needle in self._others)
        self._clean: deque[str] = deque(maxlen=CLEAN_MAX)
        """Long texts without secrets, which come by again on their way into the log."""
        self._viewed = _each_once([form for value in self._values for form in forms_in_view(value)])
        self._beginnings = Beginnings(self._needles)
        self._viewed_beginnings = Beginnings(self._viewed)
        self._base64_beginnings = Beginnings(self._in_base64)
        odd = any(character in value for value in self._values for character in "'\"\\\n\r\t\b\f")
        self._escape = ANY_ESCAPES if odd else ESCAPES

    def __bool__(self) -> bool:
        """Whether it knows anything to look for."""
        return bool(self._values or self._patterns or self._fields)

    def __repr__(self) -> str:
        return f"Redaction({len(self._values)} values, {len(self._patterns)} patterns, {len(self._fields)} fields)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a redaction knows secrets and is not pickled; make another one where it is needed")

    def text(self, text: str) -> str:
        """Return `text` without the secrets; JSON stays JSON."""
        return without_pauses(self.text_in_steps(text))

    def text_in_steps(self, text: str) -> Generator[None, None, str]:
        """As `text`, with pauses where it is long. A pattern looks through all of it in one step."""
        if not self or any(text is known for known in self._clean):
            return text
        cleaned = _replaced(text, (yield from self.spans_in_steps(text)))
        if cleaned is text and CLEAN_CHARACTERS[0] <= len(text) <= CLEAN_CHARACTERS[1]:
            self._clean.append(text)
        return cleaned

    def data(self, data: bytes) -> bytes:
        """Return bytes without the secrets: text where it is UTF-8, else as many asterisks."""
        if not self:
            return data
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return self._binary(data)
        return data if (cleaned := self.text(text)) == text else cleaned.encode()

    def value(self, value: T) -> T:
        """Return a Struct or JSON value without the secrets; the very same one where there are none."""
        if not self:
            return value
        cleaned: T = self._cleaned(value, ())  # type: ignore[assignment]
        return cleaned

    def command(self, command: T) -> T:
        """Return what an actor is told, without the secrets."""
        cleaned = self.value(command)
        if getattr(cleaned, "key", None) != getattr(command, "key", None):
            raise CommandRejected("the key of the command holds what is not to be recorded; choose another key")
        return cleaned

    def error(self, error: ProviderError) -> ProviderError:
        """Return a provider's error without the secrets."""
        text, field = self.text(str(error)), self.text(error.field) if error.field is not None else None
        if (text, field) == (str(error), error.field):
            return error
        return ProviderError(
            text,
            kind=error.kind,
            status=error.status,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
            field=field,
        )

    def finds(self, data: bytes) -> bool:
        return without_pauses(self.finds_in_steps(data))

    def finds_in_steps(self, data: bytes) -> Generator[None, None, bool]:
        for needle in self._json_needles:
            for place in found_in(data, needle):
                if place is not None:
                    return True
                yield
        if not self._values or not (self._plain or b"%" in data or b"\\" in data):
            return False
        text = yield from decoded_in_steps(data, "replace")
        if self._plain and (yield from self._may_hold_plain(text)):
            return True
        for place in self._escaped_spans(text):
            if place is not None:
                return True
            yield
        return False

    def require_none(self, text: str, what: str) -> None:
        """Return if there is no secret in a name, which cannot be redacted."""
        if self and self.text(text) != text:
            raise CommandRejected(f"{what} holds what is not to be recorded; choose another name")

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return where secrets are in `text`, in order; those that overlap are one."""
        return without_pauses(self.spans_in_steps(text))

    def spans_in_steps(self, text: str) -> Generator[None, None, list[tuple[int, int]]]:
        """As `spans`, with pauses where it is long. A pattern looks through all of it in one step."""
        spans: list[tuple[int, int]] = []
        start = 0
        # What was redacted before is left, also by patterns that it fits.
        for redacted in (*(yield from _places_of(found_in(text, REDACTED))), (len(text), len(text))):
            segment = text[start : redacted[0]]
            found = yield from _places_of(self._places(segment))
            spans += _merged([(start + first, start + last) for first, last in found])
            start = redacted[1]
        return spans

    def _places(self, text: str) -> Places:
        yield from self._literal_spans(text)
        yield from self._escaped_spans(text)
        for pattern in self._patterns:
            for match in pattern.finditer(text):
                if match.end() > match.start():
                    yield match.span()

    def holds_value(self, text: str) -> bool:
        """Return whether one of the exact values is in `text`, however it is spelled."""
        return self._without_values(text) != text

    @property
    def has_patterns(self) -> bool:
        """Whether what it finds cannot be told from its beginning."""
        return bool(self._patterns)

    @property
    def has_fields(self) -> bool:
        return bool(self._fields)

    @property
    def has_rules(self) -> bool:
        """Whether it looks for more than values, so that each part of a value must be looked at."""
        return bool(self._patterns or self._fields)

    def held_back(self, text: str) -> int:
        """Return how many characters at the end of `text` may be the beginning of one of the values."""
        longest = self._beginnings.longest_at_end(text)
        if self._values and ("\\" in text or "%" in text):
            longest = max(longest, held_in_view(text, self._escape, self._viewed_beginnings))
        if self._in_base64 and ("\\" in text or "\n" in text or "\r" in text):
            longest = max(longest, held_in_view(text, LINE_ENDS, self._base64_beginnings))
        return longest

    # Where the secrets are in one text

    def _may_hold_plain(self, text: str) -> Generator[None, None, bool]:
        """Tell whether one of the needles that are words is in a text. Of prose only few words are long enough."""
        start = 0
        while start < len(text):
            space = _SPACE.search(text, start + STEP_ESCAPES)
            end = space.end() if space is not None else len(text)
            words = [word for word in text[start:end].split() if len(word) >= self._plain_size]
            runs = "\n".join(run for word in words for run in self._runs.findall(word))
            if runs and any(needle in runs for needle in self._plain):
                return True
            start = end
            if start < len(text):
                yield
        return False

    def _literal_spans(self, text: str) -> Places:
        if len(text) < self._shortest:
            return
        plain = self._plain if self._plain and (yield from self._may_hold_plain(text)) else ()
        for needle in (*self._others, *plain):
            yield from found_in(text, needle)

    def _escaped_spans(self, text: str) -> Places:
        """Find values of which characters are spelled as JSON, Python or URLs may, and base64 that has line ends."""
        if not self._values:
            return
        if (yield from holds_any(text, "\\%")):
            yield from found_in_view(text, self._escape, self._viewed)
        if self._in_base64 and (yield from holds_any(text, "\n\\\r")):
            yield from found_in_view(text, LINE_ENDS, self._in_base64)

    def _binary(self, data: bytes) -> bytes:
        text = data.decode("latin-1")
        for start, end in filter(None, [*self._literal_spans(text), *self._escaped_spans(text)]):
            data = data[:start] + b"*" * (end - start) + data[end:]
        return data

    # Structs and JSON values

    def _cleaned(self, value: object, trail: tuple[str, ...]) -> object:
        if isinstance(value, str):
            return self._cleaned_text(value, trail)
        if isinstance(value, msgspec.Struct):
            return self._cleaned_struct(value, trail)
        if isinstance(value, list | tuple):
            before = cast("Sequence[object]", value)
            items = [self._cleaned(item, trail) for item in before]
            if all(new is old for new, old in zip(items, before, strict=True)):
                return before
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, dict):
            return self._cleaned_object(cast("dict[object, object]", value), trail)
        if isinstance(value, bytes):
            return self.data(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return REDACTED if self.spans(str(value)) else value
        return value

    def _cleaned_text(self, text: str, trail: tuple[str, ...]) -> str:
        if self._fields and text.lstrip()[:1] in ("{", "["):
            text = self._without_fields(text, trail)
        return self.text(text)

    def _without_fields(self, text: str, trail: tuple[str, ...]) -> str:
        """Return a text that is JSON, or was to be JSON, without what is at the field paths."""
        try:
            value: object = msgspec.json.decode(clean_text(text))
            cleaned = self._cleaned(value, trail)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):  # Or nested too deep for one of the two.
            for field in self._fields:
                name = re.escape(field.path.rpartition(".")[2]) if not field.path.endswith("*") else '[^"]*'
                text = re.sub(_MEMBER % name, lambda found: f'{found[1]}"{REDACTED}"', text)
            return text
        return text if cleaned is value else _encode(cleaned).decode()

    def _cleaned_struct(self, value: msgspec.Struct, trail: tuple[str, ...]) -> msgspec.Struct:
        changed: dict[str, object] = {}
        for name, opaque, own in _texts_of(type(value)):
            old = getattr(value, name)
            inner = (*trail, name)
            if own and isinstance(old, str) and any(field.fits(inner) for field in self._fields):
                new: object = REDACTED
            elif opaque:
                new = self._without_values(old)
            elif isinstance(old, int | float):  # Its type does not let it be a text.
                continue
            else:
                new = self._cleaned(old, inner)
            if new is not old and new != old:
                changed[name] = new
        if "thinking" in changed and isinstance(value, ThinkingBlock):
            changed["signature"] = None  # It signed other words, so a provider would refuse them.
        return msgspec.structs.replace(value, **changed) if changed else value

    def _cleaned_object(self, value: Mapping[object, object], trail: tuple[str, ...]) -> object:
        members: dict[object, object] = {}
        same = True
        for key, member in value.items():
            name = self.text(key) if isinstance(key, str) else key
            inner = (*trail, key) if isinstance(key, str) else trail
            hidden = member is not None and any(field.fits(inner) for field in self._fields)
            new = REDACTED if hidden and member != REDACTED else self._cleaned(member, inner)
            same = same and name == key and new is member
            while name in members:
                name = f"{name} {REDACTED}"
            members[name] = new
        return value if same else members

    def _without_values(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        return _replaced(value, _merged([*filter(None, (*self._literal_spans(value), *self._escaped_spans(value)))]))


def _places_of(places: Places) -> Generator[None, None, list[tuple[int, int]]]:
    found: list[tuple[int, int]] = []
    for place in places:
        if place is None:
            yield
        else:
            found.append(place)
    return found


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if len(spans) < 2:
        return spans
    first, *rest = sorted(spans)
    merged = [first]
    for start, end in rest:
        if start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _replaced(text: str, spans: Sequence[tuple[int, int]]) -> str:
    if not spans:
        return text
    numbers = _numbers_of_json(text, spans)
    pieces: list[str] = []
    done = 0
    for start, end in _merged([*spans, *numbers]) if numbers else spans:
        pieces += (text[done:start], f'"{REDACTED}"' if (start, end) in numbers else REDACTED)
        done = end
    return "".join((*pieces, text[done:]))


def _numbers_of_json(text: str, spans: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the numbers of a text that is JSON of which a part is a secret; a text in quotes takes their place."""
    if text.lstrip()[:1] not in ("{", "["):
        return set()
    numbers: set[tuple[int, int]] = set()
    for start, end in spans:
        while start and text[start - 1] in _OF_NUMBERS:
            start -= 1
        while end < len(text) and text[end] in _OF_NUMBERS:
            end += 1
        around = text[max(start - 100, 0) : start].rstrip()[-1:], text[end : end + 100].lstrip()[:1]
        if around[0] in ("[", ",", ":") and around[1] in (",", "]", "}"):
            numbers.add((start, end))
    if not numbers or not _is_json(text):
        return set()
    for token in _STRING.finditer(text):  # What looks like a number may stand in one.
        numbers -= {each for each in numbers if token.start() <= each[0] < token.end()}
        if not numbers:
            break
    return numbers


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


_encode = msgspec.json.Encoder().encode
_OF_NUMBERS = frozenset("0123456789+-.eE")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MEMBER = r'("%s"\s*:\s*)("(?:[^"\\]|\\.)*"?|[^\s,\]}"]+)'


def _checked_value(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"a value to be redacted is a text, not {type(value).__name__}")
    if len(value.strip()) < VALUE_CHARACTERS_MIN:
        raise ConfigError(
            f"a value to be redacted needs {VALUE_CHARACTERS_MIN} characters at least, or it would be found in "
            "ordinary words; name its place with FieldPath instead"
        )
    if clean_text(value) != value or REDACTED in value or value in REDACTED:
        raise ConfigError(f"a value to be redacted is valid text without {REDACTED!r}")
    return value


def _checked_pattern(pattern: object) -> re.Pattern[str]:
    text: object = getattr(pattern, "pattern", None)
    if isinstance(text, str) and isinstance(pattern, re.Pattern):
        return cast("re.Pattern[str]", pattern)
    raise ConfigError(f"a pattern to be redacted is a compiled re.Pattern of text, not {unquoted(pattern)}")


def _each_once(items: Sequence[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


@functools.cache
def _texts_of(cls: type[msgspec.Struct]) -> tuple[tuple[str, bool, bool], ...]:
    """Return the fields of a class that can hold text; whether each is opaque, and whether the class is a user's."""
    own = not cls.__module__.startswith("refold.")
    try:
        hints: Mapping[str, Any] = get_type_hints(cls)
    except (NameError, TypeError, AttributeError):  # Its annotations name what is not there any more.
        hints = {}
    return tuple(
        (name, not own and name in OPAQUE, own)
        for name in cls.__struct_fields__
        if _holds_text(hints.get(name, object))
    )


def _holds_text(hint: Any) -> bool:
    """Tell whether a field of that type may hold words of users; identifiers are Refold's own."""
    if isinstance(hint, NewType) or hint in (int, float, bool, type(None)):
        return False
    if get_origin(hint) is Literal:
        return False
    inner = [argument for argument in get_args(hint) if argument is not Ellipsis]
    return any(map(_holds_text, inner)) if inner else True


NOTHING_SECRET: Final = Redaction()
"""Knows no secrets."""
