"""Record a sample log of today's format, to be kept here for ever.

Run: python -P tests/golden/record.py NAME, where NAME is format-<format>-core-<CORE_VERSION>, alone for the sessions
of this module, or followed by -stores, -children, -agent, -requests, -retries or -breakers for those of `record_stores`
and the others.

It is run once for each change of the log's format or of `CORE_VERSION`, and its output is committed and never changed:
`NAME.db`, and beside it `NAME.json` with the folded histories of the sessions and the folded state of each other
stream. `tests/test_golden_logs.py` opens, folds, checks and replays all of them.
"""

import asyncio
import re
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from refold import (
    AgentConfig,
    AgentRuntime,
    Budget,
    CancellationToken,
    HookContext,
    ImageBlock,
    MemoryId,
    Message,
    Middleware,
    ModelRequest,
    ModelResponse,
    Price,
    ProviderBlock,
    ProviderError,
    ScriptedProvider,
    Session,
    Summarising,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolContext,
    ToolError,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    say,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.events.core.content import text_of
from refold.events.core.ids import ToolCallId
from refold.events.core.records import EncodedBatch
from refold.events.model.configuration import configuration_of
from refold.events.model.messages import ToolUse
from refold.events.model.retry import RetryPolicy
from refold.events.session.events import InputQueued, RetryScheduled, RunCompleted, SessionEvent
from refold.providers.scripted import ScriptItem
from refold.stores import SQLiteStore

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1]))

from tests.events.life import Life  # noqa: E402 - a script finds the tests only now
from tests.golden import (  # noqa: E402
    record_agent,
    record_breakers,
    record_children,
    record_requests,
    record_retries,
    record_stores,
)
from tests.golden.record_stores import look, started_calls, waiting_calls  # noqa: E402
from tests.selfcheck.exhaustive.scope import STREAM  # noqa: E402
from tests.selfcheck.exhaustive.scope import TOOLS as SCOPE_TOOLS  # noqa: E402


@tool(tier="observe", effect="once")
async def stall(context: ToolContext[object]) -> str:
    """Wait until the run ends."""
    await context.cancel.wait()
    raise asyncio.CancelledError


@tool(tier="act", effect="idempotent")
def act(amount: int) -> dict[str, int]:
    """Do something."""
    return {"amount": amount}


@tool(tier="confirm")
async def pay(amount: float) -> str:
    """Pay, if somebody allows it."""
    return f"paid {amount}"


@tool
async def fail(transient: bool) -> str:
    """Fail."""
    raise ToolError("no luck", kind="transient" if transient else "permanent")


@tool(tier="observe")
async def large() -> str:
    """Return much text."""
    return "line of text\n" * 6_000


TOOLS: list[Tool[..., object]] = [look, stall, act, pay, fail, large]

SCRIPT: list[ScriptItem] = [
    ModelResponse(
        content=(
            ThinkingBlock(thinking="Let me see.", signature="c2lnbmF0dXJl"),
            TextBlock(text="I look twice."),
            ToolUse(name="look", input={"what": "a"}, id="toolu_1"),
            ToolUse(name="look", input={"what": "b"}, id="toolu_1"),
            ToolUse(name="act", input={"amount": 3}, id="toolu_2"),
        ),
        stop_reason="tool_use",
        usage=Usage(input_tokens=100, output_tokens=20, cache_read_tokens=50),
        model="model-2026",
    ),
    [use("fail", {"transient": True}), use("fail", {"transient": False}), use("look", "{}"), use("look", "not JSON")],
    [use("unknown"), use("large")],
    say("Done."),
    ModelResponse(content=(ToolUse(name="look", input={"what": "cut"}),), stop_reason="max_tokens"),
    ModelResponse(content=()),
    say("An answer that was cut", stop_reason="max_tokens"),
    ProviderError("overloaded", kind="overloaded", status=529, retryable=True, retry_after_s=3.5),
    [use("pay", {"amount": 2.5}), use("pay", {"amount": 9})],
    say("Paid once."),
    [use("stall"), use("look", {"what": "c"})],
    [use("stall"), use("stall")],
]


async def first_life(log: Path, clock: ManualClock) -> None:
    """Go through completed, failed and cancelled runs, and leave one open."""
    config = AgentConfig(model="model", system_prompt="Be thorough.", max_turns=10, temperature=0.5)
    provider = ScriptedProvider(SCRIPT)
    runtime = AgentRuntime(
        config, provider=provider, tools=TOOLS, log=log, clock=clock, app_version="golden", close_grace_s=1
    )
    async with runtime:
        session = await runtime.session("alice/b \N{SNOWMAN}'\"")
        await session.send(["Look around.", ImageBlock(media_type="image/png", data=b"\x89PNG not really")], key="one")
        await session.send("Long: " + "x" * 66_000)
        await session.send("Now fail.")
        paying = asyncio.create_task(session.send("Pay."))
        waiting = await waiting_calls(session, 2)
        await session.decide(waiting[0], allow=True, key="decided")
        await session.decide(waiting[1], allow=False, reason="too much")
        await paying
        token = CancellationToken()
        cancelled = asyncio.create_task(session.send("Cancel me.", cancel=token))
        queued = asyncio.create_task(session.send("Never mind.", cancel=token))
        await started_calls(session, 2)
        token.cancel()
        await asyncio.gather(cancelled, queued)
        imported = await runtime.session("imported")
        call = ToolUseBlock(id=ToolCallId("old_1"), name="look", input={"what": "old"})
        await imported.import_history([Message("user", (TextBlock(text="old"),)), Message("assistant", (call,))])
        left = asyncio.create_task(imported.send("Crash."))
        await started_calls(imported, 2)
        closing = asyncio.create_task(runtime.close())
        while not closing.done():
            await clock.advance(1)
        await asyncio.gather(left, return_exceptions=True)


