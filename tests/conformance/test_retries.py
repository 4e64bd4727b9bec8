"""A failed model call is made again as the agent's RetryPolicy says: after a durable pause, a few times."""

import asyncio
from typing import Any

import msgspec
import pytest

from refold import (
    ActorStopped,
    AgentRuntime,
    Cancelled,
    Completed,
    ConfigError,
    Failed,
    ProviderError,
    RetryPolicy,
    ScriptedProvider,
    Session,
    cut,
    say,
    use,
)
from refold.actors import ManualClock
from refold.events.model.retry import RETRY_AFTER_S_MAX
from tests.conformance.approval_desk import Ledger, Seen, recorded, results, runtime_of

RETRY = RetryPolicy(attempts_max=3, base_s=2, max_s=60, jitter=0)

BUSY = ProviderError("busy", kind="overloaded", status=529, retryable=True)


def busy(retry_after_s: float | None = None) -> ProviderError:
    return ProviderError("busy", kind="rate_limit", status=429, retryable=True, retry_after_s=retry_after_s)


def asked(runtime: AgentRuntime) -> int:
    """Return how often the model was asked."""
    assert isinstance(runtime.agent.provider, ScriptedProvider)
    return len(runtime.agent.provider.requests)


class Sent:
    """A session whose input is being worked on, and its events."""

    def __init__(self, session: Session, seen: Seen, sending: asyncio.Task[Any]) -> None:
        self.session = session
        self.seen = seen
        self.sending = sending


async def send(runtime: AgentRuntime, text: str = "go") -> Sent:
    session = await runtime.session("alice")
    seen = Seen(runtime)
    return Sent(session, seen, asyncio.create_task(session.send(text, key="k")))


async def test_a_call_that_may_be_repeated_is_made_again_after_a_growing_pause(memory: Any) -> None:
    clock = ManualClock()
    script = [BUSY, BUSY, say("at last")]
    async with runtime_of(memory, None, script, retry=RETRY, clock=clock) as runtime:
        sent = await send(runtime)
        [first] = await sent.seen.have("RetryScheduled")
        assert (first.attempt, first.due_at) == (1, clock.now_us() + 2_000_000)
        await clock.advance(1.9)
        assert asked(runtime) == 1
        await clock.advance(0.2)
        assert asked(runtime) == 2
        second = sent.seen.of("RetryScheduled")[-1]
        assert (second.attempt, second.due_at - second.at) == (2, 4_000_000)
        await clock.advance(4.1)
        result = await sent.sending
        assert (result.outcome, result.text, result.turns) == (Completed(), "at last", 1)
        names = [type(event).__name__ for event in await recorded(sent.session)]
        assert isinstance(runtime.agent.provider, ScriptedProvider)
        requests = runtime.agent.provider.requests
    assert names[-9:] == [
        "ModelRequested",
        "ModelFailed",
        "RetryScheduled",
        "TimerFired",
        "ModelFailed",
        "RetryScheduled",
        "TimerFired",
        "ModelResponded",
        "RunCompleted",
    ]
    assert requests[0] == requests[1] == requests[2]


async def test_after_the_last_attempt_the_run_fails_and_the_next_one_begins_with_the_first(memory: Any) -> None:
    clock = ManualClock()
    script = [BUSY, BUSY, BUSY, BUSY, say("fine")]
    async with runtime_of(memory, None, script, retry=RETRY, clock=clock) as runtime:
        sent = await send(runtime)
        await clock.advance(10)
        result = await sent.sending
        assert isinstance(result.outcome, Failed)
        assert (result.outcome.error.kind, asked(runtime)) == ("provider", 3)
        assert "busy" in result.outcome.error.message
        again = asyncio.create_task(sent.session.send("again"))
        await clock.advance(2.1)
        assert (await again).text == "fine"
        assert [event.attempt for event in sent.seen.of("RetryScheduled")] == [1, 2, 1]


async def test_each_model_call_of_a_run_has_its_own_attempts(memory: Any) -> None:
    clock, ledger = ManualClock(), Ledger()
    script = [BUSY, BUSY, use("look", {"n": 1}), BUSY, BUSY, say("done")]
    async with runtime_of(memory, ledger, script, retry=RETRY, clock=clock) as runtime:
        sent = await send(runtime)
        await clock.advance(20)
        assert (await sent.sending).outcome == Completed()
        assert [event.attempt for event in sent.seen.of("RetryScheduled")] == [1, 2, 1, 2]
    assert ledger.done == ["saw 1"]


