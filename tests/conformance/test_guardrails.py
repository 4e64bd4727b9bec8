"""Guardrails: what trips is told to no model, or to no caller; it is recorded, and a replay asks the same again."""

from typing import Any

import msgspec
import pytest

import refold
from refold import Agent, AgentConfig, AgentRuntime, Allow, Deny, Guardrail, Message, RunContext, say, use
from refold.events.core.errors import ConfigError
from refold.events.model.refused import GuardrailTrip
from refold.events.session.events import InputSetAside, ModelResponded, RunFailed
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore
from tests.conformance.cases import Case, Fails, Held, as_tests
from tests.conformance.steps import (
    asked,
    begin,
    cancel_token,
    check,
    ends,
    join,
    last,
    let_go,
    recorded,
    requested,
    restart,
    send,
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

CASES = {
    "what an input guardrail trips on reaches no model, in its run or later": Case(
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
        options=BOTH,
        requests={1: ["user: Hi", "assistant: Hello.", *[f"user: {NOTE}"] * 3, "user: Still there?"]},
    ),
    "an answer that an output guardrail trips on is no answer, now or later": Case(
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
        options=BOTH,
        history=["user: What does it cost?", "user: And that?", "assistant: Nothing."],
    ),
    "an input that joins a run is judged before the next model call": Case(
        [Held(use("look", {"at": "a"}, id="toolu_1")), "Never."],
        [begin("Look"), asked(), join("at 4111"), let_go(), ends(CARD, CARD)],
        options=BOTH,
        asked=1,
        history=["user: Look", "use look", "result: saw a", f"user: {NOTE}"],
        crashes=False,
    ),
    "an input whose run ended before it was judged is judged with the next": Case(
        ["Never."],
        [cancel_token(), send("4111", refold.Cancelled(), token=True), send("Hi", CARD)],
        options=BOTH,
        asked=0,
        history=[f"user: {NOTE}"] * 2,
    ),
    "what was judged is not judged again in later turns": Case(
        [use("look", {"at": "4111"}), use("look", {"at": "stupid"}), "Seen."],
        [send("Look", "Seen.")],
        options=BOTH,
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

test_guardrails, test_guardrails_and_a_crash_after_each_commit = as_tests(CASES)


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


async def test_a_guardrail_that_lets_pass_leaves_no_trace() -> None:
    kinds: list[list[bytes]] = []
    for options in ({}, BOTH):
        log = InMemoryStore()
        await recorded_by(log, agent_with(["Yes."], **options), "Hi")
        kinds.append([event.data[:40] for event in await log.read_stream("session/s")])
    assert kinds[0] == kinds[1]


def agent_with(script: list[Any], **parts: Any) -> Agent[Any, Any]:
    return Agent(config=AgentConfig(model="m"), provider=refold.ScriptedProvider(script), **parts)


async def recorded_by(log: EventStore, agent: Agent[Any, Any], *inputs: str) -> None:
    async with AgentRuntime(agent, log=log) as runtime:
        session = await runtime.session("s")
        for text in inputs:
            await session.send(text)


@pytest.mark.parametrize(
    ("then", "now", "differs"),
    [
        (BOTH, BOTH, set()),
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
