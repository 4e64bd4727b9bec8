"""The words by which texts are compared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.kinds.indexing import words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Anna prefers TEA, tea!", {"anna", "prefers", "tea"}),
        ("", set()),
        ("… — !?", set()),
        ("Straße", {"strasse"}),
        ("STRASSE", {"strasse"}),
        ("cafe\u0301", {"café"}),
        ("caf\u00e9", {"café"}),
        ("ﬁne", {"fine"}),
        ("snake_case 42", {"snake_case", "42"}),
        ("東京タワー", {"東京", "京タ", "タワ", "ワー"}),
        ("猫", {"猫"}),
        ("猫 cat", {"猫", "cat"}),
        ("Tokyo東京", {"tokyo", "東京"}),
        ("안녕 하세요", {"안녕", "하세요"}),
    ],
)
def test_words(text: str, words: set[str]) -> None:
    assert words_of(text) == words


@given(st.text())
def test_case_makes_no_difference_and_words_are_their_own_words(text: str) -> None:
    words = words_of(text)
    assert words_of(" ".join(words)) == words
    assert words_of(text.casefold()) >= words_of(text) or not text.isascii()
