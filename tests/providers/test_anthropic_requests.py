"""What is sent to the Messages API: each kind of content, and what is repaired or refused."""

import json
import subprocess
import sys
from typing import Any

import pytest
from anthropic.types.beta import BetaThinkingConfigParam
from pydantic import TypeAdapter

from refold import (
    ConfigError,
    Message,
    ModelRequest,
    ProviderBlock,
    ProviderError,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUse,
    ToolUseBlock,
)
from refold.events.core.content import Block, ImageBlock, JsonObject, StoredBlock
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.model.configuration import ToolSpec
from refold.providers.anthropic.history import EMPTY_ERROR_TEXT, NO_RESULT_TEXT, OPENING_TEXT
from refold.providers.anthropic.provider import AnthropicFormat
from refold.providers.anthropic.request import AnthropicOptions, wire_name
from tests.providers.anthropic_messages import body_of, checked_request, message

THINKING: TypeAdapter[Any] = TypeAdapter(BetaThinkingConfigParam)
PLAIN = AnthropicOptions(cache=False)


def user(*blocks: Block | str) -> Message:
    return Message("user", tuple(TextBlock(text=block) if isinstance(block, str) else block for block in blocks))


def assistant(*blocks: Block | str) -> Message:
    return Message("assistant", user(*blocks).content)


def call(number: int, name: str = "weather", **given: Any) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(f"call-{number}"), name=name, input=given, provider_id="toolu_theirs")


def result(number: int, *content: TextBlock | ImageBlock, error: bool = False) -> ToolResultBlock:
    return ToolResultBlock(
        tool_use_id=ToolCallId(f"call-{number}"),
        content=content or (TextBlock(text=f"result {number}"),),
        is_error=error,
        kind="permanent" if error else None,
    )


def tool_spec(name: str, description: str = "A tool.") -> ToolSpec:
    return ToolSpec(name=name, description=description, input_schema={"type": "object", "properties": {}})


TOOLS = (tool_spec("weather"),)


