"""A failed model call, or tool call, is tried again as its RetryPolicy says: after a durable pause, a few times."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest

import refold
from refold.actors import ManualClock
from refold.events.model.configuration import RETRY_AFTER_S_MAX
from refold.events.session.events import ModelFailed, ModelInterrupted, RetryScheduled, RunFailed, ToolCallStarted
from refold.stores import EventStore, InMemoryStore
from tests.conformance.cases import Case, Fails, Play, play_case, played
from tests.conformance.sessions import Seen, runtime_of
from tests.conformance.steps import (
    advance,
    begin,
    cancel,
    check,
    crash_and_restart,
    decide,
    does,
    ends,
    recorded,
    requested,
    restart,
    resume,
    send,
    until,
)

RETRY = refold.RetryPolicy(attempts_max=3, base_s=2, max_s=60, jitter=0)
retried = partial(Case, config={"retry": RETRY}, clock=True)

BUSY = refold.ProviderError("busy", kind="overloaded", status=529, retryable=True)
CUT = refold.ProviderError("cut", kind="connection", retryable=True)
LOST = [
    f"ProviderError: {said}"
    for said in ("ReadError: reset", "ConnectionResetError: gone", "PoolTimeout: full", "TimeoutError: ")
]
LOOK = refold.use("look", {"at": "1"})

GO = refold.Message("user", (refold.TextBlock(text="go"),))

PAUSED = [begin("go", key="k"), until("RetryScheduled")]
"""What is sent is busy, and waits to be tried again."""


def busy(retry_after_s: float | None) -> refold.ProviderError:
    return refold.ProviderError("busy", kind="rate_limit", status=429, retryable=True, retry_after_s=retry_after_s)


async def pauses(play: Play) -> list[tuple[int, float]]:
    """Return the number of each attempt that failed, and how many seconds were waited then."""
    return [(event.attempt, (event.due_at - event.at) / 1e6) for event in await play.events(RetryScheduled)]


async def set_back_a_day(play: Play) -> None:
    assert play.clock is not None
    play.clock.jump(-86_400)


BY_KIND = refold.RetryPolicy(attempts_max=2, attempts_by_kind={"overloaded": 2}, jitter=0)

CASES = {
    "a call that may be repeated is made again though nothing was said of that": Case(
        [BUSY, BUSY, refold.say("at last")], [begin("go"), advance(4), ends("at last", turns=1)], clock=True
    ),
    "where that is switched off, the run fails": Case(
        [BUSY], [send("go", Fails("provider", "ProviderError: busy"))], config={"retry": None}
    ),
    "a call that may be repeated is made again after a growing pause": retried(
        [BUSY, BUSY, refold.say("at last")],
        [
            [*PAUSED, advance(1.9), requested(1), advance(0.2), requested(2), advance(4.1), ends("at last", turns=1)],
            [check(pauses, [(1, 2), (2, 4)]), check(lambda play: play.requests == play.requests[:1] * 3)],
        ],
        events=[
            *["...", "ModelRequested", "ModelFailed", "RetryScheduled", "TimerFired"],
            *["ModelFailed", "RetryScheduled", "TimerFired", "ModelResponded", "RunCompleted"],
        ],
    ),
    "a lost connection of a provider of the user's own may be tried again": retried(
        [
            httpx.ReadError("reset"),
            ConnectionResetError("gone"),
            refold.say("once"),
            httpx.PoolTimeout("full"),
            TimeoutError(),
            refold.say("on"),
        ],
        [
            [begin(), advance(10), ends("once"), begin("again"), advance(10), ends("on")],
            recorded(ModelFailed, "kind", "connection", "connection", "timeout", "timeout"),
            recorded(ModelFailed, "message", *LOST),
        ],
    ),
    "after the last attempt the run fails and the next one begins with the first": retried(
        [*[BUSY] * 4, refold.say("fine")],
        [
            [begin(), advance(10), ends(Fails("provider", "busy")), requested(3)],
            [begin("again"), advance(2.1), ends("fine"), recorded(RetryScheduled, "attempt", 1, 2, 1)],
        ],
    ),
    "each model call of a run has its own attempts": retried(
        [BUSY, BUSY, LOOK, BUSY, BUSY, refold.say("done")],
        [begin(), advance(20), ends("done"), recorded(RetryScheduled, "attempt", 1, 2, 1, 2)],
        done=["saw 1"],
    ),
    "tool results are not lost to a failed call after them": retried(
        [LOOK, BUSY, refold.say("done")],
        [*PAUSED, advance(2.1), ends("done")],
        results=["saw 1"],
        done=["saw 1"],
    ),
    **{
        f"a provider may ask for a longer pause within bounds, {wanted} s": retried(
            [busy(wanted), refold.say("ok")],
            [*PAUSED, check(pauses, [(1, given)]), advance(given + 0.1), ends("ok")],
        )
        for wanted, given in ((None, 2), (0.5, 2), (30, 30), (100_000, RETRY_AFTER_S_MAX), (-5, 2))
    },
    **{
        f"{what} fails at once": Case(
            [error, refold.say("never")],
            [send("go", Fails())],
            config={"retry": policy},
            asked=1,
            count={"RetryScheduled": 0},
        )
        for what, error, policy in (
            ("a refusal", refold.ProviderError("no such model", kind="invalid_request", status=404), RETRY),
            ("a bug of the provider", RuntimeError("a bug of the provider"), RETRY),
            ("a file that is not there", FileNotFoundError("key.txt"), RETRY),
            ("without a policy what may be repeated", BUSY, None),
            ("with one attempt what may be repeated", BUSY, refold.RetryPolicy(attempts_max=1)),
        )
    },
    "a run is cancelled while it waits to try again": retried(
        [BUSY, refold.say("after")],
        [*PAUSED, cancel(), ends(refold.Cancelled()), advance(100), requested(1), send("more", "after")],
        count={"TimerFired": 0},
    ),
    "closing does not wait for the end of a pause, of which what is left goes on after a restart": retried(
        [BUSY, refold.say("at last")],
        [
            [*PAUSED, restart(after_s=1), advance(0.9), requested(1)],
            [advance(0.2), send("go", "at last", key="k")],
        ],
        options={"close_grace_s": 5},
    ),
    "a pause that is over at the restart is waited for no more": retried(
        [BUSY, refold.say("at last")],
        [*PAUSED, restart(after_s=3_600), advance(0), send("go", "at last", key="k")],
    ),
    "attempts are counted over restarts": retried(
        [BUSY, BUSY, BUSY, refold.say("never")],
        [*PAUSED, restart(after_s=3_600), begin("go", key="k"), advance(100), ends(Fails())],
        asked=3,
    ),
    "waiting to try again counts as no lost work, however often the process restarts": Case(
        [BUSY, refold.say("at last")],
        [*PAUSED, *[restart(), advance(0)] * 6, advance(3), send("go", "at last", key="k")],
        config={"retry": RETRY, "resumes_max": 1},
        clock=True,
        count={"RunParked": 0},
    ),
    **{
        f"a clock that is set back makes no pause longer, {how}": retried(
            [BUSY, refold.say("at last")],
            [
                [*PAUSED, advance(0.5), does(set_back_a_day), *then, requested(1), advance(0.2), requested(2)],
                send("go", "at last", key="k"),
            ],
        )
        for how, then in {
            "in one runtime": [advance(1.4)],
            "over a restart, when it is whole again": [restart(), advance(1.9)],
        }.items()
    },
    "without auto_resume the call is not made again until the session is resumed": retried(
        [BUSY, refold.say("at last")],
        [
            [*PAUSED, restart(after_s=1, auto_resume=False), check(lambda play: play.session.history(), [GO])],
            [advance(100), requested(1), resume(), advance(0), send("go", "at last", key="k")],
        ],
    ),
    "the run's time ends while it waits to try again": Case(
        [busy(300), refold.say("never")],
        [*PAUSED, advance(61), ends(Fails("run_timeout")), advance(600)],
        config={"retry": RETRY, "run_timeout_s": 60},
        clock=True,
        asked=1,
    ),
    "an answer that breaks off is asked for again and its pieces are only evidence": Case(
        [refold.cut(refold.say("a sentence that is not finished"), after=2), refold.say("whole")],
        [*PAUSED, advance(2.1), ends("whole"), recorded(ModelInterrupted, "content", "a sentence that ")],
        config={"retry": RETRY, "streaming": True},
        clock=True,
        history=["user: go", "assistant: whole"],
    ),
    "case K03: an overload of minutes does not use up the attempts for other errors": Case(
        [BUSY, BUSY, BUSY, CUT, BUSY, BUSY, BUSY, refold.say("at last")],
        [
            [begin(), advance(300), ends("at last")],
            check(pauses, [(1, 1), (2, 2), (3, 4), (4, 1), (5, 8), (6, 16), (7, 30)]),
        ],
        config={
            "retry": refold.RetryPolicy(
                attempts_max=2, attempts_by_kind={"overloaded": 10}, base_s=1, max_s=30, jitter=0
            )
        },
        clock=True,
    ),
    **{
        f"each kind of error has its budget and all of them one total, {place}": Case(
            [*script, refold.say("never")],
            [begin(), advance(100), ends(Fails())],
            config={"retry": policy},
            clock=True,
            asked=len(script),
        )
        for place, (policy, script) in enumerate(
            (
                (BY_KIND, [BUSY, CUT, BUSY]),
                (BY_KIND, [CUT, BUSY, CUT]),
                (msgspec.structs.replace(BY_KIND, attempts_total_max=2), [BUSY, CUT]),
                (refold.RetryPolicy(attempts_max=9, attempts_by_kind={"overloaded": 1}, jitter=0), [BUSY]),
            )
        )
    },
    "attempts by kind are counted over restarts": Case(
        [BUSY, BUSY, refold.say("never")],
        [*PAUSED, restart(after_s=1), begin("go", key="k"), advance(100), ends(Fails())],
        config={"retry": refold.RetryPolicy(attempts_max=5, attempts_by_kind={"overloaded": 2}, jitter=0)},
        clock=True,
        asked=2,
    ),
}


RESET = ConnectionError("reset")
BUSY_TOOL = refold.ToolError("busy", kind="transient")
BOOK = refold.use("book")
BOOKED = [BOOK, refold.say("done")]


def booking(*errors: BaseException | None, **options: Any) -> Callable[[Play], list[Any]]:
    """Make a tool that notes the key of each attempt, and fails with the next error; None = it hangs instead."""

    settings: dict[str, Any] = {"effect": "idempotent", "retries": RETRY, **options}

    def made(play: Play) -> list[Any]:
        left = list(errors)

        @refold.tool(**settings)
        async def book(context: refold.ToolContext[Any]) -> str:
            """Book."""
            play.bench.note(context.idempotency_key)
            if left and (error := left.pop(0)) is not None:
                raise error
            return "booked" if len(play.bench.done) > len(errors) else await play.bench.parked("book")

        return [book]

    return made


def attempts(count: int) -> Any:
    """Check how many bodies have begun so far."""
    return check(lambda play: len(play.bench.done), count)


async def figures(play: Play) -> dict[str, int]:
    """Return what the metrics and the statistics say of the calls of the tool."""
    counts, stats = (await play.runtime.metrics.snapshot()).tools["book"], await play.session.statistics()
    assert stats.retries == counts.retries
    return {name: getattr(counts, name) for name in ("calls", "started", "retries", "successes", "failures")}


async def commits(play: Play) -> int:
    """Return how many batches there are but those two that open the session in the transaction of the third."""
    return -2 + len({stored.batch for stored in await play.log.read_stream("session/s")})


timed = partial(Case, clock=True)

IN_PAUSE = [begin("go", key="k"), until("RetryScheduled")]
AGAIN = ["ToolAttemptFailed", "RetryScheduled", "TimerFired", "ToolCallStarted"]

TOOL_CASES = {
    "a tool that may be run again is, with the same key, after growing pauses": timed(
        BOOKED,
        [
            [begin(), advance(0), attempts(1), advance(1.9), attempts(1), advance(0.2), attempts(2)],
            [advance(3.8), attempts(2), advance(0.2), ends("done", turns=2)],
            [check(pauses, [(1, 2), (2, 4)]), recorded(ToolCallStarted, "attempt", 1, 2, 3)],
            check(figures, {"calls": 1, "started": 3, "retries": 2, "successes": 1, "failures": 0}),
            check(commits, 4 + 2 * 2),  # Two more where something failed.
        ],
        tools=booking(RESET, BUSY_TOOL),
        results=["booked"],
        done=["s/call_6_0"] * 3,
        events=[
            *["...", "ModelRequested", "ModelResponded", "ToolCallStarted", *AGAIN, *AGAIN],
            *["ToolCallCompleted", "ModelRequested", "ModelResponded", "RunCompleted"],
        ],
    ),
    "after the last attempt the model is told its failure": timed(
        BOOKED,
        [
            [begin(), advance(10), ends("done")],
            check(figures, {"calls": 1, "started": 3, "retries": 2, "successes": 0, "failures": 1}),
        ],
        tools=booking(RESET, RESET, TimeoutError("slow")),
        results=["TimeoutError: slow"],
        kinds=["transient"],
        count={"ToolAttemptFailed": 3, "ToolCallFailed": 1},
    ),
    "attempts are counted over crashes in their pauses": timed(
        BOOKED,
        [
            [*IN_PAUSE, crash_and_restart(), advance(2.1), until("RetryScheduled", 2), attempts(2)],
            [crash_and_restart(after_s=3_600), advance(0), send("go", "done", key="k")],
        ],
        tools=booking(RESET, RESET, RESET, RESET),
        kinds=["transient"],
        done=["s/call_6_0"] * 3,
    ),
    "an attempt that a crash interrupts is made again under its number": timed(
        BOOKED,
        [
            [*IN_PAUSE, advance(2.1), attempts(2), crash_and_restart(), advance(0)],
            [send("go", "done", key="k"), recorded(ToolCallStarted, "attempt", 1, 2)],
        ],
        tools=booking(RESET, None),
        results=["booked"],
        done=["s/call_6_0"] * 3,
    ),
    "a pause between attempts is no lost work, however often the process restarts": timed(
        BOOKED,
        [*IN_PAUSE, *[restart(), advance(0)] * 6, advance(2.1), send("go", "done", key="k")],
        tools=booking(RESET),
        config={"resumes_max": 1},
        results=["booked"],
        count={"RunParked": 0},
    ),
    "without auto_resume there is no other attempt until the session is resumed": timed(
        BOOKED,
        [
            [*IN_PAUSE, restart(after_s=100, auto_resume=False), does(lambda play: play.session.history())],
            [advance(100), attempts(1)],
            [resume(), advance(0), send("go", "done", key="k")],
        ],
        tools=booking(RESET),
        results=["booked"],
    ),
    "where the tool is gone by then the model is told": timed(
        BOOKED,
        [*IN_PAUSE, restart(tools=[]), advance(2.1), send("go", "done", key="k")],
        tools=booking(RESET),
        kinds=["not_found"],
    ),
    "a run that is cancelled in a pause ends at once": timed(
        [BOOK, refold.say("after")],
        [*IN_PAUSE, cancel(), ends(refold.Cancelled()), advance(100), attempts(1), send("more", "after")],
        tools=booking(RESET),
        results=["Cancelled by user"],
        count={"TimerFired": 0, "ToolCallStarted": 1},
    ),
    "a person who allowed a call is not asked again": timed(
        BOOKED,
        [begin(), decide(allow=True), until("RetryScheduled"), advance(2.1), ends("done")],
        tools=booking(RESET, tier="confirm"),
        results=["booked"],
        count={"ToolApprovalRequested": 1},
    ),
    **{
        f"the run's time ends in a pause, {how}": timed(
            [calls, refold.say("never")],
            [
                [begin(), until("RetryScheduled"), advance(61), recorded(RunFailed, "kind", "run_timeout")],
                [ends(Fails("run_timeout")), advance(600), attempts(1)],
            ],
            tools=booking(RESET, tier="observe", retries=refold.RetryPolicy(base_s=300, max_s=300)),
            config={"run_timeout_s": 60},
            kinds=["timeout"] * len(calls),
        )
        for how, calls in (("alone", [BOOK]), ("beside a call that waits for a person", [BOOK, refold.use("pay")]))
    },
    "calls beside one that pauses go on, and one that runs alone waits for it": timed(
        [[BOOK, LOOK, refold.use("pay", {"amount": 2})], refold.say("done")],
        [[begin(), decide(allow=True), until("RetryScheduled"), advance(2.1), ends("done")]],
        tools=booking(RESET, tier="observe"),
        done=["s/call_6_0", "saw 1", "s/call_6_0", "paid 2"],
    ),
    "a run that a tool ends waits for the attempts of a call beside it": timed(
        [[BOOK, refold.use("finish", {"text": "enough"})]],
        [begin(), until("ToolCallCompleted"), advance(2.1), ends("enough")],
        tools=booking(RESET, tier="observe"),
        done=["s/call_6_0"] * 2,
    ),
    "what cannot pass is not tried again, and an attempt at most is": timed(
        [BOOK, BOOK, BOOK, refold.say("done")],
        [begin(), advance(100), ends("done")],
        tools=booking(ValueError("no"), RESET, refold.ToolError("no", kind="permanent"), RESET),
        kinds=["permanent", "permanent", None],
        done=["s/call_6_0", *["s/call_10_0"] * 2, *["s/call_18_0"] * 2],
    ),
    "with one attempt nothing is tried again": timed(
        BOOKED,
        [begin(), advance(100), ends("done")],
        tools=booking(RESET, retries=refold.RetryPolicy(attempts_max=1)),
        kinds=["transient"],
        count={"RetryScheduled": 0},
    ),
    "silence is followed by another attempt when the body has ended, and counts": timed(
        BOOKED,
        [begin(), advance(5.1), check(pauses, [(1, 2)]), advance(7.1), check(pauses, [(1, 2), (2, 4)]), advance(9.2)],
        tools=booking(None, None, None, timeout_s=5),
        kinds=["timeout"],
        count={"ToolCallStarted": 3},
    ),
}


@pytest.mark.parametrize("case", [*played(TOOL_CASES), *played(CASES, clock=True)])
async def test_retries(case: Case, memory: InMemoryStore) -> None:
    await play_case(case, memory)  # A file takes time of its own, while that of a case stands still.


@pytest.mark.parametrize("case", played(CASES, clock=False))
async def test_no_retries(case: Case, log: EventStore) -> None:
    await play_case(case, log)


async def test_the_jitter_of_a_pause_follows_from_the_run_so_that_a_replay_gives_the_same(log: EventStore) -> None:
    clock = ManualClock()
    config = refold.AgentConfig(model="m", retry=refold.RetryPolicy(attempts_max=2, base_s=10, jitter=0.5))
    async with runtime_of(log, *[BUSY, refold.say("ok")] * 3, config=config, clock=clock) as runtime:
        waited: list[int] = []
        for name in ("alice", "bob", "carol"):
            session = await runtime.session(name)
            seen = Seen(runtime, session)
            sending = asyncio.create_task(session.send("go"))
            (scheduled,) = await seen.first(RetryScheduled)
            waited.append(scheduled.due_at - scheduled.at)
            await clock.advance(11)
            await sending
    assert len(set(waited)) == 3
    assert all(5_000_000 <= pause <= 10_000_000 for pause in waited)
