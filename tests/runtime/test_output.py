"""What the command writes fits a terminal, and is left as it is in a pipe."""

from io import StringIO

import pytest
from rich.console import Console

from refold.commands.output import Progress, cell, counted, table, write_paragraph, write_table


def written(width: int, *, terminal: bool = True) -> tuple[Console, StringIO]:
    file = StringIO()
    return Console(file=file, width=width, force_terminal=terminal, no_color=True, markup=False, highlight=False), file


@pytest.mark.parametrize("width", [20, 40, 80])
def test_only_the_last_column_of_a_table_is_cut(width: int) -> None:
    to, file = written(width, terminal=False)
    rows = table("NAME", "#COUNT", "WORDS")
    rows.add_row("日本語", "12,345", "word " * 40)
    write_table(to, rows)
    header, row = file.getvalue().splitlines()
    assert header.split() == ["NAME", "COUNT", "WORDS"]
    assert row.startswith("日本語  12,345  word word")
    assert row.endswith("…")


def test_a_paragraph_is_wrapped_inside_its_indent_on_a_terminal() -> None:
    to, file = written(24)
    write_paragraph(to, "one two three four five six", indent=4)
    assert file.getvalue() == "    one two three four\n    five six\n"


def test_a_paragraph_keeps_its_lines_in_a_pipe() -> None:
    to, file = written(24, terminal=False)
    write_paragraph(to, "one two three four five six\n\nseven", indent=4)
    assert file.getvalue() == "    one two three four five six\n\n    seven\n"


def test_a_long_word_is_not_lost_on_a_terminal() -> None:
    to, file = written(24)
    write_paragraph(to, "x" * 100, indent=4)
    assert file.getvalue().count("x") == 100


def test_a_cell_is_one_safe_line() -> None:
    assert cell("a\n\x1b[31mb", 10) == "a b"
    assert cell("abcdefghijkl", 10) == "abcdefghi…"


@pytest.mark.parametrize(
    ("number", "noun", "words"), [(0, "batch", "0 batches"), (1, "batch", "1 batch"), (2_000, "event", "2,000 events")]
)
def test_things_are_counted_in_the_plural(number: int, noun: str, words: str) -> None:
    assert counted(number, noun) == words


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("file", "told"), [(Screen(), 2), (StringIO(), 0)], ids=["a terminal", "a file"])
def test_long_work_is_told_of_on_a_terminal_after_two_seconds_and_not_too_often(
    monkeypatch: pytest.MonkeyPatch, file: StringIO, told: int
) -> None:
    monkeypatch.setattr("sys.stderr", file)
    times = iter((0.0, 1.9, 2.0, 2.1, 2.6))
    progress = Progress(lambda: next(times))
    for _ in range(4):
        progress(1, 2_000)
    assert file.getvalue().count("2,000 events of 1 stream so far") == told
    progress.done()
    assert file.getvalue().endswith("\r\x1b[K" if told else "")
