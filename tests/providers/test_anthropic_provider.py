"""The Messages API through a real connection, alone and under a runtime."""

import itertools
import json
from typing import Any

import pytest

import refold
from refold.providers import AnthropicProvider, Secret
from tests.providers.anthropic_messages import OVERLOADED, body_of, checked_request, events_of, message, stream_of
from tests.providers.conversation import user
from tests.providers.letter_format import Stream
from tests.providers.loopback import End, Loopback, Step, event_stream, json_answer

KEY = "sk-ant-api03-0123456789abcdef"
REQUEST = refold.ModelRequest(model="claude-test", system_prompt="", messages=[user("Hello")])
HELLO = message({"type": "text", "text": "Hello, you."})


def provider_for(server: Loopback, **options: Any) -> AnthropicProvider:
    return AnthropicProvider(**{"api_key": KEY, "base_url": server.url, "environment": {}, **options})


def whole(official: Any) -> list[Step]:
    return json_answer(json.loads(body_of(official)))


def streamed(official: Any) -> list[Step]:
    return event_stream(stream_of(events_of(official)))


async def test_a_call_is_made_with_the_key_and_the_version_whole_or_in_pieces() -> None:
    async with Loopback([whole(HELLO), streamed(HELLO)]) as server, provider_for(server) as provider:
        answer = await provider.complete(REQUEST)
        *pieces, last = [item async for item in provider.stream(REQUEST)]
        first, second = server.requests
    assert answer == last
    assert answer.content == (refold.TextBlock(text="Hello, you."),)
    assert "".join(item.text for item in pieces if isinstance(item, refold.TextDelta)) == "Hello, you."
    for request in first, second:
        assert request.path == "/v1/messages"
        assert request.headers["x-api-key"] == KEY
        assert "authorization" not in request.headers
        assert request.headers["anthropic-version"] == "2023-06-01"
        checked_request(request.body, stream=request is second)
    assert KEY not in repr(provider)


async def test_what_is_set_is_sent() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    settings = {"version": "2026-10-21", "max_tokens": 5000, "thinking": 1024, "cache": "1h", "server_tools": [search]}
    settings |= {"extra_body": {"service_tier": "standard_only"}, "headers": {"anthropic-beta": "interleaved-thinking"}}
    async with Loopback([whole(HELLO)]) as server, provider_for(server, **settings) as provider:
        await provider.complete(REQUEST)
        (request,) = server.requests
    body = checked_request(request.body)
    assert request.headers["anthropic-version"] == "2026-10-21"
    assert request.headers["anthropic-beta"] == "interleaved-thinking"
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    assert (body["max_tokens"], body["service_tier"]) == (6024, "standard_only")
    assert body["tools"] == [{**search, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]


async def test_a_beta_of_ones_own_is_sent_besides_ours() -> None:
    ours = "thinking-binding-controls-2026-08-01"
    async with Loopback([whole(HELLO), whole(HELLO)]) as server:
        headers: list[dict[str, str]] = [{"Anthropic-Beta": "a,b"}, {"x-team": "blue"}]
        for given in headers:
            async with provider_for(server, drop_stale_thinking=True, headers=given) as provider:
                await provider.complete(REQUEST)
    assert [request.headers["anthropic-beta"] for request in server.requests] == [f"a,b,{ours}", ours]


@pytest.mark.parametrize(
    ("given", "environment", "header", "value"),
    [
        ({}, {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_AUTH_TOKEN": "other"}, "x-api-key", KEY),
        ({}, {"ANTHROPIC_AUTH_TOKEN": KEY}, "authorization", f"Bearer {KEY}"),
        ({"auth_token": Secret(KEY)}, {"ANTHROPIC_API_KEY": "other"}, "authorization", f"Bearer {KEY}"),
        ({"api_key": Secret(KEY)}, {"ANTHROPIC_API_KEY": "other"}, "x-api-key", KEY),
        ({}, {}, "x-api-key", None),
    ],
)
async def test_keys_and_the_address_come_from_arguments_or_the_environment(
    given: dict[str, Any], environment: dict[str, str], header: str, value: str | None
) -> None:
    async with Loopback([whole(HELLO)]) as server:
        environment = {**environment, "ANTHROPIC_BASE_URL": server.url + "/gateway/v1/"}
        async with AnthropicProvider(environment=environment, **given) as provider:
            await provider.complete(REQUEST)
        (request,) = server.requests
    assert request.path == "/gateway/v1/messages"
    sent = {name: request.headers[name] for name in ("x-api-key", "authorization") if name in request.headers}
    assert sent == ({header: value} if value is not None else {})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"api_key": None}, "ANTHROPIC_API_KEY"),
        ({"auth_token": KEY}, "not both"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"base_url": "api.anthropic.com"}, "base URL"),
        ({"drop_stale_thinking": True, "headers": 5}, "headers"),
        ({"drop_stale_thinking": True, "headers": "a: b"}, "headers"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(refold.ConfigError, match=says):
        AnthropicProvider(**{"api_key": KEY, "environment": {}, **options})


@pytest.mark.parametrize(
    ("base_url", "path"),
    [
        ("", "/v1/messages"),
        ("/v1/", "/v1/messages"),
        ("/gateway/v1?team=a%2Fb", "/gateway/v1/messages?team=a%2Fb"),
        ("/v1/v10", "/v1/v10/v1/messages"),
    ],
)
async def test_the_version_at_the_end_of_a_base_url_is_said_once(base_url: str, path: str) -> None:
    async with Loopback([whole(HELLO)]) as server:
        async with AnthropicProvider(api_key=KEY, base_url=server.url + base_url, environment={}) as provider:
            await provider.complete(REQUEST)
        assert server.requests[0].path == path


async def test_a_refusal_is_classified_and_never_shows_the_key() -> None:
    refusal = {"type": "error", "error": {"type": "rate_limit_error", "message": f"Not so fast, {KEY}!"}}
    answer = json_answer(refusal, status=429, headers={"retry-after": "7", "request-id": "req_9"})
    async with Loopback([answer]) as server, provider_for(server) as provider:
        with pytest.raises(refold.ProviderError) as raised:
            await provider.complete(REQUEST)
    error = raised.value
    assert (error.kind, error.status, error.retryable, error.retry_after_s) == ("rate_limit", 429, True, 7.0)
    assert str(error) == "the Messages API answered HTTP 429 rate_limit_error: Not so fast, [redacted]! (request req_9)"


@pytest.mark.parametrize(
    ("end", "kind"), [([stream_of([OVERLOADED])], "overloaded"), ([], "malformed"), ([End.RESET], "connection")]
)
async def test_case_c06_a_stream_that_breaks_off_is_an_error_and_no_answer(end: list[Step], kind: str) -> None:
    stream = stream_of(events_of(HELLO))
    begun = stream[: stream.index(b"event: message_delta")]
    async with Loopback([event_stream(begun, *end)]) as server, provider_for(server) as provider:
        reading = Stream(provider, REQUEST)
        with pytest.raises(refold.ProviderError) as raised:
            await reading.task
    assert (raised.value.kind, raised.value.retryable) == (kind, True)
    assert not any(isinstance(item, refold.ModelResponse) for item in reading.items)


@refold.tool(effect="pure")
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"{city}: sunny"


THOUGHT: dict[str, Any] = {"type": "thinking", "thinking": " hm … ", "signature": "c2ln"}
HIDDEN: dict[str, Any] = {"type": "redacted_thinking", "data": "eHg="}
CALLS = message(
    THOUGHT,
    HIDDEN,
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Lisbon"}},
    {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Porto"}},
    stop_reason="tool_use",
)
SEARCHES = message(
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "Porto"}},
    stop_reason="pause_turn",
)
SUNNY = message({"type": "text", "text": "Sunny in both."})


