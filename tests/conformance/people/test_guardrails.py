"""Guardrails: what trips is told to no model, or to no caller; it is recorded, and a replay asks the same again."""

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

import refold
from refold import Agent, AgentConfig, AgentRuntime, Allow, Deny, Guardrail, Message, RunContext, say, use
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import text_of
from refold.events.core.errors import ConfigError
from refold.events.model.refused import GuardrailTrip
from refold.events.session.events import InputSetAside, ModelInterrupted, ModelResponded, RunCompleted, RunFailed
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore
from tests.conformance.cases import Case, Fails, Held, Play, as_tests
from tests.conformance.failing_store import Hold
from tests.conformance.sessions import Streams, session_in
from tests.conformance.steps import (
    advance,
    answer,
    asked,
    begin,
    begun,
    cancel,
    cancel_token,
    check,
    ends,
    join,
    last,
    let_go,
    ran,
    recorded,
    requested,
    restart,
    send,
    step,
    until,
)

NOTE = "(What stood here was set aside, since a guardrail did not let it pass.)"


class Price(msgspec.Struct):
    euros: int


@refold.guardrail
async def no_cards(context: RunContext[Any], said: Message) -> Deny | None:
    return Deny("a card number") if "4111" in said.text else None


@refold.guardrail(name="polite")
def polite(context: RunContext[Any], said: Message) -> Deny | Allow:
    return Deny() if "stupid" in said.text else Allow()


@refold.guardrail
def not_dear(context: RunContext[Any], answer: Any) -> Deny | None:
    dear = answer.euros > 100 if isinstance(answer, Price) else "1000" in answer
    return Deny("too dear") if dear else None


def fails(what: Any) -> Guardrail[Any]:
    def broken(context: RunContext[Any], given: object) -> Any:
        if isinstance(what, BaseException):
            raise what
        return what

    return refold.guardrail(name="broken")(broken)


def tripped(guardrail: str, reason: str, on: Any = "input") -> refold.Tripped:
    words = f"The {on} guardrail {guardrail!r} tripped" + (f": {reason}" if reason else ".")
    error = refold.RunError(kind="guardrail", message=words)
    return refold.Tripped(error=error, guardrail=guardrail, on=on, reason=reason)


BUSY = refold.ProviderError("busy", kind="rate_limit", retryable=True)
CARD = tripped("no_cards", "a card number")
DEAR = tripped("not_dear", "too dear", "output")
BOTH: dict[str, Any] = {"input_guardrails": [no_cards, polite], "output_guardrails": [not_dear]}

guarded = partial(Case, options=BOTH)

