"""A column of texts: what is asked of one."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import ConfigError, TextColumn

texts = st.lists(st.text(max_size=12), max_size=12)


def test_it_is_a_sequence_that_does_not_change() -> None:
    column = TextColumn(["tea", "coffee", "tea"])
    assert list(column) == ["tea", "coffee", "tea"]
    assert column[1] == "coffee"
    assert column[-1] == "tea"
    assert column[1:] == TextColumn(["coffee", "tea"])
    assert "tea" in column
    assert "milk" not in column
    assert column.index("coffee") == 1
    assert list(reversed(column)) == ["tea", "coffee", "tea"]
    assert column == ["tea", "coffee", "tea"]
    assert column != ["tea"]
    assert column != "teacoffeetea"
    assert copy.deepcopy(column) is column
    with pytest.raises(TypeError):
        column[0] = "milk"  # type: ignore[index]


def test_lengths_are_utf8_bytes() -> None:
    column = TextColumn(["a", "é", "日本", "🦜", ""])
    assert column.lengths == (1, 2, 6, 4, 0)
    assert column.total_bytes == 13
    assert column.mean_bytes == 2.6
    assert column.longest == "日本"
    assert column.shortest == ""
    assert column.longer_than(2) == ["日本", "🦜"]
    assert column.longer_than(6) == []
    assert column.nonempty == ["a", "é", "日本", "🦜"]
    assert TextColumn(["\ud83d"]).lengths == (3,)


def test_of_several_answers_the_first_is_given() -> None:
    column = TextColumn(["bb", "aa", "c", "d", "aa", "bb"])
    assert (column.longest, column.shortest, column.most_common) == ("bb", "c", "bb")


def test_counts() -> None:
    column = TextColumn(["tea", "green tea", "Tea"])
    assert column.count("tea") == 1
    assert column.count("milk") == 0
    assert column.count(3) == 0
    assert column.count_containing("tea") == 2
    assert column.count_containing("") == 3


def test_no_texts() -> None:
    column = TextColumn()
    assert (column.longest, column.shortest, column.most_common) == (None, None, None)
    assert (column.lengths, column.total_bytes, column.mean_bytes) == ((), 0, 0.0)
    assert column.nonempty == []
    assert column.longer_than(0) == []
    assert repr(column) == "TextColumn([])"


def test_what_is_no_column_of_texts_is_refused() -> None:
    with pytest.raises(ConfigError, match="several texts"):
        TextColumn("tea")
    with pytest.raises(ConfigError, match="item 1 is int"):
        TextColumn(["a", 3])  # type: ignore[list-item]


def test_a_long_one_is_shown_in_short() -> None:
    assert repr(TextColumn("abcde"[place] for place in range(5))) == "TextColumn(['a', 'b', 'c', … 2 more])"


@given(texts)
def test_its_figures_belong_together(given_texts: list[str]) -> None:
    column = TextColumn(given_texts)
    assert column.total_bytes == len("".join(given_texts).encode())
    assert column.longer_than(-1) == given_texts
    assert len(column.nonempty) + column.count("") == len(column)
    if given_texts:
        assert column.longest is not None
        assert column.shortest is not None
        assert column.most_common is not None
        assert len(column.shortest.encode()) == min(column.lengths) <= column.mean_bytes
        assert max(column.lengths) == len(column.longest.encode()) >= column.mean_bytes
        assert all(column.count(text) <= column.count(column.most_common) for text in given_texts)
