"""What a text model is shown of a request: instructions, tools and history, as text."""

import json
from typing import Any

import pytest

from refold import ImageBlock, Message, ModelRequest, ProviderBlock, TextBlock, ThinkingBlock, ToolSpec
from refold.events.core.content import ErrorKind, ToolResultBlock, ToolUseBlock
from refold.events.core.ids import ToolCallId
from refold.react.prompt import STOP_SEQUENCE, THOUGHT_DATA, UNPARSED_DATA, said_data, text_request
from refold.react.text import ReActStep, parse_react_step

IMAGE = ImageBlock(media_type="image/png", data=b"png")

WEATHER = ToolSpec(
    name="weather",
    description="Forecast for a city.\n",
    input_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
PAY = ToolSpec(name="pay", description="", input_schema={"type": "object", "properties": {}})


def user(*content: Any) -> Message:
    return Message("user", tuple(TextBlock(text=part) if isinstance(part, str) else part for part in content))


def assistant(*content: Any) -> Message:
    return Message("assistant", tuple(TextBlock(text=part) if isinstance(part, str) else part for part in content))


def call(number: int, name: str = "weather", data: Any = None, /, **arguments: object) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(f"c{number}"), name=name, input=dict(arguments), provider_data=data)


def result(number: int, *content: Any, kind: ErrorKind | None = None) -> ToolResultBlock:
    blocks = tuple(TextBlock(text=part) if isinstance(part, str) else part for part in content)
    return ToolResultBlock(tool_use_id=ToolCallId(f"c{number}"), content=blocks, is_error=kind is not None, kind=kind)


def text_of_request(*messages: Message, tools: tuple[ToolSpec, ...] = (WEATHER,), **settings: Any) -> ModelRequest:
    prompt = settings.pop("system_prompt", "Be brief.")
    return text_request(ModelRequest(model="m", system_prompt=prompt, messages=messages, tools=tools, **settings))


def shown(*messages: Message) -> list[tuple[str, ...]]:
    """Return a history as it is sent, each message as its role and its blocks."""
    request = text_of_request(*messages)
    assert all(one.role != other.role for one, other in zip(request.messages, request.messages[1:], strict=False))
    return [
        (message.role, *(block.text if isinstance(block, TextBlock) else "(image)" for block in message.content))
        for message in request.messages
    ]


# Instructions


def test_tools_are_told_in_the_prompt_in_name_order() -> None:
    request = text_of_request(user("Hi"), tools=(WEATHER, PAY))
    assert request.tools == ()
    beginning, _, tools = request.system_prompt.partition("\n\n# Tools\n\n")
    assert beginning.startswith("Be brief.\n\n# How to answer\n\n")
    assert tools == (
        "## pay\n(no description)\n"
        'Arguments, as JSON Schema: {"type":"object","properties":{}}\n\n'
        "## weather\nForecast for a city.\n"
        'Arguments, as JSON Schema: {"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}'
    )
    assert request == text_of_request(user("Hi"), tools=(PAY, WEATHER))


def test_the_forms_that_are_asked_for_are_those_that_are_read() -> None:
    prompt = text_of_request(user("Hi")).system_prompt
    forms = [part for part in prompt.split("\n\n") if part.startswith("Thought:")]
    action, answer = map(parse_react_step, forms)
    assert (action.thought, action.action) == ("what you think should be done next, and why", "the name of one tool")
    assert (answer.thought, answer.final_answer) == ("why you can answer now", "your whole answer")


def test_without_tools_no_action_is_asked_for() -> None:
    prompt = text_of_request(user("Hi"), tools=()).system_prompt
    assert "Action" not in prompt
    assert "There are no tools here." in prompt


