"""Answers that must be data, and answers that cannot be used: A18."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest
from typer.testing import CliRunner

from refold import (
    Agent,
    AgentConfig,
    AgentLoopError,
    AgentRuntime,
    Completed,
    ConfigError,
    Failed,
    ModelResponse,
    ScriptedProvider,
    TextBlock,
    say,
    tool,
    use,
)
from refold.commands.cli import app
from refold.stores import EventStore
from tests.conformance.sessions import checked_log, requests_of, runtime_of


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


@pytest.fixture(params=["memory", "file"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    async with checked_log(request.param, tmp_path) as store:
        yield store


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[EventStore]:
    async with checked_log("memory", tmp_path) as store:
        yield store


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "it is late"


async def test_a18_an_answer_that_fits_is_taken_and_read_as_a_value(log: EventStore) -> None:
    async with runtime_of(log, use("look"), say(PLAN), tools=[look], output_type=Plan) as runtime:
        result = await (await runtime.session("alice")).send("make tea")
        prompt = requests_of(runtime)[0].system_prompt
    assert (result.outcome, result.turns) == (Completed(), 2)
    assert result.parsed(Plan) == EXPECTED
    assert prompt.startswith("You are a helpful AI agent.\n\nGive your final answer as one JSON value")
    assert '"steps"' in prompt


@pytest.mark.parametrize(
    ("output_type", "text", "value"),
    [
        (Plan, PLAN, EXPECTED),
        (Plan, f"```json\n{PLAN}\n```", EXPECTED),
        (Plan, f"Here you are:\n```\n{PLAN}\n```\nEnjoy!", EXPECTED),
        (Plan, f"Here you are: {PLAN} - enjoy!", EXPECTED),
        (Plan, f"As in [1] and {{goal}}, :] here you are:\n{PLAN}", EXPECTED),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (Person, '{"name": "Zoë 🫖"}', {"name": "Zoë 🫖"}),
        (list[int], "[1, 2]", [1, 2]),
    ],
)
async def test_a18_what_the_text_means_is_found_where_that_is_certain(
    memory: EventStore, output_type: Any, text: str, value: object
) -> None:
    async with runtime_of(memory, say(text), output_type=output_type) as runtime:
        result = await (await runtime.session("alice")).send("go")
    assert result.outcome == Completed()
    assert result.parsed(output_type) == value


async def test_a18_an_answer_that_does_not_fit_is_asked_again_with_what_is_wrong(log: EventStore) -> None:
    wrong = '{"goal": "tea", "steps": [1]}'
    async with runtime_of(log, say("Sure!"), say(wrong), say(PLAN), output_type=Plan) as runtime:
        session = await runtime.session("alice")
        result = await session.send("make tea")
        assert (result.parsed(Plan), result.turns) == (EXPECTED, 3)
        told = [request.messages[-1].text for request in requests_of(runtime)]
        history = [(message.role, message.text[:40]) for message in await session.history()]
    assert told[1].startswith(
        "The answer is not a JSON value that fits Plan: it holds no JSON. It was: Sure!\nGive your"
    )
    assert told[2].startswith("The answer is not a JSON value that fits Plan: Expected `str`, got `int` - at `$.steps[")
    assert [role for role, _ in history] == ["user", "assistant", "user", "assistant", "user", "assistant"]


async def test_a18_a_long_schema_is_told_once_and_never_in_part(memory: EventStore) -> None:
    form = msgspec.defstruct("Form", [(f"question_{number}", str) for number in range(100)])
    async with runtime_of(memory, say("no"), say("{}"), output_type=form) as runtime:
        await (await runtime.session("alice")).step("go")
        await (await runtime.session("alice")).step()
        first, second = requests_of(runtime)
    assert '"question_99"' in first.system_prompt
    assert second.messages[-1].text.endswith("the JSON Schema in your instructions, with nothing before or after it.")


@pytest.mark.parametrize("most", [0, 1, 2])
async def test_a18_after_too_many_such_answers_in_a_row_the_run_fails_and_the_next_one_begins_anew(
    log: EventStore, most: int
) -> None:
    config = AgentConfig(model="m", rejections_max=most)
    script = [say("no")] * (most + 1) + [say(PLAN)]
    async with runtime_of(log, *script, output_type=Plan, config=config) as runtime:
        session = await runtime.session("alice")
        result = await session.send("make tea")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "agent_loop"
        assert result.outcome.error.message.startswith(
            f"AgentLoopError: {most + 1} answers in a row could not be used. The answer is not a JSON value that fits"
        )
        with pytest.raises(AgentLoopError, match="has no answer to parse"):
            result.parsed(Plan)
        assert (await session.send("again")).parsed(Plan) == EXPECTED


async def test_a18_a_tool_call_between_them_begins_the_row_anew(log: EventStore) -> None:
    script = [say("no"), say("no"), use("look"), say("no"), say("no"), say(PLAN)]
    async with runtime_of(log, *script, tools=[look], output_type=Plan) as runtime:
        assert (await (await runtime.session("alice")).send("go")).parsed(Plan) == EXPECTED


async def test_a18_rejections_survive_a_restart(log: EventStore) -> None:
    runtime = runtime_of(log, say("no"), output_type=Plan, config=AgentConfig(model="m", rejections_max=1))
    async with runtime:
        result = await (await runtime.session("alice")).step("go")
        assert result.result is None
    async with runtime_of(
        log, say("no again"), output_type=Plan, config=AgentConfig(model="m", rejections_max=1)
    ) as runtime:
        ended = await (await runtime.session("alice")).step()
        assert ended.result is not None
        assert isinstance(ended.result.outcome, Failed)


async def test_a18_a_paused_or_empty_answer_is_not_yet_one(memory: EventStore) -> None:
    paused = ModelResponse(content=(TextBlock(text="Let me think."),), stop_reason="pause_turn")
    async with runtime_of(memory, paused, say(" "), say(PLAN), output_type=Plan) as runtime:
        result = await (await runtime.session("alice")).send("go")
    assert (result.parsed(Plan), result.turns) == (EXPECTED, 3)


async def test_a18_an_answer_that_is_cut_is_rejected(memory: EventStore) -> None:
    cut = say(PLAN[:20], stop_reason="max_tokens")
    async with runtime_of(memory, cut, say(PLAN), output_type=Plan) as runtime:
        assert (await (await runtime.session("alice")).send("go")).parsed(Plan) == EXPECTED


def test_a18_a_type_without_a_schema_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="output_type complex has no JSON Schema"):
        AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), output_type=complex)
    with pytest.raises(ConfigError, match="has no JSON Schema"):
        Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]), output_type=complex)


async def test_a_provider_may_reject_an_answer_itself(log: EventStore) -> None:
    rejected = ModelResponse(content=(TextBlock(text="Thought: hm"),), rejected="Say Action or FINAL_ANSWER.")
    async with runtime_of(log, rejected, say("well then")) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).text == "well then"
        assert requests_of(runtime)[1].messages[-1].text == "Say Action or FINAL_ANSWER."


async def test_a_provider_that_rejects_an_answer_and_does_not_say_why_leaves_no_blank_message(log: EventStore) -> None:
    rejected = ModelResponse(content=(TextBlock(text="Thought: hm"),), rejected=" \n")
    async with runtime_of(log, rejected, say("well then")) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).text == "well then"
        assert requests_of(runtime)[1].messages[-1].text == "The answer could not be used. Answer again."


async def test_an_answer_with_calls_cannot_be_rejected(memory: EventStore) -> None:
    both = ModelResponse(content=(use("look"),), stop_reason="tool_use", rejected="no")
    async with runtime_of(memory, both, tools=[look]) as runtime:
        result = await (await runtime.session("alice")).send("go")
    assert isinstance(result.outcome, Failed)
    assert "$.rejected is set for an answer that calls tools" in result.outcome.error.message


def test_a_transcript_says_why_an_answer_was_rejected(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    provider = ScriptedProvider(["Sure!", PLAN])
    with AgentRuntime(AgentConfig(model="m"), provider=provider, output_type=Plan, log=path) as runtime:
        runtime.session("alice").send("make tea")
    for options in ([], ["--events"]):
        done = CliRunner().invoke(app, ["show", str(path), "alice", *options])
        assert done.exit_code == 0
        assert "The answer is not a JSON value that fits Plan: it holds no JSON. It was: Sure!" in " ".join(
            done.stdout.split()
        )


async def test_a_run_whose_answer_was_rejected_can_be_cancelled(memory: EventStore) -> None:
    async with runtime_of(memory, say("no"), say(PLAN), output_type=Plan) as runtime:
        session = await runtime.session("alice")
        await session.step("go")
        await session.cancel()
        history = await session.history()
        assert [message.role for message in history] == ["user", "assistant", "user"]
        assert (await session.send("again")).parsed(Plan) == EXPECTED
