"""The first difference of two values, as a path."""

import msgspec
import pytest

from refold.events.core.content import ImageBlock, TextBlock, ToolUseBlock
from refold.events.core.difference import NOTHING, Difference, first_difference
from refold.events.core.ids import RunId, ToolCallId
from refold.events.session.events import ModelRequested, RunCompleted


def event(turn: int) -> ModelRequested:
    return ModelRequested(run=RunId("run_3"), turn=turn)


def call(**arguments: object) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId("call_6_0"), name="pay", input=dict(arguments))


def test_equal_values_have_no_difference() -> None:
    assert first_difference(event(2), event(2), "event") is None


def test_a_field_is_named_with_both_sides() -> None:
    assert str(first_difference(event(2), event(3), "consequences[1]")) == "consequences[1].turn: 2 -> 3"


def test_two_kinds_of_events_differ_in_their_type() -> None:
    difference = first_difference(event(2), RunCompleted(run=RunId("run_3")), "event")
    assert difference == Difference(
        path="event.type", left="session.model_requested.v1", right="session.run_completed.v1"
    )


def test_an_argument_is_found_inside_nested_arrays_and_objects() -> None:
    left, right = call(rows=[{"x": 1}, {"x": 64}]), call(rows=[{"x": 1}, {"x": 6400}])
    assert str(first_difference(left, right, "call")) == "call.input.rows[1].x: 64 -> 6400"


@pytest.mark.parametrize(("left", "right"), [(1, True), (1, 1.0), (0, False), (1, "1"), (None, False), ([], {})])
def test_values_that_are_equal_to_python_but_not_in_json_differ(left: object, right: object) -> None:
    assert first_difference({"x": left}, {"x": right}, "$") == Difference(path="$.x", left=left, right=right)


def test_the_order_of_keys_means_nothing() -> None:
    assert first_difference({"a": 1, "b": 2}, {"b": 2, "a": 1}, "$") is None


def test_a_key_on_one_side_only_has_nothing_on_the_other() -> None:
    assert str(first_difference({"a": 1}, {}, "$")) == "$.a: 1 -> (nothing)"
    assert str(first_difference({}, {"a": None}, "$")) == "$.a: (nothing) -> null"


def test_a_key_that_is_no_name_is_quoted() -> None:
    assert str(first_difference({"a b": 1}, {"a b": 2}, "$")) == '$["a b"]: 1 -> 2'


def test_the_longer_array_has_an_item_more() -> None:
    assert first_difference((1, 2), (1, 2, 3), "pending") == Difference(path="pending[2]", left=NOTHING, right=3)


def test_bytes_are_shown_as_json_shows_them() -> None:
    left, right = ImageBlock(media_type="image/png", data=b"a"), ImageBlock(media_type="image/png", data=b"b")
    assert str(first_difference(left, right, "block")) == 'block.data: "YQ==" -> "Yg=="'


def test_long_sides_are_cut_in_the_text_and_kept_in_the_fields() -> None:
    difference = first_difference(TextBlock(text="a" * 10_000), TextBlock(text="b" * 10_000), "block")
    assert difference is not None
    assert len(str(difference)) < 600
    assert difference.left == "a" * 10_000


def test_json_leaves_out_a_side_that_has_nothing() -> None:
    assert msgspec.json.encode(Difference(path="$.a", left=None)) == b'{"path":"$.a","left":null}'
