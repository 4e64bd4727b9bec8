"""A plain function is a provider: plain or async, of the prompt or the request, with a text or a response."""

import functools
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from refold import AgentConfig, AgentRuntime, ConfigError, Failed, ModelRequest, ModelResponse, say, tool
from refold.providers import FallbackProvider, FunctionProvider, ReActProvider

HERE = threading.current_thread()
CONFIG = AgentConfig(model="m", system_prompt="Be brief.")


def of_prompt(prompt: str) -> str:
    assert threading.current_thread() is not HERE, "it may block"
    return f"<{prompt}>"


async def of_prompt_async(text: str) -> str:
    return f"<{text}>"


def of_request(given: ModelRequest) -> ModelResponse:
    return say(f"<{given.system_prompt}|{given.messages[-1].text}>")


async def of_request_async(request):  # type: ignore[no-untyped-def]
    return say(f"<{request.system_prompt}|{request.messages[-1].text}>")


class Asked:
    async def __call__(self, prompt: str) -> str:
        return f"<{prompt}>"


FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "plain": (of_prompt, "<Be brief.\n\nHello>"),
    "async": (of_prompt_async, "<Be brief.\n\nHello>"),
    "lambda": (lambda prompt: f"<{prompt}>", "<Be brief.\n\nHello>"),
    "lambda of a coroutine": (lambda prompt: of_prompt_async(prompt), "<Be brief.\n\nHello>"),
    "partial": (functools.partial(lambda mark, prompt: mark + prompt, ">"), ">Be brief.\n\nHello"),
    "object": (Asked(), "<Be brief.\n\nHello>"),
    "request": (of_request, "<Be brief.|Hello>"),
    "async request": (of_request_async, "<Be brief.|Hello>"),
}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("how", FUNCTIONS)
async def test_a_function_answers(how: str, streaming: bool) -> None:
    function, answer = FUNCTIONS[how]
    config = AgentConfig(model="m", system_prompt="Be brief.", streaming=streaming)
    async with AgentRuntime(config, provider=function) as runtime:
        assert (await (await runtime.session("a")).send("Hello")).text == answer
        assert isinstance(runtime.provider, FunctionProvider)


async def test_a_prompt_tells_the_whole_conversation_and_serves_react_and_fallback() -> None:
    prompts: list[str] = []

    @tool(tier="observe")
    def look(at: str) -> str:
        """Look."""
        return f"saw {at}"

    def model(prompt: str) -> str:
        prompts.append(prompt)
        return "Action: FINAL_ANSWER Seen." if "saw x" in prompt else "Action: look\nAction Input: x"

    def down(prompt: str) -> str:
        raise ConnectionError("down")

    provider = ReActProvider(FallbackProvider([down, (model, "other")]))
    async with AgentRuntime(CONFIG, provider=provider, tools=[look]) as runtime:
        result = await (await runtime.session("a")).send("What is x?")
    assert result.text == "Seen."
    assert "look" in prompts[0]
    assert prompts[0].endswith("What is x?")
    assert prompts[1].endswith("User: What is x?\n\nAgent: Action: look\nAction Input: x\n\nUser: Observation: saw x")


@pytest.mark.parametrize("wrong", [5, lambda prompt: 5, lambda prompt: None])
async def test_what_is_no_answer_fails_the_run_and_what_takes_no_prompt_is_refused(wrong: Any) -> None:
    if not callable(wrong):
        here = f"{__name__}.test_what_is_no_answer_fails_the_run_and_what_takes_no_prompt_is_refused.<locals>.<lambda>"
        unfit: list[tuple[Any, str]] = [
            (wrong, "int has none"),
            (lambda: "x", f"and {here} does not: too many"),
            (lambda a, b: "x", f"and {here} does not: missing"),
            (functools.partial(print, file=None, wrong=1), "and functools.partial does not: "),
            (dict, "the class dict has none"),
        ]
        for given, words in unfit:
            with pytest.raises(ConfigError, match=re.escape(words)):
                AgentRuntime(CONFIG, provider=given)
        return
    async with AgentRuntime(CONFIG, provider=wrong) as runtime:
        outcome = (await (await runtime.session("a")).send("Hello")).outcome
    assert isinstance(outcome, Failed)
    assert outcome.error.kind == "provider"


def test_provider_policy_and_approval_can_be_read_in_both_faces() -> None:
    def nothing(*_: Any) -> None:
        return None

    runtime = AgentRuntime(CONFIG, provider=of_prompt, policy=nothing, approval=nothing)
    assert (runtime.policy, runtime.approval) == (nothing, nothing)
    with runtime as sync:
        assert (sync.provider, sync.policy, sync.approval) == (runtime.provider, nothing, nothing)
