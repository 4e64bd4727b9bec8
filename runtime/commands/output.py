"""What a command writes: text for people, or one JSON document for programs.

Models, tools and strangers wrote what stands in a log. The rule: everything that comes from a log passes through
`safe_text`, `safe_json` or `safe_lines`, so that it can neither move the cursor, colour, rename the window or answer
for the user (escape sequences), nor show something else than it says (controls that turn the direction of writing,
characters that cannot be seen). Colours and the terminal's width are for terminals only; a pipe or a file gets neither.
"""

import re
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


PIPE_COLUMNS = 1_000
"""Width of tables that go into a pipe or a file."""

LAST_COLUMN_MIN = 10
"""The last column of a table is not made narrower than this; a terminal that is too narrow then wraps the rows."""


def write_json(document: object) -> None:
    """Write one JSON document and a line end, in UTF-8, which need not be the terminal's encoding."""
    text = safe_json(msgspec.json.encode(document).decode())
    typer.echo(text.encode())


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


def tell_error(words: str) -> None:
    """Write an error, which is one line on stderr."""
    typer.echo(f"refold: {one_line(words)}", err=True)


def tell(words: str) -> None:
    """Write a line about what goes on, to stderr, where no answers are."""
    typer.secho(one_line(words), err=True, dim=True)


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


def cell(text: object, characters_max: int = 60) -> str:
    """Return what stands in one cell of a table: safe, on one line, not longer than asked for."""
    return one_line(str(text), characters_max)


def counted(number: int, noun: str) -> str:
    """Return `1 stream`, `2,000 streams`."""
    plural = f"{noun}es" if noun.endswith("h") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"
