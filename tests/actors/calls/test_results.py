"""What a tool returned or raised, made into what the model reads."""

import datetime
import uuid
from typing import Any

import msgspec
import pytest

from refold.actors.calls.results import ERROR_CHARACTERS_MAX, ERRORS_TOLD_MAX, failure, result_content, text_of_error
from refold.events.core.cleaning import Unrecordable
from refold.events.core.content import ImageBlock, StoredBlock, TextBlock
from refold.events.core.errors import ToolError
from refold.events.model.payloads import INLINE_BYTES_MAX, restore


class Point(msgspec.Struct):
    x: int
    label: str | None = None


IMAGE = ImageBlock(media_type="image/png", data=b"\x89PNG")


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, ()),
        ("", ()),
        ("text", (TextBlock(text="text"),)),
        (TextBlock(text=""), ()),
        (TextBlock(text="\ud800"), (TextBlock(text="\ufffd"),)),
        (IMAGE, (IMAGE,)),
        ([TextBlock(text="see"), IMAGE], (TextBlock(text="see"), IMAGE)),
        ((IMAGE,), (IMAGE,)),
        (["text", IMAGE.media_type], (TextBlock(text='["text","image/png"]'),)),
        ([], (TextBlock(text="[]"),)),
        (False, (TextBlock(text="false"),)),
        (0, (TextBlock(text="0"),)),
        (Point(1), (TextBlock(text='{"x":1,"label":null}'),)),
        ({"at": datetime.date(2026, 1, 2)}, (TextBlock(text='{"at":"2026-01-02"}'),)),
        (uuid.UUID(int=5), (TextBlock(text='"00000000-0000-0000-0000-000000000005"'),)),
        (b"bytes", (TextBlock(text='"Ynl0ZXM="'),)),
    ],
)
def test_a_value_becomes_blocks(value: Any, content: Any) -> None:
    assert result_content(value) == (content, {})


@pytest.mark.parametrize("value", ["x" * INLINE_BYTES_MAX, ImageBlock(media_type="image/png", data=b"x" * 70_000)])
def test_a_large_value_becomes_a_payload_that_holds_all_of_it(value: Any) -> None:
    (block,), payloads = result_content(value)
    assert isinstance(block, StoredBlock)
    assert restore(block, payloads) == (TextBlock(text=value) if isinstance(value, str) else value)


@pytest.mark.parametrize(
    "value",
    [ImageBlock(media_type="image/png", data="text"), ImageBlock(media_type=None, data=b"")],  # type: ignore[arg-type]
)
def test_an_image_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(Unrecordable):
        result_content(value)


@pytest.mark.parametrize(
    ("error", "text", "kind"),
    [
        (ToolError("try later", kind="transient"), "try later", "transient"),
        (ToolError("never"), "never", "permanent"),
        (ToolError(""), "ToolError", "permanent"),
        (TimeoutError(), "TimeoutError: ", "transient"),
        (ConnectionResetError("gone"), "ConnectionResetError: gone", "transient"),
        (KeyError("k"), "KeyError: 'k'", "permanent"),
        (ValueError("\ud800"), "ValueError: \ufffd", "permanent"),
        (SystemExit(3), "SystemExit: 3", "permanent"),
    ],
)
def test_an_error_becomes_its_text_and_its_kind(error: BaseException, text: str, kind: str) -> None:
    assert failure(error) == ((TextBlock(text=text),), kind)


@pytest.mark.parametrize(
    ("errors", "text", "kind"),
    [
        ([ValueError("one")], "ValueError: one", "permanent"),
        ([TimeoutError("late"), ConnectionError("gone")], "TimeoutError: late; ConnectionError: gone", "transient"),
        ([TimeoutError("late"), ValueError("one")], "TimeoutError: late; ValueError: one", "permanent"),
        (
            [ExceptionGroup("inner", [ToolError("never"), KeyError(1)]), ToolError("")],
            "never; KeyError: 1; ",
            "permanent",
        ),
        ([ToolError("again", kind="transient")], "again", "transient"),
    ],
)
def test_of_a_group_each_error_is_told(errors: list[Exception], text: str, kind: str) -> None:
    assert failure(ExceptionGroup("outer", errors)) == ((TextBlock(text=text),), kind)


def test_of_a_large_and_deep_group_the_first_errors_are_told() -> None:
    group: ExceptionGroup[Exception] = ExceptionGroup("many", [ValueError(str(number)) for number in range(100)])
    for _ in range(5_000):
        group = ExceptionGroup("deeper", [group])
    ((block,), _) = failure(group)
    assert isinstance(block, TextBlock)
    assert block.text.split("; ")[-1] == f"ValueError: {ERRORS_TOLD_MAX - 1}"


def test_the_text_of_an_error_is_cut() -> None:
    ((block,), _) = failure(ValueError("x" * 10_000_000))
    assert isinstance(block, TextBlock)
    assert len(block.text) == ERROR_CHARACTERS_MAX


def test_an_error_that_cannot_say_its_text_is_told_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert text_of_error(Mute()) == "(its text cannot be had: RuntimeError)"
