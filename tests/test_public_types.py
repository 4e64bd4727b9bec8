"""What type checkers say of the public API; mypy and pyright read this file, and the tests show that it is true."""

from typing import assert_never, assert_type

import refold.actors
import refold.events
import refold.memory
import refold.metrics
import refold.providers
import refold.resilience
import refold.scenarios
import refold.stores
from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    AwaitedApproval,
    Cancelled,
    Completed,
    Failed,
    Message,
    Missed,
    ModelRequest,
    Outcome,
    Progressed,
    RecordedEvent,
    RunError,
    RunId,
    RunResult,
    RunStream,
    ScriptedProvider,
    ScriptItem,
    Session,
    SessionId,
    Streamed,
    SubagentTool,
    Subscription,
    SyncRuntime,
    SyncSession,
    Tool,
    ToolContext,
    TurnResult,
    say,
    tool,
    use,
)
from refold.events import SessionState
from refold.events.session.events import SessionEvent
from refold.replay import ReplayReport, replay


@tool
async def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


@tool(tier="observe", effect="pure", timeout_s=5)
def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


@tool()
def owner(context: ToolContext[str]) -> str:
    """Return whose runtime it is."""
    return assert_type(context.deps, str)


def agent() -> Agent:
    script: list[ScriptItem] = [use("weather", {"city": "Lisbon"}), say("Sunny."), "Again.", "And again."]
    return Agent(config=AgentConfig(model="m"), provider=ScriptedProvider(script), tools=[weather, double, owner])


def words_of(outcome: Outcome) -> str:
    match outcome:
        case Completed():
            return "completed"
        case Failed(error=error):
            return assert_type(error, RunError).message
        case Cancelled():
            return "cancelled"
        case _:
            assert_never(outcome)


def kind_of(item: RecordedEvent[SessionEvent] | Streamed | Progressed | Missed) -> str:
    match item:
        case RecordedEvent(event=event):
            return type(assert_type(event, SessionEvent)).__name__
        case Streamed():
            return assert_type(item.session, SessionId)
        case Progressed():
            return "progressed"
        case Missed():
            return "missed"
        case _:
            assert_never(item)


async def test_a_runtime_and_its_sessions_have_exact_types() -> None:
    async with AgentRuntime(agent()) as runtime:
        assert_type(runtime, AgentRuntime)
        session = assert_type(await runtime.session("alice"), Session)
        result = assert_type(await session.send("Weather?"), RunResult)
        assert (words_of(result.outcome), result.text) == ("completed", "Sunny.")
        assert_type(result.run, RunId)
        stream = assert_type(session.stream("Again?"), RunStream)
        kinds = [kind_of(item) async for item in stream]
        assert kinds[-1] == "RunCompleted"
        assert_type(stream.result, RunResult)
        assert_type(await session.step("And again?"), TurnResult)
        assert_type(await session.history(), list[Message])
        assert_type(await session.approvals(), list[AwaitedApproval])
        assert_type(await session.state_at(), SessionState)
        assert_type(session.follow(), Subscription)
        report = assert_type(await replay(runtime.store, agent=agent()), ReplayReport)
        assert report.diverged == 0


def test_a_synchronous_runtime_has_exact_types() -> None:
    with AgentRuntime(agent()) as runtime:
        assert_type(runtime, SyncRuntime)
        session = assert_type(runtime.session("alice"), SyncSession)
        assert_type(session.send("Weather?"), RunResult)
        assert_type(session.history(), list[Message])


async def test_a_tool_keeps_the_signature_of_its_function() -> None:
    assert assert_type(await weather("Lisbon"), str) == "Lisbon: sunny"
    assert assert_type(double(2), int) == 4
    assert isinstance(owner, Tool)
    assert_type(agent().as_tool(), SubagentTool[..., object])


def test_a_script_takes_answers_in_all_forms() -> None:
    def answer(request: ModelRequest) -> str:
        return f"{len(request.messages)} messages"

    provider = ScriptedProvider(
        ["text", say("text"), use("weather"), [use("weather"), "text"], answer, ValueError("no")]
    )
    assert_type(provider.requests, list[ModelRequest])


def test_each_package_gives_its_names_with_their_types() -> None:
    assert_type(refold.actors.ManualClock(), refold.actors.ManualClock)
    assert_type(refold.events.Message, type[Message])
    assert_type(refold.memory.WorkingMemory(2), refold.memory.WorkingMemory)
    assert_type(refold.metrics.MetricsSnapshot, type[refold.metrics.MetricsSnapshot])
    assert_type(refold.providers.HttpTimeouts(), refold.providers.HttpTimeouts)
    assert_type(refold.resilience.CircuitBreaker("weather"), refold.resilience.CircuitBreaker)
    assert_type(refold.scenarios.Scenario, type[refold.scenarios.Scenario])
    assert_type(refold.stores.InMemoryStore(), refold.stores.InMemoryStore)
    assert_type(refold.__version__, str)
