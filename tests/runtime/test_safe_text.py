"""Text from a log can do nothing to a terminal."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.commands.output import one_line, safe_json, safe_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;owned\x07title", "title"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;ZXZpbA==\x9cclip", "clip"),
        ("\x9b2Jclear", "clear"),
        ("\x9d0;owned\x9cc1", "c1"),
        ("\x1bPq#0\x1b\\dcs", "dcs"),
        ("\x1bcreset", "reset"),
        ("\x1b(Bset", "set"),
        ("a\x08\x08\x07\x00b\x7f", "ab"),
        ("pay \u202e001\u202c", "pay 001"),
        ("\u2066x\u2069\u200e\u200f\u061c", "x"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("hidden\U000e0041\U000e007f", "hidden"),
        ("one\u2028two", "onetwo"),
        ("cr\rlf\r\nend", "cr\nlf\nend"),
        ("\udcff", "\ufffd"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("naïve 日本 👩‍🚀 ok", "naïve 日本 👩‍🚀 ok"),
    ],
)
def test_what_a_terminal_could_obey_is_gone(text: str, shown: str) -> None:
    assert safe_text(text) == shown


def test_an_unfinished_sequence_swallows_nothing_that_comes_before_it() -> None:
    assert safe_text("before\x1b]0;never ends") == "before"
    assert safe_text("before\x1b[12") == "before"
    assert safe_text("before\x1b") == "before"


@given(st.text())
def test_no_control_is_left_whatever_the_text(text: str) -> None:
    controls = {character for character in safe_text(text) if unicodedata.category(character) in {"Cc", "Cs"}}
    assert controls <= {"\n", "\t"}


@given(st.text())
def test_a_safe_text_is_safe_already(text: str) -> None:
    assert safe_text(safe_text(text)) == safe_text(text)


def test_one_line_is_one_line_and_cut() -> None:
    assert one_line("a\n\n b\tc") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
    assert one_line("abcd", 4) == "abcd"
    assert len(one_line("x" * 10_000_000, 50)) == 50


@given(st.text())
def test_safe_json_has_no_character_to_obey_and_says_the_same(text: str) -> None:
    document = json.dumps({"text": text}, ensure_ascii=False)
    safe = safe_json(document)
    assert json.loads(safe) == {"text": text}
    assert not any(unicodedata.category(character) in {"Cc", "Zl", "Zp"} for character in safe)
    assert not set(safe) & set("\u202e\u2066\u200b\U000e0041")