def sent(*messages: Message, options: AnthropicOptions = PLAIN, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """Return the body of a request, which the official types accept."""
    whole = {"model": "claude-test", "system_prompt": "Be brief.", "tools": TOOLS, **fields}
    request = ModelRequest(messages=messages, **whole)
    return checked_request(AnthropicFormat(options).request(request, stream=stream).body, stream=stream)


def contents(*messages: Message, **fields: Any) -> list[Any]:
    return [each["content"] for each in sent(*messages, **fields)["messages"]]


def texts(*messages: Message, **fields: Any) -> list[list[str]]:
    """Return the text, or else the type, of each block of each message."""
    return [[block.get("text", block["type"]) for block in blocks] for blocks in contents(*messages, **fields)]


def refusal(*messages: Message, **fields: Any) -> str:
    with pytest.raises(ProviderError) as raised:
        sent(*messages, **fields)
    assert (raised.value.kind, raised.value.retryable, raised.value.status) == ("invalid_request", False, None)
    return str(raised.value)


# --- Each kind of content ---


def test_a_request_has_everything_that_was_asked_for() -> None:
    body = sent(user("Hello"), max_tokens=7, stop_sequences=("END",), temperature=0.5, stream=True)
    assert body == {
        "model": "claude-test",
        "max_tokens": 7,
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{"name": "weather", "description": "A tool.", "input_schema": {"type": "object", "properties": {}}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "stream": True,
    }


def test_what_is_not_set_is_not_sent_but_for_the_limit_of_tokens_which_the_api_demands() -> None:
    body = sent(user("Hello"), system_prompt=" \n", tools=())
    assert sorted(body) == ["max_tokens", "messages", "model"]
    assert body["max_tokens"] == 16_384
    assert sent(user("Hello"), options=AnthropicOptions(max_tokens=9, thinking=2000))["max_tokens"] == 2009


def test_the_version_of_the_api_is_a_header() -> None:
    request = ModelRequest(model="m", system_prompt="", messages=[user("Hello")])
    wire = AnthropicFormat().request(request, stream=False)
    assert (wire.path, wire.headers) == ("/v1/messages", {"anthropic-version": "2023-06-01"})


def test_calls_and_results_carry_our_ids_and_results_come_first() -> None:
    image = ImageBlock(media_type="image/png", data=b"\x89PNG")
    asked, called, answered = contents(
        user("Hello", image),
        assistant("Let me see.", call(1, city="Lisbon"), call(2)),
        user("And hurry.", result(2, error=True), result(1, TextBlock(text="sunny"), image)),
    )
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}
    assert asked[1] == picture
    assert called[1:] == [
        {"type": "tool_use", "id": "call-1", "name": "weather", "input": {"city": "Lisbon"}},
        {"type": "tool_use", "id": "call-2", "name": "weather", "input": {}},
    ]
    assert answered == [
        {"type": "tool_result", "tool_use_id": "call-1", "content": [{"type": "text", "text": "sunny"}, picture]},
        {
            "type": "tool_result",
            "tool_use_id": "call-2",
            "content": [{"type": "text", "text": "result 2"}],
            "is_error": True,
        },
        {"type": "text", "text": "And hurry."},
    ]


def test_case_d03_thinking_goes_back_byte_for_byte_and_first_in_a_tool_loop() -> None:
    thought = "  hm …\n\u2028\U0001f914 "
    signed = ThinkingBlock(thinking=thought, signature="c2ln+/=", provider_data={"anthropic": {"more": 1}})
    hidden = ProviderBlock(provider="anthropic", data={"type": "redacted_thinking", "data": "eHg="})
    omitted = ThinkingBlock(thinking="", signature="b25seQ==")
    request = ModelRequest(
        model="m",
        system_prompt="",
        messages=[user("Hello"), assistant(signed, hidden, omitted, call(1)), user(result(1))],
        tools=TOOLS,
    )
    body = json.loads(AnthropicFormat(AnthropicOptions(thinking=2048)).request(request, stream=False).body)
    assert body["messages"][1]["content"][:3] == [
        {"more": 1, "type": "thinking", "thinking": thought, "signature": "c2ln+/="},
        {"type": "redacted_thinking", "data": "eHg="},
        {"type": "thinking", "thinking": "", "signature": "b25seQ=="},
    ]
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}


def test_what_another_provider_thought_is_left_out() -> None:
    theirs = ThinkingBlock(thinking="hm", signature="s", provider_data={"openai": {"id": "rs_1"}})
    unsigned = ThinkingBlock(thinking="hm")
    assert texts(
        user("Hello"),
        assistant(unsigned, theirs, ProviderBlock(provider="openai", data={"type": "reasoning"}), "Hi."),
        user("Well?"),
    ) == [["Hello"], ["Hi."], ["Well?"]]


def test_no_assistant_message_ends_with_a_thought() -> None:
    signed = ThinkingBlock(thinking="hm", signature="s")
    assert texts(user("Hello"), assistant("Hi.", signed), user("Well?")) == [["Hello"], ["Hi."], ["Well?"]]
    assert texts(user("Hello"), assistant(signed), user("Well?")) == [["Hello", "Well?"]]
    assert texts(user("Hello"), assistant("x", signed), user(result(1)), assistant("y"))[1] == ["x", "thinking", "y"]


def test_citations_go_back_with_the_text_that_they_belong_to_but_not_with_a_users() -> None:
    cited: JsonObject = {
        "anthropic": {
            "citations": [
                {
                    "type": "char_location",
                    "cited_text": "x",
                    "document_index": 0,
                    "document_title": None,
                    "start_char_index": 0,
                    "end_char_index": 1,
                }
            ]
        },
        "openai": {"annotations": []},
    }
    text = TextBlock(text="So it is.", provider_data=cited)
    asked, answered, _ = contents(user(text), assistant(text), user("Thanks."))
    assert asked == [{"type": "text", "text": "So it is."}]
    assert answered == [{"type": "text", "text": "So it is.", **cited["anthropic"]}]  # type: ignore[dict-item]


