"""Blocks and messages: their words on the wire, their texts, and the fixed sentences."""

from typing import get_args

import msgspec
import pytest

from refold.events.core.content import (
    CANCELLED_TEXT,
    CRASHED_IMPORT_TEXT,
    CRASHED_TEXT,
    Block,
    ErrorKind,
    ImageBlock,
    Message,
    ProviderBlock,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    error_result,
    text_of,
    tool_uses,
    without_blanks,
)
from refold.events.core.ids import PayloadHash, ToolCallId

CALL = ToolCallId("call_6_0")

BLOCKS: dict[str, Block] = {
    '{"type":"text","text":"Hi"}': TextBlock(text="Hi"),
    '{"type":"image","media_type":"image/png","data":"iVBORw=="}': ImageBlock(media_type="image/png", data=b"\x89PNG"),
    '{"type":"thinking","thinking":"hm"}': ThinkingBlock(thinking="hm"),
    '{"type":"thinking","thinking":"hm","signature":"s=="}': ThinkingBlock(thinking="hm", signature="s=="),
    '{"type":"text","text":"Hi","provider_data":{"anthropic":{"citations":[]}}}': TextBlock(
        text="Hi", provider_data={"anthropic": {"citations": []}}
    ),
    '{"type":"provider","provider":"anthropic","data":{"type":"server_tool_use"}}': ProviderBlock(
        provider="anthropic", data={"type": "server_tool_use"}
    ),
    '{"type":"stored","hash":"ab","bytes":3,"holds":"image"}': StoredBlock(
        hash=PayloadHash("ab"), bytes=3, holds="image"
    ),
    '{"type":"tool_use","id":"call_6_0","name":"look","input":{"n":1}}': ToolUseBlock(
        id=CALL, name="look", input={"n": 1}
    ),
    '{"type":"tool_use","id":"call_6_0","name":"look","input":{},"provider_id":"t",'
    '"malformed_input":"{"}': ToolUseBlock(id=CALL, name="look", input={}, provider_id="t", malformed_input="{"),
    '{"type":"tool_result","tool_use_id":"call_6_0","content":[]}': ToolResultBlock(tool_use_id=CALL, content=()),
    '{"type":"tool_result","tool_use_id":"call_6_0","content":[{"type":"text","text":"x"}],"is_error":true,'
    '"kind":"timeout"}': error_result(CALL, "timeout", "x"),
}


@pytest.mark.parametrize(("text", "block"), BLOCKS.items(), ids=lambda value: value.__class__.__name__)
def test_a_block_is_written_in_these_words_and_read_back_as_it_was(text: str, block: Block) -> None:
    assert msgspec.json.encode(block).decode() == text
    assert msgspec.json.decode(text, type=Block) == block


def test_every_kind_of_block_is_in_this_table() -> None:
    assert {type(block) for block in BLOCKS.values()} == set(get_args(Block))


def test_the_fixed_sentences_are_these() -> None:
    assert CANCELLED_TEXT == "Cancelled by user"
    assert CRASHED_TEXT == (
        "Tool execution was interrupted by a crash. Its outcome is unknown: it may have taken full, partial or no "
        "effect. Check before running it again."
    )
    assert CRASHED_IMPORT_TEXT == "Tool execution was interrupted by a crash. Please retry."


def test_the_kinds_of_errors_are_these() -> None:
    assert set(get_args(ErrorKind)) == {
        "transient",
        "permanent",
        "cancelled",
        "denied",
        "timeout",
        "crashed",
        "truncated",
        "invalid_arguments",
        "not_found",
        "shed",
    }


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


def test_an_error_result_has_one_kind_and_one_text() -> None:
    result = error_result(CALL, "crashed", CRASHED_TEXT)
    assert (result.tool_use_id, result.is_error, result.kind, result.text) == (CALL, True, "crashed", CRASHED_TEXT)


def test_blocks_are_frozen() -> None:
    with pytest.raises(AttributeError):
        TextBlock(text="a").text = "b"  # type: ignore[misc]
