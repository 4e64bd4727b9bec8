"""A session's history as requests need it: views that stay as they are, hashed and restored once."""

import hashlib
import tracemalloc
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from refold.actors.calls.conversation import Conversation, HistoryView, own_copy
from refold.events.core.content import Message, StoredBlock, TextBlock, ToolResultBlock, ToolUseBlock
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.core.state_codec import SEALED_ITEMS, SealedList
from refold.events.model.payloads import restored, spill

BIG = TextBlock(text="big " * 50_000)


def said(text: str) -> Message:
    return Message("user", (TextBlock(text=text),))


def called(arguments: dict[str, object]) -> Message:
    return Message("assistant", (ToolUseBlock(id=ToolCallId("call_1_0"), name="look", input=arguments),))


class Payloads:
    def __init__(self) -> None:
        self.kept: dict[PayloadHash, bytes] = {}
        self.asked: list[list[PayloadHash]] = []

    async def read(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        wanted = list(hashes)
        self.asked.append(wanted)
        return {name: self.kept[name] for name in wanted if name in self.kept}

    def stored(self) -> Message:
        content, payloads = spill((BIG,))
        self.kept.update(payloads)
        return Message("user", content)


async def test_a_view_stays_as_it_is_while_the_history_grows() -> None:
    conversation, source = Conversation(Payloads().read), [said("a"), said("b")]
    view, _ = await conversation.upto(source, 2)
    source.append(said("c"))
    longer, _ = await conversation.upto(source, 3)
    assert list(view) == [said("a"), said("b")]
    assert list(longer) == [said("a"), said("b"), said("c")]


async def test_a_view_is_a_sequence_like_a_list_of_its_messages() -> None:
    messages = [said(text) for text in "abcd"]
    view = HistoryView(messages, 3)
    assert (len(view), view[0], view[-1]) == (3, said("a"), said("c"))
    assert (view[1:], view[::-1], view[-2:]) == (messages[1:3], messages[2::-1], messages[1:3])
    assert view == messages[:3]
    assert view != messages
    assert view != "abc"
    assert said("c") in view
    assert said("d") not in view
    assert repr(view) == repr(messages[:3])
    for place in (3, -4):
        with pytest.raises(IndexError):
            view[place]
    with pytest.raises(TypeError):
        view[0] = said("x")  # type: ignore[index]


async def test_copies_are_given_again_until_a_reader_changes_one() -> None:
    source = [said("a"), called({"city": ["Lisbon"]}), said("b")]
    conversation = Conversation(Payloads().read)
    view = (await conversation.upto(source, 3))[0]
    assert isinstance(view, HistoryView)
    first = view.own_copies()
    assert view.own_copies() is first
    assert first == tuple(source)
    assert view.is_said_by(first)
    assert view.is_said_by(tuple(source))
    block = first[1].content[0]
    assert isinstance(block, ToolUseBlock)
    block.input["city"] = ["Paris"]
    assert not view.is_said_by(first)
    again = view.own_copies()
    assert again == tuple(source)
    assert view.is_said_by(again)
    assert not view.is_said_by(first)
    source.append(called({"city": "Rome"}))
    longer = (await conversation.upto(source, 4))[0]
    assert isinstance(longer, HistoryView)
    assert longer.own_copies() == tuple(source)
    assert view.own_copies() == tuple(source[:3])


async def test_the_digest_is_that_of_the_messages_however_they_came() -> None:
    source = [said("a"), said("b"), said("c")]
    at_once, step_by_step = Conversation(Payloads().read), Conversation(Payloads().read)
    digests = [(await step_by_step.upto(source, length))[1] for length in (1, 2, 3)]
    assert (await at_once.upto(source, 3))[1] == digests[2]
    assert len(set(digests)) == 3
    assert (await at_once.upto(source, 1))[1] == digests[0]


async def test_another_history_is_read_anew() -> None:
    conversation = Conversation(Payloads().read)
    await conversation.upto([said("a"), said("b")], 2)
    view, digest = await conversation.upto([said("x")], 1)
    assert list(view) == [said("x")]
    assert digest == (await Conversation(Payloads().read).upto([said("x")], 1))[1]


async def test_what_stands_for_a_payload_is_restored_and_read_once() -> None:
    payloads = Payloads()
    conversation, source = Conversation(payloads.read), [payloads.stored(), said("a")]
    view, _ = await conversation.upto(source, 2)
    source.append(said("b"))
    await conversation.upto(source, 3)
    assert view[0] == Message("user", (BIG,))
    assert len(payloads.asked) == 1


async def test_a_payload_that_is_said_often_takes_the_memory_of_one() -> None:
    payloads = Payloads()
    often = [Message("user", payloads.stored().content * 100) for _ in range(50)]
    view, _ = await Conversation(payloads.read).upto(often, 50)
    blocks = [block for message in view for block in message.content]
    assert len(blocks) == 5_000
    assert len({id(getattr(block, "text", block)) for block in blocks}) == 1


async def test_a_missing_payload_is_an_error_and_changes_nothing_of_the_conversation() -> None:
    payloads = Payloads()
    stored = payloads.stored()
    kept, payloads.kept = payloads.kept, {}
    conversation, source = Conversation(payloads.read), [said("a"), stored]
    await conversation.upto(source, 1)
    for _ in range(2):
        with pytest.raises(LogFormatError, match="missing"):
            await conversation.upto(source, 2)
    payloads.kept = kept
    view, digest = await conversation.upto(source, 2)
    assert len(view) == 2
    assert digest == (await Conversation(payloads.read).upto(source, 2))[1]


async def test_what_a_reader_does_to_arguments_stays_with_the_reader() -> None:
    call = ToolUseBlock(id=ToolCallId("c"), name="pay", input={"amount": {"value": 5}})
    source = [said("a"), Message("assistant", (call,))]
    view, _ = await Conversation(Payloads().read).upto(source, 2)
    seen: Any = view[1].content[0]
    seen.input["amount"]["value"] = 6
    assert call.input == {"amount": {"value": 5}}


def test_a_copy_equals_its_message() -> None:
    call = ToolUseBlock(id=ToolCallId("c"), name="n", input={"x": [1, "\U0001f600"]}, malformed_input="{")
    result = ToolResultBlock(tool_use_id=ToolCallId("c"), content=(TextBlock(text="x"),), is_error=True, kind="denied")
    for message in (Message("assistant", (TextBlock(text="t"), call)), Message("user", (result,)), said("a")):
        assert own_copy(message) == message


@pytest.mark.parametrize("stored_at", [(), (3,), (SEALED_ITEMS + 1, 2 * SEALED_ITEMS), (2 * SEALED_ITEMS + 5,)])
async def test_a_history_that_is_encoded_still_gives_the_same_views_and_digests(stored_at: tuple[int, ...]) -> None:
    payloads = Payloads()
    call = ToolUseBlock(id=ToolCallId("c"), name="pay", input={"text": 'say "type":"stored"\n', "n": {"m": 1}})
    plain = [
        payloads.stored() if place in stored_at else Message("assistant", (TextBlock(text=f"{place}\n"), call))
        for place in range(2 * SEALED_ITEMS + 9)
    ]
    lines = msgspec.json.Encoder().encode_lines
    pieces = [lines(plain[first : first + SEALED_ITEMS]) for first in (0, SEALED_ITEMS)]
    source = SealedList(msgspec.json.Decoder(Message).decode_lines, [*pieces], plain[2 * SEALED_ITEMS :])
    sealed, whole = Conversation(payloads.read), Conversation(payloads.read)
    for length in (len(plain) - 1, len(plain), 5, SEALED_ITEMS):
        view, digest = await sealed.upto(source, length)
        expected, same = await whole.upto(plain, length)
        assert isinstance(view, HistoryView)
        assert isinstance(expected, HistoryView)
        assert (digest, view.digest) == (same, expected.digest)
        assert list(view) == list(expected)
        assert view[:] == expected[:]
    assert len(payloads.asked) <= 8  # Each is read once for a view.
    seen: Any = view[0].content[-1]
    if 0 not in stored_at:
        seen.input["n"]["m"] = 2
        assert source[0] == plain[0]


async def test_a_payload_said_a_thousand_times_is_hashed_as_one_text_and_not_made_one() -> None:
    payloads = Payloads()
    [big] = payloads.stored().content
    assert isinstance(big, StoredBlock)
    result = ToolResultBlock(tool_use_id=ToolCallId("call_1"), content=(big,) * 500)
    source = [Message("user", (result, *(big,) * 500, TextBlock(text='{"type":"text","text":"\0"}')))]
    tracemalloc.start()
    view, _ = await Conversation(payloads.read).upto(source, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    whole = restored(source[0], payloads.kept)
    assert isinstance(view, HistoryView)
    assert view.digest == hashlib.sha256(msgspec.json.encode(whole)).hexdigest()
    assert peak < 20 * len(BIG.text)
