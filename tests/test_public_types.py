"""What type checkers say of the public API; mypy and pyright read this file, and the tests show that it is true."""

import inspect
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Self, assert_never, assert_type

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
from refold.sessions.inputs import RunOverrides


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


class Database:
    """What an application depends on."""


class Client:
    """What is entered before it is used."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None


@asynccontextmanager
async def open_database() -> AsyncGenerator[Database, None]:
    yield Database()


@contextmanager
def plain_database() -> Generator[Database, None, None]:
    yield Database()


async def made_database() -> Database:
    return Database()


@refold.guardrail
def fine(context: refold.RunContext[Any], said: refold.Message) -> None: ...


async def test_dependencies_have_their_type_without_naming_it_in_all_forms() -> None:
    config, provider = refold.AgentConfig(model="m"), refold.ScriptedProvider(["Yes."] * 99)
    agents: list[refold.Agent[Database, str]] = [
        assert_type(refold.Agent(config=config, provider=provider, deps=Database()), refold.Agent[Database, str]),
        assert_type(refold.Agent(config=config, provider=provider, deps=Database), refold.Agent[Database, str]),
        assert_type(refold.Agent(config=config, provider=provider, deps=open_database), refold.Agent[Database, str]),
        assert_type(refold.Agent(config=config, provider=provider, deps=open_database()), refold.Agent[Database, str]),
        assert_type(refold.Agent(config=config, provider=provider, deps=plain_database), refold.Agent[Database, str]),
        assert_type(refold.Agent(config=config, provider=provider, deps=plain_database()), refold.Agent[Database, str]),
        assert_type(refold.Agent(config=config, provider=provider, deps=made_database), refold.Agent[Database, str]),
        assert_type(
            refold.Agent(config=config, provider=provider, deps=lambda: Database()), refold.Agent[Database, str]
        ),
    ]
    seen: list[object] = []

    def note(context: refold.RunContext[Any]) -> str:
        seen.append(context.deps)
        return ""

    clients: list[refold.Agent[Client, str]] = [
        assert_type(refold.Agent(config=config, provider=provider, deps=Client()), refold.Agent[Client, str]),
        assert_type(refold.Agent(config=config, provider=provider, deps=Client), refold.Agent[Client, str]),
    ]
    every: list[refold.Agent[Any, str]] = [*agents, *clients]
    for each in every:
        settings = msgspec.structs.replace(each, config=refold.AgentConfig(model="m", system_prompt=note))
        async with refold.AgentRuntime(settings) as runtime:
            await (await runtime.session("s")).send("Go")
    assert [type(each) for each in seen] == [Database] * len(agents) + [Client] * len(clients)
    lock = refold.Agent(config=config, provider=provider, deps=Lock())
    assert_type(lock, refold.Agent[Lock, str])
    both = refold.Agent(config=config, provider=provider, deps=Database(), output_type=Plan, input_guardrails=[fine])
    assert_type(both, refold.Agent[Database, Plan])


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
        with pytest.raises(refold.CommandRejected, match="send an input step by step first"):
            assert_type(await session.next_turn(), refold.TurnResult[Plan])
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


async def test_an_output_of_one_run_has_the_type_that_was_given_for_it(tmp_path: Path) -> None:
    agent = refold.Agent(
        config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider(['{"goal": "tea"}'] * 9)
    )
    async with refold.AgentRuntime(agent, log=tmp_path / "events.db") as runtime:
        session = await runtime.session("alice")
        assert assert_type(await session.send("Go", output_type=Plan), refold.RunResult[Plan]).output == Plan("tea")
        handle = assert_type(await session.submit("Go", output_type=Plan, key="k"), refold.RunHandle[Plan])
        assert assert_type((await handle.result()).output, Plan).goal == "tea"
        async with assert_type(session.stream("Go", output_type=Plan), refold.RunStream[Plan]) as stream:
            assert [kind_of(item) async for item in stream][-1] == "RunCompleted"
        assert assert_type(stream.result.output, Plan).goal == "tea"
        turn = assert_type(await session.next_turn("Go", output_type=Plan), refold.TurnResult[Plan])
        assert turn.result is not None
        assert turn.result.output == Plan("tea")
        assert_type(await session.step("Go", model="m"), refold.TurnResult)
        with pytest.raises(refold.ConfigError, match="give an input too"):
            await session.next_turn(output_type=Plan)  # type: ignore[call-overload]
        assert_type(await session.submit("Go", key="l", max_turns=2), refold.RunHandle)
        either = assert_type(
            await session.send("Go", output_type=Plan if handle.run else None),
            refold.RunResult[Plan] | refold.RunResult[str],
        )
        assert either.output == Plan("tea")
        connected = refold.connect(tmp_path / "events.db").session("alice")
        sent = assert_type(await connected.send("Go", output_type=Plan), refold.RunResult[Plan] | refold.Unfinished)
        assert isinstance(sent, refold.RunResult)
        run = assert_type(await connected.submit("Go", output_type=Plan), refold.ConnectedRun[Plan])
        assert [assert_type(sent.output, Plan), (await run.result()).output] == [Plan("tea")] * 2
        assert_type(connected.stream("Go", output_type=Plan), refold.ConnectedReader[Plan])


def test_an_output_of_one_run_has_its_type_for_threads_and_over_connections(tmp_path: Path) -> None:
    agent = refold.Agent(
        config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider(['{"goal": "tea"}'] * 9)
    )
    log = tmp_path / "events.db"
    with refold.AgentRuntime(agent, log=log) as runtime, refold.connect(log) as connection:
        session, connected = runtime.session("alice"), connection.session("alice")
        assert assert_type(session.send("Go", output_type=Plan), refold.RunResult[Plan]).output == Plan("tea")
        handle = assert_type(session.submit("Go", output_type=Plan), refold.SyncRunHandle[Plan])
        assert assert_type(handle.result().output, Plan).goal == "tea"
        with assert_type(session.stream("Go", output_type=Plan), refold.SyncRunStream[Plan]) as stream:
            assert [kind_of(item) for item in stream][-1] == "RunCompleted"
        assert assert_type(stream.result.output, Plan).goal == "tea"
        assert_type(session.next_turn("Go", output_type=Plan), refold.TurnResult[Plan])
        with pytest.raises(refold.CommandRejected, match="send an input step by step first"):
            assert_type(session.next_turn(), refold.TurnResult[str])
        assert_type(session.send("Go"), refold.RunResult)
        sent = assert_type(connected.send("Go", output_type=Plan), refold.RunResult[Plan] | refold.Unfinished)
        assert isinstance(sent, refold.RunResult)
        assert assert_type(sent.output, Plan).goal == "tea"
        run = assert_type(connected.submit("Go", output_type=Plan), refold.SyncConnectedRun[Plan])
        assert assert_type(run.result().output, Plan).goal == "tea"
        with assert_type(connected.stream("Go", output_type=Plan), refold.SyncConnectedReader[Plan]) as reader:
            assert [kind_of(item) for item in reader][-1] == "RunCompleted"
        assert assert_type(reader.result.output, Plan).goal == "tea"
        assert_type(connected.send("Go"), refold.RunResult | refold.Unfinished)


@pytest.mark.parametrize("method", ["send", "submit", "stream", "next_turn"])
def test_help_on_a_session_names_the_options_of_a_run(method: str) -> None:
    for face in (refold.Session, refold.SyncSession):
        named = inspect.signature(getattr(face, method)).parameters
        assert {"content", "key", "deps", "output_type", "options"} <= named.keys()
    assert all(f"`{option}`" in str(refold.Session.send.__doc__) for option in RunOverrides.__annotations__)


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
