"""What metrics cost: a turn with one tool while they are counted, beside one while they are not, and a long log's fold.

Run: python -P benchmarks/metrics.py [turns]

The log is in memory and processor time is measured, so nothing but computation counts. Two runtimes take turns
alternately, so that what else the machine does falls on both. The figures are asked for once, before the turns.
"""

import asyncio
import json
import statistics
import sys
import time

from refold import AgentConfig, AgentRuntime, ModelRequest, ScriptedProvider, Session, say, tool, use
from refold.events.views.metrics import MetricsState, count_all
from refold.providers.scripted import ScriptedAnswer
from refold.stores import InMemoryStore

ROUNDS = 5
TURNS_AT_ONCE = 100


@tool(tier="observe", effect="pure")
async def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


def model(request: ModelRequest) -> ScriptedAnswer:
    """Ask for the tool after an input, and answer after its result."""
    return say("Sunny.") if request.messages[-1].text == "" else use("weather", {"city": "Lisbon"})


def runtime_on(store: InMemoryStore, turns: int) -> AgentRuntime:
    return AgentRuntime(
        AgentConfig(model="m"), provider=ScriptedProvider([model] * (3 * turns)), tools=[weather], log=store
    )


async def turns_ms(session: Session) -> float:
    """Return the milliseconds of processor time of one turn, the mean of many."""
    start = time.process_time()
    for _ in range(TURNS_AT_ONCE):
        await session.send("Weather in Lisbon?")
    return (time.process_time() - start) * 1000 / TURNS_AT_ONCE


async def one_round(turns: int) -> tuple[float, float]:
    """Return the median milliseconds of a turn without and with metrics, likewise."""
    without_ms: list[float] = []
    with_ms: list[float] = []
    plain, counted = runtime_on(InMemoryStore(), turns), runtime_on(InMemoryStore(), turns)
    async with plain, counted:
        await counted.metrics.snapshot()
        sessions = await plain.session("s"), await counted.session("s")
        for _ in range(turns // TURNS_AT_ONCE):
            without_ms.append(await turns_ms(sessions[0]))
            with_ms.append(await turns_ms(sessions[1]))
    return statistics.median(without_ms), statistics.median(with_ms)


async def fold_us(turns: int) -> tuple[float, float, float]:
    """Return the microseconds of counting one stored event, of a whole snapshot, and the milliseconds of opening."""
    store = InMemoryStore()
    async with runtime_on(store, turns) as runtime:
        session = await runtime.session("s")
        for _ in range(turns):
            await session.send("Weather in Lisbon?")
    events = await store.read_all(limit=10**9)
    start = time.process_time()
    count_all(MetricsState(), events)
    event_us = (time.process_time() - start) * 1e6 / len(events)
    start = time.process_time()
    async with runtime_on(store, turns) as runtime:
        open_ms = (time.process_time() - start) * 1000
        await runtime.metrics.snapshot()
        start = time.process_time()
        for _ in range(100):
            await runtime.metrics.snapshot()
        snapshot_us = (time.process_time() - start) * 1e6 / 100
    return event_us, snapshot_us, open_ms


def main() -> None:
    """Measure, and print the medians."""
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    rounds = [asyncio.run(one_round(turns)) for _ in range(ROUNDS)]
    without_ms, with_ms = (statistics.median(column) for column in zip(*rounds, strict=True))
    event_us, snapshot_us, open_ms = asyncio.run(fold_us(turns))
    print(
        json.dumps(
            {
                "turn_without_ms": round(without_ms, 3),
                "turn_with_ms": round(with_ms, 3),
                "ratio": round(statistics.median(after / before for before, after in rounds), 3),
                "counting_one_event_us": round(event_us, 2),
                "one_snapshot_us": round(snapshot_us, 1),
                "opening_ms": round(open_ms, 1),
                "events_in_that_log": turns * 9,
                "turns": turns,
                "rounds": ROUNDS,
                "store": "memory",
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
