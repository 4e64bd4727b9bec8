"""`OpenAIProvider` on a loopback server: what it sends, and that it reads what the official client reads."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

import refold
from refold.events.model.configuration import ToolSpec
from refold.providers import OpenAIProvider
from refold.providers.http.settings import HttpTimeouts
from refold.providers.openai.provider import OpenAIFormat
from refold.providers.openai.request import OpenAISettings
from tests.providers.chat_completions import chunk, completion
from tests.providers.conversation import IMAGE, assistant, result, user
from tests.providers.conversation import call as used
from tests.providers.loopback import Loopback, Step, answer, event_stream, json_answer

KEY = "sk-test-0123456789abcdef"
NO_ENVIRONMENT: Mapping[str, str] = {}
ASK = refold.ModelRequest(model="gpt-x", system_prompt="Be brief.", messages=[user("Hi")])
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


def answers(*messages: tuple[dict[str, Any], str], streaming: bool = True) -> list[list[Step]]:
    """Return answers, each a message and why it ended."""
    if streaming:
        return [streamed(chunk(message), chunk(finish=end)) for message, end in messages]
    return [whole({"content": None, **message}, finish=end) for message, end in messages]


def call(arguments: str, *, name: str = "weather", id: str = "call_1", **more: object) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


async def run_of(
    script: list[list[Step]], text: str = "Go", *, streaming: bool = True, protocol: Any = "native"
) -> tuple[refold.RunResult, list[list[dict[str, Any]]]]:
    """Return how a run of an agent with tools ended, and the messages of each of its requests."""
    config = refold.AgentConfig(model="m", streaming=streaming, protocol=protocol)
    async with Loopback(script) as server, provider(server) as ours:
        async with refold.AgentRuntime(config, provider=ours, tools=[weather, plan]) as runtime:
            result = await (await runtime.session("alice")).send(text)
        return result, [request.json()["messages"] for request in server.requests]


async def test_it_asks_as_the_official_client_does_and_reads_what_that_reads() -> None:
    history = [user("Look", IMAGE), assistant(used("call_2_0", "look", {"x": "é"})), user(result("call_2_0", "ok"))]
    request = refold.ModelRequest(
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
    assert response == refold.ModelResponse(
        content=(refold.TextBlock(text="Hi"),),
        usage=refold.Usage(input_tokens=4, output_tokens=4, cache_read_tokens=5),
        model="gpt-x",
    )


async def test_a_server_on_this_machine_needs_no_key() -> None:
    async with Loopback([whole({"content": "Hi"})]) as server:
        async with provider(server, api_key=None) as ours:
            await ours.complete(refold.ModelRequest(model="m", system_prompt="", messages=ASK.messages, max_tokens=5))
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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"api_key": None}, "OPENAI_API_KEY"),
        ({"api_key": None, "base_url": "https://eu.api.openai.com/v1"}, "OPENAI_API_KEY"),
        ({"extra_body": {"messages": []}}, "messages"),
        ({"base_url": "ftp://host"}, "like https://host/path"),
        ({"base_url": "http://["}, "unencrypted"),
        ({"base_url": 5}, "base URL"),
        ({"headers": 5}, "headers"),
        ({"extra_body": [1]}, "extra_body"),
        ({"name": ""}, "name"),
        ({"max_tokens_field": "tokens"}, "max_tokens_field"),
        ({"return_reasoning": "thoughts"}, "return_reasoning"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"thoughts_in_text": "think"}, "thoughts_in_text"),
        ({"answer_after_tools": "yes"}, "answer_after_tools"),
        ({"include_usage": "yes"}, "include_usage"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    settings: dict[str, Any] = {"api_key": KEY, "environment": NO_ENVIRONMENT}
    with pytest.raises(refold.ConfigError, match=says):
        OpenAIProvider(**{"project": "p", **settings, **options})
    assert KEY not in repr(OpenAIProvider(**settings))


ran: list[str] = []


@refold.tool(effect="pure")
def weather(city: str, days: int = 1) -> str:
    """Return the weather of a city."""
    ran.append(city)
    return f"{city}: sunny"


@refold.tool(effect="pure")
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
    arguments = json.dumps({"city": f"{KEY}\n"}).replace("-", "\\u002d")
    assert KEY not in arguments
    first: dict[str, Any] = {"content": f"Thought: I ask.\nAction: weather\nAction Input: {arguments}"}
    reason = "stop"
    if protocol == "native":
        first, reason = {"content": None, "tool_calls": [{"index": 0, **call(arguments)}]}, "tool_calls"
    script = answers((first, reason), ({"content": "FINAL_ANSWER: done"}, "stop"), streaming=streaming)
    done, _ = await run_of(script, streaming=streaming, protocol=protocol)
    assert done.text.endswith("done")
    assert ran == ["[redacted]\n"]


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_run_with_a_tool_gives_the_signature_back(streaming: bool) -> None:
    signed = call('{"city": "Lisbon"}', extra_content={"google": {"thought_signature": "s1"}})
    script = answers(({"tool_calls": [signed]}, "stop"), ({"content": "Sunny."}, "stop"), streaming=streaming)
    done, requests = await run_of(script, streaming=streaming)
    assert (done.text, ran) == ("Sunny.", ["Lisbon"])
    _, _, called, answered = requests[1]
    (sent,) = called["tool_calls"]
    assert sent == {**signed, "id": sent["id"], "function": {"name": "weather", "arguments": '{"city":"Lisbon"}'}}
    assert answered == {"role": "tool", "tool_call_id": sent["id"], "content": "Lisbon: sunny"}


SLIP = {
    "message": "Failed to call a function. See 'failed_generation'.",
    "type": "invalid_request_error",
    "code": "tool_use_failed",
    "failed_generation": f"<function=weather>{KEY}",
}
OLLAMA_SLIP = {
    "error": {"message": "error parsing tool call: raw='{\"city\"', err=unexpected end", "type": "api_error"}
}


@pytest.mark.parametrize("streaming", [False, True])
async def test_case_t54_a_call_that_the_server_refuses_is_told_to_the_model_which_is_asked_again(
    streaming: bool,
) -> None:
    refusals = [json_answer({"error": SLIP}, status=400), json_answer(OLLAMA_SLIP, status=500)]
    if streaming:
        in_stream = f"event: error\ndata: {json.dumps({'error': {**SLIP, 'status_code': 400}})}\n\n".encode()
        refusals = [event_stream(in_stream), streamed(chunk({"content": "Let me"}), OLLAMA_SLIP)]
    script = [*refusals, *answers(({"content": "Sunny."}, "stop"), streaming=streaming)]
    done, requests = await run_of(script, streaming=streaming)
    assert done.text == "Sunny."
    told = next(message["content"] for message in requests[-1] if message["role"] == "user").split("\n\n")
    assert len(told) == 3
    assert "tool_use_failed" in told[1]
    assert "You wrote: <function=weather>[redacted]" in told[1]
    assert "error parsing tool call: raw='{\"city\"'" in told[2]
    failed, requests = await run_of(script[:1] * 5, streaming=streaming)
    assert isinstance(failed.outcome, refold.Failed)
    assert "3 answers in a row could not be used" in failed.outcome.error.message
    assert len(requests) == 3


async def test_case_t50_a_description_that_the_api_refuses_has_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tools = tuple(
        ToolSpec(name=name, description="x" * size, input_schema={}) for name, size in [("a", 1024), ("b", 1025)]
    )
    request = refold.ModelRequest(model="m", system_prompt="", messages=ASK.messages, tools=tools)
    wire_format = OpenAIFormat()
    for _ in range(2):
        wire_format.request(request, stream=False)
    assert caplog.messages == ["the description of the tool 'b' has 1025 characters; openai refuses more than 1024"]
    OpenAIFormat(OpenAISettings(description_characters_max=None)).request(request, stream=False)
    assert len(caplog.messages) == 1


async def test_case_b01_b04_b06_b08_what_models_get_wrong_does_not_break_a_session() -> None:
    one, two = (call(json.dumps({"city": city}), id=city) for city in ("Oslo", "Rome"))
    end = chunk(finish="tool_calls")
    planned = call('{"steps": "[{\\"a\\": \\"b\\"}]", "note": "[1]"}', name="plan")
    script = [
        streamed(chunk({"tool_calls": [one]}), chunk({"tool_calls": [one, two]}), end),
        streamed(chunk({"tool_calls": [{"index": 0, **call('{"city": "/a')}]}), end),
        streamed(chunk({"tool_calls": [{"index": 0, **call("")}]}), end),
        streamed(chunk({"tool_calls": [planned]}), end),
        streamed(chunk({"content": "Done."}), chunk(finish="stop")),
    ]
    done, requests = await run_of(script)
    assert done.outcome == refold.Completed()
    assert sorted(ran) == ["Oslo", "Rome", "[1]"]
    results = [message["content"] for message in requests[-1] if message["role"] == "tool"]
    assert results[:2] == ["Oslo: sunny", "Rome: sunny"]
    assert all(text.startswith("Error: ") for text in results[2:4])
    assert results[4] == "1 steps"
