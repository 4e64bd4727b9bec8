"""What is sent to the Messages API: each kind of content, and what is repaired or refused."""

import json
import subprocess
import sys
from typing import Any

import pytest
from anthropic.types.beta import BetaThinkingConfigParam
from pydantic import TypeAdapter

from refold import ConfigError, Message, ModelRequest, ProviderBlock, ProviderError, TextBlock, ThinkingBlock, ToolUse
from refold.events.core.content import (
    OPENING_TEXT,
    DocumentBlock,
    ImageBlock,
    JsonObject,
)
from refold.events.model.configuration import ToolSpec
from refold.providers.anthropic.history import EMPTY_ERROR_TEXT
from refold.providers.anthropic.provider import AnthropicFormat
from refold.providers.anthropic.request import AnthropicOptions, wire_name
from refold.providers.http.history import NO_RESULT_TEXT
from tests.providers.anthropic_messages import CITATION, body_of, checked_request, message
from tests.providers.conversation import IMAGE, STORED, assistant, call, result, user

THINKING: TypeAdapter[Any] = TypeAdapter(BetaThinkingConfigParam)
PLAIN = AnthropicOptions(cache=False)

SIGNED = ThinkingBlock(thinking="hm", signature="s")
UNSIGNED = ThinkingBlock(thinking="hm")
SEARCH_DATA: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
SEARCH = ProviderBlock(provider="anthropic", data=SEARCH_DATA)
FOUND_DATA: JsonObject = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
FOUND = ProviderBlock(provider="anthropic", data=FOUND_DATA)
OTHER_SEARCH = ProviderBlock(provider="anthropic", data={**SEARCH_DATA, "id": "srvtoolu_2"})
SEARCH_TOOL: JsonObject = {"type": "web_search_20250305", "name": "web_search"}


def tool_spec(name: str, description: str = "A tool.") -> ToolSpec:
    return ToolSpec(name=name, description=description, input_schema={"type": "object", "properties": {}})


def sent(*messages: Message, options: AnthropicOptions = PLAIN, stream: bool = False, **fields: Any) -> dict[str, Any]:
    """Return the body of a request, which the official types accept."""
    whole = {"model": "claude-test", "system_prompt": "Be brief.", "tools": (tool_spec("weather"),), **fields}
    request = ModelRequest(messages=messages, **whole)
    return checked_request(AnthropicFormat(options).request(request, stream=stream).body, stream=stream)


def sent_unchecked(*messages: Message, options: AnthropicOptions) -> tuple[dict[str, Any], Any]:
    """Return the body and the headers of a request that the official types do not know yet."""
    request = ModelRequest(model="m", system_prompt="", messages=messages)
    wire = AnthropicFormat(options).request(request, stream=False)
    return json.loads(wire.body), wire.headers


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
    assert sent_unchecked(user("Hello"), options=PLAIN)[1] == {"anthropic-version": "2023-06-01"}


def test_calls_and_results_carry_our_ids_and_results_come_first() -> None:
    asked, called, answered = contents(
        user("Hello", IMAGE),
        assistant("Let me see.", call("1", arguments={"city": "Lisbon"}, provider_id="toolu_theirs"), call("2")),
        user("And hurry.", result("2", "too late", error=True), result("1", "sunny", IMAGE)),
    )
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORyBub3QgcmVhbGx5"}
    picture = {"type": "image", "source": source}
    late = [{"type": "text", "text": "too late"}]
    assert asked[1] == picture
    assert called[1:] == [
        {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Lisbon"}},
        {"type": "tool_use", "id": "2", "name": "weather", "input": {}},
    ]
    assert answered == [
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "sunny"}, picture]},
        {"type": "tool_result", "tool_use_id": "2", "content": late, "is_error": True},
        {"type": "text", "text": "And hurry."},
    ]