@pytest.mark.parametrize("streaming", [False, True])
async def test_case_d03_d09_a_run_with_thoughts_calls_and_a_pause_sends_back_what_came(streaming: bool) -> None:
    answers = [streamed(each) if streaming else whole(each) for each in (CALLS, SEARCHES, SUNNY, HELLO)]
    config = refold.AgentConfig(model="claude-test", streaming=streaming)
    async with Loopback(answers) as server:
        async with (
            provider_for(server, thinking="adaptive") as provider,
            refold.AgentRuntime(config, provider=provider, tools=[weather]) as runtime,
        ):
            session = await runtime.session("alice")
            result = await session.send("Lisbon and Porto?")
            assert isinstance(result.outcome, refold.Completed)
            assert result.text == "Sunny in both."
            await session.send("Thanks.")
            history = await session.history()
        bodies = [checked_request(request.body, stream=streaming) for request in server.requests]
    assert [
        block for block in history[1].content if isinstance(block, refold.ThinkingBlock | refold.ProviderBlock)
    ] == [
        refold.ThinkingBlock(thinking=" hm … ", signature="c2ln"),
        refold.ProviderBlock(provider="anthropic", data=HIDDEN),
    ]
    called, answered = bodies[1]["messages"][1:]
    assert called["content"][:2] == [THOUGHT, HIDDEN]
    calls, results = called["content"][3:], answered["content"]
    assert [use["id"] for use in calls] == [each["tool_use_id"] for each in results]
    assert not {use["id"] for use in calls} & {"toolu_1", "toolu_2"}
    assert [each["content"][0]["text"] for each in results] == ["Lisbon: sunny", "Porto: sunny"]
    assert bodies[2]["messages"][-1]["content"][0]["id"] == "srvtoolu_1"
    assert [each["role"] for each in bodies[3]["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    # Nobody answers the search any more, so its call does not go back.
    assert [block["type"] for block in bodies[3]["messages"][3]["content"]] == ["text"]
    for before, after in itertools.pairwise(bodies):
        assert unmarked(after["messages"])[: len(before["messages"]) - 1] == unmarked(before["messages"])[:-1]


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def refusal(status: int, kind: str, words: str) -> list[Step]:
    return json_answer({"type": "error", "error": {"type": kind, "message": words}}, status=status)


@pytest.mark.parametrize("streaming", [False, True])
async def test_what_the_server_refuses_is_set_aside_and_a_setting_that_it_refuses_is_not(streaming: bool) -> None:
    answered = streamed(HELLO) if streaming else whole(HELLO)
    script = [
        refusal(400, "invalid_request_error", "temperature: range: 0..1"),
        refusal(400, "invalid_request_error", "messages.0.content.1.image.source.base64: Could not process image"),
        answered,
        refusal(413, "request_too_large", "Request exceeds the maximum size"),
        answered,
    ]
    picture = refold.ImageBlock(media_type="image/png", data=b"picture")
    config = refold.AgentConfig(model="claude-test", streaming=streaming)
    async with (
        Loopback(script) as server,
        provider_for(server) as provider,
        refold.AgentRuntime(config, provider=provider) as runtime,
    ):
        session = await runtime.session("alice")
        outcomes = [(await session.send([text, picture])).outcome for text in ("One", "Two", "Three")]
        bodies = [request.body.count(b'"image/png"') for request in server.requests]
    assert isinstance(outcomes[0], refold.Failed)
    assert outcomes[1:] == [refold.Completed()] * 2
    # The newest is left out first; the one of the run that failed stays in question, and is taken in the end.
    assert bodies == [1, 2, 1, 2, 1]
