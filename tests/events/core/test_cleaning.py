"""What comes from outside is made recordable, or refused by its path."""

import dataclasses
import enum
import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from decimal import Decimal
from types import MappingProxyType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events import CommandRejected, TextBlock
from refold.events.core.cleaning import (
    DEPTH_MAX,
    INTEGER_MAX,
    INTEGER_MIN,
    RECORDED_DEPTH_MAX,
    Unrecordable,
    check_recordable,
    clean_json,
    clean_text,
)


class Colour(str, enum.Enum):  # noqa: UP042  # str() of an older enumeration is its name.
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not what it is"


@dataclasses.dataclass
class Point:
    x: object
    y: object


class Pair(msgspec.Struct):
    left: object
    right: object


def nested(levels: int) -> object:
    value: object = []
    for _ in range(levels - 1):
        value = [value]
    return value


# Text


@pytest.mark.parametrize("text", ["", "plain", "é", "日本", "😀", "a\0b", "\u2028", "\ufffd"])
def test_valid_text_stays_as_it_is(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("a\ud83d\ude00b", "a😀b"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
    ],
)
def test_case_e01_lone_surrogates_are_replaced_and_split_pairs_are_joined(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned
    assert clean_json({"x": [text]}) == {"x": [cleaned]}
    assert clean_json({text: 1}) == {cleaned: 1}


@given(st.text(st.characters(exclude_categories=[])))
def test_cleaned_text_can_be_encoded_and_cleaning_it_again_changes_nothing(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned.encode().decode() == cleaned
    assert clean_text(cleaned) == cleaned


# JSON


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -1, 1.5, -0.0, "x", "", [], {}, [1, [2, {"a": None}]], {"": {"b": []}}, 2**63 - 1, -(2**63)],
)
def test_plain_json_stays_as_it_is(value: object) -> None:
    assert clean_json(value) == value
    assert type(clean_json(value)) is type(value)


FORMS: list[tuple[object, object]] = [
    ((1, (2,)), [1, [2]]),
    (range(3), [0, 1, 2]),
    (deque(["a"]), ["a"]),
    (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    (MappingProxyType({"a": 1}), {"a": 1}),
    (Colour.RED, "red"),
    ({Colour.RED: Colour.RED}, {"red": "red"}),
    (Level.HIGH, 3),
    (Loud("it"), "it"),
    (Point(1, {"k": (2,)}), {"x": 1, "y": {"k": [2]}}),
    (Pair("\ud800", None), {"left": "\ufffd", "right": None}),
    (Decimal("1.50"), "1.50"),
    (b"ab", "YWI="),
    (bytearray(b"ab"), "YWI="),
]


@pytest.mark.parametrize(("value", "cleaned"), FORMS)
def test_what_has_a_form_in_json_gets_it(value: object, cleaned: object) -> None:
    assert clean_json(value) == cleaned


@pytest.mark.parametrize("values", [["b", "a", "c"], [3, 1, 2], ["1", 1, None], [(2, 1), (1, 2)]])
def test_a_set_becomes_an_array_in_one_order(values: list[object]) -> None:
    assert clean_json(set(values)) == clean_json(frozenset(reversed(values)))


@pytest.mark.parametrize(
    ("path", "words", "value"),
    [
        ("$", "is nan", math.nan),
        ("$.rows[3].x", "is inf", {"rows": [0, 0, 0, {"x": math.inf}]}),
        ("$[0]", "is -inf", (-math.inf,)),
        ("$.x", "is nan", Point(math.nan, 0)),
        ("$.n", "is an integer beyond 64 bits", {"n": INTEGER_MAX + 1}),
        ("$.n", "is an integer beyond 64 bits", {"n": INTEGER_MIN - 1}),
        ("$", "has the key 1 of type int", {1: "a"}),
        ("$.a", "has the key None of type NoneType", {"a": {None: 1}}),
        ("$", "has two keys that both become", dict.fromkeys(["\ud800", "\udc00"], 1)),
        ("$.a[0].b", "is of type complex", {"a": [{"b": 1j}]}),
        ("$[0]", "is of type object", [object()]),
        ("$", "is of type generator", (item for item in "ab")),
        ("$", "is of type function", lambda: None),
        ("$.e", "is ValueError('x'), which JSON has no form for; return its text", {"e": ValueError("x")}),
        (
            "$.e",
            "is ValueError(<object object>), which JSON has no form for; return its text",
            {"e": ValueError(object())},
        ),
        (  # An address that is cut is not told either.
            "$.e",
            f"is ValueError('{'x' * 47}', <object object>), which",
            {"e": ValueError("x" * 47, object())},
        ),
        ("$", f"has the key ({'1, ' * 20}<object object>) of type tuple", {(*[1] * 20, object()): 1}),
        ("$.e", "is <class 'ValueError'>", {"e": ValueError}),
        ("$", "is of type Point", Point(1j, 0)),
        ("$", "is of type Pair", Pair(object(), 0)),
        ("$[*]", "is of type complex", {1j}),
    ],
)
def test_what_has_no_form_in_json_is_refused_by_its_path(path: str, words: str, value: object) -> None:
    with pytest.raises(Unrecordable) as refusal:
        clean_json(value)
    assert refusal.value.path == path
    assert words in refusal.value.reason
    assert isinstance(refusal.value, CommandRejected)


@pytest.mark.parametrize(
    "value", [19933688932870350000, 2**64, 2**70, 10**400, 10**5000, -(10**5000)], ids=int.bit_length
)
def test_case_e04_integers_beyond_64_bits_are_refused_and_kept_as_text_if_given_so(value: int) -> None:
    with pytest.raises(Unrecordable, match=r"\$\.n is an integer beyond 64 bits; give it as text"):
        clean_json({"n": value})
    assert clean_json({"n": hex(value)}) == {"n": hex(value)}


def test_case_e06_what_a_library_brings_is_converted_or_refused_by_its_path() -> None:
    numpy = pytest.importorskip("numpy")
    cleaned = clean_json({"a": [{"b": numpy.float64(1)}]})
    assert cleaned == {"a": [{"b": 1.0}]}
    assert "numpy" not in repr(cleaned)
    assert clean_json(numpy.str_("x")) == "x"
    for value in (numpy.float32(1), numpy.int64(1), numpy.bool_(True), numpy.arange(3), numpy.datetime64("2024")):
        with pytest.raises(Unrecordable, match=r"\$\.a\[0\]\.b is of type"):
            clean_json({"a": [{"b": value}]})
    with pytest.raises(Unrecordable, match=r"\$\.b is nan"):
        clean_json({"b": numpy.float64("nan")})


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 2_000, 5_000])
def test_case_e08_deep_nesting_is_refused_with_a_short_message(levels: int) -> None:
    with pytest.raises(Unrecordable, match="is nested deeper than 100 levels") as refusal:
        clean_json(nested(levels))
    assert len(str(refusal.value)) < 500


