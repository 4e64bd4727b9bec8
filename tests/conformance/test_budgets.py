"""What runs spend, and how a budget ends them: A17."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from refold import AgentConfig, Budget, Completed, Failed, ModelResponse, Price, RunResult, Usage, cut, say, tool, use
from refold.events.session.events import ToolCallFailed
from refold.stores import EventStore
from tests.conformance.sessions import checked_log, requests_of, runtime_of

PRICES = {"test": Price(input=1, output=10)}
USED = Usage(input_tokens=100, output_tokens=10)

ran: list[str] = []


@tool(tier="observe")
def look(at: str) -> str:
    """Look at something."""
    ran.append(at)
    return f"seen {at}"


@pytest.fixture(params=["memory", "file"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    ran.clear()
    async with checked_log(request.param, tmp_path) as store:
        yield store


def config(budget: Budget | None = None, **more: Any) -> AgentConfig:
    return AgentConfig(model="test-model", budget=budget, prices=PRICES, **more)


def looks(*places: str) -> ModelResponse:
    return ModelResponse(content=tuple(use("look", {"at": at}) for at in places), stop_reason="tool_use", usage=USED)


def failed(result: RunResult) -> tuple[str, str]:
    assert isinstance(result.outcome, Failed)
    return result.outcome.error.kind, result.outcome.error.message


async def test_a17_a_run_and_its_session_know_what_they_have_cost(log: EventStore) -> None:
    script = [looks("left"), say("done", usage=USED), say("again", usage=USED)]
    async with runtime_of(log, *script, tools=[look], config=config()) as runtime:
        session = await runtime.session("alice")
        first = await session.send("go")
        assert first.usage == USED + USED
        assert first.cost == pytest.approx(0.0004)
        second = await session.send("go")
        assert second.cost == pytest.approx(0.0002)
        spent = await session.spent()
        assert spent.usage == USED + USED + USED
        assert spent.cost == pytest.approx(0.0006)
        state = await session.state_at()
        assert (state.usage, state.cost) == (spent.usage, spent.cost)
    async with runtime_of(log, config=config()) as runtime:
        again = await (await runtime.session("alice")).state_at()
        assert (again.usage, again.cost) == (state.usage, state.cost)


async def test_a17_a_turn_knows_what_it_took(log: EventStore) -> None:
    async with runtime_of(log, looks("left"), say("done"), tools=[look], config=config()) as runtime:
        session = await runtime.session("alice")
        assert (await session.step("go")).usage == USED
        assert (await session.step()).usage == Usage()


async def test_a17_the_model_that_answered_is_the_one_that_is_paid_for(log: EventStore) -> None:
    prices = {"test": Price(input=1, output=10), "dear": Price(input=1_000, output=10_000)}
    answers = [ModelResponse(content=say("x").content, usage=USED, model="dear-1")]
    dear = AgentConfig(model="test-model", prices=prices)
    async with runtime_of(log, *answers, config=dear) as runtime:
        assert (await (await runtime.session("alice")).send("go")).cost == pytest.approx(0.2)


async def test_a17_a_model_of_a_name_without_a_price_costs_what_the_one_that_was_asked_costs(log: EventStore) -> None:
    answers = [ModelResponse(content=say("x").content, usage=USED, model="some-name-behind-a-gateway")]
    config = AgentConfig(model="test-model", prices={"test": Price(input=1_000, output=10_000)})
    async with runtime_of(log, *answers, config=config) as runtime:
        assert (await (await runtime.session("alice")).send("go")).cost == pytest.approx(0.2)


async def test_a17_tokens_that_are_spent_end_the_run_before_its_tools_run(log: EventStore) -> None:
    script = [looks("left"), looks("right"), say("next run")]
    async with runtime_of(log, *script, tools=[look], config=config(Budget(tokens=200))) as runtime:
        session = await runtime.session("alice")
        result = await session.send("go")
        assert failed(result) == ("budget", "The budget of 200 tokens is spent: the run has used 220.")
        assert ran == ["left"]
        [closed] = [item.event async for item in session.events() if isinstance(item.event, ToolCallFailed)]
        assert (closed.kind, closed.started) == ("denied", False)
        assert (await session.send("once more")).outcome == Completed()
        assert len(requests_of(runtime)) == 3


async def test_a17_a_final_answer_is_kept_though_it_spends_the_budget(log: EventStore) -> None:
    async with runtime_of(log, say("done", usage=USED), config=config(Budget(tokens=10))) as runtime:
        result = await (await runtime.session("alice")).send("go")
        assert (result.outcome, result.text) == (Completed(), "done")


async def test_a17_cost_that_is_spent_ends_the_run(log: EventStore) -> None:
    async with runtime_of(log, looks("left"), tools=[look], config=config(Budget(cost=0.0002))) as runtime:
        kind, message = failed(await (await runtime.session("alice")).send("go"))
    assert kind == "budget"
    assert message == "The budget of 0.0002 for model calls is spent: the run has cost 0.0002."


async def test_a17_an_answer_that_asks_for_too_many_calls_gets_none_of_them_run(log: EventStore) -> None:
    script = [looks("a", "b"), looks("c", "d")]
    async with runtime_of(log, *script, tools=[look], config=config(Budget(tool_calls=3))) as runtime:
        kind, message = failed(await (await runtime.session("alice")).send("go"))
    assert (kind, message) == ("budget", "The budget of 3 tool calls is spent: the model has asked for 4.")
    assert sorted(ran) == ["a", "b"]


async def test_a17_what_half_an_answer_cost_counts(log: EventStore) -> None:
    script = [cut(say("a long answer that breaks", usage=USED), after=2), say("never")]
    setting = config(Budget(tokens=100), streaming=True)
    async with runtime_of(log, *script, config=setting) as runtime:
        result = await (await runtime.session("alice")).send("go")
    assert failed(result)[0] == "provider"
    assert result.usage.input_tokens == 100
    assert result.cost == pytest.approx(0.0001)