@pytest.mark.parametrize(
    ("retry_after_s", "pause_s"),
    [(None, 2), (0.5, 2), (30, 30), (100_000, RETRY_AFTER_S_MAX), (-5, 2)],
)
async def test_a_provider_may_ask_for_a_longer_pause_within_bounds(
    retry_after_s: float | None, pause_s: float, memory: Any
) -> None:
    clock = ManualClock()
    async with runtime_of(memory, None, [busy(retry_after_s), say("ok")], retry=RETRY, clock=clock) as runtime:
        sent = await send(runtime)
        [scheduled] = await sent.seen.have("RetryScheduled")
        assert scheduled.due_at - scheduled.at == pause_s * 1_000_000
        await clock.advance(pause_s + 0.1)
        assert (await sent.sending).text == "ok"


@pytest.mark.parametrize(
    "error", [ProviderError("no such model", kind="invalid_request", status=404), RuntimeError("a bug of the provider")]
)
async def test_what_may_not_be_repeated_fails_at_once(error: Exception, log: Any) -> None:
    async with runtime_of(log, None, [error, say("never")], retry=RETRY) as runtime:
        session = await runtime.session("alice")
        result = await session.send("go")
        assert isinstance(result.outcome, Failed)
        assert (asked(runtime), await recorded(session, "RetryScheduled")) == (1, [])


async def test_without_a_policy_nothing_is_repeated(log: Any) -> None:
    async with runtime_of(log, None, [BUSY, say("never")]) as runtime:
        result = await (await runtime.session("alice")).send("go")
        assert isinstance(result.outcome, Failed)
        assert asked(runtime) == 1


async def test_one_attempt_is_no_retry(log: Any) -> None:
    async with runtime_of(log, None, [BUSY, say("never")], retry=RetryPolicy(attempts_max=1)) as runtime:
        assert isinstance((await (await runtime.session("alice")).send("go")).outcome, Failed)
        assert asked(runtime) == 1


async def test_a_run_is_cancelled_while_it_waits_to_try_again(memory: Any) -> None:
    clock = ManualClock()
    async with runtime_of(memory, None, [BUSY, say("after")], retry=RETRY, clock=clock) as runtime:
        sent = await send(runtime)
        await sent.seen.have("RetryScheduled")
        await sent.session.cancel()
        assert (await sent.sending).outcome == Cancelled()
        await clock.advance(100)
        assert (asked(runtime), sent.seen.of("TimerFired")) == (1, [])
        assert (await sent.session.send("more")).text == "after"


async def test_a_caller_who_is_cancelled_while_the_run_waits_to_try_again_cancels_the_run(memory: Any) -> None:
    clock = ManualClock()
    async with runtime_of(memory, None, [BUSY], retry=RETRY, clock=clock) as runtime:
        sent = await send(runtime)
        await sent.seen.have("RetryScheduled")
        sent.sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sent.sending
        assert type((await recorded(sent.session))[-1]).__name__ == "RunCancelled"


async def restarted(memory: Any, later_s: float, script: list[Any], **options: Any) -> AgentRuntime:
    """Return a runtime that takes over `later_s` seconds after one closed whose run waited to try again."""
    clock = ManualClock()
    async with runtime_of(memory, None, [BUSY], retry=RETRY, clock=clock, **options) as runtime:
        sent = await send(runtime)
        await sent.seen.have("RetryScheduled")
    with pytest.raises(ActorStopped):
        await sent.sending
    later = ManualClock(clock.now_us() + round(later_s * 1_000_000))
    return runtime_of(memory, None, script, retry=RETRY, clock=later, **options)


def clock_of(runtime: AgentRuntime) -> ManualClock:
    clock = runtime.options.clock
    assert isinstance(clock, ManualClock)
    return clock


async def test_what_is_left_of_the_pause_goes_on_after_a_restart(memory: Any) -> None:
    runtime = await restarted(memory, 1, [say("at last")])
    async with runtime:
        sent = await send(runtime)
        await clock_of(runtime).advance(0.9)
        assert asked(runtime) == 0
        await clock_of(runtime).advance(0.2)
        assert (await sent.sending).text == "at last"


async def test_a_pause_that_is_over_at_the_restart_is_waited_for_no_more(memory: Any) -> None:
    runtime = await restarted(memory, 3_600, [say("at last")])
    async with runtime:
        sent = await send(runtime)
        await clock_of(runtime).advance(0)
        assert (await sent.sending).text == "at last"


async def test_attempts_are_counted_over_restarts(memory: Any) -> None:
    runtime = await restarted(memory, 3_600, [BUSY, BUSY, say("never")])
    async with runtime:
        sent = await send(runtime)
        await clock_of(runtime).advance(100)
        assert isinstance((await sent.sending).outcome, Failed)
        assert asked(runtime) == 2


