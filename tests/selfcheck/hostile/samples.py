"""Sample logs for `tests.selfcheck.hostile`: small, with nearly every kind of event that a runtime records.

One is of an agent with memory, knowledge, working memory, graph, breaker, subagent, approvals and large results, and of
runs that completed, failed, were cancelled and were left open; snapshots lie beside. It comes as an SQLite file and in
JSON Lines. Time stands still but where it is moved, so that the samples are the same each time.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import refold
from refold.actors.kernel.clock import ManualClock
from refold.agents.agent import Agent
from refold.events.core.content import ImageBlock, Message, TextBlock, ToolUseBlock
from refold.events.core.errors import ProviderError
from refold.events.core.ids import ToolCallId
from refold.events.core.records import Snapshot
from refold.inspection.export import export_to_file
from refold.providers.scripted import ScriptItem
from refold.resilience import CircuitBreaker
from refold.sessions.session import Session
from refold.stores.sqlite.store import SQLiteStore

CONFIG = refold.AgentConfig(model="m", system_prompt="Be brief.")


@refold.tool(tier="observe", effect="pure", breaker=CircuitBreaker("weather", threshold=2), concurrency=2)
async def weather(city: str) -> str:
    """Weather of a city."""
    if city == "nowhere":
        raise refold.ToolError("no such city", kind="transient")
    return f"{city}: sunny"


@refold.tool(tier="observe")
async def wait(context: refold.ToolContext[object]) -> str:
    """Wait until the run ends."""
    await context.cancel.wait()
    return "no more"


@refold.tool(tier="observe")
async def read() -> str:
    """Return much text."""
    return "line of text\n" * 6_000


@refold.tool(tier="confirm")
async def pay(amount: float) -> str:
    """Pay, if somebody allows it."""
    return f"paid {amount}"


SCRIPT: Sequence[ScriptItem] = (
    [
        refold.use("weather", {"city": "Lisbon"}),
        refold.use("weather", {"city": "nowhere"}),
        refold.use("weather", {"city": "nowhere"}),
    ],
    [
        refold.use("read"),
        refold.use("unknown", {}),
        refold.use("weather", "not JSON"),
        refold.use("weather", {"city": "nowhere"}),
    ],
    refold.say("Sunny."),
    refold.use("helper", {"task": "look it up"}),
    refold.say("It was looked up."),
    ProviderError("refused", kind="auth", status=401),
    refold.use("wait"),
    [refold.use("pay", {"amount": 2.5}), refold.use("pay", {"amount": 9})],
    refold.say("Paid once."),
    refold.use("pay", {"amount": 3}),
)


def sample_agent(script: Sequence[ScriptItem] = ()) -> Agent:
    """Return the agent whose logs the samples are; the tools that a log names are there to go on with."""
    memory, facts = refold.EpisodicStore(scope="agent"), refold.SemanticStore(scope="agent")
    helper = Agent(name="helper", config=CONFIG, provider=refold.ScriptedProvider([refold.say("Looked up.")]))
    return Agent(
        config=CONFIG,
        provider=refold.ScriptedProvider(script),
        tools=[weather, wait, read, pay, helper.as_tool(), *refold.memory_tools(episodic=memory, semantic=facts)],
        memory=memory,
        semantic=facts,
        working_memory=refold.WorkingMemory(4, scope="agent"),
        graph=refold.GraphStore(scope="agent"),
    )


async def make_samples(folder: Path) -> list[Path]:
    """Write the sample logs into a folder, and return their paths."""
    log = folder / "sample.db"
    await _live(log)
    await _keep_snapshots(log)
    exported = folder / "exported.jsonl"
    await export_to_file(log, exported)
    header, *lines, _ = exported.read_bytes().splitlines(keepends=True)
    # As early versions wrote it while they ran: it may end anywhere.
    written_live = folder / "sample.jsonl"
    written_live.write_bytes(b"".join([header.replace(b',"export":true', b""), *lines]))
    return [log, written_live, exported]


async def _live(log: Path) -> None:
    clock = ManualClock()
    agent = sample_agent(SCRIPT)
    runtime = refold.AgentRuntime(agent, log=log, clock=clock, close_grace_s=1, inbox_poll_s=0, durability="normal")
    async with runtime:
        await _remember(agent)
        session = await runtime.session("alice")
        await session.send(["How is the weather?", ImageBlock(media_type="image/png", data=b"\x89PNG not really")])
        await session.send("Long: " + "x" * 66_000, key="long")
        await session.send("And fail.")
        cancelled = asyncio.create_task(session.send("Cancel this."))
        await _until_calls(session, "started")
        await session.cancel()
        await cancelled
        paying = asyncio.create_task(session.send("Pay."))
        first, second = await _until_calls(session, "approval")
        await session.decide(first, allow=True)
        await session.decide(second, allow=False, reason="too much")
        await paying
        other = await runtime.session("bob/b \N{SNOWMAN}'\"")
        call = ToolUseBlock(id=ToolCallId("old_1"), name="weather", input={"city": "old"})
        await other.import_history([Message("user", (TextBlock(text="old"),)), Message("assistant", (call,))])
        left = asyncio.create_task(other.send("Pay later."))
        await _until_calls(other, "approval")
        closing = asyncio.create_task(runtime.close())
        while not closing.done():
            await clock.advance(1)
        await asyncio.gather(left, return_exceptions=True)


async def _remember(agent: Agent) -> None:
    assert isinstance(agent.memory, refold.EpisodicStore)
    assert isinstance(agent.working_memory, refold.WorkingMemory)
    assert agent.semantic is not None
    assert agent.graph is not None
    await agent.memory.add_episode("agent", "Anna lives in Lisbon", importance=0.9)
    await agent.semantic.put("rain", "falls from clouds", tags=["weather"])
    facts = [refold.NewEntry(f"k{number}", f"fact {number}", (), [1.0, *[number] * 99]) for number in range(4)]
    await agent.semantic.put_many(facts)  # In a block.
    await agent.working_memory.set("place", "Lisbon")
    await agent.graph.add_entity("anna", "person")
    await agent.graph.add_entity("lisbon", "city")
    await agent.graph.add_relationship("anna", "lives in", "lisbon", weight=0.5)


async def _until_calls(session: Session, what: str) -> list[ToolCallId]:
    """Return the calls of a turn once they have been started, or wait for approval."""
    while True:
        turn = (await session.state_at()).turn
        calls = turn.calls if turn is not None else []
        if calls and all(call.started if what == "started" else call.approval == "requested" for call in calls):
            return [call.id for call in calls]
        await asyncio.sleep(0)


async def _keep_snapshots(log: Path) -> None:
    async with await SQLiteStore.open(log) as store:
        for head in await store.list_streams(prefix="session/"):
            await store.save_snapshot(
                Snapshot(
                    stream=head.stream, version=head.version, chain=head.chain, fold_version=1, state=b'{"messages":[]}'
                )
            )
