"""What is known of the servers that speak the two APIs, as the table in `docs/providers.md` tells it."""

import base64
import json
from typing import Annotated, Any, Literal

import httpx
import msgspec
import pytest

import refold
from refold.providers import AnthropicProvider, OpenAIProvider
from refold.providers.http.closed_schema import closed_schema
from refold.stores import InMemoryStore
from tests.providers.anthropic_messages import body_of, message
from tests.providers.chat_completions import completion
from tests.providers.conversation import assistant, call, result, user

CANCELLED = (
    user("Go"),
    assistant(refold.ThinkingBlock(thinking="hm"), call("call_2_0")),
    user(result("call_2_0", "Cancelled by user", error=True), "And now?"),
)


def request_of(*history: refold.Message, model: str = "m", **more: Any) -> refold.ModelRequest:
    return refold.ModelRequest(model=model, system_prompt="", messages=history, **more)


async def sent(
    kind: type[OpenAIProvider | AnthropicProvider],
    url: str,
    history: tuple[refold.Message, ...] = CANCELLED,
    model: str = "m",
    output_schema: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the body of the request that a provider sends to a server."""
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        hello = completion({"role": "assistant", "content": "Hi"})
        return httpx.Response(200, json=json.loads(hello if kind is OpenAIProvider else body_of(HELLO)))

    transport = httpx.MockTransport(answer)
    request = request_of(*history, model=model, max_tokens=9, output_schema=output_schema)
    async with kind(
        api_key="sk-test-0123456789", base_url=url, transport=transport, environment={}, **options
    ) as asked:
        await asked.complete(request)
    return bodies[0]


HELLO = message({"type": "text", "text": "Hi"})


@pytest.mark.parametrize(
    ("host", "options", "roles", "limit"),
    [
        ("api.openai.com", {}, "user assistant tool user", "max_completion_tokens"),
        ("x.openai.azure.com", {}, "user assistant tool user", "max_completion_tokens"),
        ("api.mistral.ai", {}, "user assistant tool assistant user", "max_tokens"),
        ("api.mistral.ai", {"answer_after_tools": False}, "user assistant tool user", "max_tokens"),
        ("mistral.ai.example", {}, "user assistant tool user", "max_tokens"),
        ("openrouter.ai", {"answer_after_tools": True}, "user assistant tool assistant user", "max_tokens"),
    ],
)
async def test_a_server_of_chat_completions_is_asked_as_it_is_known_to_want(
    host: str, options: dict[str, Any], roles: str, limit: str
) -> None:
    body = await sent(OpenAIProvider, f"https://{host}/v1", **options)
    assert [each["role"] for each in body["messages"]] == roles.split()
    assert limit in body


@pytest.mark.parametrize(
    ("host", "options", "goes_back"),
    [
        ("api.anthropic.com", {}, False),
        ("gateway.example", {}, False),
        ("gateway.example", {"unsigned_thinking": True}, True),
        ("api.moonshot.ai", {}, True),
        ("api.deepseek.com", {"unsigned_thinking": False}, False),
        ("api.deepseek.com", {}, True),
    ],
)
async def test_unsigned_thinking_goes_to_servers_that_sign_nothing(
    host: str, options: dict[str, Any], goes_back: bool
) -> None:
    body = await sent(AnthropicProvider, f"https://{host}/anthropic", **options)
    thoughts = [{"type": "thinking", "thinking": "hm", "signature": ""}] if goes_back else []
    assert body["messages"][1]["content"][:-1] == thoughts


class Step(msgspec.Struct):
    """What is done."""

    what: Annotated[str, msgspec.Meta(min_length=1)]
    minutes: float | None = None


class Plan(msgspec.Struct):
    goal: Literal["tea", "soup"]
    steps: list[Step]
    next: "Plan | None" = None


class Loose(msgspec.Struct):
    words: dict[str, int]


def closed_object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    required = list(properties)
    return {"type": "object", **more, "properties": properties, "required": required, "additionalProperties": False}


def test_a_schema_is_closed_as_far_as_a_host_can_hold_a_model_to_it() -> None:
    number = {"anyOf": [{"type": "number"}, {"type": "null"}]}
    step = closed_object({"what": {"type": "string"}, "minutes": number}, description="What is done.", title="Step")
    plan = closed_object(
        {
            "goal": {"enum": ["soup", "tea"]},
            "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}},
            "next": {"anyOf": [{"$ref": "#/$defs/Plan"}, {"type": "null"}]},
        },
        title="Plan",
    )
    assert closed_schema(msgspec.json.schema(Plan)) == {**plan, "$defs": {"Plan": plan, "Step": step}}
    shapes: list[Any] = [Loose, int, list[int], dict[str, int], Any, Step | None, tuple[int, str]]
    for too_open in shapes:
        assert closed_schema(msgspec.json.schema(too_open)) is None


SCHEMA = msgspec.json.schema(Step)
HELD = {"type": "json_schema", "json_schema": {"name": "answer", "schema": closed_schema(SCHEMA), "strict": True}}


@pytest.mark.parametrize(
    ("kind", "host", "model", "options", "field", "expected"),
    [
        (OpenAIProvider, "api.openai.com", "gpt-x", {}, "response_format", HELD),
        (OpenAIProvider, "api.openai.com", "gpt-x", {"structured_output": "prompt"}, "response_format", None),
        (OpenAIProvider, "api.groq.com", "llama", {}, "response_format", None),
        (OpenAIProvider, "localhost", "qwen", {"structured_output": "json_schema"}, "response_format", HELD),
        (OpenAIProvider, "x.ai", "m", {"structured_output": "json_object"}, "response_format", {"type": "json_object"}),
        (AnthropicProvider, "api.anthropic.com", "claude-opus-5-5", {}, "output_config", True),
        (AnthropicProvider, "api.anthropic.com", "claude-sonnet-4-20250514", {}, "output_config", None),
        (AnthropicProvider, "api.anthropic.com", "claude-3-5-haiku-latest", {}, "output_config", None),
        (
            AnthropicProvider,
            "api.anthropic.com",
            "claude-opus-5-5",
            {"structured_output": False},
            "output_config",
            None,
        ),
        (AnthropicProvider, "gateway.example", "claude-opus-5-5", {}, "output_config", None),
        (AnthropicProvider, "gateway.example", "other", {"structured_output": True}, "output_config", True),
    ],
)
async def test_a_model_is_held_to_a_schema_where_the_server_has_it(
    kind: Any, host: str, model: str, options: dict[str, Any], field: str, expected: Any
) -> None:
    body = await sent(kind, f"https://{host}/v1", model=model, output_schema=SCHEMA, **options)
    format_ = {"format": {"type": "json_schema", "schema": closed_schema(SCHEMA)}}
    assert body.get(field) == (format_ if expected is True else expected)
    assert field not in await sent(kind, f"https://{host}/v1", model=model, **options)


@pytest.mark.parametrize("protocol", ["native", "react"])
async def test_an_agents_output_type_reaches_the_server_and_not_where_the_text_is_a_step(protocol: Any) -> None:
    formats: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        formats.append(json.loads(request.content).get("response_format"))
        said = '{"what": "boil", "minutes": null}'
        message = {"role": "assistant", "content": said if protocol == "native" else f"FINAL_ANSWER: {said}"}
        return httpx.Response(200, json=json.loads(completion(message)))

    provider = OpenAIProvider(api_key="sk-test-012345", transport=httpx.MockTransport(answer), environment={})
    config = refold.AgentConfig(model="gpt-x", protocol=protocol)
    async with provider, refold.AgentRuntime(config, provider=provider, output_type=Step) as runtime:
        session = await runtime.session("a")
        assert (await session.send("Tea")).parsed(Step) == Step(what="boil")
        assert formats == [HELD if protocol == "native" else None]
        assert list(SCHEMA["$defs"]["Step"]["properties"]) == ["what", "minutes"]


@refold.tool(effect="pure")
def plan() -> list[refold.DocumentBlock]:
    """Return the plan."""
    return [refold.DocumentBlock(data=b"%PDF-small", name="plan.pdf")]


async def test_documents_of_inputs_and_results_are_kept_and_sent_whole() -> None:
    bodies: list[dict[str, Any]] = []
    calls = message({"type": "tool_use", "id": "toolu_1", "name": "plan", "input": {}}, stop_reason="tool_use")
    answers = [calls, HELLO, HELLO]

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json=json.loads(body_of(answers[len(bodies) - 1])))

    large = refold.DocumentBlock(data=b"%PDF-" + bytes(100_000), name="large.pdf")
    given: list[str | refold.DocumentBlock | refold.ImageBlock] = [
        "Look",
        large,
        refold.ImageBlock(url="https://example.org/a.png"),
    ]
    store = InMemoryStore()
    provider = AnthropicProvider(api_key="sk-test-012345", transport=httpx.MockTransport(answer), environment={})
    for content in (given, ["And?"]):
        async with refold.AgentRuntime(
            refold.AgentConfig(model="m"), provider=provider, tools=[plan], log=store
        ) as runtime:
            session = await runtime.session("a")
            await session.send(content)
            history = await session.history()
    first, second = bodies[2]["messages"][0]["content"], bodies[2]["messages"][2]["content"]
    assert [block["type"] for block in first] == ["text", "document", "image"]
    assert len(base64.b64decode(first[1]["source"]["data"])) == 100_005
    assert second[0]["content"][0]["title"] == "plan.pdf"
    assert history[0].content[1:] == (large, given[2])
