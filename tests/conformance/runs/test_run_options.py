"""What one run does otherwise than its agent: recorded with the input, and kept over restarts and processes."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

import refold
from refold import AgentConfig, AgentLoopError, CommandRejected, ConfigError, Failed, Price, say, use
from refold.actors import ManualClock
from refold.events.model.configuration import RunOptions
from refold.events.session.events import InputQueued, RunStarted
from refold.inspection.request_view import recorded_request
from refold.inspection.transcript import Transcript
from refold.sessions.structured_output import output_schema, schema_text
from refold.stores import EventStore, InMemoryStore
from tests.conformance.sessions import HeldAnswer, dying, events_of, opened, requests_of

CONFIG = AgentConfig(
    model="large",
    max_turns=9,
    temperature=0.5,
    prices={"large": Price(input=30, output=100), "small": Price(input=1, output=5)},
)
OWN: dict[str, Any] = {"model": "small", "max_turns": 2, "max_tokens": 64, "temperature": 0, "tools": ["rain"]}
RECORDED = RunOptions(model="small", max_turns=2, max_tokens=64, temperature=0, tools=("rain",))


@refold.tool(tier="observe", effect="pure")
def rain(city: str) -> str:
    """Rain."""
    return "no rain"


@refold.tool(tier="observe", effect="pure")
def wind(city: str) -> str:
    """Wind."""
    return "no wind"


def options(**more: Any) -> dict[str, Any]:
    return {"tools": [rain, wind], "config": CONFIG, **more}


def asked(request: refold.ModelRequest) -> tuple[object, ...]:
    return request.model, request.max_tokens, request.temperature, tuple(spec.name for spec in request.tools)


AS_TOLD = ("small", 64, 0.0, ("rain",))
AS_EVER = ("large", None, 0.5, ("rain", "wind"))


async def test_a_run_does_what_was_said_with_its_input_and_the_next_one_as_its_agent(log: EventStore) -> None:
    script = [use("rain", {"city": "Rome"}), say("Dry.", usage=refold.Usage(input_tokens=1_000_000)), say("Still.")]
    async with opened(log, *script, **options()) as (runtime, session):
        first = await session.send("Rain?", **OWN)
        second = await session.send("And now?")
        assert [asked(request) for request in requests_of(runtime)] == [AS_TOLD, AS_TOLD, AS_EVER]
        assert [event.options for event in await events_of(session, InputQueued)] == [RECORDED, None]
        assert [event.model for event in await events_of(session, RunStarted)] == ["small", None]
        assert (first.text, first.cost, second.text) == ("Dry.", 1.0, "Still.")
        figures = (await session.statistics()).models
        assert {name: (figure.calls, figure.cost) for name, figure in figures.items()} == {
            "large": (1, 0),
            "small": (2, 1.0),
        }
        shown = await recorded_request(log, "s", 5)
        assert asked(shown.request) == AS_TOLD
        transcript = Transcript()
        transcript.add_all([recorded.event async for recorded in session.events()])
        notes = [getattr(entry, "what", "") for entry in transcript.entries]
        told = 'model="small", max_turns=2, max_tokens=64, temperature=0.0, tools=["rain"]'
        assert f"its run has options of its own: {told}" in notes


async def test_a_run_ends_at_its_own_limit_and_finds_no_tool_that_it_was_not_given(log: EventStore) -> None:
    script = [use("wind", {"city": "Rome"})] * 2
    async with opened(log, *script, **options()) as (_, session):
        result = await session.send("Wind?", max_turns=1, tools=["rain"])
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "max_turns"
        assert "(1)" in result.outcome.error.message
        assert "The tool wind is not to be used here." in str(await session.history())


@pytest.mark.parametrize("way", ["stream", "step", "remind"])
async def test_every_way_to_send_takes_them(memory: InMemoryStore, way: str) -> None:
    clock = ManualClock()
    async with opened(memory, say("Dry."), **options(clock=clock)) as (runtime, session):
        match way:
            case "stream":
                async for _ in session.stream("Rain?", **OWN):
                    pass
            case "step":
                await session.step("Rain?", **OWN)
            case _:
                run = await session.remind("Rain?", at=datetime.fromtimestamp(60, UTC), **OWN)
                ended = asyncio.Event()
                runtime.subscribe(lambda it: ended.set() if type(it.event).__name__ == "RunCompleted" else None)
                await clock.advance(60)
                await ended.wait()
                assert run == "run_3"
        assert [asked(request) for request in requests_of(runtime)] == [AS_TOLD]


class Trip(msgspec.Struct):
    city: str
    days: int


async def test_the_answer_of_one_run_may_be_of_a_type_of_its_own(log: EventStore) -> None:
    script = [say("Soon."), say('{"city": "Rome"}'), say('Here: {"city": "Rome", "days": 2}'), say("Two days.")]
    script.append(say('{"city": "Oslo", "days": 3}'))
    async with opened(log, *script, **options()) as (runtime, session):
        result = await session.send("Plan a trip.", output_type=Trip)
        assert result.parsed(Trip) == Trip("Rome", 2)
        assert result.output == Trip("Rome", 2)
        assert (await session.send("How long?")).output == "Two days."
        first, *again, last = requests_of(runtime)
        assert (first.output_schema, last.output_schema) == (output_schema(Trip), None)
        assert schema_text(Trip) in first.system_prompt
        assert last.system_prompt == CONFIG.system_prompt
        told = [str(request.messages[-1].text) for request in again]
        assert ["holds no JSON" in told[0], "days" in told[1]] == [True, True]
        assert (await recorded_request(log, "s", 5)).request.system_prompt == first.system_prompt
        handle = await session.submit("Plan another.", output_type=Trip)
        assert (await handle.result()).output == Trip("Oslo", 3)


async def test_the_type_of_a_run_holds_after_a_crash_and_beside_that_of_the_agent(memory: InMemoryStore) -> None:
    held = HeldAnswer(say("never"))
    typed: dict[str, Any] = options(output_type=list[int], alike=False)
    async with dying(memory, held, **typed) as (_, session):
        handle = await session.submit("Plan.", output_type=Trip, key="k")
        await held.asked.wait()
    script: list[Any] = [say("[1]"), say('{"city": "Rome", "days": 2}'), say("[1, 2]"), say("[1]")]
    script += [use("rain", {"city": "Oslo"}), say('{"city": "Oslo", "days": 1}')]
    async with opened(memory, *script, **typed) as (again, session):
        found = await (await again.run(handle.id)).result()
        assert found.parsed(Trip) == Trip("Rome", 2)
        with pytest.raises(AgentLoopError, match=r"run_3 was given an output_type .* parsed"):
            found.output  # noqa: B018
        assert (await session.submit("Plan.", output_type=Trip, key="k")).run == handle.run
        assert cast("object", (await session.send("Count.")).output) == [1, 2]
        agents = await (await session.submit("Count.", output_type=list[int], key="same")).result()
        found = await (await session.run(key="same")).result()
        assert [agents.output, cast("object", found.output)] == [[1], [1]]
        await session.next_turn("Plan.", output_type=Trip)
        last = (await session.next_turn()).result
        assert last is not None
        assert last.parsed(Trip) == Trip("Oslo", 1)
        with pytest.raises(AgentLoopError, match="output_type"):
            last.output  # noqa: B018


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no such tool": ({"tools": ["rain", "snow"]}, CommandRejected, "has no tool 'snow'; it has rain, wind"),
    "one name": ({"tools": "rain"}, ConfigError, "tools must be names"),
    "no names": ({"tools": [1]}, ConfigError, "tools must be names"),
    "no turn": ({"max_turns": 0}, ConfigError, "^max_turns must be an integer of at least 1"),
    "no model": ({"model": ""}, ConfigError, "^model must be a non-empty string"),
    "broken text": ({"model": "\ud83d"}, ConfigError, "^model must be"),
    "hot": ({"temperature": 3}, ConfigError, "^temperature must be"),
    "no tokens": ({"max_tokens": True}, ConfigError, "^max_tokens must be"),
    "no type": ({"output_type": object()}, ConfigError, "has no JSON Schema"),
    "unknown": ({"modle": "small"}, ConfigError, "a run has no option 'modle'"),
    "joins": ({"model": "small", "now": True}, CommandRejected, "leave out now"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_makes_no_sense_is_refused_at_once(memory: InMemoryStore, case: str) -> None:
    given, kind, message = WRONG[case]
    async with opened(memory, **options()) as (_, session):
        with pytest.raises(kind, match=message):
            await session.send("hello", **given)
        assert await events_of(session, InputQueued) == []


async def test_a_model_without_a_price_is_refused_where_a_budget_limits_the_cost(memory: InMemoryStore) -> None:
    config = AgentConfig(model="large", prices=CONFIG.prices, budget=refold.Budget(cost=1))
    async with opened(memory, say("Hi."), config=config) as (_, session):
        with pytest.raises(CommandRejected, match="have none for 'unknown'"):
            await session.send("hello", model="unknown")
        assert (await session.send("hello", model="small")).text == "Hi."


async def test_options_belong_to_what_a_key_stands_for(memory: InMemoryStore) -> None:
    async with opened(memory, say("Hi."), **options()) as (_, session):
        first = await session.send("hello", key="k", **OWN)
        assert await session.send("hello", key="k", **OWN) == first
        for other in ({}, {**OWN, "max_turns": 3}):
            with pytest.raises(CommandRejected, match="'k'"):
                await session.send("hello", key="k", **other)


async def test_a_run_that_a_crash_interrupted_goes_on_as_it_was_told(memory: InMemoryStore) -> None:
    held = HeldAnswer(say("never"))
    async with dying(memory, held, **options(alike=False)) as (_, session):
        sending = [asyncio.create_task(session.send(text, **OWN)) for text in ("one", "two")]
        await held.asked.wait()
        await session.history()
    await asyncio.gather(*sending, return_exceptions=True)
    async with opened(memory, say("One."), say("Two."), say("Three."), **options()) as (again, session):
        assert (await session.send("three")).text == "Three."
        assert [asked(request) for request in requests_of(again)] == [AS_TOLD, AS_TOLD, AS_EVER]
