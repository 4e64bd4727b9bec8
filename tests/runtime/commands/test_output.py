"""What the command writes fits a terminal, and is left as it is in a pipe."""

import re
from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from refold.commands.output import cell, counted, table, write_paragraph, write_table


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


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_table_fits_the_terminal_and_loses_no_name_and_no_number(width: int) -> None:
    to, file = written(width)
    rows = table("FAULT", "#PLANNED", "#HAPPENED", "#MODEL CALL", "#AWAITING", "", "#COST")
    rows.add_row("ProviderHangsForALongTime日本語", "1,234", "567", "8", "90", "", "0.1234567")
    write_table(to, rows)
    shown = re.sub("\x1b\\[[0-9;]*m", "", file.getvalue())
    assert all(cell_len(line) <= width for line in shown.splitlines())
    words = " ".join(shown.split())
    for needed in ("ProviderHangsForALongTime日本語", "1,234", "567", "8", "90", "0.1234567"):
        assert needed in words
    if width < 100:
        assert "planned 1,234 · happened 567 · model call 8 · awaiting 90 · cost 0.1234567" in words


def test_a_table_that_is_too_wide_leaves_out_what_says_nothing() -> None:
    to, file = written(40)
    rows = table("FAULT", "#PLANNED", "#HAPPENED", "#MODEL CALL", "#AWAITING")
    rows.add_row("ProviderHangs", "10", "0", "3", "0")
    write_table(to, rows, without="0")
    assert file.getvalue().split("\n")[1:] == ["  planned 10 · model call 3", ""]


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