def test_a_call_keeps_what_the_provider_wants_back_with_it() -> None:
    used = ToolUseBlock(
        id=ToolCallId("call-1"), name="weather", input={}, provider_data={"anthropic": {"caller": {"type": "direct"}}}
    )
    _, called, _ = contents(user("Hello"), assistant(used), user(result(1)))
    assert called[0]["caller"] == {"type": "direct"}


def test_images_that_the_api_does_not_read_are_named_instead() -> None:
    odd = ImageBlock(media_type="image/tiff", data=b"x")
    jpg = ImageBlock(media_type="IMAGE/JPG; q=1", data=b"x")
    empty = ImageBlock(media_type="image/png", data=b"")
    (content,) = contents(user(odd, jpg, empty))
    assert [block["type"] for block in content] == ["text", "image", "text"]
    assert content[1]["source"]["media_type"] == "image/jpeg"
    assert "image/tiff" in content[0]["text"]
    assert texts(user("Draw."), assistant(jpg), user("Thanks."))[1] == ["(The assistant gave an image.)"]


def test_a_stored_block_is_never_sent_as_if_it_were_its_content() -> None:
    stored = StoredBlock(hash=PayloadHash("0" * 64), bytes=9, holds="text")
    assert "payload was not loaded" in refusal(user(stored))
    hidden = ToolResultBlock(tool_use_id=ToolCallId("call-1"), content=(stored,))
    assert "payload was not loaded" in refusal(user("Hello"), assistant(call(1)), user(hidden))


# --- Histories that nobody could send as they are ---


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([user("a"), user("b")], [["a", "b"]]),
        ([user("a"), assistant("x"), assistant("y"), user("b")], [["a"], ["x", "y"], ["b"]]),
        ([user("a"), assistant(" "), user("b")], [["a", "b"]]),
        ([user(" ", "a", "\n\t"), assistant(), user("b", "")], [["a", "b"]]),
        ([assistant("x"), user("b")], [[OPENING_TEXT], ["x"], ["b"]]),
        ([user(" "), assistant("x"), user("b")], [[OPENING_TEXT], ["x"], ["b"]]),
        ([user("a"), assistant("x  ", "y \n")], [["a"], ["x  ", "y"]]),
    ],
)
def test_case_d01_no_blank_text_and_no_empty_message_leaves(history: list[Message], expected: list[list[str]]) -> None:
    assert texts(*history) == expected


@pytest.mark.parametrize("history", [[], [user(" ")], [assistant(ThinkingBlock(thinking="hm"))]])
def test_a_history_without_content_is_refused(history: list[Message]) -> None:
    assert "no message holds anything" in refusal(*history)


def test_an_input_that_is_left_out_is_refused_since_the_answer_before_would_be_continued() -> None:
    assert "last message holds nothing" in refusal(user("a"), assistant("x"), user(" "))


def test_case_a01_a_call_without_a_result_gets_one_before_the_next_text() -> None:
    *_, answered = contents(user("Hello"), assistant(call(1), call(2)), user("Never mind.", result(2)))
    assert [block.get("tool_use_id") for block in answered] == ["call-1", "call-2", None]
    assert (answered[0]["is_error"], answered[0]["content"][0]["text"]) == (True, NO_RESULT_TEXT)


def test_case_a20_a_history_that_ends_with_a_call_is_closed() -> None:
    *_, answered = contents(user("Hello"), assistant(call(1)))
    assert [block["tool_use_id"] for block in answered] == ["call-1"]


def test_case_a06_a_result_whose_call_is_gone_is_left_out() -> None:
    assert texts(user("Summary."), user(result(1)), assistant("x"), user("b", result(2))) == [
        ["Summary."],
        ["x"],
        ["b"],
    ]


