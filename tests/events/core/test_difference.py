"""The first difference of two values, as a path."""

import msgspec
import pytest

from refold.events.core.content import ImageBlock, TextBlock, ToolUseBlock
from refold.events.core.difference import Difference, first_difference
from refold.events.core.ids import RunId, ToolCallId
from refold.events.session.events import ModelRequested, RunCompleted

NESTED = tuple(
    ToolUseBlock(id=ToolCallId("call_6_0"), name="pay", input={"rows": [{"x": 1}, {"x": amount}]})
    for amount in (64, 6400)
)
IMAGES = tuple(ImageBlock(media_type="image/png", data=data) for data in (b"a", b"b"))
TURN_2, TURN_3 = (ModelRequested(run=RunId("run_3"), turn=turn) for turn in (2, 3))


@pytest.mark.parametrize(
    ("left", "right", "path", "said"),
    [
        pytest.param(TURN_2, TURN_3, "event[1]", "event[1].turn: 2 -> 3", id="a field with both sides"),
        pytest.param(
            TURN_2,
            RunCompleted(run=RunId("run_3")),
            "event",
            'event.type: "session.model_requested.v1" -> "session.run_completed.v1"',
            id="two kinds of events",
        ),
        pytest.param(*NESTED, "call", "call.input.rows[1].x: 64 -> 6400", id="inside arrays and objects"),
        pytest.param({"a": 1}, {}, "$", "$.a: 1 -> (nothing)", id="a key on the left only"),
        pytest.param({}, {"a": None}, "$", "$.a: (nothing) -> null", id="a key on the right only"),
        pytest.param({"a b": 1}, {"a b": 2}, "$", '$["a b"]: 1 -> 2', id="a key that is no name"),
        pytest.param((1, 2), (1, 2, 3), "pending", "pending[2]: (nothing) -> 3", id="a longer array"),
        pytest.param(*IMAGES, "block", 'block.data: "YQ==" -> "Yg=="', id="bytes as json shows them"),
    ],
)
def test_the_first_difference_is_named_by_its_path(left: object, right: object, path: str, said: str) -> None:
    assert str(first_difference(left, right, path)) == said


def test_equal_values_have_no_difference_and_the_order_of_keys_means_nothing() -> None:
    assert first_difference(TURN_2, msgspec.structs.replace(TURN_2), "event") is None
    assert first_difference({"a": 1, "b": 2}, {"b": 2, "a": 1}, "$") is None


@pytest.mark.parametrize(("left", "right"), [(1, True), (1, 1.0), (0, False), (1, "1"), (None, False), ([], {})])
def test_values_that_are_equal_to_python_but_not_in_json_differ(left: object, right: object) -> None:
    assert first_difference({"x": left}, {"x": right}, "$") == Difference(path="$.x", left=left, right=right)


def test_long_sides_are_cut_in_the_text_and_kept_in_the_fields() -> None:
    difference = first_difference(TextBlock(text="a" * 10_000), TextBlock(text="b" * 10_000), "block")
    assert difference is not None
    assert len(str(difference)) < 600
    assert difference.left == "a" * 10_000


def test_json_leaves_out_a_side_that_has_nothing() -> None:
    assert msgspec.json.encode(Difference(path="$.a", left=None)) == b'{"path":"$.a","left":null}'
