"""What a command writes: text for people, or one JSON document for programs.

Models, tools and strangers wrote what stands in a log. The rule: everything that comes from a log passes through
`safe_text`, `safe_json` or `safe_lines`, so that it can neither move the cursor, colour, rename the window or answer
for the user (escape sequences), nor show something else than it says (controls that turn the direction of writing,
characters that cannot be seen). What a person decides about, and the command that decides it, are shown exactly
(`exact_text`, `exact_json`, `shell_word`): what cannot be seen stands there as an escape, and nothing is cut without
saying how much. Colours and the terminal's width are for terminals only; a pipe or a file gets neither.
"""

import re
import shlex
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
    "\u00ad\u034f\u180b-\u180f\u200b\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb"  # take no space
    "\U0001d173-\U0001d17a\U000e0100-\U000e01ef"
    "\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"  # are blank, and no white space
    "\u2028\u2029"  # begin a line
    "\U000e0000-\U000e007f"  # tags, which spell hidden text
    "]"
)
_UNSEEN: Final = re.compile(f"{_INVISIBLE.pattern}|[\u200c\u200d\ufe00-\ufe0f]")
"""Also those that writing needs: joiners, and what chooses the form of a character."""
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


def exact_text(text: str) -> str:
    """Return `text` on one line, with an escape for each character that cannot be seen or is not what it looks like.

    A backslash is doubled, so that no two texts are shown alike.
    """
    return _exact(text.replace("\\", "\\\\"))


def exact_json(text: str) -> str:
    """Return JSON text, or words with JSON in them, where a backslash is one already, as `exact_text` does."""
    return _exact(text)


