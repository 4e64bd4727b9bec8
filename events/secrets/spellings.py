"""As what else a secret may stand in a text, and how it is found there without a long step.

A value is found by the ways in which all of it is spelled (`spellings_of`), and in a view of the text in which single
characters are spelled as such: escapes of JSON and of Python, of URLs, line ends within base64. The rules: what is
found does not depend on where the steps end; and the time grows with the text, not with what stands in it.
"""

import base64
import re
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import AnyStr, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")

Places: TypeAlias = Iterator[tuple[int, int] | None]
"""Where secrets are in a text, in any order; None = all else may go on before the search does."""

VALUE_CHARACTERS_MIN: Final = 6
"""A shorter value would be found in ordinary words."""

BASE64_CHARACTERS_MIN: Final = 12
"""A value is looked for in base64 where so many of its characters are certain."""

HEAD_CHARACTERS: Final = 4
"""By so many first characters values are found that a text may end in the beginning of; none is shorter."""

STEP_CHARACTERS: Final = 1_000_000
"""So much of a long text is looked through for one value without a pause; a millisecond or less."""

STEP_ESCAPES: Final = 16 * 1024
"""So many characters are looked through for escapes without a pause, of which each may be one."""

_encode = msgspec.json.Encoder().encode


class Beginnings:
    """Knows how values begin, by their first characters."""

    def __init__(self, values: Iterable[str]) -> None:
        self._short = {value[:size] for value in values for size in range(1, HEAD_CHARACTERS)}
        self._by_head: dict[str, list[str]] = {}
        for value in values:
            self._by_head.setdefault(value[:HEAD_CHARACTERS], []).append(value)
        self._longest = max(map(len, values), default=0)

    def longest_at_end(self, text: str) -> int:
        """Return how long the longest end of `text` is that one of the values begins with, and goes on."""
        for start in range(max(len(text) - self._longest + 1, 0), len(text)):
            head = text[start : start + HEAD_CHARACTERS]
            if len(head) < HEAD_CHARACTERS:
                if head in self._short:
                    return len(head)
            elif head in self._by_head:
                end = text[start:]
                if any(len(value) > len(end) and value.startswith(end) for value in self._by_head[head]):
                    return len(end)
        return 0


class Escapes(NamedTuple):
    """What may stand in a text in place of characters."""

    pattern: re.Pattern[str]
    meaning: Callable[[str], str]
    outside: re.Pattern[str]
    """What matches this ends where no escape goes on."""
    begun: re.Pattern[str]
    """Finds one at the end of a text that may go on."""


def _meaning(spelled: str) -> str:
    if spelled[0] == "%":
        return chr(int(spelled[-2:], 16))
    if len(spelled) > 2 and (digits := _HEX.search(spelled)) is not None:
        code = int(digits[0], 16)
        return chr(code) if code <= 0x10FFFF else ""
    return _SHORT_ESCAPES[spelled[-1]]


def _no_text(_: str) -> str:
    return ""


_SHORT_ESCAPES = {"/": "/", '"': '"', "'": "'", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "\\": ""}
_HEX = re.compile(r"(?<=[uxU])[0-9a-fA-F]+\Z")
_CODE = r"\\(?<!\\\\)\\*+(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|%s)|%%(?:25){0,3}[0-9a-fA-F]{2}"
_NO_ESCAPE = re.compile(r"(?=%)|(?<!\\)(?=\\)|[^\\%uxU0-9a-fA-F]")
_BEGUN_ESCAPE = re.compile(
    r"(?:\\(?<!\\\\)\\*+(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?|U[0-9a-fA-F]{0,7})?|%(?:25){0,3}[0-9a-fA-F]?)\Z"
)
ESCAPES: Final = Escapes(re.compile(_CODE % "/"), _meaning, _NO_ESCAPE, _BEGUN_ESCAPE)
ANY_ESCAPES: Final = Escapes(re.compile(_CODE % "[/\"'nrtbf]|"), _meaning, _NO_ESCAPE, _BEGUN_ESCAPE)
"""The same, with the escapes of characters that few secrets have. Backslashes alone count as nothing: where several
follow each other, nobody knows how often they were escaped."""
_LINE = "[A-Za-z0-9+/_-]{16}"
LINE_ENDS: Final = Escapes(
    re.compile(rf"[\r\n\\](?<={_LINE}[\r\n\\])(?:(?<=\r)\n|(?<=\\)\\*(?:r\\+)?n|(?<=[\r\n]))[ \t]*(?=[A-Za-z0-9+/_-])"),
    _no_text,
    re.compile(r"[^\\\s]{2}"),
    re.compile(rf"(?<={_LINE})(?:\r?\n?|\\+(?:r\\*)?n?)[ \t]*\Z"),
)
"""Line ends within base64, also as JSON spells them; a line has 16 characters or more."""


