"""Messages of another system become a history that providers accept, or are refused by their place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.content import (
    NO_RESULT_TEXT,
    OPENING_TEXT,
    ImageBlock,
    Message,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import ToolCallId
from refold.events.session.commands import ClearHistory, ImportHistory
from refold.events.session.events import HistoryImported
from refold.events.session.invariants import check_history
from refold.events.session.normalise import imported_messages
from tests.events.conftest import Session, configuration, names, say, use
from tests.events.histories import said

HI = said("user", "Hi")


def call(identifier: str) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(identifier), name="look", input={"n": 1})


def result(identifier: str, text: str = "done", *, failed: bool = False) -> ToolResultBlock:
    return ToolResultBlock(tool_use_id=ToolCallId(identifier), content=(say(text),), is_error=failed)


def asked(*identifiers: str) -> Message:
    return Message("assistant", tuple(call(identifier) for identifier in identifiers))


def answered(*identifiers: str) -> Message:
    return Message("user", tuple(result(identifier, f"of {identifier}") for identifier in identifiers))


def texts(message: Message) -> list[str]:
    return [block.text for block in message.content if isinstance(block, ToolResultBlock)]


def imported(*messages: Message) -> tuple[Message, ...]:
    return imported_messages(messages, 7, first=True)


def test_a_sound_history_stays_as_it_is_but_for_the_ids_of_its_calls() -> None:
    history = imported(HI, asked("t1", "t2"), answered("t1", "t2"), said("assistant", "Done."))
    assert check_history(history) == []
    assert history[1].content == (
        ToolUseBlock(id=ToolCallId("call_7_0"), name="look", input={"n": 1}, provider_id="t1"),
        ToolUseBlock(id=ToolCallId("call_7_1"), name="look", input={"n": 1}, provider_id="t2"),
    )
    assert texts(history[2]) == ["of t1", "of t2"]


@pytest.mark.parametrize(
    ("messages", "results"),
    [
        pytest.param(
            (HI, asked("t"), answered("t"), asked("t"), answered("t")), ["of t"], id="an id repeats in a later message"
        ),
        pytest.param(
            (HI, asked("t", "t"), said("user", result("t", "first"), result("t", "second"))),
            ["first", "second"],
            id="ids that repeat in one message are paired by their order",
        ),
        pytest.param(
            (HI, asked("a", "b"), said("user", "Look:", result("b", "B"), result("a", "A"))),
            ["A", "B"],
            id="results go before everything else and in the order of the calls",
        ),
        pytest.param((HI, asked("a"), HI), [NO_RESULT_TEXT], id="a call is not answered"),
        pytest.param(
            (HI, asked("a"), said("assistant", "Never mind."), HI), [NO_RESULT_TEXT], id="nor after an answer"
        ),
        pytest.param(
            (HI, asked("x", "y"), answered("y"), answered("x")), ["of x", "of y"], id="each result is a message"
        ),
        pytest.param(
            (HI, asked("x"), asked("y"), HI, answered("x"), said("user", " "), answered("y")),
            ["of x", "of y"],
            id="each call is a message, and the user speaks between",
        ),
        pytest.param((asked("a"), answered("a")), ["of a"], id="a trimmed export begins with a call"),
        pytest.param((HI, asked("a"), said("user", " "), HI), [NO_RESULT_TEXT], id="nor by a blank message"),
        pytest.param((HI, asked("a", "b"), answered("b")), [NO_RESULT_TEXT, "of b"], id="one of two is answered"),
        pytest.param(
            (
                HI,
                asked("a", "b"),
                HI,
                said("assistant", "Wait."),
                answered("a"),
                said("assistant", "So."),
                answered("b"),
            ),
            ["of a", "of b"],
            id="results come behind what the user and the assistant said",
        ),
        pytest.param((HI, asked("a"), answered("a", "a"), answered("a")), ["of a"], id="a result is there three times"),
        pytest.param(
            (HI, asked("a"), answered("a"), said("assistant", "So."), answered("a"), said("assistant", "Yes.")),
            ["of a"],
            id="a result is there again behind an answer",
        ),
        pytest.param(
            (HI, asked("a"), HI, asked("a"), answered("a")), [NO_RESULT_TEXT], id="an id repeats, and one has none"
        ),
    ],
)
def test_each_call_of_a_history_gets_its_result_or_one_that_says_that_there_is_none(
    messages: tuple[Message, ...], results: list[str]
) -> None:
    history = imported(*messages)
    assert check_history(history) == []
    assert texts(history[2]) == results


def test_calls_of_the_last_message_stay_open_and_images_stay() -> None:
    assert imported(HI, asked("a"))[-1].role == "assistant"
    picture = said("user", ImageBlock(media_type="image/png", data=b"png"))
    assert imported(picture) == (picture,)


def test_blank_texts_and_empty_messages_go() -> None:
    thought = ThinkingBlock(thinking="", signature="s")
    history = imported(said("user", "", "Hi"), said("assistant", thought, " "), said("user"), said("assistant", "\n"))
    assert history == (HI, said("assistant", thought))


def test_an_error_without_words_gets_words_and_a_kind() -> None:
    history = imported(HI, asked("a"), Message("user", (result("a", " ", failed=True),)))
    assert history[2].content == (
        ToolResultBlock(
            tool_use_id=ToolCallId("call_7_0"), content=(say("The tool failed."),), is_error=True, kind="permanent"
        ),
    )


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ("nothing to import", ()),
        ("nothing to import", (said("user", " "),)),
        (r"messages\[1\] has a result for 'x'", (HI, answered("x"))),
        (r"messages\[2\] has a result for 'x'", (HI, asked("a"), answered("a", "x"))),
        (r"messages\[1\] has a result for 'a'", (HI, answered("a"), asked("a"))),
        (
            r"messages\[2\] has a result for 'a'.*less often",
            (HI, asked("a"), said("user", result("a", "b"), result("a", "c"))),
        ),
        (
            r"messages\[6\] has a result for 'a', which two messages",
            (HI, asked("a"), HI, asked("a"), HI, said("assistant", "Hm."), answered("a")),
        ),
        (r"messages\[0\] is a user's and holds", (said("user", call("a")),)),
        (r"messages\[0\] is a user's and holds", (said("user", ThinkingBlock(thinking="x")),)),
        (r"messages\[1\] is the assistant's and holds a tool result", (HI, said("assistant", result("a")))),
    ],
)
def test_what_would_need_a_guess_is_refused_by_its_place(words: str, messages: tuple[Message, ...]) -> None:
    with pytest.raises(CommandRejected, match=words):
        imported(*messages)


def test_neighbours_of_one_role_are_one_message_and_an_assistants_beginning_gets_a_users_before_it() -> None:
    begun = Message("user", (say(OPENING_TEXT),))
    assert imported(said("assistant", "How can I help?"), HI, said("user", "Tea?")) == (
        begun,
        said("assistant", "How can I help?"),
        said("user", "Hi", "Tea?"),
    )
    joined = imported(HI, asked("a"), said("assistant", "", "And?"), said("user"), asked("b"))[1]
    assert [getattr(block, "id", None) for block in joined.content] == ["call_7_0", None, "call_7_1"]


def test_a_history_may_go_on_with_an_assistants_message() -> None:
    answer = (said("assistant", "Hi"),)
    assert imported_messages(answer, 7, first=False) == answer


def test_a_refused_import_changes_nothing() -> None:
    session = Session(configuration())
    with pytest.raises(CommandRejected):
        session.tell(ImportHistory(messages=(HI, answered("x"))))
    assert session.history == []


def test_the_same_history_may_be_imported_twice_without_two_calls_of_one_id() -> None:
    session = Session(configuration())
    given_history = (HI, asked("call_3_0", "call_3_1"), answered("call_3_1"))
    session.tell(ImportHistory(messages=given_history))
    session.tell(ImportHistory(messages=given_history))
    session.send()
    session.answer(use("look"))
    assert check_history(session.history) == []


def test_a_history_is_imported_between_two_runs() -> None:
    session = Session(configuration())
    session.send("first")
    session.answer(say("one"))
    assert names(session.tell(ImportHistory(messages=(HI, asked("a"))))) == ["HistoryImported", "ToolCallFailed"]
    session.send("second")
    session.answer(say("two"))
    roles = "user assistant user assistant user user assistant"
    assert [message.role for message in session.history] == roles.split()
    assert isinstance(session.log[7], HistoryImported)


def test_a_late_result_of_an_imported_call_is_known_after_clearing(session: Session) -> None:
    session.tell(ImportHistory(messages=(HI, asked("t1"))))
    session.tell(ClearHistory())
    assert names(session.result(ToolCallId("call_3_0"))) == ["ToolResultLate"]
    session.tell(ImportHistory(messages=(HI,)))
    assert session.texts == ["user: Hi"]


blocks = st.one_of(
    st.sampled_from(["", " ", "x"]).map(say),
    st.sampled_from("ab").map(call),
    st.builds(result, st.sampled_from("ab"), st.sampled_from(["", "y"]), failed=st.booleans()),
    st.just(ThinkingBlock(thinking="hm")),
)
messages = st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(blocks, max_size=4).map(tuple))


@given(st.lists(messages, max_size=6))
def test_whatever_is_imported_is_refused_or_accepted_by_providers(given_messages: list[Message]) -> None:
    try:
        history = imported(*given_messages)
    except CommandRejected:
        return
    assert check_history([*history, Message("user", tuple(_closing(history)) or (say("x"),))]) == []
    assert imported(*history) == history


def _closing(history: tuple[Message, ...]) -> list[ToolResultBlock]:
    last = history[-1]
    if last.role == "user":
        return []
    return [result(block.id) for block in last.content if isinstance(block, ToolUseBlock)]
