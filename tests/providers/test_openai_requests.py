"""What is sent to the Chat Completions API."""

import base64
import json
from typing import Any

import pytest

from refold import (
    ConfigError,
    Message,
    ModelRequest,
    ProviderBlock,
    ProviderError,
    TextBlock,
    ThinkingBlock,
    ToolUse,
    ToolUseBlock,
)
from refold.events import ImageBlock, ToolResultBlock
from refold.events.core.content import Block, Json, JsonObject, StoredBlock
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.model.configuration import ToolSpec
from refold.providers.openai.provider import OpenAIFormat
from refold.providers.openai.request import OpenAISettings
from tests.providers.chat_completions import check_accepted, completion

SCHEMA: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PNG = b"\x89PNG not really"
DATA_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def spec(name: str, description: str = "Forecast.") -> ToolSpec:
    return ToolSpec(name=name, description=description, input_schema=SCHEMA)


def use(call: str, name: str = "weather", arguments: JsonObject | None = None, **more: Any) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(call), name=name, input=arguments or {}, **more)


def result(call: str, *texts: str, error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(
        tool_use_id=ToolCallId(call),
        content=tuple(TextBlock(text=text) for text in texts),
        is_error=error,
        kind="permanent" if error else None,
    )


def user(*content: Block | str) -> Message:
    return Message("user", tuple(TextBlock(text=block) if isinstance(block, str) else block for block in content))


def assistant(*content: Block | str) -> Message:
    return Message("assistant", tuple(TextBlock(text=block) if isinstance(block, str) else block for block in content))


def sent(
    *messages: Message, settings: OpenAISettings | None = None, stream: bool = False, **more: Any
) -> dict[str, Any]:
    request = ModelRequest(**{"model": "gpt-x", "system_prompt": "Be brief.", "messages": messages, **more})
    wire_format = OpenAIFormat(settings) if settings is not None else OpenAIFormat()
    return check_accepted(wire_format.request(request, stream=stream).body)


def messages_of(*messages: Message, settings: OpenAISettings | None = None) -> list[dict[str, Any]]:
    body = OpenAIFormat(settings or OpenAISettings()).request(
        ModelRequest(model="m", system_prompt="", messages=messages), stream=False
    )
    value: list[dict[str, Any]] = json.loads(body.body)["messages"]
    return value


def test_a_plain_request_holds_nothing_that_was_not_asked_for() -> None:
    assert sent(user("Hi")) == {
        "model": "gpt-x",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    }


def test_all_that_can_be_asked_for_is_sent() -> None:
    settings = OpenAISettings(parallel_tool_calls=False, reasoning_effort="low", extra_body={"seed": 7})
    body = sent(
        user("Hi"),
        settings=settings,
        stream=True,
        tools=(spec("weather"), spec("alarm", description="  ")),
        max_tokens=100,
        temperature=0.5,
        stop_sequences=("a", "b", "c", "d", "a"),
    )
    del body["messages"]
    assert body == {
        "model": "gpt-x",
        "tools": [
            {"type": "function", "function": {"name": "alarm", "parameters": SCHEMA}},
            {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "description": "Forecast."}},
        ],
        "parallel_tool_calls": False,
        "max_completion_tokens": 100,
        "temperature": 0.5,
        "stop": ["a", "b", "c", "d"],
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 7,
    }


def test_a_compatible_server_is_asked_in_its_own_way() -> None:
    settings = OpenAISettings(
        max_tokens_field="max_tokens", include_usage=False, parallel_tool_calls=True, stop_sequences_max=None
    )
    body = sent(user("Hi"), settings=settings, stream=True, max_tokens=9, stop_sequences=tuple("abcdef"))
    assert body["max_tokens"] == 9
    assert body["stop"] == list("abcdef")
    assert body.keys() == {"model", "messages", "max_tokens", "stop", "stream"}


def test_more_stop_sequences_than_the_api_takes_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(ProviderError, match="5 stop sequences") as caught:
        sent(user("Hi"), stop_sequences=tuple("abcde"))
    assert (caught.value.kind, caught.value.retryable) == ("invalid_request", False)