CASES = {
    "what an input guardrail trips on reaches no model, in its run or later": guarded(
        ["Hello.", "Yes."],
        [
            send("Hi", "Hello."),
            send("My card is 4111", CARD),
            requested(1),
            last("InputQueued", "RunStarted", "ModelRequested", "GuardrailTripped", "InputSetAside", "RunFailed"),
            send("You stupid thing", tripped("polite", "")),
            send("4111, stupid", CARD),
            restart(),
            send("Still there?", "Yes."),
        ],
        requests={1: ["user: Hi", "assistant: Hello.", *[f"user: {NOTE}"] * 3, "user: Still there?"]},
    ),
    "an answer that an output guardrail trips on is no answer, now or later": guarded(
        ["It costs 1000.", "Nothing."],
        [
            send("What does it cost?", DEAR),
            recorded(
                ModelResponded,
                "content trip",
                ("It costs 1000.", trip := GuardrailTrip(guardrail="not_dear", on="output", reason="too dear")),
            ),
            recorded(RunFailed, "trip", trip),
            restart(),
            send("And that?", "Nothing."),
        ],
        history=["user: What does it cost?", "user: And that?", "assistant: Nothing."],
    ),
    "an input that joins a run is judged before the next model call": guarded(
        [Held(use("look", {"at": "a"}, id="toolu_1")), "Never."],
        [begin("Look"), asked(), join("at 4111"), let_go(), ends(CARD, CARD)],
        asked=1,
        history=["user: Look", "use look", "result: saw a", f"user: {NOTE}"],
        crashes=False,
    ),
    "an input whose run ended before it was judged is judged with the next": guarded(
        ["Never."],
        [cancel_token(), send("4111", refold.Cancelled(), token=True), send("Hi", CARD)],
        asked=0,
        history=[f"user: {NOTE}"] * 2,
    ),
    "what was judged is not judged again in later turns": guarded(
        [use("look", {"at": "4111"}), use("look", {"at": "stupid"}), "Seen."],
        [send("Look", "Seen.")],
        asked=3,
    ),
    "an answer is judged as a value of the output type, once it fits": Case(
        ["1000", '{"euros": 1000}', '{"euros": 7}', "It was 1000."],
        [
            send("How much?", DEAR, turns=2),
            send("And that?", '{"euros": 7}'),
        ],
        options={"output_type": Price, "output_guardrails": [not_dear]},
    ),
    "a run with a type of its own has its text judged": Case(
        ["1000"],
        [send("How much?", DEAR, output_type=int)],
        options={"output_type": Price, "output_guardrails": [not_dear]},
    ),
    "a streamed answer is shown as it comes, and is no answer where a guardrail trips": Case(
        ["It costs 1000."], [send("How much?", DEAR)], options=BOTH, config={"streaming": True}
    ),
    **{
        f"a guardrail fails its run where it {does}, and judges again": Case(
            ["Never."],
            [
                send("Hi", Fails("agent_loop", f"the input guardrail 'broken' {words}")),
                recorded(InputSetAside, "reason"),
            ]
            * 2,
            options={"input_guardrails": [fails(what)]},
            asked=0,
            history=["user: Hi", "user: Hi"],
        )
        for does, what, words in (
            ("raises", KeyError("k"), "failed: KeyError: 'k'"),
            (
                "raises what a provider may raise",
                BUSY,
                "failed",
            ),
            ("ends the process", SystemExit(3), "failed: SystemExit: 3"),
            ("returns a text", "no", "gave str instead of None, Allow or Deny"),
            ("returns False", False, "gave bool instead"),
        )
    },
    "an output guardrail that fails lets nothing pass, and what was paid counts": Case(
        [say("Yes.", usage=refold.Usage(output_tokens=7))],
        [
            send("Hi", Fails("agent_loop", "AgentLoopError: the output guardrail 'broken' failed: ValueError")),
            check(lambda play: play.sent[-1].usage.output_tokens, 7),
        ],
        options={"output_guardrails": [fails(ValueError())]},
    ),
}


def beside(play: Play, *names: str, **more: Any) -> dict[str, Any]:
    """Return guardrails that run in parallel and trip on their names once each was let go, and what else there is."""

    def made(name: str) -> Guardrail[Message]:
        @refold.guardrail(name=name, run_in_parallel=True)
        async def slow(context: RunContext[Any], said: Message) -> Deny | None:
            try:
                await play.bench.parked(name)
            except asyncio.CancelledError:
                play.bench.note(f"{name} is cancelled")
                raise
            if "cut" in said.text and (task := asyncio.current_task()) is not None:
                task.cancel()
                await asyncio.sleep(0)
            if "broken" in said.text:
                raise KeyError(name)
            return Deny("so it says") if name in said.text else None

        return slow

    return {"input_guardrails": [*map(made, names or ("slow",))]} | more


SLOW = tripped("slow", "so it says")
SPENT = refold.Usage(output_tokens=7)


@step
async def in_hand(play: Play, /) -> None:
    """Let the model's answer come, and wait until whatever could follow from it has."""
    await answer().act(play)
    for _ in range(100):
        await asyncio.sleep(0)


@step
async def hold(play: Play, /, name: str) -> None:
    play.bench.gates[name].clear()


judged_beside = partial(Case, options=beside)

