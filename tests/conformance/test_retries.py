"""A failed model call, or tool call, is tried again as its RetryPolicy says: after a durable pause, a few times."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import refold
from refold.actors import ManualClock
from refold.events.model.retry import RETRY_AFTER_S_MAX
from refold.events.session.events import ModelFailed, ModelInterrupted, RetryScheduled, RunFailed, ToolCallStarted
from refold.stores import EventStore, InMemoryStore
from tests.conformance.cases import Case, Fails, Play, play_case, played
from tests.conformance.processes import BEGINNING, command_line, kill, left_in, read_until, started
from tests.conformance.sessions import Seen, events_of, results_of, runtime_of
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
RETRIED: dict[str, Any] = {"config": {"retry": RETRY}, "clock": True}

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
    "a call that may be repeated is made again after a growing pause": Case(
        [BUSY, BUSY, refold.say("at last")],
        [
            [*PAUSED, advance(1.9), requested(1), advance(0.2), requested(2), advance(4.1), ends("at last", turns=1)],
            [check(pauses, [(1, 2), (2, 4)]), check(lambda play: play.requests == play.requests[:1] * 3)],
        ],
        **RETRIED,
        events=[
            *["...", "ModelRequested", "ModelFailed", "RetryScheduled", "TimerFired"],
            *["ModelFailed", "RetryScheduled", "TimerFired", "ModelResponded", "RunCompleted"],
        ],
    ),
    "a lost connection of a provider of the user's own may be tried again": Case(
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
        **RETRIED,
    ),
    "after the last attempt the run fails and the next one begins with the first": Case(
        [*[BUSY] * 4, refold.say("fine")],
        [
            [begin(), advance(10), ends(Fails("provider", "busy")), requested(3)],
            [begin("again"), advance(2.1), ends("fine"), recorded(RetryScheduled, "attempt", 1, 2, 1)],
        ],
        **RETRIED,
    ),
    "each model call of a run has its own attempts": Case(
        [BUSY, BUSY, LOOK, BUSY, BUSY, refold.say("done")],
        [begin(), advance(20), ends("done"), recorded(RetryScheduled, "attempt", 1, 2, 1, 2)],
        **RETRIED,
        done=["saw 1"],
    ),
    "tool results are not lost to a failed call after them": Case(
        [LOOK, BUSY, refold.say("done")],
        [*PAUSED, advance(2.1), ends("done")],
        **RETRIED,
        results=["saw 1"],
        done=["saw 1"],
    ),
    **{
        f"a provider may ask for a longer pause within bounds, {wanted} s": Case(
            [busy(wanted), refold.say("ok")],
            [*PAUSED, check(pauses, [(1, given)]), advance(given + 0.1), ends("ok")],
            **RETRIED,
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
    "a run is cancelled while it waits to try again": Case(
        [BUSY, refold.say("after")],
        [*PAUSED, cancel(), ends(refold.Cancelled()), advance(100), requested(1), send("more", "after")],
        **RETRIED,
        count={"TimerFired": 0},
    ),
    "closing does not wait for the end of a pause, of which what is left goes on after a restart": Case(
        [BUSY, refold.say("at last")],
        [
            [*PAUSED, restart(after_s=1), advance(0.9), requested(1)],
            [advance(0.2), send("go", "at last", key="k")],
        ],
        **RETRIED,
        options={"close_grace_s": 5},
    ),
    "a pause that is over at the restart is waited for no more": Case(
        [BUSY, refold.say("at last")],
        [*PAUSED, restart(after_s=3_600), advance(0), send("go", "at last", key="k")],
        **RETRIED,
    ),
    "attempts are counted over restarts": Case(
        [BUSY, BUSY, BUSY, refold.say("never")],
        [*PAUSED, restart(after_s=3_600), begin("go", key="k"), advance(100), ends(Fails())],
        **RETRIED,
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
        f"a clock that is set back makes no pause longer, {how}": Case(
            [BUSY, refold.say("at last")],
            [
                [*PAUSED, advance(0.5), does(set_back_a_day), *then, requested(1), advance(0.2), requested(2)],
                send("go", "at last", key="k"),
            ],
            **RETRIED,
        )
        for how, then in {
            "in one runtime": [advance(1.4)],
            "over a restart, when it is whole again": [restart(), advance(1.9)],
        }.items()
    },
    "without auto_resume the call is not made again until the session is resumed": Case(
        [BUSY, refold.say("at last")],
        [
            [*PAUSED, restart(after_s=1, auto_resume=False), check(lambda play: play.session.history(), [GO])],
            [advance(100), requested(1), resume(), advance(0), send("go", "at last", key="k")],
        ],
        **RETRIED,
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


IN_PAUSE = [begin("go", key="k"), until("RetryScheduled")]
AGAIN = ["ToolAttemptFailed", "RetryScheduled", "TimerFired", "ToolCallStarted"]

TOOL_CASES = {
    "a call that may be repeated is made again though nothing was said of that": Case(
        [BUSY, BUSY, refold.say("at last")], [begin("go"), advance(4), ends("at last", turns=1)], clock=True
    ),
    "where that is switched off, the run fails": Case(
        [BUSY], [send("go", Fails("provider", "ProviderError: busy"))], config={"retry": None}
    ),
    "a tool that may be run again is, with the same key, after growing pauses": Case(
        BOOKED,
        [
            [begin(), advance(0), attempts(1), advance(1.9), attempts(1), advance(0.2), attempts(2)],
            [advance(3.8), attempts(2), advance(0.2), ends("done", turns=2)],
            [check(pauses, [(1, 2), (2, 4)]), recorded(ToolCallStarted, "attempt", 1, 2, 3)],
            check(figures, {"calls": 1, "started": 3, "retries": 2, "successes": 1, "failures": 0}),
            check(commits, 4 + 2 * 2),  # Two more where something failed.
        ],
        tools=booking(RESET, BUSY_TOOL),
        clock=True,
        results=["booked"],
        done=["s/call_6_0"] * 3,
        events=[
            *["...", "ModelRequested", "ModelResponded", "ToolCallStarted", *AGAIN, *AGAIN],
            *["ToolCallCompleted", "ModelRequested", "ModelResponded", "RunCompleted"],
        ],
    ),
    "after the last attempt the model is told its failure": Case(
        BOOKED,
        [
            [begin(), advance(10), ends("done")],
            check(figures, {"calls": 1, "started": 3, "retries": 2, "successes": 0, "failures": 1}),
        ],
        tools=booking(RESET, RESET, TimeoutError("slow")),
        clock=True,
        results=["TimeoutError: slow"],
        kinds=["transient"],
        count={"ToolAttemptFailed": 3, "ToolCallFailed": 1},
    ),
    "attempts are counted over crashes in their pauses": Case(
        BOOKED,
        [
            [*IN_PAUSE, crash_and_restart(), advance(2.1), until("RetryScheduled", 2), attempts(2)],
            [crash_and_restart(after_s=3_600), advance(0), send("go", "done", key="k")],
        ],
        tools=booking(RESET, RESET, RESET, RESET),
        clock=True,
        kinds=["transient"],
        done=["s/call_6_0"] * 3,
    ),
    "an attempt that a crash interrupts is made again under its number": Case(
        BOOKED,
        [
            [*IN_PAUSE, advance(2.1), attempts(2), crash_and_restart(), advance(0)],
            [send("go", "done", key="k"), recorded(ToolCallStarted, "attempt", 1, 2)],
        ],
        tools=booking(RESET, None),
        clock=True,
        results=["booked"],
        done=["s/call_6_0"] * 3,
    ),
    "a pause between attempts is no lost work, however often the process restarts": Case(
        BOOKED,
        [*IN_PAUSE, *[restart(), advance(0)] * 6, advance(2.1), send("go", "done", key="k")],
        tools=booking(RESET),
        config={"resumes_max": 1},
        clock=True,
        results=["booked"],
        count={"RunParked": 0},
    ),
    "without auto_resume there is no other attempt until the session is resumed": Case(
        BOOKED,
        [
            [*IN_PAUSE, restart(after_s=100, auto_resume=False), does(lambda play: play.session.history())],
            [advance(100), attempts(1)],
            [resume(), advance(0), send("go", "done", key="k")],
        ],
        tools=booking(RESET),
        clock=True,
        results=["booked"],
    ),
    "where the tool is gone by then the model is told": Case(
        BOOKED,
        [*IN_PAUSE, restart(tools=[]), advance(2.1), send("go", "done", key="k")],
        tools=booking(RESET),
        clock=True,
        kinds=["not_found"],
    ),
    "a run that is cancelled in a pause ends at once": Case(
        [BOOK, refold.say("after")],
        [*IN_PAUSE, cancel(), ends(refold.Cancelled()), advance(100), attempts(1), send("more", "after")],
        tools=booking(RESET),
        clock=True,
        results=["Cancelled by user"],
        count={"TimerFired": 0, "ToolCallStarted": 1},
    ),
    "a person who allowed a call is not asked again": Case(
        BOOKED,
        [begin(), decide(allow=True), until("RetryScheduled"), advance(2.1), ends("done")],
        tools=booking(RESET, tier="confirm"),
        clock=True,
        results=["booked"],
        count={"ToolApprovalRequested": 1},
    ),
    **{
        f"the run's time ends in a pause, {how}": Case(
            [calls, refold.say("never")],
            [
                [begin(), until("RetryScheduled"), advance(61), recorded(RunFailed, "kind", "run_timeout")],
                [ends(Fails("run_timeout")), advance(600), attempts(1)],
            ],
            tools=booking(RESET, tier="observe", retries=refold.RetryPolicy(base_s=300, max_s=300)),
            config={"run_timeout_s": 60},
            clock=True,
            kinds=["timeout"] * len(calls),
        )
        for how, calls in (("alone", [BOOK]), ("beside a call that waits for a person", [BOOK, refold.use("pay")]))
    },
    "calls beside one that pauses go on, and one that runs alone waits for it": Case(
        [[BOOK, LOOK, refold.use("pay", {"amount": 2})], refold.say("done")],
        [[begin(), decide(allow=True), until("RetryScheduled"), advance(2.1), ends("done")]],
        tools=booking(RESET, tier="observe"),
        clock=True,
        done=["s/call_6_0", "saw 1", "s/call_6_0", "paid 2"],
    ),
    "a run that a tool ends waits for the attempts of a call beside it": Case(
        [[BOOK, refold.use("finish", {"text": "enough"})]],
        [begin(), until("ToolCallCompleted"), advance(2.1), ends("enough")],
        tools=booking(RESET, tier="observe"),
        clock=True,
        done=["s/call_6_0"] * 2,
    ),
    "what cannot pass is not tried again, and an attempt at most is": Case(
        [BOOK, BOOK, BOOK, refold.say("done")],
        [begin(), advance(100), ends("done")],
        tools=booking(ValueError("no"), RESET, refold.ToolError("no", kind="permanent"), RESET),
        clock=True,
        kinds=["permanent", "permanent", None],
        done=["s/call_6_0", *["s/call_10_0"] * 2, *["s/call_18_0"] * 2],
    ),
    "with one attempt nothing is tried again": Case(
        BOOKED,
        [begin(), advance(100), ends("done")],
        tools=booking(RESET, retries=refold.RetryPolicy(attempts_max=1)),
        clock=True,
        kinds=["transient"],
        count={"RetryScheduled": 0},
    ),
    "silence is followed by another attempt when the body has ended, and counts": Case(
        BOOKED,
        [begin(), advance(5.1), check(pauses, [(1, 2)]), advance(7.1), check(pauses, [(1, 2), (2, 4)]), advance(9.2)],
        tools=booking(None, None, None, timeout_s=5),
        clock=True,
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


DIES_IN_A_PAUSE = f"""{BEGINNING}
@tool(effect="idempotent", retries=RetryPolicy(attempts_max=3, base_s=60))
async def book() -> str:
    raise ToolError("busy", kind="transient")