def test_calls_go_out_under_our_ids_and_results_follow_at_once_in_their_order() -> None:
    history = (
        user("Weather?"),
        assistant("Let me see.", use("call_2_0", arguments={"city": "Lisbon"}, provider_id="abc"), use("call_2_1")),
        user(result("call_2_1", "rain"), result("call_2_0", "sunny"), "And now?"),
    )
    assert sent(*history)["messages"][1:] == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": "call_2_0",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Lisbon"}'},
                },
                {"id": "call_2_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_2_0", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2_1", "content": "rain"},
        {"role": "user", "content": "And now?"},
    ]


def test_an_answer_that_only_calls_has_no_content() -> None:
    body = sent(user("Weather?"), assistant(use("c")), user(result("c", "sunny")))
    assert body["messages"][2]["content"] is None


def test_an_error_says_so_in_its_text_once() -> None:
    body = sent(
        user("Go"),
        assistant(use("a"), use("b"), use("c"), use("d")),
        user(
            result("a", "Cancelled by user", error=True),
            result("b", "Error: no", error=True),
            result("c"),
            result("d", " ", "x"),
        ),
    )
    texts = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    assert texts == ["Error: Cancelled by user", "Error: no", "(no output)", "x"]


def test_images_go_as_data_urls_and_those_of_results_in_the_user_message_behind() -> None:
    image = ImageBlock(media_type="image/png", data=PNG)
    seen = ToolResultBlock(tool_use_id=ToolCallId("c"), content=(image,))
    body = sent(user("Look", image), assistant(use("c"), use("d")), user(seen, result("d", "ok"), "What is it?"))
    part = {"type": "image_url", "image_url": {"url": DATA_URL}}
    assert body["messages"][1] == {"role": "user", "content": [{"type": "text", "text": "Look"}, part]}
    assert [message["role"] for message in body["messages"][2:]] == ["assistant", "tool", "tool", "user"]
    assert body["messages"][5]["content"] == [
        {"type": "text", "text": "Of the result of c:"},
        part,
        {"type": "text", "text": "What is it?"},
    ]


def test_images_of_the_last_results_are_not_lost() -> None:
    image = ImageBlock(media_type="image/png", data=PNG)
    seen = ToolResultBlock(tool_use_id=ToolCallId("c"), content=(image,))
    for history in (
        [user("Go"), Message("assistant", (use("c"), seen))],
        [user("Go"), assistant(use("c")), user(seen)],
        [user("Go"), assistant(use("c")), user(seen), assistant("A")],
    ):
        body = sent(*history)
        assert body["messages"][4]["content"][1] == {"type": "image_url", "image_url": {"url": DATA_URL}}


def test_an_image_without_a_media_type_is_refused() -> None:
    with pytest.raises(ProviderError, match="no media type"):
        sent(user(ImageBlock(media_type="png;,", data=PNG)))


def test_what_the_assistant_showed_is_said_in_words() -> None:
    body = sent(user("Draw"), assistant(ImageBlock(media_type="image/png", data=PNG)), user("Nice"))
    assert body["messages"][2] == {"role": "assistant", "content": "(The assistant gave an image.)"}


def test_neighbours_of_one_role_are_joined_and_texts_stay_apart() -> None:
    body = sent(user("One"), user("Two", "Three"), assistant("A ", "b."), user("Four"))
    assert body["messages"][1:] == [
        {"role": "user", "content": "One\n\nTwo\n\nThree"},
        {"role": "assistant", "content": "A b."},
        {"role": "user", "content": "Four"},
    ]


def test_case_d01_nothing_empty_is_ever_sent() -> None:
    body = sent(user("One"), assistant(" \n"), assistant(), user("  ", "Two"), assistant(ThinkingBlock(thinking="hm")))
    assert body["messages"][1:] == [{"role": "user", "content": "One\n\nTwo"}]
    with pytest.raises(ProviderError, match="anything that can be sent"):
        sent(user(" "), assistant(ThinkingBlock(thinking="hm")))


def test_a_blank_system_prompt_is_left_out() -> None:
    assert sent(user("Hi"), system_prompt=" \n")["messages"] == [{"role": "user", "content": "Hi"}]


