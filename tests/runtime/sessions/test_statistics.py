"""Sessions tell their steps and how they went: both protocols, both faces, and from outside."""

import asyncio
from pathlib import Path

import msgspec
import pytest

import refold
from refold.actors import ManualClock
from refold.metrics import read_statistics
from tests.runtime.talking import scripted, talking


@refold.tool(tier="observe", effect="pure")
async def weather(city: str) -> str:
    return f"{city}: sunny"


@refold.tool
async def pay(amount: int) -> str:
    raise refold.ToolError("no money")


@refold.tool
async def finish(ctx: refold.ToolContext[None]) -> str:
    ctx.finish("Finished.")
    return ""


TOOLS: list[refold.Tool[..., object]] = [weather, pay, finish]


async def test_a_native_session_tells_what_it_thought_did_and_saw() -> None:
    first = refold.ModelResponse(
        content=(refold.TextBlock(text="Look first."), refold.use("weather", {"city": "Faro"}))
    )
    script: list[refold.ScriptItem] = [first, refold.use("pay", {"amount": 3}), refold.say("It is sunny.")]
    async with talking(*script, tools=TOOLS) as (session, runtime):
        assert (await session.statistics()).steps == await session.steps() == ()
        await session.send("Weather?")
        found = await session.statistics()
        assert await session.steps() == found.steps
        outside = await read_statistics(runtime.store, "s", at=found.version)
        assert outside == msgspec.structs.replace(found, append_errors=None), "only a runtime knows that figure"
    assert found.thoughts == ["Look first."]
    assert found.actions == ['weather {"city":"Faro"}', 'pay {"amount":3}']
    assert found.observations == ["Faro: sunny", "no money"]
    assert found.final_answer == found.steps[-1].answer == "It is sunny."
    assert [action.kind for action in found.failed_tool_calls] == ["permanent"]
    assert len(found.successful_steps) == 2
    assert (found.runs_completed, found.inputs, found.append_errors, found.memory_hits) == (1, 1, 0, 0)


async def test_a_react_session_tells_the_same() -> None:
    script = [
        refold.say('Thought: Look first.\nAction: weather\nAction Input: {"city": "Faro"}'),
        refold.say("Thought: Now I know.\nFINAL_ANSWER: It is sunny."),
    ]
    async with talking(*script, tools=TOOLS, config=refold.AgentConfig(model="m", protocol="react")) as (session, _):
        await session.send("Weather?")
        found = await session.statistics()
    assert found.thoughts == ["Look first.", "Now I know."]
    assert found.actions == ['weather {"city":"Faro"}']
    assert found.observations == ["Faro: sunny"]
    assert found.final_answer == "It is sunny."
    assert not any(step.failed for step in found.steps)


async def test_the_answer_of_a_tool_that_ends_the_run_is_the_final_one() -> None:
    async with talking(refold.use("finish", {}), tools=TOOLS) as (session, _):
        result = await session.send("Go")
        found = await session.statistics()
    assert found.final_answer == result.text == "Finished."


async def test_times_are_those_of_the_events() -> None:
    clock = ManualClock()

    @refold.tool
    async def wait() -> str:
        await clock.advance(30)
        return "waited"

    async with talking(refold.use("wait", {}), refold.say("Done."), tools=[wait], clock=clock) as (session, _):
        await session.send("Go")
        await clock.advance(1000)
        found = await session.statistics()
    assert found.duration_s == 30
    assert [step.duration_s for step in found.steps] == [30, 0]


async def test_a_large_thought_and_a_large_result_are_shown_whole() -> None:
    @refold.tool(result_limit=None)
    async def large() -> str:
        return "r" * 70_000

    async with talking(refold.use("large", {}), refold.say("a" * 70_000), tools=[large]) as (session, _):
        await session.send("Go")
        found = await session.statistics()
    assert found.observations.lengths == (70_000,)
    assert found.final_answer == "a" * 70_000


def test_the_blocking_face_has_both(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with scripted(refold.use("weather", {"city": "Faro"}), refold.say("Sunny."), tools=TOOLS, log=log) as runtime:
        session = runtime.session("alice")
        session.send("Weather?")
        found = session.statistics()
        assert session.steps() == found.steps
        assert found.observations == ["Faro: sunny"]
    assert asyncio.run(read_statistics(log, "alice")).steps == found.steps


async def test_what_is_not_in_the_log_has_no_statistics_outside(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with talking(refold.say("Hi."), log=log) as (session, _):
        await session.send("Hello")
    with pytest.raises(refold.ConfigError, match="no session 't'"):
        await read_statistics(log, "t")
    with pytest.raises(refold.ConfigError, match="no version 99"):
        await read_statistics(log, "s", at=99)
    assert (await read_statistics(log, "s", at=1)).runs_started == 0