async def test_waiting_to_try_again_counts_as_no_lost_work_however_often_the_process_restarts(memory: Any) -> None:
    clock = ManualClock()
    script: list[Any] = [BUSY]
    for _ in range(6):  # Far more than `resumes_max`.
        async with runtime_of(memory, None, script, retry=RETRY, clock=clock, resumes_max=1) as runtime:
            sent = await send(runtime)
            sent.sending.add_done_callback(lambda done: done.exception())
            if script:
                await sent.seen.have("RetryScheduled")
            await clock.settle()
        script = []
    async with runtime_of(memory, None, [say("at last")], retry=RETRY, clock=clock, resumes_max=1) as runtime:
        sent = await send(runtime)
        await clock.advance(3)
        assert (await sent.sending).text == "at last"
        assert await recorded(sent.session, "RunParked") == []


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_clock_that_is_set_back_makes_no_pause_longer(memory: Any, restarted: bool) -> None:
    clock = ManualClock()
    async with runtime_of(memory, None, [BUSY, say("at last")], retry=RETRY, clock=clock) as runtime:
        sent = await send(runtime)
        await sent.seen.have("RetryScheduled")
        await clock.advance(0.5)
        clock.jump(-86_400)
        if not restarted:
            await clock.advance(1.4)
            assert asked(runtime) == 1
            await clock.advance(0.2)
            assert asked(runtime) == 2
            assert (await sent.sending).text == "at last"
            return
    with pytest.raises(ActorStopped):
        await sent.sending
    async with runtime_of(memory, None, [say("at last")], retry=RETRY, clock=clock) as runtime:
        await clock.advance(1.9)  # How long it was down, nobody knows: the pause is whole again.
        assert asked(runtime) == 0
        await clock.advance(0.2)
        assert asked(runtime) == 1
        assert (await (await runtime.session("alice")).send("go", key="k")).text == "at last"


async def test_without_auto_resume_the_pause_ends_with_nothing_until_somebody_resumes(memory: Any) -> None:
    runtime = await restarted(memory, 1, [say("at last")], auto_resume=False)
    async with runtime:
        session = await runtime.session("alice")
        assert [message.text for message in await session.history()] == ["go"]
        await clock_of(runtime).advance(100)
        assert asked(runtime) == 0
        await session.resume()
        await clock_of(runtime).advance(0)
        assert (await session.send("go", key="k")).text == "at last"


async def test_the_runs_time_ends_while_it_waits_to_try_again(memory: Any) -> None:
    clock = ManualClock()
    script = [busy(300), say("never")]
    async with runtime_of(memory, None, script, retry=RETRY, run_timeout_s=60, clock=clock) as runtime:
        sent = await send(runtime)
        await sent.seen.have("RetryScheduled")
        await clock.advance(61)
        result = await sent.sending
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "run_timeout"
        await clock.advance(600)
        assert asked(runtime) == 1


async def test_closing_does_not_wait_for_the_end_of_a_pause(memory: Any) -> None:
    clock = ManualClock()  # Stands still: whoever waited for the grace period would wait for ever.
    async with runtime_of(memory, None, [busy(300)], retry=RETRY, clock=clock) as runtime:
        sent = await send(runtime)
        await sent.seen.have("RetryScheduled")
    with pytest.raises(ActorStopped):
        await sent.sending


async def test_an_answer_that_breaks_off_is_asked_for_again_and_its_pieces_are_only_evidence(memory: Any) -> None:
    clock = ManualClock()
    script = [cut(say("a sentence that is not finished"), after=2), say("whole")]
    async with runtime_of(memory, None, script, retry=RETRY, streaming=True, clock=clock) as runtime:
        sent = await send(runtime)
        await sent.seen.have("RetryScheduled")
        await clock.advance(2.1)
        assert (await sent.sending).text == "whole"
        [interrupted] = await recorded(sent.session, "ModelInterrupted")
        assert [message.text for message in await sent.session.history()] == ["go", "whole"]
    assert interrupted.content[0].text == "a sentence that "


async def test_an_input_for_now_joins_the_run_before_the_call_is_made_again(memory: Any) -> None:
    clock = ManualClock()
    async with runtime_of(memory, None, [BUSY, say("both")], retry=RETRY, clock=clock) as runtime:
        sent = await send(runtime)
        await sent.seen.have("RetryScheduled")
        joining = asyncio.create_task(sent.session.send("and this", now=True))
        await clock.advance(2.1)
        assert (await joining).run == (await sent.sending).run
        assert isinstance(runtime.agent.provider, ScriptedProvider)
        assert [message.text for message in runtime.agent.provider.requests[-1].messages] == ["go", "and this"]


