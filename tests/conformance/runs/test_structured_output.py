"""Answers that must be data, and answers that cannot be used: A18."""

import asyncio
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest
from typer.testing import CliRunner

import refold
from refold.commands.cli import app
from refold.events.session.events import ModelFailed
from refold.replay import replay
from refold.sessions.structured_output import parsed_output, partial_json
from tests.conformance.cases import Case, Fails, Play, as_tests
from tests.conformance.failing_store import Hold
from tests.conformance.sessions import Streams, session_in
from tests.conformance.steps import cancel, check, restart, send, turn


class Plan(msgspec.Struct):
    """A plan."""

    goal: str
    steps: list[str]
    hours: float = 1


@dataclass
class Point:
    """A place."""

    x: int
    y: int


class Person(TypedDict):
    """Somebody."""

    name: str


PLAN = '{"goal": "tea", "steps": ["boil", "pour"]}'
EXPECTED = Plan(goal="tea", steps=["boil", "pour"])


LOOK = refold.use("look")
NO_JSON = "The answer is not a JSON value that fits Plan: it holds no JSON. It was: Sure!\nGive your"
WRONG = '{"goal": "tea", "steps": [1]}'
TYPED = "The answer is not a JSON value that fits Plan: Expected `str`, got `int` - at `$.steps["
FORM = msgspec.defstruct("Form", [(f"question_{number}", str) for number in range(100)])


def planned(value: Any = EXPECTED) -> Any:
    """Check what the last answer means."""
    return check(lambda play: play.sent[-1].output, value)


def prompt(play: Play) -> tuple[bool, bool]:
    text = play.requests[0].system_prompt
    begins = "You are a helpful AI agent.\n\nGive your final answer as one JSON value"
    return text.startswith(begins), '"steps"' in text


def told(place: int, begins: str) -> Any:
    """Check how the last message of a request begins."""
    return check(lambda play: play.requests[place].messages[-1].text[: len(begins)], begins)


async def roles(play: Play) -> list[str]:
    return [message.role for message in await play.session.history()]


def schema_once(play: Play) -> tuple[bool, bool]:
    first, second = play.requests
    ending = "the JSON Schema in your instructions, with nothing before or after it."
    return '"question_99"' in first.system_prompt, second.messages[-1].text.endswith(ending)


def has_no_output(play: Play) -> bool:
    failed = play.sent[0]
    with pytest.raises(refold.RunNotCompleted, match="the run run_3 has no answer, since it failed") as read:
        _ = failed.output
    with pytest.raises(refold.RunNotCompleted):
        failed.parsed(Plan)
    return (read.value.run, read.value.outcome) == (failed.run, failed.outcome)


def rejected(why: str) -> refold.ModelResponse:
    return refold.ModelResponse(content=(refold.TextBlock(text="Thought: hm"),), rejected=why)


def boils(context: refold.RunContext[Any], plan: Plan) -> Plan:
    if not plan.steps:
        raise refold.ModelRetry(f"{plan.goal} needs steps, in {context.session}.")
    return plan


async def is_short(plan: Plan) -> None:
    await asyncio.sleep(0)
    if len(plan.steps) > 2:
        raise ValueError("Two steps at most.")


def is_polite(text: str) -> None:
    if "please" not in text:
        raise refold.ModelRetry("Say please.")


def changes(plan: Plan) -> Plan:
    return Plan(goal=plan.goal, steps=[])


def breaks(plan: Plan) -> None:
    raise KeyError(plan.goal)


def ends(plan: Plan) -> None:
    raise SystemExit(3)


async def stops(plan: Plan) -> None:
    raise asyncio.CancelledError


class Counted(msgspec.Struct):
    """What fails on some values by itself."""

    steps: int

    def __post_init__(self) -> None:
        {1: "one", 2: "two"}[self.steps]


CHECKED = {"output_type": Plan, "output_validators": [boils, is_short]}
EMPTY, LONG = '{"goal": "tea", "steps": []}', '{"goal": "tea", "steps": ["a", "b", "c"]}'

typed = partial(Case, options={"output_type": Plan})

