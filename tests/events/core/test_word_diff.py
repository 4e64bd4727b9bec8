"""What differs between two texts, in words with the words around them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.word_diff import word_changes, words_of_changes

PROMPT = "You are a clerk. " * 40 + "Answer in two sentences.\nBe kind to all who ask. " + "Look before you pay. " * 40


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        (PROMPT, PROMPT.replace("two", "three"),
         "… You are a clerk. Answer in [-two-] {+three+} sentences. Be kind to all who …"),
        ("Be brief.", "Be very brief.", "Be {+very+} brief."),
        ("Be very brief.", "Be brief.", "Be [-very-] brief."),
        ("", "Be brief.", "{+Be brief.+}"),
        (PROMPT.replace("two", "four").replace("kind", "rude"), PROMPT,
         "… You are a clerk. Answer in [-four-] {+two+} sentences. Be [-rude-] {+kind+} to all who ask. Look before …"),
        ("a b", "a  b", 'a [-" b"-] {+"  b"+}'),
        ("a\nb", "a b", 'a [-"\\nb"-] {+" b"+}'),
        (PROMPT + "Thanks.", PROMPT + "Bye.", "… you pay. Look before you pay. [-Thanks.-] {+Bye.+}"),
        ("x" * 300, "y", f"[-{'x' * 100}… (100 more characters) …{'x' * 100}-] {{+y+}}"),
        (" ".join(f"a{n} ." for n in range(20)), " ".join(f"b{n} ." for n in range(20)),
         " . ".join(f"[-a{n}-] {{+b{n}+}}" for n in range(8)) + " (and 12 more changes)"),
        ("same", "same", ""),
    ],
)  # fmt: skip
def test_the_words_that_differ_stand_among_those_that_do_not(left: str, right: str, said: str) -> None:
    assert words_of_changes(left, right) == said


@given(st.lists(st.sampled_from(["a", "b", " ", "\n", "c "])), st.lists(st.sampled_from(["a", "b", " ", "\n", "c "])))
def test_no_difference_is_left_out(left_parts: list[str], right_parts: list[str]) -> None:
    left, right = "".join(left_parts), "".join(right_parts)
    changes = word_changes(left, right, context=10_000)
    if left == right:
        assert changes == []
        return
    assert "".join(each.before + each.left for each in changes) + changes[-1].after == left
    assert "".join(each.before + each.right for each in changes) + changes[-1].after == right


def test_texts_with_too_many_equal_words_are_one_change() -> None:
    drawn = random.Random(1)
    left, right = (" ".join(drawn.choices("abc", k=5_000)) for _ in range(2))
    assert len(word_changes(f"begin {left} end", f"begin {right} end")) == 1