def test_case_d03_thinking_goes_back_byte_for_byte_and_first_in_a_tool_loop() -> None:
    thought = "  hm …\n\u2028\U0001f914 "
    signed = ThinkingBlock(thinking=thought, signature="c2ln+/=", provider_data={"anthropic": {"more": 1}})
    hidden: JsonObject = {"type": "redacted_thinking", "data": "eHg="}
    omitted = ThinkingBlock(thinking="", signature="b25seQ==")
    answer = assistant(signed, ProviderBlock(provider="anthropic", data=hidden), omitted, call("1"))
    body, _ = sent_unchecked(user("Hello"), answer, user(result("1")), options=AnthropicOptions(thinking=2048))
    assert body["messages"][1]["content"][:3] == [
        {"more": 1, "type": "thinking", "thinking": thought, "signature": "c2ln+/="},
        hidden,
        {"type": "thinking", "thinking": "", "signature": "b25seQ=="},
    ]
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}


def test_case_t49_unsigned_thinking_goes_back_where_a_server_wants_it() -> None:
    history = (user("a"), assistant(UNSIGNED, THEIRS, ThinkingBlock(thinking=" "), call("1")), user(result("1")))
    (_, called, _) = contents(*history, options=AnthropicOptions(cache=False, unsigned_thinking=True, thinking=2048))
    assert called[:-1] == [{"type": "thinking", "thinking": "hm", "signature": ""}]
    assert [block["type"] for block in contents(*history)[1]] == ["tool_use"]


def test_citations_go_back_with_the_text_that_they_belong_to_but_not_with_a_users() -> None:
    cited: JsonObject = {"anthropic": {"citations": [CITATION]}, "openai": {"annotations": []}}
    text = TextBlock(text="So it is.", provider_data=cited)
    asked, answered, _ = contents(user(text), assistant(text), user("Thanks."))
    assert asked == [{"type": "text", "text": "So it is."}]
    assert answered == [{"type": "text", "text": "So it is.", "citations": [CITATION]}]


def test_a_call_keeps_what_the_provider_wants_back_with_it() -> None:
    used = call("1", provider_data={"anthropic": {"caller": {"type": "direct"}}})
    _, called, _ = contents(user("Hello"), assistant(used), user(result("1")))
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


PDF = DocumentBlock(data=b"%PDF-", name="plan.pdf")
NOTES = DocumentBlock(media_type="text/markdown", data=b"# Tea")
AT_URL = DocumentBlock(url="https://example.org/a.pdf", provider_data={"anthropic": {"context": "A plan."}})
IMAGE_AT_URL = ImageBlock(url="https://example.org/a.png", provider_data={"openai": {"detail": "low"}})


def test_documents_and_images_by_address_are_blocks_also_in_results() -> None:
    pdf = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
        "title": "plan.pdf",
    }
    notes = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "# Tea"}}
    at_url = {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}, "context": "A plan."}
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    sheet = DocumentBlock(media_type="application/vnd.ms-excel", data=b"x")
    asked, _, answered = contents(
        user(PDF, NOTES, AT_URL, IMAGE_AT_URL, sheet), assistant(call("1")), user(result("1", PDF, IMAGE_AT_URL))
    )
    assert asked[:4] == [pdf, notes, at_url, image]
    assert asked[4]["text"] == "(A document of type 'application/vnd.ms-excel' that cannot be shown.)"
    assert answered[0]["content"] == [pdf, image]


def test_sizes_are_checked_before_anything_is_sent() -> None:
    small, history = AnthropicOptions(image_bytes_max=5), (user("a"), assistant(call("1")), user(result("1", IMAGE)))
    assert "an image has 15 bytes and the Messages API takes 5" in refusal(*history, options=small)
    assert sent(*history, options=AnthropicOptions(cache=False, image_bytes_max=15))
    with pytest.raises(ProviderError, match="takes 400; it was not sent") as raised:
        sent(user("x" * 400), options=AnthropicOptions(request_bytes_max=400))
    assert raised.value.kind == "context_too_long"


