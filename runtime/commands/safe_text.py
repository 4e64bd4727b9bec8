"""Text from a log, made harmless for a terminal.

What stands in a log was written by models, tools and strangers. The rule: it can neither move the cursor, colour,
rename the window or answer for the user (escape sequences), nor show something else than it says (controls that turn
the direction of writing, characters that cannot be seen).
"""

import re
from typing import Final

_ESCAPE_SEQUENCES: Final = re.compile(
    # Strings for the terminal (OSC, DCS, SOS, PM, APC) up to their end; CSI sequences; other sequences.
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_INVISIBLE: Final = re.compile(
    "["
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # turn the direction of writing
    "\u00ad\u200b\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb"  # take no space
    "\u2028\u2029"  # begin a line
    "\U000e0000-\U000e007f"  # tags, which spell hidden text
    "]"
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")

_UNSAFE_IN_JSON: Final = re.compile(f"{_CONTROLS.pattern}|{_INVISIBLE.pattern}")


def safe_text(text: str) -> str:
    """Return `text` without escape sequences, controls (but tabs and line ends) and invisible characters."""
    joined = text.replace("\r\n", "\n").replace("\r", "\n")
    if joined.isascii() and joined.isprintable():
        return joined
    plain = _INVISIBLE.sub("", _CONTROLS.sub("", _ESCAPE_SEQUENCES.sub("", joined)))
    return _SURROGATES.sub("\ufffd", plain)


def one_line(text: str, characters_max: int | None = None) -> str:
    """Return `text` made safe, on one line, cut after `characters_max` characters."""
    limit = len(text) if characters_max is None else characters_max
    # Twice as much as is shown is enough to look at, even of a text of many megabytes.
    words = " ".join(safe_text(text[: 2 * limit + 100]).split())
    return words if len(words) <= limit else words[: max(limit - 1, 0)] + "…"


def safe_json(text: str) -> str:
    """Return JSON text with the characters of its strings that a terminal could obey written as escapes."""
    return _UNSAFE_IN_JSON.sub(_escaped, text)


def safe_lines(text: str) -> str:
    """Return text of a format that has no escapes for them with a sign in place of each such character."""
    return _SURROGATES.sub("\ufffd", _UNSAFE_IN_JSON.sub(_replaced, text))


def _replaced(found: re.Match[str]) -> str:
    return found[0] if found[0] in "\t\n" else "\ufffd"


def _escaped(found: re.Match[str]) -> str:
    if found[0] in "\t\n":
        return found[0]
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{int.from_bytes(units[place : place + 2]):04x}" for place in range(0, len(units), 2))
