"""What type checkers say of the public API; mypy and pyright read this file, and the tests show that it is true."""

from typing import Any, assert_never, assert_type

import msgspec
import pytest

import refold
import refold.actors
import refold.events
import refold.memory
import refold.metrics
import refold.providers
import refold.resilience
import refold.scenarios
import refold.stores
from refold.events import SessionState
from refold.events.session.events import SessionEvent
from refold.replay import ReplayReport, replay


@refold.tool
async def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


@refold.tool(tier="observe", effect="pure", timeout_s=5)
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


@refold.tool()
def owner(context: refold.ToolContext[str]) -> str:
    """Return whose runtime it is."""
    return assert_type(context.deps, str)


def agent() -> refold.Agent:
    script: list[refold.ScriptItem] = [
        refold.use("weather", {"city": "Lisbon"}),
        refold.say("Sunny."),
        "Again.",
        "And again.",
    ]
    return refold.Agent(
        config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider(script), tools=[weather, double, owner]
    )


class Plan(msgspec.Struct):
    """What answers are that are no text."""

    goal: str


def planner() -> refold.Agent[Any, Plan]:
    provider = refold.ScriptedProvider([refold.say('{"goal": "tea"}')] * 5)
    return assert_type(
        refold.Agent(config=refold.AgentConfig(model="m"), provider=provider, output_type=Plan),
        refold.Agent[Any, Plan],
    )


def words_of(outcome: refold.Outcome) -> str:
    match outcome:
        case refold.Completed():
            return "completed"
        case refold.Failed(error=error):
            return assert_type(error, refold.RunError).message
        case refold.Cancelled():
            return "cancelled"
        case _:
            assert_never(outcome)


def kind_of(item: refold.RecordedEvent[SessionEvent] | refold.Streamed | refold.Progressed | refold.Missed) -> str:
    match item:
        case refold.RecordedEvent(event=event):
            return type(assert_type(event, SessionEvent)).__name__
        case refold.Streamed():
            return assert_type(item.session, refold.SessionId)
        case refold.Progressed():
            return "progressed"
        case refold.Missed():
            return "missed"
        case _:
            assert_never(item)


async def test_a_runtime_and_its_sessions_have_exact_types() -> None:
    async with refold.AgentRuntime(agent()) as runtime:
        assert_type(runtime, refold.AgentRuntime)
        session = assert_type(await runtime.session("alice"), refold.Session)
        result = assert_type(await session.send("Weather?"), refold.RunResult)
        assert (words_of(result.outcome), result.text) == ("completed", "Sunny.")
        assert_type(result.run, refold.RunId)
        stream = assert_type(session.stream("Again?"), refold.RunStream)
        kinds = [kind_of(item) async for item in stream]
        assert kinds[-1] == "RunCompleted"
        assert_type(stream.result, refold.RunResult)
        assert_type(await session.step("And again?"), refold.TurnResult)
        assert_type(await session.history(), list[refold.Message])
        assert_type(await session.approvals(), list[refold.AwaitedApproval])
        assert_type(await session.state_at(), SessionState)
        assert assert_type(result.output, str) == "Sunny."
        assert_type(session.follow(), refold.Subscription)
        report = assert_type(await replay(runtime.store, agent=agent()), ReplayReport)
        assert report.diverged == 0


def test_a_synchronous_runtime_has_exact_types() -> None:
    with refold.AgentRuntime(agent()) as runtime:
        assert_type(runtime, refold.SyncRuntime)
        session = assert_type(runtime.session("alice"), refold.SyncSession)
        assert_type(session.send("Weather?"), refold.RunResult)
        assert_type(session.history(), list[refold.Message])


async def test_an_output_has_its_type_without_naming_it_again() -> None:
    async with refold.AgentRuntime(planner()) as runtime:
        session = assert_type(await runtime.session("alice"), refold.Session[Plan])
        assert assert_type((await session.send("Go")).output, Plan).goal == "tea"
        async with session.stream("Go") as stream:
            assert [kind_of(item) async for item in stream][-1] == "RunCompleted"
        assert assert_type(stream.result.output, Plan).goal == "tea"
        turn = await session.step("Go")
        assert turn.result is not None
        assert assert_type(turn.result.output, Plan).goal == "tea"
        token = refold.CancellationToken()
        token.cancel()
        result = await session.send("Go", cancel=token)
        with pytest.raises(refold.RunNotCompleted, match="was cancelled") as raised:
            assert_type(result.output, Plan)
        assert assert_type(raised.value.outcome, refold.Failed | refold.Cancelled) == refold.Cancelled()


def test_an_output_has_its_type_where_a_runtime_is_given_the_parts_of_an_agent() -> None:
    provider = refold.ScriptedProvider([refold.say("[1, 2]")])
    with refold.AgentRuntime(
        refold.AgentConfig(model="m"), provider=provider, log=":memory:", output_type=list[int]
    ) as of_parts:
        assert assert_type(of_parts.session("alice").send("Go").output, list[int]) == [1, 2]


async def test_a_tool_keeps_the_signature_of_its_function() -> None:
    assert assert_type(await weather("Lisbon"), str) == "Lisbon: sunny"
    assert assert_type(double(2), int) == 4
    assert isinstance(owner, refold.Tool)
    assert_type(agent().as_tool(), refold.SubagentTool[..., object])


def test_a_script_takes_answers_in_all_forms() -> None:
    def answer(request: refold.ModelRequest) -> str:
        return f"{len(request.messages)} messages"

    provider = refold.ScriptedProvider(
        ["text", refold.say("text"), refold.use("weather"), [refold.use("weather"), "text"], answer, ValueError("no")]
    )
    assert_type(provider.requests, list[refold.ModelRequest])


def test_each_package_gives_its_names_with_their_types() -> None:
    assert_type(refold.actors.ManualClock(), refold.actors.ManualClock)
    assert_type(refold.events.Message, type[refold.Message])
    assert_type(refold.memory.WorkingMemory(2), refold.memory.WorkingMemory)
    assert_type(refold.metrics.MetricsSnapshot, type[refold.metrics.MetricsSnapshot])
    assert_type(refold.providers.HttpTimeouts(), refold.providers.HttpTimeouts)
    assert_type(refold.resilience.CircuitBreaker("weather"), refold.resilience.CircuitBreaker)
    assert_type(refold.scenarios.Scenario, type[refold.scenarios.Scenario])
    assert_type(refold.stores.InMemoryStore(), refold.stores.InMemoryStore)
    assert_type(refold.__version__, str)