# --- Histories that nobody could send as they are ---

THEIRS = ThinkingBlock(thinking="hm", signature="s", provider_data={"openai": {"id": "rs_1"}})
REASONING = ProviderBlock(provider="openai", data={"type": "reasoning"})

HISTORIES: dict[str, tuple[list[Message], list[list[str]]]] = {
    "neighbours of one role are one message": ([user("a"), user("b")], [["a", "b"]]),
    "neighbours of the assistant's role, too": (
        [user("a"), assistant("x"), assistant("y"), user("b")],
        [["a"], ["x", "y"], ["b"]],
    ),
    "case d01: an answer of blanks is left out": ([user("a"), assistant(" "), user("b")], [["a", "b"]]),
    "case d01: no blank text and no empty message leaves": (
        [user(" ", "a", "\n\t"), assistant(), user("b", "")],
        [["a", "b"]],
    ),
    "an assistant does not begin": ([assistant("x"), user("b")], [[OPENING_TEXT], ["x"], ["b"]]),
    "case d01: an assistant does not begin where the input was blank": (
        [user(" "), assistant("x"), user("b")],
        [[OPENING_TEXT], ["x"], ["b"]],
    ),
    "case a22: a history of an assistant only gets a user's beginning": ([assistant("x")], [[OPENING_TEXT], ["x"]]),
    "an answer to continue has no blanks at its end": ([user("a"), assistant("x  ", "y \n")], [["a"], ["x  ", "y"]]),
    "case a06: a result whose call is gone is left out": (
        [user("Summary."), user(result("1")), assistant("x"), user("b", result("2"))],
        [["Summary."], ["x"], ["b"]],
    ),
    "a result that stands too late is moved to its call": (
        [user("a"), assistant(call("1")), user("wait"), assistant("x"), user(result("1"), "b")],
        [["a"], ["tool_use"], ["tool_result", "wait"], ["x"], ["b"]],
    ),
    "what another provider thought is left out": (
        [user("Hello"), assistant(UNSIGNED, THEIRS, REASONING, "Hi."), user("Well?")],
        [["Hello"], ["Hi."], ["Well?"]],
    ),
    "no answer ends with a thought": (
        [user("Hello"), assistant("Hi.", SIGNED), user("Well?")],
        [["Hello"], ["Hi."], ["Well?"]],
    ),
    "an answer of a thought only is left out": (
        [user("Hello"), assistant(SIGNED), user("Well?")],
        [["Hello", "Well?"]],
    ),
    "a thought inside an answer stays": (
        [user("Hello"), assistant("x", SIGNED), user(result("1")), assistant("y")],
        [["Hello"], ["x", "thinking", "y"]],
    ),
    "a server's call goes back with its result": (
        [user("a"), assistant(SEARCH, FOUND, "x"), user("b")],
        [["a"], ["server_tool_use", "web_search_tool_result", "x"], ["b"]],
    ),
    "a server's call goes back with its result or not at all": (
        [user("a"), assistant(SEARCH, "x"), user("b")],
        [["a"], ["x"], ["b"]],
    ),
    "a server's result without its call does not go back": (
        [user("a"), assistant(FOUND, "x"), user("b")],
        [["a"], ["x"], ["b"]],
    ),
    "case d09: a paused turn goes back as it is": (
        [user("a"), assistant("x", SEARCH)],
        [["a"], ["x", "server_tool_use"]],
    ),
    "case d09: a turn that was paused before another input does not": (
        [user("a"), assistant("w", OTHER_SEARCH), user("b"), assistant("x", SEARCH)],
        [["a"], ["w"], ["b"], ["x", "server_tool_use"]],
    ),
    "case d09: a paused turn is one message with what follows": (
        [user("a"), assistant("x", SEARCH), assistant(FOUND, "y"), user("b")],
        [["a"], ["x", "server_tool_use", "web_search_tool_result", "y"], ["b"]],
    ),
    "case d09: a turn that is paused may hold calls": (
        [user("a"), assistant(SEARCH, call("1")), user(result("1"))],
        [["a"], ["server_tool_use", "tool_use"], ["tool_result"]],
    ),
}