def tell(recorded):
    if type(recorded.event).__name__ == "RetryScheduled":
        print("pause", flush=True)

async def main():
    agent = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([use("book")]), tools=[book])
    async with AgentRuntime(agent, log=log) as runtime:
        await (await runtime.session("s")).send("go", key="k", on_event=tell)

asyncio.run(main())
"""


async def test_after_kill_9_in_a_pause_the_next_process_counts_on(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with started(command_line("-c", DIES_IN_A_PAUSE, log)) as process:
        read_until(process, "pause")
        kill(process)
    left = await asyncio.to_thread(left_in, log)
    clock = ManualClock(left.session[-1].at)
    bodies: list[str] = []

    @refold.tool(effect="idempotent", retries=RETRY)
    async def book() -> str:
        """Book."""
        bodies.append("begun")
        raise refold.ToolError("busy", kind="transient")

    agent = refold.Agent(
        config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([refold.say("done")]), tools=[book]
    )
    async with refold.AgentRuntime(agent, log=log, clock=clock, ask_timeout_s=1e8) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go", key="k"))
        while not sending.done():
            await clock.advance(60)
        attempts = [event.attempt for event in await events_of(session, ToolCallStarted)]
        assert (attempts, len(bodies)) == ([1, 2, 3], 2)
        assert [result.kind for result in await results_of(session)] == ["transient"]


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
    with pytest.raises(refold.ConfigError, match=rf"RetryPolicy\.{says} must be"):
        refold.RetryPolicy(**fields)