BESIDE = {
    "no call of an answer begins before the guardrails beside it let pass": judged_beside(
        [Held(use("look")), "Seen."],
        [
            begin("Hi"),
            asked(),
            in_hand(),
            last("RunStarted", "ModelRequested"),
            let_go("slow"),
            ends("Seen."),
        ],
        asked=2,
        done=["saw it"],
    ),
    "a guardrail that trips beside a model call ends it": judged_beside(
        [Held("Never."), "Yes."],
        [
            begin("slow"),
            asked(),
            begun(1),
            let_go("slow"),
            ends(SLOW),
            last("ModelRequested", "GuardrailTripped", "InputSetAside", "RunFailed"),
        ],
        history=[f"user: {NOTE}"],
    ),
    "what an answer cost counts that came before the guardrail tripped": judged_beside(
        [Held(say("Never.", usage=SPENT))],
        [
            begin("slow"),
            asked(),
            in_hand(),
            let_go("slow"),
            ends(SLOW),
            check(lambda play: play.sent[-1].usage, SPENT),
            last("ModelInterrupted", "GuardrailTripped", "InputSetAside", "RunFailed"),
        ],
        history=[f"user: {NOTE}"],
    ),
    "of guardrails beside each other the first in their order is told": Case(
        [Held("Never.")],
        [
            begin("a b"),
            begun(3),
            let_go("b"),
            in_hand(),
            last("ModelRequested"),
            let_go("a"),
            ends(tripped("a", "so it says")),
        ],
        options=lambda play: beside(play, "a", "b", "c"),
        done=["c is cancelled"],
    ),
    "a guardrail before the call spares it and those beside it": Case(
        ["Never."],
        [send("4111 slow", CARD)],
        options=lambda play: {"input_guardrails": [*beside(play)["input_guardrails"], no_cards]},
        asked=0,
        done=[],
    ),
    "a guardrail trips whose model call has failed": judged_beside(
        [Held(BUSY)],
        [begin("slow"), asked(), in_hand(), last("ModelRequested"), let_go("slow"), ends(SLOW)],
    ),
    "a model call that has failed is tried again once the input has passed": judged_beside(
        [Held(BUSY), "Yes."],
        [begin("Hi"), asked(), in_hand(), let_go("slow"), until("RetryScheduled"), advance(60), ends("Yes.")],
        clock=True,
    ),
    "a guardrail that fails beside a model call fails its run": judged_beside(
        [Held("Never.")],
        [
            begin("broken"),
            begun(1),
            let_go("slow"),
            ends(Fails("agent_loop", "the input guardrail 'slow' failed: KeyError: 'slow'")),
        ],
        history=["user: broken"],
    ),
    "nothing passes of which a guardrail that other code cancelled has not judged": judged_beside(
        ["Never."],
        [
            begin("cut"),
            begun(1),
            in_hand(),
            let_go("slow"),
            ends(Fails("agent_loop", "guardrails beside the model call were cancelled before they had judged")),
        ],
        history=["user: cut"],
    ),
    "a run that is cancelled cancels the guardrails beside its model call": judged_beside(
        [Held("Never.")],
        [begin("slow"), asked(), begun(1), cancel(), ends(refold.Cancelled())],
        done=["slow is cancelled"],
        crashes=False,
    ),
    "a long history is summarised once the input has passed": Case(
        ["word " * 400, "In short.", "Yes."],
        [
            *(let_go("slow"), send("Hi")),
            hold("slow"),
            begin("now"),
            ran(2),
            in_hand(),
            requested(1),
            let_go("slow"),
            ends("Yes."),
        ],
        options=lambda play: beside(play, context=refold.Summarising(600, keep_tokens=1)),
        asked=3,
        crashes=False,
    ),
}

test_guardrails, test_guardrails_and_a_crash_after_each_commit = as_tests(CASES | BESIDE)


async def test_a_guardrail_sees_whose_input_it_is_and_all_of_it() -> None:
    seen: list[Any] = []

    @refold.guardrail
    def note(context: RunContext[Any], said: Message) -> None:
        seen.append((context.session, context.user, context.deps, context.turn, said.text, len(said.content)))

    image = refold.ImageBlock(media_type="image/png", data=b"x")
    agent = Agent(
        config=AgentConfig(model="m"),
        provider=refold.ScriptedProvider(["Yes."]),
        input_guardrails=[note],
        deps="shop",
    )
    async with AgentRuntime(agent) as runtime:
        session = await runtime.session("s", user="anna")
        await session.send([refold.TextBlock(text="x" * 100_000), image])
    assert seen == [("s", "anna", "shop", 1, "x" * 100_000, 2)]


