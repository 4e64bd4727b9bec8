"""What cannot answer a model request is refused where it is given as a provider."""

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from refold import Agent, AgentConfig, AgentRuntime, ConfigError, ModelRequest, ModelResponse, ScriptedProvider, say
from refold.providers import FallbackProvider, ReActProvider, RecordingProvider

CONFIG = AgentConfig(model="m")


class Plain:
    def complete(self, request: ModelRequest) -> ModelResponse:
        return say("too early")


class Yielding:
    async def complete(self, request: ModelRequest) -> Any:
        yield say("in pieces")


WRONG: list[tuple[Any, str]] = [
    (ScriptedProvider, "an instance, and this is the class ScriptedProvider"),
    (Plain(), "that of Plain is a plain one; write `async def`"),
    (Plain, "an instance, and this is the class Plain"),
    (Yielding(), "that of Yielding is a plain one"),
    ("claude", "has an async method `complete`, and str has none"),
    (int, "and the class int has none"),
]
TAKERS: dict[str, Callable[[Any], object]] = {
    "runtime": lambda given: AgentRuntime(CONFIG, provider=given),
    "agent": lambda given: Agent(config=CONFIG, provider=given),
    "fallback": lambda given: FallbackProvider([ScriptedProvider([]), (given, "m")]),
    "react": ReActProvider,
}


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(("given", "says"), WRONG)
def test_what_cannot_answer_is_refused_where_it_is_given(taker: str, given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        TAKERS[taker](given)
    assert says in str(raised.value)


@pytest.mark.parametrize(("given", "says"), WRONG)
def test_what_cannot_answer_is_not_recorded(given: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        RecordingProvider(given, tmp_path / "calls.jsonl")
    assert says in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def traced(complete: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(complete)
    def call(*arguments: Any) -> Any:
        return complete(*arguments)

    return call


class Traced:
    @traced
    async def complete(self, request: ModelRequest) -> ModelResponse:
        return say("yes")


class HandsOn:
    def complete(self, request: ModelRequest) -> Awaitable[ModelResponse]:
        return ScriptedProvider([say("yes")]).complete(request)


class Held:
    def __init__(self, complete: Callable[..., Any]) -> None:
        self.complete = complete


@pytest.mark.parametrize(
    "given",
    [
        Traced(),
        HandsOn(),
        Held(ScriptedProvider([say("yes")]).complete),
        Held(functools.partial(Traced.complete, None)),
        Held(lambda request: HandsOn().complete(request)),
    ],
)
async def test_whatever_gives_an_awaitable_is_taken_however_it_is_made(given: Any) -> None:
    async with AgentRuntime(CONFIG, provider=given) as runtime:
        assert (await (await runtime.session("s")).send("go")).text == "yes"
