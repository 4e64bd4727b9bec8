"""How runs go and end: rows A6, A15, A19, A21, A22, A23, A25, A26, A27 and B16, and answers that were cut.

Time is moved by hand. Each log is checked and replayed afterwards.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any

import pytest

from refold import (
    AgentRuntime,
    Cancelled,
    CommandRejected,
    Completed,
    ConfigError,
    Failed,
    Message,
    ModelResponse,
    ProviderError,
    RetryPolicy,
    RunResult,
    ScriptedProvider,
    Session,
    TextBlock,
    ThinkingBlock,
    ToolContext,
    ToolUse,
    ToolUseBlock,
    TurnResult,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.core.content import CANCELLED_TEXT, CRASHED_IMPORT_TEXT, JsonObject
from refold.events.core.ids import ToolCallId
from refold.events.model.refused import INPUT_NOTE
from refold.events.session import events as ev
from refold.events.session.react import ENDED_TEXT, TRUNCATED_TEXT
from refold.stores import EventStore, InMemoryStore
from tests.conformance import sessions
from tests.conformance.cases import BEGINNING, Case, Fails, Held, Play, Step, after, as_tests
from tests.conformance.sessions import look
from tests.conformance.steps import (
    advance,
    answer,
    approval_asked,
    asked,
    awaited,
    begin,
    begin_turn,
    begun,
    bring,
    cancel,
    cancel_caller,
    cancel_token,
    check,
    clear,
    crash_and_restart,
    decide,
    does,
    ends,
    join,
    last,
    let_go,
    recorded,
    refused,
    remind,
    requested,
    restart,
    resume,
    send,
    turn,
    turn_ends,
    until,
    waits,
)

LOOK = use("look")
PARK = use("park", {"name": "a"})
EMPTY: list[Any] = [say(""), say(" \n\t"), [], ModelResponse(content=())]
DECLINED: JsonObject = {"type": "refusal", "category": "cyber", "explanation": "declined by a classifier"}
REFUSAL = ProviderError("no such model", kind="invalid_request", status=404)
BEFORE = Message("user", (TextBlock(text="before"),))
THEIRS = ToolUseBlock(id=ToolCallId("theirs"), name="look", input={"at": "x"})


def park(*names: str) -> list[Any]:
    return [use("park", {"name": name}) for name in names]


def cut_calls(*inputs: Any) -> ModelResponse:
    """An answer that was cut inside its last call."""
    calls = [ToolUse(name="look", input=each) for each in inputs]
    return ModelResponse(content=(TextBlock(text="I will"), *calls), stop_reason="max_tokens")


def error_of(play: Play) -> str:
    outcome = play.sent[-1].outcome
    assert isinstance(outcome, Failed)
    return outcome.error.message


def failed_with(words: str) -> Callable[[Play], Awaitable[bool]]:
    """Return what says whether the only result is an error with some words in it."""

    async def failed(play: Play) -> bool:
        (result,) = await sessions.results_of(play.session)
        return result.is_error and words in result.text

    return failed


def forget(session: str) -> Step:
    return does(lambda play: play.runtime.forget(session))


# A6: how a run ends; A15: empty answers, and answers that were cut

ENDS = {
    **{
        f"A6: reaching max_turns fails in words that name the number {limit}, and each run has its own turns": Case(
            [*[[LOOK, LOOK]] * limit, say("next")],
            [
                send("go", Fails("max_turns", message=f"Max turns ({limit}) reached, stopping forcibly"), turns=limit),
                send("more", "next"),
            ],
            config={"max_turns": limit},
            results=["saw it"] * 2 * limit,
            asked=limit + 1,
        )
        for limit in (1, 3)
    },
    "A6: the last turn that is allowed may answer": Case(
        [LOOK, say("done")], [send("go", "done", turns=2)], config={"max_turns": 2}
    ),
    "A6: the outcome is completed, failed or cancelled, and the log says the same": Case(
        [say("done"), REFUSAL, Held(say("never"))],
        [
            [send("one", "done"), last("RunCompleted"), send("two", Fails("provider")), last("RunFailed")],
            [begin("three"), asked(), cancel(), ends(Cancelled()), last("RunCancelled")],
            check(lambda play: len({result.run for result in play.sent}), 3),
        ],
        count={"RunCompleted": 1, "RunFailed": 1, "RunCancelled": 1},
    ),
    "A15: an answer with neither text nor calls is asked again": Case(
        [EMPTY[0], EMPTY[1], LOOK, EMPTY[2], EMPTY[3], say("done")],
        [send("go", "done", turns=6)],
        history=["user: go", "use look", "result: saw it", "assistant: done"],
        requests={1: ["user: go"]},
    ),
    **{
        f"A15: empty answers end the run when too many come in a row, {most}": Case(
            [*[EMPTY[0]] * (most + 1), say("next")],
            [send("go", Fails("empty_answers", f"{most + 1} empty answers")), send("more", "next")],
            config={} if most == 2 else {"empty_answers_max": most},
        )
        for most in (2, 0, 4)
    },
    **{
        f"T02: an answer of nothing but thoughts is asked again once, {most}": Case(
            [ModelResponse(content=(ThinkingBlock(thinking="hm"),))] * asks + [say("next")],
            [send("go", Fails("empty_answers", words)), send("more", "next")],
            config={"empty_answers_max": most},
            count={"ModelRequested": asks + 1},
        )
        for most, asks, words in ((0, 1, "1 empty answers"), (1, 2, "asked again"), (2, 2, "asked again"))
    },
    "T02: a refusal without a word is one call, and its reason is told": Case(
        [ModelResponse(content=(), stop_reason="refusal", stop_details=DECLINED), say("next")],
        [
            send("go", Fails("refused", "The model refused to answer: cyber: declined by a classifier.")),
            check(lambda play: play.sent[0].stop_reason, "refusal"),
            send("more", "next"),
        ],
        history=[f"user: {INPUT_NOTE}", "user: more", "assistant: next"],
        count={"ModelRequested": 2, "InputSetAside": 1},
    ),
    "T02: what a provider says of a refusal is clean and bounded": Case(
        [
            ModelResponse(
                content=(), stop_reason="refusal", stop_details={"category": "a\ud800", "explanation": "x" * 5_000}
            )
        ],
        [
            send("go", Fails("refused", "The model refused to answer: a\ufffd: xxx")),
            check(lambda play: len(error_of(play)), 1_034),
        ],
    ),
    "T02: what a provider says of a refusal and is no JSON makes no answer": Case(
        [ModelResponse(content=(), stop_reason="refusal", stop_details={"category": object()})],
        [send("go", Fails("provider", "stop_details"))],
    ),
    "T02: a refusal where data was asked for is not asked again": Case(
        [say("I cannot.", stop_reason="refusal")],
        [send("go", Fails("refused", "The model refused to answer."))],
        options={"output_type": int},
    ),
    "T02: an answer cut before its first word is not asked again": Case(
        [ModelResponse(content=(ThinkingBlock(thinking="hm", signature="s"),), stop_reason="max_tokens")],
        [send("go", Fails("truncated_answers", "before its first word"))],
    ),
    "A15: asking again is bounded by max_turns": Case(
        EMPTY[:2], [send("go", Fails("max_turns"))], config={"max_turns": 2}
    ),
    "A15: an answer cut inside a call runs none of its calls and is asked again": Case(
        [*[cut_calls({"at": "a"}, "{")] * 2, use("look", {"at": "b"}), *[cut_calls({}, "{")] * 2, say("done")],
        [send("go", "done")],
        results=[*[TRUNCATED_TEXT] * 4, "saw b", *[TRUNCATED_TEXT] * 4],
        kinds=[*["truncated"] * 4, None, *["truncated"] * 4],
        done=["saw b"],
    ),
    "A15: answers cut inside their calls end the run when three come in a row": Case(
        [cut_calls({})] * 3, [send("go", Fails("truncated_answers"))]
    ),
    "A15: an answer cut with text only completes and shows its stop reason": Case(
        [say("a long sto", stop_reason="max_tokens")],
        [send("go", "a long sto"), check(lambda play: play.sent[0].stop_reason, "max_tokens")],
    ),
}


# A19: one turn at a time


def runs(play: Play) -> int:
    """Return of how many runs the turns were."""
    return len({turn.run for turn in play.turns})


NO_RUN = "send an input step by step first"

TURNS = {
    "A19: without a run that waits there is no next turn": Case(
        [say("at once"), Held(say("done"))],
        [
            [refused(NO_RUN, turn()), turn("go", ends="at once")],
            [refused(NO_RUN, turn()), begin("another"), asked()],
            refused("does not wait for its next turn", turn()),
            [let_go(), ends("done")],
        ],
    ),
    "A19: a run waits for its next turn over a restart, which allows none": Case(
        [LOOK, LOOK, say("done")],
        [
            [turn("go", key="k"), restart(config={"model": "a newer one"}, app_version="2"), turn("go", key="k")],
            [requested(1), turn(calls=["saw it"]), turn(ends="done"), check(runs, 1)],
            check(lambda play: {request.model for request in play.requests[1:]}, {"a newer one"}),
        ],
        count={"RunResumed": 0},
    ),
    "A19: resume lets a run go on to its end": Case(
        [*[LOOK] * 3, say("done")], [turn("go", key="k"), resume(), send("go", "done", turns=4, key="k")]
    ),
    **{
        f"A19: a run between two turns can be cancelled, {how}": Case(
            [LOOK, say("next")],
            [
                [turn("go"), *cancels, last("CancelRequested", "RunCancelled")],
                [refused("no run is under way", turn()), send("more", "next")],
            ],
        )
        for how, cancels in {
            "by session.cancel": [cancel()],
            "by its name": [cancel(run=lambda play: play.turns[0].run)],
            "twice with one key": [cancel(key="k"), cancel(key="k")],
        }.items()
    },
    "A19: a caller of a step who is cancelled cancels the run": Case(
        [PARK, say("next")],
        [begin_turn("go"), begun(1), cancel_caller(), last("RunCancelled"), send("more", "next")],
        results=[CANCELLED_TEXT],
    ),
    "A19: a step waits for the person who is asked in its turn": Case(
        [use("pay"), say("done")],
        [
            [begin_turn("go"), approval_asked(), waits()],
            [decide(True), turn_ends(calls=["paid 1"]), turn(ends="done")],
        ],
        done=["paid 1"],
    ),
    "A19: the last turn that max_turns allows ends the run": Case(
        [LOOK, LOOK], [turn("go"), turn(ends=Fails("max_turns"), calls=["saw it"])], config={"max_turns": 2}
    ),
    "A19: a run that a new configuration allows no turn more ends at the next step": Case(
        [LOOK, say("next")],
        [
            [turn("go"), restart(config={"max_turns": 1}), turn(ends=Fails("max_turns")), check(runs, 1)],
            [requested(1), send("another", "next")],
        ],
    ),
    "A19: a key is that of an input and gives the end of a run that is over": Case(
        [say("done")],
        [
            [turn("go", key="k", ends="done"), turn("go", key="k", ends="done"), check(runs, 1)],
            check(lambda play: play.turns[1].events, ()),
            refused("give an input too", turn(key="k"), error=ConfigError),
        ],
    ),
    "A19: a turn that a crash cuts is finished in the next runtime and no other follows": Case(
        [PARK, say("done")],
        [
            [begin_turn("go", key="k"), begun(1), crash_and_restart()],
            [let_go(), turn("go", key="k"), requested(1), turn(ends="done")],
        ],
        results=["a returned"],
    ),
    **{
        f"A19: a run that {what} is resumed also where the session has a reminder": Case(
            [PARK, say("done")],
            [
                [remind("much later", datetime.now(UTC) + timedelta(days=300)), begin_turn("go", key="k"), begun(1)],
                [*between, let_go(), resume(), send("go", "done", key="k")],
            ],
            config={"resumes_max": 0},
        )
        for what, between in {
            "waits for its next turn": [let_go(), turn_ends(), restart()],
            "is parked": [crash_and_restart()],
        }.items()
    },
    "A26: a run that goes step by step is ended by a tool in that turn": Case(
        [LOOK, use("finish", {"text": "over"})], [turn("go"), turn(ends="over", calls=["over"])]
    ),
    "A27: a run that waits for its next turn outlives that its session is forgotten": Case(
        [LOOK, say("done")], [turn("go"), forget("s"), turn(ends="done")]
    ),
}


# A21: an input that joins the run under way


async def said(play: Play) -> list[str]:
    """Return the texts of the history."""
    return [message.text for message in await play.session.history()]


JOINS = {
    "A21: an input for now that comes while the model is asked follows the results": Case(
        [Held(LOOK), say("both")],
        [begin(), asked(), join(), let_go(), ends("both", "both", together=True)],
        requests={1: ["user: go", "use look", "result: saw it", "user: also this"]},
        count={"RunStarted": 1},
    ),
    "A21: an input for now that comes before the answer takes another turn": Case(
        [Held(say("an answer")), say("to both")],
        [begin(), asked(), join(), let_go(), ends("to both", "to both", turns=2)],
        requests={1: ["user: go", "assistant: an answer", "user: also this"]},
    ),
    "A21: inputs for now that come while tools run follow their results in order": Case(
        [park("a", "b"), say("all"), say("later")],
        [
            [begin(), begun(2), begin("in turn"), join("first"), join("second"), check(said, ["go", "", ""])],
            [let_go(), ends("all", "later", "all", "all")],
        ],
        requests={1: ["...", "result: a returned", "result: b returned", "user: first", "user: second"]},
        count={"RunStarted": 2},
        asked=3,
    ),
    "A21: an input for now that comes while a retry is awaited is in the next attempt": Case(
        [ProviderError("overloaded", kind="overloaded", retryable=True), say("done")],
        [begin(), until("RetryScheduled"), join(), advance(10), ends("done", "done", turns=1, together=True)],
        config={"retry": RetryPolicy(base_s=10, jitter=0)},
        clock=True,
        requests={1: ["user: go", "user: also this"]},
    ),
    **{
        f"A21: an input for now that comes while a person is asked waits for the decision, {allow}": Case(
            [use("pay"), say("done")],
            [
                [begin(), approval_asked(), join(), waits()],
                [decide(allow, reason="too dear"), ends("done", "done")],
            ],
            requests={1: ["...", "result: paid 1" if allow else "result: too dear", "user: also this"]},
        )
        for allow in (True, False)
    },
    "A21: without a run an input for now is an ordinary one": Case(
        [say("one"), say("two")], [send("go", "one", now=True), send("on", "two", now=True)], count={"RunStarted": 2}
    ),
    "A21: an input for now that comes after a tool has ended the run, while others run, begins a run of its own": (
        Case(
            [[use("finish", {"text": "over"}), use("park", {"name": "a"})], say("next")],
            [begin(), until("ToolCallCompleted"), join(), let_go(), ends("over", "next")],
            count={"RunStarted": 2},
        )
    ),
    "A21: a key means the run that was joined for ever": Case(
        [PARK, say("done"), say("next")],
        [
            [begin(), begun(1), join(key="k"), join(key="k")],
            refused("key 'k'", send("something else", now=True, key="k")),
            [let_go(), ends("done", "done", "done", together=True)],
            [send("and now", "next"), *[send("also this", "done", now=True, key="k")] * 2],
            [restart(), send("also this", "done", now=True, key="k")],
            check(lambda play: len({result.run for result in play.sent}), 2),
        ],
        history=[
            *["user: go", "use park", "result: a returned", "user: also this", "assistant: done"],
            *["user: and now", "assistant: next"],
        ],
    ),
    "A21: an input for now whose token is cancelled joins nothing": Case(
        [PARK, say("done")],
        [
            [cancel_token(), begin(), begun(1), send("never", Cancelled(), now=True, token=True)],
            [let_go(), ends("done"), check(lambda play: "never" in str(play.requests), False)],
        ],
    ),
    "A21: the token of an input that has joined cancels the run": Case(
        [PARK, say("next")],
        [
            [begin(), begun(1), join(token=True), cancel_token(), ends(Cancelled(), Cancelled(), together=True)],
            send("more", "next"),
        ],
        history=[
            *["user: go", "use park", f"result: {CANCELLED_TEXT}", "user: also this"],
            *["user: more", "assistant: next"],
        ],
    ),
    "A21: a caller who joined and is cancelled leaves the run to the other": Case(
        [PARK, say("done")],
        [begin(), begun(1), join(), cancel_caller(), let_go(), ends("done")],
        requests={1: ["...", "user: also this"]},
    ),
    "A21: a run that has no turn left ends and keeps the input in its history": Case(
        [Held(say("an answer")), say("next")],
        [begin(), asked(), join(), let_go(), ends("an answer", "an answer", together=True), send("more", "next")],
        config={"max_turns": 1},
        requests={1: ["user: go", "assistant: an answer", "user: also this", "user: more"]},
    ),
    "A21: an input for now survives a crash and joins a parked run that goes on with it": Case(
        [PARK, say("done")],
        [
            [begin(), begun(1), join("before the crash")],
            [crash_and_restart(), join("while it is parked"), last("RunParked", "InputQueued"), waits()],
            [let_go(), resume(), ends("done")],
        ],
        config={"resumes_max": 0},
        requests={1: ["...", "user: before the crash", "user: while it is parked"]},
        count={"RunParked": 1},
    ),
    "A21: now and a later time exclude each other": Case(
        [], [refused("either for now or for a later time", send(now=True, at=after(1)), error=ConfigError)], events=[]
    ),
    "A26: an input that has joined a run that a tool ends stays in the history": Case(
        [use("finish_later", {"text": "over"}), say("next")],
        [begin(), begun(1), join(), let_go(), ends("over", "over"), send("more", "next")],
        requests={1: ["user: go", "use finish_later", "result: over", "user: also this", "user: more"]},
    ),
}


# A23: timers that survive


FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Nowhere(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


def reminding(play: Play) -> list[Any]:
    @tool
    async def remind_me(context: ToolContext[Any]) -> str:
        await (await play.runtime.session(context.session)).remind("wake up", at=after(10))
        return "reminded"

    return [remind_me]


timed = partial(Case, clock=True)

TIMERS = {
    "A23: reminders begin at their times in the order of time": timed(
        [say("heard")] * 5,
        [
            *(remind(name, after(s)) for name, s in {"late": 30, "early": 10, "also late": 30, "middle": 20}.items()),
            [send("meanwhile", "heard"), advance(9.9), requested(1), advance(0.1), until("RunCompleted", 2)],
            [advance(9.9), requested(2), advance(0.1), until("RunCompleted", 3), advance(9.9), requested(3)],
            [advance(0.1), until("RunCompleted", 5)],
        ],
        history=[
            line
            for name in ("meanwhile", "early", "middle", "late", "also late")
            for line in (f"user: {name}", "assistant: heard")
        ],
    ),
    "A23: send at a time returns how its run ended": timed(
        [say("on time")],
        [
            [begin("go", at=after(60)), advance(59), requested(0), last("TimerSet"), advance(1), ends("on time")],
            check(
                lambda play: play.heard,
                ["TimerSet", "InputQueued", "RunStarted", "ModelRequested", "ModelResponded", "RunCompleted"],
            ),
            recorded(ev.TimerSet, "due_at", round(after(60).timestamp() * 1e6)),
        ],
    ),
    **{
        f"A23: a reminder survives {how}, {'before' if at < 10 else 'after'} its time": timed(
            [say("awake")],
            [
                [remind("wake up", after(10), key="k"), again(after_s=at, app_version="2")],
                remind("wake up", after(10), key="k"),
                [*([advance(4), requested(0), advance(1)] if at < 10 else [advance(0)]), until("RunCompleted")],
                [send("wake up", "awake", key="k"), check(lambda play: play.sent[0].run == play.kept["wake up"])],
                recorded(ev.RunStarted, "code.app", "2"),
            ],
            options={"app_version": "1"},
        )
        for at in (5, 100)
        for how, again in {"a restart": restart, "a crash": crash_and_restart}.items()
    },
    "A23: a reminder of another agent waits until the session is resumed here": timed(
        [say("awake")],
        [
            [remind("wake up", after(10)), restart(after_s=20, name="another"), waits(), advance(100), requested(0)],
            [resume(), advance(0), until("RunCompleted")],
        ],
        options={"name": "one"},
    ),
    "A23: a reminder that is cancelled never begins": timed(
        [say("the other")],
        [
            [remind("one", after(10), key="k"), remind("two", after(10)), begin("three", at=after(10), token=True)],
            *[cancel(run=lambda play: play.kept["one"])] * 2,
            [cancel_token(), ends(Cancelled()), advance(10), until("RunCompleted")],
            [send("one", Cancelled(), key="k"), remind("one", after(20), key="k"), advance(20)],
        ],
        history=["user: two", "assistant: the other"],
        asked=1,
    ),
    "A23: an input for later whose token is cancelled already never begins": timed(
        [],
        [
            [cancel_token(), *(send("never", Cancelled(), at=after(seconds), token=True) for seconds in (10, -10))],
            advance(100),
        ],
        history=["user: never"] * 2,
        asked=0,
    ),
    "A23: a tool may remind its own session": timed(
        [use("remind_me"), say("good night"), say("awake")],
        [send("go", "good night"), advance(10), until("RunCompleted", 2)],
        tools=reminding,
        history=["...", "user: wake up", "assistant: awake"],
    ),
    "A23: cancelling the run under way leaves reminders alone": timed(
        [Held(say("never")), say("awake")],
        [
            [remind("wake up", after(10)), begin(), asked()],
            [cancel(), ends(Cancelled()), cancel(), advance(10), until("RunCompleted")],
        ],
    ),
    "A23: a reminder whose time comes during a run is queued": timed(
        [Held(say("first")), say("second")],
        [
            [begin(), asked(), remind("wake up", after(10)), advance(10), until("InputQueued", 2), requested(1)],
            [let_go(), ends("first"), until("RunCompleted", 2)],
        ],
        history=["...", "user: wake up", "assistant: second"],
    ),
    **{
        f"A23: a time that is over means at once, {at:%Y-%m-%d %H}": Case(
            [say("at once")], [begin("go", at=at), advance(0), ends("at once")], clock=True
        )
        for at in (after(0), after(-3600), datetime(1969, 12, 31, tzinfo=UTC))
    },
    **{
        f"A23: a time without a zone is refused and nothing is recorded, {type(at).__name__} {place}": Case(
            [], [refused("with a time zone", remind("go", at), send("go", at=at), error=ConfigError)], events=[]
        )
        for place, at in enumerate(
            (
                BEGINNING.replace(tzinfo=None),
                BEGINNING.replace(tzinfo=Nowhere()),
                1_900_000_000,
                "2030-01-01T00:00:00Z",
            )
        )
    },
    **{
        f"A23: the ends of time are times, {at.year} at {hours}": timed(
            [say("once")],
            [
                [remind("go", at.replace(tzinfo=timezone(timedelta(hours=hours)))), advance(1)],
                [cancel(run=lambda play: play.kept["go"]), advance(0)],
            ],
        )
        for at, hours in ((LAST, 0), (LAST, -14), (FIRST, 0), (FIRST, 14))
    },
    "A23: the run timeout stops while a person is waited for": timed(
        [Held(use("pay")), PARK],
        [
            [begin(), asked(), advance(6), answer(), approval_asked(), advance(100_000), waits()],
            [decide(True), begun(1), waits(), advance(3.9), waits(), advance(0.2), ends(Fails("run_timeout"))],
        ],
        config={"run_timeout_s": 10},
        kinds=[None, "timeout"],
    ),
    "A23: the run timeout goes on while a sibling runs beside the wait": timed(
        [[PARK, use("pay")]],
        [begin(), begun(1), advance(10), ends(Fails("run_timeout"))],
        config={"run_timeout_s": 10},
    ),
    "A23: the run timeout stops between turns and over a restart in an approval": timed(
        [use("pay"), say("done")],
        [
            [begin_turn("go"), approval_asked(), advance(50)],
            [restart(after_s=3600), decide(True), until("ToolCallCompleted"), advance(3600), turn(ends="done")],
        ],
        config={"run_timeout_s": 10},
    ),
    "A27: a session that does or awaits something is not forgotten": timed(
        [Held(use("pay")), say("done")],
        [
            [begin(), asked(), refused("cannot be forgotten", forget("s"))],
            [let_go(), approval_asked(), refused("cannot be forgotten", forget("s"))],
            [decide(True), ends("done"), remind("later", after(10))],
            refused("cannot be forgotten", forget("s")),
            [cancel(run=lambda play: play.kept["later"]), forget("s")],
            check(lambda play: "session/s" in play.runtime.system.live(), False),
        ],
    ),
}


# A25: which code decided

ANOTHER: dict[str, Any] = {"config": {"model": "another"}, "app_version": "2"}


async def codes(play: Play) -> list[tuple[str, str | None, int]]:
    """Return which code began each run or went on with it, and its configuration, counted from the first."""
    seen: list[str] = []
    found: list[tuple[str, str | None, int]] = []
    for event in await play.events():
        if isinstance(event, ev.RunStarted | ev.RunResumed):
            seen += [event.fingerprint] if event.fingerprint not in seen else []
            found.append((type(event).__name__, event.code.app, seen.index(event.fingerprint)))
    return found


def models(play: Play) -> list[str]:
    return [request.model for request in play.requests]


CODES = {
    "A25: a run says which code and agent began it and which went on with it": Case(
        [Held(say("done")), say("more")],
        [
            [begin("go", key="k"), asked(), restart(**ANOTHER)],
            [let_go(), send("go", "done", key="k"), send("on", "more")],
            check(codes, [("RunStarted", "1", 0), ("RunResumed", "2", 1), ("RunStarted", "2", 1)]),
        ],
        options={"app_version": "1"},
    ),
    **{
        f"A25: {what} that lets a run go on in new code tells the session of it first": Case(
            script,
            [
                [*before, restart(**ANOTHER), *then, until("RunCompleted")],
                check(lambda play: models(play)[-1], "another"),
            ],
            options={"app_version": "1"},
            clock=what == "a reminder",
        )
        for what, script, before, then in (
            ("a step", [LOOK, say("done")], [turn("go")], [turn(ends="done")]),
            ("a decision", [use("pay"), say("done")], [begin(), approval_asked()], [decide(True)]),
            ("a reminder", [say("done")], [remind("go", after(10))], [waits(), advance(10)]),
        )
    },
    "A25: an input in new code is answered by its configuration": Case(
        [say("old"), say("new")],
        [send("go", "old"), restart(config={"model": "new"}), send("go", "new"), check(models, ["m", "new"])],
    ),
}


# A26: a tool that ends the run


@tool(tier="observe", effect="pure")
def finish_in_thread(context: ToolContext[Any], text: str) -> str:
    return context.finish(text)


@tool(effect="pure")
async def finish_and_raise(context: ToolContext[Any]) -> str:
    context.finish("over")
    raise ValueError("not quite")


@tool(effect="pure")
async def finish_with_a_number(context: ToolContext[Any]) -> str:
    wrong: Any = 5
    return context.finish(wrong)


FINISHES = {
    **{
        f"A26: a tool ends the run with a text, {length}, {ending}": Case(
            [use(ending, {"text": text}), say("next")],
            [
                [send("go", text, turns=1, key="k"), requested(1)],
                [send("more", "next"), send("go", text, key="k")],
            ],
            tools=[finish_in_thread],
            results=[text],
            asked=2,
        )
        for ending in ("finish", "finish_in_thread")
        for length, text in {"short": "all done", "empty": "", "huge": "long " * 30_000}.items()
    },
    "A26: calls beside the one that ends the run are awaited, and those not begun do not run": Case(
        [[*park("a"), use("finish", {"text": "over"}), use("act", {"name": "later"}), *park("b")]],
        [begin(), begun(1), until("ToolCallCompleted"), waits(), let_go(), ends("over")],
        results=["a returned", "over", ENDED_TEXT, ENDED_TEXT],
        kinds=[None, None, "denied", "denied"],
        count={"ToolCallStarted": 2},
    ),
    "A26: a call that waits for a person is not waited for when the run is ended": Case(
        [[use("finish", {"text": "over"}), use("pay")]],
        [
            [send("go", "over"), awaited()],
            refused("does not wait", decide(True, call=0)),
        ],
        results=["over", ENDED_TEXT],
        done=[],
    ),
    "A26: of two calls that end the run the first to return gives the answer": Case(
        [[use("finish_later", {"text": "second"}), use("finish", {"text": "first"})]],
        [begin(), begun(1), until("ToolCallCompleted"), let_go(), ends("first")],
        results=["second", "first"],
    ),
    **{
        f"A26: {what} ends nothing": Case(
            [use(name), say("went on")],
            [send("go", "went on"), check(failed_with(words))],
            tools=[finish_and_raise, finish_with_a_number],
        )
        for what, name, words in (
            ("a body that raises after finish", "finish_and_raise", "not quite"),
            ("what is no text", "finish_with_a_number", "text, not int"),
        )
    },
    **{
        f"A26: finish and cancel at once end the run once, {winner} wins": Case(
            [[use("finish_later", {"text": "over"}), PARK], say("next")],
            [
                [begin(token=True), begun(2), let_go("over")],
                *([until("ToolCallCompleted")] if winner == "finish" else []),
                [cancel_token(), ends(Cancelled())],
                send("more", "next"),
            ],
            results=["over" if winner == "finish" else CANCELLED_TEXT, CANCELLED_TEXT],
            count={"RunCancelled": 1, "RunFailed": 0, "RunCompleted": 1},
        )
        for winner in ("finish", "cancel")
    },
}


# A27: upkeep of a session


NEITHER: list[Any] = ["yes", None, 1]


def names_begun(play: Play) -> list[str]:
    return list(play.bench.begun)


UPKEEP = {
    "A27: an imported history is what the model sees first": Case(
        [say("done")],
        [*[bring(BEFORE, Message("assistant", (THEIRS,)), key="k")] * 2, send("go", "done")],
        requests={0: ["user: before", "use look", f"result: {CRASHED_IMPORT_TEXT}", "user: go"]},
    ),
    "A27: a session that begins with being cleared says whose it is": Case(
        [say("one")],
        [
            [clear(key="k"), clear()],
            check(lambda play: sessions.types_of(play.session), ["SessionOpened", "AgentConfigured", "HistoryCleared"]),
            send("go", "one"),
        ],
    ),
    "A27: after clear the model sees nothing of before, and the log keeps it": Case(
        [LOOK, say("one"), say("two"), say("three")],
        [
            [send("go", "one", key="sent"), clear(key="k"), check(said, [])],
            [send("anew", "two"), clear(key="k"), check(said, ["anew", "two"])],
            [send("go", "one", key="sent"), restart(), send("after a restart", "three")],
        ],
        requests={2: ["user: anew"], 3: ["user: anew", "assistant: two", "user: after a restart"]},
        count={"ToolCallStarted": 1},
    ),
    "A27: a repeated key clears nothing that came after it": Case(
        [say("hi")],
        [bring(BEFORE), clear(), clear(key="k"), send("hello", "hi"), clear(key="k")],
        history=["user: hello", "assistant: hi"],
    ),
    "A27: nothing is cleared or imported while a run is under way": Case(
        [Held(say("done"))],
        [begin(), asked(), refused("is under way", clear(), bring(BEFORE)), let_go(), ends("done")],
        history=["user: go", "assistant: done"],
        crashes=False,
    ),
    "A27: a session that is forgotten leaves memory and comes back from the log": Case(
        [say("one"), say("two")],
        [
            [send("go", "one"), check(lambda play: "session/s" in play.runtime.system.live()), forget("s")],
            [forget("s"), forget("never heard of")],
            check(lambda play: "session/s" in play.runtime.system.live(), False),
            send("more", "two"),
        ],
        requests={1: ["user: go", "assistant: one", "user: more"]},
    ),
    "observing calls run beside each other, and acting calls alone and in order": Case(
        [[*park("a", "b"), *(use("act", {"name": name}) for name in "cd")], say("done")],
        [
            [begin(), begun(2), waits(), check(names_begun, ["a", "b"]), let_go("a", "b")],
            [begun(3), waits(), check(names_begun, ["a", "b", "c"]), let_go("c"), begun(4), let_go(), ends("done")],
        ],
        results=[f"{name} returned" for name in "abcd"],
    ),
    **{
        f"B16: no reason makes a cancellation fail, {what}": Case(
            park("a", "b"),
            [
                [begin(token=True), begun(1), cancel_token(reason), ends(Cancelled()), begin("again"), begun(2)],
                [cancel(reason=reason), ends(Cancelled())],
            ],
        )
        for what, reason in {"long": "x" * 2_000_000, "an error": ValueError("stop"), "a surrogate": "\ud800"}.items()
    },
    "resuming a run that goes on disturbs nothing": Case(
        [PARK, say("done")],
        [begin(), begun(1), resume(), let_go(), ends("done")],
        results=["a returned"],
        count={"ToolCallStarted": 1},
    ),
    **{
        f"a decision that is neither yes nor no is refused, {allow}": Case(
            [use("pay"), say("ok")],
            [
                [
                    begin(),
                    approval_asked(),
                    refused(None, decide(allow)),
                    decide(False, reason="no \ud800"),
                    ends("ok"),
                ],
                recorded(ev.ToolCallFailed, "started", False),
            ],
            results=["no \ufffd"],
            kinds=["denied"],
        )
        for allow in NEITHER
    },
    "what is no id is refused and costs the session nothing": Case(
        [say("fine")],
        [
            refused(
                None,
                *[does(lambda play: play.session.decide("\ud800", allow=True, key="k"))] * 8,
                does(lambda play: play.session.decide(5, allow=True)),  # type: ignore[arg-type]
                does(lambda play: play.session.decide("c", allow="yes")),  # type: ignore[arg-type]
                does(lambda play: play.session.cancel(run=object())),  # type: ignore[arg-type]
            ),
            send("go", "fine"),
        ],
    ),
}

CASES = {**ENDS, **TURNS, **JOINS, **TIMERS, **CODES, **FINISHES, **UPKEEP}


test_runs, test_runs_with_a_crash_after_each_commit = as_tests(CASES)


# What is no case of one session


def clock_at(moment: datetime = BEGINNING) -> ManualClock:
    return ManualClock(round(moment.timestamp() * 1_000_000))


def sending(session: Session, content: str) -> "asyncio.Task[RunResult]":
    return asyncio.create_task(session.send(content))


async def test_a19_a_run_goes_turn_by_turn_and_does_nothing_between(log: EventStore) -> None:
    script = [[say("looking").content[0], use("look"), use("look", {"at": "that"})], use("look"), say("done")]
    async with sessions.opened(log, *script, tools=[look]) as (runtime, session):
        first = await session.step("go")
        assert (first.text, first.result) == ("looking", None)
        assert [(call.name, call.input, result.text) for call, result in first.calls] == [
            ("look", {}, "saw it"),
            ("look", {"at": "that"}, "saw that"),
        ]
        assert [type(item.event).__name__ for item in first.events][-1] == "ToolCallCompleted"
        assert len(sessions.requests_of(runtime)) == 1
        assert (await session.state_at()).run is not None
        second = await session.step()
        assert (second.text, second.result, len(second.calls), len(sessions.requests_of(runtime))) == ("", None, 1, 2)
        last = await session.step()
        assert (last.text, last.calls) == ("done", [])
        assert last.result is not None
        assert (last.result.outcome, last.result.text, last.result.turns) == (Completed(), "done", 3)
        assert {first.run, second.run, last.run} == {last.result.run}
        stepped = [item.version for turn in (first, second, last) for item in turn.events]
        recorded = [item.version async for item in session.events(after_version=2)]
        assert stepped == recorded, "each event of the run is in exactly one turn"


async def test_a19_of_two_who_allow_the_next_turn_at_once_one_does(log: EventStore) -> None:
    held = sessions.HeldAnswer(use("look"))
    async with sessions.opened(log, use("look"), held, say("done"), tools=[look]) as (runtime, session):
        await session.step("go")
        callers = [asyncio.create_task(session.step()) for _ in range(2)]
        await held.asked.wait()
        held.gate.set()
        one, other = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(one, TurnResult)
        assert isinstance(other, CommandRejected)
        assert (one.result, len(one.calls), len(sessions.requests_of(runtime))) == (None, 1, 2)


async def test_a19_two_who_step_with_one_key_see_the_same_turn(log: EventStore) -> None:
    held = sessions.HeldAnswer(use("look"))
    async with sessions.opened(log, held, say("done"), tools=[look]) as (runtime, session):
        callers = [asyncio.create_task(session.step("go", key="k")) for _ in range(2)]
        await held.asked.wait()
        held.gate.set()
        one, other = await asyncio.gather(*callers)
        assert one.run == other.run
        assert (one.result, other.result) == (None, None)
        again = await session.step("go", key="k")
        assert (again.run, again.result, len(sessions.requests_of(runtime))) == (one.run, None, 1)
        with pytest.raises(CommandRejected, match="key 'k'"):
            await session.step("something else", key="k")


async def test_a19_a_step_takes_the_first_turn_when_the_runs_before_it_have_ended(log: EventStore) -> None:
    held = sessions.HeldAnswer(say("first"))
    async with sessions.opened(log, held, use("look"), say("second"), say("third"), tools=[look]) as (_, session):
        before = sending(session, "one")
        await held.asked.wait()
        stepping = asyncio.create_task(session.step("two"))
        await session.history()
        queued = sending(session, "three")
        held.gate.set()
        assert (await before).text == "first"
        turn = await stepping
        assert (turn.result, [result.text for _, result in turn.calls]) == (None, ["saw it"])
        assert isinstance(turn.events[0].event, ev.InputQueued)
        assert not queued.done()
        last = await session.step()
        assert last.result is not None
        assert last.result.text == "second"
        assert (await queued).text == "third"


async def first_of_stream(session: Session) -> Any:
    return await anext(session.stream("and?"))


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param(lambda session: session.step(), id="its next turn"),
        pytest.param(lambda session: session.step("go"), id="an input and its first turn"),
        pytest.param(lambda session: session.send("and?"), id="an answer"),
        pytest.param(first_of_stream, id="a stream"),
    ],
)
async def test_a19_a_tool_that_waits_for_its_own_session_is_told_instead(
    log: EventStore, wait: Callable[[Session], Awaitable[Any]]
) -> None:
    @tool
    async def wait_for_myself() -> Any:
        return await wait(session)

    script = use("wait_for_myself"), say("I see.")
    async with sessions.opened(log, *script, tools=[wait_for_myself]) as (_, session):
        assert (await session.send("go")).text == "I see."
        [result] = await sessions.results_of(session)
        assert "AskCycle" in result.text
        assert "session/s -> its tool -> session/s" in result.text
        assert "the session's submit() or remind(), which do not wait" in result.text


async def test_a23_a_reminder_in_a_session_that_nobody_opens_again_begins_all_the_same(log: EventStore) -> None:
    async with sessions.runtime_of(log, clock=clock_at()) as runtime:
        await (await runtime.session("s")).remind("wake up", at=after(10))
    over, clock = asyncio.Event(), clock_at(after(3600))
    runtime = sessions.runtime_of(log, say("awake"), clock=clock, ask_timeout_s=1e6)
    runtime.subscribe(lambda item: over.set() if isinstance(item.event, ev.RunCompleted) else None)
    async with runtime:
        while not over.is_set():
            await clock.advance(0)
        assert sessions.shown(await (await runtime.session("s")).history()) == ["user: wake up", "assistant: awake"]


async def test_a23_many_reminders_all_begin_once(log: EventStore) -> None:
    clock, count = clock_at(), 30
    async with sessions.opened(log, *[say("heard")] * count, clock=clock, ask_timeout_s=1e6) as (_, session):
        runs = [await session.remind(f"{number}", at=after(1 + number * 7 % count)) for number in range(count)]
        await clock.advance(count)
        while len(await sessions.events_of(session, ev.RunCompleted)) < count:
            await clock.advance(1)
        started = [event.run for event in await sessions.events_of(session, ev.RunStarted)]
        assert sorted(started) == sorted(runs)
        said = [int(message.text) for message in await session.history() if message.role == "user"]
        assert said == sorted(range(count), key=lambda number: (number * 7 % count, number))


@pytest.mark.slow
@pytest.mark.parametrize("jump_s", [36_060, -3_600])
async def test_a23_a_reminder_follows_the_wall_clock_when_that_is_set(jump_s: float) -> None:
    clock = ManualClock()
    async with sessions.opened(InMemoryStore(), say("reminded"), clock=clock) as (_, session):
        ten_hours = datetime.fromtimestamp(clock.now_us() / 1e6, UTC) + timedelta(hours=10)
        await session.remind("now?", at=ten_hours)
        clock.jump(jump_s)
        await clock.advance(120)
        finished = (await session.state_at()).last_run
        assert (finished is not None) == (jump_s > 0)
        await clock.advance(36_000 - 60)
        assert ((await session.state_at()).last_run is None) == (jump_s < 0)
        await clock.advance(3_600)
        assert (await session.state_at()).last_run is not None


async def test_a27_a_result_that_comes_after_clear_is_evidence_and_no_history(log: EventStore) -> None:
    parked, clock = sessions.Parked(), clock_at()
    calls = [use("ignore", {"name": name}) for name in "ab"]
    async with sessions.opened(log, calls, say("next"), tools=[parked.ignore], clock=clock, cancel_grace_s=1) as (
        runtime,
        session,
    ):
        seen = sessions.Seen(runtime, session)
        run = sending(session, "go")
        await parked.until(2)
        cancelling = asyncio.create_task(session.cancel())
        await seen.first(ev.RunCancelled)
        await clock.advance(1)
        await cancelling
        assert (await run).outcome == Cancelled()
        await session.clear()
        parked.gate.set()
        late = await seen.first(ev.ToolResultLate, 2)
        assert {event.content[0].text for event in late} == {"a returned", "b returned"}
        assert await session.history() == []
        assert (await session.send("anew")).text == "next"
        assert sessions.shown(sessions.requests_of(runtime)[-1].messages) == ["user: anew"]


async def test_a27_a_runtime_shows_what_it_was_built_from(log: EventStore) -> None:
    provider = ScriptedProvider([])

    def approval(session: Any, request: Any) -> Any:
        raise AssertionError("nobody asks")

    def policy(call: Any) -> Any:
        raise AssertionError("nobody asks")

    async with AgentRuntime(
        sessions.CONFIG, provider=provider, tools=[look, finish_in_thread], log=log, approval=approval, policy=policy
    ) as runtime:
        assert runtime.tools.names() == ("finish_in_thread", "look")
        assert runtime.agent.provider is provider
        assert (runtime.agent.approval, runtime.agent.policy) == (approval, policy)
        await (await runtime.session("s")).import_history([Message("user", (TextBlock(text="x"),))])
        assert await runtime.store.head("session/s") is not None
        assert ev.ModelRequested.__name__ not in await sessions.types_of(await runtime.session("s"))


async def test_a22_a_repeated_key_costs_no_reading_of_the_log(log: EventStore) -> None:
    async with sessions.opened(log, *(say(str(number)) for number in range(20))) as (
        _,
        session,
    ):
        for number in range(20):
            await session.send("go", key=f"k{number}")
        reads = 0
        read_stream = log.read_stream

        async def counting(*args: Any, **named: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read_stream(*args, **named)

        log.read_stream = counting  # type: ignore[method-assign]
        assert [(await session.send("go", key=f"k{number}")).text for number in range(20)] == [
            str(number) for number in range(20)
        ]
        assert reads == 0


async def test_what_a_tool_has_begun_may_send_to_its_session_once_the_tool_has_ended(log: EventStore) -> None:
    tasks: list[asyncio.Task[Any]] = []
    ended = asyncio.Event()

    async def later(session: Session) -> Any:
        await ended.wait()
        return await session.send("from behind")

    @tool
    async def begin() -> str:
        tasks.append(asyncio.create_task(later(await runtime.session("s"))))
        return "begun"

    runtime = sessions.runtime_of(log, use("begin"), say("one"), say("two"), tools=[begin])
    async with runtime:
        assert (await (await runtime.session("s")).send("go")).text == "one"
        ended.set()
        assert (await tasks[0]).text == "two"
