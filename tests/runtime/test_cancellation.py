"""Cancellation through the public API, as far as it is in no row of the table of `tests.conformance.test_cancellation`.

A run that is cancelled ends as cancelled, once; each of its calls has one result; the log is durable before the caller
is told; and the next input on the session runs. Every test runs on the log in memory and on a file; the `log` fixture
checks and replays the log afterwards.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    CancellationToken,
    Cancelled,
    CommandRejected,
    ModelRequest,
    ScriptedProvider,
    Session,
    ToolContext,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.core.content import CANCELLED_TEXT
from refold.events.session.events import (
    RunCancelled,
    RunCompleted,
    ToolApprovalRequested,
    ToolCallStarted,
    ToolResultLate,
)
from refold.stores import EventStore
from tests.conformance.sessions import (
    EVIDENCE,
    WAYS_TO_CANCEL,
    Parked,
    Seen,
    abandoned_in,
    checked_log,
    results_of,
    runtime_of,
    types_of,
)


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.slow)])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A log that is checked and replayed when the test is over."""
    async with checked_log(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=list(WAYS_TO_CANCEL))
def cancel_by(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A way to send an input and cancel its run once `ready` returns; gives None where the caller is cancelled too."""
    return WAYS_TO_CANCEL[request.param]


async def assert_cancelled_and_usable(
    session: Session, provider: ScriptedProvider, outcome: Any, results: list[str]
) -> None:
    """Check what holds after every cancellation; the script's next answer must be "after"."""
    assert outcome in (Cancelled(), None)
    types = [kind for kind in await types_of(session) if kind not in EVIDENCE]
    assert types[-1] == "RunCancelled"
    assert not {"RunCompleted", "RunFailed"}.intersection(types)
    assert types.count("RunCancelled") == types.count("CancelRequested") == 1
    assert [block.text for block in await results_of(session)] == results
    history = await session.history()
    assert history[0].text == "go"
    assert (await session.send("more")).text == "after"
    assert list(provider.requests[-1].messages)[: len(history)] == history


async def test_case_b6_a_run_is_cancelled_in_the_middle_of_a_streamed_call(
    log: EventStore, cancel_by: Callable[..., Any]
) -> None:
    half = asyncio.Event()

    class Halting(ScriptedProvider):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
            async for item in super().stream(request):
                if len(self.requests) == 1 and item is not None:
                    yield item
                    half.set()
                    await asyncio.Event().wait()
                yield item

    provider = Halting([use("park", {"name": "long enough to be streamed"}), say("after")])
    config = AgentConfig(model="m", streaming=True)
    async with AgentRuntime(config, provider=provider, log=log) as runtime:
        session = await runtime.session("s")
        outcome = await cancel_by(session, half.wait)
        assert [message.role for message in await session.history()] == ["user"]
        await assert_cancelled_and_usable(session, provider, outcome, [])


async def test_a_cancel_with_a_key_means_its_first_run_for_ever(log: EventStore) -> None:
    parked = Parked()
    async with runtime_of(
        log, use("park", {"name": "a"}), use("park", {"name": "b"}), say("ok"), tools=[parked.park]
    ) as runtime:
        session = await runtime.session("s")
        first = asyncio.create_task(session.send("one"))
        await parked.until(1)
        await session.cancel(key="stop")
        assert (await first).outcome == Cancelled()
        second = asyncio.create_task(session.send("two"))
        await parked.until(2)
        await session.cancel(key="stop")
        parked.gate.set()
        assert (await second).text == "ok"


async def test_a_tool_that_watches_its_token_for_too_long_is_cancelled_after_half_the_grace(log: EventStore) -> None:
    clock, waiting, cleaned = ManualClock(), asyncio.Event(), asyncio.Event()

    @tool
    async def watch(context: ToolContext[Any]) -> str:
        """Look once and go on."""
        assert not context.cancel.cancelled
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        return "unreachable"

    async with runtime_of(log, use("watch"), tools=[watch], clock=clock, cancel_grace_s=4) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await waiting.wait()
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(RunCancelled)
        await clock.advance(1.9)
        assert not cleaned.is_set()
        await clock.advance(0.2)
        assert cleaned.is_set()
        await cancelling
        assert (await sending).outcome == Cancelled()
        assert await abandoned_in(log, "watch") == 0


async def test_a_cancelled_tool_that_is_silent_past_its_timeout_is_not_said_to_have_timed_out(log: EventStore) -> None:
    parked, clock = Parked(), ManualClock()

    @tool(name="ignore", timeout_s=2)
    async def short(name: str) -> str:
        """Ignore."""
        return await parked.ignore(name)

    async with runtime_of(log, use("ignore", {"name": "a"}), say("after"), tools=[short], clock=clock) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        await clock.settle()
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(RunCancelled)
        await clock.advance(4)
        assert not sending.done()
        await clock.advance(1.1)
        await cancelling
        assert (await sending).outcome == Cancelled()
        assert "ToolResultLate" not in await types_of(session)
        parked.gate.set()
        await seen.first(ToolResultLate)
        assert await abandoned_in(log, "ignore") == 1


async def test_two_calls_cancelled_before_their_bodies_begin_end_at_once(log: EventStore) -> None:
    parked, token = Parked(), CancellationToken()
    async with runtime_of(log, [use("park", {"name": name}) for name in "ab"], tools=[parked.park]) as runtime:
        session = await runtime.session("s")

        def when_started(recorded: Any) -> None:
            if isinstance(recorded.event, ToolCallStarted):
                token.cancel()

        runtime.subscribe(when_started)
        assert (await session.send("go", cancel=token)).outcome == Cancelled()
        assert [block.text for block in await results_of(session)] == [CANCELLED_TEXT] * 2


async def test_two_callers_with_one_key_of_whom_one_is_cancelled_keep_the_run(log: EventStore) -> None:
    parked = Parked()
    async with runtime_of(log, use("park", {"name": "a"}), say("done"), tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        first = asyncio.create_task(session.send("go", key="k"))
        await parked.until(1)
        second = asyncio.create_task(session.send("go", key="k"))
        await session.history()
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        parked.gate.set()
        assert (await first).text == "done"


@pytest.mark.parametrize("rounds", range(8))
async def test_a_caller_cancelled_at_any_moment_leaves_no_run_that_nobody_cancels(log: EventStore, rounds: int) -> None:
    async def never(request: ModelRequest) -> str:
        await asyncio.Event().wait()
        return "unreachable"

    async with runtime_of(log, never, say("after"), say("after")) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        for _ in range(rounds):
            await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert (await session.state_at()).run is None


# Approvals


@pytest.mark.parametrize("allow", [True, False])
async def test_a_call_that_needs_approval_runs_exactly_if_it_is_allowed(log: EventStore, allow: bool) -> None:
    ran: list[int] = []

    @tool(tier="confirm")
    async def pay(amount: int) -> str:
        """Pay."""
        ran.append(amount)
        return "paid"

    async with runtime_of(log, use("pay", {"amount": 5}), say("ok"), tools=[pay]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        (asked,) = await seen.first(ToolApprovalRequested)
        assert (asked.tool, asked.input, ran) == ("pay", {"amount": 5}, [])
        await session.decide(asked.call, allow=allow, reason="too much", key="d")
        await session.decide(asked.call, allow=allow, reason="too much", key="d")
        with pytest.raises(CommandRejected, match="does not wait"):
            await session.decide(asked.call, allow=not allow)
        with pytest.raises(CommandRejected, match="key 'd'"):
            await session.decide(asked.call, allow=not allow, key="d")
        assert (await sending).text == "ok"
        (result,) = await results_of(session)
    assert ran == ([5] if allow else [])
    assert (result.text, result.kind) == (("paid", None) if allow else ("too much", "denied"))


async def test_an_approval_waits_over_a_restart_without_asking_twice(log: EventStore) -> None:
    ran: list[str] = []

    @tool(tier="confirm")
    async def pay() -> str:
        """Pay."""
        ran.append("paid")
        return "paid"

    async with runtime_of(log, use("pay"), tools=[pay]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        (asked,) = await seen.first(ToolApprovalRequested)
    with pytest.raises(Exception, match="the runtime closed"):
        await sending
    async with runtime_of(log, say("ok"), tools=[pay]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        await session.decide(asked.call, allow=True)
        await seen.first(RunCompleted)
        assert (await types_of(session)).count("ToolApprovalRequested") == 1
    assert ran == ["paid"]


async def test_who_sends_again_what_was_just_cancelled_is_told_no_earlier_than_others(log: EventStore) -> None:
    begun, let_go = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Go on for a while, whatever happens."""
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "done all the same"

    provider = ScriptedProvider([use("stubborn", {}), say("never said")])
    async with AgentRuntime(
        AgentConfig(model="m"), provider=provider, tools=[stubborn], log=log, clock=ManualClock()
    ) as runtime:
        session = await runtime.session("s")
        first = asyncio.ensure_future(session.send("go", key="k"))
        await begun.wait()
        cancelling = asyncio.ensure_future(session.cancel())
        for _ in range(100_000):
            if "RunCancelled" in await types_of(session):
                break
            await asyncio.sleep(0)
        again = asyncio.ensure_future(session.send("go", key="k"))
        for _ in range(50):
            await asyncio.sleep(0)
        told = first.done() or again.done()
        let_go.set()
        await cancelling
        assert not told
        assert (await first).outcome == (await again).outcome == Cancelled()
