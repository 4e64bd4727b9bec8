"""A parent whose children wait for a person: it is told of what they wait for, and its time does not pass meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    AwaitedApproval,
    Cancelled,
    Completed,
    Failed,
    RunResult,
    ScriptedProvider,
    Session,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import CancelRequested, ToolCallWaiting
from refold.inspection.check import check_log
from refold.remote.connection import connect
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore
from tests.conformance.sessions import HeldAnswer, results_of, types_of

LIMITED = AgentConfig(model="m", run_timeout_s=100)
PLAIN = AgentConfig(model="m")


@tool(tier="confirm", effect="pure")
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def agent_of(name: str, *script: Any, tools: Any = (), config: AgentConfig = PLAIN) -> Agent:
    return Agent(name=name, config=config, provider=ScriptedProvider(script), tools=list(tools))


def asking(name: str) -> Any:
    return use(name, {"task": "go"})


def payer(name: str = "payer", *more: Any) -> Agent:
    return agent_of(name, use("pay", {"amount": 7}), *more, say("It is paid."), tools=[pay])


def boss_of(*helpers: Agent, calls: Any, config: AgentConfig = LIMITED, tier: Any = "act") -> Agent:
    tools = [helper.as_tool(tier=tier) for helper in helpers]
    return agent_of("boss", calls, say("done"), tools=tools, config=config)


async def waiting_in(session: Session, clock: ManualClock, count: int = 1) -> list[AwaitedApproval]:
    for _ in range(100):
        await clock.settle()
        found = await session.approvals()
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} calls wait instead of {count}")


async def begun(runtime: AgentRuntime) -> tuple[Session, "asyncio.Task[RunResult]"]:
    session = await runtime.session("alice")
    return session, asyncio.create_task(session.send("go", key="k"))


async def test_a_session_tells_what_its_children_and_theirs_wait_for_and_decides_about_it(log: EventStore) -> None:
    middle = agent_of("middle", asking("payer"), say("mid"), tools=[payer().as_tool()])
    boss = boss_of(middle, calls=asking("middle"))
    clock = ManualClock()
    async with AgentRuntime(boss, log=log, clock=clock, inbox_poll_s=0) as runtime:
        session, sending = await begun(runtime)
        [request] = await waiting_in(session, clock)
        assert (request.tool, request.input) == ("pay", {"amount": 7})
        assert request.session == "alice/call_6_0/call_6_0"
        assert await session.approvals(below=False) == []
        await session.decide(request, allow=True)
        assert (await sending).text == "done"
        assert await session.approvals() == []


async def test_a_name_so_long_that_its_hash_stands_for_it_hides_no_child(memory: InMemoryStore) -> None:
    middle = agent_of("middle", asking("payer"), say("mid"), tools=[payer().as_tool()])
    clock = ManualClock()
    async with AgentRuntime(boss_of(middle, calls=asking("middle")), log=memory, clock=clock) as runtime:
        session = await runtime.session("é" * 220)
        sending = asyncio.create_task(session.send("go"))
        [request] = await waiting_in(session, clock)
        await session.decide(request, allow=False, reason="no")
        assert (await sending).text == "done"


async def test_a_session_whose_name_looks_like_a_childs_is_not_one(memory: InMemoryStore) -> None:
    clock = ManualClock()
    async with AgentRuntime(payer(), log=memory, clock=clock) as runtime:
        alike = await runtime.session("alice/call_6_0")
        sending = asyncio.create_task(alike.send("go"))
        [request] = await waiting_in(alike, clock)
        assert await (await runtime.session("alice")).approvals() == []
        await alike.decide(request, allow=True)
        await sending


async def test_another_process_is_told_as_well(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    clock = ManualClock()
    async with AgentRuntime(boss_of(payer(), calls=asking("payer")), log=path, clock=clock, inbox_poll_s=0) as runtime:
        session, sending = await begun(runtime)
        [request] = await waiting_in(session, clock)
        [seen] = await connect(path).session("alice").approvals()
        assert (seen.session, seen.call) == (request.session, request.call)
        await session.decide(request, allow=True)
        await sending
    report = await check_log(path)
    assert (report.problems, (await replay(path)).divergences) == ((), ())


async def test_a_parents_time_stands_still_while_its_child_waits_for_a_person(memory: InMemoryStore) -> None:
    clock = ManualClock()
    first, second = HeldAnswer(use("pay", {"amount": 7})), HeldAnswer("It is paid.")
    helper = agent_of("payer", first, second, tools=[pay])
    async with AgentRuntime(boss_of(helper, calls=asking("payer")), log=memory, clock=clock) as runtime:
        session, sending = await begun(runtime)
        await first.asked.wait()
        await clock.advance(60)
        first.gate.set()
        [request] = await waiting_in(session, clock)
        await clock.advance(10_000)
        assert not sending.done()
        await session.decide(request, allow=True)
        await second.asked.wait()
        await clock.advance(39)
        assert not sending.done()
        await clock.advance(2)
        outcome = (await sending).outcome
        assert isinstance(outcome, Failed)
        assert outcome.error.kind == "run_timeout"
        waits = [each.event.waits async for each in session.events() if isinstance(each.event, ToolCallWaiting)]
        assert waits == [True, False]


async def test_its_time_passes_while_another_of_its_calls_is_at_work(memory: InMemoryStore) -> None:
    clock = ManualClock()
    working = agent_of("worker", HeldAnswer("never"))
    boss = boss_of(payer(), working, calls=[asking("payer"), asking("worker")], tier="observe")
    boss = agent_of("boss", [asking("payer"), asking("worker")], say("done"), tools=boss.tools, config=LIMITED)
    async with AgentRuntime(boss, log=memory, clock=clock) as runtime:
        session, sending = await begun(runtime)
        await waiting_in(session, clock)
        await clock.advance(101)
        outcome = (await sending).outcome
        assert isinstance(outcome, Failed)
        assert outcome.error.kind == "run_timeout"


async def test_a_grandchild_holds_all_above_it(memory: InMemoryStore) -> None:
    clock = ManualClock()
    middle = agent_of("middle", asking("payer"), say("mid"), tools=[payer().as_tool()], config=LIMITED)
    async with AgentRuntime(boss_of(middle, calls=asking("middle")), log=memory, clock=clock) as runtime:
        session, sending = await begun(runtime)
        [request] = await waiting_in(session, clock)
        await clock.advance(10_000)
        await session.decide(request, allow=True)
        assert (await sending).outcome == Completed()


async def test_a_restart_changes_nothing_of_that(tmp_path: Path) -> None:
    path, clock = tmp_path / "events.db", ManualClock()
    runtime = await AgentRuntime(
        boss_of(payer(), calls=asking("payer")), log=path, clock=clock, close_grace_s=0, inbox_poll_s=0
    ).open()
    session, sending = await begun(runtime)
    await waiting_in(session, clock)
    await clock.advance(1)
    await runtime.close()
    assert sending.exception() is not None
    clock.jump(1_000)
    again = agent_of("payer", say("It is paid."), tools=[pay])
    boss = agent_of("boss", say("done"), tools=[again.as_tool()], config=LIMITED)
    async with AgentRuntime(boss, log=path, clock=clock, inbox_poll_s=0) as runtime:
        session, sending = await begun(runtime)
        [request] = await waiting_in(session, clock)
        await clock.advance(1_000)
        await session.decide(request, allow=True)
        assert (await sending).outcome == Completed()
        assert [told.text for told in await results_of(session)] == ["It is paid."]
    report = await check_log(path)
    assert (report.problems, (await replay(path)).divergences) == ((), ())


async def test_a_child_whose_parent_is_cancelled_names_the_cause(memory: InMemoryStore) -> None:
    clock = ManualClock()
    middle = agent_of("middle", asking("payer"), say("mid"), tools=[payer().as_tool()])
    async with AgentRuntime(boss_of(middle, calls=asking("middle")), log=memory, clock=clock) as runtime:
        session, sending = await begun(runtime)
        await waiting_in(session, clock)
        await session.cancel()
        assert isinstance((await sending).outcome, Cancelled)
        assert await session.approvals() == []
    cause = None
    for name in ("alice", "alice/call_6_0", "alice/call_6_0/call_6_0"):
        stored = await memory.read_stream(f"session/{name}")
        [place] = [
            place for place, event in enumerate(SESSION_CODEC.decode_all(stored)) if isinstance(event, CancelRequested)
        ]
        assert stored[place].causation == cause
        cause = f"session/{name}@{stored[place].version}"


async def test_a_child_whose_parent_runs_out_of_time_names_the_cause(memory: InMemoryStore) -> None:
    clock = ManualClock()
    held = HeldAnswer("never")
    async with AgentRuntime(
        boss_of(agent_of("slow", held), calls=asking("slow")), log=memory, clock=clock, cancel_grace_s=1
    ) as runtime:
        session, sending = await begun(runtime)
        await held.asked.wait()
        await clock.advance(101)
        await sending
        types = await types_of(session)
        child = await memory.read_stream("session/alice/call_6_0")
        [cancelled] = [item for item in child if b"cancel_requested" in item.data]
        assert cancelled.causation == f"session/alice@{types.index('TimerFired') + 1}"
        assert cancelled.correlation == child[0].correlation
