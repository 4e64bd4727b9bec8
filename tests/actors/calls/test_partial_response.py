"""The evidence of a half answer: what had come, in order, bounded, and never a call."""

import pytest

from refold.actors.calls.streaming import CHARACTERS_MAX, PartialResponse
from refold.events import SESSION_CODEC, StoredBlock, TextBlock, ThinkingBlock, ToolUseBlock
from refold.events.core.codec import EVENT_BYTES_MAX
from refold.events.core.ids import ToolCallId
from refold.events.model.messages import Delta, TextDelta, ThinkingDelta, ToolInputDelta, Usage, UsageDelta
from refold.events.session.events import ModelInterrupted
from refold.events.session.normalise import MALFORMED_SHOWN, NAME_CHARACTERS_MAX


def interruption(*deltas: Delta) -> ModelInterrupted | None:
    partial = PartialResponse()
    for delta in deltas:
        partial.add(delta)
    return partial.interruption(3, 17)[0]


def content(*deltas: Delta) -> tuple[object, ...]:
    told = interruption(*deltas)
    assert told is not None
    assert (told.turn, told.asked) == (3, 17)
    return told.content


@pytest.mark.parametrize(
    "deltas", [(), (TextDelta(""),), (TextDelta(" \n"), ThinkingDelta("")), (UsageDelta(Usage()),)]
)
def test_where_nothing_has_come_there_is_no_evidence(deltas: tuple[Delta, ...]) -> None:
    assert interruption(*deltas) is None


def test_pieces_are_joined_into_blocks_in_the_order_in_which_they_came() -> None:
    assert content(
        ThinkingDelta("Let "),
        ThinkingDelta("me see."),
        TextDelta("It "),
        TextDelta(""),
        TextDelta("rains."),
        ThinkingDelta("Or not."),
    ) == (ThinkingBlock(thinking="Let me see."), TextBlock(text="It rains."), ThinkingBlock(thinking="Or not."))


def test_calls_that_come_by_turns_are_kept_apart_and_only_whole_arguments_are_read() -> None:
    assert content(
        ToolInputDelta(0, "pay", '{"amount"', "toolu_a"),
        ToolInputDelta(1, "look", '{"at":'),
        ToolInputDelta(0, "pay", ": 5}"),
        ToolInputDelta(1, "look", ' "the w'),
    ) == (
        ToolUseBlock(id=ToolCallId("cut_17_0"), name="pay", input={"amount": 5}, provider_id="toolu_a"),
        ToolUseBlock(id=ToolCallId("cut_17_1"), name="look", input={}, malformed_input='{"at": "the w'),
    )


@pytest.mark.parametrize("text", ["", "[1]", "null", '{"n": 123456789012345678901234567890}', "[" * 2_000])
def test_arguments_that_are_no_object_are_kept_as_text(text: str) -> None:
    (call,) = content(ToolInputDelta(0, "pay", text))
    assert isinstance(call, ToolUseBlock)
    assert (call.input, call.malformed_input) == ({}, text[:MALFORMED_SHOWN])


def test_the_last_count_of_tokens_is_evidence_even_alone() -> None:
    told = interruption(UsageDelta(Usage(input_tokens=7)), UsageDelta(Usage(input_tokens=7, output_tokens=2)))
    assert told is not None
    assert (told.content, told.usage) == ((), Usage(input_tokens=7, output_tokens=2))


def test_text_is_cleaned_once_it_is_whole() -> None:
    assert content(TextDelta("\ud83d"), TextDelta("\ude00 \ud800")) == (TextBlock(text="\U0001f600 \ufffd"),)
    (call,) = content(ToolInputDelta(0, "p\ud800", '"\ud800'))
    assert isinstance(call, ToolUseBlock)
    assert (call.name, call.malformed_input) == ("p\ufffd", '"\ufffd')


def test_large_text_is_a_payload() -> None:
    partial = PartialResponse()
    partial.add(TextDelta("x" * 100_000))
    told, payloads = partial.interruption(1, 5)
    assert told is not None
    (block,) = told.content
    assert isinstance(block, StoredBlock)
    assert list(payloads) == [block.hash]


@pytest.mark.parametrize("text", ["\x00", "\u20ac", '"', "\U0001f600"])
@pytest.mark.parametrize("blocks", ["one", "many", "calls"])
def test_whatever_comes_the_evidence_fits_into_one_event(text: str, blocks: str) -> None:
    partial = PartialResponse()
    for place in range(30_000):
        match blocks:
            case "one":
                partial.add(TextDelta(text * 100))
            case "many":
                partial.add(TextDelta(text * 3) if place % 2 else ThinkingDelta(text * 3))
            case _:
                partial.add(ToolInputDelta(place, text * 1000, text * 3))
    told, payloads = partial.interruption(1, 5)
    assert told is not None
    event = ModelInterrupted(turn=1, content=told.content, usage=told.usage, asked=5)
    assert len(SESSION_CODEC.encode(event)) <= EVENT_BYTES_MAX
    assert sum(map(len, payloads.values())) <= 6 * CHARACTERS_MAX + 1000
    assert all(len(block.name) <= NAME_CHARACTERS_MAX for block in told.content if isinstance(block, ToolUseBlock))