CASES = {
    "an answer that validators do not accept is asked again with what they say": Case(
        [*map(refold.say, ("Sure!", EMPTY, LONG, PLAN))],
        [
            send("make tea", PLAN, turns=4),
            [planned(), told(1, NO_JSON), told(2, "The answer is not accepted: tea needs steps, in s.")],
            told(3, "The answer is not accepted: Two steps at most."),
        ],
        config={"rejections_max": 3},
        options=CHECKED,
    ),
    "validators refuse so often, over a restart too": Case(
        [refold.say(EMPTY), refold.say(EMPTY), refold.say(PLAN)],
        [
            [turn("go"), restart(), turn(ends=Fails("agent_loop", "AgentLoopError: 2 answers in a row could not be "))],
            [send("again", PLAN), planned()],
        ],
        config={"rejections_max": 1},
        options=CHECKED,
    ),
    "validators are given the text where there is no type": Case(
        [refold.say("Tea!"), LOOK, refold.say("Tea, please.")],
        [send("go", "Tea, please."), told(1, "The answer is not accepted: Say please."), planned("Tea, please.")],
        options={"output_validators": [is_polite]},
    ),
    **{
        f"a validator that {what} fails the run": Case(
            [refold.say(PLAN), refold.say(PLAN)],
            [send("go", Fails("agent_loop", words)), send("again", Fails("agent_loop", words))],
            options={"output_type": Plan, "output_validators": [validator]},
        )
        for what, validator, words in (
            ("changes the answer", changes, "AgentLoopError: the output validator changes gave Plan; "),
            ("fails itself", breaks, "AgentLoopError: the output validator breaks failed: KeyError: 'tea'"),
            ("ends programs", ends, "AgentLoopError: the output validator ends failed: SystemExit: 3"),
            ("is cancelled itself", stops, "AgentLoopError: the output validator stops failed: CancelledError"),
        )
    },
    "a type that fails on an answer by itself fails the run, and is named": Case(
        [refold.say('{"steps": 3}'), refold.say('{"steps": 2}')],
        [
            send("go", Fails("agent_loop", "AgentLoopError: Counted failed on the answer: KeyError: 3")),
            [send("again", refold.Completed()), planned(Counted(2))],
        ],
        options={"output_type": Counted},
    ),
    "A18: an answer that fits is taken and read as a value": typed(
        [LOOK, refold.say(PLAN)],
        [send("make tea", PLAN, turns=2), planned(), check(prompt, (True, True))],
    ),
    **{
        f"A18: what the text means is found where that is certain, {how}": Case(
            [refold.say(text)],
            [send("go", refold.Completed()), planned(value)],
            options={"output_type": output_type},
        )
        for how, output_type, text, value in (
            ("bare", Plan, PLAN, EXPECTED),
            ("in a fence", Plan, f"```json\n{PLAN}\n```", EXPECTED),
            ("in a fence between words", Plan, f"Here you are:\n```\n{PLAN}\n```\nEnjoy!", EXPECTED),
            ("between words", Plan, f"Here you are: {PLAN} - enjoy!", EXPECTED),
            ("behind brackets", Plan, f"As in [1] and {{goal}}, :] here you are:\n{PLAN}", EXPECTED),
            ("a dataclass", Point, '{"x": 1, "y": 2}', Point(1, 2)),
            ("a dictionary", Person, '{"name": "Zoë 🫖"}', {"name": "Zoë 🫖"}),
            ("a list", list[int], "[1, 2]", [1, 2]),
        )
    },
    "A18: an answer that does not fit is asked again with what is wrong": typed(
        [refold.say("Sure!"), refold.say(WRONG), refold.say(PLAN)],
        [
            [send("make tea", PLAN, turns=3), planned(), check(roles, ["user", "assistant"] * 3)],
            [told(1, NO_JSON), told(2, TYPED)],
        ],
    ),
    "A18: a long schema is told once and never in part": Case(
        [refold.say("no"), refold.say("{}")],
        [turn("go"), turn(), check(schema_once, (True, True))],
        options={"output_type": FORM},
    ),
    **{
        f"A18: after too many such answers in a row the run fails and the next one begins anew, {most}": typed(
            [*[refold.say("no")] * (most + 1), refold.say(PLAN)],
            [
                send(
                    "make tea", Fails("agent_loop", f"AgentLoopError: {most + 1} answers in a row could not be used. T")
                ),
                [check(has_no_output), send("again", PLAN), planned()],
            ],
            config={"rejections_max": most},
        )
        for most in (0, 1, 2)
    },
    "A18: a tool call between them begins the row anew": typed(
        [refold.say("no"), refold.say("no"), LOOK, refold.say("no"), refold.say("no"), refold.say(PLAN)],
        [send("go", PLAN), planned()],
    ),
    "A18: rejections survive a restart": typed(
        [refold.say("no"), refold.say("no again")],
        [turn("go"), restart(), turn(ends=Fails("agent_loop"))],
        config={"rejections_max": 1},
    ),
    "A18: a paused or empty answer is not yet one": typed(
        [
            refold.ModelResponse(content=(refold.TextBlock(text="Let me think."),), stop_reason="pause_turn"),
            *[refold.say(" "), refold.say(PLAN)],
        ],
        [send("go", PLAN, turns=3), planned()],
    ),
    "A18: an answer that is cut is rejected": typed(
        [refold.say(PLAN[:20], stop_reason="max_tokens"), refold.say(PLAN)],
        [send("go", PLAN), planned()],
    ),
    **{
        f"a provider may reject an answer itself, and {what}": Case(
            [rejected(why), refold.say("well then")], [send("go", "well then"), told(1, words)]
        )
        for what, why, words in (
            ("says why", "Say Action or FINAL_ANSWER.", "Say Action or FINAL_ANSWER."),
            ("leaves no blank message", " \n", "The answer could not be used. Answer again."),
        )
    },
    "an answer with calls cannot be rejected": Case(
        [refold.ModelResponse(content=(LOOK,), stop_reason="tool_use", rejected="no")],
        [send("go", Fails(words="$.rejected is set for an answer that calls tools"))],
    ),
    "a run whose answer was rejected can be cancelled": typed(
        [refold.say("no"), refold.say(PLAN)],
        [turn("go"), cancel(), check(roles, ["user", "assistant", "user"]), send("again", PLAN), planned()],
    ),
}


