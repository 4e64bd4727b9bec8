"""What a command writes to stdout: text for people, or one JSON document for programs.

The rule: everything that comes from a log passes through `refold.commands.safe_text`. Colours and the terminal's width
are for terminals only; what goes into a pipe or a file has neither.
"""

from typing import TYPE_CHECKING

import msgspec
import typer

from refold.commands.safe_text import one_line, safe_json, safe_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_COLUMNS = 1_000
"""Width of tables that go into a pipe or a file."""

LAST_COLUMN_MIN = 10
"""The last column of a table is not made narrower than this; a terminal that is too narrow then wraps the rows."""


def write_json(document: object) -> None:
    """Write one JSON document and a line end, in UTF-8 whatever the terminal's encoding is."""
    text = safe_json(msgspec.json.encode(document).decode())
    typer.echo(text.encode())


def console() -> "Console":
    """Return the console that writes to stdout as it is now."""
    from rich.console import Console

    class QuietConsole(Console):
        """Leaves a broken pipe to `run_command`, which knows the exit code for it."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    made = QuietConsole(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = PIPE_COLUMNS
    return made


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
