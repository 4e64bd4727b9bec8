"""Blocks and messages: their words on the wire, their texts, and the fixed sentences."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from refold.events.core.content import (
    CANCELLED_TEXT,
    CRASHED_IMPORT_TEXT,
    CRASHED_TEXT,
    NO_RESULT_TEXT,
    Block,
    ImageBlock,
    Message,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    error_result,
    text_of,
    tool_uses,
    without_blanks,
)
from refold.events.core.ids import PayloadHash, ToolCallId

CALL = ToolCallId("call_6_0")

BLOCKS = (Path(__file__).parents[2] / "golden" / "text" / "recorded_blocks.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize("data", BLOCKS)
def test_a_block_is_written_in_these_words_and_read_back_as_it_was(data: bytes) -> None:
    assert msgspec.json.encode(msgspec.json.decode(data, type=Block)) == data


def test_every_kind_of_block_is_in_this_table() -> None:
    assert {type(msgspec.json.decode(data, type=Block)) for data in BLOCKS} == set(get_args(Block))
    assert msgspec.json.encode(error_result(CALL, "timeout", "x")) in BLOCKS  # With its kind and one text.
    assert msgspec.json.encode(ImageBlock(media_type="image/png", data=b"\x89PNG")) in BLOCKS


def test_the_fixed_sentences_are_these() -> None:
    assert CANCELLED_TEXT == "Cancelled by user"
    assert CRASHED_TEXT == (
        "Tool execution was interrupted by a crash. Its outcome is unknown: it may have taken full, partial or no "
        "effect. Check before running it again."
    )
    assert NO_RESULT_TEXT == "The imported history has no result of this call, so its outcome is unknown."
    assert CRASHED_IMPORT_TEXT == "Tool execution was interrupted by a crash. Please retry."


def test_the_text_of_a_message_is_that_of_its_text_blocks_joined() -> None:
    message = Message("assistant", (ThinkingBlock(thinking="hm"), TextBlock(text="Hi "), TextBlock(text="there.")))
    assert message.text == text_of(message.content) == "Hi there."
    assert error_result(CALL, "denied", "no").text == "no"
    assert Message("user", ()).text == ""


def test_calls_are_found_in_their_order() -> None:
    first, second = (ToolUseBlock(id=ToolCallId(name), name="look", input={}) for name in "ab")
    assert tool_uses((first, TextBlock(text="and"), second)) == [first, second]
    assert tool_uses(()) == []


def test_only_blank_texts_are_left_out() -> None:
    thinking, stored = ThinkingBlock(thinking=""), StoredBlock(hash=PayloadHash("ab"), bytes=3, holds="text")
    content = (TextBlock(text=""), thinking, TextBlock(text=" \n\t"), stored, TextBlock(text=" x "))
    assert without_blanks(content) == (thinking, stored, TextBlock(text=" x "))