test_structured_output, test_structured_output_with_a_crash_after_each_commit = as_tests(CASES)


def test_a18_a_type_without_a_schema_is_refused_at_once() -> None:
    with pytest.raises(
        refold.ConfigError, match="output_type complex has no JSON Schema: type <class 'complex'> is not"
    ):
        refold.AgentRuntime(refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([]), output_type=complex)
    with pytest.raises(refold.ConfigError, match="has no JSON Schema"):
        refold.Agent(config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([]), output_type=complex)


def test_fences_that_are_never_closed_hold_nobody_up() -> None:
    with pytest.raises(refold.AgentLoopError, match="it holds no JSON"):
        parsed_output("```x\n" * 100_000, Plan)
    fenced = "```x\n" * 100_000 + '```\n```json\n{"goal": "rest", "steps": []}\n```'
    assert parsed_output(fenced, Plan) == Plan("rest", [])


def test_what_is_no_validator_is_refused_at_once() -> None:
    for wrong in (lambda: None, lambda one, two, three: None, "polite"):
        with pytest.raises(refold.ConfigError, match=r"Agent.output_validators must hold functions of the answer, or"):
            refold.Agent(
                config=refold.AgentConfig(model="m"),
                provider=refold.ScriptedProvider([]),
                output_validators=[wrong],  # type: ignore[list-item]
            )


async def test_a_replay_runs_validators_again_and_tells_where_they_would_now_refuse() -> None:
    def in_city(context: refold.RunContext[str], plan: Plan) -> None:
        if not plan.steps:
            raise refold.ModelRetry(f"No steps for {context.deps}.")

    def agent(*validators: refold.OutputValidator[Plan]) -> refold.Agent[Any, Plan]:
        provider = refold.ScriptedProvider([EMPTY, PLAN])
        config = refold.AgentConfig(model="m")
        return refold.Agent(
            config=config, provider=provider, output_type=Plan, output_validators=validators, deps="Lisbon"
        )

    async with refold.AgentRuntime(agent(in_city)) as runtime:
        assert (await (await runtime.session("s")).send("make tea")).output == EXPECTED
        store = runtime.store
        same, unchecked = [await replay(store, agent=agent(*each), deps="Lisbon") for each in ([in_city], [])]
    assert (same.diverged, same.level) == (0, "decide")
    assert unchecked.divergence is not None
    assert 'rejected: "The answer is not accepted: No steps for Lisbon.' in str(unchecked.divergence)


