"""Runs whose provider dies in mid-answer, or asks for a pause: resumed, and kept to.

What a run does about a call that failed is tested in `tests/conformance/runs/test_retries.py`.
"""

import asyncio

import pytest

from refold import ActorStopped, AgentConfig, AgentRuntime, Completed, RetryPolicy
from refold.actors import ManualClock
from refold.events.session.events import ModelFailed, RetryScheduled
from tests.conformance.sessions import Seen
from tests.providers.letter_format import END, piece, served
from tests.providers.loopback import End, event_stream, json_answer


async def test_a_run_whose_provider_died_goes_on_when_it_is_back(tmp_path: object) -> None:
    log = f"{tmp_path}/events.db"
    config = AgentConfig(model="letter-1", streaming=True, retry=RetryPolicy(attempts_max=9, base_s=3600, max_s=3600))
    async with served(event_stream(piece(text="half an ans"), End.CLOSE)) as (server, provider):
        runtime = await AgentRuntime(config, provider=provider, log=log).open()
        run = asyncio.create_task((await runtime.session("a")).send("hello", key="k"))
        await server.until(lambda: server.opened == 1 and server.open == 0)
        await runtime.close()
        with pytest.raises(ActorStopped):
            await run
    clock = ManualClock(4_000_000_000_000_000)
    async with (
        served(event_stream(piece(text="whole"), END)) as (_, provider),
        AgentRuntime(config, provider=provider, log=log, clock=clock, ask_timeout_s=300) as runtime,
    ):
        session = await runtime.session("a")
        resumed = asyncio.create_task(session.send("hello", key="k"))
        async with asyncio.timeout(60):
            while not resumed.done():
                if clock.waiting():
                    await clock.advance(clock.waiting()[0])
                await asyncio.sleep(0)
        assert (resumed.result().outcome, resumed.result().text) == (Completed(), "whole")
        history = await session.history()
    assert [message.text for message in history] == ["hello", "whole"]  # The half answer is not history.


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_pause_that_the_host_asks_for_is_kept(streaming: bool) -> None:
    clock = ManualClock()
    config = AgentConfig(model="letter-1", streaming=streaming, retry=RetryPolicy(base_s=2, jitter=0))
    script = [json_answer({}, status=429, headers={"retry-after": "45"}), json_answer({"text": "at last"})]
    async with served(*script) as (server, provider), AgentRuntime(config, provider=provider, clock=clock) as runtime:
        session = await runtime.session("a")
        seen = Seen(runtime, session)
        run = asyncio.create_task(session.send("hello"))
        await seen.first(RetryScheduled)
        await clock.advance(44)
        assert len(server.requests) == 1
        await clock.advance(1)
        assert (await run).text == "at last"
        failures = [event.event async for event in session.events() if isinstance(event.event, ModelFailed)]
    assert [(failure.kind, failure.retryable) for failure in failures] == [("rate_limit", True)]