def test_nesting_up_to_the_bound_is_accepted() -> None:
    assert clean_json(nested(DEPTH_MAX)) == nested(DEPTH_MAX)


def test_what_holds_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(Unrecordable, match="nested deeper"):
        clean_json(loop)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(INTEGER_MIN, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    # Whole Unicode, surrogates and NUL included.
    | st.text(st.characters(exclude_categories=[]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.in_full
@given(json_values)
def test_whatever_is_cleaned_is_read_back_as_it_is_written(value: object) -> None:
    cleaned = clean_json(value)
    assert msgspec.json.decode(msgspec.json.encode(cleaned)) == cleaned
    assert clean_json(cleaned) == cleaned
    check_recordable(cleaned, "$", inside_json=True)


# Recordable as it is


def test_plain_values_and_structs_of_them_are_recordable() -> None:
    check_recordable((TextBlock(text="é\0"), {"a": [1, 2.5, None, True]}, b"raw"), "$")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$[0].text", (TextBlock(text="\ud800"),)),
        ("$.x", {"x": (1,)}),
        ("$.x", {"x": {1}}),
        ("$.x", {"x": b"raw"}),
        ("$.x[1]", {"x": [0, Level.HIGH]}),
        ("$.x", {"x": TextBlock(text="a")}),
        ("$", {1: 2}),
        ("$", {"\ud800": 2}),
        ("$.x", {"x": 2**63}),
        ("$.x", {"x": math.nan}),
        ("$[0]", (Loud("a"),)),
        ("$", object()),
        ("$", ValueError("x")),
        ("$", ValueError),
        ("$", 1j),
        *(("$", number) for number in (2**64, -(2**64), 10**400, math.inf)),
    ],
)
def test_what_would_be_read_back_as_something_else_is_named_by_its_path(path: str, value: object) -> None:
    with pytest.raises(Unrecordable) as refusal:
        check_recordable(value, "$")
    assert refusal.value.path == path


def test_an_event_may_be_a_little_deeper_than_the_json_inside_it() -> None:
    check_recordable(nested(RECORDED_DEPTH_MAX), "$")
    with pytest.raises(Unrecordable, match="nested deeper than 110 levels"):
        check_recordable(nested(RECORDED_DEPTH_MAX + 1), "$")


def test_nothing_is_consumed_that_cannot_be_recorded() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    source = numbers()
    with pytest.raises(Unrecordable):
        clean_json({"x": source})
    assert list(source) == [1]


@pytest.mark.parametrize("wrong", [2**70, float("nan"), object(), {1: 2}])
def test_a_path_is_cut_so_that_the_error_stays_short_however_long_the_keys_are(wrong: object) -> None:
    with pytest.raises(Unrecordable) as caught:
        clean_json({"rows": [0, {"k" * 100_000: wrong}]})
    assert caught.value.path.startswith("$.rows[1].kkk")
    assert len(str(caught.value)) < 400
