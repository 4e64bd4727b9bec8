"""What a command writes to stdout: text for people, or one JSON document for programs.

The rule: everything that comes from a log passes through `refold.commands.safe_text`. Colours and the terminal's width
are for terminals only; what goes into a pipe or a file has neither.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import typer

from refold.commands.safe_text import one_line, safe_json, safe_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_COLUMNS = 1_000
"""Width of tables that go into a pipe or a file."""


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
    """Return an empty table; columns whose names begin with `#` hold numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        made.add_column(name.removeprefix("#"), justify="right" if name.startswith("#") else "left", no_wrap=True)
    return made


def write_paragraph(to: "Console", text: str, *, indent: int = 0, style: str = "") -> None:
    """Write a text of any number of lines, made safe; on a terminal long lines are wrapped inside the indent."""
    from rich.text import Text

    for line in safe_text(text).expandtabs(4).split("\n"):
        shown = Text(line, style=style)
        wrapped = shown.wrap(to, max(to.width - indent, 20)) if to.is_terminal and line else [shown]
        for part in wrapped:
            part.rstrip()
            to.print(Text(" " * indent) + part if part else Text(), soft_wrap=True)


def time_words(at: int) -> str:
    """Return a time in microseconds since the epoch as `2026-07-01 12:00:00.000Z`."""
    try:
        moment = datetime.fromtimestamp(at // 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at} µs"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at % 1_000_000 // 1000:03}Z"


def duration_words(microseconds: int) -> str:
    """Return how long something took: `340 ms`, `1.2 s`, `5 min 3 s`."""
    seconds = microseconds / 1e6
    if seconds < 1:
        return f"{microseconds / 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60):,} min {int(seconds % 60)} s"


def cell(text: object, characters_max: int = 60) -> str:
    """Return what stands in one cell of a table: safe, on one line, not longer than asked for."""
    return one_line(str(text), characters_max)
