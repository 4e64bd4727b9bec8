"""The Messages API as the official package knows it: what we send and read is what its types and client do."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_args

import hypothesis.strategies as st
import pytest
from anthropic import APIStatusError, AsyncAnthropic
from anthropic.types import Message as OfficialMessage
from anthropic.types import StopReason as OfficialStopReason
from hypothesis import example, given

from refold import (
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
from refold.events.core.content import Block, ImageBlock, JsonObject
from refold.events.core.ids import ToolCallId
from refold.events.model.configuration import ToolSpec
from refold.events.model.history_rules import HistoryRules
from refold.events.model.messages import TextDelta, ThinkingDelta, ToolInputDelta, deltas_of
from refold.providers.anthropic.history import sendable
from refold.providers.anthropic.provider import AnthropicFormat
from refold.providers.anthropic.request import AnthropicOptions
from tests.providers.anthropic_messages import (
    body_of,
    checked_request,
    events_of,
    json_objects,
    message,
    official_messages,
    read_chunks,
    read_events,
    stream_of,
    texts,
    words,
)
from tests.providers.loopback import Loopback, event_stream, json_answer

ASKED: Any = {"model": "claude-test", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}

RICH = message(
    {"type": "thinking", "thinking": "hm…", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "aGlkZGVu"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Lisbon"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [
            {
                "type": "web_search_result",
                "encrypted_content": "ZW5j",
                "page_age": None,
                "title": "Lisbon",
                "url": "https://example.org",
            }
        ],
    },
    {
        "type": "text",
        "text": "It is in Portugal 🇵🇹.",
        "citations": [
            {
                "type": "web_search_result_location",
                "cited_text": "Portugal",
                "encrypted_index": "aW5k",
                "title": None,
                "url": "https://example.org",
            }
        ],
    },
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Lisbon", "days": [1, 2]}},
    {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
    stop_reason="tool_use",
)


def official_client(server: Loopback) -> AsyncAnthropic:
    return AsyncAnthropic(api_key="sk-test", base_url=server.url, max_retries=0)


def as_body(official: OfficialMessage) -> bytes:
    """Return what the official client has read, without the fields that it adds itself."""
    whole = official.to_dict(mode="json")
    content: list[Any] = whole["content"]  # type: ignore[assignment]
    for block in content:
        block.pop("parsed_output", None)
    return json.dumps(whole).encode()


@pytest.mark.parametrize("pieces", [1, 3, 1000])
async def test_the_official_client_reads_the_same_answer_from_the_same_stream(pieces: int) -> None:
    stream = stream_of(events_of(RICH, pieces))
    async with (
        Loopback([event_stream(stream)]) as server,
        official_client(server) as client,
        client.messages.stream(**ASKED) as answer,
    ):
        official = await answer.get_final_message()
    ours = read_chunks([stream])
    assert AnthropicFormat().answer(as_body(official)) == ours
    assert [type(block) for block in ours.content] == [
        ThinkingBlock,
        ProviderBlock,
        ProviderBlock,
        ProviderBlock,
        TextBlock,
        ToolUse,
        ToolUse,
    ]
    assert ours.model == official.model == "claude-test"
    assert ours.usage.output_tokens == official.usage.output_tokens == 34


async def test_the_official_client_reads_the_same_answer_from_the_same_body() -> None:
    async with Loopback([json_answer(json.loads(body_of(RICH)))]) as server, official_client(server) as client:
        official = await client.messages.create(**ASKED)
    assert AnthropicFormat().answer(as_body(official)) == AnthropicFormat().answer(body_of(RICH))


async def test_the_official_client_sends_the_same_messages_for_the_same_answer() -> None:
    ours = AnthropicFormat().answer(body_of(RICH))
    content: list[Block] = [
        ToolUseBlock(id=ToolCallId(str(block.id)), name=block.name, input=dict(block.input), provider_data=None)  # type: ignore[call-overload]
        if isinstance(block, ToolUse)
        else block
        for block in ours.content
    ]
    results = tuple(ToolResultBlock(tool_use_id=ToolCallId(f"toolu_{n}"), content=()) for n in (1, 2))
    history = [
        Message("user", (TextBlock(text="Hello"),)),
        Message("assistant", tuple(content)),
        Message("user", results),
    ]
    wire = AnthropicFormat(AnthropicOptions(cache=False))
    sent = checked_request(wire.request(ModelRequest(model="m", system_prompt="", messages=history), stream=False).body)
    async with Loopback([json_answer({})]) as server, official_client(server) as client:
        answered = [
            {"role": "user", "content": "Hello"},
            RICH.to_param(),
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{n}"} for n in (1, 2)]},
        ]
        await client.messages.create(model="m", max_tokens=1, messages=answered)  # type: ignore[arg-type]
        theirs = server.requests[0].json()["messages"]
    assert without_nulls(sent["messages"][1:]) == without_nulls(theirs[1:])


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 529])
async def test_what_the_official_client_asks_again_is_what_may_be_repeated(status: int) -> None:
    refusal = json_answer({"error": {"type": "new_error"}}, status=status, headers={"retry-after-ms": "1"})
    async with Loopback([refusal, json_answer(json.loads(body_of(RICH)))]) as server:
        async with AsyncAnthropic(api_key="sk-test", base_url=server.url, max_retries=1) as client:
            with suppress(APIStatusError):
                await client.messages.create(**ASKED)
        again = len(server.requests) == 2
    assert AnthropicFormat().failure(status, {}, b"").retryable is again


def test_every_stop_reason_of_the_official_package_is_known() -> None:
    told = {
        reason: AnthropicFormat().answer(body_of(message(stop_reason=reason)))
        for reason in get_args(OfficialStopReason)
    }
    same = {reason for reason, answer in told.items() if answer.stop_reason == reason}
    assert same == {"end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal"}
    assert told["model_context_window_exceeded"].stop_reason == "max_tokens"
    assert set(told) == same | {"model_context_window_exceeded"}


@given(official_messages(), st.integers(1, 12), st.data())
def test_an_answer_in_chunks_of_any_size_is_the_answer_of_the_complete_body(
    official: OfficialMessage, pieces: int, data: st.DataObject
) -> None:
    complete = AnthropicFormat().answer(body_of(official))
    events = events_of(official, pieces)
    stream = stream_of(events, data.draw(st.sampled_from(["\n", "\r\n"])))
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    chunks = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    assert read_chunks(chunks) == complete
    deltas, streamed = read_events(events)
    assert streamed == complete
    assert joined(deltas) == joined(deltas_of(complete, 10))


def joined(deltas: list[Any]) -> dict[Any, str]:
    """Return each text that comes in deltas; the input of a call as JSON."""
    whole: dict[Any, str] = {}
    for delta in deltas:
        match delta:
            case ToolInputDelta(index=index, name=name, partial_json=text, id=call):
                key: Any = (index, name, call)
            case TextDelta(text=text) | ThinkingDelta(thinking=text):
                key = type(delta)
            case _:
                continue
        whole[key] = whole.get(key, "") + text
    return {key: json.loads(text) if isinstance(key, tuple) else text for key, text in whole.items()}


@given(official_messages(), st.data())
def test_a_stream_that_ends_anywhere_is_an_answer_or_a_classified_error(
    official: OfficialMessage, data: st.DataObject
) -> None:
    stream = stream_of(events_of(official))
    end = data.draw(st.integers(0, len(stream)))
    if b"event: message_stop\ndata: {" in stream[:end]:  # The event that nothing depends on but that it has come.
        assert read_chunks([stream[:end]]) == AnthropicFormat().answer(body_of(official))
        return
    with pytest.raises(ProviderError) as raised:
        read_chunks([stream[:end]])
    assert (raised.value.kind, raised.value.retryable) == ("malformed", True)


@pytest.mark.slow
@given(official_messages(), st.data())
def test_any_events_in_any_order_give_an_answer_or_a_classified_error(
    official: OfficialMessage, data: st.DataObject
) -> None:
    events = [dict(event) for event in data.draw(st.lists(st.sampled_from(events_of(official)), max_size=12))]
    for event in events:
        if data.draw(st.booleans()):
            event[data.draw(st.sampled_from(sorted(event)))] = data.draw(st.none() | texts | json_objects)
    kinds = {outcome_of(lambda: read_events([{**event, "type": str(event["type"])} for event in events]))}
    assert kinds <= {"answer", "malformed", "server"}


@given(st.binary(max_size=60) | json_objects.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
def test_any_body_gives_an_answer_or_a_classified_error(body: bytes) -> None:
    assert outcome_of(lambda: AnthropicFormat().answer(body)) in ("answer", "malformed", "server")
    for status in (200, 302, 400, 418, 429, 500, 529, 599):
        told = str(AnthropicFormat().failure(status, {}, body))
        assert str(status) in told
        assert len(told) < 1000


def outcome_of(read: Callable[[], object]) -> str:
    """Return the kind of the error that `read` raises, or that there is an answer."""
    try:
        read()
    except ProviderError as error:
        return error.kind
    return "answer"


specs = st.builds(
    lambda name, description, schema: ToolSpec(name=name, description=description, input_schema=schema),
    texts.filter(bool) | words,
    texts,
    st.just(JsonObject()) | st.just({"type": "object", "properties": {"x": {"type": "string"}}}),
)
call_ids = st.sampled_from(["call-1", "call-2", "call-3", "functions.Bash:0", ""]).map(ToolCallId)
image_blocks = st.builds(
    lambda kind, data: ImageBlock(media_type=kind, data=data),
    st.sampled_from(["image/png", "image/jpg", "IMAGE/WEBP; q=1", "image/tiff"]),
    st.binary(max_size=3),
)
citations: st.SearchStrategy[JsonObject | None] = st.none() | st.just(
    {
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
        "openai": {"anything": 1},
    }
)
odd_texts = st.text(st.characters(), max_size=6) | texts  # Surrogates too.
text_blocks = st.builds(lambda text, data: TextBlock(text=text, provider_data=data), odd_texts, citations)
provider_blocks = st.builds(
    lambda provider, data: ProviderBlock(provider=provider, data=data),
    st.sampled_from(["anthropic", "openai"]),
    st.sampled_from(
        [
            {"type": "redacted_thinking", "data": "x"},
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        ]
    ),
)
thoughts = st.builds(
    lambda text, signature: ThinkingBlock(thinking=text, signature=signature), texts, st.none() | words
)
tool_calls = st.builds(
    lambda call, name, given: ToolUseBlock(id=call, name=name, input=given), call_ids, odd_texts, json_objects
)
results = st.builds(
    lambda call, content, failed: ToolResultBlock(
        tool_use_id=call, content=tuple(content), is_error=failed, kind="permanent" if failed else None
    ),
    call_ids,
    st.lists(text_blocks | image_blocks, max_size=2),
    st.booleans(),
)
user_messages = st.lists(text_blocks | image_blocks | results, max_size=3).map(lambda b: Message("user", tuple(b)))
assistant_messages = st.lists(
    text_blocks | thoughts | tool_calls | provider_blocks | image_blocks | results, max_size=4
).map(lambda b: Message("assistant", tuple(b)))
histories = st.lists(user_messages | assistant_messages, max_size=7)
options = st.builds(
    AnthropicOptions,
    cache=st.sampled_from([True, False, "1h"]),
    thinking=st.sampled_from([None, "adaptive", 2048]),
    server_tools=st.sampled_from([(), ({"type": "web_search_20250305", "name": "web_search"},)]),
)


@given(histories, st.lists(specs, max_size=3, unique_by=lambda spec: spec.name), options, st.booleans())
def test_a_request_is_what_the_official_types_accept_or_is_refused(
    history: list[Message], tools: list[ToolSpec], settings: AnthropicOptions, stream: bool
) -> None:
    request = ModelRequest(model="m", system_prompt="Be brief.", messages=history, tools=tuple(tools))
    wire = AnthropicFormat(settings)
    if (outcome := outcome_of(lambda: wire.request(request, stream=stream))) != "answer":
        assert outcome == "invalid_request"
        return
    sent = wire.request(request, stream=stream)
    body = checked_request(sent.body, stream=stream)
    assert_acceptable(body)
    assert AnthropicFormat(settings).request(request, stream=stream) == sent  # The provider's cache lives of it.
    rules = HistoryRules()
    assert [finding for each in sendable(history) for finding in rules.add(each, after_pause=False)] == []
    assert not rules.open_calls


@pytest.mark.parametrize(
    "history",
    [
        [
            Message(
                "assistant",
                (
                    ToolUseBlock(id=ToolCallId("call-1"), name="look", input={}),
                    ProviderBlock(provider="anthropic", data={"type": "server_tool_use", "id": "srvtoolu_1"}),
                ),
            ),
            Message(
                "user",
                (
                    ToolResultBlock(
                        tool_use_id=ToolCallId("call-1"),
                        content=(ImageBlock(media_type="image/png", data=b"0"),),
                        is_error=True,
                        kind="permanent",
                    ),
                ),
            ),
        ],
        [
            Message(
                "assistant",
                (
                    ProviderBlock(
                        provider="anthropic", data={"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1"}
                    ),
                    ProviderBlock(provider="anthropic", data={"type": "server_tool_use", "id": "srvtoolu_1"}),
                ),
            ),
            Message("user", (TextBlock(text="And?"),)),
        ],
    ],
    ids=["an image is shown behind the result", "the result stands before its call"],
)
def test_a_servers_call_without_a_result_behind_it_is_not_sent(history: list[Message]) -> None:
    once = sendable(history)
    assert not any(isinstance(block, ProviderBlock) for message in once for block in message.content)
    assert sendable(once) == once


@pytest.mark.slow
@given(histories)
def test_a_history_that_is_sent_once_is_not_changed_again(history: list[Message]) -> None:
    try:
        once = sendable(history)
    except ProviderError:
        return
    assert sendable(once) == once


def assert_acceptable(body: dict[str, Any]) -> None:
    """Check what the API demands of a request beyond its types."""
    name = r"[a-zA-Z0-9_-]{1,128}"
    messages = body["messages"]
    assert [m["role"] for m in messages] == ["user" if n % 2 == 0 else "assistant" for n in range(len(messages))]
    pending: list[str] = []
    seen: set[str] = set()
    for each in messages:
        assert each["content"]
        first = [block["tool_use_id"] for block in each["content"][: len(pending)] if block["type"] == "tool_result"]
        assert sorted(first) == sorted(pending)
        kinds = [block["type"] for block in each["content"]]
        assert kinds.count("tool_result") == len(pending)
        assert each["role"] == "user" or kinds[-1] not in ("thinking", "redacted_thinking")
        pending = [block["id"] for block in each["content"] if block["type"] == "tool_use"]
        assert not seen & set(pending)
        assert len(set(pending)) == len(pending)
        seen.update(pending)
        for block in each["content"]:
            assert block["type"] != "text" or block["text"].strip()
            assert block["type"] != "text" or each["role"] == "assistant" or "citations" not in block
            assert block["type"] != "thinking" or block["signature"]
            if block.get("is_error"):
                assert {part["type"] for part in block["content"]} == {"text"}
            for part in block.get("content", ()) if block["type"] == "tool_result" else ():
                assert part["type"] != "text" or part["text"].strip()
        for block in each["content"]:
            if block["type"] == "tool_use":
                assert full_match(name, block["id"])
                assert full_match(name, block["name"])
    assert not pending
    last = messages[-1]["content"][-1]
    assert messages[-1]["role"] == "user" or last["type"] != "text" or last["text"] == last["text"].rstrip()
    assert json.dumps(body).count('"cache_control"') <= 4
    tools = body.get("tools", [])
    assert tools or not seen
    assert all(full_match(name, tool["name"]) for tool in tools)
    assert len({tool["name"] for tool in tools}) == len(tools)


def full_match(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None