def test_an_empty_prompt_becomes_the_instructions() -> None:
    assert text_of_request(user("Hi"), system_prompt="").system_prompt.startswith("# How to answer")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ((), (STOP_SEQUENCE,)),
        (("a", "b", "c"), ("a", "b", "c", STOP_SEQUENCE)),
        (("a", "b", "c", "d"), ("a", "b", "c", "d")),
        ((STOP_SEQUENCE,), (STOP_SEQUENCE,)),
    ],
)
def test_a_stop_sequence_is_added_where_there_is_room(given: tuple[str, ...], sent: tuple[str, ...]) -> None:
    assert text_of_request(user("Hi"), stop_sequences=given).stop_sequences == sent


def test_everything_else_of_a_request_stays() -> None:
    request = text_of_request(user("Hi"), max_tokens=9, temperature=0.5)
    assert (request.model, request.max_tokens, request.temperature) == ("m", 9, 0.5)


# History


def test_a_step_is_shown_in_the_form_that_is_asked_for() -> None:
    assert shown(
        user("Weather?"),
        assistant(ThinkingBlock(thinking="I look.", provider_data=THOUGHT_DATA), call(1, city="Lisbon")),
        user(result(1, "sunny")),
        assistant(ThinkingBlock(thinking="I know.", provider_data=THOUGHT_DATA), "Sunny."),
        user("Thanks"),
    ) == [
        ("user", "Weather?"),
        ("assistant", 'Thought: I look.\nAction: weather\nAction Input: {"city": "Lisbon"}'),
        ("user", "Observation: sunny"),
        ("assistant", "Thought: I know.\nFINAL_ANSWER: Sunny."),
        ("user", "Thanks"),
    ]


OWN = '**Thought:** I look.\n**Action:** Weather\n**Action Input:** {"city":"Lisbon"}'
DATA = said_data(ReActStep(thought="I look.", action="weather", arguments={"city": "Lisbon"}, said=OWN))


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (call(1, "weather", DATA, city="Lisbon"), OWN),
        (call(1, "weather", DATA, city="Porto"), 'Action: weather\nAction Input: {"city": "Porto"}'),
        (call(1, "pay", DATA, city="Lisbon"), 'Action: pay\nAction Input: {"city": "Lisbon"}'),
        (call(1, "weather", {"react": {"said": OWN}}), "Action: weather\nAction Input: {}"),
        (call(1, "weather", {"react": {"said": " ", "digest": ""}}), "Action: weather\nAction Input: {}"),
        (call(1, "weather", {"react": 7}), "Action: weather\nAction Input: {}"),
        (call(1, "weather", {"p": {"said": OWN}}), "Action: weather\nAction Input: {}"),
    ],
)
def test_a_step_is_shown_in_its_own_words_while_they_are_true(use: ToolUseBlock, said: str) -> None:
    thought = ThinkingBlock(thinking="I look.", provider_data=THOUGHT_DATA)
    expected = said if said == OWN else f"Thought: I look.\n{said}"
    assert shown(user("?"), assistant(thought, use), user(result(1, "sunny")))[1] == ("assistant", expected)


def test_an_answer_is_shown_in_its_own_words_while_they_are_true() -> None:
    own = said_data(ReActStep(final_answer="Sunny.", said="**Final Answer:** Sunny."))
    texts = (TextBlock(text="Sunny.", provider_data=own), TextBlock(text="Rainy.", provider_data=own))
    assert [shown(user("?"), assistant(text))[1][1] for text in texts] == [
        "**Final Answer:** Sunny.",
        "FINAL_ANSWER: Rainy.",
    ]


def test_an_answer_that_was_no_step_is_shown_as_it_was() -> None:
    assert shown(
        user("?"),
        assistant(TextBlock(text="Hm, sunny?", provider_data=UNPARSED_DATA)),
        user("The answer has no Action."),
        assistant("Sunny."),
    ) == [
        ("user", "?"),
        ("assistant", "Hm, sunny?"),
        ("user", "The answer has no Action."),
        ("assistant", "FINAL_ANSWER: Sunny."),
    ]


