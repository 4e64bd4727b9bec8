"""Text from a log can do nothing to a terminal."""

import json
import os
import re
import shutil
import subprocess
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.commands.output import exact_json, exact_line, exact_text, one_line, safe_json, safe_text, shell_word


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


# What a person decides about is shown exactly.

UNSEEN = (
    "\u034f\u115f\u180e\u200b\u200c\u200d\u202e\u2066\u2800\u3164\uffa0\ufe0f"
    "\U000e0101\U0001d173\ufeff\u00a0\x1b\x9b\x7f\u2028"
)


def read_back(shown: str) -> str:
    """Return the text that an exact text stands for."""
    pattern = r"\\(\\|n|r|t|u[0-9a-f]{4}|U[0-9a-f]{8})"
    plain = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
    return re.sub(pattern, lambda found: plain.get(found[1]) or chr(int(found[1][1:], 16)), shown)


@given(st.text() | st.text(st.sampled_from(UNSEEN + "\\nu200b a")))
def test_an_exact_text_is_one_line_of_what_can_be_seen_and_stands_for_one_text_only(text: str) -> None:
    shown = exact_text(text)
    assert read_back(shown) == text
    assert shown.isprintable()
    assert not set(shown) & set(UNSEEN)
    document = json.dumps({"text": text}, ensure_ascii=False)
    assert json.loads(re.sub(r"\\U(\w{8})", lambda found: chr(int(found[1], 16)), exact_json(document)))["text"] == text


def test_each_character_that_cannot_be_seen_is_an_escape() -> None:
    assert all(exact_text(f"a{one}b") in (f"a\\u{ord(one):04x}b", f"a\\U{ord(one):08x}b") for one in UNSEEN)
    assert exact_text("two  spaces\tand\nlines") == "two  spaces\\tand\\nlines"
    assert exact_text("naïve 日本 👩") == "naïve 日本 👩"


def test_a_very_long_exact_text_says_how_much_is_left_out() -> None:
    assert exact_line("x" * 4_000, "rest") == "x" * 4_000
    assert exact_line("x" * 5_234, "ask") == "x" * 4_000 + "… (1,234 more characters; ask)"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_shell_gives_a_word_back_as_it_was() -> None:
    words = [
        "plain",
        "it's  two",
        "",
        "-x",
        "back\\slash",
        "prod\u200b",
        "a\u200b'\\b\U000e0041",
        "nl\n\u2028",
        "ä\u200dö",
        "\udcff",
        "$HOME\u200b`x`",
    ]
    line = f"printf '%s\\0' {' '.join(map(shell_word, words))}"
    shell = subprocess.run(
        ["bash", "-c", line], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert os.fsdecode(shell.stdout).split("\0")[:-1] == words
    assert all(shell_word(word).isprintable() for word in words)
