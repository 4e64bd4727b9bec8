"""Logs of sessions in every state, for tests of what commands show of them."""

import shutil
from pathlib import Path

from refold.actors import EventSourcedSystem, ManualClock
from refold.events.core.content import Message, TextBlock, ThinkingBlock, ToolUseBlock
from refold.events.core.ids import RunId, StreamName, ToolCallId
from refold.events.session import commands
from refold.stores import SQLiteStore
from tests.runtime.log_builder import LogBuilder, configured, use
from tests.runtime.sample_tills import Pay, TillCore

GOLDEN = Path(__file__).parents[1] / "golden"


async def make_samples(folder: Path) -> None:
    """Make each sample log in a folder; `retried.db` is a recorded one."""
    shutil.copy(GOLDEN / "format-1-core-4-retries.db", folder / "retried.db")
    for name, build in SAMPLES.items():
        async with await SQLiteStore.open(folder / name) as store:
            await build(LogBuilder(store))


async def three_sessions(builder: LogBuilder) -> None:
    """Alice has ended, bob was cancelled, carol is open."""
    await builder.weather_session("alice")
    await builder.cancelled_session("bob")
    await builder.open_session("carol")


async def nothing(builder: LogBuilder) -> None:
    """A log without sessions."""


async def another_core(builder: LogBuilder) -> None:
    await builder.open("alice", core=0)


async def many_kinds(builder: LogBuilder) -> None:
    """Two sessions, one with a large result that is a payload, and a stream of a user's own kind."""
    await builder.weather_session("alice", result="large " * 20_000)
    await builder.weather_session("bob")
    await builder.append(StreamName("order/7"), [b'{"type":"order.placed.v1","n": [1,\n2]}', "Übung".encode()])


async def states(builder: LogBuilder) -> None:
    """Sessions that are named after the state in which they are."""
    await builder.open("idle")
    await builder.weather_session("completed")
    await builder.cancelled_session("cancelled")
    await builder.open_session("open")
    await builder.send("open", "And tomorrow?")
    await builder.open("failed", max_turns=1)
    await builder.send("failed", "go")
    await builder.answer("failed", use("weather"))
    await builder.result("failed", "call_6_0", "rain")
    await builder.open("waiting", run_timeout_s=60.0)
    await builder.send("waiting", "pay")
    await builder.answer("waiting", use("pay", amount=64))
    await builder.open("damaged")
    await builder.append(StreamName("session/damaged"), [b"{}"])
    await builder.open("parked", resumes_max=0)
    await builder.send("parked", "go")
    await builder.tell("parked", commands.ResumeRun())


async def odd_ends(builder: LogBuilder) -> None:
    """A denied call in a cancelled run, a model that fails, another configuration, and imported histories."""
    await builder.open("denied")
    await builder.send("denied", "pay")
    await builder.answer("denied", use("pay", amount=64))
    await builder.tell("denied", commands.DecideApproval(call=ToolCallId("call_6_0"), allowed=False, reason="too much"))
    await builder.tell("denied", commands.CancelRun(reason="enough"))
    await builder.open("failed")
    await builder.send("failed", "hi")
    await builder.tell(
        "failed", commands.RecordModelFailure(run=RunId("run_3"), turn=1, kind="auth", message="bad key", status=401)
    )
    await builder.weather_session("reconfigured")
    configuration, payloads = configured(max_turns=3)
    await builder.tell("reconfigured", commands.Configure(configuration=configuration), payloads)
    await builder.open("imported")
    asked = ToolUseBlock(id=ToolCallId("toolu_1"), name="weather", input={"city": "Rome"})
    imported = (
        Message("user", (TextBlock(text="hi"),)),
        Message("assistant", (ThinkingBlock(thinking="hm"), asked)),
    )
    await builder.tell("imported", commands.ImportHistory(messages=imported))
    await builder.weather_session("imported later")
    await builder.tell("imported later", commands.ImportHistory(messages=imported[:1]))


async def tills(builder: LogBuilder) -> None:
    """Two tills and a session: till/a has Paid 60, Paid 50, Emptied 110 and Paid 5."""
    async with EventSourcedSystem(builder.store, clock=ManualClock()) as system:
        hosted = await system.host("till", TillCore)
        for amount in (60, 50, 5):
            await hosted.ask("a", Pay(amount=amount, key=f"key {amount}"))
        await hosted.ask("b", Pay(amount=1))
    await builder.weather_session("alice")


SAMPLES = {
    "three.db": three_sessions,
    "empty.db": nothing,
    "another_core.db": another_core,
    "many_kinds.db": many_kinds,
    "states.db": states,
    "odd_ends.db": odd_ends,
    "tills.db": tills,
}
