"""Runs whose provider cannot be reached, or dies after a while: retried as configured, ended, resumed."""

import asyncio

import pytest

from refold import (
    ActorStopped,
    AgentConfig,
    AgentRuntime,
    Completed,
    Failed,
    ModelRequest,
    ModelResponse,
    Provider,
    RetryPolicy,
    RunResult,
    ScriptedProvider,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.session.events import ModelFailed, RetryScheduled, ToolCallCompleted
from tests.conformance.sessions import Seen
from tests.providers.letter_format import END, LetterProvider, piece
from tests.providers.loopback import End, Loopback, event_stream, json_answer

RETRY = RetryPolicy(attempts_max=3, base_s=2, jitter=0)


@tool(tier="observe", effect="pure")
async def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing at {place}"


async def ended(run: "asyncio.Task[RunResult]", clock: ManualClock) -> RunResult:
    """Let time pass whenever a retry waits for it, until the run ends."""
    async with asyncio.timeout(60):
        while not run.done():
            if clock.waiting():
                await clock.advance(clock.waiting()[0])
            await asyncio.sleep(0)
    return run.result()


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_provider_that_always_refuses_connections(streaming: bool) -> None:
    async with Loopback() as server:
        url = server.url
    clock = ManualClock()
    config = AgentConfig(model="letter-1", streaming=streaming, retry=RETRY)
    async with LetterProvider(url) as provider, AgentRuntime(config, provider=provider, clock=clock) as runtime:
        session = await runtime.session("a")
        result = await ended(asyncio.create_task(session.send("hello")), clock)
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "provider"
        assert "ProviderError" in result.outcome.error.message
        assert url.removeprefix("http://") in result.outcome.error.message
        failures = [event.event async for event in session.events() if isinstance(event.event, ModelFailed)]
    assert [(failure.kind, failure.retryable) for failure in failures] == [("connection", True)] * 3


class Dying(Provider):
    """Answers well for a while, and then is a host that is gone."""

    def __init__(self, good: ScriptedProvider, calls: int, gone: Provider) -> None:
        self._good = good
        self._left = calls
        self._gone = gone

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self._left -= 1
        return await (self._good if self._left >= 0 else self._gone).complete(request)


async def test_a_provider_that_dies_after_good_calls_loses_nothing_that_was_done() -> None:
    async with Loopback() as server:
        url = server.url
    clock = ManualClock()
    good = ScriptedProvider([use("look", {"place": "left"}), use("look", {"place": "right"})])
    config = AgentConfig(model="letter-1", retry=RETRY)
    async with LetterProvider(url) as gone:
        provider = Dying(good, 2, gone)
        async with AgentRuntime(config, provider=provider, tools=[look], clock=clock) as runtime:
            session = await runtime.session("a")
            result = await ended(asyncio.create_task(session.send("look around")), clock)
            assert isinstance(result.outcome, Failed)
            assert result.outcome.error.kind == "provider"
            done = [event.event async for event in session.events() if isinstance(event.event, ToolCallCompleted)]
            assert len(done) == 2
            texts = [
                block.text for message in await session.history() for block in message.content if hasattr(block, "text")
            ]
            assert {"nothing at left", "nothing at right"} <= set(texts)


async def test_a_run_whose_provider_died_goes_on_when_it_is_back(tmp_path: object) -> None:
    log = f"{tmp_path}/events.db"
    config = AgentConfig(model="letter-1", streaming=True, retry=RetryPolicy(attempts_max=9, base_s=3600, max_s=3600))
    script = [event_stream(piece(text="half an ans"), End.CLOSE)]
    async with Loopback(script) as server, LetterProvider(server.url) as provider:
        runtime = await AgentRuntime(config, provider=provider, log=log).open()
        run = asyncio.create_task((await runtime.session("a")).send("hello", key="k"))
        await server.until(lambda: server.opened == 1 and server.open == 0)
        await runtime.close()
        with pytest.raises(ActorStopped):
            await run
    clock = ManualClock(4_000_000_000_000_000)
    async with (
        Loopback([event_stream(piece(text="whole"), END)]) as server,
        LetterProvider(server.url) as provider,
        AgentRuntime(config, provider=provider, log=log, clock=clock) as runtime,
    ):
        session = await runtime.session("a")
        result = await ended(asyncio.create_task(session.send("hello", key="k")), clock)
        assert isinstance(result.outcome, Completed)
        assert result.text == "whole"
        history = await session.history()
    assert [message.text for message in history] == ["hello", "whole"]  # The half answer is not history.


async def test_a_pause_that_the_host_asks_for_is_kept() -> None:
    clock = ManualClock()
    config = AgentConfig(model="letter-1", retry=RETRY)
    script = [json_answer({}, status=429, headers={"retry-after": "45"}), json_answer({"text": "at last"})]
    async with (
        Loopback(script) as server,
        LetterProvider(server.url) as provider,
        AgentRuntime(config, provider=provider, clock=clock) as runtime,
    ):
        session = await runtime.session("a")
        seen = Seen(runtime, session)
        run = asyncio.create_task(session.send("hello"))
        await seen.first(RetryScheduled)
        await clock.advance(44)
        assert len(server.requests) == 1
        await clock.advance(1)
        result = await run
    assert result.text == "at last"
