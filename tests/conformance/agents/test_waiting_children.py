"""A parent whose children wait for a person: it is told of what they wait for, and its time does not pass meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

from refold import Agent, AgentRuntime, Cancelled, Completed, Failed, say, use
from refold.actors import ManualClock
from refold.connections.connection import connect
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import CancelRequested, ToolCallStarted, ToolCallWaiting
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore
from tests.conformance.agents.delegating import (
    CHILD,
    LIMITED,
    agent_of,
    asking,
    boss_of,
    payer,
    sent_to,
    told,
    waiting_in,
)
from tests.conformance.sessions import HeldAnswer, events_of, types_of


def middle(**parts: Any) -> Agent:
    """Return an agent that has another one pay."""
    return agent_of("middle", asking("payer"), say("mid"), tools=[payer().as_tool()], **parts)


async def assert_sound_file(path: Path) -> None:
    assert ((await check_log(path)).problems, (await replay(path)).divergences) == ((), ())


async def test_a_session_tells_what_its_children_and_theirs_wait_for_and_decides_about_it(log: EventStore) -> None:
    boss = boss_of(middle(), calls=asking("middle"), config=LIMITED)
    clock = ManualClock()
    async with sent_to(boss, log, clock=clock, inbox_poll_s=0) as (_, session, sending):
        [request] = await waiting_in(session, clock)
        assert (request.tool, request.input) == ("pay", {"amount": 7})
        assert request.session == f"{CHILD}/call_6_0"
        assert await session.approvals(below=False) == []
        await session.decide(request, allow=True)
        assert (await sending).text == "done"
        assert await session.approvals() == []


async def test_a_name_so_long_that_its_hash_stands_for_it_hides_no_child(memory: InMemoryStore) -> None:
    clock = ManualClock()
    boss = boss_of(middle(), calls=asking("middle"), config=LIMITED)
    async with sent_to(boss, memory, "é" * 220, clock=clock) as (_, session, sending):
        [request] = await waiting_in(session, clock)
        await session.decide(request, allow=False, reason="no")
        assert (await sending).text == "done"


async def test_a_session_whose_name_looks_like_a_childs_is_not_one(memory: InMemoryStore) -> None:
    clock = ManualClock()
    async with AgentRuntime(payer(), log=memory, clock=clock) as runtime:
        alike = await runtime.session(CHILD)
        sending = asyncio.create_task(alike.send("go"))
        [request] = await waiting_in(alike, clock)
        assert await (await runtime.session("alice")).approvals() == []
        await alike.decide(request, allow=True)
        await sending


async def test_another_process_is_told_as_well(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    clock = ManualClock()
    async with sent_to(boss_of(payer(), calls=asking("payer"), config=LIMITED), path, clock=clock, inbox_poll_s=0) as (
        _,
        session,
        sending,
    ):
        [request] = await waiting_in(session, clock)
        [seen] = await connect(path).session("alice").approvals()
        assert (seen.session, seen.call) == (request.session, request.call)
        await session.decide(request, allow=True)
        await sending
    await assert_sound_file(path)


async def test_a_parents_time_stands_still_while_its_child_waits_for_a_person(memory: InMemoryStore) -> None:
    clock = ManualClock()
    first, second = HeldAnswer(use("pay", {"amount": 7})), HeldAnswer("It is paid.")
    helper = payer(first, second)
    async with sent_to(boss_of(helper, calls=asking("payer"), config=LIMITED), memory, clock=clock) as (
        _,
        session,
        sending,
    ):
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
        assert [event.waits for event in await events_of(session, ToolCallWaiting)] == [True, False]


async def test_its_time_passes_while_another_of_its_calls_is_at_work(memory: InMemoryStore) -> None:
    clock = ManualClock()
    helpers = [helper.as_tool(tier="observe") for helper in (payer(), agent_of("worker", HeldAnswer("never")))]
    boss = boss_of(*helpers, calls=[asking("payer"), asking("worker")], config=LIMITED)
    async with sent_to(boss, memory, clock=clock) as (_, session, sending):
        await waiting_in(session, clock)
        await clock.advance(101)
        outcome = (await sending).outcome
        assert isinstance(outcome, Failed)
        assert outcome.error.kind == "run_timeout"


async def test_a_grandchild_holds_all_above_it(memory: InMemoryStore) -> None:
    clock = ManualClock()
    async with sent_to(
        boss_of(middle(config=LIMITED), calls=asking("middle"), config=LIMITED), memory, clock=clock
    ) as (_, session, sending):
        [request] = await waiting_in(session, clock)
        await clock.advance(10_000)
        await session.decide(request, allow=True)
        assert (await sending).outcome == Completed()


async def test_a_restart_changes_nothing_of_that(tmp_path: Path) -> None:
    path, clock = tmp_path / "events.db", ManualClock()
    boss = boss_of(payer(), calls=asking("payer"), config=LIMITED)
    async with sent_to(boss, path, clock=clock, close_grace_s=0, inbox_poll_s=0) as (runtime, session, sending):
        [before] = await waiting_in(session, clock)
        assert (before.tool, before.input) == ("pay", {"amount": 7})
        assert await session.approvals(below=False) == []
        await clock.advance(1)
        await runtime.close()
        assert sending.exception() is not None
    clock.jump(1_000)
    boss = boss_of(payer(say("It is paid.")), config=LIMITED)
    async with sent_to(boss, path, clock=clock, inbox_poll_s=0) as (runtime, session, sending):
        [request] = await waiting_in(session, clock)
        assert (request.session, request.call) == (before.session, before.call)
        await clock.advance(1_000)
        child = await runtime.session(CHILD, restore=True)
        await child.decide(request.call, allow=True)
        assert ((await sending).outcome, (await sending).text) == (Completed(), "done")
        assert (await told(session), await told(child)) == (["It is paid."], ["paid 7"])
        assert len(await events_of(child, ToolCallStarted)) == 1
    await assert_sound_file(path)


async def test_a_child_whose_parent_is_cancelled_names_the_cause(memory: InMemoryStore) -> None:
    clock = ManualClock()
    async with sent_to(boss_of(middle(), calls=asking("middle"), config=LIMITED), memory, clock=clock) as (
        _,
        session,
        sending,
    ):
        await waiting_in(session, clock)
        await session.cancel()
        assert isinstance((await sending).outcome, Cancelled)
        assert await session.approvals() == []
    cause = None
    for name in ("alice", CHILD, f"{CHILD}/call_6_0"):
        stored = await memory.read_stream(f"session/{name}")
        [place] = [
            place for place, event in enumerate(SESSION_CODEC.decode_all(stored)) if isinstance(event, CancelRequested)
        ]
        assert stored[place].causation == cause
        cause = f"session/{name}@{stored[place].version}"


async def test_a_child_whose_parent_runs_out_of_time_names_the_cause(memory: InMemoryStore) -> None:
    clock, held = ManualClock(), HeldAnswer("never")
    boss = boss_of(agent_of("slow", held), calls=asking("slow"), config=LIMITED)
    async with sent_to(boss, memory, clock=clock, cancel_grace_s=1) as (_, session, sending):
        await held.asked.wait()
        await clock.advance(101)
        await sending
        types = await types_of(session)
        child = await memory.read_stream(f"session/{CHILD}")
        [cancelled] = [item for item in child if b"cancel_requested" in item.data]
        assert cancelled.causation == f"session/alice@{types.index('TimerFired') + 1}"
        assert cancelled.correlation == child[0].correlation
