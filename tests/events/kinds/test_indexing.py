"""A column of texts: what is asked of one."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import ConfigError, TextColumn

texts = st.lists(st.text(max_size=12), max_size=12)


def test_it_is_a_sequence_that_does_not_change() -> None:
    column = TextColumn(["tea", "coffee", "tea"])
    assert list(column) == list(reversed(column)) == column == ["tea", "coffee", "tea"]
    assert (column[1], column[-1], column.index("coffee")) == ("coffee", "tea", 1)
    assert column[1:] == TextColumn(["coffee", "tea"])
    assert "tea" in column
    assert "milk" not in column
    assert column not in (["tea"], "teacoffeetea")
    assert copy.deepcopy(column) is column
    with pytest.raises(TypeError):
        column[0] = "milk"  # type: ignore[index]


@pytest.mark.parametrize(
    ("given_texts", "figures"),
    [
        (
            ["a", "é", "日本", "🦜", ""],
            {"lengths": (1, 2, 6, 4, 0), "total_bytes": 13, "mean_bytes": 2.6, "longest": "日本", "shortest": ""},
        ),
        (["a", "é", "", "🦜"], {"nonempty": ["a", "é", "🦜"]}),
        (["\ud83d"], {"lengths": (3,)}),
        (["bb", "aa", "c", "d", "aa", "bb"], {"longest": "bb", "shortest": "c", "most_common": "bb"}),
        ([], {"longest": None, "shortest": None, "most_common": None, "nonempty": []}),
        ([], {"lengths": (), "total_bytes": 0, "mean_bytes": 0.0}),
    ],
)
def test_lengths_are_utf8_bytes_and_of_several_answers_the_first_is_given(
    given_texts: list[str], figures: dict[str, object]
) -> None:
    column = TextColumn(given_texts)
    assert {name: getattr(column, name) for name in figures} == figures


def test_counts_and_texts_above_a_length() -> None:
    column = TextColumn(["tea", "green tea", "Tea"])
    assert (column.count("tea"), column.count("milk"), column.count(3)) == (1, 0, 0)
    assert (column.count_containing("tea"), column.count_containing("")) == (2, 3)
    lengths = TextColumn(["a", "é", "日本", "🦜", ""])
    assert lengths.longer_than(2) == ["日本", "🦜"]
    assert lengths.longer_than(6) == []
    assert TextColumn().longer_than(0) == []


def test_what_is_no_column_of_texts_is_refused_and_a_long_one_is_shown_in_short() -> None:
    with pytest.raises(ConfigError, match="several texts"):
        TextColumn("tea")
    with pytest.raises(ConfigError, match="item 1 is int"):
        TextColumn(["a", 3])  # type: ignore[list-item]
    assert repr(TextColumn()) == "TextColumn([])"
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