def test_case_a22_a_history_of_an_assistant_only_gets_a_users_beginning() -> None:
    assert texts(assistant("x")) == [[OPENING_TEXT], ["x"]]


def test_a_result_that_stands_too_late_is_moved_to_its_call() -> None:
    assert texts(user("a"), assistant(call(1)), user("wait"), assistant("x"), user(result(1), "b")) == [
        ["a"],
        ["tool_use"],
        ["tool_result", "wait"],
        ["x"],
        ["b"],
    ]


def test_a_result_that_stands_before_its_call_is_not_its_result() -> None:
    early, right = TextBlock(text="early"), TextBlock(text="right")
    *_, answered = contents(user("a", result(1, early)), assistant(call(1)), user(result(1, right)))
    assert [block["content"][0]["text"] for block in answered] == ["right"]


def test_a_second_result_of_a_call_is_left_out() -> None:
    first, second = TextBlock(text="first"), TextBlock(text="second")
    *_, answered = contents(user("a"), assistant(call(1)), user(result(1, first), result(1, second)))
    assert [block["content"][0]["text"] for block in answered] == ["first"]


def test_ids_that_a_history_uses_again_are_told_apart() -> None:
    history = [user("a"), assistant(call(1)), user(result(1, TextBlock(text="one")))]
    again = [assistant(call(1)), user("b"), assistant(call(1)), user(result(1, TextBlock(text="three")))]
    body = contents(*history, *again)
    assert [blocks[0].get("id") for blocks in body[1::2]] == ["call-1", "call-1-2", "call-1-3"]
    assert [(blocks[0]["tool_use_id"], blocks[0]["content"][0]["text"]) for blocks in body[2::2]] == [
        ("call-1", "one"),
        ("call-1-2", NO_RESULT_TEXT),
        ("call-1-3", "three"),
    ]
    assert "share the id" in refusal(user("a"), assistant(call(1), call(1)), user(result(1)))


def test_ids_of_other_providers_are_made_acceptable() -> None:
    odd = ToolCallId("functions.Bash:0")
    used = ToolUseBlock(id=odd, name="weather", input={})
    _, called, answered = contents(user("a"), assistant(used), user(ToolResultBlock(tool_use_id=odd, content=())))
    assert called[0]["id"] == answered[0]["tool_use_id"] == wire_name(odd) != odd
    assert answered[0] == {"type": "tool_result", "tool_use_id": called[0]["id"]}


def test_an_error_result_says_something() -> None:
    *_, answered = contents(user("a"), assistant(call(1)), user(result(1, TextBlock(text=" "), error=True)))
    assert answered[0]["content"] == [{"type": "text", "text": EMPTY_ERROR_TEXT}]


def test_an_error_result_is_text_only_and_its_images_stand_behind_all_results() -> None:
    image = ImageBlock(media_type="image/png", data=b"x")
    failed, shown = result(1, TextBlock(text="broke"), image, error=True), result(2, image)
    *_, answered = contents(user("a"), assistant(call(1), call(2), call(3)), user("b", failed, shown))
    assert [[part["type"] for part in block["content"]] for block in answered[:3]] == [["text"], ["image"], ["text"]]
    assert [block["type"] for block in answered[3:]] == ["image", "text"]
    *_, alone = contents(user("a"), assistant(call(1)), user(result(1, image, error=True)))
    assert (alone[0]["content"][0]["text"], alone[1]["type"]) == (EMPTY_ERROR_TEXT, "image")


def test_a_user_calls_no_tools() -> None:
    assert "is a user's and holds a tool call" in refusal(user("a", call(1)))


