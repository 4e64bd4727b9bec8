"""What a fork costs, wherever it is made: time and bytes after 1,000, 10,000 and 100,000 events of its origin.

Run: python -P benchmarks/forks.py [events ...]

Time is the best of thirty forks at places spread over the whole origin, and of thirty rewinds of one message, each
with its wait for the disk. Bytes are those of the fork's event and of the log's growth per fork.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say
from refold.events.core.content import TextBlock
from refold.events.core.ids import AgentId, SessionId, stream_name
from refold.events.core.pure_core import Plan, plan
from refold.events.core.records import EncodedBatch
from refold.events.model.configuration import CORE_VERSION, CodeIdentity, configuration_of
from refold.events.model.messages import RequestReference, Usage
from refold.events.session.commands import Configure, OpenSession, RecordModelResponse, SendInput, SessionCommand
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.stores import SQLiteStore

SIZES = (1_000, 10_000, 100_000)
FORKS = 30
EVENTS_PER_RUN = 5
TEXT = (TextBlock(text="What is the weather in Lisbon, and what will it be tomorrow?"),)


async def write(log: Path, events: int) -> None:
    """Write a session of about so many events."""
    config, code = AgentConfig(model="m"), CodeIdentity(refold="0", core=CORE_VERSION)
    configuration, payloads = configuration_of(config, agent=AgentId("agent"), tools=(), code=code)
    state, at, batches = SESSION_CORE.initial(), 0, list[EncodedBatch]()

    def record(command: SessionCommand) -> None:
        nonlocal state, at
        at += 1_000_000
        before = state.version
        planned = plan(SESSION_CORE, state, command, at)
        assert isinstance(planned, Plan)
        state = planned.state
        batches.append(
            EncodedBatch(
                stream=stream_name("session", "s"),
                expected_version=before,
                at=at,
                events=tuple(map(SESSION_CODEC.encode, planned.events)),
                pending=tuple(effect.key for effect in SESSION_CORE.pending(state)),
            )
        )

    record(OpenSession(session=SessionId("s"), agent=AgentId("agent")))
    record(Configure(configuration=configuration))
    async with await SQLiteStore.open(log, durability="normal") as store:
        for _ in range(events // EVENTS_PER_RUN):
            record(SendInput(content=TEXT))
            assert state.run is not None
            reference = RequestReference(configured=2, messages=len(state.messages))
            record(
                RecordModelResponse(
                    run=state.run.id,
                    turn=1,
                    asked=state.run.asked,
                    content=TEXT,
                    stop_reason="end_turn",
                    usage=Usage(),
                    request=reference,
                )
            )
            if len(batches) >= 1_000:
                await store.append(batches, payloads)
                batches.clear()
        await store.append(batches, payloads)


async def measure(log: Path) -> tuple[float, float, float, float]:
    """Return the milliseconds of a fork and of a rewind, the bytes of a fork's event, and how much the log grows."""
    provider = ScriptedProvider([say("Sunny.")] * FORKS)
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=log) as runtime:
        session = await runtime.session("s", restore=True)
        last = (await session.state_at()).version
        await session.send("And now?")
        await session.rewind()
        forks, rewinds, sizes = list[float](), list[float](), list[int]()
        used = await pages(runtime)
        for number in range(FORKS):
            place = 2 + EVENTS_PER_RUN * ((last - 2) // EVENTS_PER_RUN * (number + 1) // FORKS)
            start = time.perf_counter()
            fork = await session.fork(place, name=f"fork {number}")
            forks.append(time.perf_counter() - start)
            [event] = await runtime.store.read_stream(stream_name("session", fork.id), after_version=place, limit=1)
            sizes.append(len(event.data))
        grown = (await pages(runtime) - used) / FORKS
        for _ in range(FORKS - 1):
            await session.send("And now?")
            start = time.perf_counter()
            await session.rewind()
            rewinds.append(time.perf_counter() - start)
    return 1e3 * min(forks), 1e3 * min(rewinds), statistics.mean(sizes), grown


async def pages(runtime: AgentRuntime) -> int:
    """Return about how many bytes all events and names of streams have."""
    events = await runtime.store.read_all(limit=10**7)
    return sum(len(event.data) + 64 for event in events)


async def main(sizes: list[int]) -> None:
    print(f"{'events':>8} {'fork ms':>9} {'rewind ms':>10} {'event bytes':>12} {'log bytes':>10}")
    for events in sizes:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "events.db"
            await write(log, events)
            fork_ms, rewind_ms, size, grown = await measure(log)
            print(f"{events:>8,} {fork_ms:>9.2f} {rewind_ms:>10.2f} {size:>12.0f} {grown:>10.0f}")


if __name__ == "__main__":
    asyncio.run(main([int(word) for word in sys.argv[1:]] or list(SIZES)))
