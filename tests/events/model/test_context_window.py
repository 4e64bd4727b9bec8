"""What a `TokenWindow` leaves of a history: always one that providers accept, with all that the model has not seen."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events import ImageBlock, Message, ProviderBlock, StoredBlock, ThinkingBlock, ToolSpec, ToolUseBlock
from refold.events.core.errors import ConfigError
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.model.context_window import (
    IMAGE_TOKENS,
    Context,
    TokenWindow,
    about_tokens,
    first_required,
    message_tokens,
)
from refold.events.model.request import kept_messages
from refold.events.session.invariants import check_history
from tests.events.histories import answered, called, histories, said


def one_each(message: Message) -> int:
    return 1


def left(messages: Sequence[Message], latest: int, max_tokens: int) -> list[Message]:
    """Return what is left where each message is one token."""
    kept = TokenWindow(max_tokens, count=one_each).kept(
        Context(system_prompt="", messages=messages, latest_input=latest)
    )
    return list(messages) if kept is None else list(kept_messages(messages, kept))


@pytest.mark.in_full
@given(histories(), st.integers(1, 200))
def test_what_is_left_is_accepted_within_the_budget_and_holds_what_the_model_must_see(
    drawn: tuple[list[Message], int], max_tokens: int
) -> None:
    messages, latest = drawn
    context = Context(system_prompt="", messages=messages, latest_input=latest)
    kept = TokenWindow(max_tokens).kept(context)
    ranges = ((0, len(messages)),) if kept is None else tuple(kept)
    after = list(kept_messages(messages, ranges))
    assert check_history(after) == []
    places = [place for first, end in ranges for place in range(first, end)]
    required = first_required(messages, latest)
    assert latest in places
    assert set(range(required, len(messages))) <= set(places) or required == latest
    assert places[-1] == len(messages) - 1
    assert after[0].role == "user"
    tokens = sum(map(message_tokens, after))
    if tokens > max_tokens:  # Then nothing more can go: the input, and the last answer with all behind it.
        assert len(ranges) == 1 or ranges[0][1] - ranges[0][0] == 1
        assert len(places) <= 2 + len(messages) - min(required, _last_answer(messages))
    if kept is None and sum(map(message_tokens, messages)) > max_tokens:
        assert len(places) == len(messages)
    again = TokenWindow(max_tokens).kept(Context(system_prompt="", messages=after, latest_input=places.index(latest)))
    assert again is None or list(kept_messages(after, again)) == after


def _last_answer(messages: Sequence[Message]) -> int:
    """Return where the last answer begins, one that it goes on from included."""
    place = len(messages) - 1
    while place > 0 and not (messages[place].role == "assistant" and messages[place - 1].role == "user"):
        place -= 1
    return place


@pytest.mark.in_full
@given(histories(), st.integers(1, 60))
def test_as_many_whole_groups_stay_as_there_is_room_for(drawn: tuple[list[Message], int], max_tokens: int) -> None:
    messages, latest = drawn
    after = left(messages, latest, max_tokens)
    if len(messages) <= max_tokens:
        assert after == messages
        return
    dropped = len(messages) - len(after)
    if after == messages[dropped:] and len(after) <= max_tokens and dropped:
        group = dropped - 1
        while group > 0 and not (messages[group].role == "user" and check_history(messages[group:]) == []):
            group -= 1
        assert len(messages) - group > max_tokens


def test_case_a08_whole_groups_go_and_no_pair_is_parted() -> None:
    pairs = [called("call_1_0"), answered("call_1_0"), called("call_2_0"), answered("call_2_0")]
    messages = [said("user", "a"), *pairs[:2], said("assistant", "A"), said("user", "b"), *pairs[2:]]
    messages += [said("assistant", "B"), said("user", "c")]
    assert len(messages) == 9
    for max_tokens in range(1, 10):
        assert check_history(left(messages, 8, max_tokens)) == []
    assert left(messages, 8, 8) == messages[4:]
    assert left(messages, 8, 4) == messages[8:]


def test_case_a22_the_first_message_left_is_a_users() -> None:
    messages = [said("user", "a"), called("call_1_0"), answered("call_1_0"), said("assistant", "A"), said("user", "b")]
    for max_tokens in range(1, 6):
        assert left(messages, 4, max_tokens)[0].role == "user"


def test_case_a11_an_open_call_and_one_whose_result_nobody_has_seen_stay() -> None:
    asked = [said("user", "Pay."), called("call_3_0")]
    chat = [said("user", f"Still there? {number}") for number in range(10)]
    with_open_call = [said("user", "Before"), said("assistant", "Yes."), *asked]
    assert called("call_3_0") in left(with_open_call, 2, 1)
    approved = [said("user", "Before"), said("assistant", "Yes."), *asked, answered("call_3_0"), *chat]
    after = left(approved, len(approved) - 1, 1)
    assert after == approved[2:]


def test_a_long_run_loses_its_oldest_answers_and_keeps_its_input() -> None:
    messages = [said("user", "go")]
    for number in range(5):
        messages += [called(f"call_{number}_0"), answered(f"call_{number}_0")]
    assert left(messages, 0, 6) == [messages[0], *messages[-4:]]
    assert left(messages, 0, 1) == [messages[0], *messages[-2:]]
    assert left(messages, 0, 11) == messages


def test_paused_answers_stay_together() -> None:
    pause = said("assistant", ProviderBlock(provider="p", data={"type": "search"}))
    messages = [said("user", "go"), called("call_1_0"), answered("call_1_0"), pause, called("call_2_0")]
    messages.append(answered("call_2_0"))
    assert left(messages, 0, 2) == [messages[0], *messages[3:]]


def test_the_system_prompt_and_the_tools_are_counted_too() -> None:
    messages = [said("user", "x" * 40), said("assistant", "y" * 40), said("user", "z" * 40)]
    tool = ToolSpec(name="look", description="x" * 400, input_schema={})

    def kept(max_tokens: int, **frame: object) -> object:
        settings = {"system_prompt": "", "messages": messages, "latest_input": 2, **frame}
        return TokenWindow(max_tokens).kept(Context(**settings))  # type: ignore[arg-type]

    assert kept(30) is None
    assert kept(30, system_prompt="x" * 40) == ((2, 3),)
    assert kept(40, system_prompt="x" * 40) is None
    assert kept(100, tools=(tool,)) == ((2, 3),)


def test_tokens_are_counted_about_four_characters_each() -> None:
    assert [about_tokens(text) for text in ("", "a", "abcd", "abcde")] == [0, 1, 1, 2]
    assert message_tokens(said("user", ImageBlock(media_type="image/png", data=b"x"))) == IMAGE_TOKENS
    assert message_tokens(said("assistant", ThinkingBlock(thinking="abcdefgh"))) == 2
    assert message_tokens(said("user", StoredBlock(hash=PayloadHash("0"), bytes=400, holds="text"))) == 100
    use = ToolUseBlock(id=ToolCallId("call_1_0"), name="look", input={"what": "ab"})
    assert message_tokens(said("assistant", use)) == 1 + len('{"what":"ab"}') // 4 + 1
    assert message_tokens(answered("call_1_0", text="abcd")) == 1


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "many"])
def test_a_window_of_no_size_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        TokenWindow(wrong)  # type: ignore[arg-type]


def test_a_count_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="count"):
        TokenWindow(9, count=7)  # type: ignore[arg-type]
