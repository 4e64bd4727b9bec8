"""JSON as models write it: found at a place in a text, with what follows left alone.

Strict JSON is read first, by the standard decoder. What that refuses is read once more by a reader that also takes
single and triple quotes, line breaks in strings, bare keys, trailing commas, and Python's True, False and None. The
rule: only what has one meaning is read; for everything else there is no value. Time grows with the length of what is
read, and no text raises.
"""

import json
import re
from typing import NamedTuple, NoReturn

from refold.events.core.cleaning import DEPTH_MAX, clean_text
from refold.events.core.content import Json, JsonObject

_BLANK = re.compile(r"\s*")
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NUMBER = re.compile(r"-?\d{1,400}(?:\.\d{1,400})?(?:[eE][+-]?\d{1,3})?(?![\w.])")
_PLAIN = {quote: re.compile(rf"[^\\{quote}]*") for quote in "\"'"}
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*[=:](?!=)")
_HEXADECIMAL = {"x": re.compile(r"[0-9a-fA-F]{2}"), "u": re.compile(r"[0-9a-fA-F]{4}")}

_CONSTANTS: dict[str, Json] = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"', "'": "'"}


class CallArguments(NamedTuple):
    """The arguments of a call written as in a program, such as `(city="Lisbon", days=2)`."""

    named: JsonObject
    positional: list[Json]
    end: int
    """Place behind the call."""


def read_json(text: str, at: int = 0) -> tuple[Json, int] | None:
    """Return the JSON value that begins at the first character at or after `at` that is not blank, and its end."""
    start = _after_blanks(text, at)
    return _read_strictly(text, start) or _read_loosely(text, start)


def read_call(text: str, at: int) -> CallArguments | None:
    """Return the arguments of the call whose opening parenthesis stands at `at`, or None where they are none."""
    if not text.startswith("(", at):
        return None
    reader = _Reader(text, at + 1)
    try:
        named, positional = reader.arguments()
        reader.expect(")")
    except _NotJson:
        return None
    return CallArguments(named, positional, reader.at)


def read_keywords(text: str) -> JsonObject | None:
    """Return the arguments in a text that is nothing but such, as in `city="Lisbon", days=2`, or None."""
    if _KEYWORD.match(text) is None:
        return None
    reader = _Reader(text, 0)
    try:
        named, positional = reader.arguments()
    except _NotJson:
        return None
    return named if named and not positional and not text[reader.at :].strip() else None


def _read_strictly(text: str, start: int) -> tuple[Json, int] | None:
    try:
        return _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None


def _read_loosely(text: str, start: int) -> tuple[Json, int] | None:
    reader = _Reader(text, start)
    try:
        return reader.value(0), reader.at
    except _NotJson:
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_STRICT = json.JSONDecoder(parse_constant=_refuse)


class _NotJson(Exception):
    """What stands here has no certain meaning."""


def _after_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found is not None else at


class _Reader:
    """Reads looser JSON from a place on; `at` is the place reached."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def value(self, depth: int) -> Json:
        if depth > DEPTH_MAX:
            raise _NotJson
        self.at = _after_blanks(self.text, self.at)
        opening = self.text[self.at : self.at + 1]
        if opening == "{":
            return self._object(depth)
        if opening == "[":
            return self._array(depth)
        if opening and opening in "\"'":
            return self._string(opening)
        word = _BARE.match(self.text, self.at)
        if word is not None and word.group() in _CONSTANTS:
            self.at = word.end()
            return _CONSTANTS[word.group()]
        number = _NUMBER.match(self.text, self.at)
        if number is None:
            raise _NotJson
        self.at = number.end()
        digits = number.group()
        return int(digits) if digits.lstrip("-").isdigit() else float(digits)

    def arguments(self) -> tuple[JsonObject, list[Json]]:
        """Read what stands between the parentheses of a call, as far as it goes."""
        named: JsonObject = {}
        positional: list[Json] = []
        self.at = _after_blanks(self.text, self.at)
        while self.at < len(self.text) and self.text[self.at] != ")":
            keyword = _KEYWORD.match(self.text, self.at)
            if keyword is None:
                positional.append(self.value(1))
            elif keyword.group(1) in named:
                raise _NotJson
            else:
                self.at = keyword.end()
                named[keyword.group(1)] = self.value(1)
            if not self._takes(","):
                break
            self.at = _after_blanks(self.text, self.at)
        return named, positional

    def expect(self, character: str) -> None:
        """Pass over `character`, which has to be the next one that is not blank."""
        if not self._takes(character):
            raise _NotJson

    def _takes(self, character: str) -> bool:
        place = _after_blanks(self.text, self.at)
        if not self.text.startswith(character, place):
            return False
        self.at = place + 1
        return True

    def _object(self, depth: int) -> JsonObject:
        self.at += 1
        found: JsonObject = {}
        while not self._takes("}"):
            if found:
                self.expect(",")
                if self._takes("}"):
                    break
            key = self._key()
            self.expect(":")
            if key in found:
                raise _NotJson
            found[key] = self.value(depth + 1)
        return found

    def _key(self) -> str:
        self.at = _after_blanks(self.text, self.at)
        opening = self.text[self.at : self.at + 1]
        if opening and opening in "\"'":
            return self._string(opening)
        bare = _BARE.match(self.text, self.at)
        if bare is None:
            raise _NotJson
        self.at = bare.end()
        return bare.group()

    def _array(self, depth: int) -> list[Json]:
        self.at += 1
        found: list[Json] = []
        while not self._takes("]"):
            if found:
                self.expect(",")
                if self._takes("]"):
                    break
            found.append(self.value(depth + 1))
        return found

    def _string(self, quote: str) -> str:
        if self.text.startswith(quote * 3, self.at):
            end = self.text.find(quote * 3, self.at + 3)
            if end < 0:
                raise _NotJson
            inside, self.at = self.text[self.at + 3 : end], end + 3
            return inside
        pieces: list[str] = []
        self.at += 1
        while True:
            plain = _PLAIN[quote].match(self.text, self.at)
            assert plain is not None  # It may be empty.
            pieces.append(plain.group())
            self.at = plain.end() + 1
            if self.at > len(self.text):
                raise _NotJson
            if self.text[self.at - 1] == quote:
                return clean_text("".join(pieces))  # Two escapes may stand for one character.
            pieces.append(self._escaped())

    def _escaped(self) -> str:
        """Return what the backslash before `at` and what follows it stand for; a backslash of no meaning stays."""
        letter = self.text[self.at : self.at + 1]
        self.at += 1
        if letter in _HEXADECIMAL:
            code = _HEXADECIMAL[letter].match(self.text, self.at)
            if code is None:
                raise _NotJson
            self.at = code.end()
            return chr(int(code.group(), 16))
        return _ESCAPES.get(letter, f"\\{letter}")
