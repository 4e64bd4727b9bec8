"""Opening a session of 1,000, 10,000 and 100,000 events: from its first event, and from a snapshot.

Run: python -P benchmarks/opening.py [events ...]

`first_message_ms`: until the first message to the session has its answer. The others are measured while a task watches
the loop at each of its turns, which takes time of its own. `opened_ms`: until a new runtime has answered the first
question to the session, `opened_cpu_ms` what all threads computed for that. `answered_ms`: until the first input after
that has its answer. `stall_ms`: the longest time in which nothing else had the loop meanwhile, and `stall_cpu_ms`
what the loop's thread computed in such a time; all best of three. `collect_ms`: one full garbage collection of this
process, which Python may add to any of it. `keeping_stall_ms`: the longest stall while the snapshot is written.
"""

import asyncio
import gc
import json
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from refold import AgentConfig, AgentRuntime, ScriptedProvider, Session, TextBlock, ToolUseBlock, say, tool
from refold.events import SESSION_CODEC
from refold.events.core.ids import StreamName, ToolCallId
from refold.events.core.pure_core import Plan, plan
from refold.events.core.records import EncodedBatch
from refold.events.model.messages import RequestReference, Usage
from refold.events.session.commands import RecordModelResponse, RecordToolResult, SendInput, SessionCommand
from refold.events.session.core import SESSION_CORE
from refold.events.session.events import Verdict
from refold.events.session.state import SessionState
from refold.stores import SQLiteStore
from refold.stores.folding import Fold

ROUNDS = 3
RUNS_PER_APPEND = 50
STREAM = StreamName("session/s")
WORDS = "It will be sunny in Lisbon, with a light wind from the sea and clouds at night; take a hat. "


@tool(tier="observe", effect="pure")
async def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


def runtime_on(log: Path, *, snapshots: bool) -> AgentRuntime:
    every = 1_000 if snapshots else None
    provider = ScriptedProvider([say("Sunny.")] * 2)
    return AgentRuntime(
        AgentConfig(model="m"), provider=provider, tools=[weather], log=log, snapshot_every=every, close_grace_s=600
    )


def run_of(state: SessionState) -> Iterator[SessionCommand]:
    """Yield what is told to a session in a run with a tool call; the state goes on meanwhile."""
    yield SendInput(content=(TextBlock(text=f"{state.version}: what will the weather be tomorrow?"),))
    for calls in (1, 0):
        assert state.run is not None
        use = (ToolUseBlock(id=ToolCallId("new"), name="weather", input={"city": "Lisbon"}),) * calls
        yield RecordModelResponse(
            run=state.run.id,
            turn=state.run.turns,
            asked=state.run.asked,
            content=(TextBlock(text=WORDS), *use),
            stop_reason="tool_use" if calls else "end_turn",
            usage=Usage(input_tokens=100, output_tokens=20),
            request=RequestReference(configured=state.configured, messages=len(state.messages), digest=""),
            verdicts=(Verdict(),) * calls,
        )
        if calls:
            assert state.turn is not None
            yield RecordToolResult(call=state.turn.calls[0].id, content=(TextBlock(text=WORDS),))


async def write(log: Path, events: int) -> None:
    """Write a session of about `events` events: begun by a runtime, and grown by its core."""
    async with runtime_on(log, snapshots=False) as runtime:
        await (await runtime.session("s")).send("Weather in Lisbon?")
    async with await SQLiteStore.open(log, durability="normal") as store:
        fold = Fold(STREAM, SESSION_CORE, SESSION_CODEC)
        await fold.read(store)
        state, at = fold.state, fold.at
        while state.version < events:
            batches: list[EncodedBatch] = []
            for _ in range(RUNS_PER_APPEND):
                for command in run_of(state):
                    at += 1_000_000
                    planned: Any = plan(SESSION_CORE, state, command, at)
                    assert isinstance(planned, Plan)
                    batches.append(
                        EncodedBatch(
                            stream=STREAM,
                            expected_version=state.version - len(planned.events),
                            at=at,
                            events=tuple(map(SESSION_CODEC.encode, planned.events)),
                            pending=tuple(effect.key for effect in SESSION_CORE.pending(state)),
                        )
                    )
            await store.append(batches)