def test_parallel_calls_are_shown_one_after_another() -> None:
    assert shown(
        user("Both?"),
        assistant("I look twice.", call(1, city="Lisbon"), call(2, city="Porto")),
        user(result(2, "rain"), result(1, "sun"), "Hurry!"),
    ) == [
        ("user", "Both?"),
        ("assistant", 'Thought: I look twice.\nAction: weather\nAction Input: {"city": "Lisbon"}'),
        ("user", "Observation: sun"),
        ("assistant", 'Action: weather\nAction Input: {"city": "Porto"}'),
        ("user", "Observation: rain", "Hurry!"),
    ]


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (result(1, "no such city", kind="permanent"), ["Observation: Error (permanent): no such city"]),
        (result(1, "Cancelled by user", kind="cancelled"), ["Observation: Error (cancelled): Cancelled by user"]),
        (result(1), ["Observation: (nothing)"]),
        (result(1, " \n"), ["Observation: (nothing)"]),
        (result(1, IMAGE), ["Observation: (1 image)", "(image)"]),
        (result(1, IMAGE, IMAGE), ["Observation: (2 images)", "(image)", "(image)"]),
        (result(1, "a", IMAGE, "b"), ["Observation: ab", "(image)"]),
    ],
)
def test_a_result_is_an_observation(answer: ToolResultBlock, lines: list[str]) -> None:
    assert shown(user("?"), assistant(call(1)), user(answer))[2] == ("user", *lines)


def test_arguments_that_could_not_be_read_are_shown_as_they_were() -> None:
    use = ToolUseBlock(id=ToolCallId("c1"), name="weather", input={}, malformed_input='{"city": "Lis')
    history = shown(user("?"), assistant(use), user(result(1, "bad", kind="invalid_arguments")))
    assert history[1] == ("assistant", 'Action: weather\nAction Input: {"city": "Lis')


def test_what_only_a_provider_understands_is_left_out() -> None:
    signed = ThinkingBlock(thinking="secret", signature="s")
    plain = ThinkingBlock(thinking="hidden")
    own = ProviderBlock(provider="p", data={"x": 1})
    text = TextBlock(text="Sunny.", provider_data={"p": {"citations": []}})
    assert shown(user("?"), assistant(signed, plain, own, text)) == [
        ("user", "?"),
        ("assistant", "FINAL_ANSWER: Sunny."),
    ]


def test_roles_alternate_and_images_stay() -> None:
    assert shown(
        user("one", IMAGE),
        user("two"),
        assistant(ThinkingBlock(thinking="nothing to say")),
        user("three"),
        assistant("a", IMAGE),
        assistant("b"),
        user("four"),
    ) == [
        ("user", "one", "(image)", "two", "three"),
        ("assistant", "FINAL_ANSWER: a", "(image)", "FINAL_ANSWER: b"),
        ("user", "four"),
    ]


def test_a_call_without_a_result_and_a_result_without_a_call_are_shown() -> None:
    assert shown(user("?"), assistant(call(1)), user(result(2, "late"))) == [
        ("user", "?"),
        ("assistant", "Action: weather\nAction Input: {}"),
        (
            "user",
            "Observation: This call was still open at this point of the log; it has no result yet.",
            "Observation: late",
        ),
    ]


def test_a_result_behind_another_input_is_shown_where_it_stands() -> None:
    shown_first = "Observation: This call was still open at this point of the log; it has no result yet."
    assert shown(user("?"), assistant(call(1)), user("Well?"), user(result(1, "late"))) == [
        ("user", "?"),
        ("assistant", "Action: weather\nAction Input: {}"),
        ("user", shown_first, "Well?", "Observation: late"),
    ]


def test_no_block_of_a_native_call_leaves() -> None:
    request = text_of_request(user("?"), assistant("t", call(1), call(2)), user(result(1, "a"), result(2, IMAGE)))
    kinds = {type(block) for message in request.messages for block in message.content}
    assert kinds == {TextBlock, ImageBlock}
    assert json.dumps(
        [block.text for message in request.messages for block in message.content if isinstance(block, TextBlock)]
    )