def found_in(text: AnyStr, needle: AnyStr) -> Places:
    """Find a text or bytes in others, also where they overlap."""
    start = 0
    while start < len(text):
        place = text.find(needle, start, start + STEP_CHARACTERS + len(needle) - 1)
        if place >= 0:
            yield place, place + len(needle)
            start = place + 1
            continue
        start += STEP_CHARACTERS
        if start < len(text):
            yield None


def holds_any(text: str, characters: str) -> Generator[None, None, bool]:
    if len(text) <= STEP_CHARACTERS:
        return any(character in text for character in characters)
    for character in characters:
        for place in found_in(text, character):
            if place is not None:
                return True
            yield
    return False


def found_in_view(text: str, escapes: Escapes, forms: Iterable[str]) -> Places:
    """Find texts in what another one is where its escapes are resolved, and give the places of the escaped ones."""
    view, place = yield from unescaped(text, escapes)
    if len(view) == len(text):
        return
    for form in forms:
        for found in found_in(view, form):
            yield found and (place(found[0])[0], place(found[1] - 1)[1])


def held_in_view(text: str, escapes: Escapes, beginnings: Beginnings) -> int:
    """Return how many characters at the end of a text may be the beginning of a value that is spelled so."""
    begun = escapes.begun.search(text)
    whole = text[: begun.start()] if begun is not None else text
    view, place = without_pauses(unescaped(whole, escapes))
    held = beginnings.longest_at_end(view)
    if held:
        return len(text) - place(len(view) - held)[0]
    return len(text) - len(whole) if escapes is not LINE_ENDS else 0


def unescaped(text: str, escapes: Escapes) -> Generator[None, None, tuple[str, Callable[[int], tuple[int, int]]]]:
    """Return `text` with escapes resolved, and what tells where in `text` a character of that is; in steps."""
    view = ""
    starts: list[int] = []
    found: list[tuple[int, int, int]] = []
    done = length = begin = 0
    while begin < len(text):
        pieces: list[str] = []
        outside = escapes.outside.search(text, begin + STEP_ESCAPES)
        until = outside.end() if outside is not None else len(text)
        for match in escapes.pattern.finditer(text, begin, until):
            start, end = match.span()
            character = escapes.meaning(text[start:end])
            pieces += (text[done:start], character)
            length += start - done
            starts.append(length)
            length += len(character)
            found.append((length, start, end))
            done = end
        view += "".join(pieces)  # In place, so that what was there is not copied.
        begin = until
        if begin < len(text):
            yield

    def place(index: int) -> tuple[int, int]:
        nearest = bisect_right(starts, index) - 1
        over, start, end = found[nearest] if nearest >= 0 else (0, 0, 0)
        if index < over:
            return start, end
        return end + index - over, end + index - over + 1

    view += text[done:]
    return view, place


def without_pauses(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as found:
            value: T = found.value
            return value


def spellings_of(value: str) -> Iterator[str]:
    """Give the ways in which a value stands in a text, apart from those in which single characters are escaped."""
    yield value
    spelled = value
    for _ in range(2):
        spelled = _encode(spelled).decode()[1:-1]
        yield spelled
    yield value.replace(" ", "+")


def base64_of(value: str) -> Iterator[str]:
    """Give what is certain of a value within base64, of which nobody knows where the value begins."""
    data = value.encode()
    for skipped, first in ((0, 0), (1, 2), (2, 3)):
        sure = slice(first, (skipped + len(data)) * 8 // 6)
        for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
            core = alphabet(b"\0" * skipped + data).decode()[sure]
            if len(core) >= BASE64_CHARACTERS_MIN:
                yield core


def forms_in_view(value: str) -> Iterator[str]:
    """Give what a value is where escapes are resolved: those of URLs are bytes, in JSON halves of surrogate pairs."""
    units = value.encode("utf-16-be")
    halves = "".join(chr(int.from_bytes(units[at : at + 2])) for at in range(0, len(units), 2))
    for form in (value, halves, value.encode().decode("latin-1")):
        yield form
        yield form.replace(" ", "+")
        bare, _ = without_pauses(unescaped(form, ANY_ESCAPES))  # A value may look as if it were escaped itself.
        if bare != form and len(bare) >= VALUE_CHARACTERS_MIN:
            yield bare
            yield bare.replace(" ", "+")