class Stalls:
    """How long nobody else had the loop."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(0)
            now, spent = time.perf_counter(), time.thread_time()
            self.wall_s, self.cpu_s = max(self.wall_s, now - wall), max(self.cpu_s, spent - cpu)
            wall, cpu = now, spent

    def end(self, name: str) -> dict[str, float]:
        self._watching.cancel()
        return {f"{name}stall_ms": rounded(self.wall_s), f"{name}stall_cpu_ms": rounded(self.cpu_s)}


def rounded(seconds: float) -> float:
    return round(seconds * 1_000, 1)


async def first_message(session: Session) -> dict[str, float]:
    """Return what the first question and the first input to a session take."""
    await asyncio.sleep(0.2)  # Opening the runtime is over.
    gc.collect()
    stalls, start, spent = Stalls(), time.perf_counter(), time.process_time()
    await session.spent()
    opened = time.perf_counter()
    found = {"opened_ms": rounded(opened - start), "opened_cpu_ms": rounded(time.process_time() - spent)}
    found |= stalls.end("")
    stalls = Stalls()
    assert (await session.send("And today?")).text == "Sunny."
    return {**found, "answered_ms": rounded(time.perf_counter() - opened), **stalls.end("answering_")}


async def first_answer(session: Session) -> dict[str, float]:
    """Return what the first message to a session takes until its answer, while nobody watches the loop."""
    await asyncio.sleep(0.2)  # Opening the runtime is over.
    gc.collect()
    start = time.perf_counter()
    assert (await session.send("And today?")).text == "Sunny."
    return {"first_message_ms": rounded(time.perf_counter() - start)}


def copied(log: Path) -> Path:
    return Path(shutil.copy(log, log.with_name("copy.db")))


def size_of(log: Path) -> int:
    return log.stat().st_size


async def opened(log: Path, *, snapshots: bool, count: int = ROUNDS) -> dict[str, float]:
    """Return the best of several first messages, each to a copy of the log."""
    rounds: list[dict[str, float]] = []
    for _ in range(count):
        async with runtime_on(copied(log), snapshots=snapshots) as runtime:
            unwatched = await first_answer(await runtime.session("s"))
        async with runtime_on(copied(log), snapshots=snapshots) as runtime:
            rounds.append(unwatched | await first_message(await runtime.session("s")))
    return {name: min(found[name] for found in rounds) for name in rounds[0]}


async def keep(log: Path) -> dict[str, float]:
    """Have the snapshot of a log's session written, and return the longest stall of that."""
    stalls = Stalls()
    async with runtime_on(log, snapshots=True) as runtime:
        await (await runtime.session("s")).spent()
    return stalls.end("keeping_")


async def measure(log: Path, events: int) -> dict[str, Any]:
    """Return what opening a session of so many events takes."""
    await write(log, events)
    before, log_bytes = await opened(log, snapshots=False), size_of(log)
    keeping = await keep(log)
    with closing(sqlite3.connect(log)) as connection, connection:
        (snapshot_bytes,) = connection.execute("SELECT sum(length(state)) FROM snapshots").fetchone()
    start = time.perf_counter()
    gc.collect()
    return {
        "events": events,
        "collect_ms": rounded(time.perf_counter() - start),
        "log_bytes": log_bytes,
        "snapshot_bytes": snapshot_bytes,
        **keeping,
        "from_first_event": before,
        "from_snapshot": await opened(log, snapshots=True),
    }


def main() -> None:
    """Measure each size, and print."""
    for events in map(int, sys.argv[1:] or ("1000", "10000", "100000")):
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asyncio.run(measure(Path(folder, "events.db"), events)), indent=2))


if __name__ == "__main__":
    main()
