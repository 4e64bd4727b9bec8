"""A provider's window: however wrong the estimate was, requests are shortened until they fit or nothing more can go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refold
from refold.events.core.content import Role
from refold.events.model.context_window import SUMMARY_PROMPT, ContextWindow, about_tokens
from refold.events.session.events import ModelResponded
from refold.replay import recorded_request, replay
from tests.conformance.sessions import session_in

NOTHING_MORE = "nothing more of the conversation can be left out"

SCRIPTS = {"Chinese": "茶", "English": "tea ", "Russian": "чай ", "emoji": "🍵", "code": "{}();", "Arabic": "شاي "}


class Small:
    """A model with a window of so many characters, whose tokenizer has a token for each.

    Args:
        window: characters of a request.
        answer: what it says to a request that fits; a summary is short.
    """

    def __init__(
        self, window: int, answer: Callable[[refold.ModelRequest], refold.ModelResponse] = lambda _: refold.say("ok")
    ) -> None:
        self.window = window
        self.answer = answer
        self.sizes: list[int] = []
        self.requests: list[refold.ModelRequest] = []

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        parts: list[refold.Message | refold.ToolSpec] = [*request.messages, *request.tools]
        size = len(request.system_prompt) + sum(map(size_of, parts))
        self.sizes.append(size)
        self.requests.append(request)
        if size > self.window:
            raise refold.ProviderError(f"maximum context length is {self.window}", kind="context_too_long", status=400)
        answer = refold.say("They talked.") if request.system_prompt == SUMMARY_PROMPT else self.answer(request)
        return refold.ModelResponse(
            content=answer.content,
            stop_reason=answer.stop_reason,
            usage=refold.Usage(input_tokens=size, output_tokens=1),
        )

    @property
    def refused(self) -> int:
        return sum(size > self.window for size in self.sizes)

    @property
    def summaries(self) -> int:
        return sum(request.system_prompt == SUMMARY_PROMPT for request in self.requests)


class Streaming(Small):
    """The same, in pieces."""

    async def stream(self, request: refold.ModelRequest) -> AsyncIterator[refold.TextDelta | refold.ModelResponse]:
        answer = await self.complete(request)
        yield refold.TextDelta("o")
        yield answer


def size_of(part: refold.Message | refold.ToolSpec) -> int:
    if isinstance(part, refold.ToolSpec):
        return len(msgspec.json.encode((part.name, part.description, part.input_schema)))
    return sum(
        len(block.text)
        if isinstance(block, refold.TextBlock | refold.ToolResultBlock)
        else len(msgspec.json.encode(block.input))
        for block in part.content
        if isinstance(block, refold.TextBlock | refold.ToolResultBlock | refold.ToolUseBlock)
    )


def runtime_with(
    provider: Any, context: ContextWindow | None, log: Any = ":memory:", **more: Any
) -> refold.AgentRuntime:
    return refold.AgentRuntime(
        refold.AgentConfig(model="m", system_prompt="", **more), provider=provider, context=context, log=log
    )


WINDOWS: dict[str, Callable[[], ContextWindow | None]] = {
    "no window": lambda: None,
    "a window": lambda: refold.TokenWindow(1500),
    "summaries": lambda: refold.Summarising(1500),
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("context", WINDOWS)
async def test_case_t41_no_session_is_stuck_whatever_the_script(script: str, context: str) -> None:
    provider = Small(2000)
    async with session_in(runtime_with(provider, WINDOWS[context]()), "a") as (_, session):
        text = (SCRIPTS[script] * 300)[:300]
        outcomes = [(await session.send(text)).outcome for _ in range(20)]
    assert outcomes == [refold.Completed()] * 20
    assert provider.refused <= 4, "what was found too long is remembered"


async def test_in_the_middle_of_a_run_the_oldest_results_are_left_out(tmp_path: Path) -> None:
    @refold.tool(tier="observe", effect="pure")
    def read(size: int) -> str:
        return "x" * size

    script = iter([*[answer_with(refold.use("read", {"size": 900}))] * 3, refold.say("Read.")])
    provider, log = Small(1700, lambda _: next(script)), tmp_path / "events.db"
    config = refold.AgentConfig(model="m", system_prompt="s" * 300)
    async with refold.AgentRuntime(config, provider=provider, tools=[read], log=log) as runtime:
        result = await (await runtime.session("a")).send("Read on")
        assert (result.outcome, result.text) == (refold.Completed(), "Read.")
        assert [message.role for message in provider.requests[-1].messages] == ["user", "assistant", "user"]
    (await replay(log)).raise_for_divergence()


@pytest.mark.parametrize("context", WINDOWS)
async def test_what_is_too_long_by_itself_fails_and_says_so_and_the_next_input_is_tried_anew(context: str) -> None:
    async with session_in(runtime_with(Small(2000), WINDOWS[context]()), "a") as (_, session):
        failed = (await session.send("茶" * 2001)).outcome
        assert isinstance(failed, refold.Failed)
        assert failed.error.kind == "context_too_long" or NOTHING_MORE in str(failed.error)
        assert [(await session.send("And now?")).outcome for _ in range(2)] == [refold.Completed()] * 2


@pytest.mark.parametrize("context", WINDOWS)
async def test_a_result_that_is_too_long_by_itself_fails_its_run_and_no_later_one(context: str, tmp_path: Path) -> None:
    @refold.tool(tier="observe", effect="pure")
    def read() -> str:
        return "x" * 3000

    script = iter([answer_with(refold.use("read", {})), *[refold.say("ok")] * 9])
    provider, log = Small(2000, lambda _: next(script)), tmp_path / "events.db"
    config = refold.AgentConfig(model="m", system_prompt="s" * 900)
    async with refold.AgentRuntime(
        config, provider=provider, tools=[read], log=log, context=WINDOWS[context]()
    ) as runtime:
        session = await runtime.session("a")
        failed = (await session.send("Read it")).outcome
        assert isinstance(failed, refold.Failed)
        assert NOTHING_MORE in str(failed.error)
        assert [(await session.send("hi")).outcome for _ in range(4)] == [refold.Completed()] * 4
    (await replay(log)).raise_for_divergence()


async def test_a_request_that_was_shortened_is_shown_as_it_left_with_why(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    provider = Small(700)
    async with session_in(runtime_with(provider, None, log), "a") as (_, session):
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
    async with session_in(runtime_with(provider, refold.TokenWindow(1000)), "a") as (_, session):
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


@pytest.mark.parametrize("largest", [300, 1990])
async def test_a_window_that_is_set_far_too_wide_is_learned_for_summaries_too(largest: int, tmp_path: Path) -> None:
    """One input alone is too long for a summary; nevertheless few requests are refused, also after a restart."""
    provider, log = Small(2000), tmp_path / "events.db"
    for run in range(2):
        async with session_in(runtime_with(provider, refold.Summarising(100_000), log), "a") as (_, session):
            sizes = [300] * 5 + [largest] + [300] * 20
            assert [(await session.send("x" * size)).outcome for size in sizes] == [refold.Completed()] * len(sizes)
            refused, provider.sizes = provider.refused, []
            assert {len(message.text) for message in await session.history()} <= {*range(100), 300}, "all is summarised"
        assert refused <= (6, 3)[run]
    assert provider.summaries - refused >= 1
    (await replay(log)).raise_for_divergence()
    agent = refold.Agent(
        config=refold.AgentConfig(model="m", system_prompt=""), provider=provider, context=refold.Summarising(100_000)
    )
    (await replay(log, agent=agent)).raise_for_divergence()


def written(script: str, size: int) -> str:
    return (SCRIPTS[script] * size)[:size]


scripts, sizes = st.sampled_from(sorted(SCRIPTS)), st.integers(1, 700)
contexts = (
    st.none()
    | st.integers(20, 2000).map(refold.TokenWindow)
    | st.sampled_from([20, 300, 2000, 100_000]).map(
        lambda most: refold.Summarising(most, keep_tokens=max(1, most // 2))
    )
)


@pytest.mark.in_full
@given(
    model=st.sampled_from([Small, Streaming]),
    window=st.integers(200, 2500),
    told=st.tuples(scripts, st.integers(0, 90)),
    context=contexts,
    old=st.lists(st.tuples(scripts, sizes), max_size=30),
    inputs=st.lists(st.tuples(scripts, sizes, st.lists(sizes, max_size=4)), min_size=1, max_size=8),
)
def test_every_input_completes_or_fails_since_nothing_more_can_go(
    model: type[Small],
    window: int,
    told: tuple[str, int],
    context: ContextWindow | None,
    old: list[tuple[str, int]],
    inputs: list[tuple[str, int, list[int]]],
) -> None:
    """For any window: with tools, a prompt of so many hundredths of it, an old history, in the middle of runs."""
    left: list[dict[str, Any]] = []
    provider = model(window, lambda _: answer_with(refold.use("read", left.pop())) if left else refold.say("ok"))

    @refold.tool(tier="observe", effect="pure")
    def read(script: str, size: int) -> str:
        return written(script, size)

    async def talk() -> None:
        prompt = written(told[0], window * told[1] // 100)
        config = refold.AgentConfig(model="m", system_prompt=prompt, streaming=model is Streaming)
        async with refold.AgentRuntime(config, provider=provider, tools=[read], context=context) as runtime:
            session: refold.Session = await runtime.session("a")
            roles: list[Role] = ["user", "assistant"]
            texts = [refold.TextBlock(text=written(*one)) for one in 2 * old]
            history = [refold.Message(roles[place % 2], (text,)) for place, text in enumerate(texts)]
            if history:
                await session.import_history(history)
            for script, size, results in inputs:
                left[:] = [{"script": script, "size": length} for length in results]
                before = len(provider.sizes)
                result = await session.send(written(script, size))
                assert len(provider.sizes) - before <= ASKS_MAX * (len(results) + 1)
                least = len(prompt) + size_of(provider.requests[-1].tools[0]) + size
                if result.outcome == refold.Completed():
                    assert least <= window
                    continue
                assert isinstance(result.outcome, refold.Failed)
                assert NOTHING_MORE in str(result.outcome.error)
                assert least > window or results
                assert [message.role for message in provider.requests[-1].messages] in (
                    ["user"],
                    ["user", "assistant", "user"],
                ), "nothing but what is new is in it"
                assert provider.sizes[-1] > window

    asyncio.run(talk())


ASKS_MAX = 16
"""Most requests of one turn: the request, shortened five times, and as many for summaries, each of half as much."""


def answer_with(*calls: refold.ToolUse) -> refold.ModelResponse:
    return refold.ModelResponse(content=calls, stop_reason="tool_use")