@pytest.mark.parametrize(("history", "expected"), HISTORIES.values(), ids=HISTORIES)
def test_a_history_is_made_acceptable(history: list[Message], expected: list[list[str]]) -> None:
    assert texts(*history) == expected


@pytest.mark.parametrize(
    ("history", "says"),
    [
        ([], "no message holds anything"),
        ([user(" ")], "no message holds anything"),
        ([assistant(UNSIGNED)], "no message holds anything"),
        # The answer before it would be continued.
        ([user("a"), assistant("x"), user(" ")], "last message holds nothing"),
        ([user("a", call("1"))], "is a user's and holds a tool call"),
        ([user("a"), assistant(call("1"), call("1")), user(result("1"))], "share the id"),
        # A stored block is never sent as if it were its content.
        ([user(STORED)], "payload was not loaded"),
        ([user("Hello"), assistant(call("1")), user(result("1", STORED))], "payload was not loaded"),
    ],
)
def test_a_history_without_a_certain_meaning_is_refused(history: list[Message], says: str) -> None:
    assert says in refusal(*history)


def test_case_a01_a20_a_call_without_a_result_gets_one_before_the_next_text() -> None:
    *_, answered = contents(user("Hello"), assistant(call("1"), call("2")), user("Never mind.", result("2")))
    assert [block.get("tool_use_id") for block in answered] == ["1", "2", None]
    assert (answered[0]["is_error"], answered[0]["content"][0]["text"]) == (True, NO_RESULT_TEXT)
    *_, last = contents(user("Hello"), assistant(call("1")))
    assert [block["tool_use_id"] for block in last] == ["1"]


def test_a_call_has_one_result_the_first_that_stands_behind_it() -> None:
    early = [user("a", result("1", "early")), assistant(call("1")), user(result("1", "right"))]
    twice = [user("a"), assistant(call("1")), user(result("1", "right"), result("1", "second"))]
    for history in early, twice:
        assert [block["content"][0]["text"] for block in contents(*history)[-1]] == ["right"]


def test_ids_that_a_history_uses_again_are_told_apart() -> None:
    history = [user("a"), assistant(call("1")), user(result("1", "one"))]
    body = contents(*history, assistant(call("1")), user("b"), assistant(call("1")), user(result("1", "three")))
    assert [blocks[0].get("id") for blocks in body[1::2]] == ["1", "1-2", "1-3"]
    assert [(blocks[0]["tool_use_id"], blocks[0]["content"][0]["text"]) for blocks in body[2::2]] == [
        ("1", "one"),
        ("1-2", NO_RESULT_TEXT),
        ("1-3", "three"),
    ]


def test_ids_of_other_providers_are_made_acceptable() -> None:
    odd = "functions.Bash:0"
    _, called, answered = contents(user("a"), assistant(call(odd)), user(result(odd)))
    assert called[0]["id"] == answered[0]["tool_use_id"] == wire_name(odd) != odd
    assert answered[0] == {"type": "tool_result", "tool_use_id": called[0]["id"]}


