"""What is known of the servers that speak the two APIs, as the table in `docs/providers.md` tells it."""

import json
from typing import Any

import httpx
import pytest

from refold import Message, ModelRequest, ThinkingBlock
from refold.providers import AnthropicProvider, OpenAIProvider
from tests.providers.anthropic_messages import body_of, message
from tests.providers.chat_completions import completion
from tests.providers.conversation import assistant, call, result, user

CANCELLED = (
    user("Go"),
    assistant(ThinkingBlock(thinking="hm"), call("call_2_0")),
    user(result("call_2_0", "Cancelled by user", error=True), "And now?"),
)


async def sent(
    kind: type[OpenAIProvider | AnthropicProvider], url: str, history: tuple[Message, ...] = CANCELLED, **options: Any
) -> dict[str, Any]:
    """Return the body of the request that a provider sends to a server."""
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        hello = completion({"role": "assistant", "content": "Hi"})
        return httpx.Response(200, json=json.loads(hello if kind is OpenAIProvider else body_of(HELLO)))

    transport = httpx.MockTransport(answer)
    request = ModelRequest(model="m", system_prompt="", messages=history, max_tokens=9)
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
