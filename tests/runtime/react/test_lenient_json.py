"""JSON as models write it, and what is not certain enough to be read."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refold.react.lenient_json import read_call, read_json, read_keywords

READ: dict[str, tuple[str, object, str]] = {
    "strict": ('{"a": [1, 2.5, true, false, null, "b"]}', {"a": [1, 2.5, True, False, None, "b"]}, ""),
    "blanks before and prose behind": (' \n {"a": 1} and so on', {"a": 1}, " and so on"),
    "another value behind": ('{"a": 1}{"b": 2}', {"a": 1}, '{"b": 2}'),
    "single quotes": ("{'a': 'it\\'s'}", {"a": "it's"}, ""),
    "a quotation mark in single quotes": ("{'a': 'say \"b\"'}", {"a": 'say "b"'}, ""),
    "trailing commas": ('{"a": [1, 2,], "b": {},}', {"a": [1, 2], "b": {}}, ""),
    "Python's constants": ("[True, False, None]", [True, False, None], ""),
    "bare keys": ("{city: 'Lisbon', last-day: 2}", {"city": "Lisbon", "last-day": 2}, ""),
    "a line break in a text": ('{"a": "b\nc"}', {"a": "b\nc"}, ""),
    "a line break in single quotes": ("{'a': 'b\nc'}", {"a": "b\nc"}, ""),
    "triple quotes": ('{"a": """say "b"\nc"""}', {"a": 'say "b"\nc'}, ""),
    "a backslash of no meaning": ('{"a": "\\d+"}', {"a": "\\d+"}, ""),
    "escapes": ("{'a': '\\n\\t\\\\\\u00e9\\x41'}", {"a": "\n\t\\éA"}, ""),
    "numbers": ("[1, -2, 0.5, 1e3, -1.5E-2,]", [1, -2, 0.5, 1000.0, -0.015], ""),
    "not of Latin letters": ("{'città': '晴れ'}", {"città": "晴れ"}, ""),
}

UNREAD = [
    *(
        "",
        "   ",
        "Lisbon",
        "{",
        "[1",
        '{"a"',
        '{"a": ',
        '{"a": 1',
        '{"a": "b',
        "{'a': 'b\\",
        '{"a": "b" "c"}',
        '{"a" 1}',
    ),
    *("{'a': NaN}", "{'a': Infinity}", "{'a': 1.2.3}", "{'a': 12ab}", "{'a': b}", "{'a': '\\u12'}", "{1: 2}"),
    *("{'a': 1, 'a': 2}", '{"a": """b}', "{,}", "[,]", "[1 2]", "(1)", "{{'a': 1}}", "9" * 5_000),
    *("[" * 100_000, "{'a':" * 100_000),
]


@pytest.mark.parametrize(("text", "value", "behind"), READ.values(), ids=READ)
def test_a_value_is_read_and_what_follows_is_left(text: str, value: object, behind: str) -> None:
    found = read_json(text)
    assert found is not None
    assert found[0] == value
    assert text[found[1] :] == behind


@pytest.mark.parametrize("text", UNREAD, ids=lambda text: text[:20] or "nothing")
def test_what_is_not_certain_is_not_read(text: str) -> None:
    assert read_json(text) is None


def test_a_value_is_read_from_its_place_on() -> None:
    assert read_json('x {"a": 1} y', 1) == ({"a": 1}, 10)
    assert read_json("x {'a': 1} y", 1) == ({"a": 1}, 10)


@pytest.mark.parametrize(
    ("text", "named", "positional", "behind"),
    [
        ("()", {}, [], ""),
        ("( ) x", {}, [], " x"),
        ("(a=1, b='c')", {"a": 1, "b": "c"}, [], ""),
        ("(a: 1,\n b: [True],\n) and", {"a": 1, "b": [True]}, [], " and"),
        ("('x', {'a': 1}, b=2)", {"b": 2}, ["x", {"a": 1}], ""),
    ],
)
def test_the_arguments_of_a_call_are_read(text: str, named: object, positional: object, behind: str) -> None:
    found = read_call(text, 0)
    assert found is not None
    assert (found.named, found.positional, text[found.end :]) == (named, positional, behind)


@pytest.mark.parametrize("text", ["", "a", "(", "(a", "(a=1", "(a=1 b=2)", "(a==1)", "(a=1, a=2)", "(to see)", "(,)"])
def test_what_is_no_call_is_not_read(text: str) -> None:
    assert read_call(text, 0) is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a=1", {"a": 1}),
        (" a = 'b', c: 2 ", {"a": "b", "c": 2}),
        ("a=1 and b", None),
        ("1, 2", None),
        ("a=1, 2", None),
        ("a: b", None),
        ("", None),
    ],
)
def test_arguments_by_name_are_read_only_where_there_is_nothing_else(text: str, named: object) -> None:
    assert read_keywords(text) == named


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # A lone surrogate is no text that a model can give.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(_VALUES)
def test_python_and_json_are_read_as_what_they_mean(value: object) -> None:
    assert read_json(json.dumps(value)) == (value, len(json.dumps(value)))
    loose = json.dumps({"a": value}).removesuffix("}") + ",}"
    assert read_json(loose) == ({"a": value}, len(loose))


@given(
    st.lists(st.sampled_from([*"{}[]()'\",:=\\ \n", "a", "1", "True", '"""', "\\u", "\\x4"]), max_size=20).map("".join)
)
@example("{'\\")
@example("'\\u")
def test_any_text_has_a_value_or_none(text: str) -> None:
    for at in (0, len(text) // 2):
        found = read_json(text, at)
        assert found is None or at < found[1] <= len(text)
        call = read_call(text, at)
        assert call is None or at < call.end <= len(text)
    read_keywords(text)
