"""A provider's window: whatever the estimate was, requests are shortened until they fit or nothing more can go."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold import (
    AgentConfig,
    AgentRuntime,
    Completed,
    Failed,
    ModelRequest,
    ModelResponse,
    ProviderError,
    Session,
    Summarising,
    TextBlock,
    TokenWindow,
    Usage,
    say,
    tool,
    use,
)
from refold.events.model.context_window import ContextWindow, about_tokens
from refold.events.session.events import ModelResponded
from refold.replay import recorded_request, replay

NOTHING_MORE = "nothing more of the conversation can be left out"

SCRIPTS = {"Chinese": "茶", "English": "tea ", "Russian": "чай ", "emoji": "🍵", "code": "{}();", "Arabic": "شاي "}


class Small:
    """A model with a window of so many characters, whose tokenizer has a token for each.

    Args:
        window: characters of a request, the tools' schemas left out.
        answer: what it says to a request that fits.
    """

    def __init__(self, window: int, answer: Callable[[ModelRequest], ModelResponse] = lambda _: say("ok")) -> None:
        self.window = window
        self.answer = answer
        self.sizes: list[int] = []

    async def complete(self, request: ModelRequest) -> ModelResponse:
        size = len(request.system_prompt) + sum(len(characters_of(message)) for message in request.messages)
        self.sizes.append(size)
        if size > self.window:
            raise ProviderError(f"maximum context length is {self.window}", kind="context_too_long", status=400)
        answer = self.answer(request)
        return ModelResponse(
            content=answer.content, stop_reason=answer.stop_reason, usage=Usage(input_tokens=size, output_tokens=1)
        )


def characters_of(message: Any) -> str:
    return "".join(
        block.text if isinstance(block, TextBlock) else "".join(part.text for part in getattr(block, "content", ()))
        for block in message.content
    )


def runtime_with(provider: Any, context: ContextWindow | None, log: Any = ":memory:", **more: Any) -> AgentRuntime:
    return AgentRuntime(AgentConfig(model="m", system_prompt="", **more), provider=provider, context=context, log=log)


WINDOWS: dict[str, Callable[[], ContextWindow | None]] = {
    "no window": lambda: None,
    "a window": lambda: TokenWindow(1500),
    "summaries": lambda: Summarising(1500),
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("context", WINDOWS)
async def test_case_t41_no_session_is_stuck_whatever_the_script(script: str, context: str) -> None:
    provider = Small(2000)
    async with runtime_with(provider, WINDOWS[context]()) as runtime:
        session = await runtime.session("a")
        text = (SCRIPTS[script] * 300)[:300]
        outcomes = [(await session.send(text)).outcome for _ in range(20)]
    assert outcomes == [Completed()] * 20
    assert sum(size > provider.window for size in provider.sizes) <= 4, "what was found too long is remembered"


async def test_in_the_middle_of_a_run_the_oldest_results_are_left_out(tmp_path: Path) -> None:
    @tool(tier="observe", effect="pure")
    def read(size: int) -> str:
        return "x" * size

    reading = ModelResponse(content=(use("read", {"size": 900}),), stop_reason="tool_use")
    script = iter([reading, reading, reading, say("Read.")])
    provider, log = Small(1500, lambda _: next(script)), tmp_path / "events.db"
    config = AgentConfig(model="m", system_prompt="s" * 300)
    async with AgentRuntime(config, provider=provider, tools=[read], log=log) as runtime:
        result = await (await runtime.session("a")).send("Read on")
        assert (result.outcome, result.text) == (Completed(), "Read.")
        assert provider.sizes[-1] == 300 + len("Read on") + 900
    (await replay(log)).raise_for_divergence()


@pytest.mark.parametrize("context", WINDOWS)
async def test_what_is_too_long_by_itself_fails_and_says_so_and_the_next_input_is_tried_anew(context: str) -> None:
    async with runtime_with(Small(2000), WINDOWS[context]()) as runtime:
        session = await runtime.session("a")
        failed = (await session.send("茶" * 2001)).outcome
        assert isinstance(failed, Failed)
        assert failed.error.kind == "context_too_long" or NOTHING_MORE in str(failed.error)
        assert [(await session.send("And now?")).outcome for _ in range(2)] == [Completed()] * 2


@pytest.mark.parametrize("context", WINDOWS)
async def test_a_result_that_is_too_long_by_itself_fails_its_run_and_no_later_one(context: str, tmp_path: Path) -> None:
    @tool(tier="observe", effect="pure")
    def read() -> str:
        return "x" * 3000

    script = iter([ModelResponse(content=(use("read", {}),), stop_reason="tool_use"), *[say("ok")] * 9])
    provider, log = Small(2000, lambda _: next(script)), tmp_path / "events.db"
    config = AgentConfig(model="m", system_prompt="s" * 900)
    async with AgentRuntime(config, provider=provider, tools=[read], log=log, context=WINDOWS[context]()) as runtime:
        session = await runtime.session("a")
        failed = (await session.send("Read it")).outcome
        assert isinstance(failed, Failed)
        assert NOTHING_MORE in str(failed.error)
        assert [(await session.send("hi")).outcome for _ in range(4)] == [Completed()] * 4
    (await replay(log)).raise_for_divergence()


async def test_a_request_that_was_shortened_is_shown_as_it_left_with_why(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    provider = Small(700)
    async with runtime_with(provider, None, log) as runtime:
        session = await runtime.session("a")
        for _ in range(4):
            await session.send("x" * 200)
        versions = [event.version async for event in session.events() if isinstance(event.event, ModelResponded)]
        shown = await recorded_request(log, "a", versions[-1])
    assert sum(len(message.text) for message in shown.request.messages) == provider.sizes[-1]
    assert any("too long" in note for note in shown.prepared.notes)
    assert (await replay(log)).divergences == ()


async def test_the_providers_count_corrects_the_estimate() -> None:
    """Case T46: a window in tokens holds for a tokenizer that needs four times as many as the estimate says."""
    provider = Small(10**9)
    async with runtime_with(provider, TokenWindow(1000)) as runtime:
        session = await runtime.session("a")
        for _ in range(30):
            await session.send("code " * 20)
    assert max(provider.sizes[-15:]) <= 1000
    assert provider.sizes[-1] >= 700


def test_tokens_are_estimated_by_script() -> None:
    assert [about_tokens(text) for text in ("", "abcd", "我们今天", "чайчай", "🍵🍵", "한국어", "日本のお茶")] == [
        0,
        1,
        4,
        3,
        2,
        3,
        5,
    ]
    assert about_tokens("tea 茶") == 2


texts = st.builds(
    lambda script, size: (SCRIPTS[script] * size)[:size], st.sampled_from(sorted(SCRIPTS)), st.integers(1, 700)
)


@settings(max_examples=25)
@given(
    window=st.integers(200, 1500),
    context=st.none() | st.integers(20, 2000).map(TokenWindow) | st.integers(20, 2000).map(Summarising),
    inputs=st.lists(texts, min_size=1, max_size=12),
)
def test_every_input_completes_or_fails_since_nothing_more_can_go(
    window: int, context: ContextWindow | None, inputs: list[str]
) -> None:
    async def talk() -> None:
        async with runtime_with(Small(window), context) as runtime:
            session: Session = await runtime.session("a")
            for text in inputs:
                outcome = (await session.send(text)).outcome
                if len(text) > window:
                    assert isinstance(outcome, Failed)
                    assert NOTHING_MORE in str(outcome.error)
                else:
                    assert outcome == Completed()

    asyncio.run(talk())