SEARCH = ProviderBlock(
    provider="anthropic",
    data={"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
)
FOUND = ProviderBlock(
    provider="anthropic", data={"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
)


def test_the_servers_calls_go_back_with_their_results_or_not_at_all() -> None:
    assert texts(user("a"), assistant(SEARCH, FOUND, "x"), user("b"))[1] == [
        "server_tool_use",
        "web_search_tool_result",
        "x",
    ]
    assert texts(user("a"), assistant(SEARCH, "x"), user("b"))[1] == ["x"]
    assert texts(user("a"), assistant(FOUND, "x"), user("b"))[1] == ["x"]


def test_case_d09_a_paused_turn_goes_back_as_it_is_and_is_one_message_with_what_follows() -> None:
    assert texts(user("a"), assistant("x", SEARCH)) == [["a"], ["x", "server_tool_use"]]
    other = ProviderBlock(provider="anthropic", data={**SEARCH.data, "id": "srvtoolu_2"})
    assert texts(user("a"), assistant("w", other), user("b"), assistant("x", SEARCH))[1] == ["w"]
    assert texts(user("a"), assistant("x", SEARCH), assistant(FOUND, "y"), user("b")) == [
        ["a"],
        ["x", "server_tool_use", "web_search_tool_result", "y"],
        ["b"],
    ]
    assert texts(user("a"), assistant(SEARCH, call(1)), user(result(1)))[1] == ["server_tool_use", "tool_use"]


# --- Tools and their names ---


FROM_A_SET = """
from refold import Message, ModelRequest, TextBlock
from refold.events.model.configuration import ToolSpec
from refold.providers.anthropic.provider import AnthropicFormat
specs = tuple(ToolSpec(name=n, description=n, input_schema={"x": n}) for n in {"b.b", "a a", "c"})
history = [Message("user", (TextBlock(text="a"),))]
request = ModelRequest(model="m", system_prompt="s", messages=history, tools=specs)
print(AnthropicFormat().request(request, stream=True).body)
"""


def test_case_b11_tools_are_in_name_order_also_with_another_hash_seed() -> None:
    names = ["b", "a", "c-1", "A"]
    body = sent(user("a"), tools=tuple(tool_spec(name) for name in names))
    assert [tool["name"] for tool in body["tools"]] == sorted(names)
    said = {
        subprocess.run(
            [sys.executable, "-P", "-c", FROM_A_SET],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_names_that_the_api_does_not_accept_are_replaced_and_come_back_as_ours() -> None:
    odd = "weather.now(°C)"
    wire = AnthropicFormat(PLAIN)
    history = [user("a"), assistant(call(1, odd), call(2, "never heard of")), user(result(1), result(2))]
    request = ModelRequest(model="m", system_prompt="", messages=history, tools=(tool_spec(odd),))
    body = checked_request(wire.request(request, stream=False).body)
    name = body["tools"][0]["name"]
    assert name == body["messages"][1]["content"][0]["name"] == wire_name(odd)
    assert name.startswith("weather_now__C__x")
    used = message({"type": "tool_use", "id": "t", "name": name, "input": {}})
    assert wire.answer(body_of(used)).content == (ToolUse(name=odd, input={}, id="t"),)


def test_no_two_names_are_one_on_the_wire() -> None:
    names = ["a.b", "a:b", "a b", "a_b", "", "é" * 300, "é" * 301, "x" * 128, "x" * 129, "\ud800"]
    sent_names = [wire_name(name) for name in names]
    again = [wire_name(name) for name in sent_names]  # Somebody's tool may have such a name.
    assert len({*sent_names, *again}) == len(names) + len(set(names) - {"a_b", "x" * 128})
    assert wire_name("a_b") == "a_b"
    assert all(1 <= len(name) <= 128 for name in sent_names)


def test_two_tools_with_one_name_are_refused() -> None:
    search: JsonObject = {"type": "web_search_20250305", "name": "weather"}
    assert "same name" in refusal(user("a"), options=AnthropicOptions(server_tools=(search,)))


def test_tools_that_were_called_are_defined_though_none_is_offered() -> None:
    body = sent(user("a"), assistant(call(1, "b.b"), call(2)), user(result(1), result(2)), tools=())
    assert [tool["name"] for tool in body["tools"]] == [wire_name("b.b"), "weather"]
    assert body["tool_choice"] == {"type": "none"}
    assert "tools" not in sent(user("a"), tools=())


def test_a_schema_without_a_type_is_an_objects() -> None:
    spec = ToolSpec(name="x", description=" ", input_schema={"properties": {"a": {}}})
    assert sent(user("a"), tools=(spec,))["tools"] == [
        {"name": "x", "input_schema": {"type": "object", "properties": {"a": {}}}}
    ]


# --- Settings ---


def marks(body: Any) -> list[str]:
    """Return the places of the cache markers."""
    found: list[str] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, dict):
            if "cache_control" in value:
                found.append(path)
            for key, item in value.items():
                walk(item, f"{path}.{key}")
        elif isinstance(value, list):
            for place, item in enumerate(value):
                walk(item, f"{path}[{place}]")

    walk(body, "$")
    return found


CACHED = AnthropicOptions()
LOOP = (user("a"), assistant(call(1)), user(result(1)), assistant(call(2)), user(result(2), "b"))


def test_the_prompt_the_tools_and_both_ends_of_the_history_are_marked_for_the_cache() -> None:
    assert marks(sent(*LOOP, options=CACHED)) == [
        "$.system[0]",
        "$.tools[0]",
        "$.messages[2].content[0]",
        "$.messages[4].content[1]",
    ]
    assert marks(sent(*LOOP)) == []
    assert sent(user("a"), options=AnthropicOptions(cache="1h"))["system"][0]["cache_control"] == {
        "type": "ephemeral",
        "ttl": "1h",
    }


def test_what_was_marked_in_one_request_stays_the_same_in_the_next() -> None:
    before, after = sent(*LOOP[:3], options=CACHED), sent(*LOOP, options=CACHED)
    assert "$.messages[2].content[0]" in marks(before)
    assert "$.messages[2].content[0]" in marks(after)
    assert before["messages"][2] == after["messages"][2]


def test_no_more_markers_are_sent_than_the_api_accepts() -> None:
    search: JsonObject = {
        "type": "web_search_20250305",
        "name": "web_search",
        "cache_control": {"type": "ephemeral"},
    }
    more = AnthropicOptions(server_tools=(search,), extra_body={"cache_control": {"type": "ephemeral"}})
    body = sent(*LOOP, options=more)
    assert marks(body) == ["$", "$.system[0]", "$.tools[1]", "$.messages[4].content[1]"]
    plain: JsonObject = {"type": "web_search_20250305", "name": "web_search"}
    assert "$.tools[1]" in marks(sent(user("a"), options=AnthropicOptions(server_tools=(plain,))))
    assert "cache_control" not in plain


def test_thoughts_and_the_providers_own_blocks_carry_no_marker() -> None:
    thought = ThinkingBlock(thinking="hm", signature="s")
    body = sent(user("a"), assistant(thought, "x", SEARCH), options=CACHED)
    assert marks(body)[-2:] == ["$.messages[0].content[0]", "$.messages[1].content[1]"]
    assert "cache_control" not in SEARCH.data


def test_server_tools_and_further_fields_are_sent() -> None:
    search: JsonObject = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    options = AnthropicOptions(
        cache=False, server_tools=(search,), extra_body={"metadata": {"user_id": "u"}, "max_tokens": 5}
    )
    body = sent(user("a"), options=options)
    assert [tool["name"] for tool in body["tools"]] == ["weather", "web_search"]
    assert (body["metadata"], body["max_tokens"]) == ({"user_id": "u"}, 5)


def test_sets_of_server_tools_need_no_names() -> None:
    sets: tuple[JsonObject, ...] = tuple({"type": "mcp_toolset", "mcp_server_name": name} for name in "ab")
    request = ModelRequest(model="m", system_prompt="", messages=[user("a")])
    body = json.loads(AnthropicFormat(AnthropicOptions(server_tools=sets)).request(request, stream=False).body)
    assert [tool["mcp_server_name"] for tool in body["tools"]] == ["a", "b"]


def test_thinking_is_left_out_in_the_middle_of_a_loop_that_began_without() -> None:
    fixed = AnthropicOptions(thinking=2048)
    thought = ThinkingBlock(thinking="hm", signature="s")
    assert "thinking" not in sent(user("a"), assistant(call(1)), user(result(1)), options=fixed)
    assert "thinking" not in sent(user("a"), assistant(ThinkingBlock(thinking="hm"), call(1)), options=fixed)
    assert "thinking" in sent(*LOOP, options=fixed)  # The text behind the results began another turn.
    loop = (user("a"), assistant(thought, call(1)), user(result(1)), assistant(call(2)), user(result(2)))
    assert sent(*loop, options=fixed)["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    assert sent(*LOOP[:3], options=AnthropicOptions(thinking="adaptive"))["thinking"] == {"type": "adaptive"}


def test_stale_thinking_can_be_dropped() -> None:
    for thinking, kind in ((None, "adaptive"), ("adaptive", "adaptive"), (2048, "enabled")):
        wire = AnthropicFormat(AnthropicOptions(thinking=thinking, drop_stale_thinking=True))  # type: ignore[arg-type]
        request = wire.request(ModelRequest(model="m", system_prompt="", messages=[user("a")]), stream=False)
        sent_thinking = json.loads(request.body)["thinking"]
        THINKING.validate_python(sent_thinking)
        assert sent_thinking["type"] == kind
        assert sent_thinking["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
        assert request.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"


def test_a_temperature_is_sent_where_there_is_one() -> None:
    assert "0 to 1" in refusal(user("a"), temperature=1.5)
    thinking = AnthropicOptions(thinking="adaptive")
    assert "a model that thinks has none" in refusal(user("a"), temperature=0.0, options=thinking)
    assert "temperature" not in sent(user("a"), temperature=1.0, options=thinking)
    newer = AnthropicOptions(version="2026-10-21")
    assert "does not have" in refusal(user("a"), temperature=0.0, options=newer)
    assert "temperature" not in sent(user("a"), temperature=1.0, options=newer)
    assert sent(user("a"), temperature=1.0)["temperature"] == 1.0


def test_a_stop_sequence_needs_more_than_white_space() -> None:
    assert "not white space" in refusal(user("a"), stop_sequences=("END", "\n"))


def test_case_e01_unpaired_surrogates_are_replaced_wherever_they_are() -> None:
    odd = "a\ud83d"
    body = sent(
        user(odd),
        assistant(call(1, "x", **{odd: [odd, {"y": odd}]})),
        user(result(1, TextBlock(text=odd))),
        system_prompt=odd,
        tools=(tool_spec("x", odd),),
    )
    whole = json.dumps(body, ensure_ascii=False)
    assert whole.count("a\ufffd") == 7
    assert "\ud83d" not in whole


def test_what_is_not_json_is_refused() -> None:
    assert "not JSON" in refusal(user("a"), assistant(call(1, x=object())))
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert "not JSON" in refusal(user("a"), assistant(call(1, x=nested)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", True),
        ("thinking", 1023),
        ("thinking", "a lot"),
        ("drop_stale_thinking", 1),
        ("cache", "2h"),
        ("version", ""),
        ("version", "a\nb"),
        ("server_tools", ({"max_uses": 1},)),
        ("server_tools", ({"type": "x", "name": "a"}, {"type": "y", "name": "a"})),
        ("server_tools", ("web_search",)),
        ("extra_body", {"messages": []}),
        ("extra_body", {"stream": False}),
    ],
)
def test_a_setting_out_of_bounds_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"AnthropicProvider: {field} must be"):
        AnthropicOptions(**{field: value})
