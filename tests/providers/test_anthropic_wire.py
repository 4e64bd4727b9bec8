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

from refold import Message, ModelRequest, ProviderBlock, ProviderError, TextBlock, ThinkingBlock, ToolUse
from refold.events.core.content import Block
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
    message,
    official_messages,
    read_chunks,
    read_events,
    stream_of,
)
from tests.providers.conversation import IMAGE, assistant, call, result, user
from tests.providers.histories import json_objects, misplaced_histories, texts, tools
from tests.providers.loopback import Loopback, event_stream, json_answer

NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ASKED: Any = {"model": "claude-test", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}

PAGE = {"title": "Lisbon", "url": "https://example.org"}
FOUND_PAGE = {"type": "web_search_result", "encrypted_content": "ZW5j", "page_age": None, **PAGE}
CITED_PAGE = {
    "type": "web_search_result_location",
    "cited_text": "Portugal",
    "encrypted_index": "aW5k",
    **PAGE,
    "title": None,
}

RICH = message(
    {"type": "thinking", "thinking": "hm…", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "aGlkZGVu"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Lisbon"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND_PAGE]},
    {"type": "text", "text": "It is in Portugal 🇵🇹.", "citations": [CITED_PAGE]},
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
    kinds = [type(block) for block in ours.content]
    assert kinds == [ThinkingBlock, ProviderBlock, ProviderBlock, ProviderBlock, TextBlock, ToolUse, ToolUse]
    assert ours.model == official.model == "claude-test"
    assert ours.usage.output_tokens == official.usage.output_tokens == 34


async def test_the_official_client_reads_the_same_answer_from_the_same_body() -> None:
    async with Loopback([json_answer(json.loads(body_of(RICH)))]) as server, official_client(server) as client:
        official = await client.messages.create(**ASKED)
    assert AnthropicFormat().answer(as_body(official)) == AnthropicFormat().answer(body_of(RICH))


async def test_the_official_client_sends_the_same_messages_for_the_same_answer() -> None:
    ours = AnthropicFormat().answer(body_of(RICH))
    content: list[Block] = [
        call(str(block.id), block.name, dict(block.input)) if isinstance(block, ToolUse) else block  # type: ignore[call-overload]
        for block in ours.content
    ]
    history = [user("Hello"), assistant(*content), user(result("toolu_1"), result("toolu_2"))]
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


options = st.builds(
    AnthropicOptions,
    cache=st.sampled_from([True, False, "1h"]),
    thinking=st.sampled_from([None, "adaptive", 2048]),
    server_tools=st.sampled_from([(), ({"type": "web_search_20250305", "name": "web_search"},)]),
)


@given(misplaced_histories, tools, options, st.booleans())
def test_a_request_is_what_the_official_types_accept_or_is_refused(
    history: list[Message], offered: tuple[ToolSpec, ...], settings: AnthropicOptions, stream: bool
) -> None:
    request = ModelRequest(model="m", system_prompt="Be brief.", messages=history, tools=offered)
    wire = AnthropicFormat(settings)
    if (outcome := outcome_of(lambda: wire.request(request, stream=stream))) != "answer":
        assert outcome == "invalid_request"
        return
    sent = wire.request(request, stream=stream)
    assert_acceptable(checked_request(sent.body, stream=stream))
    assert AnthropicFormat(settings).request(request, stream=stream) == sent  # The provider's cache lives of it.
    rules = HistoryRules()
    assert [finding for each in sendable(history) for finding in rules.add(each, after_pause=False)] == []
    assert not rules.open_calls


SEARCH = ProviderBlock(provider="anthropic", data={"type": "server_tool_use", "id": "srvtoolu_1"})
FOUND = ProviderBlock(provider="anthropic", data={"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1"})


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            [assistant(call("1"), SEARCH), user(result("1", IMAGE, error=True))],
            id="an image is shown behind the result",
        ),
        pytest.param([assistant(FOUND, SEARCH), user("And?")], id="the result stands before its call"),
    ],
)
def test_a_servers_call_without_a_result_behind_it_is_not_sent(history: list[Message]) -> None:
    once = sendable(history)
    assert not any(isinstance(block, ProviderBlock) for message in once for block in message.content)
    assert sendable(once) == once


@pytest.mark.slow
@given(misplaced_histories)
def test_a_history_that_is_sent_once_is_not_changed_again(history: list[Message]) -> None:
    try:
        once = sendable(history)
    except ProviderError:
        return
    assert sendable(once) == once


def assert_acceptable(body: dict[str, Any]) -> None:
    """Check what the API demands of a request beyond its types."""
    messages = body["messages"]
    assert [m["role"] for m in messages] == ["user" if n % 2 == 0 else "assistant" for n in range(len(messages))]
    pending: list[str] = []
    seen: set[str] = set()
    for each in messages:
        assert each["content"]
        kinds = [block["type"] for block in each["content"]]
        assert kinds[: len(pending)] == ["tool_result"] * len(pending)
        assert kinds.count("tool_result") == len(pending)
        assert sorted(block["tool_use_id"] for block in each["content"][: len(pending)]) == sorted(pending)
        assert each["role"] == "user" or kinds[-1] not in ("thinking", "redacted_thinking")
        pending = [block["id"] for block in each["content"] if block["type"] == "tool_use"]
        assert not seen & set(pending)
        assert len(set(pending)) == len(pending)
        seen.update(pending)
        for block in each["content"]:
            assert_acceptable_block(block, each["role"])
    assert not pending
    last = messages[-1]["content"][-1]
    assert messages[-1]["role"] == "user" or last["type"] != "text" or last["text"] == last["text"].rstrip()
    assert json.dumps(body).count('"cache_control"') <= 4
    tools = body.get("tools", [])
    assert tools or not seen
    assert all(NAME.fullmatch(tool["name"]) for tool in tools)
    assert len({tool["name"] for tool in tools}) == len(tools)


def assert_acceptable_block(block: dict[str, Any], role: str) -> None:
    match block["type"]:
        case "text":
            assert block["text"].strip()
            assert role == "assistant" or "citations" not in block
        case "thinking":
            assert block["signature"]
        case "tool_use":
            assert NAME.fullmatch(block["id"])
            assert NAME.fullmatch(block["name"])
        case "tool_result":
            parts = block.get("content", ())
            assert all(part["type"] != "text" or part["text"].strip() for part in parts)
            assert not block.get("is_error") or {part["type"] for part in parts} == {"text"}
        case _:
            assert not block.get("is_error")
