"""`OpenAIProvider` on a loopback server: what it sends, and that it reads what the official client reads."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.lib.streaming.chat import ChatCompletionStreamState

from refold import (
    AgentConfig,
    AgentRuntime,
    Completed,
    ConfigError,
    Failed,
    Message,
    ModelRequest,
    ModelResponse,
    ProviderError,
    TextBlock,
    ToolUse,
    Usage,
    tool,
)
from refold.events import ImageBlock, ToolResultBlock, ToolUseBlock
from refold.events.core.ids import ToolCallId
from refold.events.model.configuration import ToolSpec
from refold.providers import OpenAIProvider
from refold.providers.http.settings import HttpTimeouts
from refold.providers.openai.provider import OpenAIFormat
from tests.providers.chat_completions import chunk, completion
from tests.providers.loopback import Loopback, Step, answer, event_stream, json_answer

KEY = "sk-test-0123456789abcdef"
NO_ENVIRONMENT: Mapping[str, str] = {}
ASK = ModelRequest(model="gpt-x", system_prompt="Be brief.", messages=[Message("user", (TextBlock(text="Hi"),))])
USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 5}}


def provider(server: Loopback, **options: Any) -> OpenAIProvider:
    return OpenAIProvider(**{"api_key": KEY, "base_url": f"{server.url}/v1", "environment": NO_ENVIRONMENT, **options})


def official(server: Loopback) -> AsyncOpenAI:
    http_client = DefaultAsyncHttpxClient(trust_env=False)
    return AsyncOpenAI(api_key=KEY, base_url=f"{server.url}/v1", http_client=http_client, max_retries=0)


def whole(message: Mapping[str, object], *, finish: str = "stop", **more: object) -> list[Step]:
    body = completion({"role": "assistant", **message}, finish=finish, **more)
    return answer(body, headers={"content-type": "application/json"})


def streamed(*values: object, done: bool = True) -> list[Step]:
    events = [f"data: {json.dumps(value)}\n\n".encode() for value in values]
    return event_stream(b": OPENROUTER PROCESSING\n\n", *events, *([b"data: [DONE]\n\n"] if done else []))


def call(arguments: str, *, name: str = "weather", id: str = "call_1", **more: object) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


async def test_it_asks_as_the_official_client_does_and_reads_what_that_reads() -> None:
    history = [
        Message("user", (TextBlock(text="Look"), ImageBlock(media_type="image/png", data=b"\x89PNG"))),
        Message("assistant", (ToolUseBlock(id=ToolCallId("call_2_0"), name="look", input={"x": "é"}),)),
        Message("user", (ToolResultBlock(tool_use_id=ToolCallId("call_2_0"), content=(TextBlock(text="ok"),)),)),
    ]
    request = ModelRequest(
        model="gpt-x",
        system_prompt="Be brief.",
        messages=history,
        tools=(ToolSpec(name="look", description="Look.", input_schema={"type": "object", "properties": {}}),),
        max_tokens=9,
        temperature=0.5,
        stop_sequences=("END",),
    )
    body = json.loads(OpenAIFormat().request(request, stream=False).body)
    script = whole({"content": "Hi"}, usage=USAGE)
    async with Loopback([script, script]) as server:
        async with official(server) as client:
            theirs = await client.chat.completions.create(**body)
        async with provider(server, max_tokens_field="max_completion_tokens") as ours:
            response = await ours.complete(request)
        first, second = server.requests
    assert first.json() == second.json() == body
    assert first.path == second.path == "/v1/chat/completions"
    assert first.headers["authorization"] == second.headers["authorization"] == f"Bearer {KEY}"
    assert theirs.choices[0].message.content == "Hi"
    assert response == ModelResponse(
        content=(TextBlock(text="Hi"),),
        usage=Usage(input_tokens=4, output_tokens=4, cache_read_tokens=5),
        model="gpt-x",
    )


@pytest.mark.parametrize(
    "values",
    [
        [chunk({"role": "assistant", "content": "H"}), chunk({"content": "é😀"}), chunk(finish="stop")],
        [chunk({"role": "assistant", "refusal": "N"}), chunk({"refusal": "o."}), chunk(finish="stop")],
        [
            chunk({"role": "assistant", "tool_calls": [{"index": 0, **call("")}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"Oslo"}'}}]}),
            chunk({"tool_calls": [{"index": 1, **call("{}", id="call_2", name="time")}]}),
            chunk(finish="tool_calls"),
        ],
    ],
)
async def test_it_reads_the_streams_that_the_official_client_reads(values: list[dict[str, Any]]) -> None:
    script = streamed(*values, {**chunk(usage=USAGE), "choices": []})
    async with Loopback([script, script]) as server:
        state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
        async with official(server) as client:
            body = json.loads(OpenAIFormat().request(ASK, stream=True).body)
            async for value in await client.chat.completions.create(**body):
                state.handle_chunk(value)
        async with provider(server) as ours:
            items = [item async for item in ours.stream(ASK)]
        first, second = server.requests
    assert first.json() == second.json()
    theirs = state.current_completion_snapshot
    response = items[-1]
    assert isinstance(response, ModelResponse)
    message = theirs.choices[0].message
    assert "".join(block.text for block in response.content if isinstance(block, TextBlock)) == (
        (message.content or "") + (message.refusal or "")
    )
    assert [(use.id, use.name, use.input) for use in response.content if isinstance(use, ToolUse)] == [
        (used.id, used.function.name, used.function.arguments) for used in message.tool_calls or ()
    ]
    assert response.usage == Usage(input_tokens=4, output_tokens=4, cache_read_tokens=5)


async def test_a_server_on_this_machine_needs_no_key() -> None:
    async with Loopback([whole({"content": "Hi"})]) as server:
        async with provider(server, api_key=None) as ours:
            await ours.complete(ModelRequest(model="m", system_prompt="", messages=ASK.messages, max_tokens=5))
        (request,) = server.requests
    assert "authorization" not in request.headers
    assert request.json() == {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


async def test_all_that_can_be_set_is_sent() -> None:
    environment = {
        "OPENAI_API_KEY": "sk-of-the-environment",
        "OPENAI_ORG_ID": "org-of-the-environment",
        "OPENAI_PROJECT_ID": "proj-of-the-environment",
    }
    async with Loopback([whole({"content": "Hi"}), whole({"content": "Hi"}), whole({"content": "Hi"})]) as server:
        async with OpenAIProvider(
            base_url=f"{server.url}/v1/",
            organization="org-1",
            project="proj-1",
            parallel_tool_calls=False,
            reasoning_effort="low",
            extra_body={"top_k": 40},
            headers={"x-title": "Refold"},
            timeouts=HttpTimeouts(total_s=60.0),
            environment=environment,
        ) as ours:
            await ours.complete(ASK)
        async with OpenAIProvider(environment={**environment, "OPENAI_BASE_URL": f"{server.url}/v2"}) as ours:
            await ours.complete(ASK)
        async with provider(server, environment=environment) as ours:
            await ours.complete(ASK)
        first, second, third = server.requests
    assert first.path == "/v1/chat/completions"
    assert first.headers["authorization"] == "Bearer sk-of-the-environment"
    assert first.headers["openai-organization"] == "org-1"
    assert first.headers["openai-project"] == "proj-1"
    assert first.headers["x-title"] == "Refold"
    assert first.json()["reasoning_effort"] == "low"
    assert first.json()["top_k"] == 40
    assert second.path == "/v2/chat/completions"
    assert third.headers["authorization"] == f"Bearer {KEY}"
    assert "openai-organization" not in {**second.headers, **third.headers}
    assert "openai-project" not in {**second.headers, **third.headers}


def test_what_cannot_work_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAIProvider(environment=NO_ENVIRONMENT)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        OpenAIProvider(base_url="https://eu.api.openai.com/v1", environment=NO_ENVIRONMENT)
    with pytest.raises(ConfigError, match="messages"):
        OpenAIProvider(api_key=KEY, extra_body={"messages": []}, environment=NO_ENVIRONMENT)
    with pytest.raises(ConfigError):
        OpenAIProvider(api_key=KEY, base_url="ftp://host", environment=NO_ENVIRONMENT)
    with pytest.raises(ConfigError):
        OpenAIProvider(api_key=KEY, base_url="http://[", environment=NO_ENVIRONMENT)
    no_text: Any = 5
    with pytest.raises(ConfigError, match="base URL"):
        OpenAIProvider(api_key=KEY, base_url=no_text, environment=NO_ENVIRONMENT)
    wrong: dict[str, Any] = {
        "headers": 5,
        "extra_body": [1],
        "name": "",
        "max_tokens_field": "tokens",
        "return_reasoning": "thoughts",
        "reasoning_effort": 5,
        "include_usage": "yes",
        "parallel_tool_calls": "no",
    }
    for argument, value in wrong.items():
        options: dict[str, Any] = {"project": "p", argument: value}
        with pytest.raises(ConfigError, match=argument):
            OpenAIProvider(api_key=KEY, environment=NO_ENVIRONMENT, **options)
    assert KEY not in repr(OpenAIProvider(api_key=KEY, environment=NO_ENVIRONMENT))


async def test_a_refusal_is_classified_and_says_when_to_come_back() -> None:
    error = {"error": {"message": f"Slow down, {KEY}", "type": "requests", "code": "rate_limit_exceeded"}}
    script = [json_answer(error, status=429, headers={"retry-after": "7"})]
    async with Loopback(script) as server, provider(server) as ours:
        with pytest.raises(ProviderError) as caught:
            await ours.complete(ASK)
    failure = caught.value
    assert (failure.kind, failure.status, failure.retryable, failure.retry_after_s) == ("rate_limit", 429, True, 7.0)
    assert KEY not in str(failure)
    assert "Slow down" in str(failure)


async def test_case_c09_c17_d09_odd_ends_of_streams() -> None:
    scripts = [
        streamed(chunk({"content": "Hi"}, finish="length"), {"choices": [], "usage": USAGE}, done=False),
        streamed(done=False),
        streamed(),
        streamed(chunk({"content": "Hi"}), {"error": {"code": 502, "message": "Provider disconnected"}}),
    ]
    async with Loopback(scripts) as server, provider(server) as ours:
        items = [item async for item in ours.stream(ASK)]
        assert isinstance(items[-1], ModelResponse)
        assert (items[-1].stop_reason, items[-1].usage.cache_read_tokens) == ("max_tokens", 5)
        for kind in ("malformed", "malformed", "server"):
            with pytest.raises(ProviderError) as caught:
                [item async for item in ours.stream(ASK)]
            assert (caught.value.kind, caught.value.retryable) == (kind, True)


ran: list[str] = []


@tool(effect="pure")
def weather(city: str, days: int = 1) -> str:
    """Return the weather of a city."""
    ran.append(city)
    return f"{city}: sunny"


@tool(effect="pure")
def plan(steps: list[dict[str, str]], note: str = "") -> str:
    """Take a plan."""
    ran.append(note)
    return f"{len(steps)} steps"


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@pytest.mark.parametrize("protocol", ["native", "react"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_key_that_arguments_spell_with_escapes_does_not_reach_the_tool(streaming: bool, protocol: Any) -> None:
    received: list[str] = []

    @tool(tier="observe", effect="pure")
    async def weather(city: str) -> str:
        received.append(city)
        return "sunny"

    arguments = json.dumps({"city": f"{KEY}\n"}).replace("-", "\\u002d")
    assert KEY not in arguments
    first: dict[str, Any] = {"content": f"Thought: I ask.\nAction: weather\nAction Input: {arguments}"}
    reason = "stop"
    if protocol == "native":
        first, reason = {"content": None, "tool_calls": [{"index": 0, **call(arguments)}]}, "tool_calls"
    second = {"content": "FINAL_ANSWER: done"}
    if streaming:
        script = [streamed(chunk(message), chunk(finish=end)) for message, end in ((first, reason), (second, "stop"))]
    else:
        script = [whole(first, finish=reason), whole(second)]
    config = AgentConfig(model="m", streaming=streaming, protocol=protocol)
    async with (
        Loopback(script) as server,
        provider(server) as openai,
        AgentRuntime(config, provider=openai, tools=[weather]) as runtime,
    ):
        result = await (await runtime.session("a")).send("Hi")
    assert result.text.endswith("done")
    assert received == ["[redacted]\n"]


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_run_with_a_tool_gives_the_signature_back(streaming: bool) -> None:
    signature: dict[str, Any] = {"extra_content": {"google": {"thought_signature": "s1"}}}
    used = call('{"city": "Lisbon"}', **signature)
    if streaming:
        script = [
            streamed(chunk({"tool_calls": [used]}), chunk(finish="stop")),
            streamed(chunk({"content": "Sunny."}), chunk(finish="stop")),
        ]
    else:
        script = [whole({"content": None, "tool_calls": [used]}), whole({"content": "Sunny."})]
    config = AgentConfig(model="gemini", streaming=streaming)
    async with Loopback(script) as server, provider(server) as ours:
        async with AgentRuntime(config, provider=ours, tools=[weather]) as runtime:
            result = await (await runtime.session("alice")).send("Weather in Lisbon?")
        messages = server.requests[1].json()["messages"]
    assert (result.text, ran) == ("Sunny.", ["Lisbon"])
    (sent,) = messages[2]["tool_calls"]
    assert sent == {**used, "id": sent["id"], "function": {"name": "weather", "arguments": '{"city":"Lisbon"}'}}
    assert messages[3] == {"role": "tool", "tool_call_id": sent["id"], "content": "Lisbon: sunny"}


async def test_case_b01_b04_b06_b08_what_models_get_wrong_does_not_break_a_session() -> None:
    one, two = (call(json.dumps({"city": city}), id=city) for city in ("Oslo", "Rome"))
    script = [
        streamed(chunk({"tool_calls": [one]}), chunk({"tool_calls": [one, two]}), chunk(finish="tool_calls")),
        streamed(chunk({"tool_calls": [{"index": 0, **call('{"city": "/a')}]}), chunk(finish="tool_calls")),
        streamed(chunk({"tool_calls": [{"index": 0, **call("")}]}), chunk(finish="tool_calls")),
        streamed(
            chunk({"tool_calls": [call('{"steps": "[{\\"a\\": \\"b\\"}]", "note": "[1]"}', name="plan")]}),
            chunk(finish="tool_calls"),
        ),
        streamed(chunk({"content": "Done."}), chunk(finish="stop")),
    ]
    async with Loopback(script) as server, provider(server) as ours:
        config = AgentConfig(model="m", streaming=True)
        async with AgentRuntime(config, provider=ours, tools=[weather, plan]) as runtime:
            result = await (await runtime.session("alice")).send("Go")
        messages = server.requests[-1].json()["messages"]
    assert result.outcome == Completed()
    assert sorted(ran) == ["Oslo", "Rome", "[1]"]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    assert results[:2] == ["Oslo: sunny", "Rome: sunny"]
    assert all(text.startswith("Error: ") for text in results[2:4])
    assert results[4] == "1 steps"


async def test_case_d07_of_an_answer_that_was_cut_no_call_runs() -> None:
    calls = [{"index": 0, **call('{"city": "Oslo"}')}, {"index": 1, **call('{"city": "Ro', id="call_2")}]
    script = [
        streamed(chunk({"tool_calls": calls}), chunk(finish="length")),
        streamed(chunk({"content": "Done."}), chunk(finish="stop")),
    ]
    async with Loopback(script) as server, provider(server) as ours:
        async with AgentRuntime(AgentConfig(model="m", streaming=True), provider=ours, tools=[weather]) as runtime:
            result = await (await runtime.session("alice")).send("Go")
        messages = server.requests[1].json()["messages"]
    assert (result.text, ran) == ("Done.", [])
    assert [message["role"] for message in messages[2:]] == ["assistant", "tool", "tool"]


async def test_case_d01_an_empty_answer_leaves_no_empty_message_behind() -> None:
    script = [whole({"content": ""}), whole({"content": None}), whole({"content": "Here."}), whole({"content": "Yes."})]
    async with Loopback(script) as server, provider(server) as ours:
        async with AgentRuntime(AgentConfig(model="m"), provider=ours) as runtime:
            session = await runtime.session("alice")
            assert (await session.send("Anyone?")).text == "Here."
            await session.send("Sure?")
        sent = [request.json()["messages"] for request in server.requests]
    assert all(message["content"].strip() for messages in sent for message in messages)
    assert [message["role"] for message in sent[3]] == ["system", "user", "assistant", "user"]


async def test_a_run_fails_with_the_reason_that_the_server_gives() -> None:
    error = {
        "error": {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"}
    }
    async with (
        Loopback([json_answer(error, status=401)]) as server,
        provider(server) as ours,
        AgentRuntime(AgentConfig(model="m"), provider=ours) as runtime,
    ):
        result = await (await runtime.session("alice")).send("Go")
    assert isinstance(result.outcome, Failed)
    assert "Incorrect API key provided" in result.outcome.error.message