def test_an_error_result_says_something_and_its_images_stand_behind_all_results() -> None:
    failed, shown = result("1", "broke", IMAGE, error=True), result("2", IMAGE)
    *_, answered = contents(user("a"), assistant(call("1"), call("2"), call("3")), user("b", failed, shown))
    assert [[part["type"] for part in block["content"]] for block in answered[:3]] == [["text"], ["image"], ["text"]]
    assert [block["type"] for block in answered[3:]] == ["image", "text"]
    *_, alone = contents(user("a"), assistant(call("1")), user(result("1", IMAGE, error=True)))
    assert (alone[0]["content"][0]["text"], alone[1]["type"]) == (EMPTY_ERROR_TEXT, "image")
    *_, blank = contents(user("a"), assistant(call("1")), user(result("1", " ", error=True)))
    assert blank[0]["content"] == [{"type": "text", "text": EMPTY_ERROR_TEXT}]


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
    command = [sys.executable, "-P", "-c", FROM_A_SET]
    said = {
        subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_names_that_the_api_does_not_accept_are_replaced_and_come_back_as_ours() -> None:
    odd = "weather.now(°C)"
    wire = AnthropicFormat(PLAIN)
    history = [user("a"), assistant(call("1", odd), call("2", "never heard of")), user(result("1"), result("2"))]
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
    again = [wire_name(name) for name in sent_names]  # A tool may have such a name.
    assert len({*sent_names, *again}) == len(names) + len(set(names) - {"a_b", "x" * 128})
    assert wire_name("a_b") == "a_b"
    assert all(1 <= len(name) <= 128 for name in sent_names)


def test_tools_that_were_called_are_defined_though_none_is_offered() -> None:
    history = [user("a"), assistant(call("1", "b.b"), call("2")), user(result("1"), result("2"))]
    body = sent(*history, tools=())
    assert [tool["name"] for tool in body["tools"]] == [wire_name("b.b"), "weather"]
    assert body["tool_choice"] == {"type": "none"}
    assert "tools" not in sent(user("a"), tools=())


def test_a_schema_without_a_type_is_an_objects() -> None:
    spec = ToolSpec(name="x", description=" ", input_schema={"properties": {"a": {}}})
    schema = {"type": "object", "properties": {"a": {}}}
    assert sent(user("a"), tools=(spec,))["tools"] == [{"name": "x", "input_schema": schema}]


# --- Settings ---


def marks(value: Any, path: str = "$") -> list[str]:
    """Return the places of the cache markers."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    here = [path] if isinstance(value, dict) and "cache_control" in value else []
    step = "{}.{}" if isinstance(value, dict) else "{}[{}]"
    return here + [mark for key, item in inner for mark in marks(item, step.format(path, key))]


CACHED = AnthropicOptions()
LOOP = (user("a"), assistant(call("1")), user(result("1")), assistant(call("2")), user(result("2"), "b"))


def test_the_prompt_the_tools_and_both_ends_of_the_history_are_marked_for_the_cache() -> None:
    body = sent(*LOOP, options=CACHED)
    ends = ["$.messages[2].content[0]", "$.messages[4].content[1]"]
    assert marks(body) == ["$.system[0]", "$.tools[0]", *ends]
    assert marks(sent(*LOOP)) == []
    hour = sent(user("a"), options=AnthropicOptions(cache="1h"))
    assert hour["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    # What was marked in one request stays the same in the next.
    before = sent(*LOOP[:3], options=CACHED)
    assert "$.messages[2].content[0]" in marks(before)
    assert before["messages"][2] == body["messages"][2]


def test_no_more_markers_are_sent_than_the_api_accepts() -> None:
    marked: JsonObject = {**SEARCH_TOOL, "cache_control": {"type": "ephemeral"}}
    more = AnthropicOptions(server_tools=(marked,), extra_body={"cache_control": {"type": "ephemeral"}})
    assert marks(sent(*LOOP, options=more)) == ["$", "$.system[0]", "$.tools[1]", "$.messages[4].content[1]"]
    assert "$.tools[1]" in marks(sent(user("a"), options=AnthropicOptions(server_tools=(SEARCH_TOOL,))))
    assert "cache_control" not in SEARCH_TOOL


def test_thoughts_and_the_providers_own_blocks_carry_no_marker() -> None:
    body = sent(user("a"), assistant(SIGNED, "x", SEARCH), options=CACHED)
    assert marks(body["messages"], "") == ["[0].content[0]", "[1].content[1]"]
    assert "cache_control" not in SEARCH.data


def test_server_tools_and_further_fields_are_sent() -> None:
    extra: JsonObject = {"metadata": {"user_id": "u"}, "max_tokens": 5}
    search: JsonObject = {**SEARCH_TOOL, "max_uses": 3}
    body = sent(user("a"), options=AnthropicOptions(cache=False, server_tools=(search,), extra_body=extra))
    assert [tool["name"] for tool in body["tools"]] == ["weather", "web_search"]
    assert (body["metadata"], body["max_tokens"]) == ({"user_id": "u"}, 5)
    sets: tuple[JsonObject, ...] = tuple({"type": "mcp_toolset", "mcp_server_name": name} for name in "ab")
    body, _ = sent_unchecked(user("a"), options=AnthropicOptions(server_tools=sets))
    assert [tool["mcp_server_name"] for tool in body["tools"]] == ["a", "b"]  # They need no names.


def test_thinking_is_left_out_in_the_middle_of_a_loop_that_began_without() -> None:
    fixed = AnthropicOptions(thinking=2048)
    assert "thinking" not in sent(user("a"), assistant(call("1")), user(result("1")), options=fixed)
    assert "thinking" not in sent(user("a"), assistant(UNSIGNED, call("1")), options=fixed)
    assert "thinking" in sent(*LOOP, options=fixed)  # The text behind the results began another turn.
    loop = (user("a"), assistant(SIGNED, call("1")), user(result("1")), assistant(call("2")), user(result("2")))
    assert sent(*loop, options=fixed)["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    assert sent(*LOOP[:3], options=AnthropicOptions(thinking="adaptive"))["thinking"] == {"type": "adaptive"}


@pytest.mark.parametrize(("given", "kind"), [(None, "adaptive"), ("adaptive", "adaptive"), (2048, "enabled")])
def test_stale_thinking_can_be_dropped(given: Any, kind: str) -> None:
    body, headers = sent_unchecked(user("a"), options=AnthropicOptions(thinking=given, drop_stale_thinking=True))
    THINKING.validate_python(body["thinking"])
    assert body["thinking"]["type"] == kind
    assert body["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"


def test_a_temperature_is_sent_where_there_is_one() -> None:
    assert sent(user("a"), temperature=1.0)["temperature"] == 1.0
    thinking, newer = AnthropicOptions(thinking="adaptive"), AnthropicOptions(version="2026-10-21")
    assert "a model that thinks has none" in refusal(user("a"), temperature=0.0, options=thinking)
    assert "temperature" not in sent(user("a"), temperature=1.0, options=thinking)
    assert "does not have" in refusal(user("a"), temperature=0.0, options=newer)
    assert "temperature" not in sent(user("a"), temperature=1.0, options=newer)


def test_settings_of_a_request_that_the_api_refuses_are_refused() -> None:
    assert "0 to 1" in refusal(user("a"), temperature=1.5)
    assert "not white space" in refusal(user("a"), stop_sequences=("END", "\n"))
    twice = AnthropicOptions(server_tools=({**SEARCH_TOOL, "name": "weather"},))
    assert "same name" in refusal(user("a"), options=twice)


def test_case_e01_unpaired_surrogates_are_replaced_wherever_they_are() -> None:
    odd = "a\ud83d"
    history = [user(odd), assistant(call("1", "x", {odd: [odd, {"y": odd}]})), user(result("1", odd))]
    body = sent(*history, system_prompt=odd, tools=(tool_spec("x", odd),))
    whole = json.dumps(body, ensure_ascii=False)
    assert whole.count("a\ufffd") == 7
    assert "\ud83d" not in whole


def test_what_is_not_json_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(1_000_000):
        nested = [nested]
    wrong: list[Any] = [object(), nested]
    for value in wrong:
        assert "not JSON" in refusal(user("a"), assistant(call("1", arguments={"x": value})))


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