def _exact(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(_python_escape(one) if _cannot_be_seen(one) else one for one in text)


def _cannot_be_seen(character: str) -> bool:
    # Printable is all but controls, formats, surrogates, unassigned ones and white space other than the space.
    return not character.isprintable() or _UNSEEN.match(character) is not None


def _python_escape(character: str) -> str:
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    number = ord(character)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def exact_line(text: str, rest: str) -> str:
    """Return an exact text, or the beginning of a very long one, how much is left out, and where the rest is."""
    left = len(text) - EXACT_CHARACTERS_MAX
    return text if left <= 0 else f"{text[:EXACT_CHARACTERS_MAX]}… ({left:,} more characters; {rest})"


def shell_word(word: str) -> str:
    r"""Return a word of a command so that a shell gives it back, and a person sees all of it.

    Characters that cannot be seen are written as `$'\u200b'`, which bash, zsh and ksh know.
    """
    if not any(_cannot_be_seen(one) for one in word):
        return shlex.quote(word)
    written: list[str] = []
    for one in word:
        if "\udc80" <= one <= "\udcff":  # A byte of an argument that was no Unicode.
            written.append(f"\\x{ord(one) - 0xDC00:02x}")
        elif one in "\\'":
            written.append(f"\\{one}")
        else:
            written.append(_python_escape(one) if _cannot_be_seen(one) else one)
    return f"$'{''.join(written)}'"


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


EXACT_CHARACTERS_MAX = 4_000
"""So much of an exact text is shown at least."""

PIPE_COLUMNS = 1_000
"""Width of tables that go into a pipe or a file."""

LAST_COLUMN_MIN = 10
"""The last column of a table is not made narrower than this; a terminal that is too narrow then wraps the rows."""


def write_json(document: object) -> None:
    """Write one JSON document and a line end, in UTF-8, which need not be the terminal's encoding."""
    text = safe_json(msgspec.json.encode(document).decode())
    typer.echo(text.encode())


def json_lines(value: object) -> str:
    """Return a value as JSON over several lines; nothing, where it stands for nothing."""
    if value is msgspec.UNSET:
        return "(nothing)"
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


class Progress:
    """Tells how far long work is, on one line of stderr that is written over, and on a terminal only.

    Args:
        clock_s: seconds of a clock that does not go back.
    """

    AFTER_S = 2.0
    EVERY_S = 0.5

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._due_s = clock_s() + self.AFTER_S
        self._to = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
        self._told = False

    def __call__(self, streams: int, events: int) -> None:
        """Tell how much is done, where it is time for that."""
        if self._to is None or (now_s := self._clock_s()) < self._due_s:
            return
        self._due_s = now_s + self.EVERY_S
        self._told = True
        self._to.write(f"\r\x1b[K{counted(events, 'event')} of {counted(streams, 'stream')} so far")
        self._to.flush()

    def done(self) -> None:
        """Take the line away."""
        if self._to is not None and self._told:
            self._to.write("\r\x1b[K")
            self._to.flush()


def console() -> "Console":
    """Return a console that writes to what stdout is now."""
    from rich.console import Console

    class QuietConsole(Console):
        """Leaves a broken pipe to `run_command`, which knows the exit code for it."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    made = QuietConsole(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = PIPE_COLUMNS
    return made


def tell_error(words: str, *, exact: bool = False) -> None:
    """Write an error, which is one line on stderr; `exact`: it was made safe already."""
    from refold.stores.clean_log import without_known_secrets

    words = without_known_secrets(words)
    typer.echo(f"refold: {words if exact else one_line(words)}", err=True)


def tell(words: str, *, exact: bool = False) -> None:
    """Write a line about what goes on, to stderr, where no answers are; `exact`: it was made safe already."""
    from refold.stores.clean_log import without_known_secrets

    words = without_known_secrets(words)
    typer.secho(words if exact else one_line(words), err=True, dim=True)


def table(*columns: str) -> "Table":
    """Return an empty table for cells made by `cell`; columns whose names begin with `#` hold numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        made.add_column(name.removeprefix("#"), justify="right" if name.startswith("#") else "left", no_wrap=True)
    return made


def write_table(to: "Console", rows: "Table") -> None:
    """Write a table; where a terminal is too narrow for it, the last column alone is cut.

    In a pipe or a file no line ends with the spaces that fill its last cell.
    """
    from rich.cells import cell_len

    *others, last = rows.columns
    needed = sum(max(cell_len(str(words)) for words in (other.header, *other.cells)) + 2 for other in others)
    to.width = max(to.width, needed + LAST_COLUMN_MIN)
    last.max_width = to.width - needed
    if to.is_terminal:
        to.print(rows)
        return
    with to.capture() as written:
        to.print(rows)
    to.print("\n".join(line.rstrip(" ") for line in written.get().split("\n")), end="", soft_wrap=True)


def write_paragraph(to: "Console", text: str, *, indent: int = 0, style: str = "") -> None:
    """Write a text of any number of lines, made safe; on a terminal long lines are wrapped inside the indent."""
    lines = safe_text(text).expandtabs(4).split("\n")
    margin = " " * indent
    if not to.is_terminal:  # Nothing is wrapped or coloured, and a conversation may have a hundred thousand lines.
        to.file.write("".join(f"{margin}{said}\n" if (said := line.rstrip()) else "\n" for line in lines))
        return
    from rich.text import Text

    for line in lines:
        shown = Text(line, style=style)
        for part in shown.wrap(to, max(to.width - indent, 20)) if line else [shown]:
            part.rstrip()
            to.print(Text(margin) + part if part else Text(), soft_wrap=True)


def write_exact(to: "Console", text: str, *, style: str = "") -> None:
    """Write a line that was made safe already; a terminal wraps it without losing a space."""
    from rich.text import Text

    to.print(Text(text, style=style), soft_wrap=True)


def cell(text: object, characters_max: int = 60) -> str:
    """Return what stands in one cell of a table: safe, on one line, not longer than asked for."""
    return one_line(str(text), characters_max)


def counted(number: int, noun: str) -> str:
    """Return `1 stream`, `2,000 streams`."""
    plural = f"{noun}es" if noun.endswith("h") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
