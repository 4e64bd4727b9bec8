"""How much of a long result, and of many errors, a model is shown."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.actors.calls.results import (
    DEFAULT_RESULT_LIMIT,
    ERRORS_TOLD_MAX,
    IMAGE_BYTES_MAX,
    RESULT_LIMIT_MAX,
    WithLimit,
    failure,
    limited,
    result_content,
)
from refold.events.core.cleaning import Unrecordable
from refold.events.core.codec import EVENT_BYTES_MAX, EventCodec
from refold.events.core.content import ImageBlock, StoredBlock, TextBlock
from refold.events.core.ids import ToolCallId
from refold.events.model.cooperative import at_once
from refold.events.model.payloads import restore, whole_block
from refold.events.session.events import ToolCallCompleted


def test_a_long_text_is_shown_with_its_beginning_its_end_and_what_was_left_out() -> None:
    text = "".join(f"line {number:04}\n" for number in range(1000))
    (cut,), payloads = result_content(WithLimit(text, 90))
    assert isinstance(cut, StoredBlock)
    assert cut.shown == (
        "line 0000\nline 0001\nline 0002\nline 0003\nline 0004\nline 0005\n\n"
        f"[9,910 of 10,000 bytes are left out here; the log keeps all of it as payload {cut.hash}]\n"
        "line 0997\nline 0998\nline 0999\n"
    )
    assert restore(cut, {}) == TextBlock(text=cut.shown)
    assert whole_block(cut.hash, payloads) == TextBlock(text=text)


@given(st.text(max_size=400), st.integers(0, 300))
def test_what_is_cut_keeps_whole_characters_and_counts_the_rest(text: str, limit: int) -> None:
    (shown,), payloads = at_once(limited([TextBlock(text=text)], limit))
    data = text.encode(errors="replace")
    if len(data) <= limit:
        assert (shown, payloads) == (TextBlock(text=text), {})
        return
    assert isinstance(shown, StoredBlock)
    assert whole_block(shown.hash, payloads) == TextBlock(text=text)
    said = f" of {len(data):,} bytes are left out here; the log keeps all of it as payload {shown.hash}]"
    before, _, tail = shown.shown.rpartition(said)
    head, _, count = before.rpartition("[")
    head, tail = head.removesuffix("\n"), tail.removeprefix("\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head.encode()) + len(tail.encode()) + int(count.replace(",", "")) == len(data)
    assert limit - 6 <= len(head.encode()) + len(tail.encode()) <= limit  # Each end may lose up to three bytes.


def test_texts_of_one_result_share_the_limit_and_short_ones_stay_whole() -> None:
    image = ImageBlock(media_type="image/png", data=b"x")
    blocks: list[TextBlock | ImageBlock] = [
        TextBlock(text="short"),
        image,
        TextBlock(text="x" * 1000),
        TextBlock(text="y" * 1000),
    ]
    shown, payloads = at_once(limited(blocks, 300))
    assert shown[:2] == [TextBlock(text="short"), image]
    cut = [block for block in shown[2:] if isinstance(block, StoredBlock)]
    assert ["x" * 67 + "\n[" in cut[0].shown, cut[1].shown.endswith("]\n" + "y" * 33)] == [True, True]
    assert len(payloads) == 2
    assert at_once(limited(blocks, 2005)) == (blocks, {})
    assert at_once(limited(blocks, None)) == (blocks, {})


@pytest.mark.parametrize("value", [{"rows": list(range(20_000))}, "x" * (DEFAULT_RESULT_LIMIT + 1), "é" * 40_000])
def test_without_a_limit_of_its_own_a_tool_shows_what_fits_into_an_event(value: Any) -> None:
    (cut,), payloads = result_content(value)
    assert isinstance(cut, StoredBlock)
    assert len(cut.shown.encode()) <= DEFAULT_RESULT_LIMIT + 200
    assert list(payloads) == [cut.hash]
    fits = TextBlock(text="x" * DEFAULT_RESULT_LIMIT)
    (whole,), payloads = result_content(fits)
    assert isinstance(whole, StoredBlock)
    assert restore(whole, payloads) == fits


def test_the_highest_limit_fits_into_an_event_whatever_the_text_is() -> None:
    content, _ = result_content(WithLimit("\x00" * 1_000_000, RESULT_LIMIT_MAX))
    event = ToolCallCompleted(call=ToolCallId("call_1_0"), content=content)
    assert len(EventCodec([ToolCallCompleted]).encode(event)) < EVENT_BYTES_MAX


def test_an_image_is_never_cut_and_one_that_is_too_large_is_refused() -> None:
    largest = ImageBlock(media_type="image/png", data=b"x" * IMAGE_BYTES_MAX)
    assert at_once(limited([largest], 0)) == ([largest], {})
    larger = ImageBlock(media_type="image/png", data=b"x" * (IMAGE_BYTES_MAX + 1))
    with pytest.raises(Unrecordable, match=r"\$\[1\] is an image of 5,242,881 bytes; 5,242,880 are accepted"):
        at_once(limited([largest, larger], 1000))
    assert at_once(limited([larger], None)) == ([larger], {})


def test_of_a_large_and_deep_group_the_first_errors_are_told() -> None:
    group: ExceptionGroup[Exception] = ExceptionGroup("many", [ValueError(str(number)) for number in range(100)])
    for _ in range(5_000):
        group = ExceptionGroup("deeper", [group])
    ((block,), _) = failure(group)
    assert isinstance(block, TextBlock)
    assert block.text.split("; ")[-1] == f"ValueError: {ERRORS_TOLD_MAX - 1}"
