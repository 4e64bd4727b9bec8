"""Sessions that are idle leave memory, and nobody who talks to them can tell."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    Completed,
    Deny,
    Failed,
    ModelRequest,
    RetryPolicy,
    RunResult,
    Session,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.core.errors import ProviderError
from refold.stores import EventStore
from tests.conformance.sessions import HeldAnswer, checked_log, requests_of, runtime_of


@pytest.fixture(params=["memory", "file"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    async with checked_log(request.param, tmp_path) as store:
        yield store


HOURLY = RetryPolicy(base_s=3_600, max_s=3_600, jitter=0)

BROKEN = ProviderError("broken", kind="server", retryable=True)


@tool(tier="confirm", effect="once")
def pay(amount: int) -> str:
    return f"paid {amount}"


def echo(request: ModelRequest) -> str:
    """Answer with what was said first and last."""
    return f"{request.messages[0].text} ... {request.messages[-1].text}"


def live(runtime: AgentRuntime) -> list[str]:
    return [address for address in runtime.system.live() if address.startswith("session/")]


async def idle(clock: ManualClock) -> None:
    await clock.advance(61)


async def sent(session: Session, clock: ManualClock, text: str = "go") -> "asyncio.Task[RunResult]":
    """Send an input, and return when nothing goes on."""
    sending = asyncio.ensure_future(session.send(text))
    await clock.settle()
    return sending


async def test_an_idle_session_is_let_go_and_knows_everything_when_it_is_spoken_to_again(log: EventStore) -> None:
    clock = ManualClock()
    async with runtime_of(log, echo, echo, clock=clock) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("one")).text == "one ... one"
        await clock.advance(59)
        assert live(runtime) == ["session/alice"]
        await clock.advance(1)
        assert live(runtime) == []
        assert [message.text for message in await session.history()] == ["one", "one ... one"]
        await idle(clock)
        assert (await session.send("two")).text == "one ... two"


@pytest.mark.slow
async def test_a_burst_over_many_sessions_in_turn_stays_within_the_limit(log: EventStore) -> None:
    async with runtime_of(log, *[echo] * 120, live_max=20) as runtime:
        most = 0
        for number in range(60):
            await (await runtime.session(f"s{number}")).send("one")
            most = max(most, len(runtime.system.live()))
        for number in range(60):
            assert (await (await runtime.session(f"s{number}")).send("two")).text == "one ... two"
        assert most <= 23  # The limit, those that come and go, and what is never let go.
        assert runtime.system.passivation.count > 90


@pytest.mark.parametrize("auto_resume", [True, False])
async def test_a_session_that_waits_for_approval_is_let_go_and_the_decision_finds_it(
    memory: EventStore, auto_resume: bool
) -> None:
    clock = ManualClock()
    script = [use("pay", {"amount": 3}), say("done")]
    async with runtime_of(memory, *script, tools=[pay], clock=clock, auto_resume=auto_resume) as runtime:
        session = await runtime.session("alice")
        sending = await sent(session, clock, "pay 3")
        await idle(clock)
        assert live(runtime) == []
        [waiting] = await session.approvals()
        await idle(clock)
        await session.decide(waiting.call, allow=True)
        await clock.settle()
        assert (await sending).text == "done"
        assert [type(item.event).__name__ async for item in session.events()].count("RunResumed") == 0


async def test_the_time_for_a_decision_passes_while_the_session_is_not_in_memory(memory: EventStore) -> None:
    clock = ManualClock()
    config = AgentConfig(model="m", approval_expiry_s=7_200)
    script = [use("pay", {"amount": 3}), echo]
    async with runtime_of(memory, *script, tools=[pay], clock=clock, config=config) as runtime:
        session = await runtime.session("alice")
        sending = await sent(session, clock, "pay 3")
        await clock.advance(3_600)
        assert live(runtime) == []
        await clock.advance(3_601)
        assert sending.done()
        assert (await sending).outcome == Completed()
        assert "nobody allowed the call in time" in str(requests_of(runtime)[1].messages[-1])


async def test_an_input_for_later_finds_a_session_that_is_not_in_memory_also_when_the_clock_is_set(
    memory: EventStore,
) -> None:
    clock = ManualClock()
    async with runtime_of(memory, echo, echo, clock=clock) as runtime:
        session = await runtime.session("alice")
        now = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
        await session.remind("soon", at=now + timedelta(hours=3))
        await session.remind("later", at=now + timedelta(hours=20))
        await clock.advance(3_600)
        assert live(runtime) == []
        await clock.advance(3_600 * 2 + 60)
        assert [request.messages[-1].text for request in requests_of(runtime)] == ["soon"]
        assert live(runtime) == []
        clock.jump(3_600 * 18)
        await clock.advance(61)
        assert [request.messages[-1].text for request in requests_of(runtime)] == ["soon", "later"]


async def test_a_session_at_work_stays_and_a_pause_before_a_retry_is_no_work(memory: EventStore) -> None:
    clock = ManualClock()
    slow = HeldAnswer("at last")
    config = AgentConfig(model="m", retry=HOURLY)
    async with runtime_of(memory, BROKEN, slow, clock=clock, config=config) as runtime:
        session = await runtime.session("alice")
        sending = await sent(session, clock)
        await clock.advance(3_000)
        assert live(runtime) == []
        await clock.advance(700)
        await idle(clock)
        at_work = live(runtime)
        slow.gate.set()
        await clock.settle()
        assert (await sending).text == "at last"
        assert [type(item.event).__name__ async for item in session.events()].count("RunResumed") == 0
    assert at_work == ["session/alice"]


async def test_a_run_that_goes_step_by_step_waits_outside_memory(memory: EventStore) -> None:
    clock = ManualClock()
    script = [use("pay", {"amount": 3}), say("done")]

    def no(_session: Any, _request: Any) -> Deny:
        return Deny("no")

    async with runtime_of(memory, *script, tools=[pay], clock=clock, approval=no) as runtime:
        session = await runtime.session("alice")
        assert (await session.step("go")).result is None
        await idle(clock)
        assert live(runtime) == []
        turn = await session.step()
        assert turn.result is not None
        assert turn.result.text == "done"


async def test_a_run_is_cancelled_that_waits_outside_memory(memory: EventStore) -> None:
    clock = ManualClock()
    async with runtime_of(memory, use("pay", {"amount": 3}), tools=[pay], clock=clock) as runtime:
        session = await runtime.session("alice")
        sending = await sent(session, clock, "pay 3")
        await idle(clock)
        cancelling = asyncio.ensure_future(session.cancel())
        await clock.settle()
        await cancelling
        assert type((await sending).outcome).__name__ == "Cancelled"
        assert "Cancelled by user" in str((await session.history())[-1])


async def test_a_closed_runtime_wakes_nobody(memory: EventStore) -> None:
    clock = ManualClock()
    config = AgentConfig(model="m", approval_expiry_s=7_200)
    runtime = runtime_of(memory, use("pay", {"amount": 3}), tools=[pay], clock=clock, config=config)
    async with runtime:
        session = await runtime.session("alice")
        sending = await sent(session, clock, "pay 3")
        await idle(clock)
        closing = asyncio.ensure_future(runtime.close())
        await clock.settle()
        await clock.advance(10)
        await closing
        with pytest.raises(Exception, match="closed"):
            await sending
    assert [seconds for seconds in clock.waiting() if seconds > 60] == []
    async with runtime_of(memory, echo, tools=[pay], clock=clock, config=config) as runtime:
        session = await runtime.session("alice")
        assert len(await session.approvals()) == 1
        await clock.advance(7_300)
        assert (await session.state_at()).run is None


async def test_a_run_timeout_comes_to_a_session_whose_run_waits_to_try_again(memory: EventStore) -> None:
    clock = ManualClock()
    config = AgentConfig(model="m", run_timeout_s=1_000, retry=HOURLY)
    async with runtime_of(memory, BROKEN, clock=clock, config=config) as runtime:
        sending = await sent(await runtime.session("alice"), clock)
        await clock.advance(900)
        assert live(runtime) == []
        await clock.advance(101)
        outcome = (await sending).outcome
        assert isinstance(outcome, Failed)
        assert outcome.error.kind == "run_timeout"