@pytest.mark.parametrize("passes", [True, False])
async def test_nothing_of_an_answer_is_shown_before_the_guardrails_beside_it_let_pass(passes: bool) -> None:
    seen: list[str] = []
    gate, shown, typing = asyncio.Event(), asyncio.Event(), Hold()
    model = Streams(refold.TextDelta("Ye"), typing.wait, refold.TextDelta("s."), say("Yes."))

    @refold.guardrail(run_in_parallel=True)
    async def slow(context: RunContext[Any], said: Message) -> Deny | None:
        await gate.wait()
        return None if passes else Deny()

    async def see(session: refold.Session) -> None:
        async for what in session.follow():
            if isinstance(what, refold.Streamed) and isinstance(what.delta, refold.TextDelta):
                seen.append(what.delta.text)
                shown.set()
            if isinstance(what, RecordedEvent) and isinstance(what.event, RunFailed | RunCompleted):
                return

    log = InMemoryStore()
    config = AgentConfig(model="m", streaming=True)
    async with session_in(AgentRuntime(config, provider=model, log=log, input_guardrails=[slow])) as (_, session):
        seeing = asyncio.create_task(see(session))
        sending = asyncio.create_task(session.send("Hi"))
        await typing.reached.wait()
        assert seen == []
        gate.set()
        if passes:
            await shown.wait()
            assert seen == ["Ye"]
            typing.let_go()
        assert (await sending).text == ("Yes." if passes else "")
        await seeing
        assert seen == (["Ye", "s."] if passes else [])
        events = [recorded.event async for recorded in session.events()]
        cut = [text_of(event.content) for event in events if isinstance(event, ModelInterrupted)]
        assert cut == ([] if passes else ["Ye"])


BESIDE_CARDS = refold.guardrail(name="no_cards", run_in_parallel=True)(no_cards.function)
FINE: Guardrail[Any] = Guardrail("fine", lambda _, __: None, run_in_parallel=True)
BESIDE_MODEL: dict[str, Any] = {"input_guardrails": [FINE]}


async def test_a_guardrail_that_lets_pass_leaves_no_trace() -> None:
    kinds: list[list[bytes]] = []
    for options in ({}, BOTH, BESIDE_MODEL):
        log = InMemoryStore()
        await recorded_by(log, agent_with(["Yes."], **options), "Hi")
        kinds.append([event.data[:40] for event in await log.read_stream("session/s")])
    assert kinds[0] == kinds[1] == kinds[2]


def agent_with(script: list[Any], **parts: Any) -> Agent[Any, Any]:
    return Agent(config=AgentConfig(model="m"), provider=refold.ScriptedProvider(script), **parts)


async def recorded_by(log: EventStore, agent: Agent[Any, Any], *inputs: str) -> None:
    async with session_in(AgentRuntime(agent, log=log)) as (_, session):
        for text in inputs:
            await session.send(text)


@pytest.mark.parametrize(
    ("then", "now", "differs"),
    [
        (BOTH, BOTH, set()),
        (BOTH, {**BOTH, "input_guardrails": [BESIDE_CARDS, polite]}, set()),
        ({}, BOTH, {("guardrail", "guardrail"), ("answer", "answer.trip")}),
        (BOTH, {}, {("guardrail", "guardrail"), ("answer", "answer.trip")}),
        (BOTH, {**BOTH, "input_guardrails": [fails(KeyError("k"))]}, {("guardrail", "guardrail.failure")}),
        (
            BOTH,
            {**BOTH, "input_guardrails": [refold.guardrail(name="no_cards")(lambda _, __: Deny("digits"))]},
            {("guardrail", "guardrail.reason")},
        ),
    ],
)
async def test_a_replay_asks_the_guardrails_of_today(then: Any, now: Any, differs: set[Any]) -> None:
    log = InMemoryStore()
    await recorded_by(log, agent_with(["It costs 1000."] * 3, **then), "My card is 4111", "Hi", "How much?")
    report = await replay(log, agent=agent_with([], **now))
    assert {(each.differs, each.difference.path) for each in report.divergences} >= differs
    assert bool(report.divergences) == bool(differs)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"input_guardrails": [len]}, "Agent.input_guardrails must hold guardrails"),
        (
            {"output_guardrails": [FINE]},
            "'fine' of Agent.output_guardrails cannot run in par",
        ),
        ({"output_guardrails": [not_dear, not_dear]}, "two of Agent.output_guardrails are named 'not_dear'"),
    ],
)
def test_what_is_no_guardrail_is_refused(parts: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        agent_with([], **parts)


@pytest.mark.parametrize("made", [lambda: refold.guardrail(name="\ud800")(print), lambda: Guardrail("g", 7)])  # type: ignore[arg-type]
def test_a_guardrail_has_a_name_and_a_function(made: Any) -> None:
    with pytest.raises(ConfigError, match="guardrail"):
        made()