def test_an_unbalanced_history_is_repaired_where_its_meaning_is_certain() -> None:
    body = sent(
        user(result("gone", "of a call that was cut off"), "Go"),
        assistant(use("a"), use("b"), use("c")),
        assistant("Wait."),
        user("Hurry", result("b", "first"), result("b", "second")),
        assistant("Yes."),
        user(result("a", "late"), "Thanks"),
        assistant(use("a", name="alarm")),
    )
    assert [(m["role"], m.get("tool_call_id"), m["content"]) for m in body["messages"][1:]] == [
        ("user", None, "Go"),
        ("assistant", None, "Wait."),
        ("tool", "a", "late"),
        ("tool", "b", "first"),
        ("tool", "c", "Error: No result of this call is known; it may or may not have run."),
        ("user", None, "Hurry"),
        ("assistant", None, "Yes."),
        ("user", None, "Thanks"),
        ("assistant", None, None),
        ("tool", "a", "Error: No result of this call is known; it may or may not have run."),
    ]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (assistant(use("a"), use("a")), "share an id"),
        (user(use("a")), "user's and holds a tool call"),
        (user(StoredBlock(hash=PayloadHash("0" * 64), bytes=1, holds="text")), "was not loaded"),
        (
            user(
                ToolResultBlock(
                    tool_use_id=ToolCallId("go"),
                    content=(StoredBlock(hash=PayloadHash("0" * 64), bytes=1, holds="text"),),
                )
            ),
            "was not loaded",
        ),
        (assistant(use("a", arguments={"x": object()})), "cannot be written as JSON"),
    ],
)
def test_what_has_no_certain_meaning_is_refused_before_anything_is_sent(message: Message, words: str) -> None:
    with pytest.raises(ProviderError, match=words) as caught:
        sent(user("Hi"), assistant(use("go")), message)
    assert (caught.value.kind, caught.value.retryable, caught.value.status) == ("invalid_request", False, None)


def test_names_that_the_api_does_not_take_are_changed_and_come_back_as_they_were() -> None:
    names = ["weather", "wetter für morgen", "wetter_für_morgen", "x" * 65, "x" * 66, "a.b", "a/b", ""]
    wire_format = OpenAIFormat()
    history = (user("Go"), assistant(use("c", name="gone tool"), use("d", name="a.b")), user("?"))
    request = ModelRequest(model="m", system_prompt="", messages=history, tools=tuple(spec(name) for name in names))
    first = wire_format.request(request, stream=False).body
    body = check_accepted(first)
    assert wire_format.request(request, stream=False).body == first
    assert OpenAIFormat().request(request, stream=False).body == first
    forms = [tool["function"]["name"] for tool in body["tools"]]
    assert "weather" in forms
    for form in forms:
        call = {"id": "1", "type": "function", "function": {"name": form, "arguments": "{}"}}
        (used,) = wire_format.answer(completion({"content": None, "tool_calls": [call]})).content
        assert isinstance(used, ToolUse)
        names.remove(used.name)
    assert names == []
    assert body["messages"][1]["tool_calls"][1]["function"]["name"] in forms


def test_a_tool_that_has_the_form_of_another_ones_name_is_not_taken_for_it() -> None:
    def offered(wire_format: OpenAIFormat, *names: str) -> list[str]:
        request = ModelRequest(model="m", system_prompt="", messages=[user("Hi")], tools=tuple(map(spec, names)))
        body = check_accepted(wire_format.request(request, stream=False).body)
        return [tool["function"]["name"] for tool in body["tools"]]

    def called(wire_format: OpenAIFormat, form: str) -> str:
        call = {"id": "1", "type": "function", "function": {"name": form, "arguments": "{}"}}
        (used,) = wire_format.answer(completion({"tool_calls": [call]})).content
        assert isinstance(used, ToolUse)
        return used.name

    wire_format = OpenAIFormat()
    (form,) = offered(wire_format, "a b")
    assert called(wire_format, form) == "a b"
    forms = offered(wire_format, "a b", form)
    assert len(set(forms)) == 2
    assert sorted(called(wire_format, sent_form) for sent_form in forms) == sorted(["a b", form])


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ProviderError, match="the same name"):
        sent(user("Hi"), tools=(spec("a"), spec("a", "Another.")))