async def second_life(log: Path, clock: ManualClock) -> None:
    """Let the open run go on under another configuration."""
    config = AgentConfig(model="model", system_prompt="Be brief.", run_timeout_s=3600)
    provider = ScriptedProvider([say("Recovered."), say("And more.")])
    ended = asyncio.Event()
    async with AgentRuntime(config, provider=provider, tools=TOOLS, log=log, clock=clock) as runtime:
        runtime.subscribe(lambda recorded: ended.set() if isinstance(recorded.event, RunCompleted) else None)
        session = await runtime.session("imported", restore=True)
        await ended.wait()
        await session.send("More.")


async def third_life(log: Path, clock: ManualClock) -> None:
    """Go step by step, join a run, allow for always, be reminded, make a model call again, clear the history."""
    overloaded = ProviderError("overloaded", kind="overloaded", status=529, retryable=True, retry_after_s=0.5)
    script: list[ScriptItem] = [
        [use("look", {"what": "a"})],
        [use("pay", {"amount": 1}), use("pay", {"amount": 2})],
        overloaded,
        say("Paid."),
        say("Reminded."),
        say("Fresh."),
    ]
    config = AgentConfig(model="model", approval_expiry_s=3600, retry=RetryPolicy(jitter=1), error_recovery="retry")
    async with AgentRuntime(config, provider=ScriptedProvider(script), tools=TOOLS, log=log, clock=clock) as runtime:
        session = await runtime.session("steps")
        await session.step("Step by step.", key="stepwise")
        turn = asyncio.create_task(session.step())
        waiting = await waiting_calls(session, 2)
        joined = asyncio.create_task(session.send("And quickly.", now=True))
        await events_of(session, InputQueued, 2)
        await session.decide(waiting[0], allow=True, always=True)
        await turn
        await session.resume()
        await events_of(session, RetryScheduled, 1)
        await session.remind("Remind me.", at=datetime.fromtimestamp(clock.now_us() / 1_000_000 + 60, UTC), key="tea")
        while not joined.done():
            await clock.advance(0.5)
        await clock.advance(60)
        await events_of(session, RunCompleted, 2)
        await session.clear(key="anew")
        await session.send("Anew.")


async def fourth_life(log: Path, clock: ManualClock) -> None:
    """Reject answers, fail by kind, spend a budget, keep what only a provider understands."""
    overloaded = ProviderError("overloaded", kind="overloaded", status=529, retryable=True)
    cut = ProviderError("cut", kind="connection", retryable=True)
    used = Usage(input_tokens=100, output_tokens=20, cache_read_tokens=1_000)
    owned = ModelResponse(
        content=(
            ThinkingBlock(thinking="hm", signature="sig", provider_data={"anthropic": {"n": 1}}),
            ProviderBlock(provider="anthropic", data={"type": "server_tool_use", "id": "srv_1", "input": {}}),
            TextBlock(text="Found.", provider_data={"anthropic": {"citations": [{"at": 0.5}]}}),
            ToolUse(name="look", input={"what": "b"}, provider_data={"openai": {"signature": "s"}}),
        ),
        stop_reason="tool_use",
        usage=used,
        model="model-of-today",
    )
    script: list[ScriptItem] = [
        overloaded,
        cut,
        overloaded,
        owned,
        say("not the JSON that was asked for", usage=used),
        say('{"answer": 42}', usage=used),
        say("no", usage=used),
        say("no", usage=used),
        ModelResponse(content=(use("look", {"what": "c"}), use("look", {"what": "d"})), stop_reason="tool_use"),
    ]
    config = AgentConfig(
        model="model",
        retry=RetryPolicy(attempts_max=2, attempts_by_kind={"overloaded": 3}, attempts_total_max=6, jitter=0),
        rejections_max=1,
        prices={"model": Price(input=3, output=15, cache_read=0.3)},
        budget=Budget(tokens=10_000, cost=1, tool_calls=1),
    )
    provider = ScriptedProvider(script)
    async with AgentRuntime(
        config, provider=provider, tools=TOOLS, log=log, clock=clock, output_type=dict[str, int]
    ) as runtime:
        session = await runtime.session("spending")
        sending = asyncio.create_task(session.send("How much?"))
        while not sending.done():
            await clock.advance(0.5)
        await session.send("And now?")
        await session.send("And what else?")


