"""Record a sample log of all that lives on a log beside sessions, and of sessions that use it; kept here for ever.

See `record.py` for how it is run. `tests/test_golden_logs.py` has `boss` decide again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

import refold
from refold.actors import ManualClock
from refold.events import SESSION_CODEC, fold, history
from refold.events.core.checked_core import CheckedCore
from refold.events.core.content import (
    GivenContent,
    text_of,
)
from refold.events.core.ids import ToolCallId
from refold.events.kinds.breaker import BREAKER_CORE
from refold.events.kinds.deduplicator import DEDUP_CORE
from refold.events.kinds.episodic import EPISODIC_CORE
from refold.events.kinds.graph import GRAPH_CORE
from refold.events.kinds.semantic import SEMANTIC_CORE
from refold.events.kinds.working_memory import WORKING_CORE
from refold.memory import (
    DecayPolicy,
    EpisodicStore,
    GraphStore,
    RecallPolicy,
    SemanticStore,
    WorkingMemory,
    memory_tools,
)
from refold.options import RuntimeOptions
from refold.providers.scripted import ScriptItem
from refold.resilience import CircuitBreaker, Deduplicator
from refold.stores import EventStore, SQLiteStore
from refold.stores.past_state import past_state

CORES: dict[str, CheckedCore[Any, Any, Any]] = {
    "memory": EPISODIC_CORE,
    "working": WORKING_CORE,
    "graph": GRAPH_CORE,
    "knowledge": SEMANTIC_CORE,
    "breaker": BREAKER_CORE,
    "dedup": DEDUP_CORE,
}
"""Of all streams that stores live in, by kind."""

PRICES = {"model": refold.Price(input=3, output=15, cache_read=0.3), "small": refold.Price(input=0.1, output=0.7)}


@refold.tool(tier="observe", effect="pure")
async def look(what: str) -> str:
    """Look at something."""
    return f"{what} \N{EN DASH} seen \N{WHITE SMILING FACE}"


@refold.tool(tier="act")
async def fail(transient: bool) -> str:
    """Fail."""
    raise refold.ToolError("no luck", kind="transient" if transient else "permanent")


@refold.tool(tier="confirm")
async def pay(amount: float) -> str:
    """Pay, if somebody allows it."""
    return f"paid {amount}"


class Polite(refold.Middleware):
    """Changes something of everything, and the same at any time."""

    def on_user_message(self, context: refold.HookContext, content: tuple[GivenContent, ...]) -> str:
        """Ask for it kindly."""
        return f"{text_of(content)}, please"

    async def on_pre_llm(self, context: refold.HookContext, request: refold.ModelRequest) -> refold.ModelRequest:
        """Say what day it is."""
        return msgspec.structs.replace(request, system_prompt=f"{request.system_prompt}\n\nIt is Monday.")

    def on_post_llm(self, context: refold.HookContext, response: refold.ModelResponse) -> refold.ModelResponse | None:
        """Say it kindly."""
        if response.stop_reason == "tool_use":
            return None
        return msgspec.structs.replace(response, content=(*response.content, refold.TextBlock(text="You are welcome.")))

    def on_tool_call(self, context: refold.HookContext, call: refold.ToolCall) -> refold.Deny | None:
        """Look at no moon."""
        return refold.Deny("not the moon") if call.input.get("what") == "moon" else None

    async def on_tool_result(
        self, context: refold.HookContext, result: refold.ToolResultBlock
    ) -> refold.ToolResultBlock | None:
        """Hide a word."""
        if "seen" not in text_of(result.content):
            return None
        return msgspec.structs.replace(
            result, content=(refold.TextBlock(text=result.text.replace("seen", "\N{BULLET}")),)
        )


def judge(call: refold.ProposedCall) -> refold.Allow | refold.Ask | refold.Deny:
    """Ask about money, deny what is far away."""
    if call.tool == "pay":
        return refold.Ask("money")
    return refold.Deny("too far") if call.input.get("what") == "mars" else refold.Allow()


class Stores:
    """What lives on the log."""

    def __init__(self) -> None:
        self.memory = EpisodicStore(
            decay=DecayPolicy.exponential(half_life_hours=24),
            recall=RecallPolicy.hybrid(),
            capacity=4,
            scope="agent",
            unmatched=True,
        )
        self.working = WorkingMemory(2, scope="agent")
        self.graph = GraphStore(scope="agent")
        self.knowledge = SemanticStore(dimension=3, scope="agent")
        self.breaker = CircuitBreaker("weather", threshold=2, recovery_s=30)
        self.dedup = Deduplicator("payments", ttl_s=3_600)


LookAround: TypeAlias = Callable[[refold.AgentRuntime, Stores], Awaitable[None]]


def boss(stores: Stores, script: list[ScriptItem], clerk_script: list[ScriptItem]) -> refold.Agent:
    """Return the agent whose sessions these are."""
    clerk = refold.Agent(
        name="clerk",
        config=refold.AgentConfig(model="small", system_prompt="Serve.", prices=PRICES),
        provider=refold.ScriptedProvider(clerk_script),
        tools=[look],
    )
    return refold.Agent(
        name="boss",
        config=refold.AgentConfig(
            model="model", system_prompt="Rule.", prices=PRICES, retry=refold.RetryPolicy(attempts_max=2, jitter=0)
        ),
        provider=refold.ScriptedProvider(script),
        tools=[look, fail, pay, clerk.as_tool(), *memory_tools(episodic=stores.memory, graph=stores.graph)],
        middleware=[Polite()],
        policy=judge,
        approval=lambda session, request: (
            refold.Allow() if request.input.get("amount") == 1 else refold.Deny("too much")
        ),
        memory=stores.memory,
        working_memory=stores.working,
        graph=stores.graph,
        semantic=stores.knowledge,
        context=refold.Summarising(1_800),
        objects=[stores.breaker, stores.dedup],
    )


def spent(text: str, *tokens: int, model: str | None = None) -> refold.ModelResponse:
    """Return an answer and what it took."""
    usage = refold.Usage(input_tokens=tokens[0], output_tokens=tokens[1], cache_read_tokens=tokens[2])
    return refold.ModelResponse(content=(refold.TextBlock(text=text),), usage=usage, model=model)


async def remember(stores: Stores, clock: ManualClock) -> None:
    """Fill and empty the stores."""
    for number in range(5):
        await stores.memory.add_episode(
            "boss", f"tea number {number} is green", 0.1 + number / 7, ("tea",), key=f"tea {number}"
        )
        clock.jump(1_800.1)
    await stores.memory.add_episode("clerk", "the till is full")
    await stores.memory.recall("boss", "green tea", 2, key="recalled")
    await stores.memory.clear("clerk")
    for name, value in (("place", "Lisbon"), ("day", "Monday\nMay"), ("guest", "Anna")):
        await stores.working.set(name, value)
    await stores.working.remove("day")
    for name in ("anna", "tea", "lisbon", "rain"):
        await stores.graph.add_entity(name, "thing", {"length": len(name), "share": 1 / 3})
    await stores.graph.add_relationship("anna", "likes", "tea", 0.1)
    await stores.graph.add_relationship("anna", "lives_in", "lisbon", key="lives")
    await stores.graph.add_relationship("rain", "falls_in", "lisbon", 2.5)
    await stores.graph.remove_relationship("anna", "lives_in", "lisbon")
    await stores.graph.remove_entity("rain")
    await stores.knowledge.put("tea", "is green", ("drink",), [0.1, 0.2, 0.3])
    await stores.knowledge.put("coffee", "is black", ("drink",), [1, 0, 0])
    await stores.knowledge.put("rain", "falls", (), [0, 1, 0])
    await stores.knowledge.remove("rain")


async def protect(stores: Stores, clock: ManualClock) -> None:
    """Open and close a breaker, and do work once."""

    async def broken() -> None:
        raise ConnectionError("gone")

    async def well() -> str:
        return "sunny"

    for _ in range(3):
        try:
            await stores.breaker.call(broken)
        except (ConnectionError, refold.CircuitOpen):
            await clock.advance(1)
    await clock.advance(30)
    probe = asyncio.create_task(stores.breaker.call(asyncio.Event().wait))
    await clock.settle()
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    assert await stores.breaker.call(well) == "sunny"
    assert await stores.dedup.run("invoice-17", well) == "sunny"
    try:
        await stores.dedup.run("invoice-18", broken)
    except ConnectionError:
        await stores.dedup.forget("invoice-17")


async def first_life(
    log: Path, clock: ManualClock, snapshot_every: int | None, look_around: LookAround | None = None
) -> None:
    """Use all of it in sessions; `look_around` is given the runtime and the stores at the end."""
    stores = Stores()
    script: list[ScriptItem] = [
        [
            refold.use("look", {"what": "tea"}),
            refold.use("look", {"what": "moon"}),
            refold.use("look", {"what": "mars"}),
            refold.use("none"),
        ],
        [refold.use("pay", {"amount": 1}), refold.use("pay", {"amount": 9}), refold.use("fail", {"transient": False})],
        [refold.use("clerk", {"task": "Look into the till."}), refold.use("look", "not JSON")],
        spent("Tea it is.", 1_000, 100, 50, model="model-2026"),
        refold.ProviderError("overloaded", kind="overloaded", status=529, retryable=True),
        spent("Again.", 10, 1, 0),
        spent("long " * 900, 20, 900, 0),
        spent("They spoke of tea.", 90, 9, 0),
        spent("The end.", 5, 5, 0),
        refold.ProviderError("no", kind="invalid_request", status=400),
    ]
    clerk: list[ScriptItem] = [refold.use("look", {"what": "till"}), spent("It is full.", 7, 7, 0)]
    agent = boss(stores, script, clerk)
    options = RuntimeOptions(
        log=log, clock=clock, app_version="golden", snapshot_every=snapshot_every, passivate_after_s=1e6
    )
    async with refold.AgentRuntime(agent, **options) as runtime:
        await remember(stores, clock)
        await protect(stores, clock)
        session = await runtime.session("alice")
        for text in ("Green tea", "Again", "Tell a story " + "x" * 1_500, "And then", "Fail"):
            await sent(session, text, clock)
        if look_around is not None:
            await look_around(runtime, stores)


async def sent(session: refold.Session, text: str, clock: ManualClock) -> None:
    """Send an input and move the clock until its run has ended."""
    sending = asyncio.create_task(session.send(text))
    while not sending.done():
        await clock.advance(0.5)
    await sending


async def waiting_calls(session: refold.Session, count: int) -> list[ToolCallId]:
    """Return the calls that wait for approval, once there are `count`."""
    while True:
        state = await session.state_at()
        calls = [call.id for call in state.turn.calls if call.approval == "requested"] if state.turn else []
        if len(calls) == count:
            return calls
        await asyncio.sleep(0)


async def started_calls(session: refold.Session, count: int) -> None:
    """Return once `count` calls of the turn have begun."""
    while True:
        state = await session.state_at()
        if state.turn and sum(bool(call.started) for call in state.turn.calls) == count:
            return
        await asyncio.sleep(0)


async def second_life(log: Path, clock: ManualClock, snapshot_every: int | None) -> None:
    """Change the settings of the stores, and go on."""
    stores = Stores()
    stores.memory = EpisodicStore(capacity=2, scope="agent", unmatched=True)
    stores.working = WorkingMemory(3, scope="agent")
    stores.knowledge = SemanticStore(scope="agent")
    stores.breaker = CircuitBreaker("weather", threshold=1, recovery_s=5)
    options = RuntimeOptions(log=log, clock=clock, snapshot_every=snapshot_every)
    async with refold.AgentRuntime(boss(stores, [spent("Hello.", 1, 1, 0)], []), **options) as runtime:
        await stores.working.clear()
        await stores.knowledge.clear()
        await stores.knowledge.put("rain", "falls again", ("water",), [0.5, 0.25])
        await sent(await runtime.session("bob"), "Hello", clock)


async def record(log: Path, snapshot_every: int | None = None) -> None:
    """Write the log."""
    clock = ManualClock()
    await first_life(log, clock, snapshot_every)
    clock.jump(3_600)
    await second_life(log, clock, snapshot_every)


async def folded(log: EventStore) -> bytes:
    """Return the history of every session, and the state of every other stream that has a core, as JSON."""
    found: dict[str, Any] = {}
    for head in await log.list_streams():
        kind = head.stream.partition("/")[0]
        if kind == "session":
            found[head.stream] = history(fold(SESSION_CODEC.decode_all(await log.read_stream(head.stream))))
        elif kind in CORES:
            found[head.stream] = (await past_state(log, head.stream, CORES[kind], CORES[kind].codec)).state
    return msgspec.json.format(msgspec.json.encode(found), indent=1)


async def read(log: Path) -> bytes:
    """Return what `folded` does, of a file."""
    async with await SQLiteStore.open(log, read_only=True) as store:
        return await folded(store)