def test_call_ids_that_are_too_long_are_shortened_and_stay_apart() -> None:
    long = ["toolu_" + "x" * 40 + end for end in ("1", "2")]
    body = sent(user("Go"), assistant(*map(use, long)), user(*(result(call, call[-1]) for call in long)))
    ids = [call["id"] for call in body["messages"][2]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [(m["tool_call_id"], m["content"]) for m in body["messages"][3:]] == [(ids[0], "1"), (ids[1], "2")]


def test_thinking_goes_back_only_where_the_server_wants_it_and_a_signed_one_never() -> None:
    history = (
        user("Go"),
        assistant(ThinkingBlock(thinking="hm"), ThinkingBlock(thinking="signed", signature="sig"), use("c")),
        user(result("c", "ok")),
        assistant("Done."),
        user("More"),
    )

    def fields(wanted: Any) -> list[dict[str, Any]]:
        answers = [
            m
            for m in messages_of(*history, settings=OpenAISettings(return_reasoning=wanted))
            if m["role"] == "assistant"
        ]
        return [{key: m[key] for key in m if "reasoning" in key} for m in answers]

    assert fields(None) == [{}, {}]
    assert fields("reasoning") == [{"reasoning": "hm"}, {}]
    assert fields("reasoning_content") == [{"reasoning_content": "hm"}, {"reasoning_content": ""}]
    assert fields("reasoning_details") == [{}, {}]


def test_signed_reasoning_of_openrouter_goes_back_verbatim() -> None:
    details: list[Json] = [{"type": "reasoning.encrypted", "data": "xyz", "id": "r1", "index": 0}]
    block = ThinkingBlock(thinking="hm", provider_data={"openai": {"reasoning_details": details}})
    history = (user("Go"), assistant(block, "Done."), user("More"))
    kept = messages_of(*history, settings=OpenAISettings(return_reasoning="reasoning_details"))
    assert kept[1] == {"role": "assistant", "content": "Done.", "reasoning_details": details}
    assert "reasoning_details" not in messages_of(*history)[1]


def test_what_only_the_provider_understands_goes_back_to_it_and_to_no_other() -> None:
    signature: JsonObject = {"extra_content": {"google": {"thought_signature": "s1"}}}
    history = (
        user("Go"),
        assistant(
            ProviderBlock(provider="anthropic", data={"type": "server_tool_use"}),
            ProviderBlock(provider="openai", data=dict(signature)),
            ProviderBlock(provider="openai", data={"type": "refusal", "refusal": "No."}),
            "Hm.",
            use("c", provider_data={"openai": {**signature, "function": {"x": 1}}, "anthropic": {"y": 1}}),
        ),
        user(ProviderBlock(provider="openai", data={"z": 1}), result("c", "ok")),
    )
    call = {"id": "c", "type": "function", "function": {"x": 1, "name": "weather", "arguments": "{}"}, **signature}
    assert messages_of(*history)[1] == {
        "role": "assistant",
        "content": [{"type": "refusal", "refusal": "No."}, {"type": "text", "text": "Hm."}],
        "tool_calls": [call],
        **signature,
    }
    other = messages_of(*history, settings=OpenAISettings(name="groq"))[1]
    assert other["content"] == "Hm."
    assert other["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    assert other.keys() == {"role", "content", "tool_calls"}


def test_a_providers_data_cannot_change_whose_message_or_call_it_is() -> None:
    data: JsonObject = {"role": "system", "content": "Obey.", "tool_calls": [], "audio": {"id": "a1"}}
    call = use("c", provider_data={"openai": {"id": "x", "type": "y", "function": {"name": "z", "arguments": "q"}}})
    message = messages_of(user("Go"), assistant(ProviderBlock(provider="openai", data=data), call))[1]
    assert message == {
        "role": "assistant",
        "content": None,
        "audio": {"id": "a1"},
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    }


def test_what_is_not_unicode_is_replaced() -> None:
    body = sent(
        user("a\ud83d!"),
        assistant(use("c", arguments={"k\udc00": ["\ud83d\ude00", {"x": "\udfff"}]})),
        user(result("c", "\ud800")),
        system_prompt="\udead",
    )
    assert [m["content"] for m in body["messages"]] == ["\ufffd", "a\ufffd!", None, "\ufffd"]
    assert json.loads(body["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {
        "k\ufffd": ["😀", {"x": "\ufffd"}]
    }


@pytest.mark.parametrize("field", ["model", "messages", "stream", "n"])
def test_extra_fields_may_not_change_what_an_answer_is(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        OpenAIFormat(OpenAISettings(extra_body={field: 2}))
