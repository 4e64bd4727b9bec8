"""Sessions that are idle leave memory, and nobody who talks to them can tell."""

from functools import partial

import pytest

from refold import Cancelled, Deny, ModelRequest, RetryPolicy, say, use
from refold.events.core.content import CANCELLED_TEXT
from refold.events.core.errors import ProviderError
from refold.events.session.react import EXPIRED_TEXT
from refold.stores import EventStore, InMemoryStore
from tests.conformance.cases import Case, Fails, Held, Play, after, play_case, played
from tests.conformance.sessions import runtime_of
from tests.conformance.steps import (
    advance,
    approval_asked,
    asked,
    awaited,
    begin,
    cancel,
    check,
    decide,
    does,
    ends,
    let_go,
    remind,
    requested,
    send,
    turn,
    until,
)

PAY = use("pay", {"amount": 3})
HOURLY = RetryPolicy(base_s=3_600, max_s=3_600, jitter=0)
BROKEN = ProviderError("broken", kind="server", retryable=True)


def live(play: Play) -> list[str]:
    return [address for address in play.runtime.system.live() if address.startswith("session/")]


GONE = check(live, [])
HERE = check(live, ["session/s"])
IDLE = [advance(61), GONE]
"""What lets a session go that waits for nothing but time or a person."""


async def jump(play: Play) -> None:
    """Set the clock, which no timer notices."""
    assert play.clock is not None
    play.clock.jump(3_600 * 18)


def long_waits(play: Play) -> list[float]:
    assert play.clock is not None
    return [seconds for seconds in play.clock.waiting() if 60 < seconds < 10_000]


async def said(play: Play) -> list[str]:
    return [message.text for message in await play.session.history()]


timed = partial(Case, clock=True)

CASES = {
    "an idle session is let go and knows everything when it is spoken to again": timed(
        [say("one"), say("two")],
        [
            [send("go", "one"), advance(59), HERE, advance(1), GONE],
            [check(said, ["go", "one"]), IDLE, send("more", "two")],
        ],
        requests={1: ["user: go", "assistant: one", "user: more"]},
    ),
    **{
        f"a session that waits for approval is let go and the decision finds it, auto_resume {auto_resume}": timed(
            [PAY, say("done")],
            [begin(), approval_asked(), IDLE, decide(True), ends("done")],
            options={"auto_resume": auto_resume},
            count={"RunResumed": 0},
        )
        for auto_resume in (True, False)
    },
    "the time for a decision passes while the session is not in memory": timed(
        [PAY, say("then not")],
        [
            [begin(), approval_asked(), advance(3_600), GONE, advance(3_601)],
            [check(lambda play: play.callers[0].done()), ends("then not")],
        ],
        config={"approval_expiry_s": 7_200},
        results=[EXPIRED_TEXT],
    ),
    "an input for later finds a session that is not in memory also when the clock is set": timed(
        [say("heard")] * 2,
        [
            [remind("soon", after(10_800)), remind("later", after(72_000)), advance(3_600), GONE],
            [advance(7_260), requested(1), IDLE, does(jump), advance(61), until("RunCompleted", 2)],
        ],
        history=["user: soon", "assistant: heard", "user: later", "assistant: heard"],
    ),
    "a session at work stays and a pause before a retry is no work": timed(
        [BROKEN, Held(say("at last"))],
        [
            [begin(), until("RetryScheduled"), advance(3_000), GONE],
            [advance(700), asked(), advance(61), HERE, let_go(), ends("at last")],
        ],
        config={"retry": HOURLY},
        count={"RunResumed": 0},
    ),
    "a run that goes step by step waits outside memory": timed(
        [PAY, say("done")],
        [turn("go"), IDLE, turn(ends="done")],
        options={"approval": lambda session, request: Deny("no")},
    ),
    "a run is cancelled that waits outside memory": timed(
        [PAY],
        [begin(), approval_asked(), IDLE, cancel(), ends(Cancelled())],
        results=[CANCELLED_TEXT],
    ),
    "a closed runtime wakes nobody, and the next one minds the time": timed(
        [PAY, say("then not")],
        [
            [begin(), approval_asked(), IDLE, does(Play.close), check(long_waits, []), does(Play.open)],
            [awaited("call_6_0"), advance(7_300), until("RunCompleted")],
        ],
        config={"approval_expiry_s": 7_200},
        results=[EXPIRED_TEXT],
    ),
    "a run timeout comes to a session whose run waits to try again": timed(
        [BROKEN],
        [begin(), until("RetryScheduled"), advance(900), GONE, advance(101), ends(Fails("run_timeout"))],
        config={"run_timeout_s": 1_000, "retry": HOURLY},
    ),
}


@pytest.mark.parametrize("case", played(CASES))
async def test_passivation(case: Case, memory: InMemoryStore) -> None:
    await play_case(case, memory)


@pytest.mark.slow
async def test_a_burst_over_many_sessions_in_turn_stays_within_the_limit(log: EventStore) -> None:
    def echo(request: ModelRequest) -> str:
        return f"{request.messages[0].text} ... {request.messages[-1].text}"

    async with runtime_of(log, *[echo] * 120, live_max=20) as runtime:
        most = 0
        for number in range(60):
            await (await runtime.session(f"s{number}")).send("one")
            most = max(most, len(runtime.system.live()))
        for number in range(60):
            assert (await (await runtime.session(f"s{number}")).send("two")).text == "one ... two"
        assert most <= 23  # The limit, those that come and go, and what is never let go.
        assert runtime.system.passivation.count > 90