@pytest.mark.parametrize("ensure_ascii", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        {"a": 'x " y\\', "b": [1, -2.5, {"c": None, "d": True}], "e": "é😀z", "f": {}, "g": [[], ""]},
        [1, "two\n", [3]],
        {},
    ],
    ids=repr,
)
def test_what_is_there_of_an_answer_is_known_after_each_character(value: Any, ensure_ascii: bool) -> None:
    text = f"Here:\n```json\n{json.dumps(value, ensure_ascii=ensure_ascii, indent=1)}\n```"
    begins, seen = min(text.find(bracket) for bracket in "{[" if bracket in text), []
    for end in range(len(text) + 1):
        found = partial_json(text[:end])
        assert (found is None) == (end <= begins)
        seen.append(len(json.dumps(found)) if found is not None else 0)
    assert (seen, partial_json(text)) == (sorted(seen), value)
    assert partial_json("no {words: 1}") is None


async def test_a_stream_tells_what_the_model_has_said_so_far() -> None:
    config = refold.AgentConfig(model="m", streaming=True, retry=refold.RetryPolicy(base_s=0.001))
    long = '{"goal": "tea", "steps": ["boil the water", "pour"]}'
    provider = refold.ScriptedProvider([refold.use("look"), refold.cut(long, after=4), refold.say(long)])
    seen: list[Any] = []
    async with refold.AgentRuntime(config, provider=provider, output_type=Plan) as runtime:
        async with (await runtime.session("s")).stream("make tea") as stream:
            assert stream.partial_output is None
            async for item in stream:
                if not isinstance(item, refold.RecordedEvent) or isinstance(item.event, ModelFailed):
                    seen.append(stream.partial_output)
        assert stream.result.output == Plan(**stream.partial_output)  # type: ignore[arg-type]
    begun: list[Any] = [{}, {"goal": "tea"}, {"goal": "tea"}, {"goal": "tea", "steps": ["boil "]}]
    assert seen[:10] == [None, *begun, None, *begun]


def test_a_transcript_says_why_an_answer_was_rejected(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    provider = refold.ScriptedProvider(["Sure!", PLAN])
    with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider, output_type=Plan, log=path) as runtime:
        runtime.session("alice").send("make tea")
    for options in ([], ["--events"]):
        done = CliRunner().invoke(app, ["show", str(path), "alice", *options])
        assert done.exit_code == 0
        assert "The answer is not a JSON value that fits Plan: it holds no JSON. It was: Sure!" in " ".join(
            done.stdout.split()
        )


async def test_a_reader_of_a_run_tells_what_the_model_has_said_so_far_and_a_handle_where_the_run_stands() -> None:
    typing, pieces = Hold(), [refold.TextDelta('{"goal": "te'), refold.TextDelta('a", "steps": []}')]
    model = Streams(pieces[0], typing.wait, pieces[1], refold.say('{"goal": "tea", "steps": []}'))
    config = refold.AgentConfig(model="m", streaming=True)
    async with session_in(refold.AgentRuntime(config, provider=model, output_type=Plan)) as (runtime, session):
        first, second = await session.submit("make tea"), await session.submit("make more")
        await typing.reached.wait()
        assert [(await run.status()).state for run in (first, second)] == ["open", "queued"]
        seen: list[Any] = []
        later: refold.RunReader | None = None
        async with first.stream() as reader:
            assert reader.partial_output is None
            async for item in reader:
                if isinstance(item, refold.Streamed):
                    seen.append(reader.partial_output)
                    later = later or first.stream(after=reader.place)
                    typing.let_go()
        assert seen == [{"goal": "te"}, {"goal": "tea", "steps": []}]
        result = await second.result()
        assert await second.status() == refold.RunStatus("completed", result)
        again = await (await runtime.run(first.id)).status()
        assert again.result == await first.result()
        assert later is not None  # It has not seen how the answer began.
        assert {later.partial_output async for _ in later} == {None}
        typing.reached.clear()
        typing.gate.clear()
        third = await session.submit("no more")
        await typing.reached.wait()
        await third.cancel()
        assert (await third.status()).state == "cancelled"