class Polite(Middleware):
    """Changes something of everything."""

    def on_user_message(self, context: HookContext, content: tuple[TextBlock | ImageBlock, ...]) -> str:
        """Ask for it kindly."""
        return f"{text_of(content)}, please"

    def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
        """Say what day it is, and look for it in vain."""
        day = Message("user", (TextBlock(text="It is Monday."),))
        return msgspec.structs.replace(request, messages=[day, *request.messages], max_tokens=100)

    def on_post_llm(self, context: HookContext, response: ModelResponse) -> ModelResponse | None:
        """Say it kindly."""
        if response.stop_reason == "tool_use":
            return None
        return msgspec.structs.replace(response, content=(*response.content, TextBlock(text="You are welcome.")))

    def on_tool_result(self, context: HookContext, result: ToolResultBlock) -> ToolResultBlock:
        """Hide a word."""
        return msgspec.structs.replace(result, content=(TextBlock(text=result.text.replace("seen", "\N{BULLET}")),))


class Tea:
    """A memory that knows one thing, and a working memory that holds another."""

    async def look(self, agent: str, query: str, limit: int) -> list["Found"]:
        """Return it."""
        return [Found(id=MemoryId("memory_1"), content="Anna prefers tea.")][:limit]

    def note_recalled(self, ids: Sequence[MemoryId], key: str | None = None) -> None:
        """Note nothing."""

    async def prompt_text(self) -> str:
        """Return what is held."""
        return "Working memory:\n- place: Lisbon"


class Found(msgspec.Struct, frozen=True):
    """What a memory found."""

    id: MemoryId
    content: str


async def fifth_life(log: Path, clock: ManualClock) -> None:
    """Recall, trim, rewrite, summarise, and fail to."""
    config = AgentConfig(model="model", system_prompt="")
    script: list[ScriptItem] = [
        use("look", {"what": "a"}),
        say("b" * 1_200),
        say("They looked.", usage=Usage(input_tokens=90, output_tokens=9)),
        say("c" * 400),
        ProviderError("overloaded", kind="overloaded", status=529),
        say("d"),
    ]
    provider, tea = ScriptedProvider(script), Tea()
    async with AgentRuntime(
        config,
        provider=provider,
        tools=TOOLS,
        log=log,
        clock=clock,
        middleware=[Polite()],
        memory=tea,
        working_memory=tea,
        context=Summarising(700),
        offer=lambda session, spec: spec.name == "look",
    ) as runtime:
        session = await runtime.session("long")
        await session.send("Look")
        await session.send("x" * 2_400)
        await session.send("y" * 2_400)
        assert len(provider.requests) == len(script)


async def events_of(session: Session, kind: type[SessionEvent], count: int) -> None:
    """Return once there are `count` events of a kind in the session's log."""
    while True:
        if sum([type(recorded.event) is kind async for recorded in session.events()]) >= count:
            return
        await asyncio.sleep(0)


async def random_life(log: Path) -> None:
    """Add a session with everything that today's core can decide."""
    life = Life(seed=27)
    life.go(500)
    configuration = life.configuration
    payloads = configuration_of(
        AgentConfig(model=configuration.model), agent=configuration.agent, tools=SCOPE_TOOLS, code=configuration.code
    )[1]
    async with await SQLiteStore.open(log) as store:
        version = 0
        for batch, pending in zip(life.batches, life.pending, strict=True):
            encoded = EncodedBatch(
                stream=STREAM,
                expected_version=version,
                at=batch[0].at,
                events=tuple(map(SESSION_CODEC.encode, batch)),
                pending=tuple(pending),
            )
            await store.append([encoded], payloads)
            version += len(batch)


async def record(log: Path) -> None:
    """Write the log."""
    clock = ManualClock()
    await first_life(log, clock)
    clock.jump(-3600)
    await second_life(log, clock)
    await third_life(log, clock)
    await fourth_life(log, clock)
    await fifth_life(log, clock)
    await random_life(log)


RECORDERS = {
    "": record,
    "-stores": record_stores.record,
    "-children": record_children.record,
    "-agent": record_agent.record,
    "-requests": record_requests.record,
    "-retries": record_retries.record,
    "-breakers": record_breakers.record,
}


def write(name: str) -> None:
    """Record the log of a name, and the folded histories and states beside it."""
    target = FOLDER / f"{name}.db"
    if target.exists():
        sys.exit(f"{target} exists; a golden log is never changed, record one under a new name")
    asyncio.run(RECORDERS[re.sub(r"format-\d+-core-\d+", "", name)](target))
    target.with_name(target.name + ".lock").unlink()
    with closing(sqlite3.connect(target)) as connection:
        connection.execute("VACUUM")
    target.with_suffix(".json").write_bytes(asyncio.run(record_stores.read(target)))


if __name__ == "__main__":
    write(sys.argv[1])
