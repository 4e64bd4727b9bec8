"""What a command writes: text for people, or one JSON document for programs; and how far it is, meanwhile.

Models, tools and strangers wrote what stands in a log. The rule: everything that comes from a log passes through
`safe_text`, `safe_json` or `safe_lines`, so that it can neither move the cursor, colour, rename the window or answer
for the user (escape sequences), nor show something else than it says (controls that turn the direction of writing,
characters that cannot be seen). What a person decides about, and the command that decides it, are shown exactly
(`exact_text`, `exact_json`, `shell_word`): what cannot be seen stands there as an escape, and nothing is cut without
saying how much. Colours and the terminal's width are for terminals only; a pipe or a file gets neither.

How far long work is, for a person who waits, is one line on a terminal's stderr, which is gone at the end (`Progress`).
The rule: nothing is shown before `AFTER_S`, nor where stderr is no terminal, nor beside `--json`; and however the work
ends, also by Ctrl-C, the line is taken away and the cursor is where it was.
"""

import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Set
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import Task, TaskID
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

NAME_CHARACTERS = 100
"""So much of a name is shown at least, which other commands take."""

PIPE_COLUMNS = 1_000
"""Width of tables that go into a pipe or a file."""

LAST_COLUMN_MIN = 10
"""The last column of a table is not made narrower than this."""


def write_json(document: object) -> None:
    """Write one JSON document and a line end, in UTF-8, which need not be the terminal's encoding.

    A path in it, such as `log`, is written as the file's real one, which a program can open from any folder.
    """
    text = safe_json(msgspec.json.encode(document, enc_hook=_real_path).decode())
    typer.echo(text.encode())


def _real_path(value: object) -> str:
    if isinstance(value, Path):
        return os.path.realpath(value)
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def json_lines(value: object) -> str:
    """Return a value as JSON over several lines; nothing, where it stands for nothing."""
    if value is msgspec.UNSET:
        return "(nothing)"
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


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


def write_table(to: "Console", rows: "Table", *, without: str = "") -> None:
    """Write a table; where a terminal is too narrow for it, the last column is cut, if it holds words.

    Where it is too narrow for the others, too, each row is a paragraph that names its columns, but for those which hold
    nothing, or `without`. In a pipe or a file no line ends with the spaces that fill its last cell.
    """
    from rich.cells import cell_len

    last = rows.columns[-1]
    widths = [max(cell_len(str(words)) for words in (column.header, *column.cells)) for column in rows.columns]
    needed = sum(width + 2 for width in widths[:-1])
    if to.is_terminal and needed + (widths[-1] if last.justify == "right" else LAST_COLUMN_MIN) > to.width:
        _write_rows(to, rows, {"", without})
        return
    to.width = max(to.width, needed + LAST_COLUMN_MIN)
    last.max_width = to.width - needed
    if to.is_terminal:
        to.print(rows)
        return
    with to.capture() as written:
        to.print(rows)
    to.print("\n".join(line.rstrip(" ") for line in written.get().split("\n")), end="", soft_wrap=True)


def _write_rows(to: "Console", rows: "Table", without: Set[str]) -> None:
    """Write a table row by row: what stands first, and below it the other columns that hold something."""
    names = [str(column.header).lower() for column in rows.columns]
    for cells in zip(*(map(str, column.cells) for column in rows.columns), strict=True):
        named = [f"{name} {words}" for name, words in zip(names, cells, strict=True) if words not in without]
        has_name = rows.columns[0].justify == "left" and cells[0]
        write_paragraph(to, cells[0] if has_name else named[0], style="bold")
        write_paragraph(to, " · ".join(named[1:]), indent=2)


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
    return f"{number:,} {noun if number == 1 else _plural(noun)}"


def all_counted(report: object, *nouns: str) -> str:
    """Return how many a report has of each: `1 stream, 2 batches`."""
    return ", ".join(counted(getattr(report, _plural(noun)), noun) for noun in nouns)


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("h") else f"{noun}s"


BAR_COLUMNS_MIN: Final = 60
"""A terminal that is not so wide has room for words alone."""

PER_SECOND: Final = 4
"""How often the line is written anew."""

EVERY_S: Final = 0.1
"""How often a count is looked at."""


class Progress:
    """Tells how far long work is; use it as `with Progress() as progress` and call `progress`, in any thread."""

    AFTER_S = 2.0
    """Work that is done sooner is told by its answer."""

    def __init__(self, *, quiet: bool = False, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self.is_shown = not quiet and _is_screen()
        """Whether a person may see it."""
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._bar: tuple[Bar, TaskID] | None = None
        """None = it is too early."""
        self._said: tuple[str, int, int | None] = ("", 0, None)
        self._due_s = clock_s()
        """What is told before it, of the same count, waits: there may be a million calls."""

    def __enter__(self) -> Self:
        if self.is_shown:
            self._timer = threading.Timer(self.AFTER_S, self._begin)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self.is_shown = False
            if self._bar is not None:
                self._bar[0].stop()

    def __call__(self, what: str, done: int, total: int | None = None) -> None:
        """Tell how much is done.

        Args:
            what: is counted, such as `events`; other words begin a new count. Where nothing is: what goes on.
            done: so much of it.
            total: of so much; None = that is not known.
        """
        if not self.is_shown:
            return
        before, self._said = self._said, (what, done, total)
        now_s = self._clock_s()
        if what == before[0] and now_s < self._due_s:
            return
        self._due_s = now_s + EVERY_S
        with self._lock:
            if self._bar is None:
                return
            bar, task = self._bar
            if what.partition(",")[0] != before[0].partition(",")[0]:
                bar.remove_task(task)  # One that is reset keeps a total where the new one is not known.
                self._bar = bar, bar.add_task(what, completed=done, total=total)
            else:
                bar.update(task, completed=done, total=total, description=what)

    def _begin(self) -> None:
        bar = _bar(self._clock_s)
        with self._lock:
            if not self.is_shown:
                return
            what, done, total = self._said
            self._bar = bar, bar.add_task(what, completed=done, total=total)
            bar.start()


def _is_screen() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _bar(clock_s: Callable[[], float]) -> "Bar":
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    class Words(ProgressColumn):
        """First what a person waits for most, since a narrow terminal cuts the end."""

        def render(self, task: "Task") -> Text:
            return Text(words_of(task))

    class Screen(Console):
        """Leaves the cursor to be seen: a process that is killed could not give it back."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    to = Screen(stderr=True, highlight=False, markup=False, emoji=False, force_terminal=True)
    words = Words(Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    columns: list[ProgressColumn] = [BarColumn(20), words] if to.width >= BAR_COLUMNS_MIN else [words]
    return Bar(
        *columns,
        console=to,
        transient=True,
        expand=True,
        refresh_per_second=PER_SECOND,
        redirect_stdout=False,
        redirect_stderr=False,
        get_time=clock_s,
    )


def words_of(task: "Task") -> str:
    """Return how far a task is: its share, what remains, the count, the rate."""
    what, done = one_line(task.description), f"{int(task.completed):,}"
    if task.total is None and not task.completed:
        return f"{what or 'at work'} · {_time(task.elapsed or 0)}"
    parts: list[str] = []
    if task.total:
        parts.append(f"{min(int(task.percentage), 100)}%")
        if task.time_remaining is not None:
            parts.append(f"{_time(task.time_remaining)} left")
        done += f" of {int(task.total):,}"
    parts.append(f"{done} {what}")
    if task.speed is not None:
        parts.append(f"{task.speed:,.0f} a second" if task.speed >= 10 else f"{task.speed:.1f} a second")
    return " · ".join(parts)


def _time(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