async def test_the_jitter_of_a_pause_follows_from_the_run_so_that_a_replay_gives_the_same(memory: Any) -> None:
    clock = ManualClock()
    policy = RetryPolicy(attempts_max=2, base_s=10, jitter=0.5)
    async with runtime_of(memory, None, [BUSY, say("ok")] * 3, retry=policy, clock=clock) as runtime:
        pauses: list[int] = []
        for name in ("alice", "bob", "carol"):
            session = await runtime.session(name)
            seen = Seen(runtime, name)
            sending = asyncio.create_task(session.send("go"))
            [scheduled] = await seen.have("RetryScheduled")
            pauses.append(scheduled.due_at - scheduled.at)
            await clock.advance(11)
            await sending
    assert len(set(pauses)) == 3
    assert all(5_000_000 <= pause <= 10_000_000 for pause in pauses)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"attempts_max": 0}, "attempts_max"),
        ({"attempts_max": True}, "attempts_max"),
        ({"base_s": 0}, "base_s"),
        ({"base_s": float("nan")}, "base_s"),
        ({"max_s": 0.5}, "max_s"),
        ({"jitter": 1.5}, "jitter"),
    ],
)
def test_a_policy_outside_its_bounds_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"RetryPolicy\.{says} must be"):
        RetryPolicy(**fields)


async def test_tool_results_are_not_lost_to_a_failed_call_after_them(memory: Any) -> None:
    clock, ledger = ManualClock(), Ledger()
    script = [use("look", {"n": 1}), BUSY, say("done")]
    async with runtime_of(memory, ledger, script, retry=RETRY, clock=clock) as runtime:
        sent = await send(runtime)
        await sent.seen.have("RetryScheduled")
        await clock.advance(2.1)
        assert (await sent.sending).outcome == Completed()
        assert await results(sent.session) == ["saw 1"]
    assert ledger.done == ["saw 1"]


async def test_case_k03_an_overload_of_minutes_does_not_use_up_the_attempts_for_other_errors(memory: Any) -> None:
    clock = ManualClock()
    broken = ProviderError("cut", kind="connection", retryable=True)
    policy = RetryPolicy(attempts_max=2, attempts_by_kind={"overloaded": 10}, base_s=1, max_s=30, jitter=0)
    script = [BUSY, BUSY, BUSY, broken, BUSY, BUSY, BUSY, say("at last")]
    async with runtime_of(memory, None, script, retry=policy, clock=clock) as runtime:
        sent = await send(runtime)
        await clock.advance(300)
        assert (await sent.sending).text == "at last"
        pauses = [(event.attempt, event.due_at - event.at) for event in sent.seen.of("RetryScheduled")]
    assert pauses == [(1, 1e6), (2, 2e6), (3, 4e6), (4, 1e6), (5, 8e6), (6, 16e6), (7, 30e6)]


async def test_each_kind_of_error_has_its_budget_and_all_of_them_one_total(memory: Any) -> None:
    clock = ManualClock()
    broken = ProviderError("cut", kind="connection", retryable=True)
    by_kind = RetryPolicy(attempts_max=2, attempts_by_kind={"overloaded": 2}, jitter=0)
    for policy, script, asked_for in (
        (by_kind, [BUSY, broken, BUSY], 3),
        (by_kind, [broken, BUSY, broken], 3),
        (msgspec.structs.replace(by_kind, attempts_total_max=2), [BUSY, broken], 2),
        (RetryPolicy(attempts_max=9, attempts_by_kind={"overloaded": 1}, jitter=0), [BUSY], 1),
    ):
        async with runtime_of(memory, None, [*script, say("never")], retry=policy, clock=clock) as runtime:
            sending = asyncio.create_task((await runtime.session()).send("go"))
            await clock.advance(100)
            assert isinstance((await sending).outcome, Failed)
            assert asked(runtime) == asked_for


async def test_attempts_by_kind_are_counted_over_restarts(memory: Any) -> None:
    clock = ManualClock()
    policy = RetryPolicy(attempts_max=5, attempts_by_kind={"overloaded": 2}, jitter=0)
    async with runtime_of(memory, None, [BUSY], retry=policy, clock=clock) as runtime:
        sent = await send(runtime)
        await sent.seen.have("RetryScheduled")
        closing = asyncio.create_task(runtime.close())
        await clock.advance(1)
        await closing
        with pytest.raises(ActorStopped):
            await sent.sending
    async with runtime_of(memory, None, [BUSY, say("never")], retry=policy, clock=clock) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go", key="k"))
        await clock.advance(100)
        assert isinstance((await sending).outcome, Failed)
